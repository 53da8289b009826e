"""Which of the copies of a number is the one that counts.

A pending number normally lies in exactly one bucket. Two things break this: an id that is cancelled leaves its copy
behind (finding it would mean a search), and an id that is nacked again while it is pending gets a second copy (only the
earliest may fire, and which one that is need not be known). Three sets keep the truth in O(1):

- ``stale``: numbers that *may* have a copy somewhere that must never fire
- ``deadlines``: for a pending number in ``stale``, the start of the one bucket whose copy counts
- ``doubled``: pending numbers with several copies, of which the earliest fires; the others are stale from then on

So a copy in bucket ``start`` counts if its number is pending and is not stale, or is stale and ``deadlines`` names
``start``. When the extra copies outnumber the living they are swept out, one part of a bucket at a time. What happens
meanwhile is noted in a :class:`Sweep`: at its end only numbers that were marked during the sweep, or could not be
looked at, are still stale or doubled.
"""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap, BitMap64

from ._positions import widened


class Copies:
    """The three sets; ``extra`` copies were made since the last pruning, no stale number is above ``top``."""

    __slots__ = ("_bitmap", "deadlines", "doubled", "extra", "stale", "sweep", "top")

    def __init__(self, bitmap: type[Any] = BitMap) -> None:
        self._bitmap = bitmap
        self.stale: Any = bitmap()
        self.doubled: Any = bitmap()
        self.deadlines: dict[int, int] = {}
        self.extra = 0
        self.top = -1
        self.sweep: Sweep | None = None

    def widen(self) -> None:
        """Go over to numbers of 64 bits."""
        self._bitmap = BitMap64
        self.stale, self.doubled = widened(self.stale), widened(self.doubled)
        if self.sweep is not None:
            self.sweep.widen()

    def __bool__(self) -> bool:
        return self.extra > 0

    def cancelled(self, number: int) -> None:
        """A pending number with a copy in a bucket is no longer pending."""
        self._mark(number)
        self.doubled.discard(number)
        self.deadlines.pop(number, None)
        self.extra += 1

    def _mark(self, number: int) -> None:
        self.stale.add(number)
        self.top = max(self.top, number)
        if self.sweep is not None:
            self.sweep.stale.add(number)
            self.sweep.seen.discard(number)

    def added(self, number: int, start: int) -> None:
        """A number became pending in bucket ``start``."""
        if number in self.stale:
            self.deadlines[number] = start

    def added_again(self, number: int, start: int) -> bool:
        """A pending number is wanted at ``start`` too; return whether it needs a copy there."""
        known = self.deadlines.get(number)
        if known is None:
            self.doubled.add(number)
            if self.sweep is not None:
                self.sweep.doubled.add(number)
        elif start < known:
            self.deadlines[number] = start
            self._mark(number)
        else:
            return False
        self.extra += 1
        return True

    def fired(self, numbers: Any) -> None:
        """Pending numbers were taken out of their buckets."""
        doubled = numbers & self.doubled
        if doubled:
            self.doubled -= doubled
            self.stale |= doubled
            self.top = max(self.top, doubled.max())
            if self.sweep is not None:
                self.sweep.stale |= doubled
        if self.sweep is not None:
            self.sweep.seen -= numbers
        if self.deadlines:
            for number in numbers & self.stale:
                self.deadlines.pop(number, None)

    def living(self, numbers: Any, pending: Any, start: int) -> Any:
        """Return those of a bucket's ``numbers`` whose copy there counts; the same object if nothing is to be left out.

        While there are no extra copies each number that is written down is pending, so nothing has to be looked at.
        """
        if not self.extra:
            return numbers
        living = numbers & pending
        deadline_of = self.deadlines.get
        elsewhere = [number for number in living & self.stale if deadline_of(number) != start]
        living -= self._bitmap(elsewhere)
        return living

    def touches(self, numbers: Any) -> bool:
        """Return whether any of the numbers has, or may have, more than one copy."""
        return bool(self.extra) and (numbers.intersect(self.stale) or numbers.intersect(self.doubled))

    # -- sweeping ----------------------------------------------------------------------------------------------------

    def begin_sweep(self) -> None:
        """Note from now on what is marked; every bucket is looked at in order of time, each part once."""
        self.sweep = Sweep(self._bitmap, self.extra)

    def swept(self, numbers: Any, pending: Any, start: int, covered: Any) -> Any:
        """Return those of a part's ``numbers`` that stay in bucket ``start``: one copy of each that counts."""
        sweep = self.sweep
        assert sweep is not None
        kept = self.living(numbers, pending, start)
        in_windows = kept & covered
        if in_windows:
            sweep.doubled |= in_windows
        several = kept & (self.doubled | self.stale)
        several -= in_windows
        kept = kept - (several & sweep.seen)
        sweep.seen |= several
        return kept

    def keep_marks(self, numbers: Any) -> None:
        """A running sweep cannot look at these copies, or has passed the place where they lie now."""
        if self.sweep is not None:
            self.sweep.stale |= numbers & self.stale
            self.sweep.doubled |= numbers & self.doubled

    def end_sweep(self) -> None:
        """Forget the marks that the sweep has made true."""
        sweep, self.sweep = self.sweep, None
        assert sweep is not None
        self.stale &= sweep.stale
        self.doubled &= sweep.doubled
        self.deadlines = {number: start for number, start in self.deadlines.items() if number in self.stale}
        self.extra = max(self.extra - sweep.extra_before, 1 if self.stale or self.doubled else 0)
        self.top = self.stale.max() if self.stale else -1


class Sweep:
    """What was marked since a sweep began, and the numbers of which the copy that counts was seen since."""

    __slots__ = ("doubled", "extra_before", "seen", "stale")

    def __init__(self, bitmap: type[Any], extra_before: int) -> None:
        self.stale: Any = bitmap()
        self.doubled: Any = bitmap()
        self.seen: Any = bitmap()
        self.extra_before = extra_before

    def widen(self) -> None:
        """Go over to numbers of 64 bits."""
        self.stale, self.doubled, self.seen = widened(self.stale), widened(self.doubled), widened(self.seen)
