"""The size of a bucket tracker, in memory and on storage, and the number of buckets and segment size to choose.

The size is predicted from the tracker's structure; a test compares the prediction with a real tracker.

- *Positions*: a bitmap for each ledger. If deadlines are in the order of positions, it is a few runs; if they are
  scattered, it is a list or bits once a part of the ledger is delivered.
- *Segments in memory*: the current one of each bucket, and the next one, which is loaded when half of the current one
  is delivered; in order, only the segments of one or two buckets are near their time.
- *Unsealed*: the bucket that is being filled and the one that is being stored; 24 bytes an index.
- *Merging*: the merged snapshot is built in memory before it is stored. That happens while messages are added; the
  bitmaps are at their largest later, when half of the messages are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, inf, log2
from typing import Any, Final

from ..config import BucketConfig
from ..errors import InvalidArgumentError
from ._plan import format_size
from ._workload import Kind, Workload

SEGMENTS: Final = (5_000, 2_000, 1_000, 500, 200)
"""Segment sizes to choose from, Pulsar's default first."""
_MAX_BUCKETS: Final = 1_000
"""More properties are too much for a cursor."""
_MAX_MEMORY: Final = 2**50
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
_INDEX_BYTES: Final = 24
_LEDGER_BYTES: Final = 260
_SEGMENT_BYTES: Final = 24
_BUCKET_BYTES: Final = 1_400
_FIXED_BYTES: Final = 700_000
_BLOCK: Final = 65_536
_BLOCK_BYTES: Final = 8_192
_IN_ORDER_SEGMENTS: Final = 4
_WIRE_BYTES: Final = 11
"""Of an index: the tags and lengths (5), and a present-day time (6)."""
_LEDGER_ID_BYTES: Final = 3
_STEP_S: Final = BucketConfig().segment_step_ms / 1000
_BITMAP_HEAD: Final = 24
"""Of a ledger in a segment's metadata."""


@dataclass(frozen=True, slots=True)
class BucketLoad:
    """The messages in a bucket tracker, and how they are sealed.

    :param workload: of delayed messages; its delay is the time span of the deadlines
    :param is_scattered: whether the deadlines are in random order; otherwise in the order of positions
    :param min_indexes: ``delayed_delivery_min_index_count_per_bucket``
    """

    workload: Workload
    is_scattered: bool = False
    min_indexes: int = 50_000

    def __post_init__(self) -> None:
        if self.workload.kind != Kind.DELAYED:
            raise InvalidArgumentError("kind", str(self.workload.kind), "delayed: nacks have no buckets on storage")

    @property
    def messages(self) -> float:
        """Return the number of messages."""
        return self.workload.pending

    @property
    def ledgers(self) -> int:
        """Return the number of their ledgers."""
        return max(ceil(self.workload.entries / self.workload.entries_per_ledger), 1)

    @property
    def sealed(self) -> float:
        """Return the number of indexes of a bucket when it is sealed."""
        in_ledger = self.workload.entries_per_ledger * self.workload.share
        largest = BucketConfig(delayed_delivery_min_index_count_per_bucket=self.min_indexes).largest_bucket
        return min(in_ledger * max(ceil(self.min_indexes / in_ledger), 1), largest)

    @property
    def max_buckets(self) -> int:
        """Return the number of buckets without merges."""
        return max(ceil(self.messages / self.sealed), 1)


@dataclass(frozen=True, slots=True)
class BucketSize:
    """The size in bytes of a tracker with at most ``buckets`` buckets and ``segment`` indexes a segment."""

    buckets: int
    segment: int
    segments: int
    filling_bytes: float
    """Memory while messages are added and buckets are merged."""
    draining_bytes: float
    """The most memory while messages are delivered."""
    disk_bytes: float
    rewrites: float
    """How often merging writes each message again."""

    @property
    def bytes(self) -> float:
        """Return the most memory that the tracker takes."""
        return max(self.filling_bytes, self.draining_bytes)


def bucket_size(load: BucketLoad, buckets: int, segment: int) -> BucketSize:
    """Predict the size of a tracker that merges its buckets when there are more than ``buckets``."""
    buckets = min(buckets, load.max_buckets)
    in_bucket = load.messages / buckets
    seconds = load.workload.delay if load.is_scattered else load.workload.delay / buckets
    each = max(ceil(in_bucket / segment), min(ceil(seconds / _STEP_S), ceil(in_bucket)))
    segments, in_segment = buckets * each, in_bucket / each
    table = _FIXED_BYTES + load.ledgers * _LEDGER_BYTES + segments * _SEGMENT_BYTES + buckets * _BUCKET_BYTES
    in_memory = 2 * buckets if load.is_scattered else min(_IN_ORDER_SEGMENTS, 2 * buckets)
    loaded = in_memory * in_segment * _INDEX_BYTES
    on_disk = _disk_bytes(load, buckets, segments)
    merging = 2 * on_disk / buckets if buckets < load.max_buckets else on_disk / buckets
    unsealed = 2 * min(load.sealed, load.messages) * _INDEX_BYTES
    return BucketSize(
        buckets=buckets,
        segment=segment,
        segments=segments,
        filling_bytes=table + unsealed + merging,
        draining_bytes=table + loaded + _bitmap_bytes(load),
        disk_bytes=on_disk,
        rewrites=max(log2(load.max_buckets / buckets), 0.0),
    )


def _bitmap_bytes(load: BucketLoad) -> float:
    """Return the largest size of the ledgers' bitmaps."""
    workload = load.workload
    entries = min(workload.entries_per_ledger, workload.entries)
    as_list, as_bits = 2 * entries * workload.share, ceil(entries / _BLOCK) * _BLOCK_BYTES
    runs = 1 + entries * workload.share * (1 - workload.share)
    as_runs = inf if load.is_scattered else 2 + 4 * runs
    return load.ledgers * min(as_list, as_bits, as_runs)


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


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The sizes of a load for some maxima of buckets, and the recommended one."""

    load: BucketLoad
    memory_bytes: float
    rows: tuple[BucketSize, ...]
    recommended: BucketSize
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        recommended, *rows = (asdict(size) | {"bytes": size.bytes} for size in (self.recommended, *self.rows))
        return asdict(self) | {"messages": self.load.messages, "rows": rows, "recommended": recommended}


def make_bucket_plan(load: BucketLoad, memory_bytes: float) -> BucketPlan:
    """Plan the buckets of a load for limited memory: as many as fit, since fewer buckets are merged more often.

    Smaller segments are chosen only if the default size does not fit.

    :raises InvalidArgumentError: ``memory_bytes`` is not a positive number
    """
    if not 0 < memory_bytes < _MAX_MEMORY:  # false for NaN too
        raise InvalidArgumentError("memory_bytes", memory_bytes, "a positive number of bytes")
    fitting = next((size for size in _sizes(load) if size.bytes <= memory_bytes), None)
    recommended = fitting or min(_sizes(load), key=lambda size: size.bytes)
    counts = sorted({min(step, load.max_buckets) for step in _STEPS} | {recommended.buckets})
    rows = tuple(bucket_size(load, count, recommended.segment) for count in counts)
    return BucketPlan(load, float(memory_bytes), rows, recommended, _reason(load, recommended, memory_bytes))


def _sizes(load: BucketLoad) -> Iterator[BucketSize]:
    """Yield all sizes to choose from, the best first."""
    for segment in SEGMENTS:
        for buckets in range(min(load.max_buckets, _MAX_BUCKETS), 0, -1):
            yield bucket_size(load, buckets, segment)


def _reason(load: BucketLoad, size: BucketSize, memory_bytes: float) -> str:
    text = (
        f"Set delayedDeliveryMaxNumBuckets={size.buckets} and "
        f"delayedDeliveryMaxIndexesPerBucketSnapshotSegment={size.segment}: "
    )
    if size.bytes > memory_bytes:
        text += (
            f"nothing takes less than {format_size(size.bytes)}, more than the {format_size(memory_bytes)} asked for. "
        )
    else:
        text += f"at most {format_size(size.bytes)} of memory, {format_size(size.disk_bytes)} on storage. "
    if size.buckets == load.max_buckets:
        return text + "Nothing has to be merged."
    return text + f"Each message is written {1 + size.rewrites:.2g} times; fewer buckets would mean more often."
