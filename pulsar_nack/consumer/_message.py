"""What the user holds in the hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._delays import Delay
from ..errors import AlreadySettledError
from ..ids import MessageId
from ._port import Delivery

if TYPE_CHECKING:
    from ._consumer import Consumer

ACKED = "acknowledged"
NACKED = "negatively acknowledged"


class Message:
    """A message, one of the times that it is shown.

    It is acknowledged or negatively acknowledged once: of two calls that race one wins, and the other raises
    :class:`~pulsar_nack.AlreadySettledError`. Doing the same again is harmless.
    """

    __slots__ = ("_consumer", "_delivery", "_redelivery_count", "_settled_as")

    def __init__(self, consumer: Consumer, delivery: Delivery, redelivery_count: int) -> None:
        self._consumer = consumer
        self._delivery = delivery
        self._redelivery_count = redelivery_count
        self._settled_as: str | None = None

    @property
    def id(self) -> MessageId:
        """Return its id."""
        return self._delivery.id

    @property
    def data(self) -> bytes:
        """Return the payload."""
        return self._delivery.data

    def value(self) -> Any:
        """Return the payload decoded by the subscription's schema, where there is one; else the bytes."""
        native = self._delivery.native
        return native.value() if hasattr(native, "value") else self._delivery.data

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the producer's properties."""
        return self._delivery.properties

    @property
    def key(self) -> str | None:
        """Return the partition key, None if there is none."""
        return self._delivery.key

    @property
    def ordering_key(self) -> str | None:
        """Return the ordering key, None if there is none."""
        return self._delivery.ordering_key

    @property
    def topic(self) -> str:
        """Return the full topic name, with the partition."""
        return self._delivery.topic

    @property
    def publish_time_ms(self) -> int:
        """Return when it was published, epoch ms."""
        return self._delivery.publish_time_ms

    @property
    def event_time_ms(self) -> int:
        """Return the producer's event time, epoch ms, 0 if there is none."""
        return self._delivery.event_time_ms

    @property
    def redelivery_count(self) -> int:
        """Return how often it was shown before: by this consumer's count, or the broker's where that is higher."""
        return self._redelivery_count

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, 1 for the first."""
        return self._redelivery_count + 1

    @property
    def native(self) -> Any:
        """Return the transport's own message object (``pulsar.Message`` for the official client)."""
        return self._delivery.native

    async def ack(self) -> None:
        """Acknowledge it. A failed call leaves it as it was, to be tried again.

        :raises AlreadySettledError: it was negatively acknowledged
        :raises BrokerError: the acknowledgement failed
        :raises ClosedError: the consumer is closed
        """
        await self._settle_as(ACKED)

    async def nack(self, delay: Delay | None = None) -> None:
        """Have it shown again after ``delay`` (seconds or a timedelta), None: after what the backoff says.

        Again before that time: the earlier of both times counts.

        :raises AlreadySettledError: it was acknowledged, or an acknowledgement is under way
        :raises InvalidArgumentError: the delay
        :raises ClosedError: the consumer is closed
        """
        await self._settle_as(NACKED, delay)

    async def _settle_as(self, verb: str, delay: Delay | None = None) -> None:
        before = self._settled_as
        if before not in {None, verb}:
            raise AlreadySettledError(self.id, str(before))
        self._settled_as = verb
        try:
            if verb == ACKED:
                await self._consumer._acknowledge(self.id)
            else:
                await self._consumer._negative_acknowledge(self.id, delay, self)
        except BaseException:
            self._settled_as = before if verb == NACKED else None
            raise
        self._settled_as = verb

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempt {self.attempt}, {len(self.data)} bytes>"
