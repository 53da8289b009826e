"""How often something was done on storage, how it went, and how long it took."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

from ._statistics import LATENCY_BOUNDS_MS, OPERATION_STATES, OPERATION_TYPES, OperationLatency

_log = logging.getLogger("pulsar_nack.delayed")


class Operations:
    """Counts what was tried, by type and state, and the last error; how long it took where it succeeded.

    Every key is there from the beginning: a thread that reads while the loop counts finds tables of a fixed size.

    :param now: seconds of a monotonic clock
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._latencies: Final = {kind: _Latencies() for kind in OPERATION_TYPES}
        self.counts: Counter[tuple[str, str]] = Counter(
            {(kind, state): 0 for kind in OPERATION_TYPES for state in OPERATION_STATES}
        )
        self.damaged = 0
        self.last_error: Exception | None = None

    def note_damage(self, error: Exception, what: str) -> None:
        """Count and log a damaged or lost snapshot or segment; ``what`` is its effect."""
        self.damaged += 1
        self.last_error = error
        _log.warning("%s: %s", what, error)

    @asynccontextmanager
    async def counted(self, kind: str) -> AsyncIterator[None]:
        """Count one operation; its error goes on. One that is cancelled has neither succeeded nor failed. O(1)."""
        self.counts[kind, "all"] += 1
        began_at = self._now()
        try:
            yield
        except Exception as error:
            self.counts[kind, "failed"] += 1
            self.last_error = error
            raise
        self.counts[kind, "succeed"] += 1
        self._latencies[kind].add(1000 * (self._now() - began_at))

    def latency(self) -> dict[str, OperationLatency]:
        """Return by type how long operations took."""
        return {kind: each.snapshot() for kind, each in self._latencies.items()}


class _Latencies:
    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._total_ms = 0.0

    def add(self, took_ms: float) -> None:
        self._counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        self._total_ms += took_ms

    def snapshot(self) -> OperationLatency:
        return OperationLatency(tuple(self._counts), self._total_ms)
