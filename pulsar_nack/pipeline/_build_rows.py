"""The rows of a build, and their division into buckets by the rules of the bucket tracker. Pure.

Before it adds an index, the tracker seals a bucket that has the least size if a new ledger begins, and one that has the
greatest size always. Here whole arrays are cut by these rules, with at most one bucket and one array in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .._check import INT64_MAX
from ..config import BucketConfig
from ..delayed.ticks import LATEST
from ..errors import InvalidArgumentError
from ..index import MAX_ENTRY

Longs = npt.NDArray[np.int64]
"""A column of whole numbers."""

BOUNDS: Final = {"ledger_id": INT64_MAX, "entry_id": MAX_ENTRY, "deliver_at": LATEST}
"""The highest value of each column; the lowest is 0."""
_EXPECTED: Final = {
    "ledger_id": "a ledger id from 0 to 2**63 - 1",
    "entry_id": "an entry id from 0 to 2**32 - 1",
    "deliver_at": "an epoch time in ms from 0 to 2**56 (leave out what is not delayed)",
}


class DuplicatePositionError(Exception):
    """Two rows have the same position; the driver raises an InvalidArgumentError for it."""

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
        """Return the number of rows."""
        return len(self.times)

    def part(self, at: int, to: int) -> Rows:
        """Return the rows from index ``at`` to before ``to``, not copied."""
        return Rows(self.ledgers[at:to], self.entries[at:to], self.times[at:to])


def refused(ledger: int | None, entry: int | None, deliver_at: int | None) -> InvalidArgumentError:
    """Return the error for a row; it names the first column with an invalid value."""
    values = {"ledger_id": ledger, "entry_id": entry, "deliver_at": deliver_at}
    field = next(name for name, value in values.items() if value is None or not 0 <= value <= BOUNDS[name])
    where = ", ".join(f"{name} {value}" for name, value in values.items() if name != field)
    return InvalidArgumentError(field, values[field], f"{_EXPECTED[field]} in the row with {where}")


def duplicate(ledger: int, entry: int) -> InvalidArgumentError:
    """Return the error for a position of several rows."""
    expected = "each position once (a batch is one entry, and its messages are not delayed)"
    return InvalidArgumentError("df", f"ledger_id {ledger}, entry_id {entry} more than once", expected)


class Cutter:
    """Takes rows in order of position, and returns them a bucket at a time.

    :param min_size: the size from which a bucket ends at the end of a ledger
    :param max_size: the greatest size of a bucket
    """

    def __init__(self, min_size: int, max_size: int) -> None:
        self._min_size = min_size
        self._max_size = max_size
        self._waiting: list[Rows] = []
        self._length = 0
        self._last = (-1, -1)

    @classmethod
    def of(cls, config: BucketConfig) -> Cutter:
        """Return a cutter with the rules of a config."""
        return cls(config.delayed_delivery_min_index_count_per_bucket, config.largest_bucket)

    def feed(self, rows: Rows) -> Iterator[Rows]:
        """Add the next rows; yield the buckets that are full now.

        :raises DuplicatePositionError: two rows have the same position
        """
        if not rows.length:
            return
        self._check(rows)
        self._waiting.append(rows)
        self._length += rows.length
        if self._length > self._max_size:
            yield from self._cut(self._max_size)

    def finish(self) -> Iterator[Rows]:
        """Yield the remaining rows as buckets; the last one may be small."""
        if self._length:
            yield from self._cut(0)

    def _cut(self, keep: int) -> Iterator[Rows]:
        """Yield buckets until at most ``keep`` rows are left."""
        held, at = _joined(self._waiting), 0
        while held.length - at > keep:
            end = at + self._end(held.ledgers[at:])
            yield held.part(at, end)
            at = end
        self._waiting = [held.part(at, held.length)]
        self._length = held.length - at

    def _end(self, ledgers: Longs) -> int:
        """Return the size of the next bucket, which begins with the first of these rows."""
        longest = min(self._max_size, len(ledgers))
        window = ledgers[self._min_size - 1 : longest + 1]
        begins = np.flatnonzero(window[1:] != window[:-1])
        return self._min_size + int(begins[0]) if len(begins) else longest

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
