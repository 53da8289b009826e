"""What every tracker that delays messages has to do: in memory, in buckets in memory and in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BucketDelayedDeliveryTracker,
    DelayedDeliveryTracker,
    InMemoryDelayedDeliveryTracker,
    InvalidArgumentError,
    Position,
)
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage
from tests.for_each import for_each

from .factories import assert_is_closed, config_of


class Opener:
    """Opens trackers of one kind on a manual clock; ``woken`` are the times of ``on_due``."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = ManualClock(0)
        self.woken: list[int] = []

    @asynccontextmanager
    async def __call__(self, tick: int, *, strict: bool = False) -> AsyncIterator[DelayedDeliveryTracker]:
        """Open one."""
        config = config_of(
            self.kind.replace("folder", "bucket"),
            delayed_delivery_tick_time_millis=tick,
            is_delayed_delivery_deliver_at_time_strict=strict,
            delayed_delivery_fixed_delay_detection_lookahead=1,
        )
        common: dict[str, Any] = {"clock": self.clock, "on_due": lambda: self.woken.append(self.clock.now_ms())}
        if self.kind == "memory":
            async with InMemoryDelayedDeliveryTracker(config, **common) as tracker:
                yield tracker
        elif self.kind == "bucket":
            storage, cursor = MemorySnapshotStorage(), MemoryDelayedCursor()
            async with await BucketDelayedDeliveryTracker.open(storage, cursor, config, **common) as tracker:
                yield tracker
        else:
            async with await BucketDelayedDeliveryTracker.open_local(self.folder, config, **common) as tracker:
                yield tracker


@pytest.fixture(params=["memory", "bucket", "folder"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return what opens trackers of a kind."""
    return Opener(request.param, tmp_path / "delayed")


async def drain(tracker: DelayedDeliveryTracker, batch: int = 100) -> list[Position]:
    """Take out all due messages, and wait for storage in between."""
    found: list[Position] = []
    while tracker.has_message_available():
        found += tracker.get_scheduled_messages(batch)
        if isinstance(tracker, BucketDelayedDeliveryTracker):
            await tracker.wait_until_idle()
    return found


async def test_messages_come_when_they_may(opened: Opener) -> None:
    """D1: messages are counted, held until their time, and come out in as many calls as needed."""
    async with opened(1) as tracker:
        assert isinstance(tracker, DelayedDeliveryTracker)
        times = [(1, 2, 20), (2, 1, 10), (3, 3, 30), (4, 5, 50), (5, 4, 40)]
        assert all(tracker.add_message(*message) for message in times)
        assert not tracker.has_message_available()
        assert tracker.number_of_delayed_messages == 5
        assert tracker.get_scheduled_messages(10) == []
        opened.clock.set(15)
        assert not tracker.add_message(6, 6, 10)
        assert tracker.number_of_delayed_messages == 5
        assert tracker.has_message_available()
        assert tracker.get_scheduled_messages(10) == [Position(2, 1)]
        opened.clock.set(60)
        assert tracker.number_of_delayed_messages == 4
        assert tracker.get_scheduled_messages(1) == [Position(1, 2)]
        assert tracker.number_of_delayed_messages == 3
        assert tracker.get_scheduled_messages(3) == [Position(3, 3), Position(5, 4), Position(4, 5)]
        assert tracker.number_of_delayed_messages == 0
        assert not tracker.has_message_available()


async def test_one_timer_for_the_earliest(opened: Opener) -> None:
    """D2: one timer, reset for an earlier message only."""
    async with opened(1) as tracker:
        for number in (2, 1, 3):
            assert tracker.add_message(number, number, 10 * number)
            assert opened.clock.alarms == 1
        opened.clock.set(9)
        assert opened.woken == []
        opened.clock.set(19)
        assert opened.woken == [10]
        opened.clock.set(25)
        assert opened.woken == [10]  # the dispatcher knows
        assert tracker.get_scheduled_messages(10) == [Position(1, 1), Position(2, 2)]
        opened.clock.set(29)
        assert opened.woken == [10]
        opened.clock.set(30)
        assert opened.woken == [10, 30]


async def test_a_cancelled_timer_triggers_nothing(opened: Opener) -> None:
    """D2: a call that is made although it was cancelled does nothing."""
    calls: list[Callable[[], None]] = []

    class Careless(ManualClock):
        def call_at(self, at_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
            calls.append(callback)
            return lambda: None

    opened.clock = Careless()
    async with opened(1) as tracker:
        tracker.add_message(2, 2, 20)
        tracker.add_message(1, 1, 10)
        opened.clock.set(20)
        calls[0]()
        assert opened.woken == []
        calls[1]()
        assert opened.woken == [20]
        calls[1]()
        assert opened.woken == [20]


async def test_cutoff_is_a_tick_ahead(opened: Opener) -> None:
    """D3: not strict, a message at most a tick away is refused."""
    async with opened(100) as tracker:
        assert [tracker.add_message(1, at, at) for at in (10, 99, 100, 101, 200)] == [False, False, False, True, True]
        assert tracker.number_of_delayed_messages == 2


async def test_cutoff_is_now_when_strict(opened: Opener) -> None:
    """D4: strict, only past messages are refused."""
    opened.clock.set(10)
    async with opened(1_000, strict=True) as tracker:
        assert [tracker.add_message(1, at, at) for at in (9, 10, 11)] == [False, False, True]
        assert tracker.number_of_delayed_messages == 1
        assert not tracker.has_message_available()


@pytest.mark.parametrize("strict", [True, False])
async def test_what_comes_out_would_be_refused(opened: Opener, strict: bool) -> None:
    """D5: a message taken out at a time would be refused at that time, also after the tick was changed."""
    async with opened(8, strict=strict) as tracker:
        times = {Position(1 + i // 5, i): 20 + 3 * i for i in range(60)}
        assert all(tracker.add_message(*position, at) for position, at in times.items())
        for now, tick in ((30, 8), (40, 2), (50, 64), (300, 1)):
            opened.clock.set(now)
            tracker.reset_tick_time(tick)
            for position in await drain(tracker):
                assert not tracker.add_message(*position, times.pop(position))
        assert times == {}


async def test_the_end(opened: Opener) -> None:
    """A closed tracker refuses every call except its figures and another close, and calls nobody."""
    async with opened(1) as tracker:
        assert tracker.add_message(1, 1, 10)
    await tracker.aclose()
    opened.clock.set(20)
    assert (opened.woken, opened.clock.alarms) == ([], 0)
    await assert_is_closed(tracker)
    assert "closed" in repr(tracker)


@for_each("value", [True, 1.0, "1", None, float("nan"), 2**63, -1])
async def test_bad_arguments(opened: Opener, value: Any) -> None:
    """An invalid position, time, limit or tick is refused by name, and nothing has changed."""
    async with opened(1) as tracker:
        assert tracker.add_message(1, 1, 10)
        bulk: Any = tracker
        is_paused = tracker.should_pause_all_deliveries()
        calls: dict[str, list[Callable[[], object]]] = {
            "ledger_id": [
                lambda: tracker.add_message(value, 1, 20),
                lambda: bulk.add_messages(value, [1], 20),
                lambda: tracker.contains_message(value, 1),
            ],
            "entry_id": [lambda: tracker.add_message(1, value, 20)],
            "entries": [] if value is True else [lambda: bulk.add_messages(1, [5, value], 20)],
            "deliver_at": []
            if value == -1
            else [
                lambda: tracker.add_message(1, 2, value),
                lambda: bulk.add_messages(1, [2], value),
            ],
            "max_messages": [lambda: tracker.get_scheduled_messages(value)],
            "tick_ms": [lambda: tracker.reset_tick_time(value)],
        }
        for field, each in calls.items():
            for call in each:
                with pytest.raises(InvalidArgumentError, match=field):
                    call()
        with pytest.raises(InvalidArgumentError, match="deliver_at"):
            tracker.add_message(1, 2, -(2**63) - 1)
        assert tracker.number_of_delayed_messages == 1
        assert tracker.should_pause_all_deliveries() == is_paused
