"""Entries that hold several messages: which members are acknowledged, and which entry and topic an id is of.

A redelivery request brings back a whole entry. An entry is known here from the first delivery of a member until all of
its members are acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ..ids import MessageId

Place = tuple[str | None, int]
"""Topic and partition."""
Stamp = tuple[int, int]
"""A turn of a consumer's sessions, and a time in ms."""
EntryKey = tuple[int, int, int]
"""Ledger, entry, partition."""
LedgerKey = tuple[int, int]
"""Ledger and partition."""

_MAX_ENTRIES: Final = 50_000


def place_of(message_id: MessageId) -> Place:
    """Return the topic and the partition of a message."""
    return message_id.topic, message_id.partition


def entry_key(message_id: MessageId) -> EntryKey:
    """Return what all members of an entry share."""
    return message_id[:3]


def is_member(message_id: MessageId) -> bool:
    """Return whether an id names one of several messages in its entry; an unknown batch size counts as several."""
    return message_id.batch_index >= 0 and message_id.batch_size != 1


def is_same_topic(message_id: MessageId, other: MessageId) -> bool:
    """Return whether two ids are of one partition of one topic; an id without a topic matches every topic."""
    return message_id.partition == other.partition and (
        message_id.topic is None or other.topic is None or message_id.topic == other.topic
    )


def is_through(message_id: MessageId, mark: MessageId) -> bool:
    """Return whether a cumulative acknowledgement of ``mark`` covers a message."""
    is_before = message_id[:2] < mark[:2]
    is_here = message_id[:2] == mark[:2] and (mark.batch_index < 0 or message_id.batch_index <= mark.batch_index)
    return (is_before or is_here) and is_same_topic(message_id, mark)


_Entry = tuple[str | None, int, int, Stamp]
"""Topic, size of the batch (0: not known yet), a bit for each acknowledged member, and the stamp of the last one."""


class BatchEntries:
    """Entries with an unacknowledged member, at most 50 000: the oldest are forgotten first.

    :param is_forgotten: returns whether an acknowledgement no longer counts
    """

    def __init__(self, is_forgotten: Callable[[Stamp, Place], bool]) -> None:
        self.stamp: Stamp = (0, 0)
        """The stamp of acknowledgements that are noted from now on."""
        self._is_forgotten = is_forgotten
        self.entries: OrderedDict[EntryKey, _Entry] = OrderedDict()
        """Entries of batches with an unacknowledged message."""

    def seen(self, message_id: MessageId) -> None:
        """Note a delivered member; other ids are ignored."""
        if is_member(message_id) and message_id.batch_size > 1:
            self._note(message_id, 0)

    def _note(self, message_id: MessageId, members: int) -> bool:
        """Note a member, and a bit for each that is acknowledged; True when the whole entry is, which is forgotten."""
        key = entry_key(message_id)
        topic, size, acked, stamp = self.entries.get(key) or (message_id.topic, 0, 0, self.stamp)
        if acked and self._is_forgotten(stamp, place_of(message_id)):
            acked = 0
        acked |= members
        size = size or message_id.batch_size
        if size and acked.bit_count() >= size:
            self.entries.pop(key, None)
            return True
        self.entries[key] = (topic, size, acked, self.stamp if members else stamp)
        if len(self.entries) > _MAX_ENTRIES:
            self.entries.popitem(last=False)
        return False

    def acked(self, message_id: MessageId) -> bool:
        """Note an acknowledged message; True when its whole entry is acknowledged."""
        if message_id.batch_index < 0 and not self.entries:
            return True
        if not is_member(message_id):
            self.passed(message_id)
            return True
        return self._note(message_id, 1 << message_id.batch_index)

    def restore(self, message_id: MessageId, acked: int) -> None:
        """Note which members of an entry are acknowledged, a bit for each, before any of them is delivered."""
        self.entries[entry_key(message_id)] = (message_id.topic, message_id.batch_size, acked, (0, 0))

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether this member of an entry with unacknowledged members is acknowledged."""
        entry = self.entries.get(entry_key(message_id))
        if entry is None or message_id.batch_index < 0 or not entry[2] >> message_id.batch_index & 1:
            return False
        return not self._is_forgotten(entry[3], place_of(message_id))

    def has_busy_members(self, message_id: MessageId, others: int) -> bool:
        """Return whether members of an entry are left that are not acknowledged, besides ``others`` that are not busy.

        Members that were not seen yet are busy: they are on their way to the user.
        """
        if not is_member(message_id):
            return False
        _, size, acked, _ = self.entries.get(entry_key(message_id)) or (None, 0, 0, None)
        return not size or size - acked.bit_count() > others

    def passed(self, message_id: MessageId) -> None:
        """Note that the whole entry of a message is acknowledged."""
        self.entries.pop(entry_key(message_id), None)

    def acked_through(self, message_id: MessageId) -> None:
        """Note a cumulative acknowledgement, in its partition; O(entries)."""
        here, index = entry_key(message_id), message_id.batch_index
        is_whole = index < 0 or here not in self.entries or self._note(message_id, (1 << index + 1) - 1)
        for key, (topic, *_) in list(self.entries.items()):
            is_here = is_same_topic(MessageId(*key, topic=topic), message_id)
            if is_here and (key < here or (key == here and is_whole)):
                del self.entries[key]

    def clear(self) -> None:
        """Forget all entries."""
        self.entries.clear()
