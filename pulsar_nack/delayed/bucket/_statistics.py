"""The statistics of a bucket tracker, and the counters of its storage operations."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final

OPERATION_TYPES: Final = ("create", "load", "delete", "merge")
OPERATION_STATES: Final = ("all", "succeed", "failed")
LATENCY_BOUNDS_MS: Final = (50, 100, 500, 1_000, 5_000, 30_000, 60_000)
_log = logging.getLogger("pulsar_nack.delayed")


@dataclass(frozen=True, slots=True)
class OperationLatency:
    """How long the successful operations of one type took."""

    counts: tuple[int, ...]
    """How many took up to 50, 100, 500, 1 000, 5 000, 30 000, 60 000 ms, and longer; each counts once."""
    total_ms: float
    """The sum of their times."""

    @property
    def count(self) -> int:
        """Return the number of operations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """A snapshot of a tracker's figures; totals count from its opening."""

    messages: int
    """Messages that are held back."""
    buckets: int
    """Sealed buckets on storage."""
    loaded: int
    """Indexes in memory, including those that are also on storage."""
    unsealed: int
    """Indexes that are not on storage yet."""
    bytes: int
    """About how much memory is in use."""
    snapshot_bytes: int
    """How much the snapshots take on storage, as far as the storage says."""
    is_recovering: bool
    """Whether snapshots of an earlier run are still being read; until then the dispatcher may read their messages."""
    operations: Mapping[tuple[str, str], int]
    """Operations by type (``create``, ``load``, ``delete``, ``merge``) and state (``all``, ``succeed``, ``failed``)."""
    latency: Mapping[str, OperationLatency]
    """How long operations took, by type."""
    damaged: int
    """Snapshots and segments that were damaged or missing."""
    last_error: Exception | None
    """The last error of the storage; the operation was, or is, retried."""


class OperationCounters:
    """Counts storage operations by type and state, times the successful ones, and keeps the last error.

    Every key exists from the start, so a thread that reads while the loop counts sees tables of a fixed size.

    :param now: seconds of a monotonic clock
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._took: Final = {kind: [0] * (len(LATENCY_BOUNDS_MS) + 1) for kind in OPERATION_TYPES}
        self._total_ms: Final = dict.fromkeys(OPERATION_TYPES, 0.0)
        self.counts: Counter[tuple[str, str]] = Counter(
            {(kind, state): 0 for kind in OPERATION_TYPES for state in OPERATION_STATES}
        )
        self.damaged = 0
        self.last_error: Exception | None = None

    def note_damage(self, error: Exception, effect: str) -> None:
        """Count and log a damaged or lost snapshot or segment."""
        self.damaged += 1
        self.last_error = error
        _log.warning("%s: %s", effect, error)

    @asynccontextmanager
    async def counted(self, kind: str) -> AsyncIterator[None]:
        """Count the operation in the ``async with`` block. A cancelled one has neither succeeded nor failed. O(1)."""
        self.counts[kind, "all"] += 1
        began_at = self._now()
        try:
            yield
        except Exception as error:
            self.counts[kind, "failed"] += 1
            self.last_error = error
            raise
        self.counts[kind, "succeed"] += 1
        took_ms = 1000 * (self._now() - began_at)
        self._took[kind][bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        self._total_ms[kind] += took_ms

    def latency(self) -> dict[str, OperationLatency]:
        """Return how long operations took, by type."""
        return {kind: OperationLatency(tuple(counts), self._total_ms[kind]) for kind, counts in self._took.items()}
