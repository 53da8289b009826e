"""The message that a user receives, and its verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from .._check import check_integer
from .._delays import Delay, delay_ms, positive_delay_ms
from ..errors import AcknowledgeError, AlreadySettledError, ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._consumer_state import YIELD_AFTER_MS
from ._leases import Leases
from ._message_state import DEFERRED, VERBS, Lease, State
from ._outcomes import OnError, Processing, checked_rules
from ._port import Delivery
from ._received_message import ReceivedMessage
from ._settler import Settler

ACKED: Final = State.ACKING.value
NACKED: Final = State.HELD.value
DEAD_LETTERED: Final = State.DEAD_LETTERING.value
RETRIED: Final = State.RETRYING.value


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
        before, settler, delivery = self._settled_as, self._settler, self._delivery
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
            elif settler.turn.now_ms - settler.turn.yielded_at_ms >= YIELD_AFTER_MS and settler.turn.is_long():
                await asyncio.sleep(0)
        except BaseException:
            self._settled_as = before
            raise
        finally:
            if not settler.turn.nacked:
                asyncio.get_running_loop().call_soon(settler.turn.end)
            settler.turn.nacked.append(self)

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
        if on_error is None:
            return Processing(self, {})
        return Processing(self, checked_rules(on_error, has_dead_letters=self._settler.state.has_dead_letters))

    def __repr__(self) -> str:
        return f"<Message {self.id!r} attempt {self.attempt}, {self._size()}>"


async def acknowledge_all(settler: Settler, messages: Iterable[Message | MessageId]) -> None:
    """Acknowledge messages, or those with these ids, at once; see :meth:`Message.ack` for each.

    :raises InvalidArgumentError: something else is among them; nothing changed
    :raises AcknowledgeError: some were not acknowledged
    :raises ClosedError: the consumer is closed
    """
    several = list(messages)
    for each in several:
        if not isinstance(each, Message | MessageId):
            raise InvalidArgumentError("message", each, "a Message, a MessageId, or several of them")
    settler.state.check_open()
    begun: dict[Message, str | None] = {}
    calls: dict[MessageId, asyncio.Future[None]] = {}
    failed: dict[MessageId, BaseException] = {}
    lost: dict[MessageId, BaseException] = {}
    for each in dict.fromkeys(several):
        try:
            _begin_one(settler, each, begun, calls)
        except Exception as error:  # noqa: BLE001 - raised below, once the others are done
            failed[each.id if isinstance(each, Message) else each] = error
    try:
        await asyncio.gather(*calls.values(), return_exceptions=True)
        lost = {each: failure for each, call in calls.items() if (failure := call.exception()) is not None}
    except asyncio.CancelledError:
        for each, call in calls.items():
            lost[each] = ClosedError("the call")
            settler.on_unobserved(each, None if call.cancelled() else call.exception())
        raise
    finally:
        for message, before in begun.items():
            if message.id in lost:
                message._settled_as = before
    failed |= lost
    if any(isinstance(error, ClosedError) for error in failed.values()):
        raise ClosedError("the consumer")
    if failed:
        raise AcknowledgeError(failed, len(several)) from next(iter(failed.values()))


def _begin_one(
    settler: Settler,
    each: Message | MessageId,
    begun: dict[Message, str | None],
    calls: dict[MessageId, asyncio.Future[None]],
) -> None:
    """Begin to acknowledge one of several messages; note what to restore if that fails, and the outcome."""
    if isinstance(each, MessageId):
        if each not in calls:
            calls[each] = asyncio.ensure_future(settler.acknowledge(each))
        return
    before = each._begin_ack()
    try:
        if each.id not in calls:
            calls[each.id] = asyncio.ensure_future(settler.acknowledge(each.id))
    except BaseException:
        each._settled_as = before
        raise
    begun[each] = before


async def receive_batch(
    receive: Callable[[], Awaitable[Message]],
    take_back: Callable[[Message], None],
    max_messages: int,
    max_bytes: int,
    timeout: Delay | None,
    *,
    leases: Leases | None,
) -> list[Message]:
    """Receive several messages, and take back what is too much; see :meth:`Consumer.batch_receive`.

    Their leases begin when all of them are here: no handler has one before.
    """
    check_integer("max_messages", max_messages, 1)
    check_integer("max_bytes", max_bytes, 1)
    seconds = None if timeout is None else delay_ms(timeout, "timeout") / 1000
    found: list[Message] = []
    size = 0
    try:
        async with asyncio.timeout(seconds) as limit:
            while len(found) < max_messages and size < max_bytes:
                message = await receive()
                size += len(message._delivery.data)
                if found and size > max_bytes:
                    take_back(message)
                    continue
                found.append(message)
                if leases is not None:
                    leases.cancel(message._lease)
    except BaseException as error:
        if not (isinstance(error, TimeoutError) and limit.expired()):
            for message in reversed(found):
                take_back(message)
            raise
    if leases is not None:
        for message in found:
            message._lease = leases.begin(message._delivery, message._redelivery_count)
    return found
