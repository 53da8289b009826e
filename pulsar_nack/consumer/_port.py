"""The port: the interface between a :class:`~pulsar_nack.Consumer` and a client of Pulsar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from ..ids import MessageId, Position

PROPERTY_BYTES: Final = 100
"""The approximate size of the Python objects around a property's name and value."""


@dataclass(frozen=True, slots=True)
class PortTraits:
    """The abilities of a port; delays in seconds.

    :param honours_ids: a redelivery request brings back just the entries it names; False on Exclusive and Failover
        subscriptions, where the broker can only rewind to everything that is not acknowledged
    :param redelivery_latency: typical time from a request to the arrival
    :param min_redelivery_delay: shortest delay that the port can carry out through the broker
    :param max_ids_per_request: most ids that one request may carry
    :param batch_index_ack: single messages of a batch are acknowledged at the broker
    :param receiver_queue_size: most messages that the transport prefetches, 0 if that is not known; the broker
        counts them as unacknowledged
    :param reports_sessions: the port is a :class:`~pulsar_nack.consumer.SupportsSessions`, and acknowledgements return
        when they are confirmed
    :param keeps_acks: confirmed acknowledgements are kept by a broker that does not end with this process
    """

    honours_ids: bool = True
    redelivery_latency: float = 0.0
    min_redelivery_delay: float = 0.0
    max_ids_per_request: int = 1_000
    batch_index_ack: bool = False
    receiver_queue_size: int = 0
    reports_sessions: bool = False
    keeps_acks: bool = False


@dataclass(slots=True)
class Delivery:
    """One message as a port hands it over; nothing changes it after that (freezing the class would triple its cost).

    :param id: the message id; with ``batch_size`` for a message of a batch, and a topic if the port has several
    :param data: the payload, empty where ``is_null``
    :param redelivery_count: the broker's count, 0 at first; it starts again at 0 when the broker forgets
    :param publish_time_ms: epoch ms; ``event_time_ms`` too, 0 when the producer set none
    :param native: the transport's own message object, for its own use and for users who need it
    :param error: why the message cannot be read; ``data`` then has the stored bytes. None: it can
    :param is_key_encoded: ``key`` is base64 of a key of bytes, as far as the transport knows
    :param is_null: the producer sent no value, which differs from an empty one
    :param producer_name: None if the transport does not know it; the three below too
    :param sequence_id: the producer's number of the message
    :param schema_version: as the broker numbers the topic's schemas, None: sent without one
    :param replicated_from: the cluster that the message came from, None: it was published in this one
    """

    id: MessageId
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    ordering_key: str | None = None
    redelivery_count: int = 0
    publish_time_ms: int = 0
    event_time_ms: int = 0
    topic: str = ""
    native: Any = None
    error: Exception | None = None
    is_key_encoded: bool = False
    is_null: bool = False
    producer_name: str | None = None
    sequence_id: int | None = None
    schema_version: bytes | None = None
    replicated_from: str | None = None


def bytes_of(delivery: Delivery) -> int:
    """Return the memory of a message: its payload, and every field that a producer can make large."""
    size = len(delivery.data)
    if type(delivery) is not Delivery:  # a transport's class for messages with few fields
        return size
    properties = delivery.properties
    if properties:
        size += sum(map(len, properties)) + sum(map(len, properties.values())) + PROPERTY_BYTES * len(properties)
    size += len(delivery.key or "") + len(delivery.ordering_key or "") + len(delivery.producer_name or "")
    return size + len(delivery.schema_version or b"") + len(delivery.replicated_from or "")


class ConsumerPort(Protocol):
    """A transport under a consumer. All calls run in one event loop.

    ``receive`` is cancel-safe: a message that a cancelled call would have got goes to the next one.
    ``redeliver`` names messages; the broker may bring back their whole entries. A failed call raises and
    has done nothing that repeating it would harm. ``receive`` after ``close`` raises :class:`~pulsar_nack.ClosedError`.

    A port may have two more properties. ``names`` is its topic, subscription and consumer name, for dead letters,
    traces and metrics. ``is_connected`` is whether it is connected to its broker now: acknowledgements do not expire
    while it is not.
    """

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        ...

    async def receive(self) -> Delivery:
        """Wait for the next message."""
        ...

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; a member of a batch completes its entry when all members are acknowledged."""
        ...

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Ask the broker to deliver these again now."""
        ...

    async def close(self) -> None:
        """Give back everything that is not acknowledged and free the transport; idempotent."""
        ...


@runtime_checkable
class SupportsSubscription(Protocol):
    """A port that can move and delete its subscription. What it cannot do raises :class:`NotImplementedError`."""

    def check_seek(self, position: MessageId | int) -> None:
        """Raise what :meth:`seek` would, if the port knows before it asks the broker that it cannot move there."""
        ...

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription to a message id, or to a publish time in epoch ms."""
        ...

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message of its partition; on Exclusive and Failover only."""
        ...

    async def last_message_ids(self) -> Sequence[MessageId]:
        """Return the id of the last message of each topic or partition, each with its topic; entry -1: it is empty.

        :raises BrokerError: the broker refused, or gave no answer
        :raises ClosedError: after ``close``
        """
        ...

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker, and close the port.

        :param force: also while others consume, who are disconnected
        :raises BrokerError: the broker refused, as it does while others consume
        :raises NotImplementedError: the port cannot do it, or not by force; nothing changed
        """
        ...


T = TypeVar("T")
AcksDone = Callable[[Sequence[T], Exception | None], None]
"""Called when acknowledgements ended: with their tokens, and None or the error."""


@runtime_checkable
class SupportsNowait(Protocol):
    """A port whose calls for each message need no task, which saves most of the cost of a message."""

    def receive_nowait(self) -> Delivery | None:
        """Return the next message, None if none has arrived. Not called while a call of ``receive`` waits.

        :raises ClosedError: after ``close``
        """
        ...

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge one message; ``done`` is called in a later turn of the loop.

        It gets the token, and None or the error. One call may pass the tokens of several messages whose
        acknowledgements ended in the same way.

        :raises ClosedError: after ``close``; ``done`` is not called then
        """
        ...

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery as ``redeliver`` does, with the same errors: due messages come a turn or two earlier."""
        ...


class SessionEvent(Enum):
    """An event in the session of a topic or partition."""

    BEGAN = "began"
    """Unacknowledged messages come from now on, also those that came in the session before."""
    LOST = "lost"
    """The connection broke: the broker may have lost the acknowledgements that it confirmed last."""
    CLOSED = "closed"
    """The broker ended it on a living connection, and has everything that it confirmed: the subscription was moved, or
    the topic is moved to another broker."""
    INACTIVE = "inactive"
    """Another consumer of the Failover subscription gets the messages from now on, or the topic is gone."""


@runtime_checkable
class SupportsSessions(Protocol):
    """A port that knows the state of its subscription at the broker, if its trait ``reports_sessions`` is true."""

    def watch_sessions(self, on_event: Callable[[SessionEvent, str, int], None], /) -> None:
        """Call ``on_event`` with each event, its topic and partition from now on, in order with received messages.

        Messages of a session that has ended, or became inactive, are dropped unless they were received before.
        """
        ...

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position, None if it is not known. Waits for a session.

        The session is still the same when the caller gets the position.
        """
        ...

    async def held_back(self) -> str | None:
        """Return why the broker holds messages back, None if no reason is known.

        It is asked for if the trait ``keeps_acks`` is true.

        :raises BrokerError: the broker gave no answer
        """
        ...

    async def flush(self) -> None:
        """Return when confirmed acknowledgements will survive the end of this process."""
        ...


@runtime_checkable
class SupportsPause(Protocol):
    """A port that can give prefetched messages back; only on Shared and Key_Shared do other consumers get them."""

    def pause(self, *, is_idle: bool) -> object:
        """Give prefetched messages back that were not received, and fetch nothing until :meth:`resume`.

        :param is_idle: no received message is unsettled; this may be called again when that becomes true
        """
        ...

    def resume(self) -> None:
        """Fetch messages again."""
        ...

    def drain(self) -> int:
        """Give them back for good, because the consumer is closed next; return how many.

        Those that were redelivered before go back with ``close`` only: the broker counts each return as a redelivery,
        and consumers that are drained in turn would use up the attempts.
        """
        ...

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give received messages back now that were not delivered; not on Exclusive and Failover."""
        ...


class Publisher(Protocol):
    """Publishes dead letters, and messages to a retry topic, which the broker delivers later."""

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message; return its id once it is stored. It may be called many times at once.

        A call that raises is made again, and one that is cancelled may have published.

        :param data: None: the message has no value, which differs from an empty one
        :param key: bytes where the producer's key was bytes
        :param event_time_ms: 0: none
        :param deliver_at_ms: when Shared and Key_Shared subscriptions get it, epoch ms; None: at once. It is only given
            for a retry topic
        """
        ...


Schema = tuple[str, bytes]
"""The name of a schema: its topic, and its version there."""


class OwnPublisher(Publisher, Protocol):
    """A publisher that a consumer owns and closes."""

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
        schema: Schema | None = None,
    ) -> MessageId:
        """Publish a message, as a :class:`Publisher`.

        :param schema: the schema of the original message, to be sent with this one; None: without
        """
        ...

    async def aclose(self) -> None:
        """Close the publisher. Messages that wait in it need not be published."""
        ...


@runtime_checkable
class SupportsPublishing(Protocol):
    """A port that can publish to the broker that its messages come from."""

    def publisher(self, topic: str | None, initial_subscription: str | None) -> OwnPublisher | None:
        """Return a publisher, None if this port has none. Nothing is connected yet.

        :param topic: the only topic, to be checked; None: each message names its topic
        :param initial_subscription: a subscription to be created in each topic before the first message
        :raises InvalidArgumentError: not a name of a topic
        """
        ...
