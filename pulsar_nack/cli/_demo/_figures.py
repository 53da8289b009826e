"""The figures of a demo run, worked out from journals. Pure; journals have seconds, figures milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ._journal import Failure, Journal

CLASSES: Final = ((0.1, 0.3), (0.3, 1.0), (1.0, 2.0), (2.0, 3.0))
"""Ranges of delays in seconds; the upper end belongs to the next range, except for the last."""
MARGIN: Final = 0.2
"""Seconds before the last nack; a message that was due before then counts as due while nacks came."""


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one range of delays, in ms. A message's error is the difference of asked and actual delay.

    :param messages: how many were nacked with such a delay
    :param due_meanwhile: how many of them were due while further nacks kept coming
    :param back_meanwhile: how many of those came back while further nacks kept coming
    """

    asked_from_ms: int
    asked_to_ms: int
    messages: int
    actual_min_ms: float | None
    actual_median_ms: float | None
    actual_max_ms: float | None
    error_p50_ms: float | None
    error_p99_ms: float | None
    error_max_ms: float | None
    due_meanwhile: int
    back_meanwhile: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one consumer.

    :param missing: messages that never came back, or never arrived at all
    :param duplicates: messages that were redelivered more often than they were nacked
    """

    name: str
    rows: tuple[Row, ...]
    total: Row
    missing: int
    duplicates: int

    @property
    def is_good(self) -> bool:
        """Return whether every message came back exactly once."""
        return self.missing == 0 and self.duplicates == 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return asdict(self) | {"ok": self.is_good}


def figures_of(journal: Journal) -> Figures:
    """Return the figures of one consumer."""
    failures = list(journal.failures.values())
    last_nack_at = max((failure.nacked_at for failure in failures), default=0.0)
    return Figures(
        name=journal.name,
        rows=tuple(_row(group, last_nack_at) for group in _grouped(failures)),
        total=_row(failures, last_nack_at),
        missing=journal.expected - journal.back,
        duplicates=sum(failure.deliveries > 2 for failure in failures),
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _grouped(failures: Sequence[Failure]) -> list[list[Failure]]:
    groups: list[list[Failure]] = [[] for _ in CLASSES]
    for failure in failures:
        index = sum(failure.asked >= start for start, _ in CLASSES[1:])
        groups[index].append(failure)
    return [group for group in groups if group]


def _row(failures: Sequence[Failure], last_nack_at: float) -> Row:
    asked = [failure.asked for failure in failures]
    actual = [failure.actual for failure in failures if failure.actual is not None]
    errors = [abs(failure.actual - failure.asked) for failure in failures if failure.actual is not None]
    due = [failure for failure in failures if failure.due_at <= last_nack_at - MARGIN]
    return Row(
        asked_from_ms=round(min(asked, default=0) * 1000),
        asked_to_ms=round(max(asked, default=0) * 1000),
        messages=len(failures),
        actual_min_ms=_ms(min(actual, default=None)),
        actual_median_ms=_ms(percentile(actual, 0.5)),
        actual_max_ms=_ms(max(actual, default=None)),
        error_p50_ms=_ms(percentile(errors, 0.5)),
        error_p99_ms=_ms(percentile(errors, 0.99)),
        error_max_ms=_ms(max(errors, default=None)),
        due_meanwhile=len(due),
        back_meanwhile=sum(failure.back_at is not None and failure.back_at <= last_nack_at for failure in due),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
