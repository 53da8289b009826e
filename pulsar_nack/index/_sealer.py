"""How numbers get into buckets, how open arrays become smaller than 4 bytes an id, and how stale copies are removed.

An open array is *folded* (sealed as an id range or a chunk, and emptied) when it is long, and *closed* (folded and
dropped) when it has not grown between two looks. One or two buckets are looked at whenever a bucket is opened, so
nothing is scanned. Closing is only a guess: a bucket that gets another number is opened again.

A part is first tried as an id range, then as a chunk. Not trying where many parts before it were none, and making
chunks of arrays without a bitmap, saves a tenth of the time where ids come out of order: not worth its lines.

Stale copies (see ``_stale``) are removed by a *sweep*, some parts of a bucket in each call, so that no call takes long.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from ._chunks import is_plain, seal, unseal
from ._distant import GROUP_MS
from ._pending import PendingIds, by_block
from ._store import BucketStore, EarliestBucket

FOLD: Final = 512
"""An open array is folded when it is this long."""
_FOLD_EARLY: Final = 176
"""While many arrays are open they are folded sooner: objects of up to 512 bytes leave no holes in memory."""
_FOLD_PLAIN: Final = 118
"""As above, for numbers that lie so far apart that chunks hold them as they are."""
_MANY_OPEN: Final = 64
_WORTH_CLOSING: Final = 64
_SPLIT_AT: Final = 32
_LONG_AGO: Final = -(1 << 100)
_SWEEP_AT: Final = 1024
_STEPS: Final = 4


class Sealer:
    """Opens arrays, folds and closes them, and seals numbers."""

    __slots__ = ("_newest", "_opened", "_pending", "_store", "fold_at")

    def __init__(self, pending: PendingIds, store: BucketStore) -> None:
        self._pending = pending
        self._store = store
        self._opened: deque[tuple[int, int, bool]] = deque()
        """Buckets with an open array: start, length at the last look, whether it was the latest when opened."""
        self.clear()

    def clear(self) -> None:
        """Forget everything, because the store was cleared."""
        self._opened.clear()
        self._newest = _LONG_AGO
        self.fold_at = FOLD

    # -- open arrays -------------------------------------------------------------------------------------------------

    def open_array(self, start: int) -> array[int]:
        """Return the open array of a bucket to append to, opened or folded first if necessary."""
        numbers = self._store.open.get(start)
        if numbers is None:
            return self._open(start)
        if len(numbers) >= self.fold_at:
            self.fold(start)
        return numbers

    def open_first(self, start: int, number: int) -> array[int]:
        """Open the only array, of the only bucket, for a number: nothing else is stored."""
        store = self._store
        numbers = store.open[start] = array(self._pending.typecode, (number,))
        store.starts.add(start)
        self.fold_at = FOLD
        self._opened.clear()
        self._opened.append((start, -1, start > self._newest))
        self._newest = max(self._newest, start)
        return numbers

    def _open(self, start: int) -> array[int]:
        self._close_idle()
        store = self._store
        store.enlist(start)
        numbers = store.open[start] = array(self._pending.typecode)
        self.fold_at = min(_FOLD_EARLY, self.fold_at) if len(store.open) > _MANY_OPEN else FOLD
        self._opened.append((start, -1, start > self._newest))
        self._newest = max(self._newest, start)
        return numbers

    def _close_idle(self) -> None:
        for _ in range(min(2, len(self._opened))):
            start, length, was_newest = self._opened.popleft()
            numbers = self._store.open.get(start)
            if numbers is None:
                continue
            if len(numbers) != length:
                self._opened.append((start, len(numbers), was_newest))
            elif was_newest or length >= _WORTH_CLOSING:
                self.close(start)

    def fold(self, start: int) -> None:
        """Seal the numbers in the open array of a bucket, and empty it."""
        numbers = self._store.open[start]
        live = self._store.stale.live_copies(self._pending.bitmap_type(numbers), self._pending.numbers, start)
        del numbers[:]
        self.seal(start, live)

    def close(self, start: int) -> None:
        """Fold the open array of a bucket and drop it."""
        self.fold(start)
        self._store.drop_open(start)

    def add_distant(self, number: int, start: int) -> None:
        """Add a number to the group of its bucket; split a large group, and fold its buckets that are not thin."""
        store = self._store
        group = store.distant.add(number, start, self._pending.typecode)
        if not group.must_be_split():
            return
        for each in store.split(group.base):
            self._opened.append((each, -1, False))
            if len(store.open[each]) >= FOLD >> 1:
                self.fold(each)

    # -- sealing -----------------------------------------------------------------------------------------------------

    def seal(self, start: int, live: Any) -> None:
        """Add live numbers to a bucket: those of an id block as an id range if possible, the rest as a chunk.

        May empty the bitmap.
        """
        if not live:
            return
        try_add, low, high = self._store.ranges.try_add, live.min(), live.max()
        if not self._store.stale.touches(live):
            if low >> 16 == high >> 16:
                if try_add(start, low, high, len(live), self._pending.numbers):
                    return
            else:
                for run in by_block(live.to_array()):
                    if len(run) >= _SPLIT_AT and try_add(start, run[0], run[-1], len(run), self._pending.numbers):
                        live.remove_range(run[0], run[-1] + 1)
        if live:
            self._add_chunk(start, seal(live))

    def _add_chunk(self, start: int, chunk: bytes) -> None:
        self._store.add_chunk(start, chunk)
        if self.fold_at < FOLD:
            self.fold_at = min(_FOLD_PLAIN if is_plain(chunk) else _FOLD_EARLY, FOLD - 1)

    def dissolve(self, number: int) -> None:
        """Replace the id range around ``number`` by a chunk, because another bucket gets a number within it."""
        dissolved = self._store.ranges.take_around(number)
        live = self._pending.numbers & self._pending.bitmap_type(range(dissolved.low, dissolved.high + 1))
        if live:
            self._store.stale.keep_marks(live)
            self._add_chunk(dissolved.start, seal(live))


class Sweeper:
    """Goes through all buckets in order of time when the extra copies outnumber the pending ids.

    Other calls may come between its steps. Thin buckets of split groups are put back into groups afterwards.
    """

    __slots__ = ("_earliest", "_pending", "_stale", "_steps", "_store")

    def __init__(self, pending: PendingIds, store: BucketStore, earliest: EarliestBucket) -> None:
        self._pending = pending
        self._store = store
        self._stale = store.stale
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
        if not self._stale.is_sweeping:
            self._steps = None
            self._pending.release_unused(list(self._pending.blocks.values()), self._stale.numbers)
            self._earliest.on_swept()

    def _all_steps(self) -> Iterator[None]:
        self._stale.begin_sweep()
        start, split = self._next_start(None)
        thin: list[int] = []
        while start is not None:
            if split and thin and split[0] - thin[0] >= GROUP_MS:
                self._store.regroup(thin)
                thin = []
            thin += split
            for numbers in self._store.draining.get(start, ()):
                self._stale.keep_marks(numbers)
                yield
            yield from self._sweep_chunks(start)
            self._sweep_open(start)
            yield
            start, split = self._next_start(start)
        self._store.regroup(thin)
        self._stale.end_sweep()

    def _next_start(self, after: int | None) -> tuple[int | None, list[int]]:
        """Return the next bucket that has more than id ranges, and the starts of the groups that were split for it."""
        starts, distant = self._store.starts, self._store.distant
        row = 0 if after is None else starts.bisect_right(after)
        start: int | None = starts[row] if row < len(starts) else None
        base = distant.first_base() if after is None else distant.next_base(after)
        if base is None or (start is not None and start < base):
            return start, []
        split = self._store.split(base)
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
