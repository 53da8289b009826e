"""Which of the copies of a number is the one that counts.

A pending number normally lies in exactly one bucket. Two things break this: an id that is cancelled leaves its copy
behind (finding it would mean a search), and an id that is nacked again while it is pending gets a second copy (only
the earliest may fire, and which one that is need not be known). Three sets keep the truth in O(1):

- ``stale``: numbers that *may* have a copy somewhere that must never fire
- ``deadlines``: for a pending number in ``stale``, the start of the one bucket whose copy counts
- ``doubled``: pending numbers with several copies, of which the earliest fires; the others are stale from then on

So a copy in bucket ``start`` counts if its number is pending and is not stale, or is stale and ``deadlines`` names
``start``. The owner prunes the buckets when the extra copies outnumber the living; then all three are empty.
"""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap


class Copies:
    """The three sets; ``extra`` copies were made since the last pruning, no stale number is above ``top``."""

    __slots__ = ("deadlines", "doubled", "extra", "stale", "top")

    def __init__(self, bitmap: type[Any] = BitMap) -> None:
        self.stale: Any = bitmap()
        self.doubled: Any = bitmap()
        self.deadlines: dict[int, int] = {}
        self.extra = 0
        self.top = -1

    def __bool__(self) -> bool:
        return self.extra > 0

    def cancelled(self, number: int) -> None:
        """A pending number with a copy in a bucket is no longer pending."""
        self.stale.add(number)
        self.top = max(self.top, number)
        self.doubled.discard(number)
        self.deadlines.pop(number, None)
        self.extra += 1

    def added(self, number: int, start: int) -> None:
        """A number became pending in bucket ``start``."""
        if number in self.stale:
            self.deadlines[number] = start

    def added_again(self, number: int, start: int) -> bool:
        """A pending number is wanted at ``start`` too; return whether it needs a copy there."""
        known = self.deadlines.get(number)
        if known is None:
            self.doubled.add(number)
        elif start < known:
            self.deadlines[number] = start
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
        if self.deadlines:
            for number in numbers & self.stale:
                self.deadlines.pop(number, None)

    def living(self, numbers: Any, pending: Any, start: int) -> Any:
        """Return those of a bucket's ``numbers`` whose copy there counts."""
        living = numbers & pending
        if self.extra:
            deadlines = self.deadlines
            for number in living & self.stale:
                if deadlines.get(number) != start:
                    living.discard(number)
        return living

    def touches(self, numbers: Any) -> bool:
        """Return whether any of the numbers has, or may have, more than one copy."""
        return bool(self.extra) and (numbers.intersect(self.stale) or numbers.intersect(self.doubled))

    def clear(self) -> None:
        """Every number has one copy again."""
        self.stale.clear()
        self.doubled.clear()
        self.deadlines.clear()
        self.extra = 0
        self.top = -1
