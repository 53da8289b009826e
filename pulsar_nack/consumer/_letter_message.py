"""A message for a dead-letter topic or a retry topic: what is published of a delivery. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from .._check import check_name
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ._port import Delivery, Schema

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
OLD_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The Java client writes the id under two names."""
DELIVER_AT: Final = "PULSAR_NACK_DELIVER_AT"
"""Until when a message waits in a retry topic, epoch ms."""
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+", re.DOTALL)


class LetterMessage(NamedTuple):
    """A message for another topic, as :meth:`~pulsar_nack.consumer.Publisher.publish` takes it."""

    topic: str
    data: bytes | None
    properties: Mapping[str, str]
    key: str | bytes | None
    ordering_key: str | None
    event_time_ms: int
    schema: Schema | None
    deliver_at_ms: int | None


def letter_of(
    delivery: Delivery, topic: str, properties: Mapping[str, str], deliver_at_ms: int | None = None
) -> LetterMessage:
    """Return a message for another topic, with all that a delivery has."""
    came_from = base_name(delivery.topic or delivery.id.topic or "")
    is_readable = delivery.error is None
    return LetterMessage(
        topic,
        None if delivery.is_null and is_readable else delivery.data,
        properties,
        key_of(delivery),
        delivery.ordering_key,
        delivery.event_time_ms,
        (came_from, delivery.schema_version) if delivery.schema_version and is_readable else None,
        deliver_at_ms,
    )


def check_letter_topic(topic: object) -> None:
    """Raise unless ``topic`` is None or the name of a persistent topic, which keeps what is published to it."""
    if topic is None:
        return
    if check_name("topic", topic, "a name or None").startswith("non-persistent://"):
        raise InvalidArgumentError("topic", topic, "a persistent topic: another one keeps no messages")


def base_name(topic: str) -> str:
    """Return the name of a topic without the number of a partition."""
    found = _PARTITION.fullmatch(topic)
    return topic if found is None else found[1]


def origin_id(message_id: MessageId) -> str:
    """Return an id as the Java client writes it: ``ledger:entry:partition``, and the batch index if there is one."""
    numbers = message_id[:4] if message_id.batch_index >= 0 else message_id[:3]
    return ":".join(map(str, numbers))


def with_origin(delivery: Delivery, topic: str, subscription: str) -> dict[str, str]:
    """Return the message's properties with its origin added; existing ones stay, as in the Java client.

    The time until which it waited in a retry topic is left out.
    """
    found = dict(delivery.properties)
    origin = origin_id(delivery.id)
    for name, value in (
        (REAL_TOPIC, topic),
        (REAL_SUBSCRIPTION, subscription),
        (ORIGIN_MESSAGE_ID, origin),
        (OLD_ORIGIN_MESSAGE_ID, origin),
    ):
        found.setdefault(name, value)
    found.pop(DELIVER_AT, None)
    return found


def key_of(delivery: Delivery) -> str | bytes | None:
    """Return the key; decoded to bytes if it was encoded and the bytes encode to the same text."""
    key = delivery.key
    if key is None or not delivery.is_key_encoded:
        return key
    try:
        decoded = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return key
    return decoded if base64.b64encode(decoded).decode("ascii") == key else key
