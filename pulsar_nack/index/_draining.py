"""The undelivered remainder of a bucket that is drained in several calls.

A bucket may hold a million numbers, too many to decode in one call while the event loop waits. So its sealed parts stay
encoded until their turn. To give numbers in order, the parts are merged: a part is decoded when the numbers before it
are used up, and nothing is returned beyond the lowest number that an encoded part may have. If all parts reach over the
whole range, as when ids were nacked in any order, ever more parts are decoded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ._chunks import unseal, where_begins
from ._pending import widened

_PART: Final = 512


class DrainingBucket:
    """Parts of a bucket, bitmaps and sealed chunks; :meth:`take` returns their numbers in several calls.

    If merged, numbers come in ascending order over all parts; otherwise one part follows the other.
    """

    __slots__ = ("_bitmap_type", "_is_merged", "_left", "_parts")

    def __init__(self, bitmap_type: type[Any], parts: list[Any], *, is_merged: bool) -> None:
        self._bitmap_type = bitmap_type
        self._is_merged = is_merged
        self._left: Any = bitmap_type()
        placed = [(_begin_of(part) if is_merged else place, place, part) for place, part in enumerate(parts)]
        placed.sort(reverse=True)
        self._parts = [(begins, part) for begins, _, part in placed]

    def __bool__(self) -> bool:
        return bool(self._left) or bool(self._parts)

    def __iter__(self) -> Iterator[Any]:
        if self._left:
            yield self._left
        for _, part in list(self._parts):
            yield self._decoded(part)

    def size(self) -> int:
        """Return about how many numbers are left, including cancelled ones; O(parts)."""
        return len(self._left) + sum(_PART if isinstance(part, bytes) else len(part) for _, part in self._parts)

    def widen(self, bitmap_type: type[Any]) -> None:
        """Change to numbers of 64 bits."""
        self._bitmap_type = bitmap_type
        self._left = widened(self._left)
        self._parts = [(at, part if isinstance(part, bytes) else widened(part)) for at, part in self._parts]

    def take(self, limit: int | None) -> Any:
        """Remove and return the next numbers as a bitmap, at most ``limit``; empty only if nothing is left."""
        if not self._left:
            self._decode(1)
        numbers = self._ordered(limit) if limit is not None and self._is_merged else self._left
        if limit is not None and len(numbers) > limit:
            numbers = numbers & self._bitmap_type(range(numbers.min(), numbers[limit]))
        self._left = self._left - numbers
        return numbers

    def _ordered(self, wanted: int) -> Any:
        """Return decoded numbers below the start of every encoded part; fewer than ``wanted`` only at the end."""
        at_a_time = 1
        while self._parts:
            first, begins = self._left.min(), self._parts[-1][0]
            if begins > first:
                numbers = self._left & self._bitmap_type(range(first, begins))
                if len(numbers) >= wanted:
                    return numbers
            self._decode(at_a_time)
            at_a_time *= 2
        return self._left

    def _decode(self, parts: int) -> None:
        taken = [self._decoded(part) for _, part in reversed(self._parts[-parts:])]
        del self._parts[-parts:]
        self._left = self._bitmap_type.union(self._left, *taken) if taken else self._left

    def _decoded(self, part: Any) -> Any:
        return unseal(part, self._bitmap_type) if isinstance(part, bytes) else part


def _begin_of(part: Any) -> int:
    begins: int = where_begins(part) if isinstance(part, bytes) else part.min()
    return begins
