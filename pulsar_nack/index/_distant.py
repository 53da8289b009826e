"""Thin buckets that are far in the future, kept side by side in groups.

Each bucket costs some 240 bytes, whatever is in it: too much for thousands of buckets with a few ids each. So while
very many buckets are open, numbers for further ones are kept in *groups*. A group covers ``GROUP_MS`` of time and holds
pairs of a number and the place of its start in the group, 6 bytes each. A group is *split* into buckets when the
earliest bucket comes near it, or when it has grown so large that its buckets are no longer thin.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from sortedcontainers import SortedDict

GROUP_MS: Final = 1 << 14
_LARGE: Final = 8_192
_THIN: Final = 128
_OFFSET: Final = GROUP_MS - 1
_PAIR_BYTES: Final = 6.6
_GROUP_BYTES: Final = 400


class BucketGroup:
    """The numbers of the buckets that start within ``GROUP_MS`` of ``base`` (ms), and for each number its start."""

    __slots__ = ("base", "numbers", "offsets", "room")

    def __init__(self, base: int, typecode: str) -> None:
        self.base = base
        self.numbers: array[int] = array(typecode)
        self.offsets: array[int] = array("H")
        self.room = _LARGE

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, start: int) -> None:
        """Add a number of the bucket at ``start``, which lies in this group."""
        self.numbers.append(number)
        self.offsets.append(start & _OFFSET)

    def must_be_split(self) -> bool:
        """Return whether the group is too large; if its buckets are thin it may first grow to twice the size."""
        if len(self.numbers) < self.room:
            return False
        is_thin = len(self.numbers) < _THIN * len(set(self.offsets))
        self.room = 2 * _LARGE
        return not is_thin or len(self.numbers) >= self.room

    def by_start(self) -> Iterator[tuple[int, array[int]]]:
        """Yield the start and the numbers of each bucket, in order of start."""
        typecode = self.numbers.typecode
        buckets: dict[int, array[int]] = {offset: array(typecode) for offset in sorted(set(self.offsets))}
        appends = {offset: numbers.append for offset, numbers in buckets.items()}
        for offset, number in zip(self.offsets, self.numbers, strict=True):
            appends[offset](number)
        for offset, numbers in buckets.items():
            yield self.base + offset, numbers


class DistantBuckets:
    """All groups of one index; ``count`` is how many numbers they hold."""

    __slots__ = ("by_base", "count")

    def __init__(self) -> None:
        self.by_base: SortedDict[int, BucketGroup] = SortedDict()
        self.count = 0

    def __len__(self) -> int:
        return len(self.by_base)

    def clear(self) -> None:
        """Remove all groups."""
        self.by_base.clear()
        self.count = 0

    def widen(self) -> None:
        """Change to numbers of 64 bits."""
        for group in self.by_base.values():
            group.numbers = array("Q", group.numbers)

    def memory(self) -> int:
        """Return about how many bytes are held. O(1)."""
        return int(_PAIR_BYTES * self.count) + _GROUP_BYTES * len(self.by_base)

    def first_base(self) -> int | None:
        """Return the base of the earliest group, None without one."""
        return self.by_base.keys()[0] if self.by_base else None

    def next_base(self, after: int) -> int | None:
        """Return the base of the earliest group that ends later than ``after``."""
        row = self.by_base.bisect_right(after - GROUP_MS)
        return self.by_base.keys()[row] if row < len(self.by_base) else None

    def add(self, number: int, start: int, typecode: str) -> BucketGroup:
        """Add a number to the group of its start, made with ``typecode`` if it is missing; return the group."""
        base = start & ~_OFFSET
        group: BucketGroup | None = self.by_base.get(base)
        if group is None:
            group = self.by_base[base] = BucketGroup(base, typecode)
        group.add(number, start)
        self.count += 1
        return group

    def take(self, base: int) -> BucketGroup:
        """Remove a group and return it."""
        group: BucketGroup = self.by_base.pop(base)
        self.count -= len(group)
        return group
