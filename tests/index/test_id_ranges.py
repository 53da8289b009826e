"""Id ranges: ranges of numbers that belong to a bucket and cost nothing per id."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.index._id_ranges import IdRange, IdRanges

ROWS = st.lists(st.tuples(st.integers(-5, 20), st.integers(0, 3), st.integers(0, 3)), max_size=20)


def laid_out(rows: list[tuple[int, int, int]]) -> list[IdRange]:
    """Return id ranges with these starts that follow each other with gaps."""
    ranges, low = [], 0
    for start, gap, length in rows:
        low += gap + 1
        ranges.append(IdRange(start, low, low + length))
        low += length
    return ranges


@given(ROWS, st.integers(-6, 21))
def test_id_ranges_are_kept_by_start(rows: list[tuple[int, int, int]], now: int) -> None:
    """Ranges added in any order are found and taken by start; ``covered`` is their union."""
    wanted = laid_out(rows)
    ranges = IdRanges()
    for each in wanted:
        ranges.add(each)
    assert ranges.first_start() == min((each.start for each in wanted), default=None)
    for start in range(-6, 22):
        assert ranges.of(start) == [each for each in wanted if each.start == start]
    due = sorted((each for each in wanted if each.start <= now), key=lambda each: each.start)
    assert ranges.take_until(now) == due
    left = [each for each in wanted if each.start > now]
    assert sorted(ranges) == sorted(left)
    assert set(ranges.covered) == {number for each in left for number in range(each.low, each.high + 1)}


@given(ROWS.filter(bool), st.data())
def test_a_range_is_found_by_any_number_in_it(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Taking the range around a number takes only that range."""
    wanted = laid_out(rows)
    ranges = IdRanges()
    for each in wanted:
        ranges.add(each)
    chosen = data.draw(st.sampled_from(wanted))
    assert ranges.take_around(data.draw(st.integers(chosen.low, chosen.high))) == chosen
    assert len(ranges) == len(wanted) - 1
    assert chosen.low not in ranges.covered


def test_a_range_is_extended_and_taken() -> None:
    """The last range of a start can be extended upwards; taking a start leaves the other ranges."""
    ranges = IdRanges()
    ranges.add(IdRange(10, 0, 4))
    ranges.add(IdRange(20, 100, 100))
    ranges.extend(10, 50)
    assert ranges.last_of(10) == IdRange(10, 0, 50)
    assert ranges.last_of(15) is None
    assert 50 in ranges.covered
    assert ranges.take(10) == [IdRange(10, 0, 50)]
    assert list(ranges) == [IdRange(20, 100, 100)]
    assert list(ranges.covered) == [100]


def test_a_number_outside_of_all_id_ranges_is_an_error() -> None:
    """Taking the range around a number that is in no range raises."""
    with pytest.raises(KeyError):
        IdRanges().take_around(3)


if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array


class CountedArray(Numbers):
    """An array that counts the items that are read singly, and those that a deletion moves."""

    read = 0
    moved = 0

    def __getitem__(self, place: Any) -> Any:
        self.read += isinstance(place, int)
        return super().__getitem__(place)

    def __delitem__(self, place: Any) -> None:
        self.moved += len(self) - (place.stop if isinstance(place, slice) else place + 1)
        super().__delitem__(place)


def many(count: int) -> tuple[IdRanges, CountedArray, CountedArray]:
    """Return ranges of one number each, in order, and the arrays of their starts and lows, which count accesses."""
    ranges = IdRanges()
    for place in range(count):
        ranges.add(IdRange(place, 2 * place, 2 * place))
    starts, lows = CountedArray("q", ranges._starts), CountedArray("I", ranges._lows)
    ranges._starts, ranges._lows = starts, lows
    return ranges, starts, lows


def test_taking_id_ranges_in_order_does_not_move_the_others_each_time() -> None:
    """Buckets that are due one after another cost a few moves each, and not a move of half of all rows."""
    ranges, starts, _ = many(2_000)
    for place in range(2_000):
        assert ranges.first_start() == place
        assert ranges.take(place) == [IdRange(place, 2 * place, 2 * place)]
    assert (len(ranges), len(ranges.covered)) == (0, 0)
    assert starts.moved < 3 * 2_000


def test_a_range_is_found_without_looking_at_all_where_they_are_in_order() -> None:
    """Finding the range of a number that is nacked again costs a few steps among many ranges of one delay."""
    ranges, _, lows = many(2_000)
    ranges.take_until(99)
    for place in (100, 1_999, 777):
        lows.read = 0
        assert ranges.take_around(2 * place) == IdRange(place, 2 * place, 2 * place)
        assert lows.read < 50


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "over", "until"]), st.integers(0, 8)), max_size=60))
def test_id_ranges_come_and_go_in_any_order(steps: list[tuple[str, int]]) -> None:
    """After any steps the ranges equal those of a plain list."""
    ranges, wanted = IdRanges(), list[IdRange]()
    for number, (step, start) in enumerate(steps):
        if step == "add":
            wanted.append(IdRange(start, 3 * number, 3 * number + 1))
            ranges.add(wanted[-1])
        elif step == "over" and wanted:
            chosen = wanted.pop(start % len(wanted))
            assert ranges.take_around(chosen.high) == chosen
        else:
            taken = ranges.take(start) if step == "take" else ranges.take_until(start)
            left = [each for each in wanted if (each.start != start if step == "take" else each.start > start)]
            assert sorted(taken) == sorted(set(wanted) - set(left))
            wanted = left
        assert sorted(ranges) == sorted(wanted)
        assert ranges.first_start() == min((each.start for each in wanted), default=None)
        last = [each for each in wanted if each.start == start][-1:]
        assert ranges.last_of(start) == (last[0] if last else None)
