"""What the user holds in the hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .._delays import Delay
from ..errors import AlreadySettledError
from ..ids import MessageId
from ._port import Delivery

if TYPE_CHECKING:
    from ._consumer import Consumer

ACKED = "acknowledged"
NACKED = "negatively acknowledged"
GIVEN_UP = "sent to the dead-letter topic"


MaybeNone: TypeAlias = Any
"""Stands for None where it is rare: type checkers then do not require a check at each use."""


class Message:
    """A message, one of the times that it is shown.

    It is acknowledged or negatively acknowledged: of two calls that race one wins, and the other raises
    :class:`~pulsar_nack.AlreadySettledError`. Doing the same again is harmless. An ``ack`` after a ``nack`` that has
    returned cancels it, as long as the message has not been shown again; an ``ack`` is final.
    """

    __slots__ = ("_consumer", "_delivery", "_nacking", "_redelivery_count", "_settled_as")

    def __init__(self, consumer: Consumer, delivery: Delivery, redelivery_count: int) -> None:
        self._consumer = consumer
        self._delivery = delivery
        self._redelivery_count = redelivery_count
        self._settled_as: str | None = None
        self._nacking: asyncio.Task[Any] | None = None

    @property
    def id(self) -> MessageId:
        """Return its id."""
        return self._delivery.id

    @property
    def data(self) -> bytes | MaybeNone:
        """Return the payload; None where the producer sent no value (``send(None)``), which differs from ``b""``.

        :raises UndecodableMessageError: it cannot be read; see :attr:`error`
        """
        delivery = self._delivery
        if delivery.error is not None:
            raise delivery.error
        return None if delivery.is_null else delivery.data

    @property
    def error(self) -> Exception | None:
        """Return why the payload cannot be read, None if it can: it is encrypted, damaged or of an unknown kind."""
        return self._delivery.error

    def value(self) -> Any:
        """Return the payload decoded by the subscription's schema, where there is one; else as :attr:`data`.

        :raises UndecodableMessageError: as :attr:`data`
        """
        data, native = self.data, self._delivery.native
        return native.value() if data is not None and hasattr(native, "value") else data

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
    def producer_name(self) -> str | None:
        """Return the name of its producer; None on local topics."""
        return self._delivery.producer_name

    @property
    def sequence_id(self) -> int | None:
        """Return the producer's number of the message; None on local topics and over the official client."""
        return self._delivery.sequence_id

    @property
    def schema_version(self) -> bytes | None:
        """Return the version of the topic's schema that it was written with; None: it was sent without one."""
        return self._delivery.schema_version

    @property
    def replicated_from(self) -> str | None:
        """Return the cluster it was replicated from; None: it was not, or it came over the official client."""
        return self._delivery.replicated_from

    @property
    def is_replicated(self) -> bool:
        """Return whether it came from another cluster."""
        return self._delivery.replicated_from is not None

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
        """Acknowledge it; a nack that waits for its time is cancelled. A failed call leaves it as it was.

        A call that is cancelled goes on. If that fails the message is shown again, as if it had been nacked.

        On a durable consumer this returns once it is durable: from then on the message is not shown again, also if the
        process ends before the broker has heard of it.

        :raises AlreadySettledError: another task's ``nack`` came first just now, or it was nacked and is shown again
        :raises BrokerError: the acknowledgement failed
        :raises ClosedError: the consumer is closed
        """
        before = None
        if self._settled_as is None:
            self._settled_as = ACKED
        else:
            before = self._begin_ack()
        try:
            await self._consumer._acknowledge(self._delivery.id)
        except BaseException:
            self._settled_as = before
            raise
        self._settled_as = ACKED

    def ack_soon(self) -> None:
        """Acknowledge it without waiting for the outcome: one task alone is many times as fast so.

        For work that may be done twice: if the process ends at once the message comes again. Closing the consumer
        waits for the outcome; where the acknowledgement fails the message is shown again, as if it had been nacked.

        :raises AlreadySettledError: as :meth:`ack` raises it
        :raises ClosedError: the consumer is closed
        """
        before = self._begin_ack()
        try:
            self._consumer._acknowledge_soon(self._delivery.id)
        except BaseException:
            self._settled_as = before
            raise

    def _begin_ack(self) -> str | None:
        """Note an acknowledgement; return what was before, for the case that it fails."""
        before = self._settled_as
        if before is not None and before != ACKED:
            self._check_nacked(before)
        self._settled_as = ACKED
        return before if before == NACKED else None

    def _check_nacked(self, before: str) -> None:
        """Raise unless what was done before is a nack that can still be taken back."""
        if before == GIVEN_UP:
            raise AlreadySettledError(self.id, GIVEN_UP)
        self._check_uncontested()
        self._consumer._check_attempt(self)

    def _check_uncontested(self) -> None:
        """Tell a task that lost the race: another one's nack is under way, or came in this turn of the loop."""
        if self._nacking is not None and self._nacking is not asyncio.current_task():
            raise AlreadySettledError(self.id, NACKED)

    async def nack(self, delay: Delay | None = None, *, reason: str = "") -> None:
        """Have it shown again after ``delay`` (seconds or a timedelta), None: after what the backoff says.

        Again before that time: the earlier of both times counts. On a durable consumer this returns once it is durable.
        Lets other tasks run if they have not for 5 ms. After the last attempt that the ``dead_letter`` setting allows,
        the message goes to the dead-letter topic instead; the consumer finishes this after the call has returned.

        :param reason: is traced, and written with the dead letter; up to 1 000 letters
        :raises AlreadySettledError: it was acknowledged, or an acknowledgement is under way
        :raises InvalidArgumentError: the delay or the reason
        :raises NotDurableError: the consumer is durable and this could not be written; the nack is in effect
        :raises ClosedError: the consumer is closed
        """
        before = self._settled_as
        if before is not None and before != NACKED:
            raise AlreadySettledError(self.id, before)
        self._settled_as = NACKED
        loop, consumer, message_id = asyncio.get_running_loop(), self._consumer, self._delivery.id
        self._nacking = asyncio.current_task(loop)
        try:
            written = await consumer._negative_acknowledge(message_id, delay, self, reason=reason)
            self._settled_as = before = NACKED
            if written is not None:
                await consumer._until_durable(message_id, written)
            elif consumer._is_turn_long():
                await asyncio.sleep(0)
        except BaseException:
            self._settled_as = before
            raise
        finally:
            consumer._note_nacking(self, loop)

    async def dead_letter(self, reason: str = "") -> None:
        """Send it to the dead-letter topic at once, whatever attempt this is; a nack that waits is cancelled.

        Returns when it is published there and acknowledged here. What fails is tried again until it succeeds; a call
        that is cancelled leaves it to go on. Again meanwhile: waits for the same.

        :param reason: is written there, up to 1 000 letters
        :raises NoDeadLetterError: the consumer has no ``dead_letter`` setting; nothing changed
        :raises AlreadySettledError: it was acknowledged, another task's ``nack`` came first just now, or it is shown
            again
        :raises ClosedError: the consumer is closed; the message comes again, and may have been published
        """
        before = self._settled_as
        if before == ACKED:
            raise AlreadySettledError(self.id, ACKED)
        if before == NACKED:
            self._check_nacked(before)
        self._settled_as = GIVEN_UP
        try:
            await self._consumer._dead_letter(self, reason)
        except BaseException:
            if not self._consumer._is_given_up(self.id):
                self._settled_as = before
            raise

    def __repr__(self) -> str:
        unreadable = "" if self.error is None else ", cannot be read"
        size = "null" if self._delivery.is_null else f"{len(self._delivery.data)} bytes"
        return f"<Message {self.id!r} attempt {self.attempt}, {size}{unreadable}>"
