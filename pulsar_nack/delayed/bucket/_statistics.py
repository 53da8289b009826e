"""What a bucket tracker says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OPERATION_TYPES: Final = ("create", "load", "delete", "merge")
OPERATION_STATES: Final = ("all", "succeed", "failed")
LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)


@dataclass(frozen=True, slots=True)
class OperationLatency:
    """How long the operations of one type took that succeeded."""

    counts: tuple[int, ...]
    """How many took up to 50, 100, 500, 1 000, 5 000, 30 000, 60 000 ms, and longer; each counts once."""
    total_ms: float
    """How long all of them took together."""

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """A snapshot of a tracker's figures; totals count since it was opened."""

    messages: int
    """Messages that are held back."""
    buckets: int
    """Sealed buckets that are on storage."""
    loaded: int
    """Indexes in memory, those that are on storage too among them."""
    unsealed: int
    """Indexes that are on no storage yet."""
    bytes: int
    """About how much memory is in use."""
    snapshot_bytes: int
    """How much the snapshots take on storage, as far as it was told."""
    is_recovering: bool
    """Whether snapshots of an earlier run are still being read; until then their messages may be read anew."""
    operations: Mapping[tuple[str, str], int]
    """How often by type (``create``, ``load``, ``delete``, ``merge``) and state (``all``, ``succeed``, ``failed``)."""
    latency: Mapping[str, OperationLatency]
    """How long they took, by type."""
    damaged: int
    """Snapshots and segments that were found damaged or gone."""
    last_error: Exception | None
    """What last went wrong on storage; it was, or is, tried again."""
