"""The acknowledged entries of one ledger."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.index import EntryRanges
from tests.for_each import for_each
from tests.tiers import examples, size

ENTRIES = st.one_of(
    st.integers(0, 24),
    st.integers(65_530, 65_542),
    st.integers(2**20 - 3, 2**20 + 3),
    st.integers(2**32 - 4, 2**32 + 4),
    st.integers(2**63 - 4, 2**63 - 1),
)
STEPS = ["add", "add_range", "add_many", "discard_range", "discard_below", "pop_run"]


def ranges_of(entries: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges of entries, found one by one."""
    found: list[tuple[int, int]] = []
    for entry in sorted(entries):
        if found and found[-1][1] == entry - 1:
            found[-1] = (found[-1][0], entry)
        else:
            found.append((entry, entry))
    return found


def apply(ranges: EntryRanges, model: set[int], step: str, entry: int, width: int) -> None:
    """Carry out one step on both, and compare the results."""
    before = len(model)
    last = min(entry + width, 2**63 - 1)
    if step == "add":
        model.add(entry)
        assert ranges.add(entry) == (len(model) > before)
    elif step == "add_range":
        model.update(range(entry, last + 1))
        assert ranges.add_range(entry, last) == len(model) - before
    elif step == "add_many":
        wanted = [*range(entry, last + 1, 2), entry]
        model.update(wanted)
        assert ranges.add_many(wanted) == len(model) - before
    elif step == "discard_range":
        model.difference_update(range(entry, last + 1))
        assert ranges.discard_range(entry, last) == before - len(model)
    elif step == "discard_below":
        model -= {each for each in model if each < entry}
        assert ranges.discard_below(entry) == before - len(model)
    else:
        end = entry
        while end in model:
            model.remove(end)
            end += 1
        assert ranges.next_absent(entry) == end
        assert ranges.pop_run(entry) == end
        assert ranges.next_absent(entry) == entry


@examples(300)
@given(st.lists(st.tuples(st.sampled_from(STEPS), ENTRIES, st.integers(0, 9)), max_size=40))
def test_behaves_as_a_set(steps: list[tuple[str, int, int]]) -> None:
    """Every step returns what a set of numbers would, and leaves the same entries, count, ends and ranges."""
    ranges, model = EntryRanges(), set[int]()
    for step, entry, width in steps:
        apply(ranges, model, step, entry, width)
        ranges._verify()
        assert list(ranges.ranges()) == ranges_of(model)
        assert (entry in ranges) == (entry in model)


@pytest.mark.parametrize("base", [0, 2**32 - 3000, 2**63 - 6000])
def test_many_random_changes(base: int) -> None:
    """Thousands of changes in arrays, bitmaps and runs, and across the change to wide numbers, keep all figures."""
    random = Random(7)
    ranges, model = EntryRanges(), set[int]()
    for number in range(4000):
        entry = base + random.randrange(5990)
        step = random.choices(STEPS, weights=[40, 10, 4, 8, 0.02, 4])[0]
        apply(ranges, model, step, entry, random.choice([0, 1, 7, 150]))
        if number % 100 == 0:
            ranges._verify()
            assert list(ranges.ranges()) == ranges_of(model)
    ranges._verify()


@given(st.lists(st.tuples(ENTRIES, st.integers(0, 9)), max_size=20))
def test_from_ranges(pairs: list[tuple[int, int]]) -> None:
    """Ranges in any order, which may overlap, become one set; its own ranges make the same set again."""
    pairs = [(first, min(first + width, 2**63 - 1)) for first, width in pairs]
    ranges = EntryRanges.from_ranges(pairs)
    ranges._verify()
    model = {entry for first, last in pairs for entry in range(first, last + 1)}
    assert list(ranges.ranges()) == ranges_of(model)
    assert EntryRanges.from_ranges(ranges.ranges()) == ranges


def test_copies_are_independent() -> None:
    """A copy has the same entries, and changes of one do not affect the other."""
    ranges = EntryRanges.from_ranges([(3, 5), (2**40, 2**40 + 1)])
    copy = ranges.copy()
    assert copy == ranges
    copy.add(9)
    assert copy != ranges
    assert list(ranges.ranges()) == [(3, 5), (2**40, 2**40 + 1)]
    copy._verify()


def test_merge_adds_all_of_another_set() -> None:
    """Small and large entries merge either way, and the other set stays as it is."""
    large = 2**40
    for mine, others in (
        ({1, 2, 9}, {2, 3}),
        ({1, large}, {3, large + 1}),
        ({1}, {large}),
        ({large}, {1}),
        (set(), {4}),
    ):
        merged, other = EntryRanges(), EntryRanges()
        merged.add_many(mine)
        other.add_many(others)
        merged.merge(other)
        merged._verify()
        assert {entry for entry in (*mine, *others, 0, 5) if entry in merged} == mine | others
        assert len(other) == len(others)


def test_equality_looks_at_entries_only() -> None:
    """Two sets are equal when their entries are, however these were added; nothing else equals one."""
    narrow, wide = EntryRanges.from_ranges([(1, 2)]), EntryRanges.from_ranges([(1, 2), (2**33, 2**33)])
    assert narrow != wide
    wide.discard_range(2**33, 2**33)
    assert narrow == wide
    assert narrow != {1, 2}
    assert EntryRanges.from_ranges([(1, 3)]) != EntryRanges.from_ranges([(2, 4)])


@for_each("entry", [-1, 2**63, 2**64, -(2**70)])
def test_refuses_what_is_no_entry(entry: int) -> None:
    """An invalid entry is refused before anything changes, and is never in the set."""
    ranges = EntryRanges.from_ranges([(4, 6)])
    with pytest.raises(InvalidArgumentError, match="entries"):
        ranges.add(entry)
    with pytest.raises(InvalidArgumentError, match="entries"):
        ranges.add_many([1, entry])
    with pytest.raises(InvalidArgumentError, match="entries"):
        ranges.add_range(min(entry, 7), max(entry, 7))
    with pytest.raises(InvalidArgumentError, match="entries"):
        ranges.discard_range(min(entry, 5), max(entry, 5))
    assert entry not in ranges
    assert list(ranges.ranges()) == [(4, 6)]


def test_refuses_ranges_that_end_before_they_begin() -> None:
    """A range whose end lies before its beginning is refused."""
    with pytest.raises(InvalidArgumentError, match="first <= last"):
        EntryRanges.from_ranges([(5, 4)])


def test_k9_empty() -> None:
    """K9: a set that is or became empty has no first and last entry and no range, and raises nothing."""
    emptied = EntryRanges.from_ranges([(3, 5), (70_000, 80_000)])
    assert emptied.discard_range(0, 2**63 - 1) == 10_004
    for ranges in (EntryRanges(), emptied):
        assert (ranges.first, ranges.last, list(ranges.ranges())) == (None, None, [])
        assert (len(ranges), ranges.range_count) == (0, 0)
        assert (ranges.discard_range(0, 2**63 - 1), ranges.discard_below(7), ranges.pop_run(3)) == (0, 0, 3)


def test_cost_grows_with_holes() -> None:
    """K33: 30 million entries with few holes, and one far away, take hardly any memory; every second one a bit."""
    huge = EntryRanges.from_ranges([(0, 9_999_999), (10_000_001, 20_000_000), (20_000_002, 30_000_001)])
    assert (len(huge), huge.range_count) == (30_000_000, 3)
    assert huge.memory_bytes < 30_000
    far = EntryRanges()
    far.add(49_999)
    assert far.memory_bytes < 500
    second = EntryRanges()
    for entry in range(0, 50_000, 2):
        second.add(entry)
    second._tidy()
    assert second.memory_bytes < 8_192 + 500
    assert second.range_count == 25_000


def test_shrinks_as_holes_are_filled() -> None:
    """Filling the holes of every second entry returns its memory, and so does removing most entries."""
    ranges = EntryRanges()
    for start in (0, 1):
        for entry in range(start, 50_000, 2):
            ranges.add(entry)
    ranges._verify()
    assert ranges.range_count == 1
    assert ranges.memory_bytes < 20_000
    ranges.add_many(range(100_000, 200_000, 2))
    ranges.discard_below(199_000)
    ranges._verify()
    assert ranges.memory_bytes < 10_000


def test_in_order_stays_tiny() -> None:
    """Entries added one after another are runs, and measured as such."""
    ranges = EntryRanges()
    for entry in range(1, 30_000):
        ranges.add(entry)
    assert ranges.range_count == 1
    assert ranges.memory_bytes < 330 + 32 + 6 + 4 * 4096


def test_next_absent_over_long_runs() -> None:
    """The end of a run of any length is found, beside other runs."""
    for length in (1, 2, 3, 4, 5, 63, 64, 65, 65_535, 65_536, 65_537, 3_000_000):
        ranges = EntryRanges.from_ranges([(2, 1 + length), (9_000_000, 9_000_001)])
        for start in (2, 1 + length, 2 + length // 2):
            expected = 2 + length if start <= 1 + length else start
            assert ranges.next_absent(start) == expected
        assert ranges.next_absent(0) == 0
        ranges.discard_range(9_000_001, 9_000_001)
        ranges.add_range(9_000_000, 8_999_999 + length)


@for_each("boundary", [65_536, 2**20, 2**32, 2**33, 2**48])
def test_runs_end_at_a_boundary(boundary: int) -> None:
    """A run that ends at a multiple of 65 536 does not continue, though entries follow far away."""
    for length in range(1, 9):
        ranges = EntryRanges.from_ranges([(boundary - length, boundary - 1), (2**63 - 4, 2**63 - 4)])
        assert [ranges.next_absent(boundary - before) for before in range(1, length + 1)] == [boundary] * length
        ranges = EntryRanges.from_ranges([(1, 1), (2**40, 2**40), (2**50, 2**50 + length)])
        assert ranges.pop_run(2**50) == 2**50 + length + 1


def test_k10_overlapping_intervals() -> None:
    """K10: intervals of width 7 every 5 entries, and removals every 4, equal a reference set at each step."""
    ranges, reference = EntryRanges(), set[int]()
    for number in range(size(10_000, fast=4_000)):
        first = number * 5
        reference.update(range(first, first + 7))
        ranges.add_range(first, first + 6)
        if number % 4 == 0:
            assert ranges.discard_range(first, first + 1) == 2
            reference -= {first, first + 1}
        assert len(ranges) == len(reference)
        if number % 1_000 == 0:
            assert list(ranges.ranges()) == ranges_of(reference)
    assert list(ranges.ranges()) == ranges_of(reference)
