"""How numbers get into buckets, and how open arrays become smaller than 4 bytes an id.

An open array is *folded* (sealed as an id range or a chunk, and emptied) when it is long, and *closed* (folded and
dropped) when it has not grown between two looks. One or two buckets are looked at whenever a bucket is opened, so
nothing is scanned. Closing is only a guess: a bucket that gets another number is opened again.

A part is first tried as an id range, then as a chunk. Not trying where many parts before it were none, and making
chunks of arrays without a bitmap, saves a tenth of the time where ids come out of order: not worth its lines.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Final

from ._chunks import is_plain, seal
from ._distant import GROUP_MS
from ._pending import PendingIds, by_block
from ._store import BucketStore

FOLD: Final = 512
"""An open array is folded when it is this long."""
_FOLD_EARLY: Final = 176
"""While many arrays are open they are folded sooner: objects of up to 512 bytes leave no holes in memory."""
_FOLD_PLAIN: Final = 118
"""As above, for numbers that lie so far apart that chunks hold them as they are."""
_MANY_OPEN: Final = 64
_WORTH_CLOSING: Final = 64
_MAX_OPEN: Final = 1024
_SPLIT_AT: Final = 32
_LONG_AGO: Final = -(1 << 100)


class Sealer:
    """Opens arrays, folds and closes them, and seals numbers; it decides which buckets are distant."""

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
        is_newest = start > self._newest
        if is_newest:
            self._newest = start
        self._opened.append((start, -1, is_newest))
        return numbers

    def _open(self, start: int) -> array[int]:
        self._close_idle()
        store = self._store
        store.enlist(start)
        numbers = store.open[start] = array(self._pending.typecode)
        self.fold_at = min(_FOLD_EARLY, self.fold_at) if len(store.open) > _MANY_OPEN else FOLD
        is_newest = start > self._newest
        if is_newest:
            self._newest = start
        self._opened.append((start, -1, is_newest))
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

    # -- distant buckets ---------------------------------------------------------------------------------------------

    def is_distant(self, start: int, earliest: int) -> bool:
        """Return whether a number for ``start`` goes to a group: it is far off, and too many buckets are open."""
        store = self._store
        return len(store.open) >= _MAX_OPEN and start - earliest > GROUP_MS and not store.has_parts(start)

    def add_distant(self, number: int, start: int) -> None:
        """Add a number to the group of its bucket."""
        group = self._store.distant.add(number, start, self._pending.typecode)
        if group.must_be_split():
            self.split(group.base)

    def first_start(self) -> int | None:
        """Return the start of the earliest bucket; None without one; the groups before it are split. O(1)."""
        store = self._store
        first = store.first_start()
        while (base := store.distant.first_base()) is not None and (first is None or base <= first):
            self.split(base)
            first = store.first_start()
        return first

    def split_until(self, start: int) -> None:
        """Split all groups that begin at ``start`` or before."""
        while (base := self._store.distant.first_base()) is not None and base <= start:
            self.split(base)

    def split(self, base: int) -> list[int]:
        """Make buckets of a group and return their starts; those that are no longer thin are folded. At most 8 ms."""
        store = self._store
        starts = []
        for start, numbers in store.distant.take(base).by_start():
            starts.append(start)
            known = store.open.get(start)
            if known is None:
                store.enlist(start)
                store.open[start] = numbers
                self._opened.append((start, -1, False))
            else:
                known.extend(numbers)
            if len(store.open[start]) >= FOLD >> 1:
                self.fold(start)
        return starts

    def regroup(self, starts: list[int]) -> None:
        """Put buckets that are still thin back into groups, after a sweep has looked at them."""
        store = self._store
        first = store.first_start()
        if not starts or first is None or first > starts[0] - GROUP_MS:
            return
        for start in starts:
            numbers = store.open.get(start)
            if numbers is not None and start not in store.chunks.by_start and start not in store.draining:
                for number in numbers:
                    store.distant.add(number, start, self._pending.typecode)
                store.drop_open(start)

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
