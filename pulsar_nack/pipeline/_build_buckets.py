"""The rows of a build, and where their buckets end by the rules of the bucket tracker. Pure.

Before it adds an index, the tracker seals a bucket that has the least size if a new ledger begins, and one that has the
greatest size always. Whole arrays of rows are cut by these rules here, with at most one bucket and one array in memory.

The same rules divide the index into units that are built separately, with the same result as a build in one go. A
*block* is 65 536 entries of a ledger. The number of rows in each block determines at which blocks a bucket ends, no
matter who computes it and in how many parts. So a *unit* of work begins only where a bucket does, and knows how many
buckets come before it. A unit ends at the first such block after its target of rows. In a ledger so long that no bucket
ends at a block, a bucket with the least size is ended there, as the tracker ends an old one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .._check import INT64_MAX
from ..config import BucketConfig
from ..delayed.ticks import LATEST
from ..errors import InvalidArgumentError
from ..index import MAX_ENTRY

BLOCK_BITS: Final = 16
UNIT_ROWS: Final = 1_000_000
"""The target size of a unit: large enough that its start costs nothing, small enough that all cores have work."""

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


# --- buckets --------------------------------------------------------------------------------------------------------


def buckets_of(batches: Iterable[Rows], config: BucketConfig) -> Iterator[Rows]:
    """Yield rows that come in order of position a bucket at a time; the last one may be small.

    :raises DuplicatePositionError: two rows have the same position
    """
    waiting: list[Rows] = []
    length = 0
    for rows in _without_duplicates(batches):
        waiting.append(rows)
        length += rows.length
        if length > config.largest_bucket:
            rest = yield from _cut(_joined(waiting), config, keep=config.largest_bucket)
            waiting, length = [rest], rest.length
    if waiting:
        yield from _cut(_joined(waiting), config, keep=0)


def _without_duplicates(batches: Iterable[Rows]) -> Iterator[Rows]:
    last = (-1, -1)
    for rows in batches:
        if not rows.length:
            continue
        ledgers, entries = rows.ledgers, rows.entries
        if last == (int(ledgers[0]), int(entries[0])):
            raise DuplicatePositionError(*last)
        same = (ledgers[1:] == ledgers[:-1]) & (entries[1:] == entries[:-1])
        if same.any():
            at = int(np.argmax(same))
            raise DuplicatePositionError(int(ledgers[at]), int(entries[at]))
        last = int(ledgers[-1]), int(entries[-1])
        yield rows


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _cut(rows: Rows, config: BucketConfig, *, keep: int) -> Generator[Rows, None, Rows]:
    """Yield buckets until at most ``keep`` rows are left, and return those."""
    at = 0
    while rows.length - at > keep:
        end = at + _bucket_size(rows.ledgers[at:], config)
        yield rows.part(at, end)
        at = end
    return rows.part(at, rows.length)


def _bucket_size(ledgers: Longs, config: BucketConfig) -> int:
    """Return the size of the next bucket, which begins with the first of these rows."""
    min_size = config.delayed_delivery_min_index_count_per_bucket
    longest = min(config.largest_bucket, len(ledgers))
    window = ledgers[min_size - 1 : longest + 1]
    begins = np.flatnonzero(window[1:] != window[:-1])
    return min_size + int(begins[0]) if len(begins) else longest


# --- units ----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """The number of rows in block ``number`` of a ledger."""

    ledger: int
    number: int
    rows: int


class Unit(NamedTuple):
    """A range of positions that begins with ``(ledger, entry)`` and ends before the next unit does.

    :param first_id: the id of its first snapshot
    :param part: how many earlier buckets lie in its first ledger alone
    :param rows: the number of its rows
    :param last_ledger: the ledger of its last row
    """

    ledger: int
    entry: int
    first_id: int
    part: int
    rows: int
    last_ledger: int


def make_units(blocks: Iterable[Block], config: BucketConfig, target: int = UNIT_ROWS) -> list[Unit]:
    """Return the units of blocks, which are in order of position."""
    return list(_Division(config, target).units(blocks))


class _Division:
    """Applies the tracker's rules to counts of rows."""

    def __init__(self, config: BucketConfig, target: int) -> None:
        self._min_size = config.delayed_delivery_min_index_count_per_bucket
        self._max_size = config.largest_bucket
        self._target = target
        self._ledger = -1
        self._in_bucket = 0
        self._begins_here = True
        """Whether the current bucket began in the current ledger."""
        self._ended = 0
        """How many buckets have ended."""
        self._parts = 0
        """How many of them lie in the current ledger alone."""

    def units(self, blocks: Iterable[Block]) -> Iterator[Unit]:
        unit: Unit | None = None
        for ledger, number, rows in blocks:
            is_next = ledger != self._ledger
            is_long = unit is not None and unit.rows >= self._target
            if self._in_bucket >= self._min_size and (is_next or is_long):
                self._end_bucket()
            if is_next:
                self._ledger, self._parts = ledger, 0
                self._begins_here = not self._in_bucket
            if unit is None or (is_long and not self._in_bucket):
                if unit is not None:
                    yield unit
                unit = Unit(ledger, 0 if is_next else number << BLOCK_BITS, self._ended + 1, self._parts, 0, ledger)
            unit = unit._replace(rows=unit.rows + rows, last_ledger=ledger)
            self._fill(rows)
        if unit is not None:
            yield unit

    def _fill(self, rows: int) -> None:
        self._in_bucket += rows
        while self._in_bucket > self._max_size:
            rest = self._in_bucket - self._max_size
            self._end_bucket()
            self._in_bucket = rest

    def _end_bucket(self) -> None:
        self._ended += 1
        self._parts += self._begins_here
        self._in_bucket = 0
        self._begins_here = True


def split_evenly(units: Sequence[Unit], max_parts: int) -> list[Sequence[Unit]]:
    """Return units in at most ``max_parts`` parts of consecutive units."""
    each = -(-len(units) // max_parts) if units else 1
    return [units[at : at + each] for at in range(0, len(units), each)]
