"""The retry topic with the native client, on a scripted broker: names, properties, attempts and long delays."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    AlreadySettledError,
    ClosedError,
    DeadLetterPolicy,
    Exponential,
    InvalidArgumentError,
    NackConfig,
)
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker, refuse, silence
from tests.wire.letters import DEAD, RETRY, TOPIC, consuming, properties, stored, unacked
from tests.wire.using import broker_with, now, numbers


@virtual_time
async def test_twice_then_the_dead_letter_topic() -> None:
    """U15: 3 s, twice, then the last attempt: names, properties and times as the Java client has them."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"order", properties={"colour": "red"}, partition_key="k", event_time=5)
    async with consuming(broker, dead_letter=DeadLetterPolicy(2)) as consumer:
        began_at = now()
        for attempt in (1, 2, 3):
            message = await consumer.receive(timeout=10)
            assert (message.attempt, message.data) == (attempt, b"order")
            assert message.topic == (TOPIC if attempt == 1 else RETRY)
            assert round(now() - began_at, 2) == 3 * (attempt - 1)
            await message.reconsume_later(3, properties={"step": str(attempt)})
            assert unacked(broker, TOPIC) == 0
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.dead_lettered, statistics.unacked) == (2, 1, 0)
        assert (statistics.retries_waiting, statistics.retry_failures) == (0, 0)
    assert unacked(broker, RETRY) == 0
    origin = {
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "billing",
        "ORIGIN_MESSAGE_ID": "7:0:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "7:0:-1",
        "DELAY_TIME": "3000",
        "colour": "red",
    }
    for number, (metadata, payload) in enumerate(stored(broker), 1):
        found = properties(metadata)
        until_ms = int(found.pop("PULSAR_NACK_DELIVER_AT"))
        assert until_ms == metadata.deliver_at_time + 1_000
        assert found == {**origin, "RECONSUMETIMES": str(number), "step": str(number)}
        assert (payload, metadata.partition_key, metadata.event_time) == (b"order", "k", 5)
    ((metadata, payload),) = stored(broker, DEAD)
    found = properties(metadata)
    assert (found.pop("PULSAR_NACK_ATTEMPTS"), found.pop("PULSAR_NACK_REASON")) == ("3", "3 attempts failed")
    assert found == {**origin, "RECONSUMETIMES": "3", "step": "3"}
    assert not metadata.deliver_at_time


@pytest.mark.parametrize("consumer_type", ["exclusive", "failover"])
@virtual_time
async def test_where_nothing_can_be_delayed(consumer_type: Any) -> None:
    """U14: on Exclusive and Failover the setting is refused by name, before connecting."""
    broker = FakeBroker()
    async with Client(broker.url, dial=broker.dial) as client:
        with pytest.raises(InvalidArgumentError, match="retry_topic: expected None on Exclusive and Failover"):
            client.subscribe("orders", "billing", consumer_type=consumer_type, retry_topic=RetryTopicPolicy())
        assert not broker.dialled


@pytest.mark.parametrize(
    ("topic", "settings", "match"),
    [
        (["orders", "bills"], {"retry_topic": RetryTopicPolicy()}, "retry_topic: expected a policy that names"),
        ("orders.*", {"retry_topic": RetryTopicPolicy("again"), "is_pattern_topic": True}, "retry_topic: .* pattern"),
        ("orders", {"retry_topic": RetryTopicPolicy("orders")}, "retry_topic: expected another topic"),
        ("orders", {"retry_topic": RetryTopicPolicy(), "receiver_queue_size": 0}, "receiver_queue_size"),
        ("orders", {"retry_topic": RetryTopicPolicy(), "durable_subscription": False}, "retry_topic"),
        ("orders", {"retry_topic": 5}, "retry_topic: expected a RetryTopicPolicy or None"),
        ("orders", {"retry_topic": RetryTopicPolicy("a/b")}, "topic"),
    ],
)
@virtual_time
async def test_settings_that_do_not_go_together(topic: Any, settings: dict[str, Any], match: str) -> None:
    """N24: each is refused by its name, before connecting."""
    broker = FakeBroker()
    async with Client(broker.url, dial=broker.dial) as client:
        with pytest.raises(InvalidArgumentError, match=match):
            client.subscribe(topic, "billing", **settings)
        assert not broker.dialled


@virtual_time
async def test_several_topics_share_a_named_one() -> None:
    """U15: messages of two topics wait in one retry topic; each dead letter goes to the topic of its message."""
    broker = FakeBroker()
    for number, name in enumerate(("bills", "orders"), 20):
        broker.topic(f"persistent://public/default/{name}").ledger = number
        broker.topic(f"persistent://public/default/{name}").publish(name.encode())
    retry_topic = RetryTopicPolicy("again")
    settings: dict[str, Any] = {"retry_topic": retry_topic, "dead_letter": DeadLetterPolicy(1)}
    async with consuming(broker, ["bills", "orders"], **settings) as consumer:
        for attempt in (1, 2):
            for _ in range(2):
                message = await consumer.receive(timeout=5)
                assert message.attempt == attempt
                await message.reconsume_later(1)
    for name in ("bills", "orders"):
        ((_, payload),) = stored(broker, f"persistent://public/default/{name}-billing-DLQ")
        assert payload == name.encode()
    assert len(stored(broker, "persistent://public/default/again")) == 2


@virtual_time
async def test_a_topic_of_a_property_is_not_trusted() -> None:
    """U15: a publisher cannot choose where its message's dead letter goes by writing ``REAL_TOPIC``."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"order", properties={"REAL_TOPIC": "persistent://secret/place/x"})
    async with consuming(broker, dead_letter=DeadLetterPolicy(1)) as consumer:
        for _ in range(2):
            await (await consumer.receive(timeout=5)).reconsume_later(1)
    assert [payload for _, payload in stored(broker, DEAD)] == [b"order"]


@virtual_time
async def test_partitions_share_one_retry_topic() -> None:
    """U15, U46: one retry topic and one dead-letter topic for all partitions, named as in Java."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for partition in range(2):
        broker.topic(f"{TOPIC}-partition-{partition}").publish(b"%d" % partition)
    async with consuming(broker, dead_letter=DeadLetterPolicy(1, java_names=True)) as consumer:
        first, second = [await consumer.receive(timeout=1) for _ in range(2)]
        await first.reconsume_later(1)
        await second.reconsume_later(1)
        again = [await consumer.receive(timeout=5) for _ in range(2)]
        await again[0].reconsume_later(1)
        await again[1].dead_letter("bad")
    assert len(stored(broker)) == 2
    found = [properties(metadata) for metadata, _ in stored(broker, DEAD)]
    assert {each["REAL_TOPIC"] for each in found} == {TOPIC}
    assert {each["ORIGIN_MESSAGE_ID"] for each in found} == {"7:0:0", "7:0:1"}


@virtual_time
async def test_dead_letters_of_partitions_by_the_java_setting() -> None:
    """U46: without a retry topic each partition has a dead-letter topic, and ``REAL_TOPIC`` names the partition."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for partition in range(2):
        broker.topic(f"{TOPIC}-partition-{partition}").publish(b"%d" % partition)
    async with consuming(broker, retry_topic=None, dead_letter=DeadLetterPolicy(1, java_names=True)) as consumer:
        for _ in range(2):
            await (await consumer.receive(timeout=1)).dead_letter("bad")
    for partition in range(2):
        name = f"{TOPIC}-partition-{partition}"
        ((metadata, payload),) = stored(broker, f"{name}-billing-DLQ")
        assert payload == b"%d" % partition
        assert properties(metadata)["REAL_TOPIC"] == name


# --- trouble ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_killed_between_publishing_and_acknowledging() -> None:
    """U15: killed between both steps there are two messages, of one origin, and never none."""
    broker = broker_with(b"order", topic=TOPIC)
    async with consuming(broker) as consumer:
        message = await consumer.receive(timeout=1)
        broker.always("ACK", silence)
        call = asyncio.create_task(message.reconsume_later(1))
        await asyncio.sleep(0.5)
        assert len(stored(broker)) == 1
        await consumer.aclose()
        with pytest.raises(ClosedError):
            await call
    broker.normally("ACK")
    async with consuming(broker) as consumer:
        await (await consumer.receive(timeout=1)).reconsume_later(1)
        for _ in range(2):
            await (await consumer.receive(timeout=10)).ack()
    origins = {properties(metadata)["ORIGIN_MESSAGE_ID"] for metadata, _ in stored(broker)}
    assert (origins, len(stored(broker))) == ({"7:0:-1"}, 2)


# --- long delays -----------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_long_nack_waits_there() -> None:
    """U45: a nack for an hour, ``spill_after`` ten minutes: nothing is unacknowledged; attempt 2 comes in an hour."""
    broker = broker_with(b"order", topic=TOPIC)
    async with consuming(broker, retry_topic=RetryTopicPolicy(spill_after=timedelta(minutes=10))) as consumer:
        began_at = now()
        delayed = broker.topic(RETRY).subscriptions["billing"]
        delayed.is_paused = True
        await (await consumer.receive(timeout=1)).nack(3600, reason="busy")
        await asyncio.sleep(3_598)  # like a broker, which delivers it a little early
        assert unacked(broker, TOPIC) == 0
        assert len(stored(broker)) == 1
        assert consumer.statistics().nacked == consumer.statistics().retried == 1
        delayed.is_paused = False
        delayed.dispatch()
        message = await consumer.receive(timeout=10)
        assert (round(now() - began_at, 2), message.attempt, message.topic) == (3600, 2, RETRY)
        await message.nack(60)  # not longer: it waits here
        message = await consumer.receive(timeout=4000)
        assert (message.attempt, consumer.statistics().retried) == (3, 1)
        await message.ack()


@virtual_time
async def test_what_cannot_be_published_waits_here(caplog: pytest.LogCaptureFixture) -> None:
    """U45: if the retry topic refuses a long nack it is held here, exactly as long, and that is logged and counted."""
    broker = broker_with(b"order", topic=TOPIC)
    caplog.set_level(logging.WARNING, "pulsar_nack.consumer")
    async with consuming(broker, retry_topic=RetryTopicPolicy(spill_after=60)) as consumer:
        began_at = now()
        broker.next("SEND", refuse("NotAllowedError"))
        await (await consumer.receive(timeout=1)).nack(600)
        await asyncio.sleep(50)
        statistics = consumer.statistics()
        assert (statistics.held, statistics.retried, statistics.retry_failures) == (1, 0, 1)
        assert statistics.retries_waiting == 0
        message = await consumer.receive(timeout=4000)
        assert (round(now() - began_at, 2), message.attempt) == (600, 2)
        await message.ack()
    assert "it waits in this consumer" in caplog.text
    assert not stored(broker)


@virtual_time
async def test_where_room_is_short_the_longest_go_first() -> None:
    """U33, U17: from 80 % of the limit on nacks wait there, the longest first; at the limit no call waits."""
    broker = broker_with(*numbers(30), topic=TOPIC)
    retry_topic = RetryTopicPolicy(spill_after=600)
    about = {"retry_topic": retry_topic, "unacked_limit": 1_020, "redelivery": "broker"}
    async with consuming(broker, **about) as consumer:  # 20 beside the prefetched ones
        for number in range(30):
            message = await consumer.receive(timeout=1)
            async with asyncio.timeout(1):
                await message.nack(500 if number % 2 else 100)
            await asyncio.sleep(1)
        statistics = consumer.statistics()
        assert (statistics.waiting_nacks, statistics.held, statistics.retried) == (0, 19, 11)
        for _ in range(30):
            message = await consumer.receive(timeout=400)
            assert message.attempt == 2
            await message.ack()


@virtual_time
async def test_where_no_more_may_be_held() -> None:
    """U17: nacks beyond ``max_held`` wait there, and their callers do not wait here."""
    broker = broker_with(*numbers(5), topic=TOPIC)
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=2)
    async with consuming(broker, retry_topic=RetryTopicPolicy(spill_after=600), config=config) as consumer:
        for message in [await consumer.receive(timeout=1) for _ in range(5)]:
            async with asyncio.timeout(1):
                await message.nack(60)
        await asyncio.sleep(1)
        assert (consumer.statistics().held, consumer.statistics().retried) == (2, 3)
        for _ in range(5):
            message = await consumer.receive(timeout=100)
            assert message.attempt == 2
            await message.ack()


@virtual_time
async def test_durable_until_it_is_there(tmp_path: Path) -> None:
    """U9, U45: killed before a long nack is published, it waits here after the restart, until the same time."""
    broker = broker_with(b"order", topic=TOPIC)
    about = {"retry_topic": RetryTopicPolicy(spill_after=60), "durable": tmp_path}
    async with consuming(broker, **about) as consumer:
        began_at = now()
        broker.next("SEND", silence)
        await (await consumer.receive(timeout=1)).nack(300)
        await consumer.aclose()
    async with consuming(broker, **about) as consumer:
        message = await consumer.receive(timeout=400)
        assert (round(now() - began_at), message.attempt, message.topic) == (300, 2, TOPIC)
        await message.reconsume_later(1)
        message = await consumer.receive(timeout=10)
        assert (message.attempt, message.topic) == (3, RETRY)
        await message.ack()
    async with consuming(broker, **about) as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=20)


@virtual_time
async def test_without_a_retry_topic() -> None:
    """U14: without the setting the call says what is missing, and changes nothing: the message can be settled."""
    broker = broker_with(b"order", topic=TOPIC)
    async with consuming(broker, retry_topic=None) as consumer:
        message = await consumer.receive(timeout=1)
        with pytest.raises(InvalidArgumentError, match="retry_topic: expected a RetryTopicPolicy"):
            await message.reconsume_later(1)
        with pytest.raises(InvalidArgumentError, match="retry_topic"):
            await consumer.reconsume_later(message, 1)
        await message.ack()
    assert unacked(broker, TOPIC) == 0


@virtual_time
async def test_arguments_are_checked_first() -> None:
    """N24: a bad delay, property, reason or message is refused, and nothing changes."""
    broker = broker_with(b"order", topic=TOPIC)
    async with consuming(broker) as consumer:
        message = await consumer.receive(timeout=1)
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("delay", {"delay": -1}),
            ("properties", {"properties": {"a": 1}}),
            ("reason", {"reason": 5}),
        ]
        for name, arguments in wrong:
            with pytest.raises(InvalidArgumentError, match=name):
                await message.reconsume_later(**arguments)
        with pytest.raises(InvalidArgumentError, match="message"):
            await consumer.reconsume_later(message.id, 1)  # type: ignore[arg-type]
        await consumer.reconsume_later(message, 1)
        with pytest.raises(AlreadySettledError):
            await message.dead_letter()
        await (await consumer.receive(timeout=5)).ack()


@virtual_time
async def test_forged_properties() -> None:
    """N24: absurd numbers neither stop the consumer nor hide a message."""
    broker = FakeBroker()
    names = ("RECONSUMETIMES", "DELAY_TIME", "PULSAR_NACK_DELIVER_AT")
    values = ["9" * 18, "9" * 19, "-1", "x", "", "9" * 15, "1e3"]
    async with consuming(broker, backoff=Exponential(1, 60)) as consumer:
        for value in values:
            broker.topic(RETRY).publish(value.encode(), properties=dict.fromkeys(names, value))
            message = await consumer.receive(timeout=1)
            await message.nack()
            message = await consumer.receive(timeout=100)
            await message.reconsume_later()
            message = await consumer.receive(timeout=100)
            assert message.data == value.encode()
            await message.ack()
    assert unacked(broker, RETRY) == 0


@virtual_time
async def test_deferred_ten_times() -> None:
    """U12, U45: deferred for long ten times, then nacked: attempt 1 until then, then 2, and never a dead letter."""
    broker = broker_with(b"order", topic=TOPIC)
    about = {"retry_topic": RetryTopicPolicy(spill_after=5), "dead_letter": DeadLetterPolicy(2)}
    async with consuming(broker, **about) as consumer:
        for number in range(10):
            message = await consumer.receive(timeout=20)
            assert (message.attempt, message.topic) == (1, RETRY if number else TOPIC)
            await message.defer(10)
        message = await consumer.receive(timeout=20)
        await message.nack(1)
        message = await consumer.receive(timeout=10)
        assert message.attempt == 2
        await message.ack()
        assert consumer.statistics().dead_lettered == 0
    assert unacked(broker, RETRY) == 0


@virtual_time
async def test_deferred_durably_until_it_is_there(tmp_path: Path) -> None:
    """U9, U12, U45: killed before a long deferral is published, it waits after the restart, as the same attempt."""
    broker = broker_with(b"order", topic=TOPIC)
    about = {"retry_topic": RetryTopicPolicy(spill_after=60), "durable": tmp_path}
    async with consuming(broker, **about) as consumer:
        began_at = now()
        broker.next("SEND", silence)
        await (await consumer.receive(timeout=1)).defer(300)
        await consumer.aclose()
    async with consuming(broker, **about) as consumer:
        message = await consumer.receive(timeout=400)
        assert (round(now() - began_at), message.attempt, message.topic) == (300, 1, TOPIC)
        await message.ack()
