"""Cuts rows that come in order of position into buckets, by the rules of the bucket tracker. Pure.

The tracker seals a bucket, before it adds an index, when the bucket has enough and a new ledger begins, or when it has
the most. Here the same is decided for arrays at a time, with no more than one bucket and one array in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..config import BucketConfig

Longs = npt.NDArray[np.int64]
"""A column of whole numbers."""


class DuplicatePositionError(Exception):
    """Two rows have the same position; told to the user by who started the job."""

    def __init__(self, ledger: int, entry: int) -> None:
        self.ledger = ledger
        self.entry = entry
        super().__init__(ledger, entry)


class Rows(NamedTuple):
    """Delayed messages in order of position: ledgers, entries, and when each is due (epoch ms)."""

    ledgers: Longs
    entries: Longs
    times: Longs

    @property
    def length(self) -> int:
        """Return how many there are."""
        return len(self.times)

    def part(self, at: int, to: int) -> Rows:
        """Return those from place ``at`` to before ``to``, not copied."""
        return Rows(self.ledgers[at:to], self.entries[at:to], self.times[at:to])


def rows_of(ledgers: Any, entries: Any, times: Any) -> Rows:
    """Return rows for three columns of the same length."""
    return Rows(*(np.ascontiguousarray(column, np.int64) for column in (ledgers, entries, times)))


class Cutter:
    """Takes rows in order of position, and gives them back a bucket at a time.

    :param least: from so many on a bucket ends with its ledger
    :param most: a bucket has no more than these
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._waiting: list[Rows] = []
        self._length = 0
        self._last = (-1, -1)

    @classmethod
    def of(cls, config: BucketConfig) -> Cutter:
        """Take the rules of a config."""
        return cls(config.delayed_delivery_min_index_count_per_bucket, config.largest_bucket)

    def feed(self, rows: Rows) -> Iterator[Rows]:
        """Add rows that come after those before; yield the buckets that are full now.

        :raises DuplicatePositionError: a position comes twice
        """
        if not rows.length:
            return
        self._check(rows)
        self._waiting.append(rows)
        self._length += rows.length
        if self._length > self._most:
            yield from self._cut(self._most)

    def finish(self) -> Iterator[Rows]:
        """Yield what is left: the last bucket has what there is."""
        if self._length:
            yield from self._cut(0)

    def _cut(self, keep: int) -> Iterator[Rows]:
        """Yield buckets while there are more rows than ``keep``."""
        held, at = _joined(self._waiting), 0
        while held.length - at > keep:
            end = at + self._end(held.ledgers[at:])
            yield held.part(at, end)
            at = end
        self._waiting = [held.part(at, held.length)]
        self._length = held.length - at

    def _end(self, ledgers: Longs) -> int:
        """Return how many of these rows are the next bucket."""
        longest = min(self._most, len(ledgers))
        window = ledgers[self._least - 1 : longest + 1]
        begins = np.flatnonzero(window[1:] != window[:-1])
        return self._least + int(begins[0]) if len(begins) else longest

    def _check(self, rows: Rows) -> None:
        ledgers, entries = rows.ledgers, rows.entries
        same = (ledgers[1:] == ledgers[:-1]) & (entries[1:] == entries[:-1])
        if self._last == (int(ledgers[0]), int(entries[0])):
            raise DuplicatePositionError(*self._last)
        if same.any():
            at = int(np.argmax(same))
            raise DuplicatePositionError(int(ledgers[at]), int(entries[at]))
        self._last = (int(ledgers[-1]), int(entries[-1]))


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
