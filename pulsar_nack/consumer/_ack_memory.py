"""The acknowledged messages of a consumer that may be delivered again, and what such a delivery means. Pure.

A cumulative acknowledgement is one mark for each partition. Other acknowledgements are kept by entry; a batch counts
once all its members are acknowledged. A redelivery request brings back a whole entry, so until then, from the first
delivery of a member, there is a bit for each member.

An entry has its stamp while it may hide a delivery, about ``ack_memory``. After that only two things count: that it is
acknowledged, so that its delivery is a replay, and whether the broker closed a session since. So it moves to the
compressed bitmap of its ledger: the memory of a consumer does not grow with its age.

An acknowledgement is stamped with a *turn*, which grows with each event of a session, and with a time. These hide:

- in the present session: those of the last ``ack_memory``, for duplicates that were on their way. No other message of
  it can come again: a call that moves a subscription ends the session
- after a lost connection: those of the last ``ack_memory`` before it, as the broker may have lost them
- after a session that the broker closed on a living connection: none from before. The broker has them all, so every
  delivery is meant. Except for members of a batch with unacknowledged messages: brokers forget those when they unload a
  topic, also if they keep index acks. They hide until another delivery shows that the subscription was moved

For a port that does not report its sessions, one session lasts for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from itertools import islice
from typing import Final

from ..ids import MessageId
from ..index import EntryRanges
from ._id_relations import EntryKey, LedgerKey, Place, entry_key, is_member, is_same_topic, is_through, place_of

Stamp = tuple[int, int]
"""A turn of a consumer's sessions, and a time in ms."""
_Batch = tuple[str | None, int, int, Stamp]
"""Topic, size (0: not known yet), a bit for each acknowledged member, and the stamp of the last acknowledgement."""

MAX_STAMPED: Final = 200_000
"""Entries that have a stamp at most; beyond that the oldest are forgotten, and delivered if they come."""
MAX_UNSTAMPED: Final = 10_000_000
"""Entries in bitmaps at most, and :data:`MAX_LEDGERS` bitmaps: the ledger with the oldest last entry is forgotten."""
MAX_LEDGERS: Final = 10_000
COMPACT_STEP: Final = 1_000
"""After so many acknowledgements :meth:`AckMemory.compact` is to be called."""
_MAX_BATCHES: Final = 50_000
_LONG_AGO_MS: Final = -(1 << 62)
_NEVER: Final = (0, 0, 0)


class AckMemory:
    """Acknowledged messages by entry, and the sessions with each topic and partition in which that was confirmed.

    :param ack_memory_ms: how long a confirmed acknowledgement hides, at most
    :param keeps_members: the broker keeps confirmed acknowledgements of single messages of a batch when a session ends
    """

    def __init__(self, ack_memory_ms: int, *, keeps_members: bool) -> None:
        self.turn = 1
        self.replayed = 0
        """How many deliveries were of acknowledged messages, and meant."""
        self.stamp: Stamp = (0, 0)
        """The stamp of acknowledgements that are noted from now on."""
        self.batches: OrderedDict[EntryKey, _Batch] = OrderedDict()
        """Entries with an unacknowledged member, at most 50 000: the oldest are forgotten first."""
        self._is_member_forgotten = self._is_forgotten if keeps_members else self._is_moved
        self.entries: dict[EntryKey, Stamp] = {}
        self.compact_at = COMPACT_STEP
        """How many entries with a stamp there are when :meth:`compact` is to be called."""
        self.marks: dict[Place, tuple[MessageId, Stamp]] = {}
        self._ack_memory_ms = ack_memory_ms
        self._ended: dict[Place, tuple[int, int, int]] = {}
        """The turn in which the broker last ended a session, that of the last lost connection since, and its time."""
        self._moved: dict[Place, int] = {}
        """The turn of the broker's last end of a session before a delivery that proved a replay."""
        self._closed_turn = 0
        """The turn in which the broker last ended a session, of any topic or partition."""
        self._since_turn = 0
        """The same when entries last moved to the bitmaps."""
        self._since: dict[LedgerKey, EntryRanges] = {}
        self._before: dict[LedgerKey, EntryRanges] = {}
        # Bitmaps of entries without a stamp, acknowledged since then, and before. A close of one topic or partition
        # counts for all, so an entry may count as older than it is, and never as newer.

    # --- what a delivery means ---------------------------------------------------------------------------------------

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether a message is known to be acknowledged."""
        stamp = self._stamp(message_id)
        is_acked = stamp is not None and not self._is_forgotten(stamp, place_of(message_id))
        return is_acked or self._is_acked_member(message_id)

    def hides(self, message_id: MessageId, now_ms: int) -> bool:
        """Return whether an acknowledgement keeps a message from being delivered."""
        stamp = self._stamp(message_id)
        is_hidden = stamp is not None and self._hides(stamp, place_of(message_id), now_ms)
        return is_hidden or self._is_acked_member(message_id)

    def was_wrongly_hidden(self, message_id: MessageId) -> bool:
        """Return whether a dropped duplicate should have been delivered, because later deliveries proved a replay."""
        place = place_of(message_id)
        return is_member(message_id) and self._moved.get(place, 0) == self._ended.get(place, _NEVER)[0] > 0

    def judge(self, message_id: MessageId, now_ms: int) -> bool:
        """Note a delivery of a message that is not known as unacknowledged; return whether it is to be delivered."""
        stamp, place = self._stamp(message_id), place_of(message_id)
        if stamp is not None and self._hides(stamp, place, now_ms):
            if stamp[0] < self._ended.get(place, _NEVER)[1]:  # now it is acknowledged in this session
                self.entries[entry_key(message_id)] = (self.turn, now_ms)
            return False
        if is_member(message_id):
            if self._is_acked_member(message_id):
                return False
            self.seen(message_id)
        elif stamp is not None:
            self.entries.pop(entry_key(message_id), None)
            self._discard_unstamped(entry_key(message_id))
        if stamp is not None:
            self.replayed += 1
            self._moved[place] = self._ended.get(place, _NEVER)[0]
        return True

    def _stamp(self, message_id: MessageId) -> Stamp | None:
        """Return when a message was settled by an entry or by a mark, None if that is not known."""
        key = message_id[:3]
        stamp = self.entries.get(key) or self.unstamped(key)
        if not self.marks:
            return stamp
        mark = self.marks.get(place_of(message_id)) or self.marks.get((None, message_id.partition))
        if mark is not None and is_through(message_id, mark[0]):
            return mark[1] if stamp is None else max(stamp, mark[1])
        return stamp

    def _hides(self, stamp: Stamp, place: Place, now_ms: int) -> bool:
        """Return whether an acknowledgement hides a delivery that comes now."""
        turn, at_ms = stamp
        closed, lost, lost_at_ms = self._ended.get(place, _NEVER)
        return turn >= closed and (lost_at_ms if turn < lost else now_ms) - at_ms < self._ack_memory_ms

    def _is_forgotten(self, stamp: Stamp, place: Place) -> bool:
        """Return whether an acknowledgement no longer counts, as the broker ended its session."""
        return bool(self._ended) and stamp[0] < self._ended.get(place, _NEVER)[0]

    def _is_moved(self, stamp: Stamp, place: Place) -> bool:
        """Return whether an acknowledgement no longer counts, as the subscription was moved since."""
        return bool(self._moved) and stamp[0] < self._moved.get(place, 0)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def session_closed(self, place: Place) -> None:
        """Note that the broker ended a session."""
        self.turn += 1
        self._closed_turn = self.turn
        self._ended[place] = (self.turn, 0, 0)

    def session_lost(self, place: Place, now_ms: int) -> None:
        """Note that a session ended with its connection."""
        self.turn += 1
        self._ended[place] = (self._ended.get(place, _NEVER)[0], self.turn, now_ms)

    def has_ended(self, place: Place) -> bool:
        """Return whether an earlier session of this topic or partition has ended."""
        return place in self._ended

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def pass_entry(self, message_id: MessageId) -> None:
        """Note that the whole entry of a message is acknowledged, with all members."""
        self.batches.pop(entry_key(message_id), None)
        self.entries[entry_key(message_id)] = self.stamp

    def ack_through(self, message_id: MessageId, now_ms: int) -> None:
        """Note a cumulative acknowledgement, in its partition; O(batches)."""
        here, index = entry_key(message_id), message_id.batch_index
        is_whole = index < 0 or here not in self.batches or self._note_member(message_id, (1 << index + 1) - 1)
        for key, (topic, *_) in list(self.batches.items()):
            is_here = is_same_topic(MessageId(*key, topic=topic), message_id)
            if is_here and (key < here or (key == here and is_whole)):
                del self.batches[key]
        self.marks[place_of(message_id)] = (message_id, (self.turn, now_ms))

    def clear(self) -> None:
        """Forget all acknowledgements."""
        self.entries.clear()
        self._since.clear()
        self._before.clear()
        self.compact_at = COMPACT_STEP
        self.marks.clear()
        self.batches.clear()

    # --- members of batches ------------------------------------------------------------------------------------------

    def seen(self, message_id: MessageId) -> None:
        """Note a delivered member of a batch; other ids are ignored."""
        if is_member(message_id) and message_id.batch_size > 1:
            self._note_member(message_id, 0)

    def ack_member(self, message_id: MessageId) -> bool:
        """Note an acknowledged message; True when its whole entry is acknowledged."""
        if message_id.batch_index < 0 and not self.batches:
            return True
        if not is_member(message_id):
            self.batches.pop(entry_key(message_id), None)
            return True
        return self._note_member(message_id, 1 << message_id.batch_index)

    def restore_batch(self, message_id: MessageId, acked: int) -> None:
        """Note which members of an entry are acknowledged, a bit for each, before any of them is delivered."""
        self.batches[entry_key(message_id)] = (message_id.topic, message_id.batch_size, acked, (0, 0))

    def has_busy_members(self, message_id: MessageId, others: int) -> bool:
        """Return whether members of an entry are left that are not acknowledged, besides ``others`` that are not busy.

        Members that were not seen yet are busy: they are on their way to the user.
        """
        if not is_member(message_id):
            return False
        _, size, acked, _ = self.batches.get(entry_key(message_id)) or (None, 0, 0, None)
        return not size or size - acked.bit_count() > others

    def _note_member(self, message_id: MessageId, members: int) -> bool:
        """Note a member, and a bit for each that is acknowledged; True when the whole entry is, which is forgotten."""
        key = entry_key(message_id)
        topic, size, acked, stamp = self.batches.get(key) or (message_id.topic, 0, 0, self.stamp)
        if acked and self._is_member_forgotten(stamp, place_of(message_id)):
            acked = 0
        acked |= members
        size = size or message_id.batch_size
        if size and acked.bit_count() >= size:
            self.batches.pop(key, None)
            return True
        self.batches[key] = (topic, size, acked, self.stamp if members else stamp)
        if len(self.batches) > _MAX_BATCHES:
            self.batches.popitem(last=False)
        return False

    def _is_acked_member(self, message_id: MessageId) -> bool:
        """Return whether a member of a batch with unacknowledged members is acknowledged."""
        batch = self.batches.get(entry_key(message_id))
        if batch is None or message_id.batch_index < 0:
            return False
        _, _, acked, stamp = batch
        return bool(acked >> message_id.batch_index & 1) and not self._is_member_forgotten(stamp, place_of(message_id))

    # --- bitmaps -----------------------------------------------------------------------------------------------------

    def unstamped(self, key: EntryKey) -> Stamp | None:
        """Return the stamp of an entry in a bitmap: its turn is that of the last close before. None: it is in none."""
        ledger, entry, partition = key
        since = self._since.get((ledger, partition))
        if since is not None and entry in since:
            return self._since_turn, _LONG_AGO_MS
        before = self._before.get((ledger, partition))
        return (0, _LONG_AGO_MS) if before is not None and entry in before else None

    def compact(self, now_ms: int) -> None:
        """Move entries that hide nothing any more to the bitmaps, the oldest first.

        Looks at twice as many as came since the last call, so that this costs O(1) for each.
        """
        entries, memory_ms = self.entries, self._ack_memory_ms
        losses = sorted((lost, lost_at_ms) for _, lost, lost_at_ms in self._ended.values() if lost)
        moved: list[tuple[EntryKey, bool]] = []
        still_hiding: list[EntryKey] = []
        # one iterator: to look for the first key again and again is slow in a dict that has lost many in front
        for key, (turn, at_ms) in islice(entries.items(), 2 * (COMPACT_STEP + max(len(entries) - self.compact_at, 0))):
            if now_ms - at_ms < memory_ms:
                break
            first_loss = bisect_left(losses, (turn + 1, 0))
            if first_loss < len(losses) and losses[first_loss][1] - at_ms < memory_ms:  # it was young then
                still_hiding.append(key)
            else:
                moved.append((key, turn >= self._closed_turn))
        for key, _ in moved:
            del entries[key]
        for key in still_hiding:  # until their session is lost again: looked at later
            entries[key] = entries.pop(key)
        for key in list(islice(entries, max(len(entries) - MAX_STAMPED, 0))):
            del entries[key]
        self._move_to_bitmaps(moved)
        self.compact_at = len(entries) + COMPACT_STEP

    def _move_to_bitmaps(self, entries: list[tuple[EntryKey, bool]]) -> None:
        """Add entries, each with whether no session was closed since its acknowledgement."""
        if self._closed_turn != self._since_turn:
            for ledger_key, ranges in self._since.items():
                known = self._before.setdefault(ledger_key, ranges)
                if known is not ranges:
                    known.merge(ranges)
            self._since, self._since_turn = {}, self._closed_turn
        found: dict[tuple[LedgerKey, bool], list[int]] = {}
        for (ledger, entry, partition), is_since in entries:
            if entry >= 0:
                found.setdefault(((ledger, partition), is_since), []).append(entry)
        for (ledger_key, is_since), some in found.items():
            ledgers = self._since if is_since else self._before
            ranges = ledgers.pop(ledger_key) if ledger_key in ledgers else EntryRanges()
            ranges.add_many(some)
            ledgers[ledger_key] = ranges  # the newest comes last
        while len(self._before) + len(self._since) > MAX_LEDGERS or self.count_unstamped() > MAX_UNSTAMPED:
            ledgers = self._before or self._since
            del ledgers[next(iter(ledgers))]

    def count_unstamped(self) -> int:
        """Return how many entries the bitmaps have."""
        return sum(map(len, self._since.values())) + sum(map(len, self._before.values()))

    def _discard_unstamped(self, key: EntryKey) -> None:
        ledger, entry, partition = key
        for ledgers in (self._since, self._before):
            ranges = ledgers.get((ledger, partition))
            if ranges is not None and entry in ranges:
                ranges.discard_range(entry, entry)
