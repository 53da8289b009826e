"""Which messages of a batch are not acknowledged yet."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from sys import byteorder
from typing import Final, Self

from ..errors import InvalidArgumentError

_WORD_BITS: Final = 64
_MAX_SIZE: Final = 2**31 - 1


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
    def word_count(self) -> int:
        """Return how many words it is written as."""
        return (self.unacked.bit_length() + _WORD_BITS - 1) // _WORD_BITS

    @property
    def width(self) -> int:
        """Return how many bytes its bits take."""
        return (self.unacked.bit_length() + 7) // 8

    @property
    def is_all_acked(self) -> bool:
        """Return whether no message is left."""
        return not self.unacked

    @property
    def is_untouched(self) -> bool:
        """Return whether every message is left."""
        return self.unacked.bit_count() == self.size

    def is_acked(self, index: int) -> bool:
        """Return whether the message of this index is acknowledged."""
        return index >= 0 and not self.unacked >> index & 1

    def merge(self, other: BatchSet) -> BatchSet:
        """Return what is left when both were acknowledged: an index stays only if it is in both."""
        return BatchSet(max(self.size, other.size), self.unacked & other.unacked)

    def __iter__(self) -> Iterator[int]:
        rest = self.unacked
        while rest:
            yield (rest & -rest).bit_length() - 1
            rest &= rest - 1


def _check_size(size: int) -> None:
    if not 0 <= _number(size) <= _MAX_SIZE:
        raise InvalidArgumentError("size", size, "a number of messages, 0 to 2**31 - 1")


def _check_index(index: int, size: int) -> None:
    if not 0 <= _number(index) < size:
        raise InvalidArgumentError("batch_index", index, f"an index of a batch of {size}")


def _number(value: object) -> int:
    """Return an integer, -1 for anything else."""
    return value if isinstance(value, int) else -1
