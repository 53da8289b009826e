"""What all inboxes have to do, those of consumers and of ports: first come, first served, and nothing is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import pytest

from pulsar_nack import ClosedError, Delivery, MessageId, Position
from pulsar_nack.consumer._inbox import Inbox
from pulsar_nack.consumer._local_inbox import LocalInbox
from pulsar_nack.testing._fake_inbox import Inbox as FakeInbox
from pulsar_nack.testing._fake_topic import FakeEntry, FakeMessage
from pulsar_nack.wire._inbox import WireInbox
from tests.wire.stand_ins import FakeMember


class Box:
    """An inbox of one of the kinds, into which messages are put by their numbers, until it is ended."""

    put: Callable[[int], None]
    receive: Callable[[], Awaitable[Delivery]]
    wake_all: Callable[[], None]

    def __init__(self, kind: str) -> None:
        self.is_ended = False
        if kind == "consumer":
            of_consumer = Inbox(lambda _: True)
            self.put = lambda number: of_consumer.put(cast("Any", delivery(number)))
            self.receive = cast("Any", of_consumer.get)
            self.wake_all = lambda: of_consumer.close(ClosedError("the inbox"))
        elif kind == "local":
            local = LocalInbox()
            self.put = lambda number: local.take([delivery(number)])
            self.receive = lambda: local.get(self.check)
            self.wake_all = local.wake_all
        elif kind == "wire":
            wire, source = WireInbox(self.check), FakeMember("t")
            self.put = lambda number: wire.put(delivery(number), source)
            self.receive = wire.get
            self.wake_all = wire.wake_all
        else:
            fake = FakeInbox(0.0, lambda *_: True, lambda _: None)
            self.put = lambda number: fake.send(entry(number), [0], 0, [])
            self.receive = lambda: fake.get(self.check)
            self.wake_all = fake.wake_all

    def check(self) -> None:
        """Raise if it is ended."""
        if self.is_ended:
            raise ClosedError("the inbox")

    async def get(self) -> int:
        """Wait for a message, and return its number."""
        return int((await self.receive()).data)

    def end(self) -> None:
        """Let everyone know that nothing comes any more."""
        self.is_ended = True
        self.wake_all()


def delivery(number: int) -> Delivery:
    """The message of this number."""
    return Delivery(MessageId(1, number), b"%d" % number)


def entry(number: int) -> FakeEntry:
    """The same as a fake topic has it."""
    return FakeEntry(
        number, Position(1, number), -1, "t", (FakeMessage(b"%d" % number),), is_batch=False, published_ms=0
    )


@pytest.fixture(params=["consumer", "local", "wire", "fake"])
def box(request: pytest.FixtureRequest) -> Box:
    """An inbox of each kind."""
    return Box(request.param)


async def test_waiting_calls_are_served_in_turn(box: Box) -> None:
    """Calls get messages in the order in which they came, whichever were there first."""
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
    """It lets the one that waits next have the message, though nothing more comes."""
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
    else:  # it had run already
        assert await first == 0
        second.cancel()


async def test_calls_that_are_cancelled_at_random_moments(box: Box) -> None:
    """U2: at the very moment of an arrival too, cancelled calls lose and repeat nothing."""
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


async def test_everyone_is_told_of_the_end(box: Box) -> None:
    """All calls that wait raise that it has ended."""
    calls = [asyncio.create_task(box.get()) for _ in range(2)]
    await asyncio.sleep(0)
    box.end()
    assert [type(result) for result in await asyncio.gather(*calls, return_exceptions=True)] == [ClosedError] * 2
