"""Small dense numbers for message ids, so that one bitmap can hold ids of every ledger, partition and batch.

An *id block* stands for up to 65 536 messages that belong together. The *number* of a message is ``block index << 16 |
low``, so in a roaring bitmap each block is one container. What ``low`` means depends on the block's ``bits``:

- 0: messages without a batch index; ``low`` is the place of the entry in a range of 65 536 entries
- 4, 10 or 16: members of batches; ``low`` is ``entry place << bits | batch index``, so that a whole batch is one run of
  numbers. The bits follow from the batch index alone (below 16, below 1 024, above), because two ids are equal whatever
  batch sizes they carry. Batch indexes above 65 535 have their own blocks (``index_high``).

Block indexes are given out in rising order, and a released index is reused as late as possible. So in an ordered stream
a newer message has the larger number. Numbers of more than 65 536 blocks do not fit into 32 bits; then 64 are used.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from pyroaring import BitMap

from ..ids import MessageId, Position, _share_extras, _TopicId

BLOCK_SIZE: Final = 1 << 16
UNUSED: Final = -2
"""The ``top`` of a new block, until its user has checked whether id ranges of a former block lie in it."""
_LOW: Final = BLOCK_SIZE - 1
_make = tuple.__new__

BlockKey = tuple[int, int, int, int, int]
"""Ledger, range of entries, partition, bits, index_high."""


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


class IdBlockTable:
    """Makes blocks by key and finds them by key or index, in O(1).

    ``are_in_order`` says that the blocks lie in order of position. It may stay False after they have become ordered.
    """

    __slots__ = ("_fresh", "_newest", "_released", "_topics", "are_in_order", "by_index", "by_key", "limit")

    def __init__(self) -> None:
        self.by_key: dict[BlockKey, IdBlock] = {}
        self.by_index: dict[int, IdBlock] = {}
        self._released: deque[int] = deque()
        self._topics: dict[tuple[str, int], str] = {}
        self.clear()

    def clear(self) -> None:
        """Release all blocks; the next ones begin at index 0, and there is room for those that 32 bits can name."""
        self.by_key.clear()
        self.by_index.clear()
        self._released.clear()
        self._topics.clear()
        self.limit = BLOCK_SIZE
        self._fresh = 0
        self._newest: IdBlock | None = None
        self.are_in_order = True

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[IdBlock]:
        return iter(list(self.by_key.values()))

    def __getitem__(self, index: int) -> IdBlock:
        return self.by_index[index]

    def has_room_for(self, key: BlockKey) -> bool:
        """Return whether the key has a block, or an index within the limit is left for one."""
        return self._fresh < self.limit or bool(self._released) or key in self.by_key

    def get(self, key: BlockKey, topic: str | None) -> IdBlock:
        """Return the block of a key, made if it is missing; it keeps the first topic that is given."""
        block = self.by_key.get(key)
        if block is None:
            block = self._new(key)
        if block.topic is None and topic is not None:
            block.topic = self._topics.setdefault((topic, block.partition), topic)
        return block

    def _new(self, key: BlockKey) -> IdBlock:
        if self._fresh < self.limit:
            index = self._fresh
            self._fresh += 1
        else:
            index = self._released.popleft()
        block = IdBlock(index, key)
        newest = self._newest
        if newest is not None and (index < newest.index or block.place < newest.place):
            self.are_in_order = False
        self._newest = block
        self.by_key[key] = self.by_index[index] = block
        return block

    def release(self, block: IdBlock) -> None:
        """Release a block; none of its numbers may be in use."""
        del self.by_key[block.key], self.by_index[block.index]
        self._released.append(block.index)
        if not self.by_key:
            self._topics.clear()
            self._newest = None
            self.are_in_order = True
