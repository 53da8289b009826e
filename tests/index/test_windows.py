"""Windows: ranges of numbers that belong to a bucket and cost nothing per id."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.index._windows import Window, Windows

ROWS = st.lists(st.tuples(st.integers(-5, 20), st.integers(0, 3), st.integers(0, 3)), max_size=20)


def laid_out(rows: list[tuple[int, int, int]]) -> list[Window]:
    """Return windows of these starts whose ranges follow each other with gaps."""
    windows, low = [], 0
    for start, gap, length in rows:
        low += gap + 1
        windows.append(Window(start, low, low + length))
        low += length
    return windows


@given(ROWS, st.integers(-6, 21))
def test_windows_are_kept_by_start(rows: list[tuple[int, int, int]], now: int) -> None:
    """Whatever the order in which they are added, they are found and taken by start; covered is their ranges."""
    wanted = laid_out(rows)
    windows = Windows()
    for window in wanted:
        windows.add(window)
    assert windows.first_start() == min((window.start for window in wanted), default=None)
    for start in range(-6, 22):
        assert windows.of(start) == [window for window in wanted if window.start == start]
    due = sorted((window for window in wanted if window.start <= now), key=lambda window: window.start)
    assert windows.take_until(now) == due
    left = [window for window in wanted if window.start > now]
    assert sorted(windows) == sorted(left)
    assert set(windows.covered) == {number for window in left for number in range(window.low, window.high + 1)}
    assert windows.top == max((window.high for window in left), default=-1)


@given(ROWS.filter(bool), st.data())
def test_a_window_is_found_by_any_number_in_it(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Taking the window over a number takes that one only."""
    wanted = laid_out(rows)
    windows = Windows()
    for window in wanted:
        windows.add(window)
    chosen = data.draw(st.sampled_from(wanted))
    assert windows.take_over(data.draw(st.integers(chosen.low, chosen.high))) == chosen
    assert len(windows) == len(wanted) - 1
    assert chosen.low not in windows.covered


def test_a_window_is_extended_and_taken() -> None:
    """The last window of a start can reach further up; taking a start leaves the others."""
    windows = Windows()
    windows.add(Window(10, 0, 4))
    windows.add(Window(20, 100, 100))
    windows.extend(10, 50)
    assert windows.last_of(10) == Window(10, 0, 50)
    assert windows.last_of(15) is None
    assert 50 in windows.covered
    assert windows.take(10) == [Window(10, 0, 50)]
    assert list(windows) == [Window(20, 100, 100)]
    assert windows.top == 100


def test_a_number_outside_of_all_windows_is_an_error() -> None:
    """Looking for a window that is not there is the caller's mistake."""
    with pytest.raises(KeyError):
        Windows().take_over(3)


if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array


class CountedArray(Numbers):
    """An array that counts the items that were read one by one, and those that a deletion moved."""

    read = 0
    moved = 0

    def __getitem__(self, place: Any) -> Any:
        self.read += isinstance(place, int)
        return super().__getitem__(place)

    def __delitem__(self, place: Any) -> None:
        self.moved += len(self) - (place.stop if isinstance(place, slice) else place + 1)
        super().__delitem__(place)


def many(count: int) -> tuple[Windows, CountedArray, CountedArray]:
    """Return windows of one number each, in order, and their starts and lows, which count what is done to them."""
    windows = Windows()
    for place in range(count):
        windows.add(Window(place, 2 * place, 2 * place))
    starts, lows = CountedArray("q", windows._starts), CountedArray("I", windows._lows)
    windows._starts, windows._lows = starts, lows
    return windows, starts, lows


def test_taking_windows_in_order_does_not_move_the_others_each_time() -> None:
    """A hundred thousand buckets that come due one after the other cost a few moves each, not half of all."""
    windows, starts, _ = many(2_000)
    for place in range(2_000):
        assert windows.first_start() == place
        assert windows.take(place) == [Window(place, 2 * place, 2 * place)]
    assert (len(windows), windows.top) == (0, -1)
    assert starts.moved < 3 * 2_000


def test_a_window_is_found_without_looking_at_all_where_they_are_in_order() -> None:
    """A number nacked anew among many windows of one delay costs a few steps."""
    windows, _, lows = many(2_000)
    windows.take_until(99)
    for place in (100, 1_999, 777):
        lows.read = 0
        assert windows.take_over(2 * place) == Window(place, 2 * place, 2 * place)
        assert lows.read < 50


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "over", "until"]), st.integers(0, 8)), max_size=60))
def test_windows_come_and_go_in_any_order(steps: list[tuple[str, int]]) -> None:
    """Whatever was taken before, the rest is as a plain list has it."""
    windows, wanted = Windows(), list[Window]()
    for number, (step, start) in enumerate(steps):
        if step == "add":
            wanted.append(Window(start, 3 * number, 3 * number + 1))
            windows.add(wanted[-1])
        elif step == "over" and wanted:
            chosen = wanted.pop(start % len(wanted))
            assert windows.take_over(chosen.high) == chosen
        else:
            taken = windows.take(start) if step == "take" else windows.take_until(start)
            left = [window for window in wanted if (window.start != start if step == "take" else window.start > start)]
            assert sorted(taken) == sorted(set(wanted) - set(left))
            wanted = left
        assert sorted(windows) == sorted(wanted)
        assert windows.first_start() == min((window.start for window in wanted), default=None)
        last = [window for window in wanted if window.start == start][-1:]
        assert windows.last_of(start) == (last[0] if last else None)
