"""Subscription settings: the same keywords and values with each client, in the spelling of either."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_nack
from pulsar_nack import BrokerError, DeadLetterPolicy, InvalidArgumentError, LocalTopic, MessageId
from pulsar_nack.consumer import KeyShared
from pulsar_nack.consumer._dialect import initial_position, key_shared, subscription_type
from pulsar_nack.testing import FakePublisher
from pulsar_nack.topic import SubscriptionType
from pulsar_nack.wire import Client, SubscribeOptions, WirePort
from pulsar_nack.wire._consumer._topic_discovery import PatternSelection
from tests.for_each import for_each

STICKY = pulsar.ConsumerKeySharedPolicy(
    pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 9), (20, 65_535)], allow_out_of_order_delivery=True
)
OURS = KeyShared(((0, 9), (20, 65_535)), allow_out_of_order=True)
DEAD = DeadLetterPolicy(3, publisher=FakePublisher())


class Both:
    """Subscribes with either client without a broker, and keeps what would have been subscribed."""

    def __init__(self) -> None:
        self.native_client = Client("pulsar://localhost:1")
        self.official_client = object.__new__(pulsar.asyncio.Client)
        self.options: list[tuple[Any, SubscribeOptions]] = []
        self.keywords: list[dict[str, Any]] = []
        official = functools.partial(pulsar_nack.subscribe, self.official_client)
        self.calls: tuple[Callable[..., Any], ...] = (self.native_client.subscribe, official)
        """The calls that subscribe with each client."""

    async def native(self, topic: Any = "t", **settings: Any) -> SubscribeOptions:
        """Return the options of a native subscription."""
        with pytest.raises(BrokerError, match="enough"):
            await self.native_client.subscribe(topic, "s", **settings)
        return self.options[-1][1]

    async def official(self, topic: Any = "t", **settings: Any) -> dict[str, Any]:
        """Return the official client's options, without the constant ones."""
        with pytest.raises(BrokerError, match="enough"):
            await pulsar_nack.subscribe(self.official_client, topic, "s", **settings)
        return self.keywords[-1]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    """Return both clients."""
    found = Both()

    @functools.wraps(pulsar.asyncio.Client.subscribe)
    async def subscribe(_client: Any, topic: Any, name: str, **keywords: Any) -> None:
        del keywords["negative_ack_redelivery_delay_ms"]
        found.keywords.append({"topic": topic, "subscription": name, **keywords})
        raise BrokerError("enough")

    async def partitions(_client: Any, topic: str) -> list[str]:
        return [f"persistent://public/default/{topic}"]

    async def opened(_context: Any, selection: Any, options: SubscribeOptions, **_: Any) -> None:
        found.options.append((selection, options))
        raise BrokerError("enough")

    monkeypatch.setattr(pulsar.asyncio.Client, "subscribe", subscribe)
    monkeypatch.setattr(pulsar.asyncio.Client, "get_topic_partitions", partitions)
    monkeypatch.setattr(WirePort, "open", opened)
    return found


TYPES: list[tuple[Any, str]] = [
    *((each, "exclusive") for each in ("exclusive", "Exclusive", "EXCLUSIVE", pulsar.ConsumerType.Exclusive)),
    *((each, "failover") for each in ("failover", "Failover", pulsar.ConsumerType.Failover)),
    *((each, "shared") for each in ("shared", "Shared", pulsar.ConsumerType.Shared, SubscriptionType.SHARED)),
    *((each, "key_shared") for each in ("key_shared", "Key_Shared", "key-shared", "KeyShared", "keyshared")),
    *((each, "key_shared") for each in (pulsar.ConsumerType.KeyShared, SubscriptionType.KEY_SHARED)),
]


async def test_types_in_every_spelling(both: Both, tmp_path: Path) -> None:
    """U49: each type of subscription is the same on both clients and on a local topic, in any spelling."""
    async with await LocalTopic.open(tmp_path) as topic:
        for number, (given, name) in enumerate(TYPES):
            assert subscription_type(given) == name
            assert (await both.native(consumer_type=given)).type == name
            official = (await both.official(consumer_type=given))["consumer_type"]
            assert official is getattr(pulsar.ConsumerType, name.title().replace("_", ""))
            forms: list[dict[str, Any]] = [{"type": given}, {"consumer_type": given}]
            for form in forms:
                async with topic.consumer(f"{number}", **form):
                    assert topic.statistics().subscriptions[f"{number}"].type == name
            assert SubscribeOptions("s", type=given).type == name
        with pytest.raises(InvalidArgumentError, match="consumer_type: expected nothing beside type"):
            topic.consumer("s", "failover", consumer_type="shared")


class Odd(enum.Enum):
    """Neither a type nor a position."""

    SHARDED = 1


@for_each(
    "wrong", ["sharde", "", "key__shared", 1, None, True, Odd.SHARDED, pulsar.InitialPosition.Latest, Path("shared")]
)
async def test_types_that_there_are_not(wrong: Any) -> None:
    """U49: they are refused by name, before connecting."""
    both = Both()
    for call in both.calls:
        with pytest.raises(InvalidArgumentError, match=r"^consumer_type: expected one of exclusive, ") as caught:
            call("t", "s", consumer_type=wrong)
        assert caught.value.value is wrong
    with pytest.raises(InvalidArgumentError, match=r"^type: expected one of exclusive"):
        SubscribeOptions("s", type=wrong)


POSITIONS: list[tuple[Any, str]] = [
    *((each, "latest") for each in ("latest", "Latest", pulsar.InitialPosition.Latest)),
    *((each, "earliest") for each in ("earliest", "Earliest", "EARLIEST", pulsar.InitialPosition.Earliest)),
]


async def test_start_positions_in_every_spelling(both: Both, tmp_path: Path) -> None:
    """U49: a subscription begins at the same place on both clients and on a local topic, in any spelling."""
    async with await LocalTopic.open(tmp_path) as topic:
        await topic.publish(b"x")
        for number, (given, name) in enumerate(POSITIONS):
            assert initial_position(given) == name
            assert (await both.native(initial_position=given)).initial_position == name
            official = (await both.official(initial_position=given))["initial_position"]
            assert official is getattr(pulsar.InitialPosition, name.title())
            async with topic.consumer(f"{number}", initial_position=given):
                assert topic.backlog(f"{number}") == (name == "earliest")
            await topic.create_subscription(f"{number} alone", initial_position=given)
            assert topic.backlog(f"{number} alone") == (name == "earliest")
        for wrong in ("middle", 0, None, pulsar.ConsumerType.Shared):
            of_topic = functools.partial(topic.consumer, "s")
            for call in (*(functools.partial(each, "t", "s") for each in both.calls), of_topic):
                with pytest.raises(InvalidArgumentError, match=r"^initial_position: expected 'latest' or 'earliest'"):
                    call(initial_position=wrong)


SAME: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: size}, {name: size}, {name: size})
        for name, size in (("receiver_queue_size", 0), ("receiver_queue_size", 7))
    ),
    *(({"consumer_name": name}, {"consumer_name": name}, {"consumer_name": name}) for name in ("me", None)),
    ({"properties": {"a": "b"}}, {"properties": {"a": "b"}}, {"properties": {"a": "b"}}),
    ({"properties": None}, {"properties": {}}, {"properties": None}),
    *(
        ({name: given, **kind}, {ours: given}, {official: given})
        for ours, official, kind in (
            ("batch_index_ack", "batch_index_ack_enabled", {}),
            ("read_compacted", "is_read_compacted", {"consumer_type": "Failover"}),
            ("replicate_subscription_state", "replicate_subscription_state_enabled", {}),
        )
        for name in (ours, official)
        for given in (True, False)
    ),
    *(
        ({name: 5}, {"max_pending_chunked": 5}, {"max_pending_chunked_message": 5})
        for name in ("max_pending_chunked", "max_pending_chunked_message")
    ),
]


async def test_settings_by_the_names_of_either_client(both: Both) -> None:
    """U49: each setting that both clients have is accepted by both names, and means the same on each."""
    for given, native, official in SAME:
        options = await both.native(**given)
        assert {name: getattr(options, name) for name in native} == native, given
        keywords = await both.official(**given)
        assert {name: keywords.get(name, "left out") for name in official} == official, given
    taken = await both.official(config=pulsar_nack.NackConfig(), schema=None, crypto_key_reader=None)
    assert taken.keys() == {"topic", "subscription", "consumer_type", "schema", "crypto_key_reader"}


async def test_shared_keys_in_the_words_of_either_client(both: Both) -> None:
    """U49: key sharing, as our class or the official one's, under both names, on both clients."""
    for name in ("key_shared", "key_shared_policy"):
        for given in (OURS, STICKY):
            settings: dict[str, Any] = {"consumer_type": "KeyShared", name: given}
            assert (await both.native(**settings)).key_shared == OURS
            policy = (await both.official(**settings))["key_shared_policy"]
            assert policy.key_shared_mode == pulsar.KeySharedMode.Sticky
            assert (policy.sticky_ranges, policy.allow_out_of_order_delivery) == ([(0, 9), (20, 65_535)], True)
            assert key_shared(policy) == OURS
    plain = (await both.official(consumer_type="key_shared", key_shared=KeyShared()))["key_shared_policy"]
    assert plain.key_shared_mode == pulsar.KeySharedMode.AutoSplit
    assert key_shared(plain) == KeyShared()
    assert pulsar_nack.wire.KeyShared is KeyShared


async def test_patterns_in_both_forms(both: Both) -> None:
    """U49: a compiled pattern, and one as text with ``is_pattern_topic``, mean the same on both clients."""
    right: list[tuple[Any, dict[str, Any]]] = [
        (re.compile("orders-.*"), {}),
        (re.compile("orders-.*"), {"is_pattern_topic": True}),
        ("orders-.*", {"is_pattern_topic": True}),
    ]
    for topic, settings in right:
        keywords = await both.official(topic, **settings)
        assert (keywords["topic"], keywords["is_pattern_topic"]) == ("persistent://public/default/orders-.*", True)
        await both.native(topic, **settings)
        selection = both.options[-1][0]
        assert isinstance(selection, PatternSelection)
        assert selection.matches("persistent://public/default/orders-7")
    assert (await both.official("orders-.*", is_pattern_topic=False))["topic"] == "orders-.*"
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (re.compile("x"), {"is_pattern_topic": False}, "topic"),
        ("(", {"is_pattern_topic": True}, "topic"),
        (["x"], {"is_pattern_topic": True}, "topic"),
        (re.compile(b"x"), {}, "topic"),
        ("x", {"is_pattern_topic": 1}, "is_pattern_topic"),
    ]
    for topic, settings, field in wrong:
        for call in both.calls:
            with pytest.raises(InvalidArgumentError, match=f"^{field}: "):
                call(topic, "s", **settings)


class Reader:
    """Stands for a reader of keys."""


NOT_NATIVE: list[tuple[str, Any, str]] = [
    ("schema", pulsar.schema.StringSchema(), r"client\.schema"),
    ("max_total_receiver_queue_size_across_partitions", 5, "max_prefetched_bytes"),
    ("unacked_messages_timeout_ms", 10_000, "lease"),
    ("broker_consumer_stats_cache_time_ms", 5, "statistics"),
    ("crypto_key_reader", Reader(), r"pulsar_nack\.subscribe"),
    ("crypto_failure_action", pulsar.ConsumerCryptoFailureAction.FAIL, r"pulsar_nack\.subscribe"),
    ("auto_ack_oldest_chunked_message_on_queue_full", True, "False"),
    ("start_message_id_inclusive", False, "seek"),
    ("batch_receive_policy", Reader(), r"consumer\.batch_receive"),
    ("dead_letter_policy", pulsar.ConsumerDeadLetterPolicy(3), r"dead_letter=DeadLetterPolicy"),
    ("regex_subscription_mode", pulsar.RegexSubscriptionMode.AllTopics, "PersistentOnly"),
]
CHANGES_NOTHING_NATIVE: dict[str, Any] = {
    "schema": None,
    "unacked_messages_timeout_ms": None,
    "crypto_key_reader": None,
    "auto_ack_oldest_chunked_message_on_queue_full": False,
    "start_message_id_inclusive": True,
    "batch_receive_policy": None,
    "dead_letter_policy": None,
    "regex_subscription_mode": pulsar.RegexSubscriptionMode.PersistentOnly,
}
NOT_OFFICIAL: list[tuple[str, Any, str]] = [
    ("priority_level", 1, "levels"),
    ("subscription_properties", {"a": "b"}, "connect"),
    ("ack_group_ms", 5, "connect"),
    ("max_chunked_bytes", 5, "connect"),
    ("chunk_timeout", 5, "connect"),
    ("durable_subscription", False, "connect"),
    ("create_topic", False, "connect"),
    ("start_message_id", MessageId(1, 2), "connect"),
    ("discovery_interval", 5, "connect"),
]
CHANGES_NOTHING_OFFICIAL: dict[str, Any] = {
    "priority_level": 0,
    "subscription_properties": {},
    "durable_subscription": True,
    "create_topic": True,
    "start_message_id": None,
}
ON_NEITHER: list[tuple[str, Any, str]] = [
    ("negative_ack_redelivery_delay_ms", 5, "backoff"),
    ("subscription_name", "s", "argument 'subscription'"),
    ("consumer_nmae", "me", r"\(consumer_name\?\)"),
    ("batch_index_ak", True, r"\(batch_index_ack\?\)"),
    ("is_read_compcted", True, r"\(is_read_compacted\?\)|\(read_compacted\?\)"),
    ("dead_leter", DEAD, r"\(dead_letter\?\)"),
    ("foo", 1, "the name of a setting, got"),
]
WRONG_VALUES: list[tuple[str, Any, Mapping[str, Any]]] = [
    ("consumer_name", "", {}),
    ("consumer_name", 5, {}),
    ("properties", {"a": 1}, {}),
    ("receiver_queue_size", -1, {}),
    ("receiver_queue_size", 1_000_001, {}),
    ("batch_index_ack", 1, {}),
    ("read_compacted", "no", {}),
    ("read_compacted", True, {"consumer_type": "Shared"}),
    ("replicate_subscription_state", None, {}),
    ("key_shared", "sticky", {"consumer_type": "key_shared"}),
    ("key_shared", KeyShared, {"consumer_type": "key_shared"}),
    ("key_shared", OURS, {"consumer_type": "shared"}),
    ("backoff", "soon", {}),
    ("lease", 0, {}),
    ("unacked_messages_timeout_ms", 10_000, {"lease": 30}),
]


async def test_what_a_client_does_not_have(both: Both) -> None:
    """U49: it is refused by name, with what to use instead; values that change nothing are accepted."""
    for name, value, use in [*NOT_NATIVE, *ON_NEITHER]:
        with pytest.raises(InvalidArgumentError, match=f"^{name}: expected .*{use}") as caught:
            both.calls[0]("t", "s", **{name: value})
        assert (caught.value.field, caught.value.value) == (name, value)
    for name, value, use in [*NOT_OFFICIAL, *ON_NEITHER]:
        with pytest.raises(InvalidArgumentError, match=f"^{name}: expected .*{use}") as caught:
            both.calls[1]("t", "s", **{name: value})
        assert (caught.value.field, caught.value.value) == (name, value)
    assert await both.native(**CHANGES_NOTHING_NATIVE) == SubscribeOptions("s")
    taken = await both.official(**CHANGES_NOTHING_OFFICIAL)
    assert taken.keys() == {"topic", "subscription", "consumer_type"}
    assert not both.official_client.__dict__, "nothing was connected"


async def test_wrong_values(both: Both) -> None:
    """U49: an invalid value is refused with its name by both clients, before connecting."""
    for name, value, beside in WRONG_VALUES:
        for call in both.calls:
            with pytest.raises((InvalidArgumentError), match=f"^{name}: ") as caught:
                call("t", "s", **{name: value, **beside})
            assert caught.value.value == value


async def test_two_names_for_one_setting(both: Both, tmp_path: Path) -> None:
    """U49: a setting that is given under both names is refused, and so are two dead-letter policies."""
    twice: dict[str, Any] = {"batch_index_ack": True, "batch_index_ack_enabled": True}
    for settings in (twice, dict(reversed(twice.items()))):
        for call in both.calls:
            with pytest.raises(
                InvalidArgumentError, match=r"^batch_index_ack\w*: expected nothing beside batch_index_ack"
            ):
                call("t", "s", **settings)
    policies: dict[str, Any] = {"dead_letter": DEAD, "dead_letter_policy": pulsar.ConsumerDeadLetterPolicy(3)}
    for call in both.calls:
        with pytest.raises(InvalidArgumentError, match=r"^dead_letter_policy: expected "):
            call("t", "s", **policies)
    alone = await both.official(dead_letter_policy=policies["dead_letter_policy"])
    assert alone["dead_letter_policy"] is policies["dead_letter_policy"]
    async with await LocalTopic.open(tmp_path) as topic:
        with pytest.raises(InvalidArgumentError, match="expected nothing beside"):
            topic.consumer("s", **twice)


async def test_settings_of_a_local_topic(tmp_path: Path) -> None:
    """U49: a local topic's consumer accepts the settings that apply there; others are refused by name."""
    async with await LocalTopic.open(tmp_path) as topic:
        for name in ("batch_index_ack", "batch_index_ack_enabled"):
            for given in (True, False):
                settings: dict[str, Any] = {"consumer_name": None, name: given}
                async with topic.consumer("s", **settings) as consumer:
                    assert consumer.port.traits.batch_index_ack is given
        for name, value in (("properties", {}), ("key_shared", None), ("schema", None), ("read_compacted", False)):
            settings = {name: value}
            with pytest.raises(InvalidArgumentError, match=f"^{name}: expected nothing: a local topic has no such"):
                topic.consumer("s", **settings)
        with pytest.raises(InvalidArgumentError, match=r"^backof: .*\(backoff\?\)"):
            topic.consumer("s", backof=1)
        with pytest.raises(InvalidArgumentError, match=r"^batch_index_ack: expected True or False"):
            topic.consumer("s", batch_index_ack=1)


async def test_wrapping_knows_every_spelling() -> None:
    """U49: ``wrap`` accepts the types in the same spellings."""
    for given, name in TYPES:
        assert subscription_type(given) == name
    with pytest.raises(InvalidArgumentError, match=r"^consumer_type: "):
        pulsar_nack.wrap(object(), consumer_type="sharde")
