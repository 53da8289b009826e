"""Producers that compress large payloads, in threads of the client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

import pytest

from pulsar_nack import ClosedError, InvalidArgumentError, MessageId
from pulsar_nack.errors import RequestTimeoutError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._producer._producer import Producer
from tests.for_each import for_each
from tests.wire.fake_broker import FakeBroker, carried_out_then_cut
from tests.wire.hostile import blocked, client_of
from tests.wire.producing import producing

LARGE: Final = random.Random(1).randbytes(300_000)
SHORT: Final = [b"%d" % number for number in range(5)]


class Held:
    """Calls of the loop's executor; each is run when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.run_in_executor = self._submit  # type: ignore[method-assign, assignment]

    def _submit(self, _: Executor, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self._loop.create_future()
        self.calls.append((done, function, args))
        return done

    async def run(self, number: int = 0) -> None:
        """Run one of the waiting calls, and let time pass."""
        done, function, args = self.calls.pop(number)
        done.set_result(function(*args))
        await asyncio.sleep(1)

    async def fail(self, error: Exception) -> None:
        """Let the first call fail, and let time pass."""
        self.calls.pop(0)[0].set_exception(error)
        await asyncio.sleep(1)


@for_each("batching", [False, True])
def test_the_loop_goes_on(batching: bool) -> None:
    """O32: compressing 4 MB takes long; the loop is not blocked, and later messages are stored later."""

    async def test() -> None:
        broker = FakeBroker(latency=0)
        broker.max_message_bytes = 32 << 20
        data = LARGE * 15
        async with client_of(broker) as client:
            options: dict[str, Any] = {"compression": "zlib", "batching": batching, "batch_max_bytes": 32 << 20}
            async with client.producer("orders", **options) as producer:
                with blocked() as turns:
                    receipts = [producer.send_nowait(each) for each in (b"before", data, *SHORT)]
                    await producer.flush()
                    ids = [receipt.result() for receipt in receipts]
                assert sorted(ids) == ids
        turns.check()

    asyncio.run(test())


async def _entries(producer: Producer, *payloads: bytes) -> list[asyncio.Task[MessageId]]:
    tasks = [asyncio.create_task(producer.send(each)) for each in payloads]
    await asyncio.sleep(1)
    return tasks


@virtual_time
async def test_order() -> None:
    """Messages are stored in the order of sending, whichever is compressed first."""
    held = Held()
    async with producing() as made:
        producer = await made.open(compression="zlib")
        await _entries(producer, b"first", LARGE, b"second", LARGE + b"x", b"third")
        assert (made.stored(), producer.pending) == ([b"first"], 4)
        flushing = asyncio.create_task(producer.flush())
        await held.run(1)
        assert made.stored() == [b"first"]
        await held.run()
        assert made.stored() == [b"first", LARGE, b"second", LARGE + b"x", b"third"]
        await flushing
        assert producer.last_sequence_id == 4


@virtual_time
async def test_sessions_end_meanwhile() -> None:
    """A message that is being compressed when the connection is lost is sent in the next session, in order."""
    held = Held()
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(compression="zlib", batching=True, batch_max_messages=2)
        made.broker.next("SEND", carried_out_then_cut)
        sending = await _entries(producer, b"a", b"b", LARGE, LARGE + b"x", b"c", b"d")
        made.broker.cut()
        await asyncio.sleep(1)
        await held.run()
        await held.run()
        assert made.stored() == [b"a", b"b", LARGE, LARGE + b"x", b"c", b"d"]
        assert [each.ledger for each in await asyncio.gather(*sending)] == [-1, -1, 7, 7, 7, 7]


@virtual_time
async def test_a_message_that_is_too_large_then() -> None:
    """Only that message fails, when its size is known; its sequence id can be used again."""
    held = Held()
    async with producing() as made:
        made.broker.max_message_bytes = 4_096
        producer = await made.open(compression="zlib")
        large, small, behind = await _entries(producer, LARGE, bytes(300_000), b"behind")
        await held.run()
        with pytest.raises(InvalidArgumentError, match="data: expected at most 4096 bytes"):
            await large
        await held.run()
        assert [(await each).entry for each in (small, behind)] == [0, 1]
        receipt = producer.send_nowait(LARGE, sequence_id=10)
        await held.run()
        assert isinstance(receipt.exception(), InvalidArgumentError)
        assert (await producer.send(b"again", sequence_id=10)).entry == 2
        assert len(made.broker.commands("PRODUCER")) == 1
        assert producer.pending == 0


@virtual_time
async def test_chunks() -> None:
    """A message that is still too large is cut into chunks, before later messages."""
    held = Held()
    async with producing() as made:
        made.broker.max_message_bytes = 100_000
        producer = await made.open(compression="zlib", chunking=True)
        large, behind = await _entries(producer, LARGE, b"behind")
        await held.run()
        assert len((await large).parts) == 4
        assert (await behind).entry == 4


@virtual_time
async def test_compression_that_fails() -> None:
    """The error is raised for its message; if no thread can be started the call raises."""
    held = Held()
    async with producing() as made:
        producer = await made.open(compression="zlib")
        (large,) = await _entries(producer, LARGE)
        await held.fail(MemoryError())
        with pytest.raises(MemoryError):
            await large

        def refuse(*_: Any) -> None:
            raise RuntimeError("can't start new thread")

        made.context.loop.run_in_executor = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(RuntimeError, match="new thread"):
            await producer.send(LARGE)
        assert producer.pending == 0
        await producer.send(b"x")
        assert made.stored() == [b"x"]


@virtual_time
async def test_time_is_over_first() -> None:
    """A message that timed out, or whose producer is closed, is not sent when it is compressed at last."""
    held = Held()
    async with producing() as made:
        producer = await made.open(compression="zlib", send_timeout=5)
        (large,) = await _entries(producer, LARGE)
        with pytest.raises(RequestTimeoutError):
            await large
        await held.run()
        assert (await producer.send(b"x")).entry == 0
        patient = await made.open(compression="zlib", send_timeout=None)
        (large,) = await _entries(patient, LARGE)
        await patient.aclose()
        with pytest.raises(ClosedError):
            await large
        await held.run()
        assert made.stored() == [b"x"]
