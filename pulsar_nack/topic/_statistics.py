"""Snapshots of a local topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ids import Position


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """A snapshot of a subscription that was used since its topic was opened.

    :param type: ``"shared"``, ``"key_shared"``, ``"exclusive"`` or ``"failover"``, as its last consumer had it
    :param consumers: how many consume it
    :param backlog: entries that are not acknowledged as a whole
    :param in_flight: entries that consumers hold
    :param waiting: entries that came back, came due or found no room, and are to be sent
    :param delayed: messages that are held back until their time; of all subscriptions that share an index
    :param mark_delete_position: everything up to it is acknowledged
    :param metadata_size_bytes: what its acknowledgement state takes
    :param is_paused: whether the gate holds new messages
    :param failed_reads: total: how often entries could not be read; it was tried again
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

    :param ledgers: how many there are that were not deleted
    :param entries: in all of them
    :param bytes: about what they take on storage
    :param kept_bytes: of the entries that were published last, in memory
    :param entries_read: total: entries that storage was asked for since the topic was opened
    :param subscriptions: those that were used since then, by name
    """

    ledgers: int
    entries: int
    bytes: int
    kept_bytes: int
    entries_read: int
    subscriptions: Mapping[str, SubscriptionStatistics]
