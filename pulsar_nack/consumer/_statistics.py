"""The counters of a consumer."""

from __future__ import annotations

from dataclasses import dataclass

from ..nack import NackStatistics
from ._engine import ConsumerEngine


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """A snapshot of a consumer; totals count since it was opened.

    :param received: deliveries from the port
    :param shown: messages delivered to the user, redelivered ones each time
    :param copies_dropped: duplicate deliveries of messages that were delivered or held
    :param replayed: acknowledged messages that came back on purpose, and were delivered
    :param dropped: messages that waited for redelivery and are not redelivered: the broker counts them as settled
        (skipped, cleared, expired, or by another consumer), or another Failover consumer gets them
    :param acked: messages acknowledged; not dead letters and messages of a retry topic, which have their own counts
    :param acked_again: duplicates of acknowledged messages that were acknowledged and not delivered
    :param nacked: negative acknowledgements
    :param deferred: messages that were postponed, which is no failure
    :param handler_errors: exceptions of handlers under ``run``, without verbs
    :param retried: messages that are in the retry topic, and acknowledged; nacks that wait there too
    :param leases_expired: messages that were not settled within their lease
    :param drains: drains that are over
    :param redelivered_local: messages redelivered from memory
    :param redelivered_broker: messages requested from the broker
    :param requested_again: messages requested once more, because nothing had come within 30 s
    :param in_work: delivered (or ready to be) and not settled
    :param ready: of these, how many wait for a call of ``receive``
    :param held_for_keys: of these, how many wait for earlier messages of their keys, under ``run(key_ordered=True)``
    :param is_key_order_full: whether nothing is fetched because of that
    :param held: nacked and not due
    :param requested: requested from the broker and not yet here
    :param kept: messages whose payload is kept, and ``kept_bytes`` their memory
    :param unacked: ``in_work`` and ``held``; this counts against ``unacked_limit``, with ``prefetched``, the most that
        the transport prefetches
    :param is_near_unacked_limit: whether 80 % of the limit are reached
    :param is_held_back: whether the broker sends nothing more because too much is unacknowledged, as it said last
    :param waiting_nacks: calls of ``nack`` that wait for room
    :param dead_lettered: messages that are in the dead-letter topic, and acknowledged
    :param dead_letters_waiting: messages on their way there
    :param dead_letter_failures: attempts to publish or acknowledge one that failed, and were made again
    :param retries_waiting: messages on their way to the retry topic
    :param retry_failures: attempts to publish or acknowledge one that failed
    :param durable_entries: unsettled messages in the durable state; 0 without one, as the next four
    :param durable_bytes: about what it takes on storage
    :param durable_restored: messages that came before their time after a restart, and were held until then
    :param durable_compactions: how often it was rewritten, shorter
    :param durable_failures: changes that could not be written
    :param durable_acks: entries that are remembered as acknowledged, at least in part, in the durable state
    :param durable_ack_bytes: about what they take of it, against ``max_ack_state_bytes``
    :param is_ack_state_full: whether new messages wait because of that
    :param gated: how many wait
    :param times_gated: how often that began
    :param nack: the tracker's own statistics
    """

    received: int
    shown: int
    copies_dropped: int
    replayed: int
    dropped: int
    acked: int
    acked_again: int
    nacked: int
    deferred: int
    handler_errors: int
    retried: int
    leases_expired: int
    drains: int
    redelivered_local: int
    redelivered_broker: int
    requested_again: int
    in_work: int
    ready: int
    held_for_keys: int
    is_key_order_full: bool
    held: int
    requested: int
    kept: int
    kept_bytes: int
    unacked: int
    prefetched: int
    unacked_limit: int | None
    is_near_unacked_limit: bool
    is_held_back: bool
    waiting_nacks: int
    dead_lettered: int
    dead_letters_waiting: int
    dead_letter_failures: int
    retries_waiting: int
    retry_failures: int
    durable_entries: int
    durable_bytes: int
    durable_restored: int
    durable_compactions: int
    durable_failures: int
    durable_acks: int
    durable_ack_bytes: int
    is_ack_state_full: bool
    gated: int
    times_gated: int
    nack: NackStatistics


def statistics_of(engine: ConsumerEngine) -> ConsumerStatistics:
    """Return a snapshot of a consumer's counters."""
    table, queue, state, receiver, settler = engine.table, engine.queue, engine.state, engine.receiver, engine.settler
    table.expire(engine.clock.now_ms())
    durable, letters = state.durable, engine.letters
    gate_queue, key_order = receiver.gate_queue, receiver.key_order
    dead, retry = (None, None) if letters is None else (letters.dead, letters.retry)
    return ConsumerStatistics(
        received=receiver.received,
        shown=state.delivered,
        copies_dropped=table.duplicates,
        replayed=table.acked.replayed,
        dropped=settler.dropped,
        acked=settler.acks.acked,
        acked_again=settler.acks.acked_again,
        nacked=state.nacked,
        deferred=engine.trace.total_deferred,
        handler_errors=settler.handler_errors,
        retried=engine.trace.total_retried,
        leases_expired=engine.trace.total_leases_expired,
        drains=engine.trace.total_drains,
        redelivered_local=queue.redelivered_local,
        redelivered_broker=queue.redelivered_broker,
        requested_again=queue.requested_again,
        in_work=table.delivered,
        ready=receiver.waiting(),
        held_for_keys=0 if key_order is None else len(key_order),
        is_key_order_full=key_order is not None and key_order.is_full,
        held=table.held,
        requested=table.requested,
        kept=len(queue.payloads.kept),
        kept_bytes=queue.payloads.bytes,
        unacked=state.count_unacked(),
        prefetched=state.prefetched,
        unacked_limit=None if state.limit is None else state.limit + state.prefetched,
        is_near_unacked_limit=state.count_unacked() >= state.near,
        is_held_back=state.held_back_at == receiver.received,
        waiting_nacks=len(state.waiting_nacks),
        dead_lettered=0 if dead is None else dead.done,
        dead_letters_waiting=0 if dead is None else dead.waiting,
        dead_letter_failures=0 if dead is None else dead.failures,
        retries_waiting=0 if retry is None else retry.waiting,
        retry_failures=0 if retry is None else retry.failures,
        durable_entries=0 if durable is None else len(durable.state.pending),
        durable_bytes=0 if durable is None else durable.journal.bytes,
        durable_restored=0 if durable is None else durable.restored,
        durable_compactions=0 if durable is None else durable.journal.compactions,
        durable_failures=0 if durable is None else durable.journal.failures,
        durable_acks=0 if durable is None else durable.state.acked.entries,
        durable_ack_bytes=0 if durable is None else durable.state.acked.bytes,
        is_ack_state_full=durable is not None and durable.gate.is_paused,
        gated=0 if gate_queue is None else len(gate_queue),
        times_gated=0 if durable is None else durable.gate.statistics().times_paused,
        nack=queue.tracker.statistics(),
    )
