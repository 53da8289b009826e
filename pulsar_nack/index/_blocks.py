"""Thin buckets that are far away, side by side in blocks.

A bucket of its own costs some 240 bytes, whatever is in it: too much for thousands of buckets with a few ids each. So
while very many buckets are open, numbers for further ones are kept in *blocks*: a block covers ``BLOCK_MS`` of time and
holds pairs of a number and the place of its start in the block, 6 bytes each. A block is *split* into buckets when the
earliest bucket comes near it, or when it has grown so large that its buckets are no longer thin.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from sortedcontainers import SortedList

BLOCK_BITS: Final = 14
BLOCK_MS: Final = 1 << BLOCK_BITS
_LARGE: Final = 8_192
_THIN: Final = 128
_OFFSET: Final = BLOCK_MS - 1
_PAIR_BYTES: Final = 2.1
_BLOCK_BYTES: Final = 400


class Block:
    """Numbers and where their starts lie in the block that begins at ``base`` (ms); both arrays have one length."""

    __slots__ = ("base", "numbers", "offsets", "room")

    def __init__(self, base: int, typecode: str) -> None:
        self.base = base
        self.numbers: array[int] = array(typecode)
        self.offsets: array[int] = array("H")
        self.room = _LARGE

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, start: int) -> None:
        """Add a number of the bucket at ``start``, which lies in this block."""
        self.numbers.append(number)
        self.offsets.append(start & _OFFSET)

    def is_large(self) -> bool:
        """Return whether it has to be split; a block whose buckets stay thin may grow to twice the size first."""
        if len(self.numbers) < self.room:
            return False
        is_thin = len(self.numbers) < _THIN * len(set(self.offsets))
        self.room = 2 * _LARGE
        return not is_thin or len(self.numbers) >= self.room

    def by_start(self) -> Iterator[tuple[int, array[int]]]:
        """Give the numbers of each bucket, by start, in the order of starts."""
        typecode = self.numbers.typecode
        groups: dict[int, array[int]] = {offset: array(typecode) for offset in sorted(set(self.offsets))}
        appends = {offset: numbers.append for offset, numbers in groups.items()}
        for offset, number in zip(self.offsets, self.numbers, strict=True):
            appends[offset](number)
        for offset, numbers in groups.items():
            yield self.base + offset, numbers


class Blocks:
    """All blocks of one index; ``count`` numbers are in them."""

    __slots__ = ("_bases", "_typecode", "by_base", "count")

    def __init__(self, typecode: str) -> None:
        self._typecode = typecode
        self._bases: SortedList[int] = SortedList()
        self.by_base: dict[int, Block] = {}
        self.count = 0

    def __len__(self) -> int:
        return len(self.by_base)

    def widen(self) -> None:
        """Go over to numbers of 64 bits."""
        self._typecode = "Q"
        for block in self.by_base.values():
            block.numbers = array("Q", block.numbers)

    def bytes(self) -> int:
        """Return about how many bytes they take beside their numbers. O(1)."""
        return int(_PAIR_BYTES * self.count) + _BLOCK_BYTES * len(self.by_base)

    def first_base(self) -> int | None:
        """Return the base of the earliest block, None without one."""
        return self._bases[0] if self._bases else None

    def next_base(self, after: int) -> int | None:
        """Return the base of the earliest block that ends later than ``after``."""
        row = self._bases.bisect_right(after - BLOCK_MS)
        return self._bases[row] if row < len(self._bases) else None

    def put(self, number: int, start: int) -> Block:
        """Add a number to the block of its start, made when needed, and return that."""
        base = start & ~_OFFSET
        block = self.by_base.get(base)
        if block is None:
            block = self.by_base[base] = Block(base, self._typecode)
            self._bases.add(base)
        block.add(number, start)
        self.count += 1
        return block

    def take(self, base: int) -> Block:
        """Take a block out."""
        block = self.by_base.pop(base)
        self._bases.remove(base)
        self.count -= len(block)
        return block
