"""The statistics of a local topic and its subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ids import Position


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of a subscription that was used since its topic was opened.

    :param type: ``"shared"``, ``"key_shared"``, ``"exclusive"`` or ``"failover"``, as its last consumer had it
    :param consumers: how many consumers it has
    :param backlog: entries that are not acknowledged as a whole
    :param in_flight: entries that consumers hold
    :param waiting: entries that wait to be sent: they came back, are due, or found no room
    :param delayed: messages that are not due yet, of all subscriptions that share an index
    :param mark_delete_position: everything up to it is acknowledged
    :param metadata_size_bytes: bytes that its acknowledgement state takes
    :param is_paused: whether the gate holds new messages
    :param failed_reads: total: how often reading entries failed and was tried again
    """

    type: str
    consumers: int
    backlog: int
    in_flight: int
    waiting: int
    delayed: int
    mark_delete_position: Position
    metadata_size_bytes: int
    is_paused: bool
    failed_reads: int


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """A snapshot of a local topic.

    :param ledgers: how many ledgers there are
    :param entries: how many entries they have
    :param bytes: about how many bytes they take on storage
    :param kept_bytes: bytes of the last entries, which are kept in memory
    :param entries_read: total: entries that were read from storage since the topic was opened
    :param subscriptions: those that were used since then, by name
    """

    ledgers: int
    entries: int
    bytes: int
    kept_bytes: int
    entries_read: int
    subscriptions: Mapping[str, SubscriptionStatistics]
