"""Ranges of positions over several ledgers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.index import PositionRanges
from tests.for_each import for_each
from tests.tiers import size

Pair = tuple[int, int]
POSITIONS = st.tuples(st.integers(0, 3), st.integers(-1, 12))


class Reference:
    """A set of positions, one by one."""

    def __init__(self) -> None:
        self.positions: set[Pair] = set()

    def add(self, lower: Pair, upper: Pair) -> None:
        """Add an interval by the rules that Pulsar has for intervals over several ledgers."""
        if lower[0] == upper[0]:
            self.positions.update((upper[0], entry) for entry in range(lower[1] + 1, upper[1] + 1))
            return
        highest = max((entry for ledger, entry in self.positions if ledger == lower[0]), default=-1)
        self.positions.update((lower[0], entry) for entry in range(lower[1] + 1, highest + 1))
        self.positions.update((upper[0], entry) for entry in range(upper[1] + 1))

    def discard(self, lower: Pair, upper: Pair) -> None:
        """Take everything out of an interval."""
        self.positions = {each for each in self.positions if not lower < each <= upper}

    def intervals(self) -> list[tuple[Pair, Pair]]:
        """Return the intervals, found one by one."""
        found: list[tuple[Pair, Pair]] = []
        for ledger, entry in sorted(self.positions):
            if found and found[-1][1] == (ledger, entry - 1):
                found[-1] = (found[-1][0], (ledger, entry))
            else:
                found.append(((ledger, entry - 1), (ledger, entry)))
        return found


def assert_equal(ranges: PositionRanges, reference: Reference) -> None:
    """Compare all that both have."""
    intervals = reference.intervals()
    assert list(ranges) == intervals
    assert (len(ranges), bool(ranges)) == (len(reference.positions), bool(intervals))
    assert ranges.first == (intervals[0] if intervals else None)
    assert ranges.last == (intervals[-1] if intervals else None)
    assert ranges.span == ((intervals[0][0], intervals[-1][1]) if intervals else None)


def test_k8_intervals_over_ledgers() -> None:
    """K8: an interval that ends in a later ledger than it begins in covers that ledger from its beginning."""
    ranges = PositionRanges([((0, 98), (0, 99)), ((0, 100), (1, 5)), ((1, 10), (1, 15)), ((1, 20), (2, 10))])
    assert list(ranges) == [
        ((0, 98), (0, 99)),
        ((1, -1), (1, 5)),
        ((1, 10), (1, 15)),
        ((2, -1), (2, 10)),
    ]


def test_k9_empty() -> None:
    """K9: an empty set, and one whose every ledger has become or was empty, has no ends, no span and is empty."""
    emptied = PositionRanges([((1, -1), (1, 5)), ((2, 3), (2, 5))])
    assert emptied.discard_range((0, -1), (9, 9)) == 8
    for ranges in (PositionRanges(), emptied):
        assert (ranges.first, ranges.last, ranges.span) == (None, None, None)
        assert not ranges
        assert (len(ranges), list(ranges)) == (0, [])


@pytest.mark.parametrize("modulo", [3, 6, 8])
def test_k10_single_acks(modulo: int) -> None:
    """K10: 10 000 single acks by i%3, i%6 and i%8 are those of a reference set."""
    ranges, reference = PositionRanges(), Reference()
    for entry in range(10_000):
        if entry % modulo == 0:
            continue
        assert ranges.add(entry % 2, entry)
        reference.positions.add((entry % 2, entry))
        if entry % size(500, fast=2_000) == 1:
            assert_equal(ranges, reference)
        assert len(ranges) == len(reference.positions)
    assert_equal(ranges, reference)


def test_k10_overlapping_intervals() -> None:
    """K10: intervals of width 7 every 5 entries, and removals every 4, are those of a reference set at each step."""
    ranges, reference = PositionRanges(), Reference()
    for number in range(size(10_000, fast=4_000)):
        lower, upper = (number % 3, number * 5 - 1), (number % 3, number * 5 + 6)
        ranges.add_range(lower, upper)
        reference.add(lower, upper)
        if number % 4 == 0:
            assert ranges.discard_range(lower, (lower[0], lower[1] + 2)) == 2
            reference.positions -= {(lower[0], lower[1] + 1), (lower[0], lower[1] + 2)}
        assert len(ranges) == len(reference.positions)
        if number % 1_000 == 0:
            assert_equal(ranges, reference)
    assert_equal(ranges, reference)


@given(st.lists(st.tuples(st.sampled_from(["add", "range", "discard"]), POSITIONS, POSITIONS), max_size=20))
def test_k10_any_steps(steps: list[tuple[str, Pair, Pair]]) -> None:
    """K10: whatever intervals are added and taken out, also over ledgers, the set is that of the reference."""
    ranges, reference = PositionRanges(), Reference()
    for step, one, other in steps:
        lower, upper = min(one, other), max(one, other)
        if step == "add" and upper[1] >= 0:
            assert ranges.add(*upper) == (upper not in reference.positions)
            reference.positions.add(upper)
        elif step == "range":
            ranges.add_range(lower, upper)
            reference.add(lower, upper)
        elif step == "discard":
            before = len(reference.positions)
            reference.discard(lower, upper)
            assert ranges.discard_range(lower, upper) == before - len(reference.positions)
        assert_equal(ranges, reference)
        assert (upper in ranges) == (upper in reference.positions)


def test_random_wide_positions() -> None:
    """Entries and ledgers near 2**63 are as good as small ones."""
    random = Random(3)
    ranges, reference = PositionRanges(), Reference()
    for _ in range(300):
        ledger, entry = 2**63 - 1 - random.randrange(3), 2**63 - 1 - random.randrange(50)
        width = random.randrange(4)
        ranges.add_range((ledger, entry - width), (ledger, entry))
        reference.add((ledger, entry - width), (ledger, entry))
    assert_equal(ranges, reference)


@for_each(
    ("lower", "upper"),
    [
        ((1, 5), (1, 4)),
        ((2, 0), (1, 9)),
        ((-1, 0), (1, 1)),
        ((1, -2), (1, 1)),
        ((1, 1), (1, 2**63)),
        ((0, 0), (2**63, 1)),
    ],
)
def test_refuses_what_is_no_range(lower: Pair, upper: Pair) -> None:
    """A range that ends before it begins, or a position out of range, is refused and changes nothing."""
    ranges = PositionRanges([((1, 2), (1, 3))])
    with pytest.raises(InvalidArgumentError, match="range"):
        ranges.add_range(lower, upper)
    with pytest.raises(InvalidArgumentError, match="range"):
        ranges.discard_range(lower, upper)
    with pytest.raises(InvalidArgumentError, match="range"):
        ranges.add(7, -1)
    assert list(ranges) == [((1, 2), (1, 3))]
    ranges.clear()
    assert not ranges
