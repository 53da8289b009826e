"""Bulk additions, the set of held positions, and the queue and the merge with many indexes."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import BucketConfig, InvalidArgumentError, Position
from pulsar_nack.delayed.bucket._buckets import ImmutableBucket, MutableBucket
from pulsar_nack.delayed.bucket._queue import DueQueue, in_order
from pulsar_nack.delayed.bucket._snapshot_builder import MergeSource, is_first
from pulsar_nack.delayed.format import Columns, Index, NamedSnapshot
from pulsar_nack.index import PositionSet
from tests.for_each import for_each
from tests.tiers import size

from .stage import Stage

MESSAGES = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 60)), max_size=40)
NO_INTEGERS: list[Any] = [bool, object, ">i8", "f2", "c16", "U1", "M8[ms]", "i4,i4"]
"""Arrays of masks, objects, dates and other types than integers."""
INDEXES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 9)), max_size=60)


@given(st.lists(st.tuples(st.integers(1, 3), MESSAGES), max_size=6), st.integers(0, 20))
async def test_many_are_added_as_one_by_one(calls: list[tuple[int, list[tuple[int, int]]]], now: int) -> None:
    """Messages added in bulk, in any order and again, are held, refused and taken out as if added singly."""
    one, many = Stage(now, least=4), Stage(now, least=4)
    async with one.run(), many.run():
        for ledger, messages in calls:
            unlike = list(dict(messages).items())
            due = [entry for entry, at in unlike if not one.add(ledger, entry, at)]
            numbers, times = [entry for entry, _ in unlike], [at for _, at in unlike]
            assert sorted(many.tracker.add_entries(ledger, numbers, times)) == sorted(due)
            assert many.count == one.count
        await one.idle()
        await many.idle()
        many.check()
        for stage in (one, many):
            stage.clock.set(100)
        assert sorted(await many.drain()) == sorted(await one.drain())


@pytest.mark.parametrize(
    "entries", [range(5), [0, 1, 2, 3, 4], (4, 3, 2, 1, 0), array("q", range(5)), memoryview(bytes(range(5)))]
)
async def test_kinds_of_many(entries: Any) -> None:
    """Ranges, lists, tuples, arrays and buffers are accepted, for entries and for times."""
    async with Stage().run() as stage:
        assert stage.tracker.add_messages(1, entries, 20)
        assert stage.tracker.add_entries(2, entries, entries) == [0]
        assert stage.count == 9
        stage.clock.set(20)
        assert len(await stage.drain()) == 9


async def test_many_with_one_time() -> None:
    """All of them are held, or all have to be dispatched, also those that were held before."""
    async with Stage(10, strict=False, tick=5).run() as stage:
        assert stage.tracker.add_messages(1, range(10), 16)
        assert not stage.tracker.add_messages(1, range(3), 15)
        assert stage.count == 7
        assert not stage.tracker.add_messages(2, range(3), -1)
        assert stage.tracker.add_messages(2, [], 16)
        assert not stage.tracker.add_messages(2, [], 15)
        assert stage.count == 7


async def test_many_are_sealed_at_the_size_of_a_bucket() -> None:
    """One call may fill several buckets; none is larger than one that was filled singly."""
    async with Stage(least=5, step=10_000).run() as stage:
        stage.tracker.add_messages(1, range(23), 1_000)
        await stage.idle()
        assert [bucket.size for bucket in stage.buckets] == [10, 10]
        assert stage.tracker.statistics().unsealed == 3
        stage.tracker.add_messages(2, range(2), 1_000)
        stage.tracker.add_messages(3, range(1), 1_000)
        await stage.idle()
        assert [bucket.size for bucket in stage.buckets] == [10, 10, 5]


async def test_the_timer_is_set_for_the_earliest_of_many() -> None:
    """Adding many sets the timer once, for the earliest."""
    async with Stage(strict=False).run() as stage:
        stage.add(9, 9, 50)
        stage.tracker.add_entries(1, [1, 2, 3], [40, 20, 30])
        assert stage.clock.alarms == 1
        stage.clock.set(20)
        assert stage.woken == [20]
        assert stage.get(9) == [Position(1, 2)]


@for_each(
    ("entries", "times", "message"),
    [
        ([1, -1], [5, 5], "entries"),
        ([1, 2**32], [5, 5], "entries"),
        ([1.5], [5], "entries"),
        ("12", [5, 5], "entries"),
        (7, [5], "entries"),
        (None, [5], "entries"),
        ([1, 2], [5], "deliver_at"),
        ([1, 2], [5, 2**63], "deliver_at"),
        ([1, 2], [5, None], "deliver_at"),
        ([1, 2], 5, "deliver_at"),
        *((np.zeros(2, dtype=kind), [5, 5], "entries") for kind in NO_INTEGERS),
        *(([1, 2], np.zeros(2, dtype=kind), "deliver_at") for kind in NO_INTEGERS),
    ],
)
async def test_many_that_are_refused(entries: Any, times: Any, message: str) -> None:
    """One bad value refuses all, with the name of the field; nothing changes."""
    async with Stage().run() as stage:
        with pytest.raises(InvalidArgumentError, match=message):
            stage.tracker.add_entries(1, entries, times)
        if message == "entries":
            with pytest.raises(InvalidArgumentError, match=message):
                stage.tracker.add_messages(1, entries, 5)
        with pytest.raises(InvalidArgumentError, match="ledger_id"):
            stage.tracker.add_entries(-1, [1], [5])
        assert stage.count == 0


@given(INDEXES, INDEXES)
def test_what_is_pending(first: list[Index], second: list[Index]) -> None:
    """Sets that are filled, joined and emptied in bulk equal sets that are filled one by one."""
    held, other, model = PositionSet(), PositionSet(), {index[1:] for index in first}
    held.add_all(first)
    other.add_all(second)
    assert set(held) == model
    assert len(held) == len(model)
    assert held.held_of(second) == [index for index in second if index[1:] in model]
    assert held.includes(other) == ({index[1:] for index in second} <= model)
    new = {index[1:] for index in second} - model
    assert held.take_over(other) == len(new)
    assert set(held) == model | new
    assert (len(other), other.bytes) == (0, 0)
    assert {Position(*each) for each in model} == set(held.take_out(first))
    assert set(held) == new - model
    held.take_out(second)
    assert (len(held), held.bytes, held.ledgers) == (0, 0, 0)


@given(INDEXES, INDEXES)
def test_bitmaps_are_joined(first: list[Index], second: list[Index]) -> None:
    """Portable bitmaps are joined without measuring; compressing later finds the sizes, a few ledgers at a time."""
    held, other, both = PositionSet(), PositionSet(), PositionSet()
    held.add_all(first)
    other.add_all(second)
    both.add_all([*first, *second])
    new = sum(held.join(ledger, bitmap) for ledger, bitmap in other.dump().items())
    assert new == len(both) - len({index[1:] for index in first})
    assert set(held) == set(both)
    assert len(list(held.compress(1))) == held.ledgers
    assert len(list(both.compress(100))) == (both.ledgers > 0)
    assert held.bytes == both.bytes


@pytest.mark.parametrize("ledger", [1, 2])
def test_bad_bitmaps_are_not_joined(ledger: int) -> None:
    """Invalid bitmaps change nothing, also if no entry of the ledger was held."""
    held = PositionSet()
    held.add(1, 5)
    with pytest.raises(ValueError, match="4 bytes that are not"):
        held.join(ledger, b"\x01\x02\x03\x04")
    assert list(held) == [(1, 5)]
    assert held.ledgers == 1


def test_entries_that_are_not_all_new() -> None:
    """Entries are added as a whole only if none is held and none comes twice."""
    held = PositionSet()
    assert held.add_new(1, array("I", [1, 2]))
    assert not held.add_new(1, array("I", [2, 3]))
    assert not held.add_new(2, array("I", [4, 4]))
    assert held.ledgers == 1
    assert list(held) == [(1, 1), (1, 2)]


def test_many_ledgers_are_taken_over_at_once() -> None:
    """Above some ledgers that both have, sizes are not measured; they are no smaller than they should be."""
    one, other, measured = PositionSet(), PositionSet(), PositionSet()
    for ledger in range(100):
        for entry in range(0, 50, 2):
            one.add(ledger, entry)
            other.add(ledger, entry + 1)
            measured.add(ledger, entry)
            measured.add(ledger, entry + 1)
    assert one.take_over(other) == 2_500
    assert set(one) == set(measured)
    assert measured.bytes <= one.bytes <= 3 * measured.bytes


@pytest.mark.parametrize("singly", [True, False])
def test_bitmaps_do_not_grow_while_they_are_emptied(singly: bool) -> None:
    """However scattered removed entries are, a ledger takes at most a bit an entry, which is counted."""
    held, ledgers = PositionSet(), size(20, fast=4)
    for ledger in range(ledgers):
        held.add_new(ledger, array("I", range(50_000)))
    scattered = [(0, number % ledgers, number // ledgers * 7_919 % 50_000) for number in range(ledgers * 25_000)]
    largest = 0
    for at in range(0, len(scattered), 200):
        part = scattered[at : at + 200]
        if singly:
            assert all(held.discard(ledger, entry) for _, ledger, entry in part)
        else:
            assert len(held.take_out(part)) == 200
        largest = max(largest, held.bytes)
    assert len(held) == ledgers * 25_000
    assert ledgers * 6_250 < largest < ledgers * (8_192 + 2_048 + 300)
    for ledger, entries in held._ledgers.items():
        found = entries.get_statistics()
        assert sum(found[f"n_bytes_{kind}_containers"] for kind in ("array", "run", "bitset")) < 10_300, ledger


@given(st.lists(INDEXES, max_size=5), INDEXES, st.integers(0, 45), st.integers(1, 30))
def test_many_are_taken_from_the_queue(runs: list[list[Index]], tail: list[Index], until: int, most: int) -> None:
    """Indexes taken in bulk are in order, all that is due and no more, and owners know the remaining number."""
    owners = [MutableBucket.of(BucketConfig()) for _ in range(len(runs) + 1)]
    queue = DueQueue(owners[0])
    for owner, run in zip(owners[1:], runs, strict=True):
        queue.add(Columns(sorted(run)), owner)
    for index in tail:
        queue.push(index)
    everything = sorted([*tail, *(index for run in runs for index in run)])
    found: list[Index] = []
    while taken := queue.take(until, most)[0]:
        assert len(taken) <= most
        found += [(index[0], index[1], index[2]) for index in taken]
    assert found == [index for index in everything if index[0] <= until]
    assert sum(owner.loaded for owner in owners) == len(everything) - len(found)
    queue.change_tail_owner(owners[0])
    assert list(in_order(queue.runs(owners))) == everything[len(found) :]


def test_runs_that_follow_each_other_are_one() -> None:
    """A long run of added indexes is cut, so that its memory is released bit by bit."""
    owner = MutableBucket.of(BucketConfig())
    queue = DueQueue(owner)
    indexes = [(at, 1, at) for at in range(20_000)]
    queue.push_many(Columns(indexes))
    assert len(queue.runs([owner])) == 3
    assert list(in_order(queue.runs([owner]))) == indexes
    full = queue.bytes
    while queue.first() != indexes[10_000]:
        queue.take(10**6, 10_000)
    assert queue.bytes < 0.7 * full


def test_few_at_a_time_are_kept_together() -> None:
    """Many small additions take no more memory than as many single ones, and come out in order."""
    owner = MutableBucket.of(BucketConfig())
    queue = DueQueue(owner)
    indexes = [(number * 7_919 % 10_007, 1, number) for number in range(10_000)]
    for at in range(0, len(indexes), 10):
        queue.push_many(Columns(sorted(indexes[at : at + 10])))
    assert owner.loaded == 10_000
    assert len(queue.runs([owner])) == 4
    assert queue.bytes < 24 * 10_000 + 4 * 400 + 2_048 * 170
    queue.change_tail_owner(MutableBucket.of(BucketConfig()))
    assert list(in_order(queue.runs([owner]))) == sorted(indexes)


def test_many_runs_that_lie_over_each_other() -> None:
    """Merging hundreds of runs takes time in proportion to their contents."""
    owner = MutableBucket.of(BucketConfig())
    queue = DueQueue(owner)
    runs = [[(at * 1_000 + number, 1, at) for at in range(300)] for number in range(400)]
    for run in reversed(runs):
        queue.push_many(Columns(run))
    merged = in_order(queue.runs([owner]))
    assert [next(merged)[0] for _ in range(1_000)] == [*range(400), *range(1_000, 1_400), *range(2_000, 2_200)]


def test_which_piece_comes_first() -> None:
    """A source's next piece comes first if it ends before everything that the others have or will have."""
    one, other = (
        MergeSource(ImmutableBucket(NamedSnapshot("k", 1, 1, 1), mins=[at], maxs=[50], counts=[2])) for at in (5, 10)
    )
    sources = [one, other]
    assert is_first(one, 9, sources)
    assert not is_first(one, 10, sources)
    other.feed(Columns([(12, 1, 1)]))
    assert is_first(one, 11, sources)
    assert not is_first(other, 1, sources)
    one.feed(None)
    assert not is_first(one, 1, sources)
