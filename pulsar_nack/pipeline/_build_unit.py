"""What a worker does with the rows of some units: cut, encode and write, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..config import BucketConfig
from ..delayed.format import bucket_key
from ._build_cut import Cutter, Rows
from ._build_encode import encode_bucket
from ._build_folder import write_log
from ._build_log import snapshot_folder, snapshot_log
from ._build_units import Unit


class Built(NamedTuple):
    """A snapshot that was written: its id and key, ledgers, number of rows and segments, times, and size in bytes."""

    snapshot_id: int
    key: str
    start: int
    end: int
    rows: int
    segments: int
    first_at: int
    last_at: int
    bytes: int


def build_units(batches: Iterable[Rows], units: Sequence[Unit], staging: Path, config: BucketConfig) -> Iterator[Built]:
    """Write the snapshots of some rows, which come in order of position, and lie in these units.

    :raises DuplicatePositionError: a position comes twice
    :raises OSError: a log could not be written
    """
    builder: _UnitBuilder | None = None
    for number, rows in _by_unit(batches, units):
        unit = units[number]
        if builder is None or builder.unit is not unit:
            if builder is not None:
                yield from builder.finish()
            builder = _UnitBuilder(unit, staging, config)
        yield from builder.feed(rows)
    if builder is not None:
        yield from builder.finish()


def _by_unit(batches: Iterable[Rows], units: Sequence[Unit]) -> Iterator[tuple[int, Rows]]:
    """Cut batches where units begin."""
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
    """Return the place of the first row from ``at`` on that lies in a unit, or after all."""
    first = at + int(np.searchsorted(rows.ledgers[at:], unit.ledger))
    last = first + int(np.searchsorted(rows.ledgers[first:], unit.ledger, side="right"))
    return first + int(np.searchsorted(rows.entries[first:last], unit.entry))


class _UnitBuilder:
    def __init__(self, unit: Unit, staging: Path, config: BucketConfig) -> None:
        self.unit = unit
        self._staging = staging
        self._config = config
        self._cutter = Cutter.of(config)
        self._next_id = unit.first_id
        self._ledger = unit.ledger
        self._part = unit.part

    def feed(self, rows: Rows) -> Iterator[Built]:
        return map(self._build, self._cutter.feed(rows))

    def finish(self) -> Iterator[Built]:
        return map(self._build, self._cutter.finish())

    def _build(self, rows: Rows) -> Built:
        start, end = int(rows.ledgers[0]), int(rows.ledgers[-1])
        key = bucket_key(start, end, self._number(start, end))
        snapshot = encode_bucket(rows, self._config)
        snapshot_id = self._next_id
        self._next_id += 1
        data = snapshot_log(key, snapshot_id, snapshot)
        write_log(self._staging, snapshot_folder(snapshot_id), data)
        return Built(
            snapshot_id,
            key,
            start,
            end,
            rows.length,
            len(snapshot.segments),
            snapshot.first_at,
            snapshot.last_at,
            len(data),
        )

    def _number(self, start: int, end: int) -> int:
        """Return how many buckets of these ledgers came before: several have the same only inside one ledger."""
        if start != end:
            return 0
        if start != self._ledger:
            self._ledger, self._part = start, 0
        self._part += 1
        return self._part - 1
