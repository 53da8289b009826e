"""The in-memory tracker beside a simple reference: a dict of positions, in both modes, while ticks change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulsar_nack import DelayedDeliveryConfig, InMemoryDelayedDeliveryTracker, Position
from pulsar_nack.testing import ManualClock
from tests.tiers import examples

POSITIONS = st.builds(Position, st.integers(1, 3), st.one_of(st.integers(0, 20), st.integers(65_530, 65_540)))
TICKS = st.sampled_from([0, 1, 2, 5, 8, 100, 1_000])


class Held:
    """One message of the reference: its time, and the first and last time of its bucket."""

    def __init__(self, deliver_at: int, tick: int, *, strict: bool) -> None:
        self.deliver_at = deliver_at
        width = 1
        while 2 * width <= tick:
            width *= 2
        self.key = -(-deliver_at // width) * width if strict else deliver_at // width * width
        self.due_at_cutoff = self.key if strict else self.key + width - 1
        self.order = self.due_at_cutoff, -self.key


class TrackerMachine(RuleBasedStateMachine):
    """Every call in any order; after each, all figures agree with the reference."""

    @initialize(tick=TICKS, strict=st.booleans(), lookahead=st.sampled_from([0, 3]), now=st.integers(0, 3_000))
    def make(self, tick: int, strict: bool, lookahead: int, now: int) -> None:
        self.tick, self.strict, self.lookahead = tick, strict, lookahead
        self.clock = ManualClock(now)
        self.held: dict[Position, Held] = {}
        self.highest, self.fixed = 0, True
        self.runs: list[int] = []
        self.tracker = InMemoryDelayedDeliveryTracker(
            DelayedDeliveryConfig(
                delayed_delivery_tick_time_millis=tick,
                is_delayed_delivery_deliver_at_time_strict=strict,
                delayed_delivery_fixed_delay_detection_lookahead=lookahead,
            ),
            clock=self.clock,
            on_due=self.on_due,
        )

    def on_due(self) -> None:
        assert self.due(), "woken up with nothing due"
        self.runs.append(self.clock.now_ms())

    def cutoff(self) -> int:
        return self.clock.now_ms() + (0 if self.strict else self.tick)

    def due(self) -> list[Position]:
        cutoff = self.cutoff()
        return [position for position, held in self.held.items() if held.due_at_cutoff <= cutoff]

    def expect(self, positions: list[Position], deliver_at: int) -> bool:
        """Do to the reference what adding does; return whether the message is held."""
        if deliver_at < 0 or deliver_at <= self.cutoff():
            self.fixed = False
            return False
        if deliver_at < self.highest - self.tick:
            self.fixed = False
        self.highest = max(self.highest, deliver_at)
        for position in positions:
            new = Held(deliver_at, self.tick, strict=self.strict)
            old = self.held.get(position)
            if old is None or new.order < old.order:
                self.held[position] = new
        return True

    def drained(self) -> None:
        if not self.held:
            self.highest, self.fixed = 0, True

    @rule(position=POSITIONS, ahead=st.integers(-5, 3_000))
    def add(self, position: Position, ahead: int) -> None:
        deliver_at = self.clock.now_ms() + ahead
        assert self.tracker.add_message(*position, deliver_at) == self.expect([position], deliver_at)

    @rule(position=POSITIONS)
    def add_without_delay(self, position: Position) -> None:
        assert self.tracker.add_message(*position, -1) == self.expect([position], -1)

    @rule(ledger=st.integers(1, 3), first=st.integers(0, 20), count=st.integers(1, 80), ahead=st.integers(0, 3_000))
    def add_many(self, ledger: int, first: int, count: int, ahead: int) -> None:
        deliver_at = self.clock.now_ms() + ahead
        entries = range(first, first + count)
        expected = self.expect([Position(ledger, entry) for entry in entries], deliver_at)
        assert self.tracker.add_messages(ledger, entries, deliver_at) == expected

    @rule(limit=st.one_of(st.integers(0, 5), st.just(1_000)))
    def get(self, limit: int) -> None:
        due = set(self.due())
        got = self.tracker.get_scheduled_messages(limit)
        assert len(got) == len(set(got)) == min(limit, len(due))
        assert set(got) <= due
        taken = [self.held.pop(position) for position in got]
        last = [each.due_at_cutoff for each in taken]
        assert last == sorted(last)
        if left := [self.held[position].due_at_cutoff for position in due - set(got)]:
            assert not last or last[-1] <= min(left)
        assert all(each.deliver_at <= self.cutoff() for each in taken)
        assert not (self.strict and any(each.deliver_at > self.clock.now_ms() for each in taken))
        self.drained()

    @rule(ms=st.one_of(st.integers(0, 10), st.integers(0, 2_000)))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def advance_to_next(self) -> None:
        next_at = self.tracker.next_at()
        if next_at is not None and next_at > self.clock.now_ms():
            self.clock.set(next_at)
            assert self.tracker.has_message_available()

    @rule(tick=TICKS)
    def reset_tick(self, tick: int) -> None:
        self.tracker.reset_tick_time(tick)
        self.tick = tick
        self.runs.clear()

    @rule()
    def clear(self) -> None:
        with pytest.raises(StopIteration):
            self.tracker.clear().send(None)
        self.held.clear()
        self.drained()

    @invariant()
    def agrees(self) -> None:
        assert self.tracker.number_of_delayed_messages == len(self.held)
        assert self.tracker.has_message_available() == bool(self.due())
        for position in (Position(1, 3), Position(2, 65_535), Position(3, 19)):
            assert self.tracker.contains_message(*position) == (position in self.held)
        pause = 0 < self.lookahead <= len(self.held) and self.fixed and not self.due()
        assert self.tracker.should_pause_all_deliveries() == pause

    @invariant()
    def knows_when(self) -> None:
        """The call is at the key of the earliest bucket, or when that is due if the tick has become shorter."""
        if not self.held:
            assert self.tracker.next_at() is None
            return
        first = min(self.held.values(), key=lambda held: held.order)
        lead = 0 if self.strict else self.tick
        assert self.tracker.next_at() == max(first.key, first.due_at_cutoff - lead)

    @invariant()
    def has_one_timer_in_time(self) -> None:
        """There is one timer unless nothing is held or the dispatcher knows; calls are a tick apart."""
        assert self.clock.alarms <= 1
        if self.held and not self.due():
            assert self.clock.alarms == 1
        if not self.held:
            assert self.clock.alarms == 0
        gaps = [after - before for before, after in zip(self.runs, self.runs[1:], strict=False)]
        assert all(gap >= self.tick for gap in gaps)


TestTracker: Any = TrackerMachine.TestCase
TestTracker.settings = examples(150, 40)
