"""What is left of a bucket that is drained bit by bit.

A bucket may hold a million numbers, more than can be decoded in one go while a loop waits. So its sealed parts stay as
they are until their turn comes. Taken in order of number they are merged: a part is decoded when the numbers before it
are used up, and nothing is given out beyond the lowest number that a part which is not decoded yet may have. Parts that
all reach over the whole range, as when ids were nacked in any order, are decoded ever more at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ._positions import widened
from ._sealed import unseal, where_begins

_PART: Final = 512


class Rest:
    """Parts of a bucket: bitmaps, and chunks as ``seal`` made them; ``take`` gives their numbers bit by bit.

    Merged, they come out in order of number, whichever part they are in; else one part after the other.
    """

    __slots__ = ("_bitmap", "_is_merged", "_left", "_parts")

    def __init__(self, bitmap: type[Any], parts: list[Any], *, is_merged: bool) -> None:
        self._bitmap = bitmap
        self._is_merged = is_merged
        self._left: Any = bitmap()
        placed = [(_where_begins(part) if is_merged else place, place, part) for place, part in enumerate(parts)]
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
        """Return about how many numbers are left, cancelled ones too; O(parts)."""
        return len(self._left) + sum(_PART if isinstance(part, bytes) else len(part) for _, part in self._parts)

    def widen(self, bitmap: type[Any]) -> None:
        """Go over to numbers of 64 bits."""
        self._bitmap = bitmap
        self._left = widened(self._left)
        self._parts = [(at, part if isinstance(part, bytes) else widened(part)) for at, part in self._parts]

    def take(self, most: int | None) -> Any:
        """Take out the next numbers as a bitmap, at most so many; nothing only when nothing is left."""
        if not self._left:
            self._load(1)
        numbers = self._in_turn(most) if most is not None and self._is_merged else self._left
        if most is not None and len(numbers) > most:
            numbers = numbers & self._bitmap(range(numbers.min(), numbers[most]))
        self._left = self._left - numbers
        return numbers

    def _in_turn(self, most: int) -> Any:
        """Return numbers that no part which is not decoded can come before; rather ``most`` of them than fewer."""
        at_a_time = 1
        while self._parts:
            first, begins = self._left.min(), self._parts[-1][0]
            if begins > first:
                numbers = self._left & self._bitmap(range(first, begins))
                if len(numbers) >= most:
                    return numbers
            self._load(at_a_time)
            at_a_time *= 2
        return self._left

    def _load(self, parts: int) -> None:
        taken = [self._decoded(part) for _, part in reversed(self._parts[-parts:])]
        del self._parts[-parts:]
        self._left = self._bitmap.union(self._left, *taken) if taken else self._left

    def _decoded(self, part: Any) -> Any:
        return unseal(part, self._bitmap) if isinstance(part, bytes) else part


def _where_begins(part: Any) -> int:
    begins: int = where_begins(part) if isinstance(part, bytes) else part.min()
    return begins
