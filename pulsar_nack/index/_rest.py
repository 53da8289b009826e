"""What is left of a bucket that is drained bit by bit.

A bucket may hold a million numbers, more than can be decoded in one go while a loop waits. So its sealed parts stay as
they are until their turn comes. Taken in order of number they are merged: a part is decoded when the numbers before it
are used up, and nothing is given out beyond the lowest number of a part that is not decoded yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ._positions import widened
from ._sealed import first_of, unseal

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
        if is_merged:
            parts.sort(key=self._first_of)
        parts.reverse()
        self._parts = parts

    def __bool__(self) -> bool:
        return bool(self._left) or bool(self._parts)

    def __iter__(self) -> Iterator[Any]:
        if self._left:
            yield self._left
        for part in list(self._parts):
            yield self._decoded(part)

    def size(self) -> int:
        """Return about how many numbers are left, cancelled ones too; O(parts)."""
        return len(self._left) + sum(_PART if isinstance(part, bytes) else len(part) for part in self._parts)

    def widen(self, bitmap: type[Any]) -> None:
        """Go over to numbers of 64 bits."""
        self._bitmap = bitmap
        self._left = widened(self._left)
        self._parts = [part if isinstance(part, bytes) else widened(part) for part in self._parts]

    def take(self, most: int | None) -> Any:
        """Take out the next numbers as a bitmap, at most so many; nothing only when nothing is left."""
        if not self._left:
            self._load()
        if most is None or not self._is_merged:
            numbers = self._left
        else:
            while self._parts and self._first_of(self._parts[-1]) <= self._left.min():
                self._load()
            numbers = self._left
            if self._parts:
                numbers = numbers & self._bitmap(range(numbers.min(), self._first_of(self._parts[-1])))
        if most is not None and len(numbers) > most:
            numbers = numbers & self._bitmap(range(numbers.min(), numbers[most]))
        self._left = self._left - numbers
        return numbers

    def _load(self) -> None:
        if self._parts:
            self._left |= self._decoded(self._parts.pop())

    def _decoded(self, part: Any) -> Any:
        return unseal(part, self._bitmap) if isinstance(part, bytes) else part

    def _first_of(self, part: Any) -> int:
        first: int = first_of(part) if isinstance(part, bytes) else part.min()
        return first
