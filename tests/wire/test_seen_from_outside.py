"""Events, metrics and spans of a consumer of the native client, on a scripted broker and virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry import propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pulsar_nack import DeadLetterPolicy, NackConfig
from pulsar_nack.consumer import ConsumerConnected, ConsumerDisconnected, MessageRedelivered
from pulsar_nack.observe import ConsumerMetrics, MessageSpans
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.consumer.ten_messages import DELAY, EXPECTED, GIVEN_UP, NACKED, PAYLOADS, check_statistics, counts_of
from tests.wire.fake_broker import FakeBroker
from tests.wire.frames import read_message

TOPIC = "persistent://public/default/orders"
EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


@virtual_time
async def test_ten_messages() -> None:
    """U50: events, statistics, metrics and spans say what happened; a dead letter carries its producer's context."""
    broker, events, metrics, exporter = FakeBroker(), list[Any](), ConsumerMetrics(), InMemorySpanExporter()
    dead = broker.topic(f"{TOPIC}-billing-DLQ")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    spans = MessageSpans(tracer, subscription="billing")
    async with (
        Client(broker.url, dial=broker.dial) as client,
        client.producer("orders") as producer,
        client.subscribe(
            "orders",
            "billing",
            config=EXACT,
            initial_position="earliest",
            dead_letter=DeadLetterPolicy(5),
            hooks=[events.append, spans],
        ) as consumer,
    ):
        metrics.add(consumer)
        with tracer.start_as_current_span("send"):
            properties: dict[str, str] = {}
            propagate.inject(properties)
            for payload in PAYLOADS:
                await producer.send(payload, properties=properties)
        for _ in range(13):
            message = await consumer.receive(timeout=10)
            with spans.process(message):
                if message.attempt == 1 and message.data in NACKED:
                    await message.nack(DELAY, reason="busy")
                elif message.data in GIVEN_UP:
                    await message.dead_letter("bad")
                else:
                    await message.ack()
        check_statistics(consumer)
        found = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert found["pulsar_client_consumer_message_ack_total"] == 8
    assert found["pulsar_client_consumer_message_dlq_total"] == 2
    assert found["pulsar_nack_consumer_lateness_seconds_count"] == 3
    assert counts_of(events) == EXPECTED
    redelivered = [event for event in events if isinstance(event, MessageRedelivered)]
    assert all(not event.is_local and -10 <= event.lateness_ms <= 50 for event in redelivered), redelivered
    letters = [read_message(entry.rest)[0] for entry in dead.entries]
    assert len(letters) == 2
    for letter in letters:
        carried = {each.key: each.value for each in letter.properties}
        assert carried["traceparent"] == properties["traceparent"]
    sent, *handled = exporter.get_finished_spans()
    assert {span.parent.span_id for span in handled if span.parent is not None} == {sent.context.span_id}
    outcomes = [(span.attributes or {})["messaging.pulsar.acknowledgment.type"] for span in handled]
    assert sorted(map(str, outcomes)) == ["acknowledge"] * 8 + ["dead_letter"] * 2 + ["negative_acknowledge"] * 3
    assert [len(span.links) for span in handled].count(1) == 3


@virtual_time
async def test_a_lost_connection() -> None:
    """Events name the partition whose session was lost, and the one that began again."""
    broker, events = FakeBroker(), list[Any]()
    broker.partitions[TOPIC] = 2
    async with (
        Client(broker.url, dial=broker.dial) as client,
        client.subscribe("orders", "billing", hooks=[events.append]),
    ):
        broker.cut()
        await asyncio.sleep(10)
    sessions = [event for event in events if isinstance(event, ConsumerConnected | ConsumerDisconnected)]
    seen = [(event.topic, event.partition, getattr(event, "reason", None)) for event in sessions]
    parts = [(f"{TOPIC}-partition-{number}", number) for number in range(2)]
    assert seen[0] == (TOPIC, -1, None)
    assert seen[-1] == (TOPIC, -1, "closed")
    assert sorted(seen[1:3]) == [(*part, "lost") for part in parts]
    assert sorted(seen[3:5]) == [(*part, None) for part in parts]
    assert len(seen) == 6
