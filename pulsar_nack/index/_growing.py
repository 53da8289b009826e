"""What lies in each bucket of time: numbers, from a list that still grows to nothing at all.

A bucket is named by its start in ms. Its numbers are in up to five places:

- *open*: an ``array`` that ids are appended to; at most ``FOLD`` of them (and what one run of the fast path adds).
  ``appends`` holds the bound method of those that the fast path may append to without a look
- *chunks*: sealed parts, each a ``bytes`` object of the smallest encoding
- *windows*: sealed parts that cost nothing per id, as long as no other bucket has pending numbers in their range
- *blocks*: numbers of many thin buckets side by side (see ``_blocks``)
- *rest*: what is left of a bucket that is being drained with a limit (see ``_rest``)

States: an open array is *folded* (made a window or a chunk, and emptied) when it is long, and *closed* (folded and
dropped) when it has not grown between two looks; one or two buckets are looked at whenever a bucket is made, so
nothing is scanned. Closing is only a guess that no more will come: a bucket that gets another number simply has an
open array again.

Invariants: ``starts`` holds exactly the starts of ``open``, ``chunks`` and ``rests``; every pending number has a copy
that counts in exactly one bucket (see ``_copies``); the pending numbers in a window's range are exactly its content.

Tried and dropped: a bitmap per bucket that ids are added to (150 ns an id, and its spare room is not given back),
compressing on every add, and one container per bucket and ledger (180 bytes an id when deadlines are scattered).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice, takewhile
from operator import le
from typing import Any, Final

from sortedcontainers import SortedList

from ._blocks import BLOCK_MS, Blocks
from ._copies import Copies
from ._positions import Positions, slot_bounds
from ._rest import Rest
from ._sealed import OBJECT_BYTES, is_plain, pack, seal, unseal, where_begins
from ._windows import Window, Windows

FOLD: Final = 512
"""An open array is folded when it is this long."""
_FOLD_EARLY: Final = 176
"""While many arrays are open they are folded sooner: objects of up to 512 bytes leave no holes in memory."""
_FOLD_PLAIN: Final = 118
"""The same for numbers that lie so far apart that they are kept as they are."""
_MANY_OPEN: Final = 64
_WORTH_CLOSING: Final = 64
_MOST_OPEN: Final = 1024
_SPLIT_AT: Final = 32
_MOST_FAILED: Final = 2
_GIVE_UP: Final = 16
_TRY_AGAIN: Final = 8
_GIVE_UP_FOR_LONG: Final = 128
_TRY_RARELY: Final = 64
_JOIN: Final = 16
_SMALL: Final = 4_096
_LARGE: Final = 65_536
_OPEN_BYTES: Final = 240
_CHUNKS_BYTES: Final = 160
_WINDOW_BYTES: Final = 20


class GrowingBuckets:
    """Buckets of numbers by start; ``positions`` says which numbers are pending, ``copies`` which copies count.

    The way in: open arrays, blocks, and how they are sealed. The base of :class:`~._store.BucketStore`.
    """

    __slots__ = (
        "_bitmap",
        "_failures",
        "_growing",
        "_newest",
        "_positions",
        "_typecode",
        "appends",
        "blocks",
        "chunk_bytes",
        "chunks",
        "copies",
        "fold_at",
        "folded",
        "open",
        "rests",
        "starts",
        "windows",
    )

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._bitmap = positions.bitmap
        self._typecode = positions.typecode
        self.copies = Copies(self._bitmap)
        self.open: dict[int, array[int]] = {}
        self.appends: dict[int, Callable[[int], None]] = {}
        self.chunks: dict[int, list[bytes]] = {}
        self.rests: dict[int, Rest] = {}
        self.blocks = Blocks(self._typecode)
        self.windows = Windows(self._bitmap, self._typecode)
        self.starts: SortedList[int] = SortedList()
        self.chunk_bytes = 0
        self.folded = 0
        self.fold_at = FOLD
        self._failures = 0
        self._growing: deque[tuple[int, int, bool]] = deque()
        self._newest = -(1 << 100)

    def widen(self) -> None:
        """Follow the positions to numbers of 64 bits; chunks are widened when they are read."""
        self._bitmap, self._typecode = self._positions.bitmap, self._positions.typecode
        self.appends.clear()
        self.blocks.widen()
        for start, numbers in self.open.items():
            self.open[start] = array(self._typecode, numbers)
        for rest in self.rests.values():
            rest.widen(self._bitmap)
        narrow, self.windows = self.windows, Windows(self._bitmap, self._typecode)
        for window in narrow:
            self.windows.add(window)
        self.copies.widen()

    def first_start(self) -> int | None:
        """Return the start of the earliest bucket, None when there is none; the blocks before it are split. O(1)."""
        first = self._first_start()
        while (base := self.blocks.first_base()) is not None and (first is None or base <= first):
            self.split(base)
            first = self._first_start()
        return first

    def _first_start(self) -> int | None:
        first = self.windows.first_start()
        if not self.starts:
            return first
        start: int = self.starts[0]
        return start if first is None else min(start, first)

    def bucket_count(self) -> int:
        """Return about how many buckets there are: one with windows and other parts counts twice, a block once."""
        return len(self.starts) + len(self.windows) + len(self.blocks)

    def memory(self) -> int:
        """Return about how many bytes the buckets take, but for the ids in open arrays. O(1).

        ``folded`` counts the numbers that have left open arrays, so that the owner knows how many are in them.
        """
        buckets = _OPEN_BYTES * len(self.starts) + _CHUNKS_BYTES * len(self.chunks) + _WINDOW_BYTES * len(self.windows)
        return self.chunk_bytes + buckets + self.blocks.bytes()

    # -- growing -----------------------------------------------------------------------------------------------------

    def growing(self, start: int) -> array[int]:
        """Return the open array of a bucket, made or folded when needed, to append to."""
        numbers = self.open.get(start)
        if numbers is None:
            return self._make(start)
        if len(numbers) >= self.fold_at:
            self.fold(start)
        return numbers

    def _make(self, start: int) -> array[int]:
        self._look_after_growing()
        self._enlist(start)
        numbers = self.open[start] = array(self._typecode)
        if len(self.open) > _MANY_OPEN:
            self.fold_at = min(_FOLD_EARLY, self.fold_at)
        is_newest = start > self._newest
        if is_newest:
            self._newest = start
        self._growing.append((start, -1, is_newest))
        return numbers

    def _look_after_growing(self) -> None:
        for _ in range(min(2, len(self._growing))):
            start, length, was_newest = self._growing.popleft()
            numbers = self.open.get(start)
            if numbers is None:
                continue
            if len(numbers) != length:
                self._growing.append((start, len(numbers), was_newest))
            elif was_newest or length >= _WORTH_CLOSING:
                self.close(start)

    def fold(self, start: int) -> None:
        """Seal what is in the open array of a bucket, and empty it."""
        numbers = self.open[start]
        self.folded += len(numbers)
        if numbers and not self.copies.extra and self._gives_up():
            self._failures += 1
            chunk = pack(numbers, self._bitmap)
            del numbers[:]
            self._append_chunk(start, chunk)
            return
        content = self.copies.living(self._bitmap(numbers), self._positions.pending, start)
        del numbers[:]
        self.seal(start, content)

    def _gives_up(self) -> bool:
        """Return whether so many parts were no windows that this one is not tried."""
        failures = self._failures
        if failures < _GIVE_UP:
            return False
        return failures % (_TRY_AGAIN if failures < _GIVE_UP_FOR_LONG else _TRY_RARELY) > 0

    def close(self, start: int) -> None:
        """Fold a bucket's open array and drop it."""
        self.fold(start)
        self._drop_open(start)
        self._forget(start)

    def _drop_open(self, start: int) -> None:
        self.open.pop(start, None)
        self.appends.pop(start, None)
        if len(self.open) <= _MANY_OPEN:
            self.fold_at = FOLD

    def _has_parts(self, start: int) -> bool:
        return start in self.open or start in self.chunks or start in self.rests

    def _enlist(self, start: int) -> None:
        """Name a bucket in ``starts``, before it gets a part that may be its first."""
        if not self._has_parts(start):
            self.starts.add(start)

    def _forget(self, start: int) -> None:
        if not self._has_parts(start):
            self.starts.discard(start)

    # -- thin buckets ------------------------------------------------------------------------------------------------

    def is_for_block(self, start: int, earliest: int) -> bool:
        """Return whether a number for ``start`` goes to a block: it is far off, and too many buckets are open."""
        return len(self.open) >= _MOST_OPEN and start - earliest > BLOCK_MS and not self._has_parts(start)

    def put_in_block(self, number: int, start: int) -> None:
        """Add a number to the block of its bucket."""
        block = self.blocks.put(number, start)
        if block.is_large():
            self.split(block.base)

    def split(self, base: int) -> list[int]:
        """Make buckets of a block and return their starts; those that are no longer thin are folded. At most 8 ms."""
        starts = []
        for start, numbers in self.blocks.take(base).by_start():
            starts.append(start)
            known = self.open.get(start)
            if known is None:
                self._enlist(start)
                self.open[start] = numbers
                self._growing.append((start, -1, False))
            else:
                known.extend(numbers)
            if len(self.open[start]) >= FOLD >> 1:
                self.fold(start)
        return starts

    def _gather(self, starts: list[int]) -> None:
        """Put thin buckets that were looked at back into a block."""
        first = self._first_start()
        if not starts or first is None or first > starts[0] - BLOCK_MS:
            return
        for start in starts:
            numbers = self.open.get(start)
            if numbers is not None and start not in self.chunks and start not in self.rests:
                for number in numbers:
                    self.blocks.put(number, start)
                self._drop_open(start)
                self._forget(start)

    # -- sealing -----------------------------------------------------------------------------------------------------

    def seal(self, start: int, content: Any) -> None:
        """Add pending numbers that count in this bucket, as windows where that is true, else as a chunk."""
        if not content:
            return
        if self.copies.touches(content):
            self._add_chunk(start, content)
        elif self._gives_up():
            self._failures += 1
            self._add_chunk(start, content)
        else:
            low, high = content.min(), content.max()
            if low >> 16 == high >> 16 and self._add_window(start, low, high, len(content)):
                self._failures = 0
            else:
                self._add_parts(start, content)

    def _add_window(self, start: int, low: int, high: int, count: int) -> bool:
        if self._positions.pending.range_cardinality(low, high + 1) != count:
            return False
        windows = self.windows
        if windows.covered.range_cardinality(low, high + 1):
            return False
        last = windows.last_of(start)
        if last is not None and last.high < low and last.high >> 16 == low >> 16 and self._is_free(last.high + 1, low):
            windows.extend(start, high)
        else:
            windows.add(Window(start, low, high))
        return True

    def _is_free(self, low: int, end: int) -> bool:
        return not self._positions.pending.range_cardinality(low, end) and not self.windows.covered.range_cardinality(
            low, end
        )

    def _add_parts(self, start: int, content: Any) -> None:
        """Add numbers as a window for each slot as far as that is true; after two failures it is not tried on.

        After many that all failed only some of the parts are tried at all.
        """
        self._failures += 1
        flat = content.to_array()
        slots = slot_bounds(flat)
        failed = 0
        if len(slots) > 1 and len(flat) >= _SPLIT_AT * len(slots):
            for at, end, low in slots:
                high = flat[end - 1]
                if end - at >= _SPLIT_AT and self._add_window(start, low, high, end - at):
                    content.remove_range(low, high + 1)
                    self._failures = 0
                else:
                    failed += 1
                if failed == _MOST_FAILED:
                    break
        if content:
            self._add_chunk(start, content)

    def _add_chunk(self, start: int, content: Any) -> None:
        self._append_chunk(start, seal(content))

    def _append_chunk(self, start: int, chunk: bytes) -> None:
        chunks = self.chunks.get(start)
        if chunks is None:
            self._enlist(start)
            chunks = self.chunks[start] = []
        chunks.append(chunk)
        self.chunk_bytes += len(chunk) + OBJECT_BYTES
        if not len(chunks) % _JOIN and self.copies.sweep is None:
            self._join(chunks)
        if self.fold_at < FOLD:
            self.fold_at = min(_FOLD_PLAIN if is_plain(chunk) else _FOLD_EARLY, FOLD - 1)

    def _join(self, chunks: list[bytes]) -> None:
        """Join the last chunks, all of about one size, where they reach over each other: ids came in any order.

        Read in order of number all of them would have to be decoded at once. A number is joined twice at most, a few ns
        each time; not during a sweep, which goes by the places of chunks.
        """
        size = _SMALL if len(chunks[-1]) < _SMALL else _LARGE
        last = list(takewhile(partial(_is_of, size), islice(reversed(chunks), 2 * _JOIN)))
        if len(last) < _JOIN >> 1 or not _overlap(last):
            return
        joined = seal(self._bitmap.union(*(unseal(chunk, self._bitmap) for chunk in last)))
        self.chunk_bytes += len(joined) + OBJECT_BYTES - sum(map(len, last)) - OBJECT_BYTES * len(last)
        chunks[-len(last) :] = [joined]

    def dissolve(self, number: int) -> None:
        """Write down the content of the window over ``number``, since another bucket wants a number in its range."""
        window = self.windows.take_over(number)
        content = self._positions.pending & self._bitmap(range(window.low, window.high + 1))
        if content:
            self.copies.keep_marks(content)
            self._add_chunk(window.start, content)


def _is_of(size: int, chunk: bytes) -> bool:
    return (0 if size == _SMALL else _SMALL) <= len(chunk) < size


def _overlap(chunks: list[bytes]) -> bool:
    """Return whether half of the chunks, the latest first, begin where the one before them does, or before."""
    begins = [where_begins(chunk) for chunk in chunks]
    reaching_over: int = sum(map(le, begins, begins[1:]))
    return 2 * reaching_over >= len(begins) - 1
