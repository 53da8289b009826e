"""Which message is dead-lettered, and what is published: the pure part."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pulsar_nack import Consumer, DeadLetterPolicy, Delivery, InvalidArgumentError, MessageId
from pulsar_nack.consumer._letter_rules import LetterRules, as_reason, base_name, key_of
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.ids import _java_text
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.for_each import for_each

TOPIC = "persistent://shop/eu/orders-partition-3"
ID = MessageId(7, 8, 3, topic=TOPIC)


def delivery(**fields: Any) -> Delivery:
    """Return a delivery of a partition."""
    return Delivery(**{"id": ID, "data": b"data", "topic": TOPIC, **fields})


@for_each("most", [0, -1, 1.5, True, "3", None])
def test_the_count_has_to_be_at_least_one(most: Any) -> None:
    """U6: 0 redeliveries are refused, and every other invalid count."""
    with pytest.raises(InvalidArgumentError, match="max_redeliveries"):
        DeadLetterPolicy(most)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", ""),
        ("topic", 5),
        ("topic", "non-persistent://public/default/dead"),
        ("initial_subscription", ""),
        ("publisher", object()),
    ],
)
def test_bad_settings_are_refused(field: str, value: Any) -> None:
    """N24: each other invalid setting is refused by name."""
    with pytest.raises(InvalidArgumentError, match=field):
        DeadLetterPolicy(3, **{field: value})


def test_a_users_publisher_makes_its_own_topics() -> None:
    """Only the client can create an initial subscription, and not a user's publisher."""
    with pytest.raises(InvalidArgumentError, match="initial_subscription"):
        DeadLetterPolicy(3, initial_subscription="first", publisher=FakePublisher())


class NamelessPort(FakePort):
    """A port without a subscription name."""

    names = ("", "", "")


@virtual_time
async def test_a_port_that_cannot_publish_needs_a_publisher() -> None:
    """A consumer over a port that cannot publish says what is missing, before anything happens."""
    port = FakePort()
    with pytest.raises(InvalidArgumentError, match="publisher"):
        Consumer(port, dead_letter=DeadLetterPolicy(3, "dead"))
    Consumer(port, dead_letter=DeadLetterPolicy(3, publisher=FakePublisher()))
    with pytest.raises(InvalidArgumentError, match="a topic"):
        Consumer(NamelessPort(), dead_letter=DeadLetterPolicy(3, publisher=FakePublisher()))
    with pytest.raises(InvalidArgumentError, match="dead_letter"):
        Consumer(port, dead_letter=3)  # type: ignore[arg-type]
    await port.close()


@pytest.mark.parametrize(("count", "is_last", "is_beyond"), [(0, False, False), (1, False, False), (2, True, False)])
def test_which_attempt_is_the_last(count: int, is_last: bool, is_beyond: bool) -> None:
    """U6: with 2 redeliveries the attempts 1, 2 and 3 are delivered, and the third is the last."""
    rules = LetterRules("billing", DeadLetterPolicy(2))
    assert rules.is_last(count) is is_last
    assert (rules.dead_letter_reason(delivery(), count) is not None) is is_beyond


def test_what_comes_beyond_the_last_attempt_is_not_delivered() -> None:
    """One delivery too many is dead-lettered undelivered, with the number of deliveries."""
    assert LetterRules("billing", DeadLetterPolicy(2)).dead_letter_reason(delivery(), 3) == "3 attempts failed"


def test_messages_that_others_may_read_are_delivered() -> None:
    """O12: an error of this process alone is no reason."""
    unreadable = delivery(error=UndecodableMessageError("payload: encrypted with the key k", is_local=True))
    assert LetterRules("billing", DeadLetterPolicy(2)).dead_letter_reason(unreadable, 0) is None
    assert LetterRules("billing", DeadLetterPolicy(2)).dead_letter_reason(unreadable, 3) == "3 attempts failed"


def test_unreadable_messages_are_not_delivered() -> None:
    """An error of the payload is the reason, whatever the count."""
    unreadable = delivery(error=UndecodableMessageError("payload: damaged"))
    assert (
        LetterRules("billing", DeadLetterPolicy(2)).dead_letter_reason(unreadable, 0)
        == "UndecodableMessageError: payload: damaged"
    )


@pytest.mark.parametrize(
    ("topic", "origin"),
    [
        (TOPIC, "persistent://shop/eu/orders"),
        ("persistent://shop/eu/orders", "persistent://shop/eu/orders"),
        ("persistent://shop/eu/a-partition-b", "persistent://shop/eu/a-partition-b"),
    ],
)
def test_the_topic_is_named_after_topic_and_subscription(topic: str, origin: str) -> None:
    """U15: one dead-letter topic for all partitions, with the Java client's name for it."""
    to, _, _ = LetterRules("billing", DeadLetterPolicy(2)).dead_letter(delivery(topic=topic), 3, "why")
    assert to == f"{origin}-billing-DLQ"
    assert base_name(topic) == origin


def test_the_properties_are_those_of_the_java_client_and_ours() -> None:
    """U15: the message's own stay, with topic, subscription and id as the Java client writes them, attempts, reason."""
    rules = LetterRules("billing", DeadLetterPolicy(2, "dead"))
    to, properties, _ = rules.dead_letter(delivery(properties={"colour": "red"}), 3, "no such customer")
    assert properties == {
        "colour": "red",
        "REAL_TOPIC": "persistent://shop/eu/orders",
        "REAL_SUBSCRIPTION": "billing",
        "ORIGIN_MESSAGE_ID": "7:8:3",
        "ORIGIN_MESSAGE_IDY_TIME": "7:8:3",
        "PULSAR_NACK_ATTEMPTS": "3",
        "PULSAR_NACK_REASON": "no such customer",
    }
    assert to == "dead"


def test_where_a_message_was_first_stays() -> None:
    """A dead letter of a dead letter has the first topic and id, as with the Java client, and the new reason."""
    first = {"REAL_TOPIC": "first", "ORIGIN_MESSAGE_ID": "1:2:3", "PULSAR_NACK_REASON": "old"}
    rules = LetterRules("billing", DeadLetterPolicy(2, "dead"))
    _, found, _ = rules.dead_letter(delivery(properties=first), 3, "new")
    assert (found["REAL_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("first", "1:2:3")
    assert found["PULSAR_NACK_REASON"] == "new"


@pytest.mark.parametrize(
    ("message_id", "text"),
    [(MessageId(7, 8), "7:8:-1"), (ID, "7:8:3"), (MessageId(7, 8, -1, 2, batch_size=5), "7:8:-1:2")],
)
def test_ids_are_written_as_java_does(message_id: MessageId, text: str) -> None:
    """U15: ledger, entry, partition, and the batch index if there is one."""
    assert _java_text(message_id) == text


@pytest.mark.parametrize("key", [b"", b"\x00\xff", "ключ".encode(), bytes(range(256))])
def test_keys_of_bytes_stay_keys_of_bytes(key: bytes) -> None:
    """A key that is base64 of bytes is published as these bytes; one that only resembles it, as text."""
    text = base64.b64encode(key).decode()
    assert key_of(delivery(key=text, is_key_encoded=True)) == key
    assert key_of(delivery(key=text)) == text


@pytest.mark.parametrize("key", ["no base64!", "YQ", "YR=="])
def test_keys_that_are_not_what_they_say_stay_texts(key: str) -> None:
    """A key marked as base64 that is not, or not canonical, is kept as it is."""
    assert key_of(delivery(key=key, is_key_encoded=True)) == key


def test_reasons_are_short_and_can_be_sent() -> None:
    """A reason is cut, and characters that UTF-8 cannot encode are replaced; it has to be text."""
    assert as_reason("x" * 5_000) == "x" * 1_000
    assert as_reason("a\udcffb") == "a?b"
    with pytest.raises(InvalidArgumentError, match="reason"):
        as_reason(ValueError("no"))
