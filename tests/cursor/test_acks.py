"""The pure acknowledgement state: single, cumulative and partial acknowledgements, reset, and ledgers that change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from pulsar_nack import InvalidArgumentError, Position
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format import BatchSet, LedgerAcks, LedgersNotLoaded, LedgerSummary
from pulsar_nack.index import EntryRanges
from tests.cursor.states import individually_deleted
from tests.for_each import for_each


def positions_of(ledgers: dict[int, int]) -> list[Position]:
    """Return all positions of these ledgers."""
    return [Position(ledger, entry) for ledger in sorted(ledgers) for entry in range(ledgers[ledger])]


def split(count: int, size: int) -> dict[int, int]:
    """Return ledgers 1, 2, .. of ``size`` entries each, the last one maybe fewer, that have ``count`` in all."""
    return {1 + number: min(size, count - number * size) for number in range(-(-count // size))}


def intervals(state: AckState) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the ranges as plain pairs."""
    return [((a.ledger, a.entry), (b.ledger, b.entry)) for a, b in individually_deleted(state)]


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


def test_k1_single_acks_in_any_order() -> None:
    """K1: single acks in any order, one of them twice, move the mark-delete position as gaps close."""
    state = AckState(split(6, 3), (1, -1))
    p = [Position(0, 0), *positions_of(split(6, 3))]
    seen = []
    for number in (4, 1, 3, 3, 2, 5):
        state.acknowledge([p[number]])
        seen.append(state.mark_delete_position)
    assert seen == [Position(1, -1), p[1], p[1], p[1], p[4], p[5]]


def test_k2_lists_of_acks() -> None:
    """K2: lists of acks over ledgers of two entries; an entry that is already acknowledged is accepted."""
    state = AckState(split(7, 2), (1, -1))
    p = [Position(0, 0), *positions_of(split(7, 2))]
    state.acknowledge([p[2], p[3], p[5], p[7]])
    assert (state.mark_delete_position, state.backlog) == (Position(1, -1), 3)
    state.acknowledge([p[1]])
    assert state.mark_delete_position == p[3]
    state.acknowledge([p[4], p[6], p[7]])
    assert (state.mark_delete_position, state.backlog, intervals(state)) == (p[7], 0, [])


@for_each("seed", range(20))
def test_k3_backlog_at_each_step(seed: int) -> None:
    """K3: in any order, the backlog falls by one with each ack, and nothing is left in the end."""
    ledgers = split(10, 4)
    order = positions_of(ledgers)
    Random(seed).shuffle(order)
    state = AckState(ledgers, (1, -1))
    for number, position in enumerate(order, 1):
        state.acknowledge([position])
        assert state.backlog == 10 - number
    assert state.mark_delete_position == Position(3, 1)
    assert intervals(state) == []
    assert state.table.states == {}


def test_k4_every_third_then_the_rest() -> None:
    """K4: every third of 1000 entries, then the rest of the first half."""
    state = AckState({1: 1000}, (1, -1))
    for entry in range(0, 1000, 3):
        state.acknowledge([Position(1, entry)])
    assert (state.mark_delete_position, state.backlog) == (Position(1, 0), 666)
    for entry in range(500):
        state.acknowledge([Position(1, entry)])
    assert state.mark_delete_position == Position(1, 499)
    assert [entry for entry in range(500, 510) if state.is_acked((1, entry))] == [501, 504, 507]


def test_k5_cumulative_again_and_older() -> None:
    """K5: a cumulative ack of the same position again is accepted, one of an older position changes nothing."""
    state = AckState({1: 10}, (1, -1))
    state.acknowledge([Position(1, 7)])
    state.acknowledge_cumulative(Position(1, 5))
    state.acknowledge_cumulative(Position(1, 5))
    assert (state.mark_delete_position, intervals(state)) == (Position(1, 5), [((1, 6), (1, 7))])
    before = snapshot(state)
    with pytest.raises(InvalidArgumentError, match="not before the mark-delete position"):
        state.acknowledge_cumulative(Position(1, 4))
    assert snapshot(state) == before


def test_k5_again_though_the_mark_delete_position_went_on() -> None:
    """K5: the same cumulative ack is also accepted if later entries were acknowledged and passed."""
    state = AckState({1: 10}, (1, -1))
    state.acknowledge([Position(1, 6), Position(1, 7)])
    for _ in range(2):
        state.acknowledge_cumulative((1, 5))
        assert state.mark_delete_position == Position(1, 7)


@for_each(
    "wrong",
    [
        Position(1, 3), Position(2, 3), Position(3, 0), Position(0, 0), Position(9, 9), (1, -1), (-1, 0), (1, 2**63),
        (2**63, 0), (1, 1.0), ("1", 1), (1,), (1, 1, 1, 1), None, 7,
    ],
)  # fmt: skip
def test_k6_beyond_the_end(wrong: Any) -> None:
    """K6: invalid or missing positions are refused alone, in a list, partially and cumulatively."""
    state = AckState({1: 3, 2: 3}, (0, 5))
    state.acknowledge([Position(1, 1), Position(2, 1)])
    before = snapshot(state)
    if wrong == Position(0, 0):
        state.acknowledge([wrong])  # before the mark-delete position its ledger may be gone
        assert snapshot(state) == before
        return
    left = BatchSet.acked(4, [1])
    calls: list[tuple[Any, ...]] = [([wrong],), ([Position(1, 0), wrong, Position(1, 2)],), ([wrong, Position(1, 0)],)]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="position"):
            state.acknowledge(*call)
    with pytest.raises(InvalidArgumentError, match="position"):
        state.acknowledge([Position(1, 0), wrong], {Position(1, 0): left})
    for batch_set in (None, left):
        with pytest.raises(InvalidArgumentError, match="position"):
            state.acknowledge_cumulative(wrong, batch_set)
    assert snapshot(state) == before


def test_k6_entries_and_batch_sets() -> None:
    """K6: missing entries in bulk, sets of other positions, and invalid sets refuse the whole call."""
    state = AckState({1: 3}, (1, -1))
    before = snapshot(state)
    for entries in ([0, 3], [3], [-1, 0]):
        with pytest.raises(InvalidArgumentError, match=r"position|entries"):
            state.acknowledge_entries(1, entries)
    with pytest.raises(InvalidArgumentError, match="does not"):
        state.acknowledge_entries(2, [0])
    with pytest.raises(InvalidArgumentError, match="batch_sets"):
        state.acknowledge([Position(1, 1)], {Position(1, 2): BatchSet.full(3)})
    words: Any = [7]
    with pytest.raises(InvalidArgumentError, match="batch_set"):
        state.acknowledge([Position(1, 0), Position(1, 2)], {Position(1, 2): words})
    with pytest.raises(InvalidArgumentError, match="batch_set"):
        state.acknowledge_cumulative(Position(1, 2), words)
    assert snapshot(state) == before


def test_k7_hops_over_a_ledgers_end() -> None:
    """K7: ten single acks in ledgers 1 and 2, the last of which closes the gap at the end of ledger 1."""
    state = AckState({1: 10, 2: 10}, (1, 3))
    for entry in (4, 5, 6, 8, 9):
        state.acknowledge([(1, entry)])
    for entry in (1, 2, 0, 4):
        state.acknowledge([(2, entry)])
    assert intervals(state) == [((1, 7), (1, 9)), ((2, -1), (2, 2)), ((2, 3), (2, 4))]
    assert state.mark_delete_position == Position(1, 6)
    state.acknowledge([(1, 7)])
    assert state.mark_delete_position == Position(2, 2)
    assert intervals(state) == [((2, 3), (2, 4))]
    assert 1 in state.table.dirty


def test_k7_hops_over_empty_and_deleted_ledgers() -> None:
    """K7: empty ledgers, and numbers without a ledger, are skipped up to the next existing one."""
    state = AckState({1: 2, 4: 0, 5: 0, 9: 3, 12: 1}, (1, 0))
    state.acknowledge([(9, 0)])
    assert state.mark_delete_position == Position(1, 0)
    state.acknowledge([(1, 1)])
    assert (state.mark_delete_position, state.next_position) == (Position(9, 0), Position(9, 1))
    state.acknowledge_entries(9, [1, 2])
    assert (state.mark_delete_position, state.backlog) == (Position(9, 2), 1)


def test_k7_stays_on_an_entry_that_exists() -> None:
    """K7: with nothing acknowledged in the next ledger, the mark-delete position stays at the end of its ledger."""
    state = AckState({1: 2, 2: 2}, (1, -1))
    state.acknowledge([(1, 0), (1, 1)])
    assert (state.mark_delete_position, state.next_position) == (Position(1, 1), Position(2, 0))
    state.acknowledge([(2, 0)])
    assert state.mark_delete_position == Position(2, 0)


def test_k7_a_deleted_ledger_opens_the_way() -> None:
    """K7: the next advance skips a ledger that was deleted with unacknowledged entries."""
    ledgers = {1: 2, 2: 2, 3: 2}
    state = AckState(ledgers, (1, 1))
    state.acknowledge([(2, 1), (3, 0)])
    del ledgers[2]
    state.mark_delete.advance()
    assert (state.mark_delete_position, intervals(state), state.backlog) == (Position(3, 0), [], 1)
    assert state.table.dirty == {2, 3}
    assert state.table.states == {}


def test_ledgers_grow_while_in_use() -> None:
    """New entries and ledgers can be acknowledged, and the mark-delete position moves on to them."""
    ledgers = {1: 2}
    state = AckState(ledgers, (1, -1))
    state.acknowledge([(1, 0), (1, 1)])
    assert (state.mark_delete_position, state.backlog, state.next_position) == (Position(1, 1), 0, None)
    with pytest.raises(InvalidArgumentError, match="which has 2"):
        state.acknowledge([(1, 2)])
    ledgers[1] = 4
    state.acknowledge([(1, 3)])
    assert (state.mark_delete_position, state.backlog) == (Position(1, 1), 1)
    ledgers[7] = 1
    state.acknowledge([(7, 0)])
    state.acknowledge([(1, 2)])
    assert (state.mark_delete_position, state.backlog) == (Position(7, 0), 0)


def test_k11_batch_indexes() -> None:
    """K11: indexes of a batch of 10 add up; when none is left, the entry is acknowledged as a whole."""
    state = AckState({1: 2}, (1, -1))
    entry = Position(1, 0)
    expected = [{2, 3, 4}, {2, 3, 4, 5, 6, 7, 8}, {0, 2, 3, 4, 5, 6, 7, 8}]
    for acked, all_acked in zip(([2, 3, 4], range(3, 9), [0]), expected, strict=True):
        state.acknowledge([entry], {entry: BatchSet.acked(10, acked)})
        left = state.batch_set(entry)
        assert left is not None
        assert set(range(10)) - set(left) == all_acked
        assert [state.is_acked(entry, index) for index in range(10)] == [index in all_acked for index in range(10)]
        assert not state.is_acked(entry)
    assert state.mark_delete_position == Position(1, -1)
    state.acknowledge([entry], {entry: BatchSet.acked(10, [1, 9])})
    assert state.mark_delete_position == entry
    assert state.is_acked(entry)
    assert state.is_acked(entry, 5)
    assert state.table.states == {}


@pytest.mark.parametrize("entry", [0, 1])
def test_k12_no_partial_state_beside_a_whole_ack(entry: int) -> None:
    """K12: a part, the whole, and again a part of one entry leave no partial state, wherever it lies."""
    state = AckState({1: 2}, (1, -1))
    position = Position(1, entry)
    state.acknowledge([position], {position: BatchSet.acked(10, range(6))})
    state.acknowledge([position])
    state.acknowledge([position], {position: BatchSet.acked(10, range(6, 9))})
    assert state.batch_set(position) is None
    assert state.is_acked(position)
    assert [list(acks.batches) for acks in state.table.states.values()] == ([[]] if entry else [])


def test_k12_whole_and_part_in_one_call() -> None:
    """K12: the same when whole and part come in one call, in lists and in bulk."""
    state = AckState({1: 5}, (1, -1))
    parts = {Position(1, entry): BatchSet.acked(3, [0]) for entry in (1, 2, 3)}
    state.acknowledge(list(parts), parts)
    state.acknowledge([Position(1, 3), Position(1, 1)], {Position(1, 1): BatchSet.acked(3, [1])})
    state.acknowledge_entries(1, [2])
    assert set(state.table.states[1].batches) == {1}
    state.acknowledge_cumulative(Position(1, 1))
    assert state.mark_delete_position == Position(1, 3)
    assert state.table.states == {}


def test_k13_cumulative_inside_a_batch() -> None:
    """K13: cumulative acks inside a batch only move forward, and acknowledge everything before the entry."""
    state = AckState({1: 3}, (1, -1))
    entry = Position(1, 1)
    for index, acked in ((3, 4), (4, 5), (2, 5)):
        state.acknowledge_cumulative(entry, BatchSet.through(10, index))
        left = state.batch_set(entry)
        assert left is not None
        assert set(left) == set(range(acked, 10))
        assert state.mark_delete_position == Position(1, 0)
    state.acknowledge_cumulative(entry, BatchSet.through(10, 9))
    assert state.mark_delete_position == entry
    state.acknowledge_cumulative(entry, BatchSet.through(10, 2))
    assert state.table.states == {}


def test_k13_first_entry_of_a_ledger() -> None:
    """K13: inside the first entry of a ledger, everything in the ledgers before is acknowledged."""
    state = AckState({1: 2, 2: 0, 3: 2}, (1, -1))
    state.acknowledge([(1, 1)], {(1, 1): BatchSet.acked(3, [1])})
    state.acknowledge_cumulative((3, 0), BatchSet.through(4, 1))
    assert state.mark_delete_position == Position(1, 1)
    assert set(state.table.states) == {3}
    state = AckState({3: 2}, (3, -1))
    state.acknowledge_cumulative((3, 0), BatchSet.through(4, 1))
    assert state.mark_delete_position == Position(3, -1)


def test_k14_merged_by_and() -> None:
    """K14: an index that was acknowledged singly stays so when a cumulative ack of lower ones is merged."""
    state = AckState({1: 1}, (1, -1))
    entry = Position(1, 0)
    state.acknowledge([entry], {entry: BatchSet(10, sum(1 << index for index in (0, 1, 2, 3, 4, 5, 6, 8, 9)))})
    state.acknowledge_cumulative(entry, BatchSet.through(10, 3))
    left = state.batch_set(entry)
    assert left is not None
    assert list(left) == [4, 5, 6, 8, 9]


def test_k15_partials_and_the_mark_delete_position() -> None:
    """K15: batch sets after the mark-delete position are returned, and removed when their entry is acknowledged."""
    state = AckState({1: 8}, (1, -1))
    p5, p6 = Position(1, 5), Position(1, 6)
    state.acknowledge([p6], {p6: BatchSet.acked(10, [1, 2, 3])})
    state.acknowledge([p5], {p5: BatchSet.acked(10, [3, 4, 5, 6])})
    state.acknowledge_entries(1, range(5))
    again = AckState({1: 8}, state.mark_delete_position)
    again.recover(1, state.table.states[1].copy())
    assert again.mark_delete_position == Position(1, 4)
    assert again.batch_set(p5) == BatchSet.acked(10, [3, 4, 5, 6])
    assert again.batch_set(p6) == BatchSet.acked(10, [1, 2, 3])
    again.acknowledge([p5], {p5: BatchSet.acked(10, [0, 1, 2, 7, 8, 9])})
    assert again.mark_delete_position == p5
    assert again.table.states[1].batches == {6: BatchSet.acked(10, [1, 2, 3])}


def test_k16_needs_evicted_ledgers() -> None:
    """K16: ranges of ledgers 3 and 5, one of them evicted, are complete and in order once that one is restored."""
    state = AckState({3: 9, 5: 9}, (3, -1))
    state.acknowledge([(5, 2), (3, 4), (3, 6)])
    state.take_dirty()
    stored = state.table.evict(3)
    assert state.restore(3, stored.copy())
    assert intervals(state) == [((3, 3), (3, 4)), ((3, 5), (3, 6)), ((5, 1), (5, 2))]


@pytest.mark.parametrize("target", [(1, 0), (1, 2), (1, 4), (2, 0), (2, -1), (2, 2), (2, 4)])
def test_k17_reset(target: tuple[int, int]) -> None:
    """K17: the position is the next message: nothing from it on is acknowledged, everything before it is."""
    ledgers = {1: 4, 2: 4}
    state = AckState(ledgers, (1, -1))
    state.acknowledge([(1, 0), (1, 2), (2, 1), (2, 3)], {(2, 3): BatchSet.acked(5, [1])})
    state.take_dirty()
    state.reset(target)
    for position in positions_of(ledgers):
        assert state.is_acked(position) == (position < target)
        assert state.batch_set(position) is None
    after = [position for position in positions_of(ledgers) if position >= target]
    assert (state.next_position, state.backlog) == (after[0] if after else None, len(after))
    assert (state.table.dirty, state.mark_delete.is_dirty) == ({1, 2}, True)
    assert state.highest_acked == state.mark_delete_position


def test_k17_reset_where_nothing_is() -> None:
    """K17: a deleted ledger means the first entry after it; positions beyond the end are refused."""
    state = AckState({3: 2, 5: 0, 8: 4}, (8, 1))
    for wrong in ((8, 5), (9, 0), (3, 3), (1.5, 0)):
        before = snapshot(state)
        with pytest.raises(InvalidArgumentError, match="position"):
            state.reset(wrong)  # type: ignore[arg-type]
        assert snapshot(state) == before
    for target, reached, following in (
        ((1, 7), (3, -1), (3, 0)),
        ((-1, -1), (3, -1), (3, 0)),
        ((4, 9), (3, 1), (8, 0)),
        ((5, 0), (3, 1), (8, 0)),
        ((8, 4), (8, 3), None),
    ):
        state.reset(target)
        assert (state.mark_delete_position, state.next_position) == (reached, following)


def test_k17_reset_and_then_acknowledge() -> None:
    """K17: acks after a reset count again, also a cumulative one before the old mark-delete position."""
    state = AckState({1: 9}, (1, -1))
    state.acknowledge_cumulative((1, 7))
    state.reset((1, 2))
    state.acknowledge([(1, 4)])
    state.acknowledge_cumulative((1, 3))
    assert state.mark_delete_position == Position(1, 4)
    with pytest.raises(InvalidArgumentError, match="not before"):
        state.acknowledge_cumulative((1, 2))


def test_k46_few_acks_in_many_ledgers() -> None:
    """K46: two acks, or parts of their batches, in 5 000 ledgers are two ranges, or two sets; nothing else is kept."""
    ledgers = dict.fromkeys(range(1, 5001), 50_000)
    state = AckState(ledgers, (0, -1))
    state.acknowledge([(5000, 49_999), (2, 0)])
    assert (state.table.range_count, len(state.table.states)) == (2, 2)
    assert state.table.memory_bytes < 2_000
    assert state.backlog == 250_000_000 - 2
    partial = AckState(ledgers, (0, -1))
    sets = {position: BatchSet.acked(1000, [0, 999]) for position in ((1, 0), (5000, 49_999))}
    partial.acknowledge(list(sets), sets)
    assert (partial.table.range_count, partial.backlog) == (0, 250_000_000)
    assert sum(len(acks.batches) for acks in partial.table.states.values()) == 2
    assert partial.table.memory_bytes < 2_000


def test_k50_remote_topic() -> None:
    """K50: without ledgers nothing is beyond the end, no ledger end is passed, and there is no backlog."""
    state = AckState(None, (-1, -1))
    assert (state.backlog, state.next_position) == (None, Position(-1, 0))
    state.acknowledge_cumulative((4, 7))
    state.acknowledge([(4, 8), (5, 0), (5, 1), (9, 2**62)])
    assert (state.mark_delete_position, state.backlog) == (Position(4, 8), None)
    assert intervals(state) == [((5, -1), (5, 1)), ((9, 2**62 - 1), (9, 2**62))]
    state.acknowledge([(5, 2)], {(5, 2): BatchSet.acked(3, [0])})
    with pytest.raises(InvalidArgumentError, match="not before"):
        state.acknowledge_cumulative((4, 3))
    with pytest.raises(InvalidArgumentError, match="position"):
        state.acknowledge([(4, 9), (4, 2**63)])
    state.acknowledge_cumulative((5, 1))
    assert state.mark_delete_position == Position(5, 1)
    assert set(state.table.states) == {5, 9}
    state.acknowledge_cumulative((9, 0), BatchSet.through(4, 1))
    assert state.mark_delete_position == Position(9, -1)
    state.reset((7, 0))
    assert (state.mark_delete_position, intervals(state)) == (Position(7, -1), [])
    assert not state.is_acked((7, 0))
    assert state.is_acked((6, 99))


@for_each("ledgers", [{1: -1}, {-1: 3}, {"1": 3}, {1: None}, [1, 2], 7, "ledgers"])
def test_refuses_what_are_no_ledgers(ledgers: Any) -> None:
    """Invalid ledger ids, numbers of entries, and initial positions are refused by name."""
    with pytest.raises(InvalidArgumentError, match="ledgers"):
        AckState(ledgers, (1, -1))
    positions: list[Any] = [(1, -2), (-2, 0), (1, 2**63), (math.nan, 1), None]
    for position in positions:
        with pytest.raises(InvalidArgumentError, match="position"):
            AckState({1: 1}, position)


def test_what_makes_it_dirty() -> None:
    """K21: each kind of change says which ledgers, or the mark-delete position, have to be written; no change none."""
    state = AckState({1: 9, 2: 9}, (1, -1))
    steps: list[tuple[Any, set[int], bool]] = [
        (lambda: state.acknowledge([(1, 4)]), {1}, False),
        (lambda: state.acknowledge([(1, 4)]), set(), False),
        (lambda: state.acknowledge([(2, 3)], {(2, 3): BatchSet.acked(4, [2])}), {2}, False),
        (lambda: state.acknowledge([(2, 3)], {(2, 3): BatchSet.acked(4, [2])}), set(), False),
        (lambda: state.acknowledge([(2, 4)], {(2, 4): BatchSet.full(4)}), set(), False),
        (lambda: state.acknowledge([(1, 0)]), set(), True),
        (lambda: state.acknowledge([(1, 0)]), set(), False),
        (lambda: state.acknowledge_cumulative((1, 3)), {1}, True),
        (lambda: state.acknowledge_cumulative((2, 3)), {2}, True),
    ]
    for step, ledgers, mark_delete in steps:
        step()
        assert state.take_dirty() == (ledgers, mark_delete)
    assert state.table.states == {}
    state.put_back_dirty({1}, mark_delete=True)
    state.put_back_dirty({2}, mark_delete=False)
    assert state.take_dirty() == ({1, 2}, True)


def evicted_state(acked: Sequence[int], ledgers: dict[int, int], md: tuple[int, int]) -> tuple[AckState, LedgerAcks]:
    """Return a state whose ledger 2 has these acknowledged entries and is evicted, and what is stored of it."""
    state = AckState(ledgers, md, ledger_size=lambda acks: 10 * acks.ranges.range_count)
    state.acknowledge_entries(2, acked)
    state.take_dirty()
    return state, state.table.evict(2)


def test_evicted_ledgers_are_needed() -> None:
    """Calls that need an evicted ledger say so before anything changes; others work."""
    state, stored = evicted_state([3], {1: 3, 2: 5, 3: 3}, (1, -1))
    before = snapshot(state)
    calls: list[Any] = [
        lambda: state.acknowledge([(2, 1)]),
        lambda: state.acknowledge([(1, 1), (2, 1)]),
        lambda: state.acknowledge([(1, 1), (2, 3)], {(2, 3): BatchSet.acked(4, [2])}),
        lambda: state.acknowledge_entries(2, [4]),
        lambda: state.acknowledge_cumulative((2, 1)),
        lambda: state.acknowledge_cumulative((2, 0), BatchSet.acked(4, [2])),
        lambda: state.is_acked((2, 1)),
        lambda: state.batch_set((2, 1)),
        lambda: list(state.unacked(2, 0, 3)),
    ]
    for call in calls:
        with pytest.raises(LedgersNotLoaded) as error:
            call()
        assert error.value.ledgers == {2}
        assert snapshot(state) == before
    assert (state.backlog, state.table.size_bytes, state.table.range_count, state.table.memory_bytes) == (10, 10, 1, 0)
    assert state.highest_acked == Position(2, 3)
    state.acknowledge([(1, 1)])
    assert state.restore(2, stored)
    assert not state.restore(2, LedgerAcks())
    state.acknowledge_cumulative((2, 2))
    assert state.mark_delete_position == Position(2, 3)


def test_only_written_ledgers_are_evicted() -> None:
    """A ledger that is dirty, or not in memory, cannot be evicted."""
    state = AckState({1: 3}, (1, -1))
    state.acknowledge([(1, 1)])
    for ledger in (1, 2):
        with pytest.raises(InvalidArgumentError, match="ledger"):
            state.table.evict(ledger)
    state.take_dirty()
    assert len(state.table.evict(1).ranges) == 1


def test_moves_into_an_evicted_ledger() -> None:
    """The mark-delete position passes the acknowledged beginning of an evicted ledger without loading it."""
    state, stored = evicted_state([0, 1, 3], {1: 1, 2: 5}, (1, -1))
    state.acknowledge([(1, 0)])
    assert (state.mark_delete_position, state.backlog) == (Position(2, 1), 2)
    assert set(state.table.evicted) == {2}
    assert state.take_dirty() == (set(), True)
    with pytest.raises(LedgersNotLoaded):
        state.acknowledge([(2, 2)])
    state.restore(2, stored)
    assert intervals(state) == [((2, 2), (2, 3))]
    assert state.take_dirty() == (set(), False)
    state.acknowledge([(2, 2)])
    assert state.mark_delete_position == Position(2, 3)


def test_passes_an_evicted_ledger() -> None:
    """An evicted ledger that is acknowledged to its end is passed and forgotten, also by cumulative acks and resets."""
    ledgers = {1: 1, 2: 3, 3: 2}
    state, stored = evicted_state([0, 1, 2], ledgers, (1, -1))
    state.acknowledge([(3, 0)])
    state.acknowledge([(1, 0)])
    assert (state.mark_delete_position, dict(state.table.evicted), state.backlog) == (Position(3, 0), {}, 1)
    assert 2 in state.table.dirty
    assert state.table.size_bytes == 0
    assert not state.restore(2, stored)
    forgetting: list[Callable[[AckState], None]] = [
        lambda state: state.acknowledge_cumulative((3, 0)),
        lambda state: state.acknowledge_cumulative((3, 0), BatchSet.acked(3, [0])),
        lambda state: state.reset((1, 0)),
    ]
    for forget in forgetting:
        state, _ = evicted_state([1], ledgers, (1, -1))
        forget(state)
        assert dict(state.table.evicted) == {}
        assert 2 in state.table.dirty


def test_recovers_with_summaries() -> None:
    """The summary of a ledger that was not loaded counts in backlog, size, ranges and the highest position."""
    state = AckState({1: 9, 2: 9}, (1, 2))
    state.add_evicted(2, LedgerSummary(acked=4, leading=2, last=7, batches=1, ranges=2), 33)
    state.add_evicted(0, LedgerSummary(acked=9, leading=9, last=8, batches=0, ranges=1), 40)  # was passed
    assert set(state.table.evicted) == {2}
    assert (state.backlog, state.table.size_bytes, state.table.range_count) == (11, 33, 2)
    assert state.highest_acked == Position(2, 7)
    state.acknowledge_cumulative((1, 8))
    assert (state.mark_delete_position, state.backlog) == (Position(2, 1), 5)


def test_foreign_state_is_brought_into_form() -> None:
    """Foreign state may have empty, full and superfluous batch sets, and entries that were passed."""
    state = AckState({1: 20}, (1, 4))
    batches = {3: BatchSet.acked(3, [0]), 5: BatchSet(3, 0), 7: BatchSet.full(3), 9: BatchSet.acked(3, [1])}
    batches[11] = BatchSet.acked(3, [1])
    state.recover(1, LedgerAcks(EntryRanges.from_ranges([(0, 2), (6, 6), (9, 9)]), batches))
    assert state.mark_delete_position == Position(1, 6)
    assert intervals(state) == [((1, 8), (1, 9))]
    assert state.table.states[1].batches == {11: BatchSet.acked(3, [1])}
    state.recover(0, LedgerAcks(EntryRanges.from_ranges([(0, 2)])))
    assert set(state.table.states) == {1}


def test_sizes_are_summed_up() -> None:
    """Bytes and ranges follow every change, and only changed ledgers are measured again."""
    measured: list[int] = []

    def size(acks: LedgerAcks) -> int:
        measured.append(acks.ranges.range_count)
        return 10 * acks.ranges.range_count + len(acks.batches)

    state = AckState({1: 9, 2: 9}, (1, -1), ledger_size=size)
    state.acknowledge([(1, 1), (1, 3), (2, 0), (2, 5)], {(2, 5): BatchSet.acked(3, [1])})
    assert (state.table.size_bytes, state.table.range_count) == (31, 3)
    assert state.table.memory_bytes > 0
    assert len(measured) == 2
    state.acknowledge([(1, 2)])
    assert (state.table.size_bytes, state.table.range_count, len(measured)) == (21, 2, 3)
    state.acknowledge([(1, 0)])
    assert state.table.size_bytes == 11
    state.reset((1, 0))
    assert (state.table.size_bytes, state.table.range_count, state.table.memory_bytes) == (0, 0, 0)


def test_which_acks_add_ranges() -> None:
    """An entry next to an acknowledged one, or the lowest unacknowledged one, adds no range."""
    state = AckState({1: 20, 2: 3}, (1, 2))
    state.acknowledge([(1, 9), (1, 12)])
    adds = [entry for entry in range(20) if state.adds_range((1, entry))]
    assert adds == [4, 5, 6, 7, 14, 15, 16, 17, 18, 19]
    assert state.adds_range((2, 0))
    state.acknowledge_cumulative((1, 19))
    assert not state.adds_range((2, 0))


@for_each("first", [0, 3, 5, 8])
@for_each("last", [4, 9, 30])
def test_goes_through_what_is_unacknowledged(first: int, last: int) -> None:
    """The holes of a ledger between two entries are its unacknowledged entries, in order."""
    state = AckState({1: 40, 2: 40}, (1, 4))
    state.acknowledge([(1, entry) for entry in (6, 7, 9, 20)])
    for ledger in (0, 1, 2):
        holes = list(state.unacked(ledger, first, last))
        expected = [entry for entry in range(first, last + 1) if not state.is_acked((ledger, entry))]
        assert [entry for low, high in holes for entry in range(low, high + 1)] == expected
        assert all(one[1] + 1 < other[0] for one, other in pairwise(holes))


def test_bulk_ways_are_the_same() -> None:
    """Many positions in one call, and many entries of one ledger, leave the same state as single acks."""
    ledgers = {1: 3000, 2: 3000}
    chosen = Random(5).sample(positions_of(ledgers), 4000)
    single, listed, bulk = (AckState(ledgers, (1, -1)) for _ in range(3))
    for position in chosen:
        single.acknowledge([position])
    listed.acknowledge(iter(chosen))
    for ledger in (2, 1):
        bulk.acknowledge_entries(ledger, [entry for each, entry in chosen if each == ledger])
    bulk.acknowledge_entries(1, [])
    bulk.acknowledge_entries(1, [0] if bulk.is_acked((1, 0)) else [])
    for other in (listed, bulk):
        assert other.mark_delete_position == single.mark_delete_position
        assert individually_deleted(other) == individually_deleted(single)
        assert (
            (other.backlog, other.table.range_count)
            == (single.backlog, single.table.range_count)
            == (2000, single.table.range_count)
        )


def test_wide_entries() -> None:
    """Entries beyond 2**32 and near 2**63 are acknowledged and passed like others."""
    top = 2**63 - 1
    state = AckState({1: top, 2: 2}, (1, 2**32 - 3))
    state.acknowledge([(1, 2**32)])
    state.acknowledge([(1, top - 1)])
    state.acknowledge([(1, 2**32 - 1), (1, 2**32 - 2)])
    assert state.mark_delete_position == Position(1, 2**32)
    state.acknowledge([(2, 0)])
    state.acknowledge_cumulative((1, top - 2))
    assert (state.mark_delete_position, state.backlog) == (Position(2, 0), 1)
