"""Spans of OpenTelemetry for the attempts to handle messages, as the Java client makes them.

The span of an attempt begins with its handler, and ends when the handler has ended and the message is settled. Without
the events of the consumer it ends with the handler. The producer's context is in the properties of a message, so dead
letters and messages of a retry topic carry it on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .._check import check_integer
from ..consumer import (
    ConsumerEvent,
    Defer,
    Ignore,
    LeaseExpired,
    Message,
    MessageAcknowledged,
    MessageDeadLettered,
    MessageDeferred,
    MessageEvent,
    MessageNacked,
    MessageRetried,
)
from ..errors import MissingExtraError
from ..ids import MessageId, _java_text
from ..nack import Closed, NackEvent

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

T = TypeVar("T")
OUTCOME: Final = "messaging.pulsar.acknowledgment.type"
ATTEMPT: Final = "pulsar_nack.attempt"
_BY_EVENT: Final[dict[type[MessageEvent], str]] = {
    MessageAcknowledged: "acknowledge",
    MessageNacked: "negative_acknowledge",
    MessageDeferred: "defer",
    MessageDeadLettered: "dead_letter",
    MessageRetried: "reconsume_later",
    LeaseExpired: "ack_timeout",
}


class MessageSpans:
    """A ``process`` span for each attempt to handle a message (extra ``otel``).

    Its parent is the producer's span, if the message has a ``traceparent`` (W3C) in its properties, as producers write
    it by ``opentelemetry.propagate.inject(properties)``. It is linked to the span of the attempt before, if that was
    handled here. Names and attributes are the Java client's, and ``pulsar_nack.attempt``. While the handler runs, its
    span is the current one.

    ::

        spans = MessageSpans(subscription="billing")
        async with client.subscribe("orders", "billing", hooks=[spans]) as consumer:
            async for message in consumer:
                with spans.process(message):
                    ...

    Pass it as a hook of one consumer, so that it sees how each message is settled: the attribute
    ``messaging.pulsar.acknowledgment.type``, and the end of the span. An exception that leaves the handler is recorded,
    and the span has the status ERROR, except for ``Defer`` and ``Ignore``: nothing failed then.

    :param tracer: makes the spans; None: ``opentelemetry.trace.get_tracer("pulsar_nack")``
    :param subscription: the attribute ``messaging.destination.subscription.name``; empty: none
    :param max_open: how many spans of handled messages wait to be settled, and how many attempts are remembered for
        links; beyond that the oldest spans are ended
    :raises MissingExtraError: opentelemetry-api is not installed
    """

    def __init__(self, tracer: Tracer | None = None, *, subscription: str = "", max_open: int = 10_000) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingExtraError("spans of messages", "opentelemetry-api>=1.31", "otel") from error
        self._trace: Any = trace
        self._extract = propagate.extract
        self._tracer = trace.get_tracer("pulsar_nack") if tracer is None else tracer
        self._max_open = check_integer("max_open", max_open, 1)
        self._attributes = {
            "messaging.system": "pulsar",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            **({"messaging.destination.subscription.name": subscription} if subscription else {}),
        }
        self._is_hook = False
        self._open: OrderedDict[tuple[MessageId, int | None], _OpenSpan] = OrderedDict()
        self._previous: OrderedDict[MessageId, SpanContext] = OrderedDict()

    @contextmanager
    def process(self, message: Message) -> Iterator[Span]:
        """Make the span of this attempt the current one; yields it, for further attributes."""
        previous = self._previous.pop(message.id, None)
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=self._extract(message.properties),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                **self._attributes,
                "messaging.destination.name": message.topic,
                "messaging.message.id": _java_text(message.id),
                ATTEMPT: message.attempt,
            },
            links=None if previous is None else [self._trace.Link(previous)],
        )
        self._previous[message.id] = span.get_span_context()
        key = message.id, message.attempt
        opened = self._open[key] = _OpenSpan(span)
        self._bound()
        try:
            with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except (Defer, Ignore):
            raise  # nothing failed
        except Exception as error:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(self._trace.StatusCode.ERROR, str(error))
            raise
        finally:
            opened.is_left = True
            if not self._is_hook and opened.outcome is None:
                opened.outcome = message.settled_by
            if not self._is_hook or opened.outcome is not None or self._open.get(key) is not opened:
                self._end(key, opened)

    def traced(self, handler: Callable[[Message], Awaitable[T]]) -> Callable[[Message], Awaitable[T]]:
        """Return a handler that runs in the span of its message."""

        @wraps(handler)
        async def handle(message: Message) -> T:
            with self.process(message):
                return await handler(message)

        return handle

    def __call__(self, event: ConsumerEvent | NackEvent, /) -> None:
        """Take an event of the consumer, as a hook."""
        if isinstance(event, Closed):
            self._is_hook = False  # handlers that still run end their spans
            for key, left in list(self._open.items()):
                if left.is_left:
                    self._end(key, left)
        if not isinstance(event, MessageEvent):
            return
        self._is_hook = True
        outcome = _BY_EVENT.get(type(event))
        if outcome is None:
            return
        if isinstance(event, MessageNacked) and event.delay_ms is None:
            return  # it becomes a dead letter
        if isinstance(event, MessageAcknowledged | MessageDeadLettered | MessageRetried):
            self._previous.pop(event.id, None)
        opened = self._open.get(key := (event.id, event.attempt))
        if opened is not None:
            opened.outcome = outcome
            if opened.is_left:
                self._end(key, opened)

    def _end(self, key: tuple[MessageId, int | None], opened: _OpenSpan) -> None:
        if self._open.get(key) is opened:
            del self._open[key]
        if opened.outcome is not None:
            opened.span.set_attribute(OUTCOME, opened.outcome)
        opened.span.end()

    def _bound(self) -> None:
        """End the oldest spans, and forget the oldest attempts."""
        while len(self._previous) > self._max_open:
            self._previous.popitem(last=False)
        while len(self._open) > self._max_open:
            _, opened = self._open.popitem(last=False)
            if opened.is_left:
                opened.span.end()


@dataclass(slots=True)
class _OpenSpan:
    """A span that is not ended: its handler runs, or its message is not settled; ``is_left``: the handler has ended."""

    span: Span
    outcome: str | None = None
    is_left: bool = False
