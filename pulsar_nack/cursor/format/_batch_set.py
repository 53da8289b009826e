"""Batch sets: which messages of a batch are not acknowledged yet; those of one ledger, also as columns of its record.

A ledger may have tens of thousands of batch sets, and the size that they take when written is asked for again and
again. So :class:`BatchSets` keeps the sums from which that size follows with every change.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from sys import byteorder
from typing import Any, Final, Self

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...index import EntryRanges, varint_bytes, whole_section
from ._record import deltas, messages

_WORD_BITS: Final = 64
_MAX_SIZE: Final = 2**31 - 1
_STEP: Final = 1_024
"""Batch sets in one set of columns."""
_WHAT: Final = "batch sets"


@dataclass(frozen=True, slots=True)
class BatchSet:
    """The indexes of a batch that are not acknowledged: bit i of ``unacked`` stands for index i.

    Pulsar calls it an ack set and writes it as 64-bit words, without the size of the batch and without the highest
    words that are 0. So two sets are equal when their bits are, whatever sizes they were given.

    :param size: number of messages in the batch, or the least that is known of it
    :param unacked: the bits; none at or beyond ``size``
    :raises InvalidArgumentError: a bit beyond the size, a size that no batch has, or another type
    """

    size: int = field(compare=False)
    unacked: int

    def __post_init__(self) -> None:
        """Check both fields."""
        _check_size(self.size)
        if _number(self.unacked) < 0 or self.unacked.bit_length() > self.size:
            raise InvalidArgumentError("unacked", self.unacked, f"bits below the batch size {self.size}")

    @classmethod
    def full(cls, size: int) -> Self:
        """Return the set of a batch of which nothing is acknowledged."""
        _check_size(size)
        return cls(size, (1 << size) - 1)

    @classmethod
    def acked(cls, size: int, indexes: Iterable[int]) -> Self:
        """Return the set of a batch of which these indexes are acknowledged.

        :raises InvalidArgumentError: an index that the batch does not have
        """
        unacked = cls.full(size).unacked
        for index in indexes:
            _check_index(index, size)
            unacked &= ~(1 << index)
        return cls(size, unacked)

    @classmethod
    def through(cls, size: int, index: int) -> Self:
        """Return the set of a batch that is acknowledged up to this index, itself included.

        :raises InvalidArgumentError: an index that the batch does not have
        """
        _check_size(size)
        _check_index(index, size)
        return cls(size, (1 << size) - (1 << (index + 1)))

    @classmethod
    def from_words(cls, words: Sequence[int], size: int | None = None) -> Self:
        """Read 64-bit words as Pulsar writes them, lowest first; they may be signed, as in Java.

        :param size: number of messages in the batch; without it, what the words need
        """
        unacked = int.from_bytes(b"".join((word & (2**64 - 1)).to_bytes(8, "little") for word in words), "little")
        return cls(unacked.bit_length() if size is None else size, unacked)

    @property
    def words(self) -> array[int]:
        """Return the bits as signed 64-bit words, lowest first, without highest words that are 0."""
        count = (self.unacked.bit_length() + _WORD_BITS - 1) // _WORD_BITS
        words = array("q", self.unacked.to_bytes(8 * count, "little"))
        if byteorder == "big":
            words.byteswap()
        return words

    @property
    def width(self) -> int:
        """Return how many bytes the bits take."""
        return (self.unacked.bit_length() + 7) // 8

    @property
    def is_all_acked(self) -> bool:
        """Return whether all messages are acknowledged."""
        return not self.unacked

    @property
    def is_untouched(self) -> bool:
        """Return whether no message is acknowledged."""
        return self.unacked.bit_count() == self.size

    def is_acked(self, index: int) -> bool:
        """Return whether the message of this index is acknowledged."""
        return index >= 0 and not self.unacked >> index & 1

    def merge(self, other: BatchSet) -> BatchSet:
        """Return the set that is left when both were acknowledged: an index stays only if it is in both."""
        return BatchSet(max(self.size, other.size), self.unacked & other.unacked)

    def __iter__(self) -> Iterator[int]:
        remaining = self.unacked
        while remaining:
            yield (remaining & -remaining).bit_length() - 1
            remaining &= remaining - 1


class BatchSets(MutableMapping[int, BatchSet]):
    """A mapping from the entries of one ledger to their batch sets. A change is O(1), about a microsecond."""

    __slots__ = ("_sets", "entries", "size_bytes", "unacked_bytes", "width_bytes")

    def __init__(self, sets: Mapping[int, BatchSet] | None = None) -> None:
        self._sets: dict[int, BatchSet] = dict(sets or {})
        self.entries: EntryRanges | None = None
        """The entries, None until there was one. Read only, as are the sums."""
        self.size_bytes = 0
        """Bytes of all sizes as varints."""
        self.width_bytes = 0
        """Bytes of all widths as varints; a width is the number of bytes of a batch set's bits."""
        self.unacked_bytes = 0
        """Bytes of the bits of all batch sets: the sum of the widths."""
        if self._sets:
            self.entries = EntryRanges()
            self.entries.add_many(self._sets)
            for batch in self._sets.values():
                self._count(batch, 1)

    def __getitem__(self, entry: int) -> BatchSet:
        return self._sets[entry]

    def __setitem__(self, entry: int, batch: BatchSet) -> None:
        before = self._sets.get(entry)
        if before is None:
            if self.entries is None:
                self.entries = EntryRanges()
            self.entries.add(entry)
        else:
            self._count(before, -1)
        self._sets[entry] = batch
        self._count(batch, 1)

    def __delitem__(self, entry: int) -> None:
        self._count(self._sets.pop(entry), -1)
        if self.entries is not None:
            self.entries.discard_range(entry, entry)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __contains__(self, entry: object) -> bool:
        return entry in self._sets

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._sets!r})"

    def copy(self) -> Self:
        """Return an independent copy."""
        made = type(self)()
        made._sets = self._sets.copy()
        made.entries = None if self.entries is None else self.entries.copy()
        made.size_bytes, made.width_bytes, made.unacked_bytes = self.size_bytes, self.width_bytes, self.unacked_bytes
        return made

    def _count(self, batch: BatchSet, by: int) -> None:
        width = batch.width
        self.size_bytes += by * varint_bytes(batch.size)
        self.width_bytes += by * varint_bytes(width)
        self.unacked_bytes += by * width


def encode_batches(batches: BatchSets) -> Iterator[bytes]:
    """Yield batch sets as pieces of a LedgerBody; each takes some milliseconds at most."""
    entries = sorted(batches)
    end = 0
    for at in range(0, len(entries), _STEP):
        some = entries[at : at + _STEP]
        body = messages().LedgerBody()
        columns = body.batches.add()
        columns.entries.extend([some[0] - end, *(gap - 1 for gap in deltas(some)[1:])])
        end = some[-1] + 1
        sets = [batches[entry] for entry in some]
        widths = [batch.width for batch in sets]
        columns.sizes.extend([batch.size for batch in sets])
        columns.widths.extend(widths)
        columns.unacked = b"".join(
            batch.unacked.to_bytes(width, "little") for batch, width in zip(sets, widths, strict=True)
        )
        yield bytes(body.SerializeToString())


def batches_size(batches: BatchSets) -> int:
    """Return how many bytes :func:`encode_batches` yields; for more than one piece a few bytes too many or too few.

    O(bytes of a bitmap of the entries).
    """
    if not batches or batches.entries is None:
        return 0
    piece = whole_section(batches.entries)
    entries = varint_bytes(piece.first) + piece.gap_bytes + piece.count - piece.range_count
    columns = entries, batches.size_bytes, batches.width_bytes, batches.unacked_bytes
    parts = -(-len(batches) // _STEP)
    heads = sum(1 + varint_bytes(column // parts) for column in columns)
    size = heads + sum(columns) // parts
    return sum(columns) + parts * (heads + 1 + varint_bytes(size))


def decode_batches(body: Any) -> dict[int, BatchSet]:
    """Return the batch sets of a LedgerBody.

    :raises CursorFormatError: the entries are out of range, or the columns do not fit together
    """
    found: dict[int, BatchSet] = {}
    end = 0
    for columns in body.batches:
        count = len(columns.entries)
        if not count or {len(columns.sizes), len(columns.widths)} != {count}:
            raise CursorFormatError(_WHAT, f"{count} entries, {len(columns.sizes)} sizes, {len(columns.widths)} widths")
        entries = [end + at + gaps for at, gaps in enumerate(accumulate(columns.entries))]
        end = entries[-1] + 1
        if end - 1 > INT64_MAX:
            raise CursorFormatError(_WHAT, f"there is no entry {end - 1}")
        _add(found, entries, columns.sizes, columns.widths, columns.unacked)
    return found


def _add(
    found: dict[int, BatchSet], entries: Sequence[int], sizes: Sequence[int], widths: Sequence[int], unacked: bytes
) -> None:
    if sum(widths) != len(unacked):
        raise CursorFormatError(_WHAT, f"{len(unacked)} bytes instead of {sum(widths)}")
    at = 0
    for entry, size, width in zip(entries, sizes, widths, strict=True):
        bits = int.from_bytes(unacked[at : at + width], "little")
        at += width
        found[entry] = checked_batch(entry, size, bits)


def checked_batch(entry: int, size: int, unacked: int) -> BatchSet:
    """Return the batch set of an entry.

    :raises CursorFormatError: the size and the bits do not fit together
    """
    try:
        return BatchSet(size, unacked)
    except InvalidArgumentError as error:
        raise CursorFormatError(_WHAT, f"entry {entry}: {error}") from error


def _check_size(size: int) -> None:
    if not 0 <= _number(size) <= _MAX_SIZE:
        raise InvalidArgumentError("size", size, "a number of messages, 0 to 2**31 - 1")


def _check_index(index: int, size: int) -> None:
    if not 0 <= _number(index) < size:
        raise InvalidArgumentError("batch_index", index, f"an index of a batch of {size}")


def _number(value: object) -> int:
    """Return an integer, -1 for anything else."""
    return value if isinstance(value, int) else -1
