"""Which maximum of buckets to take for delayed messages whose index lies on storage, and how large segments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ..errors import InvalidArgumentError
from ._bucket_size import BucketLoad, BucketSize, bucket_size
from ._plan import format_size

SEGMENTS: Final = (5_000, 2_000, 1_000, 500, 200)
"""Sizes of segments that are looked at, Pulsar's default first."""
_MOST_BUCKETS: Final = 1_000
"""More names than these are too much for the properties of a cursor."""
_MOST_MEMORY: Final = 2**50
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The answer to a load: sizes for some maxima of buckets, the recommended one among them."""

    load: BucketLoad
    memory_bytes: float
    rows: tuple[BucketSize, ...]
    recommended: BucketSize
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        rows = [asdict(row) | {"bytes": row.bytes} for row in self.rows]
        return asdict(self) | {
            "messages": self.load.messages,
            "rows": rows,
            "recommended": asdict(self.recommended) | {"bytes": self.recommended.bytes},
        }


def make_bucket_plan(load: BucketLoad, memory_bytes: float) -> BucketPlan:
    """Plan the buckets for a load within some memory: as many as fit, since fewer have to be merged more often.

    Smaller segments are taken only where that is not possible with larger ones.

    :raises InvalidArgumentError: ``memory_bytes`` is not a positive number
    """
    if not 0 < memory_bytes < _MOST_MEMORY:  # false for NaN too
        raise InvalidArgumentError("memory_bytes", memory_bytes, "a positive number of bytes")
    found = next((best for segment in SEGMENTS if (best := _largest(load, memory_bytes, segment)) is not None), None)
    recommended = _least(load) if found is None else found
    counts = sorted({min(step, load.most_buckets) for step in _STEPS} | {recommended.buckets})
    rows = tuple(bucket_size(load, count, recommended.segment) for count in counts)
    return BucketPlan(load, float(memory_bytes), rows, recommended, _reason(load, recommended, memory_bytes))


def _sizes(load: BucketLoad, segment: int) -> list[BucketSize]:
    return [bucket_size(load, count, segment) for count in range(min(load.most_buckets, _MOST_BUCKETS), 0, -1)]


def _largest(load: BucketLoad, memory_bytes: float, segment: int) -> BucketSize | None:
    return next((size for size in _sizes(load, segment) if size.bytes <= memory_bytes), None)


def _least(load: BucketLoad) -> BucketSize:
    return min((size for segment in SEGMENTS for size in _sizes(load, segment)), key=lambda size: size.bytes)


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
    if size.buckets == load.most_buckets:
        return text + "Nothing has to be merged."
    return text + f"Each message is written {1 + size.rewrites:.2g} times; fewer buckets would mean more often."
