"""What a transport must do for :class:`~pulsar_nack.Consumer`: hand over, acknowledge, redeliver, close."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from ..ids import MessageId, Position

PROPERTY_BYTES: Final = 100
"""Bytes of the Python objects around a name and its value, about."""


@dataclass(frozen=True, slots=True)
class PortTraits:
    """What a port promises; delays in seconds.

    :param honours_ids: a redelivery request brings back just the entries it names; False on Exclusive and Failover
        subscriptions, where the broker can only rewind to everything that is not acknowledged
    :param redelivery_latency: typical time from a request to the arrival
    :param min_redelivery_delay: shortest delay that the port can carry out through the broker
    :param max_ids_per_request: most ids that one request may carry
    :param batch_index_ack: single messages of a batch are acknowledged at the broker
    :param receiver_queue_size: most messages that the transport fetches ahead, 0 where that is not known; the broker
        counts them as unacknowledged
    :param tells_sessions: it is a :class:`SupportsSessions`, and acknowledgements return when they are confirmed
    :param keeps_acks: what is confirmed is with a broker that does not end with this process
    """

    honours_ids: bool = True
    redelivery_latency: float = 0.0
    min_redelivery_delay: float = 0.0
    max_ids_per_request: int = 1_000
    batch_index_ack: bool = False
    receiver_queue_size: int = 0
    tells_sessions: bool = False
    keeps_acks: bool = False


@dataclass(slots=True)
class Delivery:
    """One message as a port hands it over; from then on nobody changes it (freezing it would triple what it costs).

    :param id: its id; with ``batch_size`` for a message of a batch, and a topic where there are several
    :param data: the payload, empty where ``is_null``
    :param redelivery_count: the broker's count, 0 at first; it starts anew when the broker forgets
    :param publish_time_ms: epoch ms; likewise ``event_time_ms``, 0 when the producer set none
    :param native: the transport's own message object, for its own use and for users who need it
    :param error: why the message cannot be read, where that is so; ``data`` is then what was stored
    :param is_key_encoded: ``key`` is base64 of a key of bytes, as far as the transport can tell
    :param is_null: the producer sent no value, which differs from an empty one
    :param producer_name: None if the transport does not know; so for the three below
    :param sequence_id: the producer's number of the message
    :param schema_version: as the broker numbers the topic's schemas, None: sent without one
    :param replicated_from: the cluster that it came from, None: it was published in this one
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
    """Return what a message takes: its payload, and all that its producer may make as large as it likes."""
    size = len(delivery.data)
    if type(delivery) is not Delivery:  # a transport's kind for messages that have little beside
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
class SupportsCumulativeAck(Protocol):
    """A port that can acknowledge everything up to a message; Exclusive and Failover subscriptions only."""

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including ``message_id``, in its partition."""
        ...


T = TypeVar("T")
AcksDone = Callable[[Sequence[T], Exception | None], None]
"""Is told that acknowledgements ended: their tokens, and None or the error."""


@runtime_checkable
class SupportsNowait(Protocol):
    """A port whose calls for each message need no task of their own, which saves most of what a message costs."""

    def receive_nowait(self) -> Delivery | None:
        """Return the next message, None if none is here. Not called while a call of ``receive`` waits.

        :raises ClosedError: after ``close``
        """
        ...

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge one message; ``done`` gets its token, and None or the error, in a later turn of the
        loop, and may get the tokens of others with it, for which it was given too and which ended in the same way.

        :raises ClosedError: after ``close``; ``done`` is not called then
        """
        ...


@runtime_checkable
class SupportsRedeliverNowait(Protocol):
    """A port that can ask for a redelivery without waiting: what is due comes earlier by a turn of the loop or two."""

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Do what ``redeliver`` does; what it raises is raised here."""
        ...


@runtime_checkable
class SupportsConnectionState(Protocol):
    """A port that can tell whether it reaches its broker; acknowledgements do not grow old while it does not."""

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        ...


class SessionEvent(Enum):
    """What happens to the session of a topic or partition."""

    BEGAN = "began"
    """What is not acknowledged comes from now on, also what came in the session before."""
    LOST = "lost"
    """The connection broke: the broker may have lost the acknowledgements that it confirmed last."""
    CLOSED = "closed"
    """The broker ended it, on a connection that lives, and has all that it confirmed: the subscription was moved, or
    the topic is moved to another broker."""
    INACTIVE = "inactive"
    """Another consumer of the Failover subscription gets the messages from now on, or the topic is gone."""


@runtime_checkable
class SupportsHeldBack(Protocol):
    """A port that can say why the broker sends nothing."""

    async def held_back(self) -> str | None:
        """Return why the broker sends nothing more though there is more, None where it knows no reason.

        :raises BrokerError: the broker gave no answer
        """
        ...


@runtime_checkable
class SupportsSessions(Protocol):
    """A port that reports session events, if its trait ``tells_sessions`` is true."""

    def watch_sessions(self, told: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``told`` with each event, the topic and the partition from now on, in order with what is received.

        What was delivered in a session that has ended, or became inactive, and was not received yet is dropped.
        """
        ...

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return up to where everything is acknowledged, None where that is not known. Waits for a session.

        It belongs to the present session, also when the caller gets it.
        """
        ...

    async def flush(self) -> None:
        """Return when what was confirmed outlives this process."""
        ...


@runtime_checkable
class SupportsUnsubscribe(Protocol):
    """A port that can delete its subscription."""

    async def unsubscribe(self) -> None:
        """Delete the subscription at the broker, and close the port.

        :raises BrokerError: the broker refused, as it does while others consume
        """
        ...


@runtime_checkable
class SupportsPause(Protocol):
    """A port that can give back what it fetched ahead; only on Shared and Key_Shared another consumer gets it."""

    def pause(self, *, is_idle: bool) -> None:
        """Give back what was fetched ahead and not received, and fetch nothing until :meth:`resume`.

        :param is_idle: nothing that was received is unsettled; it may be called again when that is so
        """
        ...

    def resume(self) -> None:
        """Fetch messages again."""
        ...

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give messages back at once that were received and not shown; not on Exclusive and Failover."""
        ...


class Publisher(Protocol):
    """What puts dead letters into a topic."""

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
    ) -> MessageId:
        """Publish a message; return its id once it is stored. It may be called many times at once.

        A call that raises is made again, and one that is cancelled may have published.

        :param data: None: the message has no value, which differs from an empty one
        :param key: bytes where the producer's key was bytes
        :param event_time_ms: 0: none
        """
        ...


Schema = tuple[str, bytes]
"""Names a schema: the topic that it is of, and its version there."""


class OwnPublisher(Protocol):
    """A publisher of the consumer's own, which closes it."""

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        schema: Schema | None,
    ) -> MessageId:
        """Do what a :class:`Publisher` does.

        :param schema: what the message was sent with first, and is sent with again; None: without
        """
        ...

    async def aclose(self) -> None:
        """Close it. What waits for it need not be published."""
        ...


@runtime_checkable
class SupportsPublishing(Protocol):
    """A port that can publish, to wherever its messages come from."""

    def publisher(self, topic: str | None, initial_subscription: str | None) -> OwnPublisher | None:
        """Return a publisher, None if this port has none after all. Nothing is connected yet.

        :param topic: the only one that will be published to, to be checked; None: that is told with each message
        :param initial_subscription: a subscription that each topic shall have before the first message is in it
        :raises InvalidArgumentError: not a name of a topic
        """
        ...


@runtime_checkable
class SupportsSeek(Protocol):
    """A port that can move its subscription."""

    async def seek(self, position: MessageId | int) -> None:
        """Move to a message id, or to a publish time in epoch ms."""
        ...
