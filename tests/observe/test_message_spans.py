"""The spans of messages, as an exporter in memory gets them; on virtual time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pulsar_nack import Consumer, DeadLetterPolicy, InvalidArgumentError, Message, NackConfig
from pulsar_nack.consumer import ConsumerDrained, DeadLetter, Defer, Ignore, Retry, RetryTopicPolicy
from pulsar_nack.observe import MessageSpans
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.consumer.ten_messages import counts_of

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
OUTCOME = "messaging.pulsar.acknowledgment.type"


class Exported:
    """Ended spans in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def spans(self) -> list[Any]:
        """Return the ended spans."""
        return list(self._exporter.get_finished_spans())

    def outcomes(self) -> list[Any]:
        """Return how their messages were settled."""
        return [(span.attributes or {}).get(OUTCOME) for span in self.spans]

    def properties(self, span: trace.Span) -> dict[str, str]:
        """Return properties with the context of a span."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        return carrier


@virtual_time
async def test_an_attempt_after_the_other() -> None:
    """Each attempt has a span under the producer's, linked to the previous one, with attributes and the outcome."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer, subscription="billing")
    with exported.tracer.start_as_current_span("send orders") as sending:
        message_id = port.topic.publish(b"one", properties=exported.properties(sending))
    async with Consumer(port, config=EXACT, hooks=[spans]) as consumer:
        for settle in ("nack", "ack"):
            message = await consumer.receive()
            with spans.process(message) as span:
                assert trace.get_current_span() is span
                await (message.nack(2, reason="busy") if settle == "nack" else message.ack())
    send, first, second = exported.spans
    assert first.parent.span_id == second.parent.span_id == send.context.span_id
    assert first.context.trace_id == second.context.trace_id == send.context.trace_id
    assert not first.links
    assert [link.context for link in second.links] == [first.context]
    assert dict(first.attributes) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.subscription.name": "billing",
        "messaging.destination.name": port.topic.name,
        "messaging.message.id": f"{message_id.ledger}:{message_id.entry}:{message_id.partition}",
        "pulsar_nack.attempt": 1,
        OUTCOME: "negative_acknowledge",
    }
    assert (first.name, first.kind) == (f"process {port.topic.name}", trace.SpanKind.CONSUMER)
    assert (second.attributes["pulsar_nack.attempt"], second.attributes[OUTCOME]) == (2, "acknowledge")
    assert not spans._open
    assert not spans._previous


@virtual_time
async def test_settled_after_the_handler() -> None:
    """With the events of the consumer a span ends when the message is settled, also after its handler."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer)
    policy = DeadLetterPolicy(1, "dead", publisher=(publisher := FakePublisher()))
    with exported.tracer.start_as_current_span("send") as sending:
        port.topic.publish(b"one", properties=(properties := exported.properties(sending)))

    @spans.traced
    async def handle(message: Message) -> bytes:
        return message.data

    async with Consumer(port, config=EXACT, dead_letter=policy, hooks=[spans]) as consumer:
        for count in (1, 2):
            message = await consumer.receive()
            assert await handle(message) == b"one"
            assert len(exported.spans) == count
            await message.nack(1)
            await asyncio.sleep(0.5)
            assert len(exported.spans) == count + 1
    assert exported.outcomes() == [None, "negative_acknowledge", "dead_letter"]
    (letter,) = publisher.letters
    assert letter.properties["traceparent"] == properties["traceparent"]


@virtual_time
async def test_a_handler_that_fails() -> None:
    """An exception that leaves the handler is recorded; a cancelled handler has no error."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer)

    @spans.traced
    async def handle(message: Message) -> None:
        if message.attempt == 2:
            raise asyncio.CancelledError
        raise ValueError("no stock")

    port.topic.publish(b"one")
    async with Consumer(port, config=EXACT, hooks=[spans]) as consumer:
        message = await consumer.receive()
        with pytest.raises(ValueError, match="no stock"):
            await handle(message)
        await message.nack(1)
        with pytest.raises(asyncio.CancelledError):
            await handle(await consumer.receive())
        assert len(exported.spans) == 1
    failed, cancelled = exported.spans  # unsettled messages' spans end with the consumer
    assert (failed.status.status_code, failed.attributes["error.type"]) == (trace.StatusCode.ERROR, "ValueError")
    assert [event.name for event in failed.events] == ["exception"]
    assert cancelled.status.status_code is trace.StatusCode.UNSET
    assert OUTCOME not in cancelled.attributes


@virtual_time
async def test_under_run() -> None:
    """A traced handler works under ``run``: each verb is the outcome of its attempt, and only failures are errors."""
    exported, port, events = Exported(), FakePort(), list[Any]()
    spans = MessageSpans(exported.tracer)
    verbs: dict[bytes, list[Exception | None]] = {
        b"fine": [None],
        b"twice": [Retry(1), None],
        b"later": [Defer(1), None],
        b"ignored": [Ignore("known")],
        b"bad": [DeadLetter("bad")],
        b"broken": [KeyError("no stock"), None],
    }
    for payload in verbs:
        port.topic.publish(payload)

    @spans.traced
    async def handle(message: Message) -> None:
        if (verb := verbs[message.data].pop(0)) is not None:
            raise verb

    policy = DeadLetterPolicy(3, "dead", publisher=FakePublisher())
    settings: dict[str, Any] = {"config": EXACT, "backoff": 1, "dead_letter": policy}
    async with Consumer(port, hooks=[spans, events.append], **settings) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await asyncio.sleep(10)
        await consumer.drain(1)
        await running
        figures = consumer.statistics()
    assert (figures.acked, figures.nacked, figures.deferred, figures.dead_lettered, figures.drains) == (5, 2, 1, 1, 1)
    assert counts_of(events) == {
        "MessageReceived": 6,
        "MessageRedelivered": 3,
        "MessageAcknowledged": 5,
        "MessageNacked": 2,
        "MessageDeferred": 1,
        "MessageDeadLettered": 1,
    }
    assert [event for event in events if isinstance(event, ConsumerDrained)] == [
        ConsumerDrained(events[-1].at_ms, 0, 0)
    ]
    expected = ["acknowledge"] * 5 + ["dead_letter", "defer"] + ["negative_acknowledge"] * 2
    assert sorted(exported.outcomes()) == expected
    failed = {
        span.attributes["error.type"] for span in exported.spans if span.status.status_code is trace.StatusCode.ERROR
    }
    assert failed == {"Retry", "DeadLetter", "KeyError"}
    assert [len(span.links) for span in exported.spans].count(1) == 3


@virtual_time
async def test_a_handler_that_outlives_its_consumer() -> None:
    """The span of a handler that runs while its consumer is closed ends with the handler, settled or not."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer)
    for data in (b"settled", b"not settled"):
        port.topic.publish(data)
    with ExitStack() as handlers:
        async with Consumer(port, hooks=[spans]) as consumer:
            for _ in range(2):
                message = await consumer.receive()
                handlers.enter_context(spans.process(message))
                if message.data == b"settled":
                    await message.ack()
        assert exported.spans == []
    assert sorted(exported.outcomes(), key=str) == [None, "acknowledge"]


@virtual_time
async def test_without_events() -> None:
    """Without the consumer's events a span ends with its handler; only the handler's own settling is known."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer)
    letters = FakePublisher()
    policies: dict[str, Any] = {
        "dead_letter": DeadLetterPolicy(3, "dead", publisher=letters),
        "retry_topic": RetryTopicPolicy("again", publisher=letters),
    }
    verbs: list[Any] = [
        Message.ack,
        Message.nack,
        lambda each: each.defer(60),
        Message.dead_letter,
        Message.reconsume_later,
    ]
    async with Consumer(port, config=EXACT, **policies) as consumer:
        for verb in [*verbs, lambda _: asyncio.sleep(0)]:
            port.topic.publish(b"one")
            message = await consumer.receive()
            with spans.process(message):
                await verb(message)
    expected = ["acknowledge", "negative_acknowledge", "defer", "dead_letter", "reconsume_later", None]
    assert exported.outcomes() == expected
    assert not spans._open


@virtual_time
async def test_memory_is_bounded() -> None:
    """Beyond ``max_open`` the oldest spans of unsettled messages end, and the oldest attempts are forgotten."""
    exported, port = Exported(), FakePort()
    spans = MessageSpans(exported.tracer, max_open=5)
    async with Consumer(port, hooks=[spans]) as consumer:
        for _ in range(20):
            port.topic.publish(b"one")
            with spans.process(await consumer.receive()):
                pass
        assert (len(spans._open), len(spans._previous), len(exported.spans)) == (5, 5, 15)
        many = []
        for _ in range(8):  # more handlers at once than spans are kept
            port.topic.publish(b"one")
            many.append(spans.process(await consumer.receive()))
        for each in many:
            each.__enter__()
        for each in reversed(many):
            each.__exit__(None, None, None)
    assert len(exported.spans) == 28


def test_arguments_are_checked() -> None:
    """The limit must be at least 1."""
    with pytest.raises(InvalidArgumentError, match="max_open"):
        MessageSpans(max_open=0)
