"""The acknowledged entries of one ledger: what costs is a hole, not what lies between two of them.

The entries are a roaring bitmap, in which 65 536 entries at a time are an array, a bitmap or runs, whichever is
smallest: a run of a million entries takes some bytes, every second of 50 000 takes 8 KB. Beside it lie two figures that
are kept with every change, because a cursor asks for them at every acknowledgement: how many entries there are, and how
many ranges they form. A single entry changes the number of ranges by its two neighbours alone; a change of a span
counts the ranges that touch the span.

The edges of the ranges of a bitmap ``b`` are the bits of ``b ^ (b << 1)``: first entries and ends by turns. This counts
and lists ranges without looking at each entry.

A bitmap does not become smaller by itself: runs are found by ``run_optimize`` only, which costs microseconds for each
65 536 entries. It is called when the entries have doubled or halved, or a share of the bitmap has changed, so that it
costs some nanoseconds a change. Between two calls the bitmap can be larger than it need be, by 4 bytes a change.

Bitmaps of 32-bit numbers are smaller and faster than those of 64-bit numbers, so the latter are taken only when an
entry beyond :data:`_NARROW_MAX` appears. The latter's ``contains_range`` is not used: it says yes to a range that ends
in 65 536 entries of which there are none. Lists of (first, last) pairs in Python cost 130 bytes a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, Self

from pyroaring import BitMap, BitMap64

from ..errors import InvalidArgumentError

MAX_RANGE_ENTRY: Final = 2**63 - 1
_NARROW_MAX: Final = 2**32 - 2
"""The entry after the last one must be a 32-bit number too: it is asked for as a neighbour, and ends a range."""
_WINDOW: Final = 1 << 20
_FEW: Final = 64
_MANY: Final = 4096
_FRAME_BYTES: Final = 330


class EntryRanges:
    """A set of entries, 0 <= entry < 2**63, that knows its ranges. Both ends of a range are in it.

    ``range_count`` and the length are kept, not counted. Adding an entry, discarding, looking up: O(log) of what a
    65 536th of the span holds. Do not change it while iterating over :meth:`ranges`.
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
        """Make one of (first, last) pairs in any order, which may overlap.

        :raises InvalidArgumentError: a pair is no range
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
        """Return the lowest entry, None when there is none."""
        return self._bits.min() if self._count else None

    @property
    def last(self) -> int | None:
        """Return the highest entry, None when there is none."""
        return self._bits.max() if self._count else None

    @property
    def memory_bytes(self) -> int:
        """Return about what it takes in memory; O(1). It may be 8 KB too low until it is measured again."""
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
        """Add entries in any order, which may repeat; return how many were new.

        Nothing is added when one of them is out of range. O(entries), and O(ranges) when there are many.

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
        """Add all entries from first to last, both included; return how many were new.

        :raises InvalidArgumentError: they are no range
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

    def discard_range(self, first: int, last: int) -> int:
        """Take out all entries from first to last, both included; return how many there were.

        :raises InvalidArgumentError: they are no range
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
        """Take out all entries below this one; return how many there were."""
        return self.discard_range(0, entry - 1) if entry > 0 else 0

    def clear(self) -> None:
        """Take out everything."""
        self._bits = BitMap()
        self._entries_max = _NARROW_MAX
        self._count = self.range_count = 0
        self._tidy()

    def pop_run(self, entry: int) -> int:
        """Take out the entries from this one up to the first that is absent; return that one.

        This is how a mark-delete position moves over what was acknowledged: O(log run).
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
        """Return the first entry, from this one on, that is not in it; O(log run)."""
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
        """Return the first entry, from this one on, that is in it, None when there is none."""
        bits = self._bits
        if not self._count or entry > bits.max():
            return None
        return int(bits.next_set_bit(max(entry, 0)))

    @property
    def last_range(self) -> tuple[int, int] | None:
        """Return the highest range as (first, last), None when there is none; O(log run)."""
        if not self._count:
            return None
        bits = self._bits
        bottom, last = bits.min(), bits.max()
        if self.range_count == 1:
            return bottom, last
        first = last
        step = 1
        while first - step >= bottom and bits.range_cardinality(first - step, first) == step:
            first -= step
            step <<= 1
        while step:
            if first - step >= bottom and bits.range_cardinality(first - step, first) == step:
                first -= step
            step >>= 1
        return first, last

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Go through the ranges, lowest first, as (first, last) with both in it. O(ranges), in bounded memory."""
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
        """Yield bitmaps of the entries between these, both included, in windows; stretches without any are skipped."""
        bits = self._bits
        last = min(last, bits.max())
        while first <= last:
            start = bits.next_set_bit(first)
            first = min(start + _WINDOW, last + 1)
            if start < first:
                yield bits & type(bits)(range(start, first))

    def _windowed_runs(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the runs, cut at the windows in which they are looked for."""
        for part in self._windows(0, self._entries_max):
            edges = (part ^ part.shift(1)).to_array()
            yield from zip(edges[::2], edges[1::2], strict=True)

    def _runs_within(self, first: int, last: int) -> int:
        """Return how many runs lie, at least in part, between these, both included. O(bytes that this part takes)."""
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
        """Bring the bitmap into its smallest form, measure it, and say when to do it again."""
        bits = self._bits
        bits.run_optimize()
        bits.shrink_to_fit()
        figures = bits.get_statistics()
        containers = figures["n_containers"]
        self._measured = (
            _FRAME_BYTES
            + figures["n_bytes_array_containers"]
            + figures["n_bytes_run_containers"]
            + figures["n_bytes_bitset_containers"]
            + 32 * containers
        )
        self._tidied = self._count
        self._tidied_ranges = self.range_count
        self._entry_bytes = 2 if figures["n_array_containers"] or not containers else 0
        self._tidy_at = self._count + max(_FEW, min(self._count, _MANY), 16 * containers)

    def _check(self, first: int, last: int) -> None:
        if not 0 <= first <= last <= MAX_RANGE_ENTRY:
            raise InvalidArgumentError("entries", (first, last), "0 <= first <= last < 2**63")

    def _fit(self, entry: int) -> None:
        """Change to a bitmap of 64-bit numbers if this entry needs one."""
        if entry <= self._entries_max:
            return
        wide = BitMap64()
        for first, end in self._windowed_runs() if self._bits else ():
            wide.add_range(first, end)
        self._bits = wide
        self._entries_max = MAX_RANGE_ENTRY

    def _verify(self) -> None:
        """Assert every invariant; for tests."""
        runs = list(self.ranges())
        assert self._count == len(self._bits) == sum(last - first + 1 for first, last in runs)
        assert self.range_count == len(runs)
        assert all(one[1] + 1 < other[0] for one, other in pairwise(runs))
        assert (self.first, self.last) == ((runs[0][0], runs[-1][1]) if runs else (None, None))
        assert self._entries_max == (_NARROW_MAX if isinstance(self._bits, BitMap) else MAX_RANGE_ENTRY)
