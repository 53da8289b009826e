"""The earliest bucket that has something living in it.

``earliest`` is exact, so that nobody waits for a bucket whose ids were all cancelled. To know in O(1)
when the last one goes, the living content of the earliest bucket is kept from the first cancellation until that
bucket is another one. While a bucket of many ids is being drained bit by bit it is not looked after, which would cost
a look at all of them after each bit: it is due already, so nobody waits for it. And after 1 000 empty buckets in one go
the next one is taken unseen, so that no call takes long: somebody may then wake for nothing, once.
"""

from __future__ import annotations

from typing import Any, Final

from ._store import BucketStore

NEVER: Final = (1 << 63) - 1
"""``earliest`` while nothing is pending: later than every start, which has to fit into 63 bits."""

_MANY: Final = 16_384
_MOST_DROPPED: Final = 1_000


class Front:
    """Follows the earliest bucket of a store; one object for the whole life of an index."""

    __slots__ = ("_living", "_may_have_empty", "_store", "earliest")

    def use(self, store: BucketStore) -> None:
        """Follow a store that is empty."""
        self._store = store
        self._living: Any = None
        self._may_have_empty = False
        self.earliest = NEVER

    def is_kept(self, start: int) -> bool:
        """Return whether each number that is added to this bucket has to be told."""
        return start == self.earliest and self._living is not None

    def added(self, start: int, numbers: Any) -> None:
        """Numbers, in a bitmap or a list, were added to a bucket."""
        if start < self.earliest:
            self.earliest = start
            self._living = None
        elif self.is_kept(start):
            self._living.update(numbers)

    def cancelled(self, number: int) -> None:
        """A number is no longer pending; when it was the last of the earliest bucket, the next is found."""
        self._may_have_empty = True
        if self._store.rest_size(self.earliest) > _MANY:
            return
        if self._living is None:
            self._living = self._store.content(self.earliest)
        self._living.discard(number)
        if not self._living:
            self.find()

    def swept(self) -> None:
        """Copies were dropped, and marks with them, but windows may be empty all the same."""
        self._may_have_empty = True
        self.find()

    def find(self) -> None:
        """Find the first bucket with something living in it; drop those before it."""
        self._living = None
        store = self._store
        dropped = 0
        while (start := store.first_start()) is not None:
            if not (self._may_have_empty or store.copies) or store.is_living(start) or dropped >= _MOST_DROPPED:
                self.earliest = start
                return
            store.drop(start)
            dropped += 1
        self.earliest = NEVER
