"""Checks of the arguments of a local topic; each error names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote

from .._check import INT64_MAX, check_flag, check_integer, check_text, clock_of, config_of
from .._delays import delay_ms
from ..clock import Clock
from ..config import BucketConfig, DelayedDeliveryConfig, TopicConfig
from ..consumer.transport import InitialPosition, initial_position, local_settings, subscription_type
from ..errors import InvalidArgumentError
from ._dispatcher import SubscriptionType
from ._entry import EntryMessage

_T = TypeVar("_T")

_MAX_NAME: Final = 100


class TopicSettings(NamedTuple):
    """The checked settings of a topic, or of one of its subscriptions.

    :param delayed: how delayed messages are kept
    """

    config: TopicConfig
    delayed: BucketConfig
    clock: Clock


def check_topic(config: object, delayed: DelayedDeliveryConfig | None, clock: Clock | None) -> TopicSettings:
    """Check the settings of a topic, and return them."""
    memory = BucketConfig(delayed_delivery_tracker_factory_class_name="memory")
    return TopicSettings(config_of(config, TopicConfig), _as_bucket_config(delayed) or memory, clock_of(clock))


def _as_bucket_config(config: DelayedDeliveryConfig | None) -> BucketConfig | None:
    """Return settings that name a tracker: a plain DelayedDeliveryConfig means the one in memory."""
    if config is None or isinstance(config, BucketConfig):
        return config
    if not isinstance(config, DelayedDeliveryConfig):
        raise InvalidArgumentError("delayed", config, "a DelayedDeliveryConfig or a BucketConfig")
    return BucketConfig(delayed_delivery_tracker_factory_class_name="memory", **config.model_dump())


def check_subscription_name(name: object) -> None:
    """Raise InvalidArgumentError unless this can be the name of a subscription."""
    check_text("name", name)
    if not isinstance(name, str) or not 0 < len(quote(name, safe="")) <= _MAX_NAME:
        raise InvalidArgumentError("name", name, f"a subscription's name of 1 to {_MAX_NAME} characters")


class Joining(NamedTuple):
    """The checked arguments of a new consumer, in our words.

    :param name: that of the subscription
    :param delayed: how the subscription keeps delayed messages; None: as before, or by default
    """

    name: str
    kind: SubscriptionType
    initial: InitialPosition
    consumer_name: str
    room: int
    delayed: BucketConfig | None
    unacked_limit: int | None
    batch_index_ack: bool


def check_subscribe(
    name: str,
    kind: object,
    position: object,
    *,
    consumer_name: object,
    receiver_queue_size: int,
    delayed: DelayedDeliveryConfig | None,
    batch_index_ack: bool,
    unacked_limit: int | None = 50_000,
) -> Joining:
    """Check the arguments of a new consumer, and return them."""
    found = SubscriptionType(subscription_type(kind, "type"))
    check_subscription_name(name)
    initial = initial_position(position)
    label = "" if consumer_name is None else consumer_name
    check_text("consumer_name", label)
    check_integer("receiver_queue_size", receiver_queue_size, 0)
    check_flag("batch_index_ack", batch_index_ack)
    if unacked_limit is not None:
        check_integer("unacked_limit", unacked_limit, 1)
    queue, config = receiver_queue_size, _as_bucket_config(delayed)
    return Joining(name, found, initial, cast("str", label), queue, config, unacked_limit, batch_index_ack)


def check_options(type: object, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: A002
    """Return the type of a new consumer and its other settings, by our names."""
    found = local_settings(options)
    if "consumer_type" not in found:
        return type, found
    if type != "shared":
        raise InvalidArgumentError("consumer_type", found["consumer_type"], "nothing beside type")
    return subscription_type(found.pop("consumer_type")), found


def deliver_at_ms(at: object, after: Any, now_ms: int) -> int | None:
    """Return when to deliver a message (epoch ms), None: at once.

    :param at: epoch ms, a datetime with a time zone, or a timedelta from now
    :param after: seconds or a timedelta from now
    """
    if after is not None:
        if at is not None:
            raise InvalidArgumentError("deliver_after", after, "nothing beside deliver_at")
        return now_ms + delay_ms(after, "deliver_after")
    if at is None:
        return None
    if isinstance(at, timedelta):
        return now_ms + delay_ms(at, "deliver_at")
    if isinstance(at, datetime) and at.tzinfo is not None:
        return max(round(at.timestamp() * 1000), 0)
    if type(at) is not int or not 0 <= at <= INT64_MAX:
        raise InvalidArgumentError("deliver_at", at, "epoch ms, a datetime with a time zone, or a timedelta")
    return at


def payloads_of(payload: object) -> Sequence[object]:
    """Return the payloads to publish, one or several."""
    if payload is None or isinstance(payload, bytes | bytearray | memoryview):
        return [payload]
    if isinstance(payload, str) or not isinstance(payload, Sequence) or not payload:
        raise InvalidArgumentError("payload", payload, "bytes or None, or a sequence of them with at least one")
    return payload


def message_of(payload: object, key: object, properties: object, event_ms: object) -> EntryMessage:
    """Return a message with this payload, key, properties and event time."""
    if payload is not None and not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgumentError("payload", payload, "bytes, or None for a message without a value")
    if key is not None:
        check_text("key", key)
    if type(event_ms) is not int or not 0 <= event_ms <= INT64_MAX:
        raise InvalidArgumentError("event_time_ms", event_ms, "epoch ms")
    given = {} if properties is None else properties
    if not isinstance(given, Mapping):
        raise InvalidArgumentError("properties", properties, "a mapping of strings to strings")
    for name, value in given.items():
        check_text("properties", name)
        check_text("properties", value)
    value = None if payload is None else bytes(payload)
    return EntryMessage(value, cast("str | None", key), dict(given), event_ms)
