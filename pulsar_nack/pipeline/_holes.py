"""The job ``holes``: the size of acknowledgement state, its growth, and which subscriptions are near the gate.

The figures of one snapshot of a subscription are computed on executors. Positions at or before the mark-delete position
count as acknowledged; the rows have those above it. If the lengths of ledgers are unknown, entries after the last
acknowledged one of a ledger may not exist and are left out, so ``holes`` and ``unacked_below`` are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from .._check import check_metadata_limit
from ..config import CursorConfig
from ..cursor.format import MAX_RANGES, LedgerAcks, ledger_size, marker_size
from ..ids import Position
from ..index import EntryRanges, varint_bytes
from ._jobs import require_columns
from .schemas import HOLES, MAX_TIME_MS

DEFAULT_LIMIT: Final = CursorConfig().max_per_cursor_metadata_size_in_bytes
_KEY: Final = ("topic", "subscription")
_ROW: Final = ("kind", "ledger", "first", "last", "bytes")
_NEAR: Final = 0.75
_PAUSED: Final = 7 / 8

ACKED: Final = "acked"
BATCH: Final = "batch"
CURSOR: Final = "cursor"
LEDGER: Final = "ledger"
STATE: Final = "state"
"""The kinds of rows."""

_NOWHERE: Final = Position(-1, -1)
_NEGATIVE_BYTES: Final = 10
_MOST: Final = 2**63 - 2

SnapshotRow = tuple[str, int | None, int | None, int | None, int | None]
"""A row of one snapshot: kind, ledger, first, last, bytes."""


class SnapshotFigures(NamedTuple):
    """The figures of a snapshot, in the order of the result of ``holes``."""

    mark_delete_ledger: int | None
    mark_delete_entry: int | None
    ledgers: int
    ranges: int
    holes: int
    acked: int
    unacked_below: int
    batches: int
    backlog: int | None
    bytes: int
    is_stored: bool
    single_bytes: int
    ranges_lost: int
    oldest_ledger: int | None
    oldest_entry: int | None
    pinned_ledgers: int | None
    pinned_bytes: int | None
    pinned_done: int | None
    ignored_rows: int


_SUBSCRIPTIONS: Final = StructType(
    [
        *(HOLES[name] for name in (*_KEY, "at_ms")),
        *(StructField(name, BooleanType() if name == "is_stored" else LongType()) for name in SnapshotFigures._fields),
    ]
)
"""The figures of one snapshot of a subscription; ``holes`` adds those of several snapshots, and of the gate."""
_SUBSCRIPTIONS_ARROW: Final = to_arrow_schema(_SUBSCRIPTIONS)


def holes(df: DataFrame, *, limit: int = DEFAULT_LIMIT) -> DataFrame:
    """Return a row for each subscription and time: its holes, their size on storage, and how near the gate is.

    One task takes all rows of a subscription and time: some hundred bytes of memory a range.

    :param df: rows of :data:`~pulsar_nack.pipeline.schemas.HOLES`, of any number of times
    :param limit: ``maxPerCursorMetadataSizeInBytes``; below 1: none, and nothing is at risk
    :raises InvalidArgumentError: a column is missing or of another type, or the limit is from 1 to 1 023
    """
    limit = check_metadata_limit("max_per_cursor_metadata_size_in_bytes", limit)
    require_columns(df, HOLES)
    figures = df.select(*HOLES.fieldNames()).groupBy(*_KEY, "at_ms").applyInArrow(_figures, _SUBSCRIPTIONS)
    return _with_gate(_with_time(figures), limit)


def _figures(table: pa.Table) -> pa.Table:
    """Return the figures of the rows of one snapshot."""
    key = [table.column(name)[0].as_py() for name in (*_KEY, "at_ms")]
    columns = (table.column(name).to_pylist() for name in _ROW)
    row = [*key, *figures_of(zip(*columns, strict=True))]
    arrays = [pa.array([value], kind) for value, kind in zip(row, _SUBSCRIPTIONS_ARROW.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SUBSCRIPTIONS_ARROW)


def _with_time(figures: DataFrame) -> DataFrame:
    """Add the columns that compare the snapshots of a subscription over time."""
    in_time = Window.partitionBy(*_KEY).orderBy("at_ms")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    oldest = sf.struct("oldest_ledger", "oldest_entry")
    at, size = (sf.col(name).cast("double") for name in ("at_ms", "bytes"))  # differences of longs may overflow
    seconds = (at - sf.lag(at).over(in_time)) / 1_000
    is_other = sf.coalesce(~oldest.eqNullSafe(sf.lag(oldest).over(in_time)), sf.expr("true"))
    found = (
        figures.withColumn("bytes_per_s", (size - sf.lag(size).over(in_time)) / seconds)
        .withColumn("ranges_per_s", (sf.col("ranges") - sf.lag("ranges").over(in_time)) / seconds)
        .withColumn("is_latest", sf.lead(sf.lit(1)).over(in_time).isNull())
        .withColumn("since", sf.when(is_other, sf.col("at_ms")))
    )
    since = sf.last("since", ignorenulls=True).over(so_far)
    has_oldest = sf.col("oldest_ledger").isNotNull()
    return found.withColumn("oldest_since_ms", sf.when(has_oldest, since)).drop("since")


def _with_gate(figures: DataFrame, limit: int) -> DataFrame:
    """Add how near the gate is, which depends on the persisted size; nothing is near without a limit."""
    most = sf.nullif(sf.lit(limit), sf.lit(0))
    share = sf.col("bytes") / most
    left_ms = (most - sf.col("bytes")) / sf.nullif("bytes_per_s", sf.lit(0.0)) * 1_000
    grows = (sf.col("bytes_per_s") > 0) & (sf.col("bytes") < most) & (sf.col("at_ms") + left_ms <= MAX_TIME_MS)
    return (
        figures.withColumn("limit_share", share)
        .withColumn("risk", _risk(share))
        .withColumn("limit_at_ms", sf.when(grows, sf.col("at_ms") + sf.ceil(left_ms)).cast("long"))
    )


def _risk(share: Column) -> Column:
    return sf.when(share >= 1, "over").when(share >= _PAUSED, "paused").when(share >= _NEAR, "near").otherwise("none")


# --- one snapshot ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Snapshot:
    """The acknowledgement state of a subscription at one time."""

    mark_delete: Position | None = None
    acked: dict[int, EntryRanges] = field(default_factory=dict)
    batches: set[Position] = field(default_factory=set)
    lengths: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    marker_bytes: int | None = None
    state_bytes: int = 0
    ignored: int = 0

    @classmethod
    def of(cls, rows: Iterable[SnapshotRow]) -> Snapshot:
        """Make a snapshot of rows in any order; ranges may overlap, and invalid rows are counted."""
        made = cls()
        for row in rows:
            made.ignored += not made._take(*row)
        made._trim()
        return made

    def _take(self, kind: str, ledger: int | None, first: int | None, last: int | None, size: int | None) -> bool:
        if ledger is None or not (0 <= ledger <= _MOST or kind == CURSOR):
            return False
        if kind == STATE:
            self.state_bytes += size or 0
            return True
        if last is None or not -1 <= last <= _MOST:
            return False
        if kind == CURSOR:
            self.mark_delete = max(self.mark_delete or _NOWHERE, Position(ledger, last))
            self.marker_bytes = size if self.marker_bytes is None else self.marker_bytes
        elif kind == LEDGER:
            self.lengths[ledger] = max(last + 1, self.lengths.get(ledger, 0))
            self.sizes[ledger] = max(size or 0, self.sizes.get(ledger, 0))
        elif first is None or not 0 <= first <= last:
            return False
        elif kind == ACKED:
            self.acked.setdefault(ledger, EntryRanges()).add_range(first, last)
        elif kind == BATCH:
            self.batches.add(Position(ledger, first))
        else:
            return False
        return True

    def _trim(self) -> None:
        at = self.mark_delete or _NOWHERE
        for ledger in [each for each in self.acked if each < at.ledger]:
            del self.acked[ledger]
        if at.ledger in self.acked:
            self.acked[at.ledger].discard_below(at.entry + 1)
            if not self.acked[at.ledger]:
                del self.acked[at.ledger]
        self.batches = {each for each in self.batches if each > at and each.entry not in self.ranges(each.ledger)}

    def ranges(self, ledger: int) -> EntryRanges:
        """Return the acknowledged entries of a ledger above the mark-delete position."""
        return self.acked.get(ledger) or EntryRanges()

    def begin(self, ledger: int) -> int:
        """Return the first entry of a ledger above the mark-delete position."""
        at = self.mark_delete or _NOWHERE
        return at.entry + 1 if ledger == at.ledger else 0

    def known(self) -> list[int]:
        """Return the existing ledgers from the mark-delete position on, in order."""
        at = self.mark_delete or _NOWHERE
        return sorted(ledger for ledger in self.lengths if ledger >= at.ledger)


def figures_of(rows: Iterable[SnapshotRow]) -> SnapshotFigures:
    """Return the figures of a snapshot. O(ranges)."""
    snapshot = Snapshot.of(rows)
    at, acked = snapshot.mark_delete, snapshot.acked
    holes, unacked = _below_highest(snapshot)
    ranges = sum(each.range_count for each in acked.values())
    oldest = _oldest(snapshot)
    pinned = _pinned(snapshot, oldest) if snapshot.lengths else None
    is_stored = snapshot.marker_bytes is not None
    return SnapshotFigures(
        mark_delete_ledger=None if at is None else at.ledger,
        mark_delete_entry=None if at is None else at.entry,
        ledgers=len(acked),
        ranges=ranges,
        holes=holes,
        acked=sum(map(len, acked.values())),
        unacked_below=unacked,
        batches=len(snapshot.batches),
        backlog=_backlog(snapshot) if snapshot.lengths else None,
        bytes=(snapshot.marker_bytes or 0) + snapshot.state_bytes if is_stored else _bytes(snapshot),
        is_stored=is_stored,
        single_bytes=_single_bytes(snapshot),
        ranges_lost=max(ranges - MAX_RANGES, 0),
        oldest_ledger=None if oldest is None else oldest.ledger,
        oldest_entry=None if oldest is None else oldest.entry,
        pinned_ledgers=None if pinned is None else len(pinned),
        pinned_bytes=None if pinned is None else sum(snapshot.sizes.get(ledger, 0) for ledger in pinned),
        pinned_done=None if pinned is None else sum(_is_acked(snapshot, ledger) for ledger in pinned),
        ignored_rows=snapshot.ignored,
    )


def _below_highest(snapshot: Snapshot) -> tuple[int, int]:
    """Return the number of holes, each in one ledger, and of their entries, below the highest acknowledged entry."""
    if not snapshot.acked:
        return 0, 0
    top, holes, unacked = max(snapshot.acked), 0, 0
    for ledger in {*snapshot.acked, *snapshot.known()}:
        ranges, begin = snapshot.ranges(ledger), snapshot.begin(ledger)
        end = (-1 if ranges.last is None else ranges.last) + 1
        if ledger < top:
            end = max(end, snapshot.lengths.get(ledger, 0))
        if ledger > top or end <= begin:
            continue
        unacked += end - begin - len(ranges)
        holes += ranges.range_count + 1 - (ranges.first == begin) - (ranges.last == end - 1) if ranges else 1
    return holes, unacked


def _backlog(snapshot: Snapshot) -> int:
    return sum(_unacked(snapshot, ledger) for ledger in snapshot.known())


def _unacked(snapshot: Snapshot, ledger: int) -> int:
    return max(snapshot.lengths[ledger] - snapshot.begin(ledger) - len(snapshot.ranges(ledger)), 0)


def _is_acked(snapshot: Snapshot, ledger: int) -> bool:
    return snapshot.lengths[ledger] > 0 and not _unacked(snapshot, ledger)


def _oldest(snapshot: Snapshot) -> Position | None:
    """Return the lowest unacknowledged entry; None: all are acknowledged, or it is unknown."""
    if not snapshot.lengths:
        at = snapshot.mark_delete
        return None if at is None else Position(at.ledger, snapshot.ranges(at.ledger).next_absent(at.entry + 1))
    for ledger in snapshot.known():
        entry = snapshot.ranges(ledger).next_absent(snapshot.begin(ledger))
        if entry < snapshot.lengths[ledger]:
            return Position(ledger, entry)
    return None


def _pinned(snapshot: Snapshot, oldest: Position | None) -> list[int]:
    """Return the ledgers that could be deleted if this subscription had acknowledged them."""
    if oldest is None:
        return []
    return [ledger for ledger in snapshot.known()[:-1] if ledger >= oldest.ledger]


# --- size on storage ------------------------------------------------------------------------------------------------


def _bytes(snapshot: Snapshot) -> int:
    """Return the size of the state as one record for each ledger and a marker (PIP-81)."""
    states = sum(ledger_size(LedgerAcks(ranges), ledger) for ledger, ranges in snapshot.acked.items())
    at = snapshot.mark_delete or _NOWHERE
    return states + marker_size(at, snapshot.acked)


def _single_bytes(snapshot: Snapshot) -> int:
    """Return the size of all ranges in one record, the legacy format."""
    at = snapshot.mark_delete or _NOWHERE
    return _position_bytes(at.ledger, at.entry) + sum(_range_bytes(snapshot))


def _range_bytes(snapshot: Snapshot) -> Iterator[int]:
    for ledger, ranges in snapshot.acked.items():
        for first, last in ranges.ranges():
            sizes = _position_bytes(ledger, first - 1), _position_bytes(ledger, last)
            size = sum(1 + varint_bytes(each) + each for each in sizes)
            yield 1 + varint_bytes(size) + size


def _position_bytes(ledger: int, entry: int) -> int:
    return 2 + sum(_NEGATIVE_BYTES if each < 0 else varint_bytes(each) for each in (ledger, entry))
