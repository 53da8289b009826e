"""The acknowledged messages of a consumer that may be delivered again, and what such a delivery means. Pure.

A cumulative acknowledgement is one mark for each partition. Other acknowledgements are kept by entry, the last 100 000
to 200 000; a batch counts once all its messages are acknowledged, until then :class:`BatchEntries` has its bits.
"""

from __future__ import annotations

from typing import Final

from ..ids import MessageId
from ._batches import BatchEntries, EntryKey, entry_key, is_member, is_through
from ._message_state import Verdict
from ._sessions import Place, Sessions, Stamp, place_of

MAX_ENTRIES: Final = 100_000
"""Acknowledged entries after which the older ones are forgotten."""


class AckMemory:
    """Acknowledged messages, by entry.

    :param ack_memory_ms: how long an acknowledged message that comes back is hidden, see :class:`Sessions`
    :param keeps_members: the broker keeps confirmed acknowledgements of single messages of a batch when a session ends
    """

    def __init__(self, ack_memory_ms: int, *, keeps_members: bool) -> None:
        self.sessions = Sessions(ack_memory_ms)
        self.batches = BatchEntries(self.sessions.is_forgotten if keeps_members else self.sessions.is_replayed)
        self.entries: dict[EntryKey, Stamp] = {}
        self.older_entries: dict[EntryKey, Stamp] = {}
        self.marks: dict[Place, tuple[MessageId, Stamp]] = {}

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether a message is known to be acknowledged."""
        stamp = self._stamp(message_id)
        is_acked = stamp is not None and not self.sessions.is_forgotten(stamp, place_of(message_id))
        return is_acked or self.batches.is_acked(message_id)

    def hides(self, message_id: MessageId, now_ms: int) -> bool:
        """Return whether an acknowledgement keeps a message from being delivered."""
        stamp = self._stamp(message_id)
        is_hidden = stamp is not None and self.sessions.hides(stamp, place_of(message_id), now_ms)
        return is_hidden or self.batches.is_acked(message_id)

    def was_wrongly_hidden(self, message_id: MessageId) -> bool:
        """Return whether a dropped duplicate should have been delivered, because later deliveries proved a replay."""
        return is_member(message_id) and self.sessions.is_replaying(place_of(message_id))

    def judge(self, message_id: MessageId, now_ms: int) -> Verdict:
        """Decide on a delivery of a message that is not known as unacknowledged, and note it."""
        stamp, place = self._stamp(message_id), place_of(message_id)
        if stamp is not None and self.sessions.hides(stamp, place, now_ms):
            if self.sessions.is_of_earlier(stamp, place):  # now it is acknowledged in this session
                self.entries[entry_key(message_id)] = (self.sessions.turn, now_ms)
            return Verdict.ACK_AGAIN
        if is_member(message_id):
            if self.batches.is_acked(message_id):
                return Verdict.ACK_AGAIN
            self.batches.seen(message_id)
        elif stamp is not None:
            self.entries.pop(entry_key(message_id), None)
            self.older_entries.pop(entry_key(message_id), None)
        if stamp is None:
            return Verdict.DELIVER
        self.sessions.replayed(place)
        return Verdict.REPLAY

    def _stamp(self, message_id: MessageId) -> Stamp | None:
        """Return when a message was settled by an entry or by a mark, None if that is not known."""
        key = message_id[:3]
        stamp = self.entries.get(key) or self.older_entries.get(key)
        if not self.marks:
            return stamp
        mark = self.marks.get(place_of(message_id)) or self.marks.get((None, message_id.partition))
        if mark is not None and is_through(message_id, mark[0]):
            return mark[1] if stamp is None else max(stamp, mark[1])
        return stamp

    def bound(self) -> None:
        """Forget all entries before the last 100 000, in one step."""
        self.entries, self.older_entries = {}, self.entries

    def pass_entry(self, message_id: MessageId) -> None:
        """Note that the whole entry of a message is acknowledged, with all members."""
        self.batches.passed(message_id)
        self.entries[entry_key(message_id)] = self.batches.stamp

    def ack_through(self, message_id: MessageId, now_ms: int) -> None:
        """Note a cumulative acknowledgement."""
        self.batches.acked_through(message_id)
        self.marks[place_of(message_id)] = (message_id, (self.sessions.turn, now_ms))

    def clear(self) -> None:
        """Forget all acknowledgements."""
        self.entries.clear()
        self.older_entries.clear()
        self.marks.clear()
        self.batches.clear()
