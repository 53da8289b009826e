"""Consumers over the official client: newly subscribed, or around a consumer that the user has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from .._check import check_flag, check_name
from .._delays import Delay
from .._lifetime import Opening
from .._topic_pattern import for_official_client, full_name, pattern_text
from ..errors import InvalidArgumentError
from ._consumer import Consumer
from ._dialect import (
    OFFICIAL_NAMES,
    AnyType,
    DialectSettings,
    SubscriptionType,
    check_values,
    official_settings,
    subscription_type,
)
from ._official import NATIVE_DELAY_S, OfficialPort, broker_error, import_pulsar_asyncio, traits_of
from ._settings import CONSUMER_SETTINGS, ConsumerOptions, check_settings, refuse_unknown, signature_with_settings

if TYPE_CHECKING:
    import pulsar
    from pulsar.schema import Schema

_HONOUR_IDS: Final = {"shared", "key_shared"}
_DEFAULT_QUEUE: Final = 1_000


class OfficialSettings(DialectSettings, total=False):
    """The settings of a consumer, and those that go to the official client; a later client may have more."""

    schema: Schema | None
    max_total_receiver_queue_size_across_partitions: int
    unacked_messages_timeout_ms: int | None
    broker_consumer_stats_cache_time_ms: int
    crypto_key_reader: pulsar.CryptoKeyReader | None
    auto_ack_oldest_chunked_message_on_queue_full: bool
    start_message_id_inclusive: bool
    batch_receive_policy: pulsar.ConsumerBatchReceivePolicy | None
    regex_subscription_mode: pulsar.RegexSubscriptionMode
    dead_letter_policy: pulsar.ConsumerDeadLetterPolicy | None
    crypto_failure_action: pulsar.ConsumerCryptoFailureAction


Subscribing = Opening[Consumer]
"""A consumer to be opened: enter it with ``async with``, or ``await`` it and close the consumer yourself."""


def subscribe(
    client: Any,
    topic: str | Sequence[str] | re.Pattern[str],
    subscription: str,
    *,
    consumer_type: AnyType = "shared",
    **settings: Unpack[OfficialSettings],
) -> Subscribing:
    """Subscribe with the official client, by default on a Shared subscription.

    :param client: a ``pulsar.asyncio.Client``
    :param topic: a topic, a list of topics, or a pattern, by :func:`re.compile` or as text with
        ``is_pattern_topic=True``, in the syntax that ECMAScript, which that client uses, and Python have in common
    :param subscription: its name
    :param consumer_type: ``"shared"``, ``"key_shared"``, ``"exclusive"``, ``"failover"``, or a ``pulsar.ConsumerType``
    :param settings: those of :class:`Consumer`; those of a subscription, by the names of either client
        (``initial_position``, ``receiver_queue_size``, ``batch_index_ack``, ...); and others of the official client
        (``schema``, ``crypto_key_reader``, ...), which go to it unchanged
    :return: to be used as ``async with``, or awaited
    :raises InvalidArgumentError: names the argument
    :raises MissingExtraError: pulsar-client is not installed
    :raises BrokerError: when entered or awaited: the client could not subscribe

    ::

        async with pulsar_nack.subscribe(client, "orders", "billing") as consumer:
            message = await consumer.receive()
            await message.nack(delay=2.5)
    """
    if not isinstance(client, import_pulsar_asyncio().Client):
        raise InvalidArgumentError("client", client, "a pulsar.asyncio.Client (not the synchronous pulsar.Client)")
    options = official_settings(settings)
    of_consumer = {name: options.pop(name) for name in CONSUMER_SETTINGS if name in options}
    kind = subscription_type(consumer_type)
    wanted: Any = _checked_topic(topic, options)
    check_name("subscription", subscription)
    check_values(kind, options)
    _check_options(client, options)
    traits = traits_of(
        honours_ids=kind in _HONOUR_IDS,
        native_delay=NATIVE_DELAY_S,
        batch_index_ack=options.get("batch_index_ack", False),
        receiver_queue_size=options.get("receiver_queue_size", _DEFAULT_QUEUE),
    )
    check_settings(traits, of_consumer)
    if of_consumer.get("lease") is not None and (timeout_ms := options.get("unacked_messages_timeout_ms")):
        expected = "None with lease: that timer brings back held messages too, and whole batches"
        raise InvalidArgumentError("unacked_messages_timeout_ms", timeout_ms, expected)
    has_queue, is_pattern = traits.receiver_queue_size != 0, options.get("is_pattern_topic", False)
    if (retry_topic := of_consumer.get("retry_topic")) is not None:
        topics = None if is_pattern else list(map(full_name, [wanted] if isinstance(wanted, str) else wanted))
        named = of_consumer["retry_topic"] = retry_topic.named(topics, subscription, full_name)
        wanted = [*named.topics, named.topic]
    if not has_queue and (not isinstance(wanted, str) or is_pattern):
        raise _no_queue()

    async def make() -> Consumer:
        if not has_queue and await client.get_topic_partitions(wanted) != [full_name(wanted)]:
            raise _no_queue()
        native = await _native(client, wanted, subscription, kind, options)
        port = OfficialPort(native, traits, has_several_topics=is_pattern, client=client)
        try:
            return Consumer(port, **of_consumer)
        except BaseException:
            await port.close()
            raise

    return Subscribing(make, "consumer")


subscribe.__signature__ = signature_with_settings(subscribe, has_others=True)  # type: ignore[attr-defined]


def wrap(
    consumer: Any,
    *,
    consumer_type: AnyType | None = None,
    native_delay: Delay = 60.0,
    batch_index_ack: bool = False,
    **settings: Unpack[ConsumerOptions],
) -> Consumer:
    """Make a :class:`Consumer` of a consumer of the official client, and own it from now on.

    The client names neither the subscription's type nor its negative-ack delay. If the type is not given, redelivery is
    local, as it has to be on Exclusive subscriptions. Name the type and the delay that the consumer was made with
    (100 ms is best) to allow redelivery by the broker.

    :param consumer: a ``pulsar.asyncio.Consumer``
    :param consumer_type: as in :func:`subscribe`; None: not known, treated as Exclusive
    :param native_delay: its ``negative_ack_redelivery_delay_ms`` in seconds; with the client's default, 60 s, the
        broker cannot redeliver within less than 84 s
    :param batch_index_ack: whether it was made with ``batch_index_ack_enabled``
    :param settings: those of :class:`Consumer`; a ``dead_letter`` needs a ``publisher``, for the client is not known
    :raises InvalidArgumentError: names the argument
    """
    honours_ids = consumer_type is not None and subscription_type(consumer_type) in _HONOUR_IDS
    traits = traits_of(honours_ids=honours_ids, native_delay=native_delay, batch_index_ack=batch_index_ack)
    port = OfficialPort(consumer, traits)
    check_settings(traits, settings)
    return Consumer(port, **settings)


def _checked_topic(topic: object, options: dict[str, Any]) -> Any:
    """Return the topic for the client, whose library ends the process if it cannot parse a pattern."""
    is_pattern = options.get("is_pattern_topic", isinstance(topic, re.Pattern))
    check_flag("is_pattern_topic", is_pattern)
    if is_pattern:
        options["is_pattern_topic"] = True
        return for_official_client(pattern_text(topic))
    expected = "a name, a list of names, or a pattern, by re.compile or as text with is_pattern_topic=True"
    if isinstance(topic, str) or not isinstance(topic, Sequence) or not topic:
        return check_name("topic", topic, expected)
    return [check_name("topic", each, expected) for each in topic]


def _check_options(client: Any, options: dict[str, Any]) -> None:
    """Raise for a setting that neither a :class:`Consumer` nor the official client knows."""
    known = inspect.signature(client.subscribe).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        refuse_unknown(options.items(), [*known, *OFFICIAL_NAMES, *CONSUMER_SETTINGS])


async def _native(client: Any, topic: Any, subscription: str, kind: SubscriptionType, options: dict[str, Any]) -> Any:
    import pulsar

    try:
        return await client.subscribe(
            topic,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, _official_word(kind)),
            negative_ack_redelivery_delay_ms=round(NATIVE_DELAY_S * 1000),
            **_for_client(options),
        )
    except import_pulsar_asyncio().PulsarException as error:
        raise broker_error(f"subscribing to {topic!r} as {subscription!r}", error) from error


def _no_queue() -> InvalidArgumentError:
    wanted = "at least 1 with several topics or partitions: without a queue the client delivers nothing"
    return InvalidArgumentError("receiver_queue_size", 0, wanted)


def _official_word(word: str) -> str:
    """Return the official client's word: ``KeyShared`` for ``key_shared``."""
    return word.title().replace("_", "")


def _for_client(options: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the names and values of the official client."""
    import pulsar

    found = {OFFICIAL_NAMES.get(name, name): value for name, value in options.items()}
    if (position := found.get("initial_position")) is not None:
        found["initial_position"] = getattr(pulsar.InitialPosition, _official_word(position))
    if (shares := found.get("key_shared_policy")) is not None:
        mode = pulsar.KeySharedMode.Sticky if shares.ranges else pulsar.KeySharedMode.AutoSplit
        ranges = list(shares.ranges) or None
        found["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(mode, shares.allow_out_of_order, ranges)
    if (properties := found.get("properties")) is not None:
        found["properties"] = dict(properties)
    return found
