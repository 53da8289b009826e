"""The entries of a ledger in other forms: as users give them, and as acknowledged entries are stored.

For storage they are cut into sections, and each section is stored as lengths of ranges or as bits.

How many bytes the lengths of the ranges take as varints is computed without listing them: of a bitmap ``b``,
``b & b.shift(-k)`` is what is left when each run loses k entries at its end. Doubling k leaves, after seven steps, one
run for each run of 128 entries or more, which are those that take a second byte; and so on. This takes microseconds,
a list of the lengths hundreds of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import compress, islice
from operator import sub
from struct import pack
from sys import byteorder
from typing import Any, Final

from pyroaring import BitMap, BitMap64

from .._check import INT64_MAX
from ..errors import InvalidArgumentError
from ._ranges import EntryRanges

WHOLE: Final = 1 << 16
"""Entries with no more ranges than this are one section."""
WINDOW: Final = 1 << 20
"""How many entries a section spans at most, if there are several."""
_VARINT_BITS: Final = 7
_SLICE: Final = 1 << 13
_FEW: Final = 128
_NARROW: Final = 1 << 32
_CONTAINER: Final = 1 << 16
_CONTAINER_BYTES: Final = _CONTAINER // 8
_MAX_LISTED: Final = 4_096
_NO_RUNS: Final = 12_346
_DENSE_SPAN: Final = 1 << 28
_TO_FLAGS: Final = bytes.maketrans(b"01", b"\0\1")
_EXPECTED: Final = "entry ids: integers from 0 to 2**63 - 1"
_INTEGER_CODES: Final = "bhilqBHILQ"


# -- as users give them ----------------------------------------------------------------------------------------------


def as_entries(entries: object, field: str = "entries") -> Any:
    """Return a range, a sequence, a ``BitMap``, an array or a numpy array of ints as a ``BitMap`` or ``BitMap64``.

    :raises InvalidArgumentError: an item is not an entry id
    """
    if isinstance(entries, BitMap):
        return entries
    if isinstance(entries, range):
        return _from_range(entries, field)
    flat = _flat(entries, field)
    if flat.typecode == "I" or not flat:
        return BitMap(flat)
    if (largest := max(flat)) > INT64_MAX:
        raise InvalidArgumentError(field, largest, _EXPECTED)
    return BitMap(array("I", flat)) if largest < 1 << 32 else BitMap64(flat)


def count_entries(entries: Any) -> int:
    """Count the entries, duplicates included; works for ranges longer than ``sys.maxsize``.

    :raises InvalidArgumentError: they cannot be counted
    """
    if isinstance(entries, range):
        return (entries[-1] - entries[0]) // entries.step + 1 if entries else 0
    try:
        return len(entries)
    except TypeError:
        raise InvalidArgumentError("entries", entries, "a range, a sequence, or an array of one dimension") from None


def _from_range(entries: range, field: str) -> Any:
    if not entries:
        return BitMap()
    low, high = min(entries[0], entries[-1]), max(entries[0], entries[-1])
    if low < 0 or high > INT64_MAX:
        raise InvalidArgumentError(field, entries, _EXPECTED)
    ascending = entries if entries.step > 0 else entries[::-1]
    return BitMap(ascending) if high < 1 << 32 else BitMap64(ascending)


def _flat(entries: object, field: str) -> array[int]:
    """Return entries as an array of 32-bit numbers, or of 64-bit numbers."""
    if isinstance(entries, array) and entries.typecode in "IQ":
        return entries
    items = entries if isinstance(entries, list | tuple) else _items(entries, field)
    for typecode in "IQ":
        with suppress(TypeError, OverflowError):
            return array(typecode, items)
    bad = next((item for item in items if type(item) is not int or not 0 <= item <= INT64_MAX), entries)
    raise InvalidArgumentError(field, bad, _EXPECTED)


def _items(entries: Any, field: str) -> array[int] | list[Any]:
    if not isinstance(entries, str | bytes | bytearray):
        view = None
        with suppress(TypeError, ValueError):  # numpy raises ValueError for some kinds, such as times
            view = memoryview(entries)
        if view is not None:
            return _from_buffer(view, field)
        if isinstance(entries, Iterable):
            return list(entries)
    raise InvalidArgumentError(field, entries, _EXPECTED)


def _from_buffer(view: memoryview, field: str) -> array[int]:
    kind = view.format.lstrip("@=<")
    if len(kind) != 1 or kind not in _INTEGER_CODES or view.ndim != 1:
        raise InvalidArgumentError(field, view.obj, _EXPECTED)
    flat: array[int] = array(kind)
    flat.frombytes(view.tobytes())
    return flat


# -- as they are stored ----------------------------------------------------------------------------------------------


def sections_of(ranges: EntryRanges) -> Iterator[Section]:
    """Yield the sections of some entries, lowest first; a range may lie in several. None without entries."""
    bits = ranges._bits
    if ranges.range_count <= WHOLE:
        if ranges.range_count:
            yield whole_section(ranges)
        return
    first, top = bits.min(), bits.max()
    while first <= top:
        part = bits & type(bits)(range(first, min(first + WINDOW, top + 1)))
        yield Section(part, first, part.max(), _runs(part))
        first = top + 1 if part.max() == top else bits.next_set_bit(first + WINDOW)


def whole_section(ranges: EntryRanges) -> Section:
    """Return all entries, at least one, as one section."""
    bits = ranges._bits
    return Section(bits, bits.min(), bits.max(), ranges.range_count)


class Section:
    """Some entries of a ledger, at least one. It is read-only, and invalid when the ranges it was made of change.

    :param bits: a bitmap of the entries
    :param range_count: how many ranges they form
    """

    __slots__ = ("_bits", "count", "first", "range_count", "span")

    def __init__(self, bits: Any, first: int, last: int, range_count: int) -> None:
        self._bits = bits
        self.first = first
        """The lowest entry."""
        self.span = last - first + 1
        """How many entries lie between the lowest and the highest, including both."""
        self.count = len(bits)
        self.range_count = range_count

    @property
    def run_bytes(self) -> int:
        """Return how many bytes the lengths of the ranges take as varints."""
        if self._is_listed:
            return sum(map(varint_bytes, self.lengths()[::2]))
        return self.range_count + _longer(self._bits)

    @property
    def gap_bytes(self) -> int:
        """Return how many bytes the lengths of the gaps between the ranges take as varints."""
        if self._is_listed:
            return sum(map(varint_bytes, self.lengths()[1::2]))
        return self.range_count - 1 + _longer(self._bits.flip(self.first, self.first + self.span))

    def lengths(self) -> list[int]:
        """Return the length of the first range, of the gap after it, of the next range, and so on."""
        if self.range_count == 1:
            return [self.span]
        bits = self._bits
        edges = (bits ^ bits.shift(1)).to_array().tolist()
        return list(map(sub, edges[1:], edges))

    def entries(self) -> array[int]:
        """Return all entries."""
        entries: array[int] = self._bits.to_array()
        return entries

    def words(self) -> bytes:
        """Return the entries as bits: bit i is entry ``first + i``, beginning with the lowest bit of the first byte."""
        first, span = self.first, self.span
        is_full = 2 * self.count > span
        chosen = self._bits.flip(first, first + span) if is_full else self._bits
        digits = bytearray(b"1" if is_full else b"0") * span
        digit = ord("0" if is_full else "1")
        for entry in chosen.to_array():
            digits[entry - first] = digit
        digits.reverse()
        return int(digits, 2).to_bytes((span + 7) // 8, "little")

    @property
    def _is_listed(self) -> bool:
        """Return whether to list the lengths: they are few, or a bitmap of the gaps would be too large."""
        return self.range_count <= _FEW or self.span > _DENSE_SPAN


def add_runs(ranges: EntryRanges, runs: Iterable[tuple[int, int]]) -> None:
    """Add ranges as (first, end) pairs, without the end; none of the entries may be there. O(pairs) and one count."""
    for first, end in runs:
        ranges._fit(end - 1)
        ranges._bits.add_range(first, end)
    ranges._recount()


def add_entries(ranges: EntryRanges, entries: Iterable[int]) -> tuple[int, int]:
    """Add ascending entries, none of which may be there, all below 2**63; in slices, to use little memory.

    :returns: the last entry and the number of entries; ``(-1, 0)`` for none
    """
    rest = iter(entries)
    last, count = -1, 0
    while some := list(islice(rest, _SLICE)):
        last = some[-1]
        ranges._fit(last)
        _update(ranges, some)
        count += len(some)
    ranges._recount()
    return last, count


def add_words(ranges: EntryRanges, data: bytes, first: int) -> tuple[int, int]:
    """Add entries in the form of :meth:`Section.words`, none of which may be there or reach 2**63.

    Works in slices, so that it takes little more memory than the bits and the result.

    :returns: the entry after the last one, and the number of entries; ``(first, 0)`` for none
    """
    end, count = first, 0
    if first + 8 * len(data) < _NARROW:
        return _add_words_at_once(ranges, data, first)
    for at in range(0, len(data), _SLICE):
        bits = int.from_bytes(data[at : at + _SLICE], "little")
        if not bits:
            continue
        flags = format(bits, "b").encode().translate(_TO_FLAGS)[::-1]
        start = first + 8 * at
        end = start + len(flags)
        ranges._fit(end - 1)
        _update(ranges, compress(range(start, end), flags))
        count += bits.bit_count()
    ranges._recount()
    return end, count


def _add_words_at_once(ranges: EntryRanges, data: bytes, first: int) -> tuple[int, int]:
    """Add bits as containers of a serialized roaring bitmap (RoaringFormatSpec), which has the same bits if dense."""
    low = first & (_CONTAINER - 1)
    bits = int.from_bytes(data, "little") << low
    size = -(-bits.bit_length() // _CONTAINER)
    moved = bits.to_bytes(size * _CONTAINER_BYTES, "little")
    containers = [moved[at : at + _CONTAINER_BYTES] for at in range(0, len(moved), _CONTAINER_BYTES)]
    dense, keys = list[bytes](), list[tuple[int, int]]()
    for key, container in enumerate(containers, first // _CONTAINER):
        count = int.from_bytes(container, "little").bit_count()
        if count > _MAX_LISTED:
            keys.append((key, count - 1))
            dense.append(container)
        elif count:
            flags = format(int.from_bytes(container, "little"), "b").encode().translate(_TO_FLAGS)[::-1]
            _update(ranges, compress(range(key * _CONTAINER, (key + 1) * _CONTAINER), flags))
    if dense:
        head = pack("<II", _NO_RUNS, len(dense)) + b"".join(pack("<HH", *each) for each in keys)
        begins = len(head) + 4 * len(dense)
        offsets = array("I", range(begins, begins + len(dense) * _CONTAINER_BYTES, _CONTAINER_BYTES))
        if byteorder == "big":
            offsets.byteswap()
        found = BitMap.deserialize(b"".join([head, offsets.tobytes(), *dense]))
        ranges._bits |= found if isinstance(ranges._bits, BitMap) else BitMap64(array("Q", found.to_array()))
    ranges._recount()
    return first - low + bits.bit_length() if bits else first, bits.bit_count()


def varint_bytes(value: int) -> int:
    """Return how many bytes a number below 2**64 takes as a varint."""
    return (value.bit_length() + _VARINT_BITS - 1) // _VARINT_BITS or 1


def _update(ranges: EntryRanges, entries: Iterable[int]) -> None:
    """Add entries that fit, without counting. By far the fastest way is an array of the right width."""
    kind = "Q" if isinstance(ranges._bits, BitMap64) else "I"
    ranges._bits.update(array(kind, entries))


def _runs(bits: Any) -> int:
    return int(bits.symmetric_difference_cardinality(bits.shift(1))) // 2


def _longer(bits: Any) -> int:
    """Return how many bytes the lengths of the runs take as varints, beyond one byte each."""
    total = steps = 0
    left, by = bits, 1
    while left:
        left = left & left.shift(-by)
        by <<= 1
        steps += 1
        if steps % _VARINT_BITS == 0:
            total += _runs(left)
    return total
