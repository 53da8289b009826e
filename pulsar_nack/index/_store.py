"""What lies in each bucket of time: reading it, taking it out, and sweeping out what does not count.

How numbers get in and how they are kept is in ``_growing``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ._blocks import BLOCK_MS
from ._growing import GrowingBuckets
from ._rest import Rest
from ._sealed import OBJECT_BYTES, seal, unseal
from ._windows import Window

_FEW_PARTS: Final = 16
_LARGE_PART: Final = 8_192


class BucketStore(GrowingBuckets):
    """Buckets of numbers by start."""

    __slots__ = ()

    # -- reading and taking ------------------------------------------------------------------------------------------

    def explicit(self, start: int) -> Any:
        """Return the numbers that count in a bucket and are written down in it."""
        parts = list(self._parts(start))
        content = parts[0] if len(parts) == 1 else self._bitmap.union(self._bitmap(), *parts)
        return self.copies.living(content, self._positions.pending, start)

    def _parts(self, start: int) -> Iterator[Any]:
        yield from self.rests.get(start, ())
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
        explicit = self._take_explicit(start)
        windows = self.windows.take(start)
        return explicit | self._in_windows(windows) if windows else explicit

    def take_until(self, start: int) -> Any:
        """Take out all buckets up to ``start``, rests too, and return the numbers that count in them."""
        while (base := self.blocks.first_base()) is not None and base <= start:
            self.split(base)
        parts = [self._in_windows(self.windows.take_until(start))]
        for due in list(self.starts.irange(None, start)):
            parts += self._parts(due) if not self.copies else (self.explicit(due),)
            self.rests.pop(due, None)
            self._drop_parts(due)
        return self._bitmap.union(*parts) & self._positions.pending

    def drop(self, start: int) -> None:
        """Take a bucket out, whatever is in it."""
        self.windows.take(start)
        self.rests.pop(start, None)
        self._take_explicit(start)

    def _take_explicit(self, start: int) -> Any:
        rest = self.rests.pop(start, None)
        content = self.explicit(start)
        self._drop_parts(start)
        if rest is not None:
            self._keep(start, rest)
        return content

    def _drop_parts(self, start: int) -> None:
        self.folded += len(self.open.get(start, ()))
        self._drop_open(start)
        for chunk in self.chunks.pop(start, ()):
            self.chunk_bytes -= len(chunk) + OBJECT_BYTES
        self._forget(start)

    def _in_windows(self, windows: list[Window]) -> Any:
        ranges = self._bitmap()
        for window in windows:
            ranges.add_range(window.low, window.high + 1)
        return ranges & self._positions.pending if windows else ranges

    def keep_rest(self, start: int, living: Any) -> Rest:
        """Keep what was taken out of a bucket that is to be drained bit by bit."""
        self.copies.keep_marks(living)
        parts = [self._bitmap(numbers) for _, numbers in self._positions.runs(living)]
        return self._keep(start, Rest(self._bitmap, parts, is_merged=False))

    def is_large(self, start: int) -> bool:
        """Return whether to decode a whole bucket would take long, and need not be: numbers are in order of place."""
        chunks = self.chunks.get(start, ())
        parts = len(chunks) + sum(map(len, chunks)) // _LARGE_PART
        if parts <= _FEW_PARTS < len(self.windows):
            parts += len(self.windows.of(start))
        return parts > _FEW_PARTS and self._positions.slots.are_in_order

    def take_bit_by_bit(self, start: int) -> Rest:
        """Take a large bucket out as a rest, most of it not decoded yet."""
        parts: list[Any] = [self._in_windows([window]) for window in self.windows.take(start)]
        parts += self.chunks.get(start, ())
        parts.append(self._bitmap(self.open.get(start, ())))
        self._drop_parts(start)
        rest = Rest(self._bitmap, [part for part in parts if part], is_merged=True)
        if self.copies.sweep is not None:
            for numbers in rest:
                self.copies.keep_marks(numbers)
        return self._keep(start, rest)

    def _keep(self, start: int, rest: Rest) -> Rest:
        self._enlist(start)
        self.rests[start] = rest
        return rest

    def rest_size(self, start: int) -> int:
        """Return about how many numbers are left of a bucket that is being drained, cancelled ones too; O(parts)."""
        rest = self.rests.get(start)
        return 0 if rest is None else rest.size()

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
            for numbers in self.rests.get(start, ()):
                self.copies.keep_marks(numbers)
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
