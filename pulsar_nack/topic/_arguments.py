"""Checks of the arguments of a local topic; each error names the argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote

from .._check import check_flag, check_integer, check_text, clock_of, config_of
from ..clock import Clock
from ..config import BucketConfig, DelayedDeliveryConfig, TopicConfig
from ..consumer.transport import InitialPosition, initial_position, local_settings, subscription_type
from ..errors import InvalidArgumentError
from ._dispatcher import SubscriptionType

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
