"""How messages get to the dead-letter topic or to the retry topic: the publisher of each, and the producers in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from .._foreign import shown
from ..errors import ClosedError, InvalidArgumentError
from ._letter_rules import DeadLetterPolicy, Destination, RetryTopicPolicy, base_name, check_delays, key_of
from ._message_state import DEAD_LETTERING, State
from ._port import ConsumerPort, Delivery, OwnPublisher, Publisher, Schema, SupportsPublishing

Made = TypeVar("Made")
Result = TypeVar("Result")
ProducerKey = tuple[str, Schema | None]
"""A topic, and the schema of the messages that are sent there."""

_log = logging.getLogger("pulsar_nack.consumer")


class LetterRoute:
    """The way to one of both topics: its publisher and its counts.

    :param state: of the messages that are on the way
    :param port: publishes, unless the policy names a publisher
    :raises InvalidArgumentError: nothing can publish
    """

    def __init__(self, state: State, policy: DeadLetterPolicy | RetryTopicPolicy, port: ConsumerPort) -> None:
        self.state = state
        self.what = "dead letter" if state is DEAD_LETTERING else "message for the retry topic"
        self.done = self.failures = self.waiting = 0
        self.has_warned = False
        self._publisher: Publisher
        self._own: OwnPublisher | None = None
        if policy.publisher is None:
            self._publisher = self._own = _publisher_of(policy, port)
        else:
            self._publisher = policy.publisher

    async def publish(self, delivery: Delivery, destination: Destination) -> None:
        """Publish a delivered message to another topic once, with all that it has."""
        topic, properties, deliver_at_ms = destination
        is_readable = delivery.error is None
        about: dict[str, Any] = {
            "properties": properties,
            "key": key_of(delivery),
            "ordering_key": delivery.ordering_key,
            "event_time_ms": delivery.event_time_ms,
        }
        if self._own is not None:
            came_from, version = base_name(delivery.topic or delivery.id.topic or ""), delivery.schema_version
            about["schema"] = (came_from, version) if version and is_readable else None
        if deliver_at_ms is not None:  # a publisher of dead letters need not know it
            about["deliver_at_ms"] = deliver_at_ms
        await self._publisher.publish(topic, None if delivery.is_null and is_readable else delivery.data, **about)

    async def aclose(self) -> None:
        """Close the publisher, unless it is the user's."""
        if self._own is not None:
            try:
                await self._own.aclose()
            except Exception as error:  # noqa: BLE001 - the rest is closed too
                _log.warning("what publishes each %s could not be closed: %r", self.what, error)


def _publisher_of(policy: DeadLetterPolicy | RetryTopicPolicy, port: Any) -> OwnPublisher:
    field = "dead_letter" if isinstance(policy, DeadLetterPolicy) else "retry_topic"
    initial_subscription = policy.initial_subscription if isinstance(policy, DeadLetterPolicy) else None
    publisher = None
    if isinstance(port, SupportsPublishing):
        publisher = port.publisher(policy.topic, initial_subscription)
    if publisher is None:
        expected = f"a {type(policy).__name__} with a publisher: what this consumer was made of cannot publish"
        raise InvalidArgumentError(field, policy, expected)
    if isinstance(policy, RetryTopicPolicy):
        check_delays(field, publisher)
    return publisher


def warn_without_schema(log: logging.Logger, schema: Schema, error: Exception) -> None:
    """Log that dead letters are published without their schema, because the broker does not return it."""
    topic, version = schema
    log.warning(
        "dead letters of %s are sent without their schema, version %s: %s",
        topic,
        shown(version.hex()),
        shown(str(error)),
    )


class DeadLetterProducers(Generic[Made]):
    """Opens, keeps and closes the producers of one publisher.

    :param make: opens the producer of a key; it has an asynchronous ``close``
    """

    def __init__(self, make: Callable[[ProducerKey], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
        self._tasks: dict[ProducerKey, asyncio.Task[Made]] = {}
        self._closing: set[asyncio.Task[object]] = set()
        self._is_closed = False

    async def use(
        self, key: ProducerKey, send: Callable[[Made], Awaitable[Result]], *, is_spent: Callable[[Exception], bool]
    ) -> Result:
        """Send with the producer of a key.

        :param is_spent: whether a producer that raised this error is unusable, so that the next call opens another
        """
        task = self._opening(key)
        producer = await asyncio.shield(task)
        try:
            return await send(producer)
        except Exception as error:
            if is_spent(error) and self._tasks.get(key) is task:
                del self._tasks[key]
                self._close_soon(producer)
            raise

    def _opening(self, key: ProducerKey) -> asyncio.Task[Made]:
        if self._is_closed:
            raise ClosedError("the publisher")
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            name = f"pulsar_nack dead letters to {key}"
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._make(key), name=name)
        return task

    def _close_soon(self, producer: Made) -> None:
        closing: asyncio.Task[object] = asyncio.get_running_loop().create_task(_closed(producer))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all producers, and cancel those that are being opened. Idempotent."""
        self._is_closed = True
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                self._close_soon(task.result())
        if self._closing:
            await asyncio.wait(self._closing)


async def _closed(producer: Any) -> object:
    try:
        return await producer.close()
    except Exception as error:  # noqa: BLE001 - it is of no use any more
        return error
