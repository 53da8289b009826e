"""Removes stale copies from the buckets, some parts of a bucket in each call, so that no call takes long."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from ._chunks import unseal
from ._distant import GROUP_MS
from ._earliest import EarliestBucket
from ._pending import PendingIds
from ._sealer import Sealer
from ._store import BucketStore

_SWEEP_AT: Final = 1024
_STEPS: Final = 4


class Sweeper:
    """Goes through all buckets in order of time when the extra copies outnumber the pending ids.

    Other calls may come between its steps. Thin buckets of split groups are put back into groups afterwards.
    """

    __slots__ = ("_earliest", "_pending", "_sealer", "_stale", "_steps", "_store")

    def __init__(self, pending: PendingIds, store: BucketStore, sealer: Sealer, earliest: EarliestBucket) -> None:
        self._pending = pending
        self._store = store
        self._stale = store.stale
        self._sealer = sealer
        self._earliest = earliest
        self._steps: Iterator[None] | None = None

    def clear(self) -> None:
        """Stop a running sweep, because the store was cleared."""
        self._steps = None

    def sweep_if_worth_it(self) -> None:
        """Begin a sweep if there are many extra copies, or continue a running one by a few steps."""
        if self._steps is not None or self._stale.extra > max(_SWEEP_AT, len(self._pending)):
            self.sweep(_STEPS)

    def sweep(self, steps: int | None = None) -> None:
        """Begin or continue a sweep by some steps, or up to its end."""
        self._pending.settle()
        if self._steps is None:
            self._steps = self._all_steps()
        for _ in islice(self._steps, steps):
            pass
        if self._stale.sweep is None:
            self._steps = None
            self._pending.release_unused(self._pending.blocks, self._stale.numbers)
            self._earliest.on_swept()

    def _all_steps(self) -> Iterator[None]:
        self._stale.begin_sweep()
        start, split = self._next_start(None)
        thin: list[int] = []
        while start is not None:
            if split and thin and split[0] - thin[0] >= GROUP_MS:
                self._sealer.regroup(thin)
                thin = []
            thin += split
            for numbers in self._store.draining.get(start, ()):
                self._stale.keep_marks(numbers)
                yield
            yield from self._sweep_chunks(start)
            self._sweep_open(start)
            yield
            start, split = self._next_start(start)
        self._sealer.regroup(thin)
        self._stale.end_sweep()

    def _next_start(self, after: int | None) -> tuple[int | None, list[int]]:
        """Return the next bucket that has more than id ranges, and the starts of the groups that were split for it."""
        starts, distant = self._store.starts, self._store.distant
        row = 0 if after is None else starts.bisect_right(after)
        start: int | None = starts[row] if row < len(starts) else None
        base = distant.first_base() if after is None else distant.next_base(after)
        if base is None or (start is not None and start < base):
            return start, []
        split = self._sealer.split(base)
        start, more = self._next_start(after)
        return start, split + more

    def _swept(self, numbers: Any, start: int) -> Any:
        return self._stale.sweep_part(numbers, self._pending.numbers, start, self._store.ranges.covered)

    def _sweep_chunks(self, start: int) -> Iterator[None]:
        by_start = self._store.chunks.by_start
        chunks = by_start.get(start)
        place = 0
        while chunks is not None and by_start.get(start) is chunks and place < len(chunks):
            numbers = unseal(chunks[place], self._pending.bitmap_type)
            kept = self._swept(numbers, start)
            if len(kept) < len(numbers):
                self._store.chunks.replace(start, place, kept)
                self._store.delist(start)
            place += bool(kept)
            yield

    def _sweep_open(self, start: int) -> None:
        numbers = self._store.open.get(start)
        if numbers is None:
            return
        numbers[:] = self._swept(self._pending.bitmap_type(numbers), start).to_array()
        if not numbers:
            self._store.drop_open(start)
