"""Leases: how long a message may be handled before it counts as negatively acknowledged.

A lease begins when ``receive`` returns a message. It is one more deadline in the tracker of the nacks, with the same
timer. It may be found there too early, because the tracker rounds deadlines down and an extension leaves a later time
in the lease only; then it is added again for the rest. So extending costs nothing, and no lease ends before its time.

When a lease ends the message is held by the backoff, as after a nack, or is a dead letter after its last attempt. Until
it is delivered again its late handler can settle it, and while it is held an extension takes it back. After that all
calls of the late handler raise :class:`~pulsar_nack.errors.LeaseExpiredError`, and so do all calls after the first that
raised it: a handler that learns that the message is redelivered may give up and return, which must not acknowledge it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NoReturn

from .._delays import Delay, positive_delay_ms
from ..errors import AlreadySettledError, LeaseExpiredError
from ..ids import MessageId
from ._consumer_state import ConsumerState
from ._events import LEASE_EXPIRED
from ._message_state import ACKING, DELIVERED, HELD, REQUESTED, Lease, MessageState
from ._port import Delivery

_log = logging.getLogger("pulsar_nack.consumer")
PAST_LEASE: Final = "past its lease"
_UNSEEN: Final = (HELD, REQUESTED, ACKING)
"""States after the end of a lease in which nobody else has the message here."""


class Leases:
    """The leases of the messages of one consumer; it exists only if the consumer has a ``lease``."""

    def __init__(self, state: ConsumerState, lease: Delay) -> None:
        self._lease_ms = positive_delay_ms(lease, "lease")
        self._state = state
        self._recent = state.recent
        self._queue = queue = state.queue
        self._table = queue.table
        self._clock = queue.clock
        self._late_ms = 1 if queue.tracker.lead_time else 0
        queue.end_leases = self._end_due

    def begin(self, delivery: Delivery, redelivery_count: int) -> Lease | None:
        """Begin the lease of a message that a call of ``receive`` returns."""
        record = self._table.get(delivery.id)
        if record is None or record.state is not DELIVERED:
            return None  # it was settled by its id in this turn of the loop
        lease = record.lease = Lease(record, redelivery_count, self._clock.now_ms() + self._lease_ms)
        record.late = None
        self._queue.arm(record.id, self._lease_ms)
        if self._recent.get(delivery.id) is None:
            self._recent.add(delivery)
        return lease

    def cancel(self, lease: Lease | None) -> None:
        """End the lease of a message that nobody handles yet: it is taken back, or waits for others of its key."""
        if lease is not None and lease.record.lease is lease:
            lease.record.lease = None
            self._queue.tracker.ack(lease.record.id)

    # --- what a handler does ------------------------------------------------------------------------------------------

    def check(self, lease: Lease | None) -> None:
        """Raise if the lease of a message ended and it was delivered again, or given up, since; or if a call raised."""
        if lease is None or not lease.has_ended:
            return
        if lease.is_refused or not self._is_latest(lease) or lease.record.state not in _UNSEEN:
            self._refuse(lease)

    def _refuse(self, lease: Lease) -> NoReturn:
        lease.is_refused = True
        raise LeaseExpiredError(lease.record.id, PAST_LEASE)

    def extend(self, lease: Lease | None, delivery: Delivery, delay: Delay | None) -> None:
        """Let the lease of a message end ``delay`` from now; if it ended and the message is held, it begins again.

        :raises LeaseExpiredError: it ended, and the message is requested, delivered again or given up
        :raises AlreadySettledError: the message was settled
        """
        milliseconds = self._lease_ms if delay is None else positive_delay_ms(delay)
        if lease is None:
            return
        record = lease.record
        is_latest = self._is_latest(lease)
        is_held = is_latest and lease.has_ended and record.state is HELD and not lease.is_refused
        if is_held:
            self._take_back(lease, delivery)
        elif lease.has_ended:
            self._refuse(lease)
        elif not is_latest or record.state is not DELIVERED:
            self._table.check_unsettled(record.id)
            state = record.state.value if is_latest else "forgotten by a seek"
            raise AlreadySettledError(record.id, state)
        ends_at_ms = self._clock.now_ms() + milliseconds
        if is_held or ends_at_ms < lease.ends_at_ms:
            self._queue.arm(record.id, milliseconds)
        lease.ends_at_ms = ends_at_ms

    def _take_back(self, lease: Lease, delivery: Delivery) -> None:
        """Let a handler go on with a message that is held because its lease ended: the same attempt, no new one."""
        record = lease.record
        self._queue.drop(record.id)
        self._queue.trace.cancel(record.id, record.redelivery_count, "lease extended")
        record.redelivery_count -= 1
        self._table.redeliver(record)
        lease.has_ended, record.lease, record.late = False, lease, None
        self._recent.add(delivery)
        if self._state.durable is not None:
            self._state.durable.delivered(record.id, record.redelivery_count)

    def _is_latest(self, lease: Lease) -> bool:
        record = lease.record
        if self._table.get(record.id) is not record:
            return False
        return record.late is lease if lease.has_ended else record.redelivery_count == lease.redelivery_count

    # --- the end of leases --------------------------------------------------------------------------------------------

    def _end_due(self, ids: Sequence[MessageId]) -> Sequence[MessageId]:
        """End the leases among ids that the tracker has found due; return the ids of nacked messages among them."""
        now_ms = self._clock.now_ms()
        held: list[MessageState] = []
        ended: list[MessageState] = []
        for record in map(self._table.get, ids):
            if record is None:
                continue
            if record.lease is None:
                held.append(record)
            elif record.state is not DELIVERED:
                record.is_due = True  # counts if it is an acknowledgement that fails
            elif record.lease.ends_at_ms > now_ms:
                self._queue.arm(record.id, record.lease.ends_at_ms - now_ms + self._late_ms)
            else:
                ended.append(record)
        if ended and not self._state.is_closed:
            _log.warning("leases that ended: %d, each counts as a nack; the first is of %r", len(ended), ended[0].id)
            for record in ended:
                self._end(record, now_ms)
            self._state.check_idle()
        return self._without_early(held, now_ms)

    def _without_early(self, held: list[MessageState], now_ms: int) -> list[MessageId]:
        """Return the ids of nacked messages, without those that are here before their time because of a lease."""
        if not self._queue.only_rewinds:
            return [record.id for record in held if record.id not in self._queue.tracker]  # nacked during this call
        if any(record.due_at_ms <= now_ms for record in held):
            return [record.id for record in held]
        for record in held:  # all that is pending comes at once, also if only a lease is due
            self._queue.arm(record.id, record.due_at_ms - now_ms)
        return []

    def _end(self, record: MessageState, now_ms: int) -> None:
        state, count = self._state, record.redelivery_count
        if record.lease is not None:
            record.lease.has_ended = True
            record.late, record.lease = record.lease, None
        payload, letters = self._recent.pop(record.id), state.letters
        is_known = payload is not None and not record.is_doubtful
        if payload and is_known and letters is not None and letters.rules.is_last(count):
            self._queue.trace.lease_expired(record, None)
            letters.dead_letter(payload, count, LEASE_EXPIRED)  # even if it is full: nobody can wait here
            return
        delay_ms = self._delay_ms(record)
        self._table.hold(record.id)
        self._queue.hold(record, delay_ms, payload, now_ms=now_ms)
        self._queue.trace.lease_expired(record, delay_ms)
        if state.durable is not None:
            state.durable.nacked(record.id, delay_ms, count)

    def _delay_ms(self, record: MessageState) -> int:
        try:
            return self._state.default_delay_ms(record)
        except Exception:  # noqa: BLE001 - of the user's callable, and nobody waits for it
            _log.exception("the backoff failed for %r; the default delay is used", record.id)
            return self._state.config.negative_ack_redelivery_delay_ms
