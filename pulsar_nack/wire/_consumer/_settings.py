"""The settings of the native client's consumers and producers: their types, and which object takes each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict
from uuid import uuid4

from ..._check import check_name, model_of, suggest_name
from ...consumer.transport import CONSUMER_SETTINGS, DialectSettings, refuse_unknown
from ...errors import InvalidArgumentError
from .._connection._options import ClientOptions
from ._subscribe_options import SubscribeOptions

if TYPE_CHECKING:
    from ..._delays import Delay
    from ...ids import MessageId
    from .._connection._options import SchemaInfo
    from .._producer._options import AccessMode, Compression, ProducerOptions
    from .._producer._routing import Hashing, Router

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


class ProducerSettings(TypedDict, total=False):
    """The fields of :class:`~pulsar_nack.wire.ProducerOptions`."""

    name: str | None
    compression: Compression
    batching: bool
    batch_by_key: bool
    batch_delay: Delay
    batch_max_messages: int
    batch_max_bytes: int
    chunking: bool
    chunk_max_bytes: int | None
    max_pending_bytes: int
    max_pending_messages: int
    send_timeout: Delay | None
    routing: Literal["round_robin", "single"] | Router
    hashing: Hashing
    access_mode: AccessMode
    properties: Mapping[str, str]
    initial_sequence_id: int | None
    initial_subscription: str | None
    schema_info: SchemaInfo | None


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


def client_options(options: Mapping[str, Any]) -> ClientOptions:
    """Return the checked options of a client.

    :raises InvalidArgumentError: names the first option that is wrong or unknown
    """
    return model_of(ClientOptions, options, hides_unknown=True)


def producer_options(options: Mapping[str, Any]) -> ProducerOptions:
    """Return the checked options of a producer.

    :raises InvalidArgumentError: names the first option that is wrong or unknown
    """
    from .._producer._options import ProducerOptions

    return model_of(ProducerOptions, options)
