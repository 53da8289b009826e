"""Small dense numbers for message ids, so that one bitmap can hold ids of every ledger, partition and batch.

An *id block* stands for up to 65 536 messages that belong together. The *number* of a message is ``block index << 16 |
low``, so in a roaring bitmap each block is one container. What ``low`` means depends on the block's ``bits``:

- 0: messages without a batch index; ``low`` is the place of the entry in a range of 65 536 entries
- 4, 10 or 16: members of batches; ``low`` is ``entry place << bits | batch index``, so that a whole batch is one run of
  numbers. The bits follow from the batch index alone (below 16, below 1 024, above), because two ids are equal whatever
  batch sizes they carry. Batch indexes above 65 535 have their own blocks (``index_high``).

Ids that are due stay numbers until they are read: :class:`DueIds`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat, starmap
from typing import Any, Final, overload

from pyroaring import BitMap

from ..ids import MessageId, Position, _share_extras, _TopicId

BLOCK_SIZE: Final = 1 << 16
UNUSED: Final = -2
"""The ``top`` of a new block, until its user has checked whether id ranges of a former block lie in it."""
_LOW: Final = BLOCK_SIZE - 1
_make = tuple.__new__
_AT_A_TIME: Final = 256

BlockKey = tuple[int, int, int, int, int]
"""Ledger, range of entries, partition, bits, index_high."""

IdRun = tuple["IdBlock | list[IdBlock]", "array[int]"]
"""Ascending numbers of one block, or with a list of blocks the number of each, in order of position."""


def block_key(ledger: int, entry: int, partition: int, batch_index: int) -> BlockKey:
    """Return the key of the block that a message belongs to."""
    if batch_index < 0:
        return ledger, entry >> 16, partition, 0, 0
    bits = 4 if batch_index < 16 else 10 if batch_index < 1024 else 16
    return ledger, entry >> (16 - bits), partition, bits, batch_index >> 16


class IdBlock:
    """Translates the numbers of one block to ids and back; ``base`` is its first number.

    No number above ``top`` has been used since the block was made; the user of the block updates it.
    """

    __slots__ = (
        "base",
        "bits",
        "first_entry",
        "index",
        "index_high",
        "key",
        "ledger",
        "offset",
        "partition",
        "top",
        "topic",
    )

    def __init__(self, index: int, key: BlockKey) -> None:
        self.index = index
        self.base = index << 16
        self.top = UNUSED
        self.key = key
        self.ledger, range_of_entries, self.partition, self.bits, self.index_high = key
        self.first_entry = range_of_entries << (16 - self.bits)
        self.offset = self.first_entry - self.base
        self.topic: str | None = None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return the sort key that puts messages of different blocks in order of ledger and entry."""
        return self.ledger, self.first_entry, self.partition, self.index_high

    def number(self, entry: int, batch_index: int) -> int:
        """Return the number of a message of this block."""
        place = entry - self.first_entry
        if self.bits:
            place = place << self.bits | (batch_index & _LOW)
        return self.base + place

    def batch_index(self, number: int) -> int:
        """Return the batch index of a number, -1 without one."""
        if not self.bits:
            return -1
        return self.index_high << 16 | (number & ((1 << self.bits) - 1))

    def entry(self, number: int) -> int:
        """Return the entry of a number."""
        return self.first_entry + ((number - self.base) >> self.bits)

    def entries(self, numbers: Any) -> array[int]:
        """Return the entries of a bitmap of numbers; for blocks without batch indexes."""
        offset = self.offset
        if type(numbers) is BitMap and self.first_entry >> 32 == 0:
            return numbers.shift(offset).to_array() if offset else numbers.to_array()
        return array("Q" if self.first_entry >> 32 else "I", [number + offset for number in numbers])

    def message_ids(self, numbers: Iterable[int]) -> Iterator[MessageId]:
        """Make the ids of some numbers of this block."""
        identities: Iterable[tuple[int, int, int, int]]
        if self.bits:
            places = ((self.entry(number), self.batch_index(number)) for number in numbers)
            identities = ((self.ledger, entry, self.partition, batch_index) for entry, batch_index in places)
        else:
            entries = map(self.offset.__add__, numbers)
            identities = zip(repeat(self.ledger), entries, repeat(self.partition), repeat(-1))
        if self.topic is None:
            return map(_make, repeat(MessageId), identities)
        return map(_with_extras, identities, repeat({"topic": self.topic}))

    def positions(self, numbers: array[int]) -> Iterator[Position]:
        """Make the positions of some numbers of this block, without batch indexes."""
        ledger, offset = self.ledger, self.offset
        if self.bits:
            return (Position(ledger, self.entry(number)) for number in numbers)
        return (_make(Position, (ledger, number + offset)) for number in numbers)


def _with_extras(identity: tuple[int, int, int, int], extras: dict[str, str]) -> MessageId:
    message_id = _make(_TopicId, identity)
    _share_extras(message_id, extras)
    return message_id


class DueIds(Sequence[MessageId]):
    """Ids in the order in which they are due: 4 bytes an id until it is read, 12 where few share an id block.

    Equal to a list of the same ids. Ids of chunked messages cannot be made from a number and are kept as they are.

    :param block: with ``numbers``: begin with some numbers of one block
    """

    __slots__ = ("_ends", "_originals", "_runs")

    def __init__(self, block: IdBlock | None = None, numbers: array[int] | None = None) -> None:
        self._runs: list[IdRun] = []
        self._ends: list[int] = []
        if block is not None and numbers is not None:
            self._runs.append((block, numbers))
            self._ends.append(len(numbers))
        self._originals: dict[int, MessageId] = {}

    def append(self, blocks: IdBlock | list[IdBlock], numbers: array[int]) -> None:
        """Add numbers of one block, or with a list of blocks the number of each."""
        self._runs.append((blocks, numbers))
        self._ends.append(len(numbers) + (self._ends[-1] if self._ends else 0))

    def replace(self, originals: Mapping[int, MessageId]) -> None:
        """Use these ids of chunked messages, by number."""
        self._originals.update(originals)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[MessageId]:
        if len(self._runs) == 1 and not self._originals:
            block, numbers = self._runs[0]
            if not isinstance(block, list):
                return block.message_ids(numbers)
        return chain.from_iterable(starmap(self._ids, self._runs))

    def _ids(self, blocks: IdBlock | list[IdBlock], numbers: array[int]) -> Iterable[MessageId]:
        ids = _mixed_ids(blocks, numbers) if isinstance(blocks, list) else blocks.message_ids(numbers)
        return map(self._originals.get, numbers, ids) if self._originals else ids

    def positions(self) -> list[Position]:
        """Return the positions instead of the ids."""
        found: list[Position] = []
        for blocks, numbers in self._runs:
            if isinstance(blocks, list):
                found += (_make(Position, message_id[:2]) for message_id in _mixed_ids(blocks, numbers))
            else:
                found += blocks.positions(numbers)
        return found

    @overload
    def __getitem__(self, index: int) -> MessageId: ...

    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        run = bisect_right(self._ends, place)
        blocks, numbers = self._runs[run]
        at = place - self._ends[run]  # negative: from the end of the run
        number = numbers[at]
        original = self._originals.get(number)
        if original is not None:
            return original
        block = blocks[at] if isinstance(blocks, list) else blocks
        return next(block.message_ids((number,)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"DueIds([{shown}{', ...' if len(self) > 5 else ''}], {len(self)} ids)"


def _mixed_ids(blocks: list[IdBlock], numbers: array[int]) -> Iterator[MessageId]:
    """Make an id of each number and its block, some hundred at a time."""
    places = range(0, len(numbers), _AT_A_TIME)
    return chain.from_iterable(_some_ids(blocks[at : at + _AT_A_TIME], numbers[at : at + _AT_A_TIME]) for at in places)


def _some_ids(blocks: list[IdBlock], numbers: array[int]) -> list[MessageId]:
    return [
        next(block.message_ids((number,)))
        if block.bits or block.topic
        else _make(MessageId, (block.ledger, number + block.offset, block.partition, -1))
        for block, number in zip(blocks, numbers, strict=True)
    ]
