"""The numbers in each time bucket, how they are read and taken out, and which bucket is the earliest.

A bucket is named by its start in ms. Its numbers are in up to five places:

- *open*: an ``array`` that ids are appended to. ``appends`` holds the bound ``append`` of those arrays that the fast
  path of the ``Inserter`` may use without a further look
- *chunks*: sealed parts, each a ``bytes`` object in the smallest encoding (see ``_chunks``)
- *id ranges*: sealed parts that cost nothing per id, as long as no other bucket has pending numbers in them
- *distant*: numbers of many thin buckets side by side (see ``_distant``)
- *draining*: the remainder of a bucket that is taken out in several calls (see ``_chunks``)

Numbers get in and are sealed by the ``Sealer``.

Invariants: ``starts`` holds exactly the starts of ``open``, ``chunks`` and ``draining``; every pending number has a
live copy in exactly one bucket (see ``_stale``); the pending numbers within an id range are exactly its content.

The start of the earliest bucket with a live number is exact, so nothing waits for a bucket whose ids were all
cancelled. To notice in O(1) when the last one is cancelled, the live numbers of the earliest bucket are kept from the
first cancellation until another bucket is the earliest. While a bucket of many ids is drained in several calls they are
not kept, which would read all of them after each call; the bucket is due already, so nothing waits for it. And after
1 000 empty buckets in one call the next one is not checked, so that no call takes long: a timer may then fire for
nothing, once.

Tried and dropped: a bitmap per bucket that ids are added to (150 ns an id, and its spare room is not given back),
compressing on every add, and one container per bucket and ledger (180 bytes an id when deadlines are scattered).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from sortedcontainers import SortedList

from .._check import INT64_MAX
from ._chunks import DrainingBucket, SealedChunks, unseal
from ._distant import GROUP_MS, DistantBuckets
from ._id_ranges import IdRanges, numbers_in
from ._pending import PendingIds
from ._stale import StaleCopies

NEVER: Final = INT64_MAX
"""The start of the earliest bucket while nothing is pending; later than every start, which has to fit into 63 bits."""

_FEW_PARTS: Final = 16
_LARGE_PART: Final = 8_192
_OPEN_BYTES: Final = 240
_SPARE: Final = 1.125
_MAX_OPEN: Final = 1024
_MANY: Final = 16_384
_MAX_DROPPED: Final = 1_000


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
        """Return the start of the earliest bucket; None without one; the groups before it are split. O(1)."""
        while True:
            first = self.ranges.first_start()
            if self.starts:
                first = self.starts[0] if first is None else min(self.starts[0], first)
            base = self.distant.first_base()
            if base is None or (first is not None and first < base):
                return first
            self.split(base)

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
        if not self.stale.is_sweeping:
            self.chunks.join_overlapping(start, self._pending.bitmap_type)

    # -- distant buckets ---------------------------------------------------------------------------------------------

    def is_distant(self, start: int, earliest: int) -> bool:
        """Return whether a number for ``start`` goes to a group: it is far off, and too many buckets are open."""
        return len(self.open) >= _MAX_OPEN and start - earliest > GROUP_MS and not self.has_parts(start)

    def split(self, base: int) -> list[int]:
        """Make buckets of a group and return their starts. At most 8 ms."""
        starts = []
        for start, numbers in self.distant.take(base).by_start():
            starts.append(start)
            if start in self.open:
                self.open[start].extend(numbers)
            else:
                self.enlist(start)
                self.open[start] = numbers
        return starts

    def regroup(self, starts: list[int]) -> None:
        """Put buckets that are still thin back into groups, after a sweep has looked at them."""
        first = self.first_start()
        if not starts or first is None or first > starts[0] - GROUP_MS:
            return
        for start in starts:
            numbers = self.open.get(start)
            if numbers is not None and start not in self.chunks.by_start and start not in self.draining:
                for number in numbers:
                    self.distant.add(number, start, self._pending.typecode)
                self.drop_open(start)

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
        ranges = self.ranges.of(start)
        stored = self._stored(start)
        return stored | numbers_in(ranges, self._pending.numbers) if ranges else stored

    def is_live(self, start: int) -> bool:
        """Return whether a bucket has a live number."""
        pending = self._pending.numbers
        if any(pending.range_cardinality(each.low, each.high + 1) for each in self.ranges.of(start)):
            return True
        return any(self.stale.live_copies(part, pending, start) for part in self._parts(start))

    def take(self, start: int) -> Any:
        """Remove a bucket that is not being drained, and return its live numbers."""
        live = self.live_numbers(start)
        self.drop(start)
        return live

    def take_until(self, start: int) -> Any:
        """Remove all buckets up to ``start``, and return their live numbers."""
        while (base := self.distant.first_base()) is not None and base <= start:
            self.split(base)
        pending = self._pending.numbers
        parts = [numbers_in(self.ranges.take_until(start), pending)]
        for due in list(self.starts.irange(None, start)):
            parts += (self._stored(due),) if self.stale else self._parts(due)
            self.drop(due)
        return type(pending).union(*parts) & pending

    def drop(self, start: int) -> None:
        """Remove a bucket with everything in it."""
        self.ranges.take(start)
        self.chunks.take(start)
        self.draining.pop(start, None)
        self.drop_open(start)

    # -- draining in several calls -----------------------------------------------------------------------------------

    def is_large(self, start: int) -> bool:
        """Return whether decoding a whole bucket takes long and can be avoided, as numbers are in order of position."""
        chunks = self.chunks.by_start.get(start, ())
        parts = len(chunks) + sum(map(len, chunks)) // _LARGE_PART
        if parts <= _FEW_PARTS < len(self.ranges):
            parts += len(self.ranges.of(start))
        return parts > _FEW_PARTS and self._pending.are_in_order

    def drain(self, start: int) -> DrainingBucket:
        """Begin to drain a large bucket, most of it still encoded."""
        parts: list[Any] = [numbers_in([each], self._pending.numbers) for each in self.ranges.of(start)]
        parts += self.chunks.by_start.get(start, ())
        parts.append(self._pending.bitmap_type(self.open.get(start, ())))
        self.drop(start)
        return self._drain_parts(start, [part for part in parts if part], is_merged=True)

    def drain_numbers(self, start: int, numbers: Any) -> DrainingBucket:
        """Begin to drain a bucket whose numbers have been taken out already."""
        parts = [self._pending.bitmap_type(flat) for _, flat in self._pending.runs(numbers)]
        return self._drain_parts(start, parts, is_merged=False)

    def _drain_parts(self, start: int, parts: list[Any], *, is_merged: bool) -> DrainingBucket:
        remainder = DrainingBucket(self._pending.bitmap_type, parts, is_merged=is_merged)
        if self.stale.is_sweeping:  # which cannot reach the parts
            for numbers in remainder:
                self.stale.keep_marks(numbers)
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


class EarliestBucket:
    """Follows the earliest bucket of a store that has a live number; ``start`` is its start."""

    __slots__ = ("_live", "_may_have_empty", "_store", "start")

    def __init__(self, store: BucketStore) -> None:
        self._store = store
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
        while (start := store.first_start()) is not None:
            if not (self._may_have_empty or store.stale) or store.is_live(start) or dropped >= _MAX_DROPPED:
                self.start = start
                return
            store.drop(start)
            dropped += 1
        self.start = NEVER
