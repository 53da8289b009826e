"""What the bucket tracker takes, in memory and on storage, from what it does; a test compares it with a filled one.

- *Positions*: a bitmap for each ledger. Where deadlines are in the order of positions it is a few runs; where they are
  scattered it is a list or bits once a part of the ledger is out.
- *Segments in memory*: that in use of each bucket and the next one, which is loaded when half of the former is out; in
  order only those of one or two buckets are near their time.
- *Unsealed*: the bucket that is being filled and the one that is being stored; 24 bytes an index.
- *Merging*: what two buckets become is put together in memory before it is stored. That is while messages are added;
  the bitmaps are at their largest later, when half of the messages are out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Final

from ..config import BucketConfig
from ..errors import InvalidArgumentError
from ._workload import Kind, Workload

_INDEX_BYTES: Final = 24
_LEDGER_BYTES: Final = 260
_SEGMENT_BYTES: Final = 24
_BUCKET_BYTES: Final = 1_400
_FIXED_BYTES: Final = 700_000
_BLOCK: Final = 65_536
_BLOCK_BYTES: Final = 8_192
_IN_ORDER_SEGMENTS: Final = 4
_WIRE_BYTES: Final = 11
"""Of an index: the tags and lengths (5), and a time of our days (6)."""
_LEDGER_ID_BYTES: Final = 3
_STEP_S: Final = BucketConfig().segment_step_ms / 1000
_BITMAP_HEAD: Final = 24
"""Of a ledger in a segment's metadata."""


@dataclass(frozen=True, slots=True)
class BucketLoad:
    """What waits in a bucket tracker, and how it is sealed.

    :param workload: of delayed messages; its delay is the time over which the deadlines lie
    :param is_scattered: whether the deadlines are in any order; otherwise they are in that of positions
    :param least: ``delayed_delivery_min_index_count_per_bucket``
    """

    workload: Workload
    is_scattered: bool = False
    least: int = 50_000

    def __post_init__(self) -> None:
        if self.workload.kind != Kind.DELAYED:
            raise InvalidArgumentError("kind", str(self.workload.kind), "delayed: nacks have no buckets on storage")

    @property
    def messages(self) -> float:
        """Return how many messages wait."""
        return self.workload.pending

    @property
    def ledgers(self) -> int:
        """Return over how many ledgers they lie."""
        return max(ceil(self.workload.entries / self.workload.entries_per_ledger), 1)

    @property
    def sealed(self) -> float:
        """Return how many indexes a bucket has when it is sealed."""
        in_ledger = self.workload.entries_per_ledger * self.workload.share
        largest = BucketConfig(delayed_delivery_min_index_count_per_bucket=self.least).largest_bucket
        return min(in_ledger * max(ceil(self.least / in_ledger), 1), largest)

    @property
    def most_buckets(self) -> int:
        """Return how many buckets there are when none are merged."""
        return max(ceil(self.messages / self.sealed), 1)


@dataclass(frozen=True, slots=True)
class BucketSize:
    """What a tracker takes with a maximum of ``buckets`` and ``segment`` indexes a segment; sizes in bytes."""

    buckets: int
    segment: int
    segments: int
    filling_bytes: float
    """While messages are added and buckets are merged."""
    draining_bytes: float
    """While messages come out, at its largest."""
    disk_bytes: float
    rewrites: float
    """How often merging writes each message again."""

    @property
    def bytes(self) -> float:
        """Return the most memory that it takes."""
        return max(self.filling_bytes, self.draining_bytes)


def bucket_size(load: BucketLoad, buckets: int, segment: int) -> BucketSize:
    """Predict what a tracker takes that merges its buckets when there are more than ``buckets``."""
    buckets = min(buckets, load.most_buckets)
    in_bucket = load.messages / buckets
    seconds = load.workload.delay if load.is_scattered else load.workload.delay / buckets
    each = max(ceil(in_bucket / segment), min(ceil(seconds / _STEP_S), ceil(in_bucket)))
    segments, in_segment = buckets * each, in_bucket / each
    table = _FIXED_BYTES + load.ledgers * _LEDGER_BYTES + segments * _SEGMENT_BYTES + buckets * _BUCKET_BYTES
    in_memory = 2 * buckets if load.is_scattered else min(_IN_ORDER_SEGMENTS, 2 * buckets)
    loaded = in_memory * in_segment * _INDEX_BYTES
    on_disk = _disk_bytes(load, buckets, segments)
    merging = 2 * on_disk / buckets if buckets < load.most_buckets else on_disk / buckets
    unsealed = 2 * min(load.sealed, load.messages) * _INDEX_BYTES
    return BucketSize(
        buckets=buckets,
        segment=segment,
        segments=segments,
        filling_bytes=table + unsealed + merging,
        draining_bytes=table + loaded + _bitmap_bytes(load),
        disk_bytes=on_disk,
        rewrites=max(log2(load.most_buckets / buckets), 0.0),
    )


def _bitmap_bytes(load: BucketLoad) -> float:
    """Return the size of the ledgers' bitmaps at their largest."""
    workload = load.workload
    entries = min(workload.entries_per_ledger, workload.entries)
    if not load.is_scattered:
        runs = 1 + entries * workload.share * (1 - workload.share)
        return load.ledgers * min(2 + 4 * runs, 2 * entries * workload.share, _blocks(entries) * _BLOCK_BYTES)
    return load.ledgers * min(2 * entries * workload.share, _blocks(entries) * _BLOCK_BYTES)


def _blocks(entries: float) -> int:
    return ceil(entries / _BLOCK)


def _disk_bytes(load: BucketLoad, buckets: int, segments: int) -> float:
    workload = load.workload
    entry_id = max(ceil((workload.entries_per_ledger - 1).bit_length() / 7), 1)
    indexes = load.messages * (_WIRE_BYTES + _LEDGER_ID_BYTES + entry_id)
    in_ledger = workload.entries_per_ledger * workload.share
    in_segment = load.messages / segments
    spanned = load.messages / buckets if load.is_scattered else in_segment
    ledgers = min(max(spanned / in_ledger, 1), in_segment)
    listed = 2 * load.messages if load.is_scattered or workload.share < 1 else 0
    return indexes + segments * ledgers * _BITMAP_HEAD + listed
