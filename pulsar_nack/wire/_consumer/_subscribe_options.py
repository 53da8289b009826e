"""The options of a subscription: how the broker sees the consumer, and how messages are fetched.

Users give them together with the settings of the consumer, or as the settings of a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict
from uuid import uuid4

from ..._check import check_flag, check_integer, check_name, check_strings, suggest_name
from ..._delays import Delay, delay_ms
from ...consumer import KeyShared
from ...consumer.transport import (
    CONSUMER_SETTINGS,
    DialectSettings,
    InitialPosition,
    SubscriptionType,
    check_values,
    initial_position,
    key_shared,
    refuse_unknown,
    subscription_type,
)
from ...errors import InvalidArgumentError
from ...ids import MessageId

_INT32_MAX: Final = 2**31 - 1
_OF_BOTH_CLIENTS: Final = (
    "consumer_name",
    "properties",
    "receiver_queue_size",
    "batch_index_ack",
    "read_compacted",
    "replicate_subscription_state",
    "key_shared",
)


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options of one subscription.

    :param subscription: its name
    :param type: ``"shared"``, ``"key_shared"``, ``"failover"`` or ``"exclusive"``
    :param consumer_name: how the broker shows this consumer; on Failover, names decide who is active on a partition
    :param initial_position: where a new subscription begins: at the ``"latest"`` message or the ``"earliest"``
    :param priority_level: consumers of a lower level get messages first
    :param properties: shown by the broker for this consumer
    :param subscription_properties: set on the subscription if this consumer creates it
    :param key_shared: how keys are divided among consumers; None: the broker decides
    :param receiver_queue_size: most messages that are prefetched; 0: none, so that a consumer holds only messages in
        flight. 0 is for one topic without partitions
    :param batch_index_ack: acknowledge each message of a batch at the broker; if False, an entry is acknowledged once
        all its messages are
    :param ack_group_ms: how long an acknowledgement may wait for others to share its command
    :param max_pending_chunked: most incomplete chunked messages
    :param max_chunked_bytes: most memory for the chunks of incomplete messages
    :param chunk_timeout: how long the other chunks of a message may take; then its chunks go back to the broker
    :param read_compacted: only the last message of each key, from a compacted topic
    :param durable: the broker keeps the subscription; if False it begins at ``start_message_id`` each time
    :param replicate_subscription_state: replicate the subscription to other clusters
    :param start_message_id: the message before the first one; for non-durable subscriptions
    :param create_topic: let the broker create a missing topic, if its policy allows it
    :raises InvalidArgumentError: names the option
    """

    subscription: str
    type: SubscriptionType = "shared"
    consumer_name: str | None = None
    initial_position: InitialPosition = "latest"
    priority_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    key_shared: KeyShared | None = None
    receiver_queue_size: int = 1_000
    batch_index_ack: bool = True
    ack_group_ms: int = 2
    max_pending_chunked: int = 10
    max_chunked_bytes: int = 64 << 20
    chunk_timeout: Delay = 60.0
    read_compacted: bool = False
    durable: bool = True
    replicate_subscription_state: bool = False
    start_message_id: MessageId | None = None
    create_topic: bool = True

    def __post_init__(self) -> None:
        check_name("subscription", self.subscription)
        self._set("type", subscription_type(self.type, "type"))
        self._set("initial_position", initial_position(self.initial_position))
        self._set("key_shared", key_shared(self.key_shared))
        check_values(self.type, {name: getattr(self, name) for name in _OF_BOTH_CLIENTS}, "the type")
        check_integer("priority_level", self.priority_level, 0, _INT32_MAX)
        check_strings("subscription_properties", self.subscription_properties)
        check_integer("ack_group_ms", self.ack_group_ms, 0, 10_000)
        check_integer("max_pending_chunked", self.max_pending_chunked, 1, 100_000)
        check_integer("max_chunked_bytes", self.max_chunked_bytes, 1, 2**40)
        if not delay_ms(self.chunk_timeout, "chunk_timeout"):
            raise InvalidArgumentError("chunk_timeout", self.chunk_timeout, "more than 0")
        for name in ("durable", "create_topic"):
            check_flag(name, getattr(self, name))
        if self.start_message_id is not None and not isinstance(self.start_message_id, MessageId):
            raise InvalidArgumentError("start_message_id", self.start_message_id, "a MessageId or None")
        if self.start_message_id is not None and self.durable:
            raise InvalidArgumentError("start_message_id", self.start_message_id, "None on a durable subscription")

    def _set(self, name: str, value: object) -> None:
        """Keep a value in our words, whatever its spelling was."""
        object.__setattr__(self, name, value)

    @property
    def only_one_gets_messages(self) -> bool:
        """Return whether one consumer gets all messages in order: on Exclusive and Failover."""
        return self.type in {"exclusive", "failover"}


_OTHER_NAMES: Final = {"durable_subscription": "durable"}
"""Settings that have another name in :class:`SubscribeOptions`, because the consumer has that name already."""
OF_SUBSCRIPTION: Final = frozenset(each.name for each in fields(SubscribeOptions)) - {
    "subscription",
    "type",
    "durable",
} | {*_OTHER_NAMES}
"""The settings of a subscription, except its name and type."""


class SubscribeSettings(DialectSettings, total=False):
    """The settings of a consumer and of its subscription."""

    priority_level: int
    subscription_properties: Mapping[str, str]
    ack_group_ms: int
    max_chunked_bytes: int
    chunk_timeout: Delay
    durable_subscription: bool
    create_topic: bool
    start_message_id: MessageId | None


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the consumer, and those of the subscription.

    :raises InvalidArgumentError: there is no setting of this name
    """
    of_consumer: dict[str, Any] = {}
    of_subscription: dict[str, Any] = {}
    for name, value in settings.items():
        if name in CONSUMER_SETTINGS:
            of_consumer[name] = value
        elif name in OF_SUBSCRIPTION:
            of_subscription[_OTHER_NAMES.get(name, name)] = value
        else:
            raise InvalidArgumentError(name, value, suggest_name(name, [*CONSUMER_SETTINGS, *OF_SUBSCRIPTION]))
    return of_consumer, of_subscription


class ReaderSettings(TypedDict, total=False):
    """The settings of a reader; most are fields of :class:`~pulsar_nack.wire.SubscribeOptions`."""

    reader_name: str | None
    subscription: str | None
    receiver_queue_size: int
    read_compacted: bool
    properties: Mapping[str, str]
    max_pending_chunked: int
    max_chunked_bytes: int
    chunk_timeout: Delay
    create_topic: bool


def reader_options(settings: Mapping[str, Any]) -> SubscribeOptions:
    """Return the checked options of a reader's subscription, with a unique name unless one is given.

    :raises InvalidArgumentError: names the first setting that is wrong or unknown
    """
    options: dict[str, Any] = {**settings}
    refuse_unknown(options.items(), tuple(ReaderSettings.__annotations__))
    subscription = options.pop("subscription", None)
    subscription = f"reader-{uuid4().hex[:10]}" if subscription is None else check_name("subscription", subscription)
    name = options.pop("reader_name", None)
    consumer_name = None if name is None else check_name("reader_name", name)
    return SubscribeOptions(
        subscription,
        type="exclusive",
        durable=False,
        batch_index_ack=False,
        consumer_name=consumer_name,
        **options,
    )


def queue_required() -> InvalidArgumentError:
    """Return the error of consuming several topics or partitions without a receiver queue."""
    wanted = "at least 1 with several topics or partitions, each of which would fetch a message that no call takes"
    return InvalidArgumentError("receiver_queue_size", 0, wanted)
