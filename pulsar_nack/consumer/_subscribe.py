"""Consumers over the official client: newly subscribed, or around a consumer that the user has."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from .._check import check_flag, check_name
from .._delays import Delay
from .._lifetime import Opening
from .._topic_pattern import for_official_client
from ..errors import InvalidArgumentError
from ._consumer import Consumer
from ._official import NATIVE_DELAY_S, OfficialPort, broker_error, import_pulsar_asyncio
from ._settings import CONSUMER_SETTINGS, ConsumerOptions, check_settings, refuse_unknown, signature_with_settings

if TYPE_CHECKING:
    import pulsar
    from pulsar.schema import Schema

_TYPES: Final = {"exclusive": "Exclusive", "shared": "Shared", "failover": "Failover", "key_shared": "KeyShared"}
_HONOUR_IDS: Final = {"Shared", "KeyShared"}
_DEFAULT_QUEUE: Final = 1_000


class OfficialSettings(ConsumerOptions, total=False):
    """The settings of a consumer, and those that go to the official client; a later client may have more."""

    schema: Schema | None
    receiver_queue_size: int
    max_total_receiver_queue_size_across_partitions: int
    consumer_name: str | None
    unacked_messages_timeout_ms: int | None
    broker_consumer_stats_cache_time_ms: int
    is_read_compacted: bool
    properties: dict[str, str] | None
    initial_position: pulsar.InitialPosition
    crypto_key_reader: pulsar.CryptoKeyReader | None
    replicate_subscription_state_enabled: bool
    max_pending_chunked_message: int
    auto_ack_oldest_chunked_message_on_queue_full: bool
    start_message_id_inclusive: bool
    batch_receive_policy: pulsar.ConsumerBatchReceivePolicy | None
    key_shared_policy: pulsar.ConsumerKeySharedPolicy | None
    batch_index_ack_enabled: bool
    regex_subscription_mode: pulsar.RegexSubscriptionMode
    dead_letter_policy: pulsar.ConsumerDeadLetterPolicy | None
    crypto_failure_action: pulsar.ConsumerCryptoFailureAction
    is_pattern_topic: bool


class Subscribing(Opening[Consumer]):
    """A consumer to be opened: enter it with ``async with``, or ``await`` it and close the consumer yourself."""

    _what = "consumer"

    async def _open(self) -> Consumer:
        return await (await self._make()).open()


def subscribe(
    client: Any,
    topic: str | Sequence[str],
    subscription: str,
    *,
    consumer_type: Any = "shared",
    **settings: Unpack[OfficialSettings],
) -> Subscribing:
    """Subscribe with the official client, by default on a Shared subscription.

    :param client: a ``pulsar.asyncio.Client``
    :param topic: a topic, a list of topics, or with ``is_pattern_topic=True`` a pattern as text, in the syntax that
        ECMAScript, which that client uses, and Python have in common
    :param subscription: its name
    :param consumer_type: ``"shared"``, ``"key_shared"``, ``"exclusive"``, ``"failover"``, or a ``pulsar.ConsumerType``
    :param settings: those of :class:`Consumer`; others go to the client's ``subscribe`` unchanged (``schema``,
        ``receiver_queue_size``, ``initial_position``, ``batch_index_ack_enabled``, ...), except for
        ``negative_ack_redelivery_delay_ms``, which pulsar-nack sets
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
    options: dict[str, Any] = {**settings}
    of_consumer = {name: options.pop(name) for name in CONSUMER_SETTINGS if name in options}
    native_type = _native_type(consumer_type)
    topic = _checked_topic(topic, is_pattern=options.get("is_pattern_topic", False))
    check_name("subscription", subscription)
    _check_options(client, options)
    has_queue = options.get("receiver_queue_size", _DEFAULT_QUEUE) != 0
    if not has_queue and (not isinstance(topic, str) or options.get("is_pattern_topic", False)):
        raise _no_queue()
    for name in ("negative_ack_redelivery_delay_ms", "subscription_name"):
        if name in options:
            raise InvalidArgumentError(name, options[name], "nothing: pulsar_nack sets it")

    async def make() -> Consumer:
        if not has_queue and await client.get_topic_partitions(topic) != [_full_name(topic)]:
            raise _no_queue()
        port = await _port(client, topic, subscription, native_type, options)
        try:
            return Consumer(port, **of_consumer)
        except BaseException:
            await port.close()
            raise

    return Subscribing(make)


subscribe.__signature__ = signature_with_settings(subscribe, has_others=True)  # type: ignore[attr-defined]


def wrap(
    consumer: Any,
    *,
    consumer_type: Any = None,
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
    honours_ids = consumer_type is not None and _native_type(consumer_type).name in _HONOUR_IDS
    port = OfficialPort(consumer, honours_ids=honours_ids, native_delay=native_delay, batch_index_ack=batch_index_ack)
    check_settings(port.traits, settings)
    return Consumer(port, **settings)


def _checked_topic(topic: object, *, is_pattern: object) -> Any:
    """Return the topic for the client, whose library ends the process if it cannot parse a pattern."""
    check_flag("is_pattern_topic", is_pattern)
    if is_pattern:
        return for_official_client(check_name("topic", topic, "a pattern as text, with is_pattern_topic=True"))
    expected = "a name, a list of names, or a pattern as text with is_pattern_topic=True"
    if isinstance(topic, str) or not isinstance(topic, Sequence) or not topic:
        return check_name("topic", topic, expected)
    return [check_name("topic", each, expected) for each in topic]


def _check_options(client: Any, options: dict[str, Any]) -> None:
    """Raise for a setting that neither a :class:`Consumer` nor the official client knows."""
    known = inspect.signature(client.subscribe).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        refuse_unknown(options.items(), [*known, *CONSUMER_SETTINGS])


async def _port(client: Any, topic: Any, subscription: str, native_type: Any, options: dict[str, Any]) -> OfficialPort:
    try:
        consumer = await client.subscribe(
            topic,
            subscription,
            consumer_type=native_type,
            negative_ack_redelivery_delay_ms=round(NATIVE_DELAY_S * 1000),
            **options,
        )
    except import_pulsar_asyncio().PulsarException as error:
        raise broker_error(f"subscribing to {topic!r} as {subscription!r}", error) from error
    return OfficialPort(
        consumer,
        honours_ids=native_type.name in _HONOUR_IDS,
        native_delay=NATIVE_DELAY_S,
        batch_index_ack=bool(options.get("batch_index_ack_enabled", False)),
        receiver_queue_size=int(options.get("receiver_queue_size", _DEFAULT_QUEUE)),
        has_several_topics=bool(options.get("is_pattern_topic", False)),
        client=client,
    )


def _full_name(topic: Any) -> str:
    if "://" in topic:
        return str(topic)
    name = topic if topic.count("/") == 2 else f"public/default/{topic}"
    return f"persistent://{name}"


def _no_queue() -> InvalidArgumentError:
    wanted = "at least 1 with several topics or partitions: without a queue the client delivers nothing"
    return InvalidArgumentError("receiver_queue_size", 0, wanted)


def _native_type(consumer_type: Any) -> Any:
    import pulsar

    if isinstance(consumer_type, pulsar.ConsumerType):
        return consumer_type
    name = _TYPES.get(consumer_type.lower()) if isinstance(consumer_type, str) else None
    if name is None:
        raise InvalidArgumentError(
            "consumer_type", consumer_type, f"one of {', '.join(_TYPES)}, or a pulsar.ConsumerType"
        )
    return getattr(pulsar.ConsumerType, name)
