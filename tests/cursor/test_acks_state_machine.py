"""The pure acknowledgement state beside a simple reference: a set of positions, and a dict of batch sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_nack import InvalidArgumentError, Position
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format import BatchSet, LedgerAcks, LedgersNotLoaded
from tests.cursor.states import individually_deleted
from tests.tiers import examples

SIZE = 4
LEDGERS = st.integers(0, 9)
ENTRIES = st.integers(0, 4)
POSITIONS = st.builds(Position, LEDGERS, ENTRIES)
INDEXES = st.sets(st.integers(0, SIZE - 1), max_size=SIZE)
STRAY = 12
"""One in this many positions is a random one, which need not exist."""


class Reference:
    """The acknowledged positions, one by one, and the topic's ledgers."""

    def __init__(self, ledgers: dict[int, int], reached: Position) -> None:
        self.ledgers = ledgers
        self.reached = reached
        self.whole: set[Position] = set()
        self.left: dict[Position, set[int]] = {}
        self.cumulative: Position | None = None

    def exists(self, position: Position) -> bool:
        return position.entry < self.ledgers.get(position.ledger, 0)

    def existing(self) -> list[Position]:
        return [Position(ledger, entry) for ledger in sorted(self.ledgers) for entry in range(self.ledgers[ledger])]

    def refuses(self, position: Position) -> bool:
        return position > self.reached and not self.exists(position)

    def ack(self, position: Position, indexes: set[int] | None) -> None:
        if position <= self.reached or position in self.whole:
            return
        left = set() if indexes is None else self.left.get(position, set(range(SIZE))) - indexes
        self.left.pop(position, None)
        if not left:
            self.whole.add(position)
        elif len(left) < SIZE:
            self.left[position] = left

    def ack_before(self, position: Position) -> None:
        earlier = [each for each in self.existing() if each < position]
        if earlier and earlier[-1] > self.reached:
            self.reached = earlier[-1]

    def settle(self) -> None:
        while following := [each for each in self.existing() if each > self.reached]:
            if following[0] not in self.whole:
                break
            self.reached = following[0]
        self.whole = {each for each in self.whole if each > self.reached}
        self.left = {each: left for each, left in self.left.items() if each > self.reached}

    def intervals(self) -> list[tuple[Position, Position]]:
        found: list[tuple[Position, Position]] = []
        for ledger, entry in sorted(self.whole):
            if found and found[-1][1] == (ledger, entry - 1):
                found[-1] = (found[-1][0], Position(ledger, entry))
            else:
                found.append((Position(ledger, entry - 1), Position(ledger, entry)))
        return found


class Acknowledging(RuleBasedStateMachine):
    """Acknowledges, resets, evicts, restores, writes and reopens, while ledgers appear, grow and disappear."""

    @initialize(sizes=st.lists(st.integers(0, 3), min_size=2, max_size=4), start=st.integers(-1, 2))
    def begin(self, sizes: list[int], start: int) -> None:
        self.ledgers = {2 * number: size for number, size in enumerate(sizes)}
        self.model = Reference(self.ledgers, Position(0, min(start, self.ledgers[0] - 1)))
        self.state = AckState(self.ledgers, self.model.reached, ledger_size=len_of)
        self.stored: dict[int, LedgerAcks] = {}
        self.stored_reached = self.model.reached

    def positions(self, data: st.DataObject, count: int) -> list[Position]:
        """Draw positions, most of which exist."""
        existing = self.model.existing()
        drawn = []
        for _ in range(count):
            is_stray = not existing or data.draw(st.integers(1, STRAY)) == STRAY
            drawn.append(data.draw(POSITIONS if is_stray else st.sampled_from(existing)))
        return drawn

    def call(self, function: Callable[[AckState], Any]) -> Any:
        """Make a call; if it needs ledgers, check that nothing has changed, restore them and repeat it."""
        for _ in range(20):
            before = snapshot(self.state)
            try:
                result = function(self.state)
            except LedgersNotLoaded as error:
                assert snapshot(self.state) == before
                for ledger in error.ledgers:
                    assert self.state.restore(ledger, self.stored[ledger].copy())
                continue
            return result
        raise AssertionError("the same ledgers are needed for ever")

    def refused(self, function: Callable[[AckState], Any]) -> None:
        """Make a call that is refused, and check that nothing has changed."""
        before = snapshot(self.state)
        with pytest.raises(InvalidArgumentError):
            function(self.state)
        assert snapshot(self.state) == before

    @rule(data=st.data())
    def acknowledge_one(self, data: st.DataObject) -> None:
        [position] = self.positions(data, 1)
        if self.model.refuses(position):
            self.refused(lambda state: state.acknowledge([position]))
            return
        self.call(lambda state: state.acknowledge([position]))
        self.model.ack(position, None)
        self.model.settle()

    @rule(data=st.data(), parts=st.lists(st.none() | INDEXES, max_size=4))
    def acknowledge_many(self, data: st.DataObject, parts: list[set[int] | None]) -> None:
        wanted = dict(zip(self.positions(data, len(parts)), parts, strict=True))
        sets = {each: BatchSet.acked(SIZE, indexes) for each, indexes in wanted.items() if indexes is not None}
        if any(self.model.refuses(each) for each in wanted):
            self.refused(lambda state: state.acknowledge(list(wanted), sets))
            return
        self.call(lambda state: state.acknowledge(list(wanted), sets))
        for each, indexes in wanted.items():
            self.model.ack(each, indexes)
        self.model.settle()

    @rule(data=st.data(), count=st.integers(1, 5))
    def acknowledge_entries(self, data: st.DataObject, count: int) -> None:
        drawn = self.positions(data, count)
        ledger = drawn[0].ledger
        entries = [position.entry for position in drawn if position.ledger == ledger]
        if any(self.model.refuses(Position(ledger, entry)) for entry in entries):
            self.refused(lambda state: state.acknowledge_entries(ledger, entries))
            return
        self.call(lambda state: state.acknowledge_entries(ledger, entries))
        for entry in entries:
            self.model.ack(Position(ledger, entry), None)
        self.model.settle()

    @rule(data=st.data(), through=st.none() | st.integers(0, SIZE - 1))
    def acknowledge_cumulative(self, data: st.DataObject, through: int | None) -> None:
        [position] = self.positions(data, 1)
        left = None if through is None else BatchSet.through(SIZE, through)
        model = self.model
        if position <= model.reached:
            if position in {model.reached, model.cumulative}:
                self.call(lambda state: state.acknowledge_cumulative(position, left))
            else:
                self.refused(lambda state: state.acknowledge_cumulative(position, left))
            return
        if not model.exists(position):
            self.refused(lambda state: state.acknowledge_cumulative(position, left))
            return
        self.call(lambda state: state.acknowledge_cumulative(position, left))
        model.cumulative = position
        model.ack(position, None if through is None else set(range(through + 1)))
        model.ack_before(position)
        model.settle()

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        [position] = self.positions(data, 1)
        later = [ledger for ledger in self.ledgers if ledger > position.ledger]
        end = self.ledgers.get(position.ledger)
        if (end is None and not later) or (end is not None and position.entry > end):
            self.refused(lambda state: state.reset(position))
            return
        self.call(lambda state: state.reset(position))
        earlier = [each for each in self.model.existing() if each < position]
        first = position.ledger if end is not None else min(later)
        self.model.reached = earlier[-1] if earlier else Position(first, -1)
        self.model.whole, self.model.left, self.model.cumulative = set(), {}, None

    @rule(grow=st.integers(0, 2), gap=st.integers(0, 2), size=st.integers(0, 3))
    def topic_grows(self, grow: int, gap: int, size: int) -> None:
        last = max(self.ledgers)
        self.ledgers[last] = min(4, self.ledgers[last] + grow)
        if gap and last + gap < 10:
            self.ledgers[last + gap] = size

    @precondition(lambda self: len(self.ledgers) > 1)
    @rule(data=st.data())
    def topic_is_trimmed(self, data: st.DataObject) -> None:
        del self.ledgers[data.draw(st.sampled_from(sorted(self.ledgers)[:-1]))]
        self.call(lambda state: state.mark_delete.advance())
        self.model.settle()

    @rule()
    def write(self) -> None:
        ledgers, _ = self.state.take_dirty()
        for ledger in ledgers:
            acks = self.state.table.states.get(ledger)
            if acks is None:
                self.stored.pop(ledger, None)
            else:
                self.stored[ledger] = acks.copy()

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.write()
        for ledger in data.draw(st.sets(st.sampled_from(sorted(self.state.table.states) or [0]))):
            if ledger in self.state.table.states:
                self.state.table.evict(ledger)

    @rule(noted=st.sets(LEDGERS, max_size=4))
    def reopen(self, noted: set[int]) -> None:
        """Write, and open again without loading some ledgers."""
        self.write()
        again = AckState(self.ledgers, self.state.mark_delete_position, ledger_size=len_of)
        for ledger, acks in sorted(self.stored.items()):
            acks = acks.copy()
            if ledger == again.mark_delete_position.ledger:
                acks.trim(again.mark_delete_position.entry)
            if ledger in noted:
                again.add_evicted(ledger, acks.summary, len_of(acks))
            else:
                again.recover(ledger, acks)
        self.state = again
        self.model.cumulative = None  # it is not written

    @invariant()
    def knows_what_is_acknowledged(self) -> None:
        model, state = self.model, self.state
        assert state.mark_delete_position == model.reached
        for ledger, acks in state.table.states.items():
            assert acks
            acks.ranges._verify()
            whole = {entry for each, entry in model.whole if each == ledger}
            assert [*acks.ranges.ranges()] == [
                (low.entry + 1, high.entry) for low, high in model.intervals() if low.ledger == ledger
            ]
            assert len(acks.ranges) == len(whole)
            left = {each.entry: set(indexes) for each, indexes in model.left.items() if each.ledger == ledger}
            assert {entry: set(batch) for entry, batch in acks.batches.items()} == left
        touched = {each.ledger for each in (*model.whole, *model.left)}
        assert touched == {*state.table.states} | {*state.table.evicted}

    @invariant()
    def keeps_its_figures(self) -> None:
        model, state = self.model, self.state
        unacked = [each for each in model.existing() if each > model.reached and each not in model.whole]
        assert state.next_position == (unacked[0] if unacked else None)
        if None not in state.table.evicted.values():
            assert state.backlog == len(unacked)
            assert state.table.range_count == len(model.intervals())
            assert state.highest_acked == max([model.reached, *model.whole])
        if not state.table.evicted:
            assert individually_deleted(state) == model.intervals()
            assert state.table.size_bytes == len(model.intervals()) + len(model.left)

    @invariant()
    def is_dirty_where_storage_differs(self) -> None:
        """A clean ledger is stored as it is in memory, except for what the mark-delete position has passed."""
        reached = self.state.mark_delete_position
        for ledger in {*self.stored, *self.state.table.states} - self.state.table.dirty:
            stored = self.stored[ledger].copy()
            if ledger == reached.ledger:
                stored.trim(reached.entry)
            if ledger not in self.state.table.evicted:
                assert self.state.table.states[ledger] == stored

    def teardown(self) -> None:
        """Load everything, and check each entry and index."""
        if not hasattr(self, "state"):
            return
        for ledger in list(self.state.table.evicted):
            assert self.state.restore(ledger, self.stored[ledger].copy())
        assert individually_deleted(self.state) == self.model.intervals()
        for position in (Position(ledger, entry) for ledger in range(10) for entry in range(7)):
            acked = position <= self.model.reached or position in self.model.whole
            assert self.state.is_acked(position) == acked
            for index in range(SIZE):
                left = self.model.left.get(position, {index})
                assert self.state.is_acked(position, index) == (acked or index not in left)


def len_of(acks: LedgerAcks) -> int:
    """Return a size of a ledger's state that is easy to check."""
    return acks.ranges.range_count + len(acks.batches)


def snapshot(state: AckState) -> Any:
    """Return everything that an error must not change."""
    states = {ledger: acks.copy() for ledger, acks in state.table.states.items()}
    return (
        state.mark_delete_position,
        states,
        dict(state.table.evicted),
        set(state.table.dirty),
        state.mark_delete.is_dirty,
    )


Acknowledging.TestCase.settings = examples(100, 40)
TestAcknowledging = Acknowledging.TestCase
TestAcknowledging.__doc__ = "Whatever happens, the state is that of the reference, and what is not dirty is on storage."
