"""What a consumer counts."""

from __future__ import annotations

from dataclasses import dataclass

from ..nack._statistics import NackStatistics


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """A snapshot of a consumer; totals count since it was opened.

    :param received: deliveries from the transport
    :param shown: messages given to the user, redelivered ones each time
    :param copies_dropped: deliveries of what was in work or held
    :param replayed: acknowledged messages that came back on purpose, and were shown
    :param dropped: messages that waited to be shown again and are not: the broker counts them as settled (skipped,
        cleared, expired, or by another consumer), or another Failover consumer gets them
    :param acked: messages acknowledged
    :param acked_again: copies of acknowledged messages that were acknowledged and not shown
    :param nacked: negative acknowledgements
    :param redelivered_local: messages shown again from memory
    :param redelivered_broker: messages that the broker was asked for
    :param asked_again: messages that the broker was asked for once more, because nothing had come within 30 s
    :param in_work: shown (or ready to be) and not settled
    :param ready: of these, how many wait for a call of ``receive``
    :param held: nacked and not due
    :param requested: asked for at the broker and not yet here
    :param kept: messages whose payload is kept, and ``kept_bytes`` their memory
    :param unacked: in work and held; with ``prefetched``, the most that the transport fetches ahead, this counts
        against ``unacked_limit``
    :param is_near_unacked_limit: whether 80 % of the limit are reached
    :param is_held_back: whether the broker sends nothing more because too much is unacknowledged, as it said last
    :param waiting_nacks: calls of ``nack`` that wait for room
    :param dead_lettered: messages that are in the dead-letter topic, and acknowledged
    :param dead_letters_waiting: messages on their way there
    :param dead_letter_failures: attempts to publish or acknowledge one that failed, and were made again
    :param durable_entries: unsettled messages in the durable state; 0 without one, as the next four
    :param durable_bytes: about what it takes on storage
    :param durable_restored: messages that came before their time after a restart, and were held until then
    :param durable_compactions: times that it was written anew, shorter
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
    redelivered_local: int
    redelivered_broker: int
    asked_again: int
    in_work: int
    ready: int
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
