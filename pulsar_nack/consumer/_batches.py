"""Entries that hold several messages: which members are acknowledged, and whether some are busy.

A redelivery request brings back a whole entry. An entry is known here from the first delivery of a member until all of
its members are acknowledged; members that were not seen yet count as busy, because they are on their way to the user.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Entry:
    topic: str | None
    size: int
    """0: not known yet."""
    acked: int = 0
    requested: int = 0
    stamp: Stamp = (0, 0)
    """The stamp of the last acknowledgement."""


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

    def __len__(self) -> int:
        return len(self.entries)

    def seen(self, message_id: MessageId) -> None:
        """Note a delivered member; other ids are ignored."""
        if is_member(message_id) and message_id.batch_size > 1:
            self._known(message_id)

    def _known(self, message_id: MessageId) -> _Entry:
        key = entry_key(message_id)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _Entry(message_id.topic, message_id.batch_size)
            if len(self.entries) > _MAX_ENTRIES:
                self.entries.popitem(last=False)
        elif not entry.size:
            entry.size = message_id.batch_size
        if entry.acked and self._is_forgotten(entry.stamp, place_of(message_id)):
            entry.acked = 0
        return entry

    def acked(self, message_id: MessageId) -> bool:
        """Note an acknowledged message; True when its whole entry is acknowledged."""
        if message_id.batch_index < 0 and not self.entries:
            return True
        key = entry_key(message_id)
        if not is_member(message_id):
            self.entries.pop(key, None)
            return True
        entry = self._known(message_id)
        entry.acked |= 1 << message_id.batch_index
        entry.stamp = self.stamp
        if not entry.size or entry.acked.bit_count() < entry.size:
            return False
        del self.entries[key]
        return True

    def restore(self, message_id: MessageId, acked: int) -> None:
        """Note which members of an entry are acknowledged, a bit for each, before any of them is delivered."""
        self.entries[entry_key(message_id)] = _Entry(message_id.topic, message_id.batch_size, acked)

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether this member of an entry with unacknowledged members is acknowledged."""
        entry = self.entries.get(entry_key(message_id))
        if entry is None or message_id.batch_index < 0 or not entry.acked >> message_id.batch_index & 1:
            return False
        return not self._is_forgotten(entry.stamp, place_of(message_id))

    def requested(self, message_id: MessageId, change: int) -> None:
        """Count a member whose redelivery was requested (1), or no longer is (-1)."""
        entry = self.entries.get(entry_key(message_id))
        if entry is not None:
            entry.requested = max(entry.requested + change, 0)

    def has_busy_members(self, message_id: MessageId, due: int) -> bool:
        """Return whether members are left that are not acknowledged, not requested, and not among the ``due`` ones."""
        if not is_member(message_id):
            return False
        entry = self.entries.get(entry_key(message_id))
        return entry is None or not entry.size or entry.size - entry.acked.bit_count() - entry.requested > due

    def passed(self, message_id: MessageId) -> None:
        """Note that the whole entry of a message is acknowledged."""
        self.entries.pop(entry_key(message_id), None)

    def acked_through(self, message_id: MessageId) -> None:
        """Note a cumulative acknowledgement, in its partition; O(entries)."""
        here, index = entry_key(message_id), message_id.batch_index
        entry = self.entries.get(here)
        if entry is not None and index >= 0:
            entry = self._known(message_id)
            entry.acked |= (1 << index + 1) - 1
            entry.stamp = self.stamp
        is_whole = entry is None or index < 0 or bool(entry.size and entry.acked.bit_count() >= entry.size)
        for key, known in list(self.entries.items()):
            is_here = MessageId(*key, topic=known.topic)
            if is_same_topic(is_here, message_id) and (key < here or (key == here and is_whole)):
                del self.entries[key]

    def clear(self) -> None:
        """Forget all entries."""
        self.entries.clear()
