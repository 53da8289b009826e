"""The gate before dispatch: what passes while the acknowledgement state is too large to be stored."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError, Position
from pulsar_nack.cursor._gate import (
    DEFAULT_LIMIT,
    LEDGER_BYTES,
    RANGE_BYTES,
    DispatchGate,
    Reserve,
    adds_range,
    worst_growth,
)
from pulsar_nack.index import EntryRanges
from pulsar_nack.testing import ManualClock
from tests.tiers import examples

BASE = 40  # what is stored without any acknowledgement
LEDGER_SIZE = 20


class Subscription:
    """A simple dispatcher of a topic with ledgers of 20 entries; each range of its state takes the maximum."""

    def __init__(self, entries: int, limit: int, **settings: object) -> None:
        self.entries = entries
        self.clock = ManualClock(0)
        self.acked: set[int] = set()
        self.reserve = Reserve()
        self.in_flight: set[int] = set()
        self.returned: set[int] = set()
        self.delayed: set[int] = set()
        self.next = 0
        self.gate = DispatchGate(limit, lambda: self.size, lambda: self.reserve.bytes, clock=self.clock, **settings)  # type: ignore[arg-type]

    @property
    def mark_delete(self) -> int:
        return next((number for number in range(self.entries) if number not in self.acked), self.entries) - 1

    @property
    def highest_acked(self) -> int:
        return max(self.acked, default=-1)

    @property
    def size(self) -> int:
        size, ledgers, before = BASE, set(), False
        mark_delete = self.mark_delete
        for number in range(mark_delete + 1, self.entries):
            is_first = number % LEDGER_SIZE == 0
            if number in self.acked:
                ledgers.add(number // LEDGER_SIZE)
                size += RANGE_BYTES if is_first or not before else 0
            before = number in self.acked
        return size + LEDGER_BYTES * len(ledgers)

    def adds_range(self, number: int) -> bool:
        """Return whether acknowledging it adds a range."""
        acked = {position(each) for each in self.acked}
        return adds_range(position(number), lowest=position(self.mark_delete + 1), is_acked=acked.__contains__)

    def send(self, number: int) -> None:
        assert number not in self.in_flight
        assert number not in self.acked
        self.in_flight.add(number)
        self.reserve.add(position(number))

    def read(self, wanted: int) -> int:
        """Dispatch new messages, in their order; return how many."""
        wanted = min(wanted, self.entries - self.next)
        is_lowest = self.next == self.mark_delete + 1
        admitted = self.gate.admit_new(wanted, adds_range=not is_lowest)
        for number in range(self.next, self.next + admitted):
            self.send(number)
        self.next += admitted
        return admitted

    def replay(self) -> list[int]:
        """Redeliver messages, lowest first, and of the others those that add no range; return which."""
        some = sorted(self.returned)
        admitted = some[: self.gate.admit_old(len(some))]
        for number in admitted:
            self.send(number)
        for number in some[len(admitted) :]:
            if self.gate.admit_old(1, adds_range=self.adds_range(number)):
                self.send(number)
                admitted.append(number)
        self.returned.difference_update(admitted)
        return admitted

    def ack(self, *numbers: int) -> None:
        for number in numbers:
            self.in_flight.discard(number)
            self.returned.discard(number)
            self.reserve.discard(position(number))
            self.acked.add(number)
            self.gate.changed()

    def come_back(self, number: int) -> None:
        """Return an unacknowledged message to the queue."""
        self.in_flight.discard(number)
        self.reserve.discard(position(number))
        self.returned.add(number)
        self.gate.changed()

    def pause(self) -> None:
        """Acknowledge every second message, and return the others to the queue, until new ones stop."""
        while self.read(1):
            if self.next % 2 == 0:
                self.ack(self.next - 1)
                self.come_back(self.next - 2)
        assert self.gate.is_paused


def position(number: int) -> Position:
    """Return a message's position."""
    return Position(*divmod(number, LEDGER_SIZE))


def never() -> int:
    """Fail: it must not be called."""
    raise AssertionError("a gate that is off asked for a figure")


# -- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, -(2**70)])
def test_off(limit: int) -> None:
    """K40: below 1 there is no limit; everything passes, and no figure is requested."""
    gate = DispatchGate(limit, never, never)
    assert not gate.is_on
    assert gate.admit_new(10**9) == gate.admit_old(10**9) == gate.admit_due(10**9, is_below=False) == 10**9
    gate.changed()
    gate.reset()
    assert gate.statistics().limit == 0
    assert not gate.is_paused


@pytest.mark.parametrize("limit", [1, 1_023, True, 5e6, "1024", None])
def test_limits_that_are_refused(limit: object) -> None:
    """K40: from 1 to 1 023, and values that are no number of bytes, are refused by name."""
    with pytest.raises(InvalidArgumentError, match=r"max_per_cursor_metadata_size_in_bytes: .*1,024"):
        DispatchGate(limit, never, never)  # type: ignore[arg-type]


def test_least_limit() -> None:
    """K40: with 1 024 it is on, and lets something through."""
    subscription = Subscription(100, 1_024)
    assert subscription.gate.is_on
    assert 0 < subscription.read(100) < 100


@pytest.mark.parametrize("ratio", [0, -0.5, 0.9, float("nan"), True])
def test_ratios_that_are_refused(ratio: float) -> None:
    """A gate that would resume above where it pauses is refused."""
    with pytest.raises(InvalidArgumentError, match="resume_ratio"):
        DispatchGate(DEFAULT_LIMIT, never, never, resume_ratio=ratio)


# -- pausing and resuming --------------------------------------------------------------------------------------------


def test_pauses_and_resumes() -> None:
    """K41: every second message is acknowledged until new ones stop; acknowledging the others resumes them."""
    subscription = Subscription(10_000, 4_096)
    subscription.pause()
    stopped_at = subscription.next
    assert 0 < stopped_at < 10_000
    assert subscription.size <= 4_096
    subscription.replay()
    subscription.ack(*sorted(subscription.in_flight))
    assert subscription.mark_delete == stopped_at - 1
    assert not subscription.gate.is_paused
    assert subscription.read(1) == 1


def test_what_is_in_flight_always_fits() -> None:
    """K48: acknowledging every second message in flight between two writes stays within the limit."""
    subscription = Subscription(10_000, 4_096)
    while subscription.read(7):
        pass
    assert subscription.size == BASE
    assert subscription.size + subscription.reserve.bytes <= 4_096
    subscription.ack(*sorted(subscription.in_flight)[1::2])
    assert 4_096 // 4 < subscription.size <= 4_096


def test_resumes_lower_than_it_pauses() -> None:
    """It does not flap: new messages resume when three quarters of the limit are left, not with each ack."""
    size = 0
    gate = DispatchGate(10_000, lambda: size, int)
    sizes = [*range(8_000, 9_000, 10), *range(9_000, 7_000, -10), *range(7_000, 9_000, 10)]
    paused = []
    for each in sizes:
        size = each
        gate.admit_new(1)
        paused.append(gate.is_paused)
    turns = [each for each, before, after in zip(sizes[1:], paused, paused[1:], strict=False) if before != after]
    assert turns == [8_660, 7_500, 8_660]  # 96 bytes that one more may take are below 7/8, or no longer are
    assert gate.statistics().times_paused == 2


def test_resume_ratio_is_a_setting() -> None:
    """Another share of the limit may be configured."""
    size = 9_000
    gate = DispatchGate(10_000, lambda: size, int, resume_ratio=0.25)
    assert gate.admit_new(1) == 0
    size = 2_501
    assert gate.admit_new(1) == 0
    size = 2_500
    assert gate.admit_new(1) == 1


def test_a_message_that_does_not_fit_does_not_make_it_flap() -> None:
    """A batch too large for the room below the mark keeps the gate paused until there is room for it."""
    size = 700
    gate = DispatchGate(1_024, lambda: size, int)
    growth = worst_growth(1_000)
    assert [gate.admit_new(1, growth=growth) for _ in range(5)] == [0] * 5
    assert gate.wait(lambda: None, lambda: gate.admit_new(1, growth=growth) > 0)
    gate.changed()
    assert gate.statistics().times_paused == 1
    size = 896 - growth - LEDGER_BYTES
    assert gate.admit_new(1, growth=growth) == 1


def test_old_messages_pass() -> None:
    """K42: while paused, redeliveries from below the highest acknowledged position go out, lowest first."""
    subscription = Subscription(10_000, 4_096)
    subscription.pause()
    holes = sorted(subscription.returned)
    sent = subscription.replay()
    assert sent[:5] == holes[:5]
    assert sorted(sent) == holes  # each has an acknowledged neighbour, so that none of them needs room
    assert subscription.read(1) == 0


def test_old_messages_stay_inside_the_reserve() -> None:
    """K42: acknowledging the middle of an unacknowledged run adds a range, so it waits if there is no room."""
    size = 1_024 - 1_024 // 64
    gate = DispatchGate(1_024, lambda: size, int)
    assert gate.admit_old(3) == 0
    assert gate.admit_old(3, adds_range=False) == 1
    size -= RANGE_BYTES + LEDGER_BYTES
    assert gate.admit_old(3) == 1
    assert gate.admit_new(3) == 0


def test_reset_resumes() -> None:
    """K43: after a skip, clear, seek or reset new messages resume, also between the two marks, and readers look."""
    size, woken = 9_000, []
    gate = DispatchGate(10_000, lambda: size, int)
    assert gate.admit_new(1) == 0
    assert gate.wait(lambda: woken.append(1), lambda: gate.admit_new(1) > 0)
    size = 8_000
    gate.changed()
    assert (gate.is_paused, woken) == (True, [])
    gate.reset()
    assert (gate.is_paused, woken) == (False, [1])
    assert gate.admit_new(1) == 1


def test_due_messages() -> None:
    """K44: while paused, due delayed messages wait only above the highest acknowledged position."""
    size = 9_000
    gate = DispatchGate(10_000, lambda: size, int)
    assert gate.admit_new(1) == 0
    assert gate.admit_due(5, is_below=True) == 5
    assert gate.admit_due(5, is_below=False) == 0
    size = 100
    assert gate.admit_due(5, is_below=False) == 5


def test_all_due_messages_held() -> None:
    """K44: with hold_due_delayed they all wait while paused, also one that fills a hole, as the draft says."""
    size = 9_000
    gate = DispatchGate(10_000, lambda: size, int, hold_due_delayed=True)
    assert gate.admit_due(5, is_below=True) == 5
    assert gate.admit_new(1) == 0
    assert gate.admit_due(5, is_below=True) == gate.admit_due(5, is_below=True, adds_range=False) == 0
    assert gate.admit_old(5) == 5
    size = 100
    assert gate.admit_due(5, is_below=True) == 5


def test_holes_that_are_all_delayed_drain() -> None:
    """K44: every second message is delayed, the others are acknowledged until it pauses; due ones resume it."""
    subscription = Subscription(10_000, 4_096)
    subscription.pause()
    assert subscription.size > 4_096 * 3 // 4
    while subscription.returned:
        for number in subscription.replay():
            subscription.ack(number)
    assert subscription.size == BASE
    assert subscription.read(1) == 1


@pytest.mark.parametrize("ranges_bytes", [64, 0])
def test_example_of_the_proposal(ranges_bytes: int) -> None:
    """K46: two acknowledged ranges, or two batch sets, do not pause it, nor do 50 000 messages in flight."""
    reserve = Reserve()
    batch_sets = 0 if ranges_bytes else 2 * worst_growth(1_000)
    gate = DispatchGate(DEFAULT_LIMIT, lambda: BASE + ranges_bytes + batch_sets, lambda: reserve.bytes)
    for number in range(50_000):
        assert gate.admit_new(1)
        reserve.add(Position(1 + number // 25_000, number))
    assert not gate.is_paused
    assert gate.statistics().times_paused == 0


def test_which_entries_add_a_range() -> None:
    """The lowest one adds none, nor does one beside an acknowledged entry of its ledger, except in a batch."""
    acked = {Position(1, 0), Position(1, 5), Position(2, 0)}
    lowest = Position(1, 1)

    def adds(ledger: int, entry: int, batch_size: int = 0) -> bool:
        return adds_range(Position(ledger, entry), lowest=lowest, is_acked=acked.__contains__, batch_size=batch_size)

    assert not adds(1, 1)
    assert not adds(1, 1, batch_size=1_000)
    assert [adds(1, entry) for entry in (3, 4, 6, 7)] == [True, False, False, True]
    assert adds(1, 4, batch_size=2)
    assert not adds(1, 4, batch_size=1)
    assert adds(3, 0)


# -- waiting ---------------------------------------------------------------------------------------------------------


def paused_gate(size: Callable[[], int]) -> DispatchGate:
    """Return a gate that is paused by a size near its limit of 10 000."""
    gate = DispatchGate(10_000, size, int)
    assert gate.admit_new(1) == 0
    return gate


def test_last_ack_while_deciding() -> None:
    """K45: an ack between the answer and the wait is noticed: the reader need not wait."""
    size, woken = 9_000, []
    gate = paused_gate(lambda: size)
    size = 0
    gate.changed()  # nothing was registered yet
    assert not gate.wait(lambda: woken.append(1), lambda: gate.admit_new(1) > 0)
    gate.changed()
    assert woken == []


def test_last_ack_without_a_word() -> None:
    """K45: even if ``changed`` was not called, the wait reads the figures."""
    size = 9_000
    gate = paused_gate(lambda: size)
    size = 0
    assert not gate.wait(lambda: None, lambda: gate.admit_new(1) > 0)


def test_readers_are_woken_once() -> None:
    """K45: a waiting reader is called at the change that resumes it, not before, nor again."""
    size, woken = 9_000, []
    gate = paused_gate(lambda: size)
    assert gate.wait(lambda: woken.append("a"), lambda: gate.admit_new(1) > 0)
    assert gate.wait(lambda: woken.append("b"), lambda: gate.admit_new(1) > 0)
    size = 7_501
    gate.changed()
    assert woken == []
    size = 7_500
    gate.changed()
    assert woken == ["a", "b"]
    gate.changed()
    assert woken == ["a", "b"]


def test_readers_that_gave_up_are_not_called() -> None:
    """A cancelled reader is removed, also by another one that is called first."""
    size, woken = 9_000, []
    gate = paused_gate(lambda: size)

    def second() -> None:
        woken.append("second")

    def first() -> None:
        woken.append("first")
        gate.forget(second)

    for wake in (first, second):
        assert gate.wait(wake, lambda: gate.admit_new(1) > 0)
    size = 0
    gate.changed()
    assert woken == ["first"]


def test_an_error_of_a_reader() -> None:
    """An error is raised in the caller after the other readers were called."""
    size, woken = 9_000, []
    gate = paused_gate(lambda: size)

    def broken() -> None:
        raise RuntimeError("broken")

    for wake in (broken, lambda: woken.append(1)):
        assert gate.wait(wake, lambda: gate.admit_new(1) > 0)
    size = 0
    with pytest.raises(RuntimeError, match="broken"):
        gate.changed()
    assert woken == [1]


def test_changes_cost_nothing_while_open() -> None:
    """A change reads no figure while the gate is open and nothing waits: there is one with each acknowledgement."""
    gate = DispatchGate(10_000, never, never)
    gate.changed()


# -- reports ---------------------------------------------------------------------------------------------------------


def test_statistics_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Statistics have the sizes, when it paused and how often; the first pause logs a warning."""
    clock = ManualClock(0)
    size = 9_000
    gate = DispatchGate(10_000, lambda: size, lambda: 123, name="orders/billing", clock=clock)
    clock.set(5_000)
    with caplog.at_level(logging.WARNING, "pulsar_nack.cursor"):
        assert gate.admit_new(1) == 0
        clock.set(9_000)
        assert gate.admit_new(1) == 0
        statistics = gate.statistics()
        assert (statistics.is_paused, statistics.paused_since, statistics.times_paused) == (True, 5_000, 1)
        assert (statistics.limit, statistics.size_bytes, statistics.reserved_bytes) == (10_000, 9_000, 123)
        size = 0
        assert gate.admit_new(1) == 1
        assert gate.statistics().paused_since is None
        size = 9_000
        assert gate.admit_new(1) == 0
        assert gate.statistics().times_paused == 2
    (record,) = caplog.records
    assert record.getMessage().startswith("dispatch to orders/billing pauses: the acknowledgement state takes 9000 ")


# -- what is in flight -----------------------------------------------------------------------------------------------


def test_reserve() -> None:
    """Entries count once, ledgers while they have entries in flight, and batches by their sets."""
    reserve = Reserve()
    reserve.add(Position(1, 0))
    reserve.add(Position(1, 0))
    reserve.add(Position(1, 1), batch_size=100)
    reserve.add(Position(2, 0))
    assert len(reserve) == 3
    assert reserve.bytes == 2 * RANGE_BYTES + worst_growth(100) + 2 * LEDGER_BYTES
    assert worst_growth(100) > worst_growth(64) == worst_growth(2) > worst_growth(1) == worst_growth() == RANGE_BYTES
    assert reserve.discard(Position(2, 0))
    assert not reserve.discard(Position(2, 0))
    assert Position(1, 1) in reserve
    assert reserve.bytes == RANGE_BYTES + worst_growth(100) + LEDGER_BYTES
    reserve.clear()
    assert (len(reserve), reserve.bytes) == (0, 0)


def test_stretch() -> None:
    """Entries in flight beyond the acknowledged ones count a bit for each entry between, if these may be bits."""
    acked = EntryRanges.from_ranges((entry, entry) for entry in range(1_000, 3_000, 2))
    reserve = Reserve({1: acked}.get)
    one = RANGE_BYTES + LEDGER_BYTES
    reserve.add(Position(1, 2_001))
    assert reserve.bytes == one
    reserve.add(Position(1, 10_998))
    assert reserve.bytes == one + RANGE_BYTES + 8_000 // 8
    reserve.add(Position(1, 200))
    assert reserve.bytes == one + 2 * RANGE_BYTES + 8_800 // 8
    reserve.add(Position(1, 10**9))
    assert reserve.bytes == one + 3 * RANGE_BYTES + 4 * acked.range_count
    reserve.add(Position(2, 10**9))  # nothing is acknowledged there
    assert list(reserve) == [(1, 2_001), (1, 10_998), (1, 200), (1, 10**9), (2, 10**9)]
    for position in list(reserve):
        assert reserve.discard(position)
    assert reserve.bytes == 0
    reserve.add(Position(1, 2_001))
    assert reserve.bytes == one


# -- all of it, in any order -----------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "replay", "ack", "ack", "back", "persist"]), st.integers(0, 10**6)),
    max_size=120,
)


@examples(150)
@given(steps=STEPS, limit=st.sampled_from([1_024, 1_500, 3_000]), burst=st.integers(1, 60))
def test_any_order(steps: list[tuple[str, int]], limit: int, burst: int) -> None:
    """K48: whatever is read, acknowledged, or redelivered, a write fits; settle the rest, and all is delivered."""
    subscription = Subscription(120, limit)
    for step, number in steps:
        in_flight = sorted(subscription.in_flight)
        if step == "read":
            subscription.read(burst)
        elif step == "replay":
            subscription.replay()
        elif step == "persist":
            assert subscription.size <= limit
        elif in_flight and step == "ack":
            subscription.ack(in_flight[number % len(in_flight)])
        elif in_flight:
            subscription.come_back(in_flight[number % len(in_flight)])
        assert subscription.size <= limit
    while len(subscription.acked) < subscription.entries:
        subscription.ack(*sorted(subscription.in_flight, reverse=True))
        assert subscription.size <= limit
        assert subscription.replay() or subscription.read(burst) or not subscription.in_flight
        assert subscription.in_flight or len(subscription.acked) == subscription.entries
    assert subscription.size == BASE


@examples(80)
@given(order=st.permutations(range(60)), limit=st.sampled_from([1_024, 1_200]), free=st.integers(0, 3))
def test_delayed_holes_in_any_order(order: list[int], limit: int, free: int) -> None:
    """K44: three of four messages are delayed and due in any order; the state stays in its limit, and shrinks."""
    subscription = Subscription(60, limit)
    held = {number for number in range(60) if number % 4 != free}
    waiting = list(order)
    while len(subscription.acked) < 60:
        while subscription.next < 60:
            if subscription.next in held:
                subscription.next += 1
            elif not subscription.read(1):
                break
        subscription.ack(*sorted(subscription.in_flight))
        assert subscription.size <= limit
        if waiting:
            number = waiting.pop()
            subscription.returned |= {number} & held
            held.discard(number)
        below = {number for number in subscription.returned if number < subscription.highest_acked}
        for number in sorted(subscription.returned):
            adds_range = subscription.adds_range(number)
            if subscription.gate.admit_due(1, is_below=number in below, adds_range=adds_range):
                subscription.send(number)
                subscription.returned.discard(number)
        assert waiting or subscription.in_flight or len(subscription.acked) == 60
    assert subscription.size == BASE
