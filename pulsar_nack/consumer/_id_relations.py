"""How the ids of messages relate: which entry, partition and topic they are of, and what a mark covers. Pure."""

from __future__ import annotations

from ..ids import MessageId

Place = tuple[str | None, int]
"""Topic and partition."""
EntryKey = tuple[int, int, int]
"""Ledger, entry, partition."""
LedgerKey = tuple[int, int]
"""Ledger and partition."""


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
