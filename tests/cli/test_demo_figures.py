"""The demo's arithmetic: delays, journals, percentiles, rows."""

from __future__ import annotations

import pytest

from pulsar_nack.cli._demo_figures import LONGEST, SHORTEST, Journal, delays, figures_of, percentile
from pulsar_nack.cli._demo_report import comparison, milliseconds, span


def journal_of(*failures: tuple[float, float, float | None], expected: int | None = None) -> Journal:
    """Return a journal of (asked, nacked at, back at)."""
    journal = Journal("ours", len(failures) if expected is None else expected)
    for number, (asked, nacked_at, back_at) in enumerate(failures):
        journal.failed(number, asked, nacked_at)
        if back_at is not None:
            journal.came_back(number, back_at)
    return journal


def test_table_compares_consumers() -> None:
    """Each consumer has a column; a range of delays that only one of them had is empty in the other's."""
    table = comparison(
        [figures_of(journal_of((1.0, 0.0, 3.5))), figures_of(journal_of((0.2, 0.0, 0.201), (2.5, 0, 2.6)))]
    )
    cells = {
        str(label).strip(): (str(one), str(other))
        for label, one, other in zip(*(column.cells for column in table.columns), strict=True)
    }
    assert cells["asked (s)"] == ("1.00", "0.20 - 2.50")
    assert cells["messages"] == ("1", "2")
    assert cells["error p50"] == ("2,500", "1.0")
    assert cells["error max"] == ("2,500", "100")
    assert cells["1 to 2 s"] == ("2,500", "-")
    assert cells["2 to 3 s"] == ("-", "100")
    assert cells["missing"] == ("0", "0")
    assert "0.3 to 1 s" not in cells


def test_table_of_nothing() -> None:
    """Before anything came back there are dashes, not errors."""
    table = comparison([figures_of(journal_of((1.0, 0.0, None)))])
    assert "-" in list(table.columns[1].cells)


def test_short_times_have_tenths() -> None:
    """Times below 10 ms have tenths, others are whole; a range of one value is that value."""
    assert [milliseconds(ms) for ms in (None, 0.25, 9.94, 10, 1234.5)] == ["-", "0.2", "9.9", "10", "1,234"]
    assert (span(100, 2_920), span(1_000, 1_000), span(1_000, None)) == ("0.10 - 2.92", "1.00", "1.00")


def test_delays_are_seeded_and_in_range() -> None:
    """The same seed gives the same whole milliseconds from 100 ms to 3 s, in every class; another seed others."""
    first = delays(300, 1)
    assert first == delays(300, 1) != delays(300, 2)
    assert all(SHORTEST <= delay <= LONGEST and delay == round(delay, 3) for delay in first)
    assert min(first) < 0.3 < 1 < 2 < max(first)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7.0], 0.99, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
    ],
)
def test_percentile_is_a_value_of_the_list(values: list[float], share: float, expected: float | None) -> None:
    """A percentile is the smallest value that this share of them does not exceed."""
    assert percentile(values, share) == expected


def test_errors_count_either_way() -> None:
    """Early and late count alike; asked and actual delays are unchanged."""
    total = figures_of(journal_of((1.0, 0.0, 0.9), (1.0, 0.0, 1.3))).total
    assert (total.error_p50_ms, total.error_max_ms) == (100.0, 300.0)
    assert (total.actual_min_ms, total.actual_max_ms) == (900.0, 1300.0)
    assert (total.asked_from_ms, total.asked_to_ms) == (1000, 1000)


def test_rows_by_asked_delay() -> None:
    """Each class of delays with messages in it has a row; a class begins at its lower end."""
    failures = ((asked, 0, 4) for asked in (0.05, 0.1, 0.299, 0.3, 0.999, 1.0, 1.999, 2.0, 3.0))
    rows = figures_of(journal_of(*failures)).rows
    assert {low: (row.asked_from_ms, row.asked_to_ms, row.messages) for low, row in rows.items()} == {
        0.1: (50, 299, 3),
        0.3: (300, 999, 2),
        1.0: (1000, 1999, 2),
        2.0: (2000, 3000, 2),
    }


def test_back_while_nacks_came() -> None:
    """Due counts up to 0.2 s before the last nack; back counts up to the last nack."""
    figures = figures_of(
        journal_of(
            (1.0, 0.0, 1.0),  # due and back
            (1.0, 1.0, 9.0),  # due, back after the last nack
            (1.0, 1.1, None),  # due, never back
            (1.0, 4.1, 5.0),  # due 0.1 s after the margin began
            (1.0, 5.0, 6.0),  # the last nack
        )
    )
    assert (figures.total.due_meanwhile, figures.total.back_meanwhile) == (3, 1)
    assert (figures.missing, figures.duplicates, figures.is_good) == (1, 0, False)


def test_what_never_arrived_is_missing() -> None:
    """Messages that were never delivered count as missing."""
    figures = figures_of(journal_of((1.0, 0.0, 1.0), expected=3))
    assert figures.missing == 2


def test_duplicates() -> None:
    """A message delivered three times for one nack counts once, and its first redelivery is measured."""
    journal = journal_of((1.0, 0.0, 1.0))
    journal.came_back(0, 5.0)
    journal.came_back(0, 6.0)
    figures = figures_of(journal)
    assert (figures.missing, figures.duplicates, figures.is_good) == (0, 1, False)
    assert figures.total.actual_max_ms == 1000.0
    assert journal.all_back.is_set()
