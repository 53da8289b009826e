"""A process with a running handler gets SIGTERM or SIGINT; tests/broker has one beside another consumer."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from pulsar_nack import Consumer, InvalidArgumentError, Message
from pulsar_nack.consumer import DrainReport
from pulsar_nack.testing import FakePort
from tests.patience import patience


async def running(seconds: float, *names: signal.Signals) -> tuple[DrainReport, Consumer]:
    """Run a handler that takes a while, and send signals to this process, 50 ms apart."""
    port = FakePort()
    port.topic.publish(b"a")
    began = asyncio.Event()

    async def handler(message: Message) -> None:
        began.set()
        await asyncio.sleep(seconds)

    async with Consumer(port) as consumer:
        task = asyncio.create_task(consumer.run(handler, stop_on_signals=True))
        await began.wait()
        for name in names:
            os.kill(os.getpid(), name)
            await asyncio.sleep(0.05)
        return await task, consumer


async def test_signals_drain_and_their_handlers_are_restored() -> None:
    """U37: SIGTERM or SIGINT drains; a second one cancels the handlers at once; the old handlers are restored."""
    names = (signal.SIGTERM, signal.SIGINT)

    def own(number: int, frame: object) -> None:
        raise AssertionError("it is restored later")

    earlier = [signal.signal(name, own) for name in names]
    try:
        for name in names:
            report, consumer = await running(0.2, name)
            assert (report, consumer.statistics().acked) == (DrainReport(settled=1), 1)
        report, consumer = await running(60, *names)
        assert (report, consumer.statistics().nacked) == (DrainReport(cancelled=1), 1)
        assert [signal.getsignal(name) for name in names] == [own, own]
    finally:
        for name, handler in zip(names, earlier, strict=True):
            signal.signal(name, handler)


def test_signals_need_the_main_thread() -> None:
    """In another thread `stop_on_signals` is refused before anything runs, and the consumer continues."""

    async def main() -> None:
        port = FakePort()
        port.topic.publish(b"a")

        async def handler(message: Message) -> None:
            raise AssertionError("it must not run")

        async with Consumer(port) as consumer:
            with pytest.raises(InvalidArgumentError, match="stop_on_signals"):
                await consumer.run(handler, stop_on_signals=True, key_ordered=True)
            await (await consumer.receive(timeout=1)).ack()

    asyncio.run(asyncio.wait_for(asyncio.to_thread(asyncio.run, main()), patience(10)))
