"""The message that a user receives: its payload, the fields that its producer and the broker set, and its verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias

from .._delays import Delay, delay_ms, positive_delay_ms
from ..errors import AlreadySettledError
from ..ids import MessageId
from ._consumer_state import YIELD_AFTER_MS
from ._message_state import ACKED, DEAD_LETTERED, DEFERRED, NACKED, RETRIED, VERBS, Lease
from ._outcomes import OnError, Processing, checked_rules
from ._port import Delivery
from ._settler import Settler

MaybeNone: TypeAlias = Any
"""Stands for None where it is rare: type checkers then do not require a check at each use."""


class ReceivedMessage:
    """A message without verbs: what a reader returns, and what a :class:`~pulsar_nack.Message` has besides them."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def id(self) -> MessageId:
        """Return the message id."""
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
        """Return the payload decoded by the subscription's schema; without a schema, as :attr:`data`.

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
        """Return the partition key, None without one."""
        return self._delivery.key

    @property
    def ordering_key(self) -> str | None:
        """Return the ordering key, None without one."""
        return self._delivery.ordering_key

    @property
    def topic(self) -> str:
        """Return the full topic name, with the partition."""
        return self._delivery.topic

    @property
    def publish_time_ms(self) -> int:
        """Return the publish time, epoch ms."""
        return self._delivery.publish_time_ms

    @property
    def event_time_ms(self) -> int:
        """Return the producer's event time, epoch ms, 0 without one."""
        return self._delivery.event_time_ms

    @property
    def producer_name(self) -> str | None:
        """Return the name of the producer; None on local topics."""
        return self._delivery.producer_name

    @property
    def sequence_id(self) -> int | None:
        """Return the producer's number of the message; None on local topics and over the official client."""
        return self._delivery.sequence_id

    @property
    def schema_version(self) -> bytes | None:
        """Return the version of the topic's schema that the message was sent with; None: without one."""
        return self._delivery.schema_version

    @property
    def replicated_from(self) -> str | None:
        """Return the cluster the message was replicated from; None if not replicated, or over the official client."""
        return self._delivery.replicated_from

    @property
    def is_replicated(self) -> bool:
        """Return whether the message came from another cluster."""
        return self._delivery.replicated_from is not None

    @property
    def native(self) -> Any:
        """Return the transport's own message object (``pulsar.Message`` for the official client)."""
        return self._delivery.native

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}, {self._size()}>"

    def _size(self) -> str:
        size = "null" if self._delivery.is_null else f"{len(self._delivery.data)} bytes"
        return size if self.error is None else f"{size}, cannot be read"


class Message(ReceivedMessage):
    """One attempt to handle a message.

    It is acknowledged, negatively acknowledged or deferred: of two calls that race one wins, and the other raises
    :class:`~pulsar_nack.AlreadySettledError`. Doing the same again is harmless. An ``ack`` after a ``nack`` that has
    returned cancels it, unless the message has been redelivered; an ``ack`` and a ``defer`` are final.
    """

    __slots__ = ("_keeps", "_lease", "_nacking", "_redelivery_count", "_settled_as", "_settler")

    def __init__(self, settler: Settler, delivery: Delivery, redelivery_count: int) -> None:
        self._settler = settler
        self._delivery = delivery
        self._redelivery_count = redelivery_count
        self._settled_as: str | None = None
        self._nacking: asyncio.Task[Any] | None = None
        self._lease: Lease | None = None
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

    @property
    def is_settled(self) -> bool:
        """Return whether this attempt was acknowledged, nacked, deferred or sent away, or a call is about to."""
        is_late = self._lease is not None and self._lease.has_ended  # its handler may still settle it
        return self._settled_as is not None or not self._settler.is_in_work(self.id, self.attempt, is_late=is_late)

    @property
    def settled_by(self) -> str | None:
        """Return the name of the consumer's verb that settled this attempt, as ``"negative_acknowledge"``; or None."""
        return None if self._settled_as is None else VERBS[self._settled_as]

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
        if self._settled_as is None and self._lease is None:
            self._settled_as = ACKED
        else:
            before = self._begin_ack()
        acked: asyncio.Future[None] = asyncio.Future(loop=self._settler.state.loop)
        try:
            self._settler.acknowledge_soon(self._delivery.id, acked)  # as acknowledge: the hot path
            await acked
        except BaseException as error:
            self._settled_as = before
            self._settler.acks.on_raised(self._delivery.id, acked, error)
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
        if before is None and self._settler.leases is not None:
            self._settler.leases.check(self._lease)
        elif before is not None and before != ACKED:
            self._check_nacked(before)
        self._settled_as = ACKED
        return before if before == NACKED else None

    def _check_nacked(self, before: str) -> None:
        """Raise unless the message was nacked, and that can still be taken back."""
        if before in {DEAD_LETTERED, RETRIED, DEFERRED}:
            raise AlreadySettledError(self.id, before)
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
        await self._hold(NACKED, delay, reason)

    async def defer(self, delay: Delay) -> None:
        """Postpone the message: it is delivered again after ``delay``, as the same attempt.

        Nothing failed, so this counts no attempt, and a message that is deferred again and again never becomes a dead
        letter. With ``redelivery="auto"`` the message stays in memory until then, while ``max_local_bytes`` allows. If
        the broker redelivers it, its own count grows, which this consumer leaves out and other consumers do not. On a
        durable consumer the call returns once it is durable. A second call has no effect.

        :param delay: seconds or a timedelta
        :raises AlreadySettledError: it was settled in another way
        :raises InvalidArgumentError: the delay
        :raises NotDurableError: as :meth:`nack`
        :raises ClosedError: the consumer is closed
        """
        before = self._settled_as
        if before not in {None, DEFERRED}:
            raise AlreadySettledError(self.id, before)
        delay_ms(delay)
        if before is None:
            await self._hold(DEFERRED, delay, DEFERRED)

    async def _hold(self, settled_as: str, delay: Delay | None, reason: str) -> None:
        """Nack or defer the message."""
        before, settler, state, delivery = self._settled_as, self._settler, self._settler.state, self._delivery
        if settler.leases is not None and before is None:
            settler.leases.check(self._lease)
        self._settled_as = settled_as
        self._nacking = asyncio.current_task()
        try:
            written = await settler.nack(
                delivery.id, delay, delivery, self._redelivery_count, reason=reason, is_deferred=settled_as is DEFERRED
            )
            self._settled_as = before = settled_as
            if written is not None:
                await settler.until_durable(delivery.id, written)
            elif state.now_ms - state.yielded_at_ms >= YIELD_AFTER_MS:
                state.yielded_at_ms = state.now_ms
                await asyncio.sleep(0)
        except BaseException:
            self._settled_as = before
            raise
        finally:
            if not state.just_nacked:
                asyncio.get_running_loop().call_soon(state.end_turn)
            state.just_nacked.append(self)

    async def in_progress(self, delay: Delay | None = None) -> None:
        """Let the lease of the message end ``delay`` from now (seconds or a timedelta), None: the consumer's ``lease``.

        If the lease ended and the message is still held, this takes it back: the handler goes on with the same attempt.
        Has no effect on a consumer without leases.

        :raises LeaseExpiredError: the lease ended, and the message was requested, redelivered or given up since
        :raises AlreadySettledError: the message was settled
        :raises InvalidArgumentError: the delay, also if it is 0
        :raises ClosedError: the consumer is closed
        """
        self._settler.state.check_open()
        if self._settled_as is not None:
            raise AlreadySettledError(self.id, self._settled_as)
        if self._settler.leases is not None:
            self._settler.leases.extend(self._lease, self._delivery, delay)
        elif delay is not None:
            positive_delay_ms(delay)

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
        await self._send(DEAD_LETTERED, self._settler.dead_letter(self._delivery, self._redelivery_count, reason))

    async def reconsume_later(
        self, delay: Delay | None = None, *, properties: Mapping[str, str] | None = None, reason: str = ""
    ) -> None:
        """Send the message to the retry topic, where it waits for ``delay`` and is then delivered again.

        This is a failed attempt, as a nack is; after the last one that ``dead_letter`` allows, the message goes to the
        dead-letter topic instead. Unlike a nacked one the message is acknowledged, so that it does not count against
        the broker's limit, and another consumer of the subscription may get it. Returns, repeats and raises as
        :meth:`dead_letter`.

        :param delay: seconds or a timedelta, None: what the backoff says
        :param properties: added to those of the message
        :param reason: is traced, and written with a dead letter; up to 1 000 characters
        :raises InvalidArgumentError: an argument, or the consumer has no ``retry_topic`` setting; nothing changed
        :raises AlreadySettledError: as :meth:`dead_letter` raises it
        :raises ClosedError: the consumer is closed; the message is redelivered, and may have been published
        """
        settler, count = self._settler, self._redelivery_count
        await self._send(RETRIED, settler.reconsume_later(self._delivery, count, delay, properties, reason))

    async def _send(self, settled_as: str, sending: Coroutine[Any, Any, None]) -> None:
        """Settle the message by sending it to another topic."""
        before = self._settled_as
        try:
            self._check_sendable(settled_as)
            self._settled_as = settled_as
            await sending
        except BaseException:
            sending.close()
            if not self._settler.state.is_sent_away(self.id):
                self._settled_as = before
            raise

    def _check_sendable(self, settled_as: str) -> None:
        before = self._settled_as
        if before is not None and before not in {NACKED, settled_as}:
            raise AlreadySettledError(self.id, before)
        if before == NACKED:
            self._check_nacked(before)
        elif self._settler.leases is not None and not self._settler.state.is_sent_away(self.id):
            self._settler.leases.check(self._lease)

    def process(self, on_error: OnError | None = None) -> Processing:
        """Return a block, for ``async with``, at the end of which the message is settled.

        ================================================  ===========================================================
        the block                                         the message is
        ================================================  ===========================================================
        ends                                              acknowledged
        raises ``Retry``, ``Defer``, ``DeadLetter`` or    settled so, and the block ends without an exception
        ``Ignore``
        raises what ``on_error`` names                    settled as it says, and the block ends without an exception
        raises another exception                          nacked by the backoff, and the exception goes on
        is cancelled, or raises another                   left as it is, and the exception goes on
        ``BaseException``
        ================================================  ===========================================================

        A block that settles the message itself is left alone; what it raises then goes on, except for verbs and what
        ``on_error`` names.

        :param on_error: verbs by exception type; the most derived type that matches counts
        :raises InvalidArgumentError: names the rule that is wrong

        ::

            async with message.process(on_error={ConnectionError: Retry(delay=5), ValueError: DeadLetter("bad")}):
                await work(message.data)
        """
        has_dead_letters = self._settler.state.has_dead_letters
        return Processing(self, {} if on_error is None else checked_rules(on_error, has_dead_letters=has_dead_letters))

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempt {self.attempt}, {self._size()}>"
