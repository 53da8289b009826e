"""The acknowledged entries of one ledger: memory is used by holes, not by the entries between them.

The entries are a roaring bitmap, which stores each 65 536 entries as an array, a bitmap or runs, whichever is smallest:
a run of a million entries takes some bytes, every second of 50 000 takes 8 KB. Two counts are updated with every
change, because a cursor needs them at every acknowledgement: of the entries and of the ranges that they form. A single
entry changes the number of ranges by its two neighbours alone; a change of a span counts the ranges that touch it.

The edges of the ranges of a bitmap ``b`` are the bits of ``b ^ (b << 1)``: first entries and ends in turn. This counts
and lists ranges without a look at each entry.

A bitmap finds runs only in ``run_optimize``, which costs microseconds for each 65 536 entries. It is called when the
entries have doubled or halved, or a share of the bitmap has changed, so that it costs some nanoseconds a change.
Between two calls the bitmap may be larger than necessary, by 4 bytes a change.

Bitmaps of 32-bit numbers are smaller and faster than those of 64-bit numbers, so the latter are used only once there is
an entry beyond :data:`_NARROW_MAX`. Their ``contains_range`` is not used: it returns True for a range that ends in
65 536 absent entries. Lists of (first, last) pairs in Python cost 130 bytes a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Self

from pyroaring import BitMap, BitMap64

from .._check import INT64_MAX
from ..errors import InvalidArgumentError

_NARROW_MAX: Final = 2**32 - 2
"""The entry after the last one must be a 32-bit number too, because it is looked up and ends a range."""
_WINDOW: Final = 1 << 20
_FEW: Final = 64
_MANY: Final = 4096
_FRAME_BYTES: Final = 330


def container_bytes(figures: Mapping[str, int]) -> int:
    """Return how many bytes the containers of a bitmap take, by its ``get_statistics()``."""
    return sum(int(figures[f"n_bytes_{kind}_containers"]) for kind in ("array", "run", "bitset"))


class EntryRanges:
    """A set of entries, 0 <= entry < 2**63, that knows its ranges. A range includes both ends.

    The length and ``range_count`` are O(1). Adding, discarding and looking up an entry are O(log) in the size of the
    part of 65 536 entries that it is in. Do not change the set while iterating over :meth:`ranges`.
    """

    __slots__ = (
        "_bits",
        "_count",
        "_entries_max",
        "_entry_bytes",
        "_measured",
        "_tidied",
        "_tidied_ranges",
        "_tidy_at",
        "range_count",
    )

    def __init__(self) -> None:
        self._bits: Any = BitMap()
        self._entries_max = _NARROW_MAX
        self._count = 0
        self._tidied = self._tidied_ranges = 0
        self._tidy_at = _FEW
        self._measured = _FRAME_BYTES
        self._entry_bytes = 2
        self.range_count = 0
        """How many ranges there are, O(1)."""

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """Return the set of the entries of (first, last) pairs, in any order, which may overlap.

        :raises InvalidArgumentError: a pair is not a range
        """
        made = cls()
        for first, last in ranges:
            made._check(first, last)
            made._fit(last)
            made._bits.add_range(first, last + 1)
        made._recount()
        return made

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry: int) -> bool:
        return 0 <= entry <= self._entries_max and entry in self._bits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntryRanges):
            return NotImplemented
        return self._count == other._count and all(a == b for a, b in zip(self.ranges(), other.ranges(), strict=False))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<EntryRanges: {self._count} entries in {self.range_count} ranges>"

    @property
    def first(self) -> int | None:
        """Return the lowest entry, None for an empty set."""
        return self._bits.min() if self._count else None

    @property
    def last(self) -> int | None:
        """Return the highest entry, None for an empty set."""
        return self._bits.max() if self._count else None

    @property
    def memory_bytes(self) -> int:
        """Return about how many bytes the set takes; O(1). May be 8 KB too low until the next measurement."""
        grown = self._entry_bytes * (self._count - self._tidied) + 4 * (self.range_count - self._tidied_ranges)
        return self._measured + grown if grown > 0 else self._measured

    def add(self, entry: int) -> bool:
        """Add an entry; return whether it is new.

        :raises InvalidArgumentError: the entry is out of range
        """
        if not 0 <= entry <= self._entries_max:
            self._check(entry, entry)
            self._fit(entry)
        bits = self._bits
        if entry in bits:
            return False
        bits.add(entry)
        self._count += 1
        if entry and entry - 1 in bits:
            if entry + 1 in bits:
                self.range_count -= 1
        elif entry + 1 not in bits:
            self.range_count += 1
        if self._count >= self._tidy_at:
            self._tidy()
        return True

    def add_many(self, entries: Iterable[int]) -> int:
        """Add entries in any order, with or without duplicates; return how many were new.

        Nothing is added if an entry is out of range. O(entries), and O(ranges) if there are many.

        :raises InvalidArgumentError: an entry is out of range
        """
        wanted = list(entries)
        if not wanted:
            return 0
        self._check(min(wanted), max(wanted))
        self._fit(max(wanted))
        before = self._count
        if len(wanted) <= _FEW:
            for entry in wanted:
                self.add(entry)
        else:
            self._bits.update(wanted)
            self._recount()
        return self._count - before

    def add_range(self, first: int, last: int) -> int:
        """Add all entries from first to last, including both; return how many were new.

        :raises InvalidArgumentError: first and last are not a range
        """
        self._check(first, last)
        self._fit(last)
        bits = self._bits
        new = last - first + 1 - int(bits.range_cardinality(first, last + 1))
        if new:
            self.range_count += 1 - self._runs_within(max(first - 1, 0), last + 1)
            bits.add_range(first, last + 1)
            self._count += new
            if self._count >= self._tidy_at:
                self._tidy()
        return new

    def merge(self, other: EntryRanges) -> None:
        """Add all entries of another set. O(bytes of both)."""
        self._fit(other._entries_max)
        self._bits |= other._bits if type(other._bits) is type(self._bits) else BitMap64(other._bits)
        self._recount()

    def discard_range(self, first: int, last: int) -> int:
        """Remove all entries from first to last, including both; return how many were removed.

        :raises InvalidArgumentError: first and last are not a range
        """
        self._check(first, last)
        last = min(last, self._entries_max)
        if not self._count or first > last:
            return 0
        bits = self._bits
        gone: int = bits.range_cardinality(first, last + 1)
        if gone == self._count:
            self.clear()
        elif gone:
            left = first > 0 and first in bits and first - 1 in bits
            right = last in bits and last + 1 in bits
            self.range_count += left + right - self._runs_within(first, last)
            bits.remove_range(first, last + 1)
            self._lower(gone)
        return gone

    def discard_below(self, entry: int) -> int:
        """Remove all entries below ``entry``; return how many were removed."""
        return self.discard_range(0, entry - 1) if entry > 0 else 0

    def clear(self) -> None:
        """Remove everything."""
        self._bits = BitMap()
        self._entries_max = _NARROW_MAX
        self._count = self.range_count = 0
        self._tidy()

    def pop_run(self, entry: int) -> int:
        """Remove the entries from ``entry`` up to the first absent one, and return the absent one. O(log run).

        So a mark-delete position moves past acknowledged entries.
        """
        if entry not in self:
            return entry
        end = self.next_absent(entry)
        bits = self._bits
        if not entry or entry - 1 not in bits:
            self.range_count -= 1
        bits.remove_range(entry, end)
        self._lower(end - entry)
        return end

    def next_absent(self, entry: int) -> int:
        """Return the first entry from ``entry`` on that is not in the set; O(log run)."""
        if entry not in self:
            return entry
        bits = self._bits
        end = entry + 1
        if end not in bits:
            return end
        top = bits.max() + 1
        if self.range_count == 1:
            return int(top)
        step = 1
        while end + step <= top and bits.range_cardinality(end, end + step) == step:
            end += step
            step <<= 1
        while step:
            if end + step <= top and bits.range_cardinality(end, end + step) == step:
                end += step
            step >>= 1
        return end

    def next_present(self, entry: int) -> int | None:
        """Return the first entry from ``entry`` on that is in the set, None without one."""
        bits = self._bits
        if not self._count or entry > bits.max():
            return None
        return int(bits.next_set_bit(max(entry, 0)))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges as (first, last), lowest first. O(ranges), in bounded memory."""
        if not self._count:
            return
        first: int | None = None
        end = -1
        for start, stop in self._windowed_runs():
            if start == end:
                end = stop
                continue
            if first is not None:
                yield first, end - 1
            first, end = start, stop
        if first is not None:
            yield first, end - 1

    def copy(self) -> Self:
        """Return an independent copy."""
        made = type(self)()
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        made._bits = self._bits.copy()
        return made

    def _windows(self, first: int, last: int) -> Iterator[Any]:
        """Yield the entries from first to last as bitmaps of windows; stretches without entries are skipped."""
        bits = self._bits
        last = min(last, bits.max())
        while first <= last:
            start = bits.next_set_bit(first)
            first = min(start + _WINDOW, last + 1)
            if start < first:
                yield bits & type(bits)(range(start, first))

    def _windowed_runs(self) -> Iterator[tuple[int, int]]:
        """Yield the runs as (first, end), cut at the ends of windows."""
        for part in self._windows(0, self._entries_max):
            edges = (part ^ part.shift(1)).to_array()
            yield from zip(edges[::2], edges[1::2], strict=True)

    def _runs_within(self, first: int, last: int) -> int:
        """Count the runs that lie at least in part from first to last. O(bytes of this part of the bitmap)."""
        bits = self._bits
        last = min(last, self._entries_max)
        count = bits.range_cardinality(first, last + 1)
        if count in {0, last - first + 1}:
            return 1 if count else 0
        runs, end = 0, -1
        for part in self._windows(first, last):
            runs += part.symmetric_difference_cardinality(part.shift(1)) // 2 - (part.min() == end)
            end = part.max() + 1
        return runs

    def _recount(self) -> None:
        bits = self._bits
        self._count = len(bits)
        self.range_count = bits.symmetric_difference_cardinality(bits.shift(1)) // 2
        self._tidy()

    def _lower(self, gone: int) -> None:
        self._count -= gone
        if self._count < self._tidied >> 1:
            self._tidy()

    def _tidy(self) -> None:
        """Bring the bitmap into its smallest form, measure it, and decide when to do it again."""
        bits = self._bits
        bits.run_optimize()
        bits.shrink_to_fit()
        figures = bits.get_statistics()
        containers = figures["n_containers"]
        self._measured = _FRAME_BYTES + container_bytes(figures) + 32 * containers
        self._tidied = self._count
        self._tidied_ranges = self.range_count
        self._entry_bytes = 2 if figures["n_array_containers"] or not containers else 0
        self._tidy_at = self._count + max(_FEW, min(self._count, _MANY), 16 * containers)

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last <= INT64_MAX:
            raise InvalidArgumentError("entries", (first, last), "0 <= first <= last < 2**63")

    def _fit(self, entry: int) -> None:
        """Change to a bitmap of 64-bit numbers if the entry requires it."""
        if entry <= self._entries_max:
            return
        wide = BitMap64()
        for first, end in self._windowed_runs() if self._bits else ():
            wide.add_range(first, end)
        self._bits = wide
        self._entries_max = INT64_MAX

    def _verify(self) -> None:
        """Assert all invariants; for tests."""
        runs = list(self.ranges())
        assert self._count == len(self._bits) == sum(last - first + 1 for first, last in runs)
        assert self.range_count == len(runs)
        assert all(one[1] + 1 < other[0] for one, other in pairwise(runs))
        assert (self.first, self.last) == ((runs[0][0], runs[-1][1]) if runs else (None, None))
        assert self._entries_max == (_NARROW_MAX if isinstance(self._bits, BitMap) else INT64_MAX)
