"""What is published to a retry topic, what comes from it, and which nacks wait there: the pure part."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pulsar_nack import Consumer, DeadLetterPolicy, Delivery, InvalidArgumentError, MessageId
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.consumer._letter_rules import LetterRules, Wait
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.for_each import for_each

TOPIC = "persistent://shop/eu/orders"
POLICY = RetryTopicPolicy().named((TOPIC,), "billing")
RETRY = f"{TOPIC}-billing-RETRY"


def delivery(topic: str = f"{TOPIC}-partition-3", **fields: Any) -> Delivery:
    """Return a delivery."""
    return Delivery(**{"id": MessageId(7, 8, 3, topic=topic), "data": b"data", "topic": topic, **fields})


def retry_topic(**policy: Any) -> LetterRules:
    """Return the rules of a policy."""
    return LetterRules("billing", retry=RetryTopicPolicy(**policy).named((TOPIC,), "billing"))


class CannotDelay:
    """A publisher of dead letters, as users had it before."""

    async def publish(self, topic: str, data: bytes | None, *, properties: Any) -> MessageId:
        """Publish a message."""
        raise NotImplementedError((topic, data, properties))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", ""),
        ("topic", 5),
        ("topic", "non-persistent://public/default/again"),
        ("spill_after", -1),
        ("spill_after", "10m"),
        ("lead_time", -1),
        ("publisher", object()),
        ("publisher", CannotDelay()),
    ],
)
def test_bad_settings_are_refused(field: str, value: Any) -> None:
    """N24: each is refused by name; a publisher that cannot delay is good for dead letters only."""
    with pytest.raises(InvalidArgumentError, match=field):
        RetryTopicPolicy(**{field: value})
    if field == "publisher" and isinstance(value, CannotDelay):
        DeadLetterPolicy(1, publisher=value)  # type: ignore[arg-type]


@virtual_time
async def test_a_port_without_names_needs_a_topic() -> None:
    """N24: a consumer over a port without names, or that cannot publish, says what is missing."""
    port = FakePort()
    with pytest.raises(InvalidArgumentError, match="retry_topic: expected a topic"):
        Consumer(
            type("NamelessPort", (FakePort,), {"names": ("", "", "")})(),
            retry_topic=RetryTopicPolicy(publisher=FakePublisher()),
        )
    with pytest.raises(InvalidArgumentError, match="publisher"):
        Consumer(port, retry_topic=RetryTopicPolicy("again"))
    await port.close()


@for_each(("topic", "is_retry"), [(RETRY, True), (f"{RETRY}-partition-1", True), (TOPIC, False), (f"{RETRY}2", False)])
def test_what_comes_from_the_retry_topic(topic: str, is_retry: bool) -> None:
    """U15: the retry topic may have partitions; no other topic is it."""
    assert retry_topic().is_retry_topic(topic) == is_retry


def test_the_properties_are_those_of_the_java_client() -> None:
    """U15: Java's properties, the name without the partition, and the exact time; the user's are added."""
    wait = Wait(3_000, 1_000_003_000, {"colour": "blue", "RECONSUMETIMES": "99"})
    topic, properties, deliver_at_ms = retry_topic().retry(delivery(properties={"colour": "red", "size": "1"}), 2, wait)
    assert (topic, deliver_at_ms) == (RETRY, 1_000_002_000)
    assert properties == {
        "colour": "blue",
        "size": "1",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "billing",
        "ORIGIN_MESSAGE_ID": "7:8:3",
        "ORIGIN_MESSAGE_IDY_TIME": "7:8:3",
        "RECONSUMETIMES": "2",
        "DELAY_TIME": "3000",
        "PULSAR_NACK_DELIVER_AT": "1000003000",
    }
    assert retry_topic().retry(delivery(), 1, Wait(0, 5, {}))[2] is None
    assert retry_topic(lead_time=0).retry(delivery(), 1, wait)[2] == 1_000_003_000


@for_each(
    ("properties", "count", "wait_ms"),
    [
        ({}, 0, 0),
        ({"RECONSUMETIMES": "2"}, 2, 0),
        ({"RECONSUMETIMES": "2", "DELAY_TIME": "3000"}, 2, 0),  # from Java: as the broker delivers it
        ({"RECONSUMETIMES": "1", "DELAY_TIME": "3000", "PULSAR_NACK_DELIVER_AT": "10400"}, 1, 400),
        ({"RECONSUMETIMES": "1", "DELAY_TIME": "3000", "PULSAR_NACK_DELIVER_AT": "9000"}, 1, 0),
        ({"RECONSUMETIMES": "1", "DELAY_TIME": "300", "PULSAR_NACK_DELIVER_AT": "999999999"}, 1, 300),
        ({"RECONSUMETIMES": "-1", "DELAY_TIME": "x", "PULSAR_NACK_DELIVER_AT": "1e9"}, 0, 0),
        ({"RECONSUMETIMES": "²", "PULSAR_NACK_DELIVER_AT": "9" * 5_000}, 0, 0),
        ({"RECONSUMETIMES": "9" * 18}, 1_000_000, 0),
        ({"DELAY_TIME": "9" * 18, "PULSAR_NACK_DELIVER_AT": "9" * 18}, 0, 0),
        ({"DELAY_TIME": "9" * 18}, 0, 0),
        ({"PULSAR_NACK_DELIVER_AT": "9" * 18}, 0, 0),
        ({"DELAY_TIME": "9" * 18, "PULSAR_NACK_DELIVER_AT": "10400"}, 0, 400),
    ],
)
def test_attempts_and_times_of_what_comes(properties: dict[str, str], count: int, wait_ms: int) -> None:
    """U15: earlier attempts are added, and a message waits until its time, for at most its own delay."""
    found, waits = retry_topic().arrive(delivery(RETRY, properties=properties, redelivery_count=3), 10_000)
    assert (found.redelivery_count, waits) == (3 + count, wait_ms)


def test_long_delays_go_first() -> None:
    """U33: below 80 % only delays beyond the setting; from there on ever shorter ones; at the limit all."""
    rules = retry_topic(spill_after=timedelta(minutes=10))
    assert [rules.spills(ms, 0, 80, 100) for ms in (600_000, 600_001)] == [False, True]
    assert [rules.spills(ms, 90, 80, 100) for ms in (300_000, 300_001)] == [False, True]
    assert [rules.spills(ms, 99, 80, 100) for ms in (30_000, 30_001)] == [False, True]
    assert rules.spills(1, 100, 80, 100)
    assert not rules.spills(600_000, 10**9, float("inf"), None)
    assert not retry_topic().spills(10**9, 100, 80, 100)


def test_dead_letters_of_what_was_consumed_later() -> None:
    """U15: from the retry topic they go to the topic named after the first one, without their delivery time."""
    rules = LetterRules("billing", DeadLetterPolicy(2), POLICY)
    properties = {"REAL_TOPIC": TOPIC, "RECONSUMETIMES": "2", "DELAY_TIME": "5", "PULSAR_NACK_DELIVER_AT": "9"}
    topic, found, _ = rules.dead_letter(delivery(RETRY, properties=properties), 3, "bad")
    assert topic == f"{TOPIC}-billing-DLQ"
    assert (found["REAL_TOPIC"], found["RECONSUMETIMES"]) == (TOPIC, "2")
    assert "PULSAR_NACK_DELIVER_AT" not in found
    _, found, deliver_at_ms = rules.dead_letter(delivery(RETRY, properties=properties), 3, "bad", Wait(7, 8, {}))
    assert (found["RECONSUMETIMES"], found["DELAY_TIME"], deliver_at_ms) == ("3", "7", None)


@pytest.mark.parametrize(
    ("has_retry", "java_names", "topic", "real"),
    [
        (False, False, f"{TOPIC}-billing-DLQ", TOPIC),
        (False, True, f"{TOPIC}-partition-3-billing-DLQ", f"{TOPIC}-partition-3"),
        (True, False, f"{TOPIC}-billing-DLQ", TOPIC),
        (True, True, f"{TOPIC}-billing-DLQ", f"{TOPIC}-partition-3"),
    ],
)
def test_names_on_partitions(has_retry: bool, java_names: bool, topic: str, real: str) -> None:
    """U46: one dead-letter topic for all partitions, or Java's names: one each, and one with a retry topic."""
    rules = LetterRules("billing", DeadLetterPolicy(1, java_names=java_names), POLICY if has_retry else None)
    to, properties, _ = rules.dead_letter(delivery(), 2, "bad")
    assert (to, properties["REAL_TOPIC"]) == (topic, real)
