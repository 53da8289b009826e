"""Small dense numbers for message ids, so that one bitmap can hold ids of every ledger, partition and batch.

A *slot* stands for up to 65 536 messages that belong together; a message's *number* is ``slot << 16 | low``. In a
roaring bitmap a slot is therefore one container. What ``low`` means depends on the slot's ``bits``:

- 0: messages without a batch index; ``low`` is the entry's place in a block of 65 536 entries
- 4, 10 or 16: members of batches; ``low`` is ``entry place << bits | batch index``, so that a whole batch is one run of
  numbers. The class follows from the batch index alone (below 16, below 1 024, above), since two ids are equal whatever
  they say of the batch's size. Indexes above 65 535 go on in slots of their own (``index_high``).

Slots are given out in rising order and freed ones are used again last come last, so that in an ordered stream a newer
message has the larger number. Beyond 65 536 slots numbers no longer fit into 32 bits and the owner goes over to 64.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from pyroaring import BitMap

from ..ids import MessageId, Position, _share_extras, _TopicId

SLOT_SIZE: Final = 1 << 16
UNUSED: Final = -2
"""The ``top`` of a new slot, until its owner has looked whether something still lies in its range."""
_LOW: Final = SLOT_SIZE - 1
_make = tuple.__new__

SlotKey = tuple[int, int, int, int, int]
"""Ledger, block of entries, partition, bits, index_high."""


def slot_key(ledger: int, entry: int, partition: int, batch_index: int) -> SlotKey:
    """Return the key of the slot that a message belongs to."""
    if batch_index < 0:
        return ledger, entry >> 16, partition, 0, 0
    bits = 4 if batch_index < 16 else 10 if batch_index < 1024 else 16
    return ledger, entry >> (16 - bits), partition, bits, batch_index >> 16


class Slot:
    """What the numbers of one slot stand for; ``index`` is its place, ``base`` its first number.

    No number above ``top`` was used since the slot was given out; its owner keeps it.
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

    def __init__(self, index: int, key: SlotKey, topic: str | None) -> None:
        self.index = index
        self.base = index << 16
        self.top = UNUSED
        self.key = key
        self.ledger, block, self.partition, self.bits, self.index_high = key
        self.first_entry = block << (16 - self.bits)
        self.offset = self.first_entry - self.base
        self.topic = topic

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return what slots are ordered by, so that their messages are in order of ledger and entry."""
        return self.ledger, self.first_entry, self.partition, self.index_high

    def number(self, entry: int, batch_index: int) -> int:
        """Return the number of a message of this slot."""
        place = entry - self.first_entry
        if self.bits:
            place = place << self.bits | (batch_index & _LOW)
        return self.base + place

    def batch_index(self, number: int) -> int:
        """Return the batch index that a number stands for, -1 without one."""
        if not self.bits:
            return -1
        return self.index_high << 16 | (number & ((1 << self.bits) - 1))

    def entry(self, number: int) -> int:
        """Return the entry that a number stands for."""
        return self.first_entry + ((number - self.base) >> self.bits)

    def entries(self, numbers: Any) -> array[int]:
        """Return the entries of a bitmap of numbers of this slot, which has no batch indexes."""
        offset = self.offset
        if type(numbers) is BitMap and self.first_entry >> 32 == 0:
            return numbers.shift(offset).to_array() if offset else numbers.to_array()
        return array("Q" if self.first_entry >> 32 else "I", [number + offset for number in numbers])

    def message_ids(self, numbers: Iterable[int]) -> Iterator[MessageId]:
        """Make the ids of some of this slot's numbers."""
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
        """Make the positions of some of this slot's numbers; batch indexes are left out."""
        ledger, offset = self.ledger, self.offset
        if self.bits:
            return (Position(ledger, self.entry(number)) for number in numbers)
        return (_make(Position, (ledger, number + offset)) for number in numbers)


def _with_extras(identity: tuple[int, int, int, int], extras: dict[str, str]) -> MessageId:
    message_id = _make(_TopicId, identity)
    _share_extras(message_id, extras)
    return message_id


class SlotTable:
    """Gives out slots by key and finds them by index, in O(1).

    ``are_in_order`` says that the order of slots is that of their places; it may be False for long when they are again.
    """

    __slots__ = ("_fresh", "_newest", "_released", "_topics", "are_in_order", "by_index", "by_key", "limit")

    def __init__(self, limit: int = SLOT_SIZE) -> None:
        self.limit = limit
        self.by_key: dict[SlotKey, Slot] = {}
        self.by_index: dict[int, Slot] = {}
        self._released: deque[int] = deque()
        self._topics: dict[tuple[str, int], str] = {}
        self._fresh = 0
        self._newest: Slot | None = None
        self.are_in_order = True

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self.by_key.values()))

    def __getitem__(self, index: int) -> Slot:
        return self.by_index[index]

    def find(self, key: SlotKey) -> Slot | None:
        """Return the slot of a key, None when it has none."""
        return self.by_key.get(key)

    @property
    def is_full(self) -> bool:
        """Return whether the next new key would need an index beyond the limit."""
        return self._fresh >= self.limit and not self._released

    def get(self, key: SlotKey, topic: str | None) -> Slot:
        """Return the slot of a key, a new one when it has none; the first topic that is told stays."""
        slot = self.by_key.get(key)
        if slot is None:
            slot = self._new(key)
        if slot.topic is None and topic is not None:
            slot.topic = self._topics.setdefault((topic, slot.partition), topic)
        return slot

    def _new(self, key: SlotKey) -> Slot:
        if self._fresh < self.limit:
            index = self._fresh
            self._fresh += 1
        else:
            index = self._released.popleft()
        slot = Slot(index, key, None)
        newest = self._newest
        if newest is not None and (slot.index < newest.index or slot.place < newest.place):
            self.are_in_order = False
        self._newest = slot
        self.by_key[key] = self.by_index[index] = slot
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot back; none of its numbers may be in use."""
        del self.by_key[slot.key], self.by_index[slot.index]
        self._released.append(slot.index)
        if not self.by_key:
            self._topics.clear()
            self._newest = None
            self.are_in_order = True
