"""The port over the official client without a broker: what it refuses, how it names ids and topics."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_nack
from pulsar_nack import BrokerError, InvalidArgumentError, MessageId
from pulsar_nack._topic_pattern import for_official_client
from pulsar_nack.consumer import ConsumerOptions
from pulsar_nack.consumer import _official as official
from pulsar_nack.consumer._dialect import OFFICIAL_NAMES
from pulsar_nack.consumer._official import OfficialPort, broker_error, traits_of
from pulsar_nack.consumer._official_ids import OfficialMessageIds, delivery_of
from pulsar_nack.consumer._subscribe import OfficialSettings
from pulsar_nack.consumer.transport import CONSUMER_SETTINGS
from pulsar_nack.errors import TopicNotFoundError
from pulsar_nack.testing import virtual_time
from tests.for_each import for_each

TOPIC = "persistent://public/default/t"


@asynccontextmanager
async def unreachable() -> AsyncIterator[Any]:
    """A client of an address where nothing listens, which gives up after a second."""
    client = pulsar.asyncio.Client(
        "pulsar://127.0.0.1:1", operation_timeout_seconds=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        yield client
    finally:
        await client.close()


async def test_a_refused_connection_is_one_clear_error() -> None:
    """U22: nothing listens: one of our errors names topic and subscription, and nothing hangs."""
    async with unreachable() as client:
        with pytest.raises(BrokerError, match=r"orders.*billing"):
            await pulsar_nack.subscribe(client, "orders", "billing")
        with pytest.raises(BrokerError, match="orders"):
            async with pulsar_nack.subscribe(client, "orders", "billing"):
                pass


async def test_bad_arguments_are_refused_before_anything_happens() -> None:
    """N24: an invalid client, consumer, type or an option that is ours is refused by name."""
    async with unreachable() as client:
        bad: list[dict[str, Any]] = [
            {"consumer_type": "sharde"},
            {"consumer_type": 3},
            {"negative_ack_redelivery_delay_ms": 5},
            {"is_pattern_topic": "yes"},
        ]
        for options in bad:
            with pytest.raises(InvalidArgumentError, match=next(iter(options))):
                pulsar_nack.subscribe(client, "orders", "billing", **options)
    with pytest.raises(InvalidArgumentError, match=r"pulsar\.asyncio\.Client"):
        pulsar_nack.subscribe(object(), "orders", "billing")
    with pytest.raises(InvalidArgumentError, match=r"pulsar\.asyncio\.Consumer"):
        OfficialPort(object(), traits_of(honours_ids=True))


async def test_no_queue_is_for_one_topic() -> None:
    """O16, O57: lists and patterns without a queue are refused by name: the client would deliver nothing for ever."""
    client = object.__new__(pulsar.asyncio.Client)
    for topic, is_pattern in ((["t"], False), ("t.*", True)):
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            pulsar_nack.subscribe(client, topic, "s", receiver_queue_size=0, is_pattern_topic=is_pattern)


async def test_partitions_without_a_queue_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """O16, O57: they are found by asking, whatever form the topic's name has."""
    client = object.__new__(pulsar.asyncio.Client)
    asked = []

    async def partitions(_client: Any, topic: str) -> list[str]:
        asked.append(topic)
        return [f"persistent://public/default/t-partition-{number}" for number in range(2)]

    monkeypatch.setattr(pulsar.asyncio.Client, "get_topic_partitions", partitions)
    for topic in ("t", "public/default/t", "persistent://public/default/t"):
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            await pulsar_nack.subscribe(client, topic, "s", receiver_queue_size=0)
    assert len(asked) == 3


class Encryption:
    """The binding's encryption context of an encrypted message."""

    key = "shop"

    def is_decryption_failed(self) -> bool:
        """Return True."""
        return True

    def keys(self) -> list[Encryption]:
        """Return one key."""
        return [self]


class NativeMessage:
    """The parts of the binding's message that a delivery needs."""

    def __init__(self, **fields: Any) -> None:
        self._fields = {"data": b"", "properties": {}, "redelivery_count": 0, "int_schema_version": -1, **fields}

    def __getattr__(self, name: str) -> Any:
        return lambda: self._fields.get(name)


def test_fields_of_the_clients_message() -> None:
    """O14, O15, O57: no value, producer and schema version are passed on; an encrypted message has an error."""
    message_id = MessageId(1, 2, topic="t")
    about = {"has_null_value": True, "producer_name": "shop", "int_schema_version": 300}
    delivery = delivery_of(NativeMessage(**about), None, message_id)
    assert (delivery.is_null, delivery.producer_name, delivery.error) == (True, "shop", None)
    assert delivery.schema_version == (300).to_bytes(8, "big")
    plain = delivery_of(NativeMessage(data=b"x", has_null_value=False, producer_name=""), None, message_id)
    assert (plain.is_null, plain.producer_name, plain.schema_version) == (False, None, None)
    secret = delivery_of(NativeMessage(encryption_context=Encryption()), None, message_id)
    assert "encrypted with the key shop" in str(secret.error)


NO_TOPICS = [5, None, "", [], ["a", None], [re.compile("x")], "\udc80", b"x"]
NO_TEXTS = r"""
(?i)ORDERS-.* persistent://public/default/(?i)ORDERS-.* (?P<x>a) (?<=a)b (?<!a)b a[ a{ a( a)
a** a*+ *a a{3,1} a{,3} (?=a)* (?!a)+ (*a) a\A a\Z \1 (a)\1 \p \x4 \cA [z-a] []a]
[[:nonsense:]] [a-z-9] [a-\d] x^a (?>a) (?i:a) (?#a) a\ [ä] ä+
((a{900}){900}){900} a{99999} public/.*/a a/b public/default/a|b
"""
NO_PATTERNS = [
    *(re.compile(b"x.*"), re.compile("x.*", re.IGNORECASE), re.compile("(?i)x.*"), re.compile("")),
    *(5, None, ["x.*"], b"x", "a\0", "\udc80", "a" * 30_000),
    *NO_TEXTS.split(),
]


async def test_what_the_library_cannot_take_is_refused_here() -> None:
    """O56: the library would end the process; topics that are not text are refused as clearly."""
    async with unreachable() as client:
        for topic in NO_TOPICS:
            with pytest.raises(InvalidArgumentError, match=r"^topic: expected a name, a list of names, or a pattern"):
                pulsar_nack.subscribe(client, topic, "s")  # type: ignore[arg-type]
        for pattern in NO_PATTERNS:
            with pytest.raises(InvalidArgumentError, match=r"^topic: expected a pattern"):
                pulsar_nack.subscribe(client, pattern, "s", is_pattern_topic=True)  # type: ignore[arg-type]
        for name in ("", None, "\udc80"):
            with pytest.raises(InvalidArgumentError, match=r"^subscription: expected a name"):
                pulsar_nack.subscribe(client, "t", name)  # type: ignore[arg-type]


@for_each(
    ("pattern", "translated"),
    [
        ("x-.*", "persistent://public/default/x-.*"),
        ("^x-.*", "persistent://public/default/x-.*"),
        ("public/default/x-.*", "persistent://public/default/x-.*"),
        ("^persistent://a/b/x-.*$", "persistent://a/b/x-.*$"),
        (r"^my\-tenant/my\.space/x", "persistent://my-tenant/my.space/x"),
        ("non-persistent://a/b/x-.*", "non-persistent://a/b/x-.*"),
        ("x|^y", "persistent://public/default/(?:x|y)"),
        ("a/b/x|a/b/y", "persistent://a/b/(?:x|y)"),
        (
            r"(?:x|(?!y).)-[\w.-]+?\d{1,3}\b\S*[^a-z_]{2}",
            r"persistent://public/default/(?:x|(?!y).)-[\w.-]+?\d{1,3}\b\S*[^a-z_]{2}",
        ),
        ("(a(?:b|c)*)+-{2}", "persistent://public/default/(a(?:b|c)*)+-{2}"),
        ("größe-.*", "persistent://public/default/größe-.*"),
    ],
)
def test_patterns_for_the_library(pattern: str, translated: str) -> None:
    """O18: anchors and namespaces are rewritten for the library's comparison with whole names."""
    assert for_official_client(pattern) == translated


class Broken:
    """A consumer of the client that has lost its topic or its connection; and its client."""

    def __init__(self, result: str | None, *, is_connected: bool = False) -> None:
        self.result = result
        self.is_there = is_connected
        self.asked: list[str] = []

    def is_connected(self) -> bool:
        """Return whether it is connected."""
        return self.is_there

    def receive_async(self, call: Any) -> None:
        """Never call back."""

    def close_async(self, call: Any) -> None:
        """Close."""
        call(pulsar.Result.Ok)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the partitions."""
        self.asked.append(topic)
        if self.result is not None:
            raise pulsar.asyncio.PulsarException(getattr(pulsar.Result, self.result))
        return [topic]


@virtual_time
async def test_a_deleted_topic_is_found_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """O57: `receive` raises if the topic is gone, and waits if the client is connected or the broker is away."""
    monkeypatch.setattr(official, "_CALLBACK_TIMEOUT_S", 0.0)
    for native, raises in (
        (Broken("TopicNotFound"), True),
        (Broken("TopicNotFound", is_connected=True), False),
        (Broken("Timeout"), False),
        (Broken(None), False),
    ):
        port = port_on(TOPIC, client=native)
        port._native = native
        waiting = asyncio.create_task(port.receive())
        if raises:
            with pytest.raises(TopicNotFoundError, match=rf"{TOPIC} was deleted, and may not be created again"):
                await asyncio.wait_for(waiting, 1.5)
            with pytest.raises(TopicNotFoundError):
                await asyncio.wait_for(port.receive(), 1.5)
        else:
            await asyncio.sleep(10.5)
            assert not waiting.done()
            assert len(native.asked) == (0 if native.is_there else 10)
            waiting.cancel()
            await asyncio.sleep(10)
            assert len(native.asked) <= 10
        await port.close()


def test_hints_fit_the_error() -> None:
    """O56: the error asks whether a broker answers only if none did."""
    there = "does a broker answer there"
    for name in ("ConnectError", "Timeout"):
        assert there in str(broker_error("x", pulsar.asyncio.PulsarException(getattr(pulsar.Result, name))))
    for name in ("AuthorizationError", "ConsumerBusy", "InvalidTopicName", "TopicNotFound"):
        assert there not in str(broker_error("x", pulsar.asyncio.PulsarException(getattr(pulsar.Result, name))))
    missing = broker_error("x", pulsar.asyncio.PulsarException(pulsar.Result.TopicNotFound, "no namespace"))
    assert isinstance(missing, TopicNotFoundError)


def test_the_ends_need_no_topic() -> None:
    """O57: so a consumer of a list can seek to the earliest and to the latest message."""
    for end in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
        built = OfficialMessageIds(None).build(MessageId.from_bytes(end.serialize()))
        assert (built.ledger_id(), built.entry_id()) == (end.ledger_id(), end.entry_id())


class FakeNative:
    """The parts of the binding's consumer that making a port needs."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topic(self) -> str:
        """Return the client's name of the topic."""
        return self._topic


def port_on(topic: str = "persistent://public/default/t", client: Any = None, **options: Any) -> OfficialPort:
    """A port on a consumer that was never connected."""
    consumer = pulsar.asyncio.Consumer(FakeNative(topic), pulsar.schema.BytesSchema())
    return OfficialPort(consumer, traits_of(**{"honours_ids": True, **options}), client=client)


async def test_traits_follow_the_native_delay() -> None:
    """U30: with the client's 60 s broker redelivery takes minutes, as traits say; with 100 ms it takes 122 ms."""
    assert port_on().traits.min_redelivery_delay == 84
    quick = port_on(native_delay=0.1).traits
    assert (quick.redelivery_latency, quick.min_redelivery_delay) == (0.122, 0.14)
    assert port_on(native_delay=0).traits == quick
    with pytest.raises(InvalidArgumentError, match="native_delay"):
        port_on(native_delay=-1)


async def test_wrapping_is_careful() -> None:
    """U29: a wrapped consumer of unknown type counts as Exclusive; if named Shared, its ids are honoured."""
    consumer = pulsar.asyncio.Consumer(FakeNative("t"), pulsar.schema.BytesSchema())
    assert not pulsar_nack.wrap(consumer).port.traits.honours_ids
    assert pulsar_nack.wrap(consumer, consumer_type="shared").port.traits.honours_ids
    assert not pulsar_nack.wrap(consumer, consumer_type=pulsar.ConsumerType.Failover).port.traits.honours_ids


async def test_settings_that_there_are_not() -> None:
    """They are refused by name, with a suggestion, by ``wrap`` and before anything is subscribed."""
    consumer = pulsar.asyncio.Consumer(FakeNative("t"), pulsar.schema.BytesSchema())
    with pytest.raises(InvalidArgumentError, match=r"backof: .*\(backoff\?\)"):
        pulsar_nack.wrap(consumer, backof=1)  # type: ignore[call-arg]
    client = object.__new__(pulsar.asyncio.Client)
    for name, near in (("foo", ""), ("reciever_queue_size", "receiver_queue_size"), ("ack_memry", "ack_memory")):
        wrong: Any = {name: 1}
        with pytest.raises(InvalidArgumentError, match=f"{name}: .*{near}"):
            pulsar_nack.subscribe(client, "t", "s", **wrong)
    with pytest.raises(InvalidArgumentError, match=r"backof: .*\(backoff\?\)"):
        pulsar_nack.subscribe(client, "t", "s", backof=1)  # type: ignore[call-arg]
    pulsar_nack.subscribe(client, "t", "s", receiver_queue_size=1)


def test_every_setting_of_the_client_has_a_type() -> None:
    """Type checkers know all settings that pass through to the client; ``help`` names those of a consumer."""
    known = set(inspect.signature(pulsar.asyncio.Client.subscribe).parameters)
    ours = {"self", "topic", "subscription_name", "consumer_type", "negative_ack_redelivery_delay_ms"}
    typed = set(OfficialSettings.__annotations__) - set(ConsumerOptions.__annotations__)
    assert typed == (known - ours) | set(OFFICIAL_NAMES)
    shown = list(inspect.signature(pulsar_nack.subscribe).parameters)
    assert shown[4:] == [*CONSUMER_SETTINGS, "settings"]


def test_ids_are_built_with_their_topic() -> None:
    """N36: an id from numbers gets the partition's topic; among several topics it has to name its own."""
    handles = OfficialMessageIds("persistent://public/default/t")
    native = handles.build(MessageId(3, 4, 2, 1, batch_size=5))
    assert (native.ledger_id(), native.entry_id(), native.partition(), native.batch_index()) == (3, 4, 2, 1)
    assert handles._partition_topic(MessageId(3, 4, 2)) == "persistent://public/default/t-partition-2"
    assert OfficialMessageIds("t-partition-2")._partition_topic(MessageId(3, 4, 2)) == "t-partition-2"
    with pytest.raises(BrokerError, match="names none"):
        OfficialMessageIds(None).build(MessageId(3, 4))
    assert OfficialMessageIds(None).build(MessageId(3, 4, topic="t")).entry_id() == 4


def test_one_of_a_batch_is_not_acknowledged_by_number() -> None:
    """U26: a member not delivered here cannot be acknowledged: the client would acknowledge the whole batch."""
    handles = OfficialMessageIds("t")
    for message_id in (MessageId(3, 4, -1, 0), MessageId(3, 4, -1, 0, batch_size=5)):
        with pytest.raises(BrokerError, match="whole batch"):
            handles.for_ack(message_id)
    assert handles.for_ack(MessageId(3, 4)).entry_id() == 4
    assert handles.for_ack(MessageId(3, 4, -1, 0, batch_size=1)).entry_id() == 4


def test_handles_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of the client's id objects are kept; acknowledged ones are removed."""
    monkeypatch.setattr("pulsar_nack.consumer._official_ids._MAX_HANDLES", 3)
    handles = OfficialMessageIds("t")
    for entry in range(5):
        handles.remember(MessageId(1, entry), entry)
    handles.remember(MessageId(1, 2), "newer")
    handles.remember(MessageId(1, 5), 5)
    assert [handles.get(MessageId(1, entry)) for entry in (4, 2, 5)] == [4, "newer", 5]
    handles.forget(MessageId(1, 4))
    handles.forget_through(MessageId(1, 2))
    assert len(handles) == 1


@pytest.mark.slow
def test_the_client_is_not_imported_before_it_is_needed() -> None:
    """Importing the package, and using a consumer on another port, does not import pulsar-client."""
    code = "import sys, pulsar_nack, pulsar_nack.testing; sys.exit('pulsar' in sys.modules or '_pulsar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class AskedNative(FakeNative):
    """The parts of the binding's consumer that a port needs for its topic's end; it answers from another thread."""

    result, last = pulsar._pulsar.Result.Ok, pulsar.MessageId(-1, 7, 3, -1)

    def get_last_message_id_async(self, callback: Any) -> None:
        """Answer soon."""
        asyncio.get_running_loop().run_in_executor(None, callback, self.result, self.last)


async def test_the_end_of_the_topic_over_the_official_client() -> None:
    """The client's answer becomes one of our ids with its topic; a refusal, as for partitions, is one error."""
    native = AskedNative("persistent://public/default/t")
    port = OfficialPort(pulsar.asyncio.Consumer(native, pulsar.schema.BytesSchema()), traits_of(honours_ids=True))
    (last,) = await port.last_message_ids()
    assert (last, last.topic) == (MessageId(7, 3), "persistent://public/default/t")
    native.last = pulsar.MessageId(-1, 7, 3, 4)
    assert await port.last_message_ids() == [MessageId(7, 3, batch_index=4)]
    native.last = pulsar.MessageId(-1, -1, -1, -1)
    assert [each.entry for each in await port.last_message_ids()] == [-1]
    native.result = pulsar._pulsar.Result.OperationNotSupported
    with pytest.raises(BrokerError, match="get_last_message_id: OperationNotSupported"):
        await port.last_message_ids()
    with pytest.raises(NotImplementedError, match=r"cannot unsubscribe by force: use pulsar_nack\.connect"):
        await port.unsubscribe(force=True)
