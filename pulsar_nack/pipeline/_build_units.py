"""Divides an index into units that are built separately, with the same result as a build in one go. Pure.

A *block* is 65 536 entries of a ledger. The number of rows in each block determines at which blocks a bucket ends, no
matter who computes it and in how many parts. So a *unit* of work begins only where a bucket does, and knows how many
buckets come before it. A unit ends at the first such block after its target of rows. In a ledger so long that no bucket
ends at a block, a bucket with the least size is ended there, as the tracker ends an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..config import BucketConfig

BLOCK_BITS: Final = 16
UNIT_ROWS: Final = 1_000_000
"""The target size of a unit: large enough that its start costs nothing, small enough that all cores have work."""


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
    """

    ledger: int
    entry: int
    first_id: int
    part: int
    rows: int


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
                unit = Unit(ledger, 0 if is_next else number << BLOCK_BITS, self._ended + 1, self._parts, 0)
            unit = unit._replace(rows=unit.rows + rows)
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
