"""The in-memory tracker on a manual clock: the numbered cases and more."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from pulsar_nack import (
    DelayedDeliveryConfig,
    InMemoryDelayedDeliveryTracker,
    InvalidArgumentError,
    Position,
)
from pulsar_nack.clock import WallClock
from pulsar_nack.testing import ManualClock
from tests.for_each import for_each
from tests.tiers import size


class Stage:
    """A tracker on a manual clock, and the times at which it called."""

    def __init__(self, tick: int, *, strict: bool = False, lookahead: int = 0, now: int = 0) -> None:
        self.clock = ManualClock(now)
        self.woken: list[int] = []
        self.tracker = InMemoryDelayedDeliveryTracker(
            DelayedDeliveryConfig(
                delayed_delivery_tick_time_millis=tick,
                is_delayed_delivery_deliver_at_time_strict=strict,
                delayed_delivery_fixed_delay_detection_lookahead=lookahead,
            ),
            clock=self.clock,
            on_due=lambda: self.woken.append(self.clock.now_ms()),
        )
        self.add = self.tracker.add_message
        self.get = self.tracker.get_scheduled_messages
        self.has = self.tracker.has_message_available

    @property
    def count(self) -> int:
        """Return how many messages are held."""
        return self.tracker.number_of_delayed_messages

    def timer_at(self) -> int:
        """Return when the one timer fires, found by moving to it; nothing may be taken out before."""
        assert self.clock.alarms == 1
        before = len(self.woken)
        while len(self.woken) == before:
            self.clock.advance(1)
        return self.woken[-1]


def paused(lookahead: int = 100) -> Stage:
    """Return a tracker that wants deliveries to pause: 100 messages, 10 ms apart."""
    stage = Stage(8, strict=True, lookahead=lookahead)
    for i in range(1, 101):
        assert stage.add(i, i, 10 * i)
    assert stage.tracker.should_pause_all_deliveries()
    return stage


def test_pauses_while_delays_are_fixed() -> None:
    """D6: with as many messages as the lookahead, in order, deliveries pause until something is due."""
    stage = Stage(8, strict=True, lookahead=100)
    for i in range(1, 101):
        assert not stage.tracker.should_pause_all_deliveries()
        assert stage.add(i, i, 10 * i)
    assert stage.tracker.should_pause_all_deliveries()
    stage.clock.set(1_000)
    assert not stage.tracker.should_pause_all_deliveries()
    assert len(stage.get(100)) == 100
    assert not stage.tracker.should_pause_all_deliveries()


def test_earlier_message_ends_the_pause() -> None:
    """D7: a message that is due more than a tick before another shows that delays are not fixed."""
    stage = paused()
    assert stage.add(5, 6, 5)
    assert not stage.tracker.should_pause_all_deliveries()


def test_order_within_a_tick_counts_as_fixed() -> None:
    """D7: a message that is due no more than a tick before another changes nothing."""
    stage = paused()
    assert stage.add(5, 6, 992)
    assert stage.tracker.should_pause_all_deliveries()
    assert stage.add(5, 7, 991)
    assert not stage.tracker.should_pause_all_deliveries()


def test_message_without_delay_ends_the_pause() -> None:
    """D8: an undelayed message is refused and ends the pause."""
    stage = paused()
    assert not stage.add(5, 6, -1)
    assert not stage.tracker.should_pause_all_deliveries()


def test_never_pauses_without_lookahead() -> None:
    """D8: a lookahead of 0 switches the detection off."""
    stage = Stage(8, strict=True)
    assert stage.add(1, 1, 1_000)
    assert not stage.tracker.should_pause_all_deliveries()


def test_one_at_a_time_in_order() -> None:
    """D9: messages of one time come out one by one, in order of position."""
    stage = Stage(1, strict=True)
    for i in range(1, 6):
        assert stage.add(i, i, 1)
    stage.clock.set(10)
    assert [stage.get(1) for _ in range(5)] == [[Position(i, i)] for i in range(1, 6)]


def test_strict_rounds_up() -> None:
    """D10: strict, with ticks of 1 000 ms, the timer fires at the next multiple of 512 and never before."""
    stage = Stage(1_000, strict=True)
    stage.add(1, 1, 60_400)
    stage.add(2, 2, 61_000)
    assert stage.clock.alarms == 1
    stage.clock.set(60_000)
    assert stage.get(10) == []
    stage.clock.set(60_415)
    assert not stage.has()
    assert stage.woken == []
    stage.clock.set(60_416)
    assert stage.woken == [60_416]
    assert stage.get(10) == [Position(1, 1)]
    assert stage.clock.alarms == 1
    stage.clock.set(61_439)
    assert stage.get(10) == []
    stage.clock.set(61_440)
    assert stage.woken == [60_416, 61_440]
    assert stage.get(10) == [Position(2, 2)]
    assert stage.clock.alarms == 0


def test_three_times_the_same() -> None:
    """D11: a position that is added three times with one time is there once."""
    stage = Stage(1)
    assert [stage.add(1, 1, 50) for _ in range(3)] == [True, True, True]
    assert stage.count == 1
    stage.clock.set(60)
    assert stage.get(10) == [Position(1, 1)]
    assert (stage.count, stage.has(), stage.clock.alarms) == (0, False, 0)


@pytest.mark.parametrize("times", [(50, 5_000), (5_000, 50)])
def test_two_times_for_one_position(times: tuple[int, int]) -> None:
    """D12: a position with two times is delivered and counted once, at the earlier; the other never fires."""
    stage = Stage(1)
    for deliver_at in times:
        assert stage.add(1, 1, deliver_at)
    assert stage.count == 1
    stage.clock.set(50)
    assert stage.woken == [50]
    assert stage.get(10) == [Position(1, 1)]
    assert stage.count == 0
    stage.clock.set(6_000)
    assert (stage.get(10), stage.woken) == ([], [50])


def test_gone_time_does_not_fire_for_a_new_one() -> None:
    """D12: a position that was delivered and is added again waits for its new time, whatever is left of an old one."""
    stage = Stage(1)
    stage.add(1, 1, 50)
    stage.add(1, 1, 500)
    stage.add(1, 2, 9_000)
    stage.clock.set(50)
    assert stage.get(10) == [Position(1, 1)]
    assert stage.add(1, 1, 1_000)
    stage.clock.set(998)
    assert stage.get(10) == []
    stage.clock.set(1_000)
    assert stage.get(10) == [Position(1, 1)]


def test_one_bucket_in_parts() -> None:
    """D13: a bucket over two ledgers comes out in three calls, by position."""
    stage = Stage(1, strict=True)
    for position in [(1, 0), (1, 1), *((2, entry) for entry in range(5))]:
        assert stage.add(*position, 10)
    stage.clock.set(10)
    assert stage.get(4) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert stage.count == 3
    assert stage.get(2) == [(2, 2), (2, 3)]
    assert stage.get(10) == [(2, 4)]
    assert stage.count == 0


async def test_clear_starts_again() -> None:
    """D14: clear drops everything, the timer too, and the detection of fixed delays restarts."""
    stage = paused()
    stage.add(5, 6, 5)
    await stage.tracker.clear()
    await stage.tracker.clear()
    assert (stage.count, stage.clock.alarms, stage.has()) == (0, 0, False)
    for i in range(1, 101):
        assert stage.add(i, i, 10 * i)
    assert stage.tracker.should_pause_all_deliveries()


def test_detection_starts_again_when_empty() -> None:
    """D14: also when everything was taken out."""
    stage = paused()
    stage.add(5, 6, -1)
    stage.clock.set(1_000)
    assert len(stage.get(100)) == 100
    for i in range(1, 101):
        assert stage.add(i, i, 1_000 + 10 * i)
    assert stage.tracker.should_pause_all_deliveries()


# -- the rules of time -----------------------------------------------------------------------------------------------


@for_each("tick", [0, 1, 2, 3, 7, 8, 100, 1_000, 1_024])
@for_each("deliver_at", [2_049, 2_559, 2_560, 3_071, 3_072, 4_000])
@for_each("strict", [False, True])
def test_due_to_the_ms(strict: bool, tick: int, deliver_at: int) -> None:
    """A bucket is due at its time rounded up, or a tick before its end; the timer fires at its key."""
    width = 1 << max(tick.bit_length() - 1, 0)
    key = -(-deliver_at // width) * width if strict else deliver_at - deliver_at % width
    due_from = key if strict else key - tick + width - 1
    stage = Stage(tick, strict=strict)
    assert stage.add(1, 1, deliver_at)
    stage.clock.set(due_from - 1)
    assert not stage.has()
    assert stage.get(1) == []
    stage.clock.set(due_from)
    assert stage.has()
    assert stage.timer_at() == key if key > due_from else stage.woken == [key]
    assert stage.get(1) == [Position(1, 1)]


def test_buckets_keep_their_bits() -> None:
    """A shorter tick leaves a wide bucket wide: it is due, and fires, when its last time is."""
    stage = Stage(1_000)
    assert stage.add(1, 1, 5_000)  # bucket 4608 .. 5119
    stage.tracker.reset_tick_time(10)
    assert stage.add(1, 2, 5_000)  # bucket 5000 .. 5007
    assert stage.timer_at() == 5_000
    assert stage.get(10) == [Position(1, 2)]
    stage.clock.set(5_108)
    assert not stage.has()
    assert stage.timer_at() == 5_109
    assert stage.get(10) == [Position(1, 1)]


def test_longer_tick_makes_due_earlier() -> None:
    """A longer tick makes messages due sooner, and leaves the timer at the key."""
    stage = Stage(10)
    assert stage.add(1, 1, 5_000)
    stage.clock.set(4_500)
    stage.tracker.reset_tick_time(1_000)
    assert stage.has()
    assert stage.timer_at() == 5_000


def test_tick_of_zero_that_grows() -> None:
    """A tracker that is not strict and begins with a tick of 0 is still not strict when the tick grows."""
    stage = Stage(0)
    stage.tracker.reset_tick_time(100)
    assert not stage.add(1, 1, 100)
    assert stage.add(1, 1, 101)


def test_is_called_again_when_no_longer_due() -> None:
    """When the tick shrinks below what made a message due, the call comes again at its new time."""
    stage = Stage(1_000)
    assert stage.add(1, 1, 4_700)  # bucket 4608 .. 5119
    assert stage.timer_at() == 4_608
    stage.tracker.reset_tick_time(100)
    assert not stage.has()
    assert stage.timer_at() == 5_019
    assert stage.get(1) == [Position(1, 1)]


# -- waking up -------------------------------------------------------------------------------------------------------


def test_no_two_wake_ups_within_a_tick() -> None:
    """With a message each ms the dispatcher is called once a tick; all come, none before its bucket."""
    stage = Stage(100)
    for t in range(101, 2_001):
        assert stage.add(1, t, t)
    taken: dict[int, int] = {}
    while stage.count:
        stage.timer_at()
        taken |= {entry: stage.clock.now_ms() for _, entry in stage.get(10_000)}
    gaps = [after - before for before, after in zip(stage.woken, stage.woken[1:], strict=False)]
    assert min(gaps) >= 100
    assert sorted(taken) == list(range(101, 2_001))
    assert all(t - 100 <= at < t + 64 for t, at in taken.items())
    assert stage.clock.alarms == 0


def test_wide_ticks_of_two_are_never_late() -> None:
    """With a tick that is a power of two a message never waits for the next call beyond its time."""
    stage = Stage(64)
    for t in range(65, 2_001):
        assert stage.add(1, t, t)
    while stage.count:
        at = stage.timer_at()
        assert all(at <= t < at + 65 for _, t in stage.get(10_000))


def test_is_called_once() -> None:
    """Due messages that the dispatcher was called for and does not take cause no further call."""
    stage = Stage(10)
    stage.add(1, 1, 100)
    stage.add(1, 2, 100)
    stage.clock.set(100)
    assert len(stage.woken) == 1
    assert len(stage.get(1)) == 1
    stage.add(1, 3, 200)
    stage.clock.set(1_000)
    assert len(stage.woken) == 1
    assert len(stage.get(10)) == 2


def test_taken_early_is_not_called_for() -> None:
    """Messages taken out before the timer fired cause no call."""
    stage = Stage(1_000)
    stage.add(1, 1, 2_000)
    stage.clock.set(1_500)
    assert len(stage.get(1)) == 1
    stage.clock.set(10_000)
    assert (stage.woken, stage.clock.alarms) == ([], 0)


def test_clock_that_is_set_back() -> None:
    """A wall clock that is set back after a call leads to another one when the time has come again."""
    stage = Stage(10)
    stage.add(1, 1, 5_000)
    stage.clock.set(5_000)
    assert len(stage.woken) == 1
    stage.clock._now = 1_000
    assert not stage.has()
    assert stage.clock.alarms == 1
    stage.clock.set(4_999)
    assert len(stage.woken) == 1
    stage.clock.set(5_000)
    assert len(stage.woken) == 2


def test_failing_callback_breaks_nothing() -> None:
    """An error of ``on_due`` is raised by the clock that called, and the tracker continues."""
    clock = ManualClock()
    woken: list[int] = []

    def on_due() -> None:
        woken.append(clock.now_ms())
        if len(woken) == 1:
            raise RuntimeError("no dispatcher")

    tracker = InMemoryDelayedDeliveryTracker(
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1), clock=clock, on_due=on_due
    )
    tracker.add_message(1, 1, 10)
    tracker.add_message(1, 2, 20)
    with pytest.raises(RuntimeError, match="no dispatcher"):
        clock.set(10)
    assert tracker.get_scheduled_messages(5) == [Position(1, 1)]
    clock.set(20)
    assert woken == [10, 20]


def test_callback_may_take_out() -> None:
    """``on_due`` may call the tracker itself."""
    clock = ManualClock()
    taken: list[Position] = []
    tracker = InMemoryDelayedDeliveryTracker(
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1),
        clock=clock,
        on_due=lambda: taken.extend(tracker.get_scheduled_messages(10)),
    )
    for entry in range(1, 5):
        tracker.add_message(1, entry, 10 * entry)
    clock.set(30)
    assert taken == [Position(1, 1), Position(1, 2), Position(1, 3)]
    assert clock.alarms == 1


# -- many at once, bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [range(0, 500, 2), list(range(0, 500, 2)), array("I", range(0, 500, 2))])
def test_many_at_once(entries: Any) -> None:
    """Many entries with one time do what one call for each does."""
    one, many = Stage(10), Stage(10)
    assert all(one.add(7, entry, 1_000) for entry in entries)
    assert many.tracker.add_messages(7, entries, 1_000)
    assert many.count == one.count == 250
    assert many.tracker.contains_message(7, 498)
    assert not many.tracker.contains_message(7, 499)
    assert many.timer_at() == one.timer_at()
    assert many.get(1_000) == one.get(1_000)


def test_many_that_are_not_delayed() -> None:
    """Many due entries are refused and end a pause; without entries only the verdict is returned."""
    stage = paused()
    assert stage.tracker.add_messages(9, [], 500)
    assert not stage.tracker.add_messages(9, [], 0)
    assert not stage.tracker.add_messages(9, [], -1)
    assert stage.tracker.should_pause_all_deliveries()
    assert not stage.tracker.add_messages(9, [1, 2], 0)
    assert not stage.tracker.should_pause_all_deliveries()
    assert stage.count == 100


@pytest.mark.parametrize("strict", [False, True])
def test_times_without_end(strict: bool) -> None:
    """The greatest time, entry and ledger that fit into 64 bits are held like any other, in any width of bucket."""
    stage = Stage(1 << 41, strict=strict)
    assert stage.add(2**63 - 1, 2**63 - 1, 2**63 - 1)
    assert stage.tracker.add_messages(2**63 - 1, [2**63 - 2], 2**63 - 1)
    assert stage.count == 2
    assert not stage.has()
    assert stage.tracker.contains_message(2**63 - 1, 2**63 - 1)
    assert stage.clock.alarms == 1


def test_bad_callback() -> None:
    """An object that cannot be called, a coroutine function, or a callback without a clock is refused."""

    async def coroutine() -> None: ...

    bad: list[Any] = [1, "call me"]
    for on_due in bad:
        with pytest.raises(InvalidArgumentError, match="on_due"):
            InMemoryDelayedDeliveryTracker(clock=ManualClock(), on_due=on_due)
    with pytest.raises(InvalidArgumentError, match="plain function"):
        InMemoryDelayedDeliveryTracker(clock=ManualClock(), on_due=coroutine)
    with pytest.raises(InvalidArgumentError, match="clock"):
        InMemoryDelayedDeliveryTracker(clock=WallClock(), on_due=list)


def test_without_a_loop() -> None:
    """Without a callback no loop is needed, the wall clock is used, and the tracker says when it has something."""
    tracker = InMemoryDelayedDeliveryTracker()
    assert tracker.next_at() is None
    now_ms = WallClock().now_ms()
    assert not tracker.add_message(1, 1, now_ms)
    assert tracker.add_message(1, 1, now_ms + 3_600_000)
    next_at = tracker.next_at()
    assert next_at is not None
    assert now_ms + 3_600_000 - 512 < next_at <= now_ms + 3_600_000


def test_memory_figure() -> None:
    """D15: the memory figure grows far slower than the messages, and returns when they are gone."""
    stage = Stage(1_024)
    empty = stage.tracker.buffer_memory_usage
    count, ledger = size(200_000, fast=50_000), size(50_000, fast=12_500)
    for entry in range(count):
        stage.add(entry // ledger, entry % ledger, 5_000 + entry)
    assert empty < stage.tracker.buffer_memory_usage < empty + size(60_000, fast=25_000)
    stage.clock.set(1_000_000)
    assert len(stage.get(count)) == count
    assert stage.tracker.buffer_memory_usage == empty


@pytest.mark.slow
@pytest.mark.parametrize(("per_ms", "bits", "seed_mb"), [(1, 10, 25.0), (4, 10, 20.48), (8, 10, 11.0), (8, 15, 2.25)])
def test_memory_is_within_the_proposals_table(per_ms: int, bits: int, seed_mb: float) -> None:
    """D15: the proposal's table for 10 M messages, 50 000 an entry ledger: a twentieth of them, half of its memory."""
    stage = Stage(1 << bits, strict=True)
    for number in range(500_000):
        stage.add(number // 50_000, number % 50_000, 50_000 + number // per_ms)
    assert stage.count == 500_000
    assert stage.tracker.buffer_memory_usage < seed_mb * 1_000_000 / 20 / 2
