"""What lies in each bucket of time: numbers, from a list that still grows to nothing at all.

A bucket is named by its start in ms. Its numbers are in up to five places:

- *open*: an ``array`` that ids are appended to; at most ``FOLD`` of them (and what one run of the fast path adds).
  ``appends`` holds the bound method of those that the fast path may append to without a look
- *chunks*: sealed parts, each a ``bytes`` object of the smallest encoding
- *windows*: sealed parts that cost nothing per id, as long as no other bucket has pending numbers in their range
- *blocks*: numbers of many thin buckets side by side (see ``_blocks``)
- *rest*: what is left of a bucket that is being drained with a limit, as runs of one slot each

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
from collections.abc import Callable, Iterator
from typing import Any, Final

from sortedcontainers import SortedList

from ._blocks import BLOCK_MS, Blocks
from ._copies import Copies
from ._positions import Positions, Run, slot_end
from ._sealed import OBJECT_BYTES, seal, unseal
from ._windows import Window, Windows

FOLD: Final = 512
"""An open array is folded when it is this long."""
_FOLD_EARLY: Final = 176
"""While many arrays are open they are folded sooner: small objects leave no holes in memory."""
_MANY_OPEN: Final = 64
_WORTH_CLOSING: Final = 64
_MOST_OPEN: Final = 1024
_SPLIT_AT: Final = 32
_MOST_FAILED: Final = 2
_PIECE: Final = 4096
_OPEN_BYTES: Final = 240
_WINDOW_BYTES: Final = 20


class BucketStore:
    """Buckets of numbers by start; ``positions`` says which numbers are pending, ``copies`` which copies count."""

    __slots__ = (
        "_bitmap",
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
        self.rests: dict[int, deque[Run]] = {}
        self.blocks = Blocks(self._typecode)
        self.windows = Windows(self._bitmap, self._typecode)
        self.starts: SortedList[int] = SortedList()
        self.chunk_bytes = 0
        self.folded = 0
        self.fold_at = FOLD
        self._growing: deque[tuple[int, int, bool]] = deque()
        self._newest = -(1 << 100)

    def widen(self) -> None:
        """Follow the positions to numbers of 64 bits; chunks are widened when they are read."""
        self._bitmap, self._typecode = self._positions.bitmap, self._positions.typecode
        self.appends.clear()
        self.blocks.widen()
        for start, numbers in self.open.items():
            self.open[start] = array(self._typecode, numbers)
        for start, rest in self.rests.items():
            self.rests[start] = deque((slot, array(self._typecode, numbers)) for slot, numbers in rest)
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
        """Return about how many buckets there are: one with windows and other parts counts twice, a block once. O(1)."""
        return len(self.starts) + len(self.windows) + len(self.blocks)

    def memory(self) -> int:
        """Return about how many bytes the buckets take, but for the ids in open arrays. O(1).

        ``folded`` counts the numbers that have left open arrays, so that the owner knows how many are in them.
        """
        buckets = _OPEN_BYTES * len(self.starts) + _WINDOW_BYTES * len(self.windows)
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
        if start not in self.chunks and start not in self.rests:
            self.starts.add(start)
        numbers = self.open[start] = array(self._typecode)
        if len(self.open) > _MANY_OPEN:
            self.fold_at = min(_FOLD_EARLY, FOLD)
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
        content = self.copies.living(self._bitmap(numbers), self._positions.pending, start)
        self.folded += len(numbers)
        del numbers[:]
        self.seal(start, content)

    def _chunks_of(self, start: int) -> list[bytes]:
        if start not in self.chunks:
            if start not in self.open and start not in self.rests:
                self.starts.add(start)
            self.chunks[start] = []
        return self.chunks[start]

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

    def _forget(self, start: int) -> None:
        if start not in self.open and start not in self.chunks and start not in self.rests:
            self.starts.discard(start)

    # -- thin buckets ------------------------------------------------------------------------------------------------

    def is_for_block(self, start: int, earliest: int) -> bool:
        """Return whether a number for ``start`` goes to a block: it is far off, and too many buckets are open."""
        return (
            len(self.open) >= _MOST_OPEN
            and start - earliest > BLOCK_MS
            and start not in self.open
            and start not in self.chunks
            and start not in self.rests
        )

    def put_in_block(self, number: int, start: int) -> None:
        """Add a number to the block of its bucket."""
        block = self.blocks.of(start)
        block.add(number, start)
        self.blocks.count += 1
        if block.is_large():
            self.split(block.base)

    def split(self, base: int) -> list[int]:
        """Make buckets of a block and return their starts; those that are no longer thin are folded. At most 8 ms."""
        starts = []
        for start, numbers in self.blocks.take(base).by_start():
            starts.append(start)
            known = self.open.get(start)
            if known is None:
                if start not in self.chunks and start not in self.rests:
                    self.starts.add(start)
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
                block = self.blocks.of(start)
                for number in numbers:
                    block.add(number, start)
                self.blocks.count += len(numbers)
                self._drop_open(start)
                self._forget(start)

    # -- sealing -----------------------------------------------------------------------------------------------------

    def seal(self, start: int, content: Any) -> None:
        """Add pending numbers that count in this bucket, as windows where that is true, else as a chunk."""
        if not content:
            return
        if self.copies.touches(content):
            self._add_chunk(start, content)
        else:
            low, high = content.min(), content.max()
            if low >> 16 != high >> 16 or not self._add_window(start, low, high, len(content)):
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
        """Add numbers as a window for each slot as far as that is true; after two failures it is not tried on."""
        slots = (content.max() >> 16) - (content.min() >> 16) + 1
        if slots > 1 and len(content) >= _SPLIT_AT * slots:
            flat = content.to_array()
            at = failed = 0
            while at < len(flat) and failed < _MOST_FAILED:
                end = slot_end(flat, at)
                low, high = flat[at], flat[end - 1]
                if end - at >= _SPLIT_AT and self._add_window(start, low, high, end - at):
                    content.remove_range(low, high + 1)
                else:
                    failed += 1
                at = end
        if content:
            self._add_chunk(start, content)

    def _add_chunk(self, start: int, content: Any) -> None:
        chunks = self._chunks_of(start)
        chunks.append(seal(content))
        self.chunk_bytes += len(chunks[-1]) + OBJECT_BYTES

    def dissolve(self, number: int) -> None:
        """Write down the content of the window over ``number``, since another bucket wants a number in its range."""
        window = self.windows.take_over(number)
        content = self._positions.pending & self._bitmap(range(window.low, window.high + 1))
        if content:
            self.copies.keep_marks(content)
            self._add_chunk(window.start, content)

    # -- reading and taking ------------------------------------------------------------------------------------------

    def explicit(self, start: int) -> Any:
        """Return the numbers that count in a bucket and are written down in it."""
        parts = list(self._parts(start))
        content = self._bitmap.union(*parts) if parts else self._bitmap()
        return self.copies.living(content, self._positions.pending, start)

    def _parts(self, start: int) -> Iterator[Any]:
        for _, numbers in self.rests.get(start, ()):
            yield self._bitmap(numbers)
        for chunk in self.chunks.get(start, ()):
            yield unseal(chunk, self._bitmap)
        if start in self.open:
            yield self._bitmap(self.open[start])

    def content(self, start: int) -> Any:
        """Return all numbers that count in a bucket."""
        return self._in_windows(self.windows.of(start)) | self.explicit(start)

    def is_living(self, start: int) -> bool:
        """Return whether a bucket has a number that counts."""
        cardinality = self._positions.pending.range_cardinality
        if any(cardinality(window.low, window.high + 1) for window in self.windows.of(start)):
            return True
        pending, living = self._positions.pending, self.copies.living
        return any(living(part, pending, start) for part in self._parts(start))

    def take(self, start: int) -> Any:
        """Take a bucket out and return the numbers that count in it, but for its rest."""
        return self._in_windows(self.windows.take(start)) | self._take_explicit(start)

    def take_until(self, start: int) -> Any:
        """Take out all buckets up to ``start``, rests too, and return the numbers that count in them."""
        while (base := self.blocks.first_base()) is not None and base <= start:
            self.split(base)
        content = self._in_windows(self.windows.take_until(start))
        for due in list(self.starts.irange(None, start)):
            rest = self.rests.pop(due, ())
            for _, numbers in rest:
                content |= self.copies.living(self._bitmap(numbers), self._positions.pending, due)
            content |= self._take_explicit(due)
        return content

    def drop(self, start: int) -> None:
        """Take a bucket out, whatever is in it."""
        self.windows.take(start)
        self.rests.pop(start, None)
        self._take_explicit(start)

    def _take_explicit(self, start: int) -> Any:
        rest = self.rests.pop(start, None)
        content = self.explicit(start)
        self.folded += len(self.open.get(start, ()))
        self._drop_open(start)
        for chunk in self.chunks.pop(start, ()):
            self.chunk_bytes -= len(chunk) + OBJECT_BYTES
        if rest is not None:
            self.rests[start] = rest
        self._forget(start)
        return content

    def _in_windows(self, windows: list[Window]) -> Any:
        ranges = self._bitmap()
        for window in windows:
            ranges.add_range(window.low, window.high + 1)
        return ranges & self._positions.pending if windows else ranges

    def keep_rest(self, start: int, living: Any) -> deque[Run]:
        """Keep what was taken out of a bucket that is to be drained bit by bit, in pieces that are cheap to cut."""
        self.copies.keep_marks(living)
        if start not in self.open and start not in self.chunks:
            self.starts.add(start)
        pieces = (
            (slots, numbers[at : at + _PIECE])
            for slots, numbers in self._positions.runs(living)
            for at in range(0, len(numbers), _PIECE)
        )
        rest = self.rests[start] = deque(pieces)
        return rest

    def rest_size(self, start: int) -> int:
        """Return how many numbers are left of a bucket that is being drained, cancelled ones too; O(pieces)."""
        return sum(len(numbers) for _, numbers in self.rests.get(start, ()))

    def drop_rest(self, start: int) -> None:
        """Forget a rest that is used up."""
        del self.rests[start]
        self._forget(start)

    # -- sweeping ----------------------------------------------------------------------------------------------------

    def sweep(self) -> Iterator[None]:
        """Drop the copies that do not count, a part of a bucket at each step. Other calls may come between steps."""
        self.copies.begin_sweep()
        start, split = self._next_start(None)
        thin: list[int] = []
        while start is not None:
            if split and thin and split[0] - thin[0] >= BLOCK_MS:
                self._gather(thin)
                thin = []
            thin += split
            for _, numbers in list(self.rests.get(start, ())):
                self.copies.keep_marks(self._bitmap(numbers))
                yield
            yield from self._sweep_chunks(start)
            self._sweep_open(start)
            yield
            start, split = self._next_start(start)
        self._gather(thin)
        self.copies.end_sweep()

    def _next_start(self, after: int | None) -> tuple[int | None, list[int]]:
        """Return the next bucket but for windows; a block before it is split, its buckets are returned too."""
        row = 0 if after is None else self.starts.bisect_right(after)
        start: int | None = self.starts[row] if row < len(self.starts) else None
        base = self.blocks.first_base() if after is None else self.blocks.next_base(after)
        if base is None or (start is not None and start < base):
            return start, []
        split = self.split(base)
        start, more = self._next_start(after)
        return start, split + more

    def _swept(self, numbers: Any, start: int) -> Any:
        return self.copies.swept(numbers, self._positions.pending, start, self.windows.covered)

    def _sweep_chunks(self, start: int) -> Iterator[None]:
        chunks = self.chunks.get(start)
        place = 0
        while chunks is not None and self.chunks.get(start) is chunks and place < len(chunks):
            numbers = unseal(chunks[place], self._bitmap)
            kept = self._swept(numbers, start)
            if len(kept) < len(numbers):
                self._replace_chunk(start, place, kept)
            place += bool(kept)
            yield

    def _replace_chunk(self, start: int, place: int, numbers: Any) -> None:
        chunks = self.chunks[start]
        self.chunk_bytes -= len(chunks[place]) + OBJECT_BYTES
        if numbers:
            chunks[place] = seal(numbers)
            self.chunk_bytes += len(chunks[place]) + OBJECT_BYTES
            return
        del chunks[place]
        if not chunks:
            del self.chunks[start]
            self._forget(start)

    def _sweep_open(self, start: int) -> None:
        numbers = self.open.get(start)
        if numbers is None:
            return
        kept = self._swept(self._bitmap(numbers), start)
        self.folded += len(numbers) - len(kept)
        numbers[:] = kept.to_array()
        if not numbers:
            self._drop_open(start)
            self._forget(start)
