"""The unacknowledged messages of a consumer, and what a delivery of each therefore means. Pure: no clock, no await.

::

              deliver            hold               request             deliver
    (unknown) -----> DELIVERED ---------> HELD ----------------> REQUESTED -------> DELIVERED
                          |                |  redeliver (local)      |
                          |                +---------> DELIVERED     +-- 30 s --> (unknown)
                          +--- mark_acking / settle_all, from every state -----> (settled)
                          +--- send_away, from every state but ACKING ---------> DEAD_LETTERING, RETRYING

==============  =========================================================================================
state           what a delivery from the broker means
==============  =========================================================================================
unknown         deliver it
DELIVERED       a duplicate: the broker sent it twice, or its entry came back for another batch member. Drop it
HELD            a duplicate too: nacked and not due. Drop it
REQUESTED       the answer to the request: deliver it
ACKING          an acknowledgement is under way: acknowledge this duplicate also, once that is confirmed
DEAD_LETTERING  a duplicate: it is on its way to the dead-letter topic, and acknowledged once it is there. Drop it
RETRYING        a duplicate too: it is on its way to the retry topic. Drop it
settled         acknowledge it again, while that hides it (see ``_ack_memory``), or while its batch is not wholly
                acknowledged and the broker need not know. Else it was replayed on purpose: deliver it
==============  =========================================================================================

State decides, not time, with two limits that keep it from being wrong for ever: REQUESTED ends after 30 s, unless the
answer may wait at the port; and what is settled hides for ``ack_memory`` at most. Forgetting is always safe: a message
that is not known is delivered. Requests that brought nothing are repeated, see ``_requests``.

Memory: unacknowledged messages are bounded by the broker and by ``most_delivered``, of which the oldest are forgotten;
settled ones (``_ack_memory``) and the counts of forgotten requests (``_requests``) by numbers there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from ..errors import AlreadySettledError
from ..ids import MessageId
from ._ack_memory import AckMemory
from ._id_relations import EntryKey, Place, is_through, place_of
from ._message_state import ACKING, DELIVERED, HELD, REQUESTED, RETRYING, SENT_AWAY, MessageState, State
from ._requests import OpenRequests

WAITING: Final = (HELD, REQUESTED)
UNDELIVERED: Final = (*WAITING, *SENT_AWAY)


class MessageTable:
    """The unacknowledged messages of one consumer, by id.

    :param ack_memory_ms: how long an acknowledged message that comes back is hidden, see ``_ack_memory``
    :param most_delivered: how many delivered messages are known at most
    :param keeps_members: the broker keeps confirmed acknowledgements of single messages of a batch when a session ends
    """

    def __init__(
        self, *, ack_memory_ms: int = 10_000, most_delivered: int = 100_000, keeps_members: bool = False
    ) -> None:
        self.acked = AckMemory(ack_memory_ms, keeps_members=keeps_members)
        self.requests = OpenRequests()
        self.duplicates = 0
        """How many deliveries of messages that were delivered or held were dropped."""
        self.held = self.requested = 0
        self.delivered = 0
        """Messages in any other state than HELD and REQUESTED."""
        self.on_left: Callable[[MessageState], None] | None = None  # called with those not known any more
        self.requested_members: dict[EntryKey, int] = {}
        """How many members of each batch are REQUESTED."""
        self._records: dict[MessageId, MessageState] = {}
        self.get: Callable[[MessageId], MessageState | None] = self._records.get
        """Returns the state of an unacknowledged message, None if it is not known."""
        self._most_delivered = most_delivered

    def select(self, states: Collection[State], place: Place | None = None) -> list[MessageState]:
        """Return the messages in one of these states, of one topic and partition or of all. O(known messages)."""
        found = [each for each in self._records.values() if each.state in states]
        if place is None:
            return found
        topic, partition = place
        return [each for each in found if each.id[2] == partition and (topic is None or each.id.topic in {None, topic})]

    # --- what the broker sends -------------------------------------------------------------------------------------

    def add_new(self, message_id: MessageId, broker_count: int) -> MessageState | None:
        """Note a delivery of a message of which nothing at all is known, the usual case; else None, for deliver()."""
        records, requests, acked = self._records, self.requests, self.acked
        if message_id in records or message_id[3] >= 0 or requests.counts or requests.open:
            return None
        if acked.marks or requests.repeat_at:
            return None
        key = message_id[:3]
        if key in acked.entries or acked.unstamped(key) is not None:
            return None
        record = records[message_id] = MessageState(message_id, DELIVERED, broker_count)
        self.delivered += 1
        if self.delivered > self._most_delivered:
            self._forget_oldest()
        return record

    def deliver(self, message_id: MessageId, broker_count: int, now_ms: int) -> MessageState | None:
        """Note a delivery; return its message if that is to be delivered, None for a duplicate. Amortized O(1).

        After a duplicate the message is not known only if it was acknowledged: it is to be acknowledged again.
        """
        requests = self.requests
        if requests.open and next(iter(requests.open)).expires_at_ms <= now_ms:
            self.expire(now_ms)
        record = self._records.get(message_id)
        if record is None:
            if not self.acked.judge(message_id, now_ms):
                return None
            last, hidden = requests.take_counts(message_id) if requests.counts else (-1, 0)
            record = MessageState(message_id, DELIVERED, max(broker_count - hidden, last + 1))
            record.hidden_count = hidden
            self._add(record)
            return record
        if message_id.is_chunked:
            record.learn(message_id)
        if record.state is REQUESTED:  # what the broker counted for dropped duplicates is left out
            record.redelivery_count = max(record.redelivery_count + 1, broker_count - record.hidden_count)
            self._move(record, DELIVERED)
            return record
        record.hidden_count = max(record.hidden_count, broker_count - record.redelivery_count)
        if record.state is ACKING:
            record.has_duplicate = True  # acknowledged again once that is confirmed, which may fail
        else:
            self.duplicates += 1
        return None

    def restore(self, message_id: MessageId, count: int, broker_count: int) -> MessageState:
        """Note a delivery of a message that is not known here, and was held before a restart: it is held again."""
        self.acked.seen(message_id)
        record = MessageState(message_id, HELD, count)
        record.hidden_count = max(broker_count - count, 0)
        self._add(record)
        return record

    # --- negative acknowledgement ----------------------------------------------------------------------------------

    def check_unsettled(self, message_id: MessageId) -> None:
        """Raise :class:`AlreadySettledError` for a message that is acknowledged, or whose acknowledgement began."""
        record = self._records.get(message_id)
        if self.acked.is_acked(message_id) if record is None else record.state is ACKING:
            raise AlreadySettledError(message_id, State.ACKING.value)

    def hold(self, message_id: MessageId) -> MessageState:
        """Note a negative acknowledgement, also of a message that was never seen.

        :raises AlreadySettledError: the message is acknowledged, or its acknowledgement began
        """
        record = self._records.get(message_id)
        if record is not None and record.state is DELIVERED:
            record.state = HELD  # in line: the hot path
            self.delivered -= 1
            self.held += 1
            self.requests.open.pop(record, None)
            record.is_guessed = False  # the next delivery has its count
            if message_id is not record.id:
                record.learn(message_id)
            return record
        self.check_unsettled(message_id)
        if record is None:
            record = self.requests.unknown_state(message_id, HELD)
            record.is_doubtful = self.acked.has_ended(place_of(message_id))
            self._add(record)
        elif record.state is RETRYING:  # it could not be sent there
            self._move(record, HELD)
        record.learn(message_id)
        return record

    def send_away(self, message_id: MessageId, count: int, state: State) -> MessageState:
        """Note that a message goes to another topic; ``count`` is its redelivery count if it is not known."""
        record = self._records.get(message_id)
        if record is None:
            record = self.requests.unknown_state(message_id, DELIVERED, count)
            self._add(record)
        record.is_held = False
        self._move(record, state)
        return record

    def redeliver(self, record: MessageState) -> None:
        """Note that a held message is redelivered from memory."""
        record.redelivery_count += 1
        record.hidden_count -= record.hidden_count > 0  # the broker does not count this one
        record.is_held = False
        self._move(record, DELIVERED)

    def request(self, record: MessageState, now_ms: int) -> int:
        """Note that the broker is asked for a held message; return the request's number."""
        record.is_held = False
        record.request += 1
        record.received_before = None
        if record.state is HELD and record.id[3] < 0:  # as _move: the hot path
            record.state = REQUESTED
            self.held -= 1
            self.requested += 1
        else:
            self._move(record, REQUESTED)
        self.requests.expect(record, now_ms)
        return record.request

    def request_failed(self, record: MessageState, request: int) -> bool:
        """Note that a request failed; True when the message is held again.

        False when it has arrived or is settled, or if a newer request is under way, which decides then.
        """
        if self._records.get(record.id) is not record or record.request != request:
            return False
        if record.state is ACKING and record.before_ack is REQUESTED:
            record.before_ack, record.is_due = HELD, True
        if record.state is REQUESTED:
            self._move(record, HELD)
        return record.state is HELD

    # --- acknowledgement -------------------------------------------------------------------------------------------

    def mark_acking_unknown(self, message_id: MessageId) -> MessageState:
        """Note an acknowledgement of a message that may be unknown; the caller ensures that it is the only one."""
        record = self._records.get(message_id)
        if record is None:
            record = self.requests.unknown_state(message_id, DELIVERED)
            record.is_guessed = True
            self._add(record)
        record.learn(message_id)
        self.mark_acking(record)
        return record

    def mark_acking(self, record: MessageState) -> None:
        """Note that the acknowledgement of a known message is under way."""
        before = record.before_ack = record.state
        if before is DELIVERED:
            record.state = ACKING  # which counts as delivered too
        else:
            self._move(record, ACKING)

    def ack_failed(self, record: MessageState) -> bool:
        """Return a message to its state before the acknowledgement; True when its time came meanwhile."""
        if self._records.get(record.id) is not record:
            return False
        if record.is_guessed and record.before_ack is DELIVERED:  # no task has it
            self._remove(record)
            return False
        self._move(record, record.before_ack or DELIVERED)
        was_due, record.is_due = record.is_due, False
        return was_due

    def settle_all(self, records: Sequence[MessageState], now_ms: int) -> Sequence[MessageState]:
        """Note confirmed acknowledgements; return those of known messages: a seek may have forgotten the others.

        In line: the hot path.
        """
        known, acked, requests = self._records, self.acked, self.requests.open
        entries, batches = acked.entries, acked.batches
        stamp = acked.stamp = (acked.turn, now_ms)
        forgotten: list[MessageState] = []
        for record in records:
            message_id = record.id
            if known.get(message_id) is record:
                del known[message_id]
                self.delivered -= 1
                if (message_id[3] < 0 and not batches) or acked.ack_member(message_id):
                    entries[message_id[:3]] = stamp
            else:
                forgotten.append(record)
        if requests:
            for record in records:
                requests.pop(record, None)
        for record in () if self.on_left is None else records:
            self.on_left(record)  # type: ignore[misc]
        if len(entries) >= acked.compact_at:
            acked.compact(now_ms)
        return records if not forgotten else [record for record in records if record not in forgotten]

    def settle_through(self, message_id: MessageId, now_ms: int) -> list[MessageState]:
        """Forget everything up to and including ``message_id`` in its partition; return those; O(unacknowledged)."""
        gone = [record for record in self._records.values() if is_through(record.id, message_id)]
        for record in gone:
            self._remove(record)
        repeat_at = self.requests.repeat_at
        for each in [known for known in repeat_at if is_through(known, message_id)]:
            del repeat_at[each]
        self.acked.ack_through(message_id, now_ms)
        return gone

    def leave(self, records: Iterable[MessageState]) -> None:
        """Forget messages that the broker redelivers; their redelivery counts are remembered."""
        for record in records:
            self._remove(record)
            self.requests.remember_last(record)

    def passed(self, records: Iterable[MessageState], last: tuple[int, int], now_ms: int) -> list[MessageState]:
        """Note that everything up to an entry is acknowledged; return which of these waited, and are settled now.

        :param records: of one partition
        """
        known = self._records.get
        gone = [
            record
            for record in records
            if record.id[:2] <= last and record.state in UNDELIVERED and known(record.id) is record
        ]
        for record in gone:
            self.mark_acking(record)
        self.settle_all(gone, now_ms)
        for record in gone:
            self.acked.pass_entry(record.id)
        return gone

    def give_back(self, message_id: MessageId) -> None:
        """Forget a received message that nobody took; when it comes again that is the same attempt."""
        record = self._records.get(message_id)
        if record is not None:
            self._remove(record)
            if record.redelivery_count or record.hidden_count:
                self.requests.remember(message_id, record.redelivery_count - 1, record.hidden_count)

    def clear(self) -> None:
        """Forget everything: after a seek all messages are new."""
        self._records.clear()
        self.requests.clear()
        self.requested_members.clear()
        self.held = self.delivered = self.requested = 0
        self.acked.clear()

    def ask_for(self, counts: Mapping[MessageId, int], now_ms: int) -> None:
        """Request messages that were forgotten here, and that the broker still counts as delivered to us."""
        requests = self.requests
        requests.make_room(len(counts))
        for message_id, count in counts.items():
            if message_id not in self._records:
                requests.take_counts(message_id)
                requests.remember(message_id, count)
                requests.repeat(message_id, now_ms)

    def expire(self, now_ms: int) -> None:
        """Forget requests that brought nothing for 30 s; they are repeated."""
        open_requests = self.requests.open
        while open_requests and next(iter(open_requests)).expires_at_ms <= now_ms:
            record = self.requests.pop_expired(now_ms)
            if record is not None:
                self._remove(record)
                self.requests.give_up(record, now_ms)

    # --- keeping count ---------------------------------------------------------------------------------------------

    def _add(self, record: MessageState) -> None:
        self._records[record.id] = record
        self.requests.repeat_at.pop(record.id, None)
        self._count(record, 1)
        if self.delivered > self._most_delivered:
            self._forget_oldest()

    def _remove(self, record: MessageState) -> None:
        del self._records[record.id]
        self._count(record, -1)
        self.requests.open.pop(record, None)
        if self.on_left is not None:
            self.on_left(record)

    def _move(self, record: MessageState, state: State) -> None:
        self._count(record, -1)
        record.state = state
        self._count(record, 1)
        if state is not REQUESTED and state is not ACKING:
            self.requests.open.pop(record, None)

    def _count(self, record: MessageState, change: int) -> None:
        if record.state is HELD:
            self.held += change
        elif record.state is not REQUESTED:
            self.delivered += change
        else:
            self.requested += change
            if record.id[3] >= 0:
                entry = record.id[:3]
                left = self.requested_members.pop(entry, 0) + change
                if left:
                    self.requested_members[entry] = left

    def _forget_oldest(self) -> None:
        """Forget the oldest 1/16 of delivered messages, so that this costs O(1) for each new one; never the newest."""
        newest = next(reversed(self._records.values()))  # all others may be on their way to being settled
        oldest = (each for each in self._records.values() if each.state is DELIVERED and each is not newest)
        for record in [record for record, _ in zip(oldest, range(self._most_delivered // 16 + 1), strict=False)]:
            self._remove(record)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        states, open_requests = [record.state for record in self._records.values()], self.requests.open
        assert (self.held, self.requested) == (states.count(HELD), states.count(REQUESTED))
        assert self.delivered == len(states) - self.held - self.requested
        assert all(self._records.get(record.id) is record for record in open_requests)
        assert set(self.select({REQUESTED})) <= set(open_requests)
        assert all(known == record.id for known, record in self._records.items())
        members = [record.id[:3] for record in self.select({REQUESTED}) if record.id[3] >= 0]
        assert self.requested_members == {entry: members.count(entry) for entry in members}
