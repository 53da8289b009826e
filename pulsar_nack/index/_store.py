"""The numbers in each time bucket, and how they are read and taken out.

A bucket is named by its start in ms. Its numbers are in up to five places:

- *open*: an ``array`` that ids are appended to. ``appends`` holds the bound ``append`` of those arrays that the fast
  path of the ``Inserter`` may use without a further look
- *chunks*: sealed parts, each a ``bytes`` object in the smallest encoding (see ``_chunks``)
- *id ranges*: sealed parts that cost nothing per id, as long as no other bucket has pending numbers in them
- *distant*: numbers of many thin buckets side by side (see ``_distant``)
- *draining*: the remainder of a bucket that is taken out in several calls (see ``_draining``)

Numbers get in and are sealed by the ``Sealer``.

Invariants: ``starts`` holds exactly the starts of ``open``, ``chunks`` and ``draining``; every pending number has a
live copy in exactly one bucket (see ``_stale``); the pending numbers within an id range are exactly its content.

Tried and dropped: a bitmap per bucket that ids are added to (150 ns an id, and its spare room is not given back),
compressing on every add, and one container per bucket and ledger (180 bytes an id when deadlines are scattered).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from sortedcontainers import SortedList

from ._chunks import SealedChunks, unseal
from ._distant import DistantBuckets
from ._draining import DrainingBucket
from ._id_ranges import IdRanges, numbers_in
from ._pending import PendingIds
from ._stale import StaleCopies

_FEW_PARTS: Final = 16
_LARGE_PART: Final = 8_192
_OPEN_BYTES: Final = 240
_SPARE: Final = 1.125


class BucketStore:
    """All buckets by start; ``pending`` are the ids that are pending."""

    __slots__ = ("_pending", "appends", "chunks", "distant", "draining", "open", "ranges", "stale", "starts")

    def __init__(self, pending: PendingIds) -> None:
        self._pending = pending
        self.open: dict[int, array[int]] = {}
        self.appends: dict[int, Callable[[int], None]] = {}
        self.chunks = SealedChunks()
        self.draining: dict[int, DrainingBucket] = {}
        self.distant = DistantBuckets()
        self.ranges = IdRanges()
        self.starts: SortedList[int] = SortedList()
        self.stale = StaleCopies()

    def clear(self) -> None:
        """Remove all buckets."""
        self.open.clear()
        self.appends.clear()
        self.chunks.clear()
        self.draining.clear()
        self.distant.clear()
        self.ranges.clear()
        self.starts.clear()
        self.stale.clear()

    def widen(self) -> None:
        """Change to numbers of 64 bits, after ``pending``; chunks are widened when they are read."""
        self.appends.clear()
        for start, numbers in self.open.items():
            self.open[start] = array("Q", numbers)
        for draining in self.draining.values():
            draining.widen(self._pending.bitmap_type)
        self.distant.widen()
        self.ranges.widen()
        self.stale.widen()

    @property
    def is_empty(self) -> bool:
        """Return whether no bucket has a number, not even a stale one. Without a further call, as often asked for."""
        is_filled = self.open or self.chunks.by_start or self.draining or self.distant.by_base or self.ranges.covered
        return not (is_filled or self.stale.extra)

    def bucket_count(self) -> int:
        """Return about how many buckets there are: one with id ranges and other parts counts twice, a group once."""
        return len(self.starts) + len(self.ranges) + len(self.distant)

    def memory(self) -> int:
        """Return about how many bytes are held. O(open arrays)."""
        width = _SPARE * (8 if self._pending.is_wide else 4)
        arrays = _OPEN_BYTES * len(self.starts) + int(width * sum(map(len, self.open.values())))
        return arrays + self.chunks.memory() + self.ranges.memory() + self.distant.memory()

    # -- starts ------------------------------------------------------------------------------------------------------

    def first_start(self) -> int | None:
        """Return the start of the earliest bucket that is not distant; None without one. O(1)."""
        first = self.ranges.first_start()
        if not self.starts:
            return first
        start: int = self.starts[0]
        return start if first is None else min(start, first)

    def has_parts(self, start: int) -> bool:
        """Return whether a bucket has an open array, chunks or a remainder."""
        return start in self.open or start in self.chunks.by_start or start in self.draining

    def enlist(self, start: int) -> None:
        """Add a bucket to ``starts``, before it gets a part that may be its first."""
        if not self.has_parts(start):
            self.starts.add(start)

    def delist(self, start: int) -> None:
        """Remove a bucket from ``starts`` if it has lost its last part."""
        if not self.has_parts(start):
            self.starts.discard(start)

    def drop_open(self, start: int) -> None:
        """Drop the open array of a bucket, with the numbers in it."""
        self.open.pop(start, None)
        self.appends.pop(start, None)
        self.delist(start)

    def add_chunk(self, start: int, chunk: bytes) -> None:
        """Add a sealed chunk to a bucket; during a sweep, which goes by the places of chunks, none are joined."""
        self.enlist(start)
        self.chunks.add(start, chunk)
        if self.stale.sweep is None:
            self.chunks.join_overlapping(start, self._pending.bitmap_type)

    # -- reading and taking ------------------------------------------------------------------------------------------

    def _parts(self, start: int) -> Iterator[Any]:
        yield from self.draining.get(start, ())
        for chunk in self.chunks.by_start.get(start, ()):
            yield unseal(chunk, self._pending.bitmap_type)
        if start in self.open:
            yield self._pending.bitmap_type(self.open[start])

    def _stored(self, start: int) -> Any:
        """Return the live numbers of a bucket that are stored in it, which excludes its id ranges."""
        bitmap_type = self._pending.bitmap_type
        parts = list(self._parts(start))
        numbers = parts[0] if len(parts) == 1 else bitmap_type.union(bitmap_type(), *parts)
        return self.stale.live_copies(numbers, self._pending.numbers, start)

    def live_numbers(self, start: int) -> Any:
        """Return all live numbers of a bucket."""
        return numbers_in(self.ranges.of(start), self._pending.numbers) | self._stored(start)

    def is_live(self, start: int) -> bool:
        """Return whether a bucket has a live number."""
        pending = self._pending.numbers
        if any(pending.range_cardinality(each.low, each.high + 1) for each in self.ranges.of(start)):
            return True
        return any(self.stale.live_copies(part, pending, start) for part in self._parts(start))

    def take(self, start: int) -> Any:
        """Remove a bucket and return its live numbers, except a remainder that is being drained: this stays."""
        stored = self._take_stored(start)
        ranges = self.ranges.take(start)
        return stored | numbers_in(ranges, self._pending.numbers) if ranges else stored

    def take_until(self, start: int) -> Any:
        """Remove all buckets up to ``start``, with remainders, and return their live numbers; none is distant."""
        pending = self._pending.numbers
        parts = [numbers_in(self.ranges.take_until(start), pending)]
        for due in list(self.starts.irange(None, start)):
            parts += (self._stored(due),) if self.stale else self._parts(due)
            self.draining.pop(due, None)
            self._drop_parts(due)
        return type(pending).union(*parts) & pending

    def drop(self, start: int) -> None:
        """Remove a bucket with everything in it."""
        self.ranges.take(start)
        self.draining.pop(start, None)
        self._drop_parts(start)

    def _take_stored(self, start: int) -> Any:
        remainder = self.draining.pop(start, None)
        stored = self._stored(start)
        self._drop_parts(start)
        if remainder is not None:
            self._keep(start, remainder)
        return stored

    def _drop_parts(self, start: int) -> None:
        self.chunks.take(start)
        self.drop_open(start)

    # -- draining in several calls -----------------------------------------------------------------------------------

    def is_large(self, start: int) -> bool:
        """Return whether decoding a whole bucket takes long and can be avoided, as numbers are in order of position."""
        chunks = self.chunks.by_start.get(start, ())
        parts = len(chunks) + sum(map(len, chunks)) // _LARGE_PART
        if parts <= _FEW_PARTS < len(self.ranges):
            parts += len(self.ranges.of(start))
        return parts > _FEW_PARTS and self._pending.blocks.are_in_order

    def drain(self, start: int) -> DrainingBucket:
        """Begin to drain a large bucket, most of it still encoded."""
        parts: list[Any] = [numbers_in([each], self._pending.numbers) for each in self.ranges.take(start)]
        parts += self.chunks.by_start.get(start, ())
        parts.append(self._pending.bitmap_type(self.open.get(start, ())))
        self._drop_parts(start)
        remainder = DrainingBucket(self._pending.bitmap_type, [part for part in parts if part], is_merged=True)
        if self.stale.sweep is not None:
            for numbers in remainder:
                self.stale.keep_marks(numbers)
        return self._keep(start, remainder)

    def drain_numbers(self, start: int, numbers: Any) -> DrainingBucket:
        """Begin to drain a bucket whose numbers have been taken out already."""
        self.stale.keep_marks(numbers)
        bitmap_type = self._pending.bitmap_type
        parts = [bitmap_type(flat) for _, flat in self._pending.runs(numbers)]
        return self._keep(start, DrainingBucket(bitmap_type, parts, is_merged=False))

    def _keep(self, start: int, remainder: DrainingBucket) -> DrainingBucket:
        self.enlist(start)
        self.draining[start] = remainder
        return remainder

    def draining_size(self, start: int) -> int:
        """Return about how many numbers of a bucket are left to drain, including cancelled ones; O(parts)."""
        remainder = self.draining.get(start)
        return 0 if remainder is None else remainder.size()

    def end_draining(self, start: int) -> None:
        """Forget a remainder that is used up."""
        del self.draining[start]
        self.delist(start)
