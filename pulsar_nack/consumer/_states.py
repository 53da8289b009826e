"""What each message is to this consumer, and what a delivery of it therefore means. Pure: no clock, no await.

::

              deliver            hold               request             deliver
    (unknown) -------> IN_WORK ---------> HELD ----------------> REQUESTED -------> IN_WORK
                          |                |  show (local)           |
                          |                +---------> IN_WORK       +-- 30 s --> (unknown)
                          +--- begin_ack / end_ack, from every state ---> (settled)
                          +--- give_up, from every state but ACKING ----> GIVEN_UP

=============  ==========================================================================================
state          what a delivery from the broker means
=============  ==========================================================================================
unknown        show it
IN_WORK        a copy: the broker sent it twice, or its entry came back for a batch mate. Drop it
HELD           a copy too: nacked, its time has not come. Drop it
REQUESTED      what was asked for: show it
ACKING         an acknowledgement is under way: acknowledge this copy also, once that is confirmed
GIVEN_UP       a copy: it is on its way to the dead-letter topic, and acknowledged once it is there. Drop it
settled        acknowledge it again, while that hides it (see ``_sessions``), or while its batch is not wholly
               acknowledged and the broker need not know. Else it was replayed on purpose: show it
=============  ==========================================================================================

State decides, not time, with two limits that keep it from being wrong for ever: REQUESTED ends after 30 s, unless the
answer may wait at the port; and what is settled hides for ``ack_memory`` at most. Forgetting is always safe: a message
that is not known is shown. What was asked for in vain is asked for again, see ``_unanswered``.

Memory: unacknowledged messages are bounded by the broker and by ``most_in_work``, of which the oldest are forgotten;
settled ones and the counts of forgotten requests by numbers below.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from ..errors import AlreadySettledError
from ..ids import MessageId, _merge_ids
from ._batches import Batches, EntryKey, entry_key, is_member, is_through
from ._sessions import Place, Sessions, Stamp, place_of
from ._unanswered import AskAgain

REQUEST_MEMORY_MS: Final = 30_000
_MOST_SETTLED: Final = 100_000
_MOST_COUNTS: Final = 10_000


class State(Enum):
    """Where an unacknowledged message is."""

    IN_WORK = "in work"
    HELD = "negatively acknowledged"
    REQUESTED = "asked for again"
    ACKING = "acknowledged"
    GIVEN_UP = "sent to the dead-letter topic"


_WAITING: Final = (State.HELD, State.REQUESTED, State.GIVEN_UP)


class Verdict(Enum):
    """What to do with a delivery."""

    SHOW = "show"
    REPLAY = "show, replayed"
    COPY = "drop"
    ACK_AGAIN = "acknowledge again"


class Record:
    """One unacknowledged message: ``id`` as it was delivered, ``redelivery_count`` of its latest delivery to the user.

    A held message has no other objects than its record and id for the garbage collector, since there may be many.
    """

    __slots__ = (
        "before_ack",
        "due_at_ms",
        "expires_at_ms",
        "has_copy",
        "hidden_count",
        "id",
        "is_ahead",
        "is_doubtful",
        "is_due",
        "is_guessed",
        "is_held",
        "is_local",
        "received_before",
        "redelivery_count",
        "request",
        "state",
    )

    def __init__(self, id: MessageId, state: State, redelivery_count: int = 0) -> None:
        self.id = id
        self.state = state
        self.redelivery_count = redelivery_count
        self.before_ack: State | None = None
        self.received_before: int | None = None
        """How many deliveries had been received when the newest request timed out."""
        self.hidden_count = self.due_at_ms = self.expires_at_ms = self.request = 0
        self.is_held = self.is_local = self.is_ahead = self.is_guessed = False
        self.is_doubtful = self.has_copy = self.is_due = False
        # hidden_count: redeliveries that the broker counts beyond redelivery_count, for copies that were dropped
        # due_at_ms, is_local, is_ahead: of the present hold, if is_held
        # is_local: redelivered from memory, whatever happens to the rest of its batch
        # is_ahead: its timer fires the port's latency before due_at_ms
        # is_guessed: the message was not known when it was acknowledged, so redelivery_count may be too low to tell
        #   one attempt from another
        # is_doubtful: delivered in an ended session and not in the present one, so another consumer may have it, or
        #   may have settled it
        # has_copy: a delivery was dropped while an acknowledgement was pending
        # is_due: its timer fired while an acknowledgement was pending
        # request: the number of its newest request, which expires at expires_at_ms

    def learn(self, message_id: MessageId) -> None:
        """Add the chunks that an equal id names to the id kept here."""
        if message_id is not self.id and message_id.is_chunked:
            self.id = _merge_ids(self.id, message_id)

    def __repr__(self) -> str:
        return f"<Record of {self.id!r}: {self.state.value}, shown again {self.redelivery_count} times>"


class States:
    """The states of all messages of one consumer.

    :param ack_memory_ms: how long an acknowledged message that comes back is hidden, see :class:`Sessions`
    :param most_in_work: how many messages in work are known at most
    :param keeps_members: the broker keeps confirmed acknowledgements of single messages of a batch when a session ends
    """

    def __init__(
        self, *, ack_memory_ms: int = 10_000, most_in_work: int = 100_000, keeps_members: bool = False
    ) -> None:
        self.sessions = Sessions(ack_memory_ms)
        self.batches = Batches(self.sessions.is_forgotten if keeps_members else self.sessions.is_replayed)
        self.unanswered = AskAgain()
        self.gone: list[Record] = []
        """What was asked for and never came although the broker sends all: it was settled by others."""
        self.gets_all = False
        """A request brings everything that is not acknowledged: none is made again."""
        self.may_be_here: Callable[[Record], bool] | None = None
        """Returns whether a requested message may be at the port, not received yet."""
        self.held = 0
        self.in_work = 0
        self.requested = 0
        self._records: dict[MessageId, Record] = {}
        self.get: Callable[[MessageId], Record | None] = self._records.get
        """Returns what is known of an unacknowledged message."""
        self._requests: OrderedDict[Record, None] = OrderedDict()
        """Requested messages that have not arrived, also while being acknowledged; the first to expire comes first."""
        self._settled: dict[EntryKey, Stamp] = {}
        self._settled_before: dict[EntryKey, Stamp] = {}
        self._counts: OrderedDict[MessageId, int] = OrderedDict()
        self._marks: dict[Place, tuple[MessageId, Stamp]] = {}
        self._most_in_work = most_in_work
        self._most_counts = _MOST_COUNTS

    def __len__(self) -> int:
        return len(self._records)

    def held_records(self) -> list[Record]:
        """Return what is held. O(known messages)."""
        return [record for record in self._records.values() if record.state is State.HELD]

    def waiting_counts(self) -> dict[MessageId, int]:
        """Return what is held, asked for or given up, and how often each was delivered. O(known messages)."""
        return {each.id: each.redelivery_count for each in self._records.values() if each.state in _WAITING}

    def state(self, message_id: MessageId) -> State | None:
        """Return the state of an unacknowledged message, None of any other."""
        record = self._records.get(message_id)
        return None if record is None else record.state

    def last_count(self, message_id: MessageId) -> int | None:
        """Return with which redelivery count an unacknowledged message was shown last, None where that is not known."""
        record = self._records.get(message_id)
        return self._counts.get(message_id) if record is None else record.redelivery_count

    def is_settled(self, message_id: MessageId) -> bool:
        """Return whether it is known to be acknowledged."""
        stamp = self._stamp(message_id)
        is_acked = stamp is not None and not self.sessions.is_forgotten(stamp, place_of(message_id))
        return is_acked or self.batches.is_acked(message_id)

    def was_wrongly_hidden(self, message_id: MessageId) -> bool:
        """Return whether a dropped copy should have been delivered, because later deliveries proved a replay."""
        is_known = message_id in self._records
        return is_member(message_id) and not is_known and self.sessions.is_replaying(place_of(message_id))

    # --- what the broker sends -------------------------------------------------------------------------------------

    def show_new(self, message_id: MessageId, broker_count: int) -> Record | None:
        """Note a delivery of what nothing at all is known of, the usual case; None: :meth:`deliver` decides."""
        records = self._records
        if message_id in records or message_id[3] >= 0:
            return None
        if self._counts or self._requests or self._marks or self.unanswered.known:
            return None
        key = message_id[:3]
        if key in self._settled or key in self._settled_before:
            return None
        record = records[message_id] = Record(message_id, State.IN_WORK, broker_count)
        self.in_work += 1
        if self.in_work > self._most_in_work:
            self._forget_oldest()
        return record

    def deliver(self, message_id: MessageId, broker_count: int, now_ms: int) -> Verdict:
        """Decide on a delivery and note it; amortized O(1)."""
        if self._requests:
            self.expire(now_ms)
        record = self._records.get(message_id)
        if record is None:
            return self._deliver_unknown(message_id, broker_count, now_ms)
        record.learn(message_id)
        if record.state is State.REQUESTED:
            self._count_again(record, broker_count)
            self._move(record, State.IN_WORK)
            return Verdict.SHOW
        record.hidden_count = max(record.hidden_count, broker_count - record.redelivery_count)
        if record.state is not State.ACKING:
            return Verdict.COPY
        record.has_copy = True
        return Verdict.ACK_AGAIN

    def is_hidden(self, message_id: MessageId, now_ms: int) -> bool:
        """Return whether a message that is not known is acknowledged, and not shown for that."""
        stamp = self._stamp(message_id)
        is_hidden = stamp is not None and self.sessions.hides(stamp, place_of(message_id), now_ms)
        return is_hidden or self.batches.is_acked(message_id)

    def _deliver_unknown(self, message_id: MessageId, broker_count: int, now_ms: int) -> Verdict:
        stamp = self._stamp(message_id)
        if stamp is not None and self.sessions.hides(stamp, place_of(message_id), now_ms):
            if self.sessions.is_of_earlier(stamp, place_of(message_id)):  # now it is acknowledged in this session
                self._settled[entry_key(message_id)] = (self.sessions.turn, now_ms)
            return Verdict.ACK_AGAIN
        if is_member(message_id):
            if self.batches.is_acked(message_id):
                return Verdict.ACK_AGAIN
            self.batches.seen(message_id)
        elif stamp is not None:
            self._settled.pop(entry_key(message_id), None)
            self._settled_before.pop(entry_key(message_id), None)
        count = broker_count
        if self._counts:
            count = max(count, self._counts.pop(message_id, -1) + 1)
        self._add(Record(message_id, State.IN_WORK, count))
        if stamp is None:
            return Verdict.SHOW
        self.sessions.replayed(place_of(message_id))
        return Verdict.REPLAY

    def remember(self, message_id: MessageId, count: int) -> None:
        """Note with which count a message that is not known was shown last."""
        self._counts[message_id] = max(count, self._counts.get(message_id, count))
        if len(self._counts) > self._most_counts:
            self._counts.popitem(last=False)

    def restore(self, message_id: MessageId, count: int, broker_count: int) -> Record:
        """Note a delivery of what is not known here, and was held before a restart: it is held again."""
        self.batches.seen(message_id)
        record = Record(message_id, State.HELD, count)
        record.hidden_count = max(broker_count - count, 0)
        self._add(record)
        return record

    def _stamp(self, message_id: MessageId) -> Stamp | None:
        """Return when a message was settled by an entry or by a mark, None if that is not known."""
        key = message_id[:3]
        stamp = self._settled.get(key) or self._settled_before.get(key)
        if not self._marks:
            return stamp
        mark = self._marks.get(place_of(message_id)) or self._marks.get((None, message_id.partition))
        if mark is not None and is_through(message_id, mark[0]):
            return mark[1] if stamp is None else max(stamp, mark[1])
        return stamp

    @staticmethod
    def _count_again(record: Record, broker_count: int) -> None:
        """Count a redelivery; what the broker counted for copies that nobody saw is left out."""
        record.redelivery_count = max(record.redelivery_count + 1, broker_count - record.hidden_count)

    # --- negative acknowledgement ----------------------------------------------------------------------------------

    def check_unsettled(self, message_id: MessageId) -> None:
        """Raise :class:`AlreadySettledError` for what is acknowledged or being so."""
        if self.state(message_id) is State.ACKING or (message_id not in self._records and self.is_settled(message_id)):
            raise AlreadySettledError(message_id, State.ACKING.value)

    def hold(self, message_id: MessageId) -> Record:
        """Note a negative acknowledgement, also of a message that was never seen.

        :raises AlreadySettledError: it is acknowledged, or being so
        """
        record = self._records.get(message_id)
        if record is not None and record.state is State.IN_WORK:
            self._move(record, State.HELD)
            record.is_guessed = False  # the next delivery has its count
            record.learn(message_id)
            return record
        self.check_unsettled(message_id)
        if record is None:
            record = Record(message_id, State.HELD, self._counts.pop(message_id, 0))
            record.is_doubtful = self.sessions.has_ended(place_of(message_id))
            self._add(record)
        record.learn(message_id)
        return record

    def give_up(self, message_id: MessageId, count: int) -> Record:
        """Note that a message goes to the dead-letter topic; ``count`` is its redelivery count if it is not known."""
        record = self._records.get(message_id)
        if record is None:
            record = Record(message_id, State.IN_WORK, max(count, self._counts.pop(message_id, 0)))
            self._add(record)
        record.is_held = False
        self._move(record, State.GIVEN_UP)
        return record

    def show(self, record: Record) -> None:
        """Note that a held message is shown again from memory."""
        record.redelivery_count += 1
        record.is_held = False
        self._move(record, State.IN_WORK)

    def request(self, record: Record, now_ms: int) -> int:
        """Note that the broker is asked for a held message; return the request's number."""
        record.is_held = False
        record.request += 1
        record.received_before = None
        self._expect(record, now_ms)
        self._move(record, State.REQUESTED)
        return record.request

    def request_failed(self, record: Record, request: int) -> bool:
        """Note that a request failed; True when the message is held again.

        False when it has arrived or is settled, or was asked for anew since: that is the newer request's matter then.
        """
        if self._records.get(record.id) is not record or record.request != request:
            return False
        if record.state is State.ACKING and record.before_ack is State.REQUESTED:
            record.before_ack = State.HELD
        if record.state is State.REQUESTED:
            self._move(record, State.HELD)
        return record.state is State.HELD

    # --- acknowledgement -------------------------------------------------------------------------------------------

    def begin_ack(self, message_id: MessageId) -> Record:
        """Note that an acknowledgement is under way; the caller makes sure that it is the only one."""
        record = self._records.get(message_id)
        if record is None:
            record = Record(message_id, State.IN_WORK, self._counts.pop(message_id, 0))
            record.is_guessed = True
            self._add(record)
        record.learn(message_id)
        self.start_ack(record)
        return record

    def start_ack(self, record: Record) -> None:
        """The same for what is known."""
        before = record.before_ack = record.state
        if before is State.IN_WORK:
            record.state = State.ACKING  # which counts as in work too
        else:
            self._move(record, State.ACKING)

    def ack_failed(self, record: Record) -> bool:
        """Put it back where it was; True when its time came meanwhile."""
        if self._records.get(record.id) is not record:
            return False
        if record.is_guessed and record.before_ack is State.IN_WORK:  # no task has it
            self._remove(record)
            return False
        self._move(record, record.before_ack or State.IN_WORK)
        was_due, record.is_due = record.is_due, False
        return was_due

    def settle_all(self, records: Sequence[Record], now_ms: int) -> Sequence[Record]:
        """Note that acknowledgements were confirmed; return those of which it is noted: the others were forgotten
        meanwhile, as by a seek.

        In line: the hot path.
        """
        known, settled, batches = self._records, self._settled, self.batches
        stamp = batches.stamp = (self.sessions.turn, now_ms)
        forgotten: list[Record] = []
        for record in records:
            message_id = record.id
            if known.get(message_id) is record:
                del known[message_id]
                self.in_work -= 1
                if (message_id[3] < 0 and not batches.entries) or batches.acked(message_id):
                    settled[message_id[:3]] = stamp
            else:
                forgotten.append(record)
        if self._requests:
            for record in records:
                self._requests.pop(record, None)
        self._bound_settled()
        return records if not forgotten else [record for record in records if record not in forgotten]

    def _bound_settled(self) -> None:
        """Forget all that was settled before the last 100 000, at a time."""
        if len(self._settled) > _MOST_SETTLED:
            self._settled, self._settled_before = {}, self._settled

    def settle_through(self, message_id: MessageId, now_ms: int) -> list[MessageId]:
        """Forget everything up to and including ``message_id`` in its partition; return those; O(unacknowledged)."""
        gone = [record for record in self._records.values() if is_through(record.id, message_id)]
        for record in gone:
            self._remove(record)
        self.unanswered.discard_if(lambda known: is_through(known, message_id))
        self.batches.acked_through(message_id)
        self._marks[place_of(message_id)] = (message_id, (self.sessions.turn, now_ms))
        return [record.id for record in gone]

    def waiting_in(self, topic: str | None, partition: int, *, with_dead: bool = False) -> list[Record]:
        """Return what is held in a partition, or was asked for, or also given up. O(unacknowledged)."""
        waiting = _WAITING if with_dead else _WAITING[:2]
        here = [each for each in self._records.values() if each.state in waiting and each.id[2] == partition]
        return here if topic is None else [each for each in here if each.id.topic in {None, topic}]

    def doubt(self, topic: str, partition: int) -> list[Record]:
        """Note that a session begins: what is known of the partition is in doubt until it comes. O(known)."""
        records = [
            each for each in self._records.values() if each.id[2] == partition and each.id.topic in {None, topic}
        ]
        for record in records:
            record.is_doubtful = True
        return records

    def leave(self, records: Iterable[Record]) -> None:
        """Forget messages that the broker gives out again; how often each was shown is remembered."""
        for record in records:
            self._remove(record)
            self._remember_count(record)

    def passed(self, records: Iterable[Record], last: tuple[int, int], now_ms: int) -> list[Record]:
        """Note that everything up to an entry is acknowledged; return which of these waited, and are settled now.

        :param records: of one partition
        """
        known = self._records.get
        gone = [
            record
            for record in records
            if record.id[:2] <= last and record.state in _WAITING and known(record.id) is record
        ]
        for record in gone:
            self.start_ack(record)
        self.settle_all(gone, now_ms)
        for record in gone:  # an entry is passed as a whole, with all members
            self.batches.passed(record.id)
            self._settled[entry_key(record.id)] = self.batches.stamp
        return gone

    def give_back(self, message_id: MessageId) -> None:
        """Forget a message that came and was not shown; when it comes again that is the same attempt."""
        record = self._records.get(message_id)
        if record is not None:
            self._remove(record)
            if record.redelivery_count:
                self.remember(message_id, record.redelivery_count - 1)

    def clear(self) -> None:
        """Forget everything: after a seek all messages are new."""
        self._records.clear()
        self._requests.clear()
        self._counts.clear()
        self.unanswered.clear()
        self.held = self.in_work = self.requested = 0
        self.clear_settled()

    def ask_for(self, counts: Mapping[MessageId, int], now_ms: int) -> None:
        """Have all messages asked for that were forgotten here and that the broker still takes to be with us."""
        self.unanswered.make_room(len(counts))
        self._most_counts = max(self._most_counts, len(self._counts) + len(counts))
        for message_id, count in counts.items():
            if message_id not in self._records:
                self._counts.pop(message_id, None)
                self.remember(message_id, count)
                self.unanswered.add(message_id, now_ms)

    def clear_settled(self) -> None:
        """Forget what was acknowledged."""
        self._settled.clear()
        self._settled_before.clear()
        self._marks.clear()
        self.batches.clear()

    # --- keeping count ---------------------------------------------------------------------------------------------

    def _add(self, record: Record) -> None:
        self._records[record.id] = record
        if self.unanswered:
            self.unanswered.discard(record.id)
        self._count(record.state, 1)
        if self.in_work > self._most_in_work:
            self._forget_oldest()

    def _remove(self, record: Record) -> None:
        del self._records[record.id]
        self._forget(record)

    def _forget(self, record: Record) -> None:
        self._count(record.state, -1)
        if record.state is State.REQUESTED:
            self.batches.requested(record.id, -1)
        self._requests.pop(record, None)

    def _move(self, record: Record, state: State) -> None:
        self._count(record.state, -1)
        self._count(state, 1)
        if (record.state is State.REQUESTED) is not (state is State.REQUESTED):
            self.batches.requested(record.id, 1 if state is State.REQUESTED else -1)
        if state is not State.REQUESTED and state is not State.ACKING:
            self._requests.pop(record, None)
        record.state = state

    def _count(self, state: State, change: int) -> None:
        if state is State.HELD:
            self.held += change
        elif state is State.REQUESTED:
            self.requested += change
        else:
            self.in_work += change

    def expire(self, now_ms: int) -> None:
        """Forget requests that nothing came of for 30 s; they are made again."""
        while self._requests:
            record = next(iter(self._requests))
            if record.expires_at_ms > now_ms:
                return
            is_acking = record.state is State.ACKING  # which may fail
            if is_acking or (self.may_be_here is not None and self.may_be_here(record)):
                self._expect(record, now_ms)
                continue
            self._remove(record)
            self._remember_count(record)
            if self.gets_all:
                self.gone.append(record)
            else:
                self.unanswered.add(record.id, now_ms)

    def next_request_at(self) -> int | None:
        """Return when the next request expires, or is made again; None: nothing is asked for. Amortized O(1)."""
        if self.gone:
            return 0
        next_at = self.unanswered.next_at()
        if not self._requests:
            return next_at
        expires_at = next(iter(self._requests)).expires_at_ms
        return expires_at if next_at is None else min(expires_at, next_at)

    def is_awaited(self, message_id: MessageId) -> bool:
        """Return whether a message that was asked for in vain has not come or been settled since."""
        return message_id in self._counts and message_id not in self._records

    def _expect(self, record: Record, now_ms: int) -> None:
        record.expires_at_ms = now_ms + REQUEST_MEMORY_MS
        self._requests[record] = None
        self._requests.move_to_end(record)

    def _remember_count(self, record: Record) -> None:
        self._counts.pop(record.id, None)
        self.remember(record.id, record.redelivery_count)

    def _forget_oldest(self) -> None:
        """Forget the oldest 1/16 of what is in work, so that this costs O(1) for each new message; never the newest."""
        newest = next(reversed(self._records.values()))  # all others may be on their way to being settled
        oldest = (each for each in self._records.values() if each.state is State.IN_WORK and each is not newest)
        for record in [record for record, _ in zip(oldest, range(self._most_in_work // 16 + 1), strict=False)]:
            self._remove(record)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        states = [record.state for record in self._records.values()]
        assert self.held == states.count(State.HELD)
        assert self.requested == states.count(State.REQUESTED)
        assert self.in_work == len(states) - self.held - self.requested
        assert all(self._records.get(record.id) is record for record in self._requests)
        assert {each for each in self._records.values() if each.state is State.REQUESTED} <= set(self._requests)
        assert all(known == record.id for known, record in self._records.items())
