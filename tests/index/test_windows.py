"""Windows: ranges of numbers that belong to a bucket and cost nothing per id."""

from __future__ import annotations

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
