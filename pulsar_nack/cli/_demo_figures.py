"""What happened to the messages of a demo, in a journal for each consumer, and the figures worked out from it. Pure.

Journals have seconds of the event loop's clock, figures milliseconds.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

SHORTEST: Final = 0.1
LONGEST: Final = 3.0
CLASSES: Final = ((0.1, 0.3), (0.3, 1.0), (1.0, 2.0), (2.0, 3.0))
"""Ranges of delays in seconds; the upper end belongs to the next range, except for the last."""
MARGIN: Final = 0.2
"""Seconds before the last nack; a message that was due before then counts as due while nacks came."""


def delays(messages: int, seed: int) -> list[float]:
    """Return the delay of each message's nack in seconds: whole ms, evenly spread on a logarithmic scale."""
    # not for secrets: the same seed must give the same demo
    numbers = random.Random(seed)  # noqa: S311
    low, high = math.log(SHORTEST), math.log(LONGEST)
    return [round(math.exp(numbers.uniform(low, high)), 3) for _ in range(messages)]


@dataclass(slots=True)
class Failure:
    """A message that was nacked.

    :param asked: the delay of the nack
    :param deliveries: how often the message was delivered in all
    """

    asked: float
    nacked_at: float
    back_at: float | None = None
    deliveries: int = 1

    @property
    def actual(self) -> float | None:
        """Return the delay after which the message came back, None if it did not."""
        return None if self.back_at is None else self.back_at - self.nacked_at

    @property
    def due_at(self) -> float:
        """Return when the message should come back."""
        return self.nacked_at + self.asked


class Journal:
    """The failures of one consumer.

    :param name: the consumer's name for people
    :param expected: how many messages the consumer should get
    """

    def __init__(self, name: str, expected: int) -> None:
        self.name = name
        self.expected = expected
        self.failures: dict[int, Failure] = {}
        self.back = 0
        self.all_back = asyncio.Event()

    def knows(self, number: int) -> bool:
        """Return whether a message was delivered before."""
        return number in self.failures

    @property
    def waiting(self) -> int:
        """Return how many messages failed and are not back yet."""
        return len(self.failures) - self.back

    def failed(self, number: int, asked: float, now: float) -> None:
        """Note that a message was delivered for the first time and is nacked."""
        self.failures[number] = Failure(asked, now)

    def came_back(self, number: int, now: float) -> None:
        """Note that a message was redelivered."""
        failure = self.failures[number]
        failure.deliveries += 1
        if failure.back_at is None:
            failure.back_at = now
            self.back += 1
        if self.back == self.expected:
            self.all_back.set()


# --- figures --------------------------------------------------------------------------------------------------------


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

    :param rows: by the lower end of the range of delays; without ranges that have no messages
    :param missing: messages that never came back, or never arrived at all
    :param duplicates: messages that were redelivered more often than they were nacked
    """

    name: str
    rows: dict[float, Row]
    total: Row
    missing: int
    duplicates: int

    @property
    def is_good(self) -> bool:
        """Return whether every message came back exactly once."""
        return self.missing == 0 and self.duplicates == 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a JSON document."""
        return asdict(self) | {"rows": [asdict(row) for row in self.rows.values()], "ok": self.is_good}


def figures_of(journal: Journal) -> Figures:
    """Return the figures of one consumer."""
    failures = list(journal.failures.values())
    last_nack_at = max((failure.nacked_at for failure in failures), default=0.0)
    return Figures(
        name=journal.name,
        rows={low: _row(group, last_nack_at) for low, group in _by_class(failures).items()},
        total=_row(failures, last_nack_at),
        missing=journal.expected - journal.back,
        duplicates=sum(failure.deliveries > 2 for failure in failures),
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _by_class(failures: Sequence[Failure]) -> dict[float, list[Failure]]:
    groups: dict[float, list[Failure]] = {low: [] for low, _ in CLASSES}
    for failure in failures:
        groups[max((low for low in groups if low <= failure.asked), default=SHORTEST)].append(failure)
    return {low: group for low, group in groups.items() if group}


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
