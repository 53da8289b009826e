"""The message that a user receives, and its verbs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from .._delays import Delay
from ..errors import AlreadySettledError
from ._port import Delivery
from ._received_message import ReceivedMessage
from ._settler import Settler

ACKED = "acknowledged"
NACKED = "negatively acknowledged"
DEAD_LETTERED = "sent to the dead-letter topic"


class Message(ReceivedMessage):
    """One attempt to handle a message.

    It is acknowledged or negatively acknowledged: of two calls that race one wins, and the other raises
    :class:`~pulsar_nack.AlreadySettledError`. Doing the same again is harmless. An ``ack`` after a ``nack`` that has
    returned cancels it, unless the message has been redelivered; an ``ack`` is final.
    """

    __slots__ = ("_keeps", "_nacking", "_redelivery_count", "_settled_as", "_settler")

    def __init__(self, settler: Settler, delivery: Delivery, redelivery_count: int) -> None:
        self._settler = settler
        self._delivery = delivery
        self._redelivery_count = redelivery_count
        self._settled_as: str | None = None
        self._nacking: asyncio.Task[Any] | None = None
        self._keeps: object = None
        """The consumer, once a call has received the message; see ``_lifetime``."""

    @property
    def redelivery_count(self) -> int:
        """Return how often the message was delivered before: this consumer's count, or the broker's if higher."""
        return self._redelivery_count

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, 1 for the first."""
        return self._redelivery_count + 1

    async def ack(self) -> None:
        """Acknowledge the message; a nack of it that is not due is cancelled. A failed call changes nothing.

        Cancelling the call does not stop it. If it then fails, the message is redelivered as if it had been nacked.

        On a durable consumer this returns once it is durable: from then on the message is not redelivered, even if the
        process ends before the broker has received the acknowledgement.

        :raises AlreadySettledError: another task's ``nack`` came first just now, or the message was nacked and is
            redelivered
        :raises BrokerError: the acknowledgement failed
        :raises ClosedError: the consumer is closed
        """
        before = None
        if self._settled_as is None:
            self._settled_as = ACKED
        else:
            before = self._begin_ack()
        try:
            await self._settler.acknowledge(self._delivery.id)
        except BaseException:
            self._settled_as = before
            raise
        self._settled_as = ACKED

    def ack_soon(self) -> None:
        """Acknowledge the message without waiting for the outcome, which makes a single task many times as fast.

        For work that may be repeated: if the process ends at once the message is redelivered. Closing the consumer
        waits for the outcome; if the acknowledgement fails the message is redelivered, as if it had been nacked.

        :raises AlreadySettledError: as :meth:`ack` raises it
        :raises ClosedError: the consumer is closed
        """
        before = self._begin_ack()
        try:
            self._settler.acknowledge_soon(self._delivery.id)
        except BaseException:
            self._settled_as = before
            raise

    def _begin_ack(self) -> str | None:
        """Note an acknowledgement; return what to restore if it fails."""
        before = self._settled_as
        if before is not None and before != ACKED:
            self._check_nacked(before)
        self._settled_as = ACKED
        return before if before == NACKED else None

    def _check_nacked(self, before: str) -> None:
        """Raise unless the message was nacked, and that can still be taken back."""
        if before == DEAD_LETTERED:
            raise AlreadySettledError(self.id, DEAD_LETTERED)
        if self._nacking is not None and self._nacking is not asyncio.current_task():
            raise AlreadySettledError(self.id, NACKED)  # by another task, just now or in this turn of the loop
        self._settler.check_attempt(self._delivery.id, self._redelivery_count)

    async def nack(self, delay: Delay | None = None, *, reason: str = "") -> None:
        """Ask for redelivery after ``delay`` (seconds or a timedelta), None: after what the backoff says.

        If this is called again before that time, the earlier of both times counts. On a durable consumer this returns
        once it is durable. Lets other tasks run if they have not for 5 ms. After the last attempt that the
        ``dead_letter`` setting allows, the message goes to the dead-letter topic instead; the consumer finishes this
        after the call has returned.

        :param reason: is traced, and written with the dead letter; up to 1 000 characters
        :raises AlreadySettledError: it was acknowledged, or an acknowledgement is under way
        :raises InvalidArgumentError: the delay or the reason
        :raises NotDurableError: the consumer is durable and this could not be written; the nack is in effect
        :raises ClosedError: the consumer is closed
        """
        before = self._settled_as
        if before is not None and before != NACKED:
            raise AlreadySettledError(self.id, before)
        self._settled_as = NACKED
        settler, delivery = self._settler, self._delivery
        self._nacking = asyncio.current_task()
        try:
            written = await settler.nack(delivery.id, delay, delivery, self._redelivery_count, reason=reason)
            self._settled_as = before = NACKED
            if written is not None:
                await settler.until_durable(delivery.id, written)
            elif settler.turn.is_long():
                await asyncio.sleep(0)
        except BaseException:
            self._settled_as = before
            raise
        finally:
            settler.turn.call_at_end(partial(setattr, self, "_nacking", None))

    async def dead_letter(self, reason: str = "") -> None:
        """Send the message to the dead-letter topic now, whatever attempt this is; a nack of it is cancelled.

        Returns when it is published there and acknowledged here. Failed steps are repeated until they succeed;
        cancelling the call does not stop them. A second call waits for the same outcome.

        :param reason: is written there, up to 1 000 characters
        :raises NoDeadLetterError: the consumer has no ``dead_letter`` setting; nothing changed
        :raises AlreadySettledError: it was acknowledged, another task's ``nack`` came first just now, or it is
            redelivered
        :raises ClosedError: the consumer is closed; the message is redelivered, and may have been published
        """
        before = self._settled_as
        if before == ACKED:
            raise AlreadySettledError(self.id, ACKED)
        if before == NACKED:
            self._check_nacked(before)
        self._settled_as = DEAD_LETTERED
        try:
            await self._settler.dead_letter(self._delivery, self._redelivery_count, reason)
        except BaseException:
            if not self._settler.is_dead_lettering(self.id):
                self._settled_as = before
            raise

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempt {self.attempt}, {self._size()}>"
