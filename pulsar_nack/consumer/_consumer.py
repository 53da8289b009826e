"""The consumer as users hold it: its lifecycle, receiving, and the verbs for messages, subscriptions and statistics."""

from __future__ import annotations

import asyncio
from _thread import get_ident
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self, Unpack

from .._check import check_has
from .._delays import Delay
from .._lifetime import ClosesWhenDropped
from ..errors import ClosedError
from ..ids import MessageId
from . import _consumer_verbs as verbs
from ._consumer_state import YIELD_AFTER_MS
from ._engine import ConsumerEngine
from ._events import names_of
from ._lifecycle import Lifecycle
from ._message import Message
from ._outcomes import OnError
from ._port import ConsumerPort
from ._runner import DrainReport, Handler, Runner
from ._settings import ConsumerOptions, ConsumerSettings, signature_with_settings
from ._statistics import ConsumerStatistics, statistics_of


class Consumer(ClosesWhenDropped):
    """Receives messages, and redelivers those that are negatively acknowledged, each after its delay.

    Use it as ``async with``, or call :meth:`open` and :meth:`aclose`, in one event loop. If you drop it and all its
    messages without closing it, it warns (:class:`ResourceWarning`) and closes itself.

    Any number of tasks may receive. A nack redelivers its message once, however many duplicates the broker sends.

    :param port: the transport, which the consumer owns and closes
    :param settings: those of :class:`~pulsar_nack.consumer.ConsumerOptions`
    :raises InvalidArgumentError: names the setting

    ::

        async with Consumer(port, backoff=[1, 5, 30]) as consumer:
            async for message in consumer:
                async with message.process():
                    await work(message.data)
    """

    def __init__(self, port: ConsumerPort, **settings: Unpack[ConsumerOptions]) -> None:
        check_has("port", port, ("traits", "receive"), "a ConsumerPort")
        engine = self._engine = ConsumerEngine(port, ConsumerSettings.checked(port.traits, settings))
        self._receiver = engine.receiver
        self._settler = engine.settler
        self._state = engine.state
        self._lifecycle = Lifecycle(engine)
        self._inner = self._twin()

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Start the consumer, and return once it runs; ``async with`` does it too. No effect if it is open.

        :raises ClosedError: after :meth:`aclose`
        :raises LogLockedError: another consumer uses the durable state
        :raises LedgerError: the durable state cannot be read or written
        """
        await self._lifecycle.open(self._inner)
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def aclose(self) -> None:
        """Give everything unacknowledged back to the broker at once, held messages too, and close the port.

        While :meth:`run` runs, this drains first, for at most its ``drain_timeout``. Acknowledgements and dead letters
        under way are finished first, for at most the configuration's ``close_timeout``; dead letters that are not
        published by then are given back too. Calls that wait raise :class:`~pulsar_nack.ClosedError`. Idempotent, in
        any loop; cancelling the call does not stop it. If the storage of the durable state has not answered by then, it
        is closed once it does. What was not written is logged and counted.
        """
        await self._lifecycle.aclose()

    close = aclose

    def _begin_close(self) -> None:
        self._lifecycle.begin_close()

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return self._lifecycle.loop

    # --- receiving -------------------------------------------------------------------------------------------------

    async def receive(self, timeout: Delay | None = None) -> Message:
        """Wait for the next message. A call that is cancelled, or timed out, loses nothing.

        :param timeout: seconds or a timedelta; None: wait for ever
        :raises TimeoutError: nothing came in time
        :raises ClosedError: the consumer is closed, also while this waits
        :raises TopicNotFoundError: the topic was deleted, and may not be created; a later call checks again
        :raises BrokerError: the transport failed; a later call tries again
        :raises MissingExtraError: a message came that this process cannot read without what the error names. It stays
            for others, each later call raises this too, and the consumer closes once no message is being processed
        """
        receiver, state = self._receiver, self._state
        if get_ident() != state.thread._thread_id:
            receiver.check_readable()
            state.check_open()
        receive_nowait = receiver.receive_nowait
        message = None if receive_nowait is None else receiver.take_ready(receive_nowait)
        if message is None:
            message = await (receiver.wait() if timeout is None else receiver.wait_within(timeout))
            if receiver.receive_nowait is None:
                state.now_ms = self._engine.clock.now_ms()
            else:
                state.yielded_at_ms = state.now_ms  # while this waited
        message._keeps = self  # see _lifetime: a message in use keeps its consumer alive
        state.delivered += 1
        if state.now_ms - state.yielded_at_ms >= YIELD_AFTER_MS:
            await receiver.let_others_run(message)
        if (leases := self._settler.leases) is not None:
            message._lease = leases.begin(message._delivery, message._redelivery_count)
        return message

    async def batch_receive(
        self, max_messages: int = 100, max_bytes: int = 10 * 1024 * 1024, timeout: Delay | None = 0.1
    ) -> list[Message]:
        """Wait for several messages: until one of the bounds is reached, or ``timeout`` is over.

        The list may be empty. A message larger than ``max_bytes`` comes alone. A call that is cancelled, or raises,
        loses nothing: the next call gets what had come. Raises as :meth:`receive`.

        :raises InvalidArgumentError: a bound is below 1
        """
        return await verbs.receive_batch(self._engine, self.receive, max_messages, max_bytes, timeout)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; iteration ends when the consumer is closed."""
        try:
            return await self.receive()
        except ClosedError as error:
            if error.__cause__ is not None:
                raise
            raise StopAsyncIteration from None

    @property
    def is_paused(self) -> bool:
        """Return whether no message is delivered until :meth:`resume`."""
        return self._receiver.inbox.is_paused

    def pause(self) -> None:
        """Deliver nothing until :meth:`resume`: calls of :meth:`receive` wait, whatever comes.

        On Shared and Key_Shared subscriptions prefetched messages go back to the broker at once. It gives
        them to other consumers and counts one more redelivery. On Exclusive and Failover, and over the official client,
        they stay here. You can settle messages that you have. Deadlines go on; what comes due is delivered after
        :meth:`resume`.

        :raises ClosedError: the consumer is closed
        """
        self._state.check_open()
        self._lifecycle.pause(self)

    def resume(self) -> None:
        """Deliver messages again after :meth:`pause`.

        :raises ClosedError: the consumer is closed
        """
        self._state.check_open()
        self._lifecycle.resume()

    # --- running a handler, draining -------------------------------------------------------------------------------

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 32,
        key_ordered: bool = False,
        max_held_per_key: int = 1_000,
        on_error: OnError | None = None,
        drain_timeout: Delay | None = 30.0,
        stop_on_signals: bool = False,
    ) -> DrainReport:
        """Call ``await handler(message)`` for each message until the consumer is drained or closed.

        A message is acknowledged when its handler returns, and settled as by :meth:`Message.process` if it raises; all
        exceptions but verbs are logged and counted, and none ends this call. Cancelling the call drains
        (:meth:`drain`); doing it again lets ``drain_timeout`` be over.

        :param concurrency: how many handlers run at once; only free ones receive
        :param key_ordered: messages of one ordering key, or key, are handled in order, one at a time; later ones wait
            here while one waits for its redelivery, which ``redelivery="auto"`` then makes from memory
        :param max_held_per_key: how many of one key may wait so, and all of them with ``max_local_bytes``; then nothing
            is fetched until there is room
        :param on_error: verbs by exception type, as :meth:`Message.process` takes them
        :param drain_timeout: how long handlers may run on when this ends; None: as long as they need
        :param stop_on_signals: drain on SIGTERM and SIGINT, a second signal at once; their handlers are restored
        :raises InvalidArgumentError: names the argument; nothing was received
        :raises ClosedError: the consumer is closed, or failed; also what :meth:`receive` raises at last
        """
        self._state.check_open()
        runner = Runner(
            self._engine,
            self.receive,
            handler,
            concurrency=concurrency,
            key_ordered=key_ordered,
            max_held_per_key=max_held_per_key,
            on_error=on_error,
            drain_timeout=drain_timeout,
            stop_on_signals=stop_on_signals,
        )
        return await self._lifecycle.run(runner)

    async def drain(self, timeout: Delay | None = None) -> DrainReport:
        """Receive nothing more, give back what was fetched ahead, let delivered messages be settled, then close.

        Calls of :meth:`receive` raise :class:`~pulsar_nack.ClosedError`, and loops over the consumer end. Cancelling
        the call does not stop the drain; a second call waits for the same one, and :meth:`aclose` ends it.

        :param timeout: how long delivered messages may take; then handlers of :meth:`run` are cancelled and their
            messages nacked by the backoff, and others go back unsettled. None: as long as they need
        :raises InvalidArgumentError: the timeout; or a handler of :meth:`run` calls this, which would wait for itself
        """
        return await self._lifecycle.drain(timeout)

    # --- settling --------------------------------------------------------------------------------------------------

    async def acknowledge(self, message: Message | MessageId | Iterable[Message | MessageId]) -> None:
        """Acknowledge a message, as :meth:`Message.ack`, or the message with this id; a pending nack is cancelled.

        :param message: or several, which are acknowledged together, as :meth:`Message.ack` does each
        :raises AcknowledgeError: some of several were not acknowledged, and which; the others are
        :raises AlreadySettledError: as :meth:`Message.ack` raises it
        :raises BrokerError: it failed; nothing changed
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            await message.ack()
        elif isinstance(message, MessageId) or not isinstance(message, Iterable):
            await verbs.acknowledge(self._settler, verbs.checked_id(message))
        else:
            await verbs.acknowledge_all(self._settler, message)

    def acknowledge_soon(self, message: Message | MessageId) -> None:
        """Acknowledge without waiting for the outcome, as :meth:`Message.ack_soon`.

        :raises AlreadySettledError: as :meth:`Message.ack` raises it
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            message.ack_soon()
        else:
            self._settler.acknowledge_soon(verbs.checked_id(message))

    async def negative_acknowledge(
        self, message: Message | MessageId, delay: Delay | None = None, *, reason: str = ""
    ) -> None:
        """Ask for redelivery of a message, or of the message with this id, after ``delay``; see :meth:`Message.nack`.

        :raises AlreadySettledError: it is acknowledged
        :raises InvalidArgumentError: the delay, the id or the reason
        :raises NotDurableError: the consumer is durable and this could not be written; the nack is in effect
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            await message.nack(delay, reason=reason)
            return
        written = await self._settler.nack(verbs.checked_id(message), delay, reason=reason)
        if written is not None:
            await self._settler.until_durable(message, written)

    async def defer(self, message: Message, delay: Delay) -> None:
        """Postpone a message, as :meth:`Message.defer`."""
        await verbs.checked_message(self._state, message).defer(delay)

    async def reconsume_later(
        self,
        message: Message,
        delay: Delay | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        reason: str = "",
    ) -> None:
        """Send a message to the retry topic, as :meth:`Message.reconsume_later`."""
        await verbs.checked_message(self._state, message).reconsume_later(delay, properties=properties, reason=reason)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message of its partition; holds up to it are cancelled.

        :param message: a message is refused where :meth:`Message.ack` is; an id is of no attempt, so it is not
        :raises AlreadySettledError: as :meth:`Message.ack` raises it; nothing changed
        :raises NotImplementedError: the port cannot
        :raises BrokerError: it failed (as on Shared subscriptions); nothing changed
        :raises ClosedError: the consumer is closed
        """
        await verbs.acknowledge_cumulative(self._engine, message)

    # --- the subscription ------------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | int | datetime) -> None:
        """Move the subscription to a message id or a publish time; forgets acks, nacks and holds.

        Held messages that the seek does not move are redelivered soon: if this fails or is cancelled, and in other
        partitions.

        :param position: the message, or the publish time of the first one, to be delivered next: a datetime (local time
            if it names no zone) or epoch ms; 0 is before all
        :raises InvalidArgumentError: neither of both, as seconds in place of ms; nothing changed
        :raises NotImplementedError: the port cannot; nothing changed
        :raises NotDurableError: the consumer is durable and this could not be written; nothing was moved
        :raises BrokerError: the broker refused; or the message is of another topic, and nothing changed
        :raises ClosedError: the consumer is closed
        """
        await verbs.seek(self._engine, position)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that was received and not settled, each as a further attempt, soon.

        Nacks keep their deadlines, and what waits for :meth:`receive` stays. On Exclusive and Failover subscriptions
        all comes again in order, with what follows it (over the official client without order). You may still
        acknowledge a message that you have. If the call is cancelled, some messages are not redelivered.

        :raises ClosedError: the consumer is closed
        """
        await verbs.redeliver(self._engine)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic or partition; entry -1 for one that is empty.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: the broker gave no answer; the official client answers for one topic without partitions
        :raises ClosedError: the consumer is closed
        """
        return await verbs.last_message_ids(self._engine)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the only topic, as :meth:`last_message_ids`.

        :raises BrokerError: there are several topics or partitions, or none
        """
        return await verbs.last_message_id(self._engine)

    async def has_message_available(self) -> bool:
        """Return whether a message waits here, or a topic's last message was neither received here nor acknowledged.

        Messages that are nacked or being processed do not count, delayed ones do. On Shared subscriptions another
        consumer may get the message. Over the official client it counts whether this consumer received the last one.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: as :meth:`last_message_ids`
        :raises ClosedError: the consumer is closed
        """
        return await verbs.has_message_available(self._engine)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker, clear its durable state, and close.

        Cancelling the call does not stop it, so that no subscription is deleted by half.

        :param force: also while others consume; they are disconnected, and those that connect again make a new
            subscription. Brokers before 3.1 take no notice of it, and refuse
        :raises NotImplementedError: the port cannot, or cannot force it
        :raises BrokerError: the broker refused, as it does while others consume; of partitions and lists some may be
            gone, and a later call deletes the others
        :raises NotDurableError: the subscription is gone, but its durable state could not be cleared
        :raises ClosedError: the consumer is closed
        """
        await self._lifecycle.unsubscribe(self, force=force)

    # --- state -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        topic, subscription, _ = names_of(self._engine.port)
        whose = f" of {topic!r} as {subscription!r}" if topic else ""
        state = "closed" if self._state.is_closed else "" if self._state.is_opened else "not open"
        return f"<Consumer{whose}, {state or f'{self._state.count_unacked()} unacked'}>"

    @property
    def port(self) -> Any:
        """Return the port."""
        return self._engine.port

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the counters."""
        return statistics_of(self._engine)


Consumer.__signature__ = signature_with_settings(Consumer)  # type: ignore[attr-defined]  # names the settings in help()
