"""Which copies of a number in the buckets count, and which are stale.

A pending number normally lies in exactly one bucket. Two things break this. Cancelling an id leaves its copy in the
bucket, because finding it would require a search. And nacking a pending id again gives it a second copy; only the
earliest may fire, and which one that is need not be known. Three sets decide in O(1):

- ``numbers``: numbers that *may* have a copy somewhere that must never fire
- ``deadlines``: for a pending number in ``numbers``, the start of the one bucket whose copy counts
- ``doubled``: pending numbers with several copies, of which the earliest fires; the others are stale from then on

So a copy in bucket ``start`` is live if its number is pending and is not in ``numbers``, or is in it and ``deadlines``
names ``start``. When the extra copies outnumber the live ones they are swept out (see ``_sealer``). What is marked
meanwhile is noted: at the end of a sweep only numbers that were marked during it, or whose copies it could not reach,
are still stale or doubled.
"""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap

from ._pending import widened


class StaleCopies:
    """The three sets; ``extra`` copies were made since the last sweep.

    While ``is_sweeping``, three more: what stays in ``numbers`` and in ``doubled`` at the end of the sweep, and the
    numbers whose live copy it has seen.
    """

    __slots__ = (
        "_extra_before",
        "_seen",
        "_still_doubled",
        "_still_stale",
        "deadlines",
        "doubled",
        "extra",
        "is_sweeping",
        "numbers",
    )

    _still_stale: Any
    _still_doubled: Any
    _seen: Any

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, because no bucket has a copy any more; numbers have 32 bits again."""
        self.numbers: Any = BitMap()
        self.doubled: Any = BitMap()
        self.deadlines: dict[int, int] = {}
        self.extra = self._extra_before = 0
        self._forget_sweep()

    def widen(self) -> None:
        """Change to numbers of 64 bits."""
        self.numbers, self.doubled = widened(self.numbers), widened(self.doubled)
        self._still_stale, self._still_doubled = widened(self._still_stale), widened(self._still_doubled)
        self._seen = widened(self._seen)

    def __bool__(self) -> bool:
        return self.extra > 0

    def on_cancelled(self, number: int) -> None:
        """Mark a number that had a copy in a bucket and is no longer pending."""
        self._mark(number)
        self.doubled.discard(number)
        self.deadlines.pop(number, None)
        self.extra += 1

    def _mark(self, number: int) -> None:
        self.numbers.add(number)
        if self.is_sweeping:
            self._still_stale.add(number)
            self._seen.discard(number)

    def on_added(self, number: int, start: int) -> None:
        """Note in which bucket a number became pending, if it may have stale copies elsewhere."""
        if number in self.numbers:
            self.deadlines[number] = start

    def on_added_again(self, number: int, start: int) -> bool:
        """Note that a pending number is added at ``start`` too; return whether it needs a copy there."""
        known = self.deadlines.get(number)
        if known is None:
            self.doubled.add(number)
            if self.is_sweeping:
                self._still_doubled.add(number)
        elif start < known:
            self.deadlines[number] = start
            self._mark(number)
        else:
            return False
        self.extra += 1
        return True

    def on_fired(self, numbers: Any) -> None:
        """Mark the remaining copies of pending numbers that were taken out of their buckets."""
        if not self.extra:
            return
        doubled = numbers & self.doubled
        if doubled:
            self.doubled -= doubled
            self.numbers |= doubled
            if self.is_sweeping:
                self._still_stale |= doubled
        if self.is_sweeping:
            self._seen -= numbers
        if self.deadlines:
            for number in numbers & self.numbers:
                self.deadlines.pop(number, None)

    def live_copies(self, numbers: Any, pending: Any, start: int) -> Any:
        """Return the ``numbers`` whose copy in bucket ``start`` counts; the same object if all do.

        Without extra copies every number in a bucket is pending, so nothing has to be looked up.
        """
        if not self.extra:
            return numbers
        live = numbers & pending
        deadline_of = self.deadlines.get
        live -= type(self.numbers)([number for number in live & self.numbers if deadline_of(number) != start])
        return live

    def touches(self, numbers: Any) -> bool:
        """Return whether any of the numbers has, or may have, more than one copy."""
        return bool(self.extra) and (numbers.intersect(self.numbers) or numbers.intersect(self.doubled))

    # -- sweeping ----------------------------------------------------------------------------------------------------

    def begin_sweep(self) -> None:
        """Start to note what is marked; the sweep visits every bucket in order of time, each part once."""
        self.is_sweeping = True
        self._extra_before = self.extra

    def sweep_part(self, numbers: Any, pending: Any, start: int, covered: Any) -> Any:
        """Return the ``numbers`` of a part that stay in bucket ``start``: one live copy of each."""
        kept = self.live_copies(numbers, pending, start)
        in_ranges = kept & covered
        if in_ranges:
            self._still_doubled |= in_ranges
        several = kept & (self.doubled | self.numbers)
        several -= in_ranges
        kept = kept - (several & self._seen)
        self._seen |= several
        return kept

    def keep_marks(self, numbers: Any) -> None:
        """Keep the marks of numbers whose copies a running sweep cannot reach, or that moved to where it has been."""
        if self.is_sweeping:
            self._still_stale |= numbers & self.numbers
            self._still_doubled |= numbers & self.doubled

    def end_sweep(self) -> None:
        """Remove the marks of all numbers whose extra copies the sweep has removed."""
        self.numbers &= self._still_stale
        self.doubled &= self._still_doubled
        self.deadlines = {number: start for number, start in self.deadlines.items() if number in self.numbers}
        self.extra = max(self.extra - self._extra_before, 1 if self.numbers or self.doubled else 0)
        self._forget_sweep()

    def _forget_sweep(self) -> None:
        self.is_sweeping = False
        bitmap_type = type(self.numbers)
        self._still_stale, self._still_doubled, self._seen = bitmap_type(), bitmap_type(), bitmap_type()
