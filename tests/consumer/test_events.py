"""The events of a consumer, in order and with their fields, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pulsar_nack import Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.consumer import (
    ConsumerConnected,
    ConsumerDisconnected,
    ConsumerDrained,
    LeaseExpired,
    MessageAcknowledged,
    MessageDeadLettered,
    MessageDeferred,
    MessageEvent,
    MessageNacked,
    MessageReceived,
    MessageRedelivered,
    MessageRetried,
    SessionEvent,
)
from pulsar_nack.testing import FakePort, FakePublisher, FakeTopic, virtual_time
from tests.consumer.consuming import EXACT
from tests.consumer.ports import Ports
from tests.consumer.ten_messages import EXPECTED, PAYLOADS, check_statistics, counts_of, handle_ten


def of_messages(events: list[Any]) -> list[MessageEvent]:
    """Return the events of messages."""
    return [event for event in events if isinstance(event, MessageEvent)]


@pytest.mark.each_kind
@virtual_time
async def test_ten_messages(ports: Ports) -> None:
    """U50: of ten messages, three nacked, two of those dead-lettered, eight acknowledged: events and statistics fit."""
    port, events = ports.port(), list[Any]()
    for payload in PAYLOADS:
        port.topic.publish(payload)
    policy = DeadLetterPolicy(5, "dead", publisher=FakePublisher())
    async with Consumer(port, config=EXACT, dead_letter=policy, hooks=[events.append]) as consumer:
        await handle_ten(consumer)
        await asyncio.sleep(1)
        check_statistics(consumer)
        assert consumer.statistics().received == 13 - consumer.statistics().redelivered_local
    assert counts_of(events) == EXPECTED
    redelivered = [event for event in events if isinstance(event, MessageRedelivered)]
    assert issubclass(MessageRedelivered, MessageReceived)
    assert {event.attempt for event in redelivered} == {2}
    assert all(0 <= event.lateness_ms <= 2 for event in redelivered), redelivered
    assert all(event.delay_ms == 2000 and event.reason == "busy" for event in events if type(event) is MessageNacked)
    given_up = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert [(event.attempt, event.topic, event.reason) for event in given_up] == [(2, "dead", "bad")] * 2
    attempts = sorted(event.attempt or 0 for event in events if isinstance(event, MessageAcknowledged))
    assert attempts == [1] * 7 + [2]


@virtual_time
async def test_order_and_times() -> None:
    """The events of a message come in order, with its attempt and the time of the consumer's clock."""
    port, events = FakePort(), list[Any]()
    message_id = port.topic.publish(b"one")
    async with Consumer(port, config=EXACT, redelivery="local", hooks=[events.append]) as consumer:
        begin_ms = consumer._engine.clock.now_ms()
        await (await consumer.receive()).nack(delay=3, reason="busy")
        await (await consumer.receive()).ack()
    at_ms = begin_ms + 3000
    assert of_messages(events) == [
        MessageReceived(message_id, 1, begin_ms),
        MessageNacked(message_id, 1, begin_ms, 3000, "busy"),
        MessageRedelivered(message_id, 2, at_ms, is_local=True, lateness_ms=0),
        MessageAcknowledged(message_id, 2, at_ms),
    ]
    assert [type(event) for event in events if isinstance(event, ConsumerConnected | ConsumerDisconnected)] == [
        ConsumerConnected,
        ConsumerDisconnected,
    ]


@virtual_time
async def test_redelivered_by_the_broker() -> None:
    """A redelivery from the broker says so, and how late it is."""
    port, events = FakePort(latency=0.25), list[Any]()
    async with Consumer(port, config=EXACT, redelivery="broker", hooks=[events.append]) as consumer:
        port.topic.publish(b"one")
        await (await consumer.receive()).nack(delay=0.1)
        await (await consumer.receive()).ack()
    (event,) = [event for event in events if isinstance(event, MessageRedelivered)]
    assert (event.attempt, event.is_local) == (2, False)
    assert event.lateness_ms == 150  # requested as soon as it was nacked, and 250 ms on its way


@virtual_time
async def test_the_last_attempt() -> None:
    """The nack of the last attempt has no delay; its dead letter has the reason, or that the attempts failed."""
    port, events = FakePort(), list[Any]()
    message_id = port.topic.publish(b"one")
    policy = DeadLetterPolicy(1, "dead", publisher=FakePublisher())
    async with Consumer(port, config=EXACT, dead_letter=policy, hooks=[events.append]) as consumer:
        for _ in range(2):
            await (await consumer.receive()).nack(delay=1)
        await asyncio.sleep(1)
        assert consumer.statistics().nacked == 2
        assert consumer.statistics().acked == 0
    nacks = [event for event in events if isinstance(event, MessageNacked)]
    assert [(event.attempt, event.delay_ms) for event in nacks] == [(1, 1000), (2, None)]
    (letter,) = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert (letter.id, letter.attempt, letter.reason) == (message_id, 2, "2 attempts failed")
    assert not any(isinstance(event, MessageAcknowledged) for event in events)


@virtual_time
async def test_a_cumulative_acknowledgement() -> None:
    """Each message that a cumulative acknowledgement covers has an event with its attempt, and counts."""
    port, events = FakePort(subscription_type="exclusive"), list[Any]()
    ids = [port.topic.publish(payload) for payload in (b"0", b"1", b"2")]
    async with Consumer(port, config=EXACT, hooks=[events.append]) as consumer:
        messages = [await consumer.receive() for _ in ids]
        await messages[0].nack(delay=60)
        await consumer.acknowledge_cumulative(messages[1])
        acked = [event for event in events if isinstance(event, MessageAcknowledged)]
        assert {(event.id, event.attempt) for event in acked} == {(ids[0], 1), (ids[1], 1)}
        assert consumer.statistics().acked == 2


@virtual_time
async def test_a_cumulative_acknowledgement_that_overtakes_another() -> None:
    """A message whose own acknowledgement is open when a cumulative one covers it is acknowledged once."""
    port, events = FakePort(subscription_type="exclusive"), list[Any]()
    ids = [port.topic.publish(payload) for payload in (b"0", b"1")]
    async with Consumer(port, config=EXACT, hooks=[events.append]) as consumer:
        messages = [await consumer.receive() for _ in ids]
        port.delay_next("acknowledge", 1)
        messages[0].ack_soon()
        await consumer.acknowledge_cumulative(messages[1])
        await asyncio.sleep(2)
        assert [event.id for event in events if isinstance(event, MessageAcknowledged)] == ids
        assert consumer.statistics().acked == 2


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_a_request_for_everything(kind: Any) -> None:
    """Each message that redeliver_unacknowledged_messages requests has an event with the attempt that has ended."""
    port, events = FakePort(subscription_type=kind), list[Any]()
    ids = [port.topic.publish(payload) for payload in (b"0", b"1")]
    async with Consumer(port, config=EXACT, hooks=[events.append]) as consumer:
        for _ in ids:
            await consumer.receive()
        await consumer.redeliver_unacknowledged_messages()
        assert [(await consumer.receive()).attempt for _ in ids] == [2, 2]
    nacks = [event for event in events if isinstance(event, MessageNacked)]
    assert [(each.id, each.attempt, each.delay_ms) for each in nacks] == [(ids[0], 1, 0), (ids[1], 1, 0)]
    assert {each.reason for each in nacks} == {"redeliver_unacknowledged_messages"}


@virtual_time
async def test_a_hook_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that raises is logged once and counted each time; other hooks get all events, the consumer continues."""

    def broken(event: object) -> None:
        raise RuntimeError(f"cannot take {type(event).__name__}")

    port, events = FakePort(), list[Any]()
    port.topic.publish(b"one")
    with caplog.at_level(logging.WARNING):
        async with Consumer(port, config=EXACT, hooks=[broken, events.append]) as consumer:
            await (await consumer.receive()).nack(delay=1)
            await (await consumer.receive()).ack()
            assert consumer.statistics().nack.hook_errors == len(events) > 4
    logged = [record for record in caplog.records if record.name == "pulsar_nack.hooks"]
    assert len(logged) == 1
    assert "RuntimeError" in caplog.text


@pytest.mark.each_kind
@pytest.mark.not_on("fake", "nowait", reason="they report no sessions")
@virtual_time
async def test_sessions(ports: Ports) -> None:
    """Ends and beginnings of sessions are reported with topic, partition and reason; so are opening and closing."""
    port, events = ports.port(), list[Any]()
    async with Consumer(port, hooks=[events.append]) as consumer:
        consumer._engine._on_session(SessionEvent.LOST, "orders", 3)
        consumer._engine._on_session(SessionEvent.BEGAN, "orders", 3)
        consumer._engine._on_session(SessionEvent.INACTIVE, "orders", 3)
    sessions = [event for event in events if isinstance(event, ConsumerConnected | ConsumerDisconnected)]
    assert [(event.partition, getattr(event, "reason", None)) for event in sessions] == [
        (-1, None),
        (3, "lost"),
        (3, None),
        (3, "inactive"),
        (-1, "closed"),
    ]
    assert {event.topic for event in sessions[1:-1]} == {"orders"}
    assert sessions[0].topic == sessions[-1].topic


@virtual_time
async def test_what_is_rare_is_counted_without_hooks() -> None:
    """Retries, deferred messages, expired leases and drains are counted by the trace, with hooks or without."""
    topic, events = FakeTopic(), list[Any]()
    topic.publish(b"one")
    for hooks in ([], [events.append]):
        async with Consumer(FakePort(topic), hooks=hooks) as consumer:
            message = await consumer.receive()
            record = consumer._engine.table.get(message.id)
            assert record is not None
            trace = consumer._engine.trace
            trace.retried(record, "orders-sub-RETRY", 500)
            trace.deferred(record, 700)
            trace.lease_expired(record, 900)
            trace.drained(4, 1)
            now = consumer.statistics()
            assert (now.retried, now.deferred, now.leases_expired, now.drains) == (1, 1, 1, 1)
    about, at_ms = (message.id, message.attempt), events[-1].at_ms
    assert [event for event in events if isinstance(event, MessageRetried | MessageDeferred | LeaseExpired)] == [
        MessageRetried(*about, at_ms, "orders-sub-RETRY", 500),
        MessageDeferred(*about, at_ms, 700),
        LeaseExpired(*about, at_ms),
    ]
    assert ConsumerDrained(at_ms, 4, 1) in events


async def test_hooks_are_checked() -> None:
    """A hook that cannot be called is refused by its place."""
    with pytest.raises(InvalidArgumentError, match=r"hooks\[1\]"):
        Consumer(FakePort(), hooks=[print, "log"])  # type: ignore[list-item]
