"""The earliest bucket that has a live number.

Its start is exact, so nothing waits for a bucket whose ids were all cancelled. To notice in O(1) when the last one is
cancelled, the live numbers of the earliest bucket are kept from the first cancellation until another bucket is the
earliest. While a bucket of many ids is drained in several calls they are not kept, which would read all of them after
each call; the bucket is due already, so nothing waits for it. And after 1 000 empty buckets in one call the next one is
not checked, so that no call takes long: a timer may then fire for nothing, once.
"""

from __future__ import annotations

from typing import Any, Final

from .._check import INT64_MAX
from ._sealer import Sealer
from ._store import BucketStore

NEVER: Final = INT64_MAX
"""The start of the earliest bucket while nothing is pending; later than every start, which has to fit into 63 bits."""

_MANY: Final = 16_384
_MAX_DROPPED: Final = 1_000


class EarliestBucket:
    """Follows the earliest bucket of a store; ``start`` is its start."""

    __slots__ = ("_live", "_may_have_empty", "_sealer", "_store", "start")

    def __init__(self, store: BucketStore, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer
        self.clear()

    def clear(self) -> None:
        """Forget everything, because the store was cleared."""
        self._live: Any = None
        self._may_have_empty = False
        self.start = NEVER

    def is_kept(self, start: int) -> bool:
        """Return whether :meth:`on_added` must be called for each number that is added to this bucket."""
        return start == self.start and self._live is not None

    def on_added(self, start: int, numbers: Any) -> None:
        """Note that numbers, in a bitmap or a tuple, were added to a bucket."""
        if start < self.start:
            self.start = start
            self._live = None
        elif self.is_kept(start):
            self._live.update(numbers)

    def on_cancelled(self, number: int) -> None:
        """Note that a number is no longer pending; find the next bucket if it was the last of the earliest."""
        self._may_have_empty = True
        if self._store.draining_size(self.start) > _MANY:
            return
        if self._live is None:
            self._live = self._store.live_numbers(self.start)
            self._store.appends.pop(self.start, None)
        self._live.discard(number)
        if not self._live:
            self.find()

    def on_swept(self) -> None:
        """Note that a sweep has removed stale copies and their marks, while id ranges may still be empty."""
        self._may_have_empty = True
        self.find()

    def find(self) -> None:
        """Find the first bucket with a live number; drop those before it."""
        self._live = None
        store = self._store
        dropped = 0
        while (start := self._sealer.first_start()) is not None:
            if not (self._may_have_empty or store.stale) or store.is_live(start) or dropped >= _MAX_DROPPED:
                self.start = start
                return
            store.drop(start)
            dropped += 1
        self.start = NEVER
