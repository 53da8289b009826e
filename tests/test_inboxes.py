"""The contract of all inboxes, of consumers and of ports: first come, first served, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import pytest

from pulsar_nack import ClosedError, Delivery, MessageId, Position
from pulsar_nack.consumer._inbox import Inbox
from pulsar_nack.testing._fake_delivery import FakeEntry, FakeInbox, FakeMessage
from pulsar_nack.topic._inbox import LocalInbox
from pulsar_nack.wire._consumer._inbox import WireInbox
from tests.wire.test_inbox import Source


class Box:
    """An inbox of one of the kinds; its messages are numbers, and it can be closed."""

    put: Callable[[int], None]
    receive: Callable[[], Awaitable[Delivery]]
    wake_all: Callable[[], None]

    def __init__(self, kind: str) -> None:
        self.is_closed = False
        if kind == "consumer":
            of_consumer: Inbox[Any] = Inbox()
            self.put = lambda number: of_consumer.put(delivery(number))
            self.receive = of_consumer.get
            self.wake_all = lambda: of_consumer.close(ClosedError("the inbox"))
        elif kind == "local":
            local = LocalInbox()
            self.put = lambda number: local.take([delivery(number)])
            self.receive = lambda: local.get(self.check)
            self.wake_all = local.wake_all
        elif kind == "wire":
            wire, source = WireInbox(self.check), cast("Any", Source())
            self.put = lambda number: wire.put(delivery(number), source)
            self.receive = wire.get
            self.wake_all = wire.wake_all
        else:
            fake = FakeInbox(0.0, lambda *_: True, lambda _: None)
            self.put = lambda number: fake.send(entry(number), [0], 0, [])
            self.receive = lambda: self._get_from_port(fake)
            self.wake_all = fake.wake_all

    def check(self) -> None:
        """Raise if the inbox is closed."""
        if self.is_closed:
            raise ClosedError("the inbox")

    async def _get_from_port(self, fake: FakeInbox) -> Delivery:
        self.check()  # like the fake port, whose inbox checks only after a wait
        return await fake.get(self.check)

    async def get(self) -> int:
        """Wait for a message, and return its number."""
        return int((await self.receive()).data)

    def close(self) -> None:
        """Close the inbox, and wake all waiting calls."""
        self.is_closed = True
        self.wake_all()


def delivery(number: int) -> Delivery:
    """Return the message with this number."""
    return Delivery(MessageId(1, number), b"%d" % number)


def entry(number: int) -> FakeEntry:
    """Return the entry of a fake topic with that message."""
    return FakeEntry(
        number, Position(1, number), -1, "t", (FakeMessage(b"%d" % number),), is_batch=False, published_ms=0
    )


@pytest.fixture(params=["consumer", "local", "wire", "fake"])
def box(request: pytest.FixtureRequest) -> Box:
    """An inbox of each kind."""
    return Box(request.param)


async def test_waiting_calls_are_served_in_turn(box: Box) -> None:
    """Calls get messages in the order in which the calls came, whether calls or messages were there first."""
    for number in range(2):
        box.put(number)
    assert [await box.get(), await box.get()] == [0, 1]
    calls = [asyncio.create_task(box.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for number in range(3):
        box.put(number)
    assert await asyncio.gather(*calls) == [0, 1, 2]


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_call_that_is_cancelled_when_it_was_woken(box: Box, turns: int) -> None:
    """A call that is cancelled after it was woken leaves the message to the next call, even if no other comes."""
    first, second = asyncio.create_task(box.get()), asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    if first.cancelled():
        assert second.done()
        assert await second == 0
    else:
        assert turns > 0  # it ran before it was cancelled
        assert await first == 0
        second.cancel()


async def test_calls_that_are_cancelled_at_random_moments(box: Box) -> None:
    """U2: cancelled calls lose and repeat nothing, even if a message arrives at that very moment."""
    chance, got = Random(7), list[int]()

    async def receive() -> None:
        got.append(await box.get())

    waiting = [asyncio.create_task(receive()) for _ in range(3)]
    for number in range(300):
        box.put(number)
        for _ in range(chance.randrange(4)):
            for _ in range(chance.randrange(2)):
                await asyncio.sleep(0)
            waiting.append(asyncio.create_task(receive()))
            waiting.pop(chance.randrange(len(waiting))).cancel()
    for _ in range(600):
        waiting.append(asyncio.create_task(receive()))
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert sorted(got) == list(range(300))


async def test_closing_ends_all_waiting_calls(box: Box) -> None:
    """All waiting calls raise ClosedError when the inbox is closed, and so do later calls."""
    calls = [asyncio.create_task(box.get()) for _ in range(2)]
    await asyncio.sleep(0)
    box.close()
    assert [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)] == [ClosedError] * 2
    with pytest.raises(ClosedError):
        await box.get()
