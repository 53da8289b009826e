"""One index for several subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pulsar_nack import ClosedError, DelayedDeliveryTracker, InvalidArgumentError, Position
from pulsar_nack.delayed.bucket._shared import SharedDelayedIndex, SharedSubscription
from pulsar_nack.testing import ManualClock

from . import stage
from .stage import config_of, positions

pytestmark = pytest.mark.usefixtures("home")


class Pair:
    """Two subscriptions a and b of one index, their mark-delete positions, and how often each was called."""

    def __init__(self, shared: SharedDelayedIndex, clock: ManualClock) -> None:
        self.shared = shared
        self.clock = clock
        self.marks = {"a": Position(0, -1), "b": Position(0, -1)}
        self.told: list[str] = []
        self.a, self.b = self.join("a"), self.join("b")

    def join(self, name: str) -> SharedSubscription:
        """Subscribe."""
        return self.shared.subscribe(name, lambda: self.marks[name], on_due=lambda: self.told.append(name))

    async def get(self, one: SharedSubscription, limit: int = 100) -> list[Position]:
        """Take out what one subscription may dispatch, and wait for storage."""
        found = one.get_scheduled_messages(limit)
        while one.has_message_available() and len(found) < limit:
            await self.shared.tracker.wait_until_idle()
            found += one.get_scheduled_messages(limit - len(found))
        return found


@asynccontextmanager
async def pair(*, strict: bool = True, tick: int = 1) -> AsyncIterator[Pair]:
    """Open an index with two subscriptions; at the end every snapshot on storage has a name."""
    home, clock = stage.new_home(), ManualClock()
    storage, cursor = home.storage, home.cursor
    config = config_of(tick, strict=strict, prefetch=0)
    async with home, await SharedDelayedIndex.open(storage, cursor, config, clock=clock) as shared:
        yield Pair(shared, clock)
    assert {key for key in cursor.held if key != "other"} == {storage.keys[each] for each in storage.snapshots}


async def test_each_gets_what_it_has_not_acknowledged() -> None:
    """D33: with mark-delete 1:0 and 5:0 due ids reach both replay queues; the second skips those below 5:0."""
    async with pair() as both:
        assert isinstance(both.a, DelayedDeliveryTracker)
        both.marks = {"a": Position(1, 0), "b": Position(5, 0)}
        for i in range(1, 13):
            assert both.a.add_message(i, i, 10 * i)
            assert both.b.add_message(i, i, 10 * i)
        assert both.a.number_of_delayed_messages == 12
        await both.shared.tracker.wait_until_idle()
        both.clock.set(120)
        await both.shared.tracker.wait_until_idle()
        both.clock.advance(0)
        assert both.told == ["a", "b"]
        assert await both.get(both.a) == positions(*range(1, 13))
        assert both.b.number_of_delayed_messages == 8
        assert both.b.contains_message(7, 7)
        assert await both.get(both.b, 3) == positions(5, 6, 7)
        assert await both.get(both.b) == positions(*range(8, 13))
        assert both.a.number_of_delayed_messages == both.b.number_of_delayed_messages == 0


async def test_follows_the_lowest() -> None:
    """The index drops what all have acknowledged, and keeps what one has still to get."""
    async with pair() as both:
        for i in range(1, 11):
            both.a.add_message(i, i, 10 * i)
        both.marks = {"a": Position(9, 9), "b": Position(3, 3)}
        assert both.shared.tracker.trim() == 3
        both.clock.set(100)
        assert await both.get(both.a) == positions(10)
        assert await both.get(both.b) == positions(*range(4, 11))


async def test_what_one_dispatches_at_once_reaches_the_other() -> None:
    """A message that one subscription adds when it is due is dispatched there, and goes to the other's queue."""
    async with pair() as both:
        both.a.add_message(1, 1, 10)
        both.clock.set(10)
        assert not both.a.add_message(1, 1, 10)
        assert await both.get(both.a) == []
        assert await both.get(both.b) == positions(1)
        assert not both.b.add_message(1, 1, 10)
        assert await both.get(both.b) == []


async def test_notifies_those_that_get_an_earlier_message() -> None:
    """Not strict, a subscription that takes messages early causes a call to the other one."""
    async with pair(strict=False, tick=100) as both:
        both.a.add_message(1, 1, 150)
        both.clock.set(60)
        assert both.told == []
        assert await both.get(both.a) == positions(1)
        await asyncio.sleep(0)
        assert both.told == ["b"]
        assert await both.get(both.b) == positions(1)


async def test_leaving() -> None:
    """A subscription that leaves no longer delays the others; its calls are refused, and its name is free again."""
    async with pair() as both:
        with pytest.raises(InvalidArgumentError, match="name"):
            both.join("b")
        for i in range(1, 4):
            both.a.add_message(i, i, 10 * i)
        both.marks["a"] = Position(2, 2)
        await both.b.aclose()
        await both.b.aclose()
        with pytest.raises(ClosedError):
            both.b.get_scheduled_messages(1)
        assert both.shared.tracker.trim() == 2
        both.clock.set(30)
        assert both.told == ["a"]
        both.b = both.join("b")
        assert await both.get(both.a) == positions(3)


async def test_clearing() -> None:
    """A clear drops the queue of one subscription; the index is closed with its last one."""
    async with pair() as both:
        for i in range(1, 8):
            both.a.add_message(i, i, 10 * i)
        both.clock.set(20)
        assert await both.get(both.a) == positions(1, 2)
        await both.b.clear()
        assert await both.get(both.b) == []
        assert both.b.number_of_delayed_messages == 5
        await both.a.aclose()
        await both.b.clear()
        assert both.b.number_of_delayed_messages == both.b.buffer_memory_usage == 0
        assert not both.b.should_pause_all_deliveries()
        both.b.reset_tick_time(5)


async def test_what_was_cleared_does_not_come_back() -> None:
    """O22: a clear removes the names of an index's snapshots although storage deletes none of them."""
    home, config = stage.new_home(), config_of(prefetch=0)
    for count in (7, 0):
        async with (
            home,
            await SharedDelayedIndex.open(home.storage, home.cursor, config, clock=ManualClock()) as shared,
        ):
            only = shared.subscribe("only", lambda: Position(0, -1))
            for i in range(count):
                only.add_message(i, i, 10 * (i + 1))
            assert only.number_of_delayed_messages == count
            await shared.tracker.wait_until_idle()
            home.storage.faults.fail["delete"] = -1
            await only.clear()
        home.storage.faults.heal()
