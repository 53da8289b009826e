"""Writes the snapshots of units of rows, on a worker: rows are cut, encoded and written a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..config import BucketConfig
from ..delayed.format import bucket_key
from ._build_encoding import encode_bucket, snapshot_folder, snapshot_log
from ._build_folder import write_log
from ._build_rows import Cutter, Rows
from ._build_units import Unit


class WrittenSnapshot(NamedTuple):
    """A written snapshot: its id and key, first and last ledger, counts of rows and segments, times, size in bytes."""

    snapshot_id: int
    key: str
    start: int
    end: int
    rows: int
    segments: int
    first_at: int
    last_at: int
    bytes: int


def write_snapshots(
    batches: Iterable[Rows], units: Sequence[Unit], staging: Path, config: BucketConfig
) -> Iterator[WrittenSnapshot]:
    """Write the snapshots of rows of these units, in order of position.

    :raises DuplicatePositionError: two rows have the same position
    :raises OSError: a log could not be written
    """
    writer: _UnitWriter | None = None
    for number, rows in _by_unit(batches, units):
        unit = units[number]
        if writer is None or writer.unit is not unit:
            if writer is not None:
                yield from writer.finish()
            writer = _UnitWriter(unit, staging, config)
        yield from writer.feed(rows)
    if writer is not None:
        yield from writer.finish()


def _by_unit(batches: Iterable[Rows], units: Sequence[Unit]) -> Iterator[tuple[int, Rows]]:
    """Yield batches cut where units begin, with the number of the unit."""
    number = 0
    for rows in batches:
        at = 0
        while at < rows.length:
            while number + 1 < len(units) and _is_in(units[number + 1], rows, at):
                number += 1
            to = _end(units[number + 1], rows, at) if number + 1 < len(units) else rows.length
            yield number, rows.part(at, to)
            at = to


def _is_in(unit: Unit, rows: Rows, at: int) -> bool:
    return (rows.ledgers[at], rows.entries[at]) >= (unit.ledger, unit.entry)


def _end(unit: Unit, rows: Rows, at: int) -> int:
    """Return the index of the first row from ``at`` on that lies in a unit; past the last row if none does."""
    first = at + int(np.searchsorted(rows.ledgers[at:], unit.ledger))
    last = first + int(np.searchsorted(rows.ledgers[first:], unit.ledger, side="right"))
    return first + int(np.searchsorted(rows.entries[first:last], unit.entry))


class _UnitWriter:
    def __init__(self, unit: Unit, staging: Path, config: BucketConfig) -> None:
        self.unit = unit
        self._staging = staging
        self._config = config
        self._cutter = Cutter.of(config)
        self._next_id = unit.first_id
        self._ledger = unit.ledger
        self._part = unit.part

    def feed(self, rows: Rows) -> Iterator[WrittenSnapshot]:
        return map(self._write, self._cutter.feed(rows))

    def finish(self) -> Iterator[WrittenSnapshot]:
        return map(self._write, self._cutter.finish())

    def _write(self, rows: Rows) -> WrittenSnapshot:
        start, end = int(rows.ledgers[0]), int(rows.ledgers[-1])
        key = bucket_key(start, end, self._number(start, end))
        snapshot = encode_bucket(rows, self._config)
        snapshot_id = self._next_id
        self._next_id += 1
        data = snapshot_log(key, snapshot_id, snapshot)
        write_log(self._staging, snapshot_folder(snapshot_id), data)
        times = snapshot.first_at, snapshot.last_at
        return WrittenSnapshot(snapshot_id, key, start, end, rows.length, len(snapshot.segments), *times, len(data))

    def _number(self, start: int, end: int) -> int:
        """Return how many earlier buckets have the same ledgers: only buckets inside one ledger can."""
        if start != end:
            return 0
        if start != self._ledger:
            self._ledger, self._part = start, 0
        self._part += 1
        return self._part - 1
