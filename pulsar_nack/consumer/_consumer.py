"""The consumer as users hold it: its lifecycle, receiving, and the verbs for messages, subscriptions and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self, Unpack

from .._check import check_has
from .._delays import Delay, delay_ms
from .._lifetime import ClosesWhenDropped, check_loop, running_loop
from ..errors import ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._engine import ConsumerEngine
from ._message import Message, acknowledge_all
from ._port import ConsumerPort
from ._settings import ConsumerOptions, ConsumerSettings, signature_with_settings
from ._settler import YIELD_AFTER_MS
from ._statistics import ConsumerStatistics, statistics_of
from ._subscription import SubscriptionVerbs
from ._tracing import names_of


class Consumer(ClosesWhenDropped):
    """Receives messages, and redelivers those that are negatively acknowledged, each after its delay.

    Use it as ``async with``, or call :meth:`open` and :meth:`aclose`, in one event loop. If you drop it and all its
    messages without closing it, it warns (:class:`ResourceWarning`) and closes itself.

    Any number of tasks may receive. A nack redelivers its message once, however many duplicates the broker sends.

    :param port: the transport, which the consumer owns and closes
    :param redelivery: ``"local"`` redelivers nacked messages from memory, exactly in time and one by one; ``"broker"``
        asks the broker for them, so that any consumer may get them; ``"auto"`` asks the broker except where it cannot
        do that: delays below the port's floor, Exclusive and Failover subscriptions, batches of which other messages
        are being processed or not due. A callable of yours gets the ids that are due and brings them back itself
    :param backoff: the delay of nacks that name none, from the redelivery count: a callable, a delay, or a list
    :param config: precision, default delay and bounds of the nacks
    :param max_local_bytes: most memory for payloads that are kept; beyond it the broker is asked, and on Exclusive and
        Failover subscriptions ``nack`` waits. Messages being processed, kept for nacks by id, take as much again
    :param unacked_limit: the broker's bound on unacknowledged messages: at 80 % it warns, then ``nack`` waits; or None
    :param ack_memory: how long an acknowledged message that comes back is acknowledged again and not delivered. If the
        port reports its sessions, this counts only within a session and after a lost connection
    :param lease: how long a message may be handled before it counts as nacked; see :meth:`Message.in_progress`
    :param dead_letter: after how many redeliveries a message is sent to a dead-letter topic, and to which; one that
        cannot be read goes there at once. None: messages are redelivered without end, unreadable ones too
    :param retry_topic: where messages wait that are to be consumed later (:meth:`reconsume_later`), and nacks with long
        delays if the policy says so; the calls that subscribe read it too. Shared and Key_Shared only
    :param hooks: callables that take each :data:`~pulsar_nack.consumer.ConsumerEvent`, and each event of the tracker
    :param clock: by default the running loop's own
    :param durable: a folder, or a :class:`~pulsar_nack.ledger.LogStore`, where deadlines, attempts and recent
        acknowledgements are kept over restarts; for this consumer alone
    :param durable_ttl: how long a message that does not come is remembered there, after its deadline
    :param max_ack_state_bytes: most that the durable acknowledgements may take on storage: :meth:`receive` holds new
        messages back before; below 1: no bound
    :param trace: where each event of each message is noted, a :class:`~pulsar_nack.observe.TraceWriter`; off by default
    :param wall_clock: the clock of the deadlines there, in epoch time; the machine's by default
    :raises InvalidArgumentError: names the setting

    ::

        async with Consumer(port, backoff=[1, 5, 30]) as consumer:
            async for message in consumer:
                try:
                    await work(message.data)
                    await message.ack()
                except Exception:
                    await message.nack()
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, port: ConsumerPort, **settings: Unpack[ConsumerOptions]) -> None:
        check_has("port", port, ("traits", "receive"), "a ConsumerPort")
        engine = self._engine = ConsumerEngine(port, ConsumerSettings.checked(port.traits, settings))
        self._receiver = engine.receiver
        self._settler = engine.settler
        self._turn = engine.settler.turn
        self._subscription = SubscriptionVerbs(engine)
        self._server: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._inner = self._twin()

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Start the consumer, and return once it runs; ``async with`` does it too. No effect if it is open.

        :raises ClosedError: after :meth:`aclose`
        :raises LogLockedError: another consumer uses the durable state
        :raises LedgerError: the durable state cannot be read or written
        """
        settler = self._settler
        if settler.is_closed:
            raise ClosedError("the consumer")
        is_first = self._server is None or self._opened is None
        if self._server is None or self._opened is None:
            self._loop = settler.loop = asyncio.get_running_loop()
            self._opened = self._loop.create_future()
            self._server = asyncio.create_task(self._inner._serve(self._opened), name="pulsar_nack.Consumer")
            self._server.add_done_callback(self._engine.on_end)
        check_loop(self._loop, "the consumer")
        if not self._opened.done():
            try:
                await asyncio.wait({self._opened, self._server}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if is_first:
                    await self.aclose()
                raise
        if self._server.done():
            if not self._server.cancelled():
                await self._server
            raise ClosedError("the consumer")
        return self

    async def _serve(self, opened: asyncio.Future[None]) -> None:
        await self._engine.serve(opened)  # this frame keeps the client that the consumer keeps

    async def __aenter__(self) -> Self:
        return await self.open()

    async def aclose(self) -> None:
        """Give everything unacknowledged back to the broker at once, held messages too, and close the port.

        Acknowledgements and dead letters under way are finished first, for at most the configuration's
        ``close_timeout``; dead letters that are not published by then are given back too. Calls that wait raise
        :class:`~pulsar_nack.ClosedError`. Idempotent, in any loop; cancelling the call does not stop it. If the
        storage of the durable state has not answered by then, it is closed once it does. What was not written is
        logged and counted.
        """
        if not self._settler.is_closed or self._server is None or not self._server.done():
            check_loop(self._loop, "the consumer")
            self._begin_close()
        if self._server is None:
            if self._engine.letters is not None:
                await self._engine.letters.aclose()
            await self._engine.port.close()
            return
        if not self._server.done():
            await asyncio.wait([self._server])
        if not self._server.cancelled():
            self._server.result()

    close = aclose

    def _begin_close(self) -> None:
        self._receiver.unreadable = None
        self._engine.end_calls(ClosedError("the consumer"))
        self._engine.stop()
        if self._server is not None and self._opened is not None and not self._opened.done():
            self._server.cancel()

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        is_open = not self._settler.is_closed and self._server is not None and not self._server.done()
        return self._loop if is_open else None

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
        receiver, settler, turn = self._receiver, self._settler, self._turn
        if settler.is_closed or settler.acks is None or running_loop() is not self._loop:
            receiver.check_readable()
            settler.check_open()
        receive_nowait = receiver.receive_nowait
        message = None if receive_nowait is None else receiver.take_ready(receive_nowait)
        if message is None:
            wait = receiver.inbox.get if receiver.durable is None else receiver.wait_noted
            async with asyncio.timeout(None if timeout is None else delay_ms(timeout, "timeout") / 1000):
                message = await wait()
            if receiver.receive_nowait is None:
                turn.now_ms = self._engine.clock.now_ms()
            else:
                turn.yielded_at_ms = turn.now_ms  # while this waited
        message._keeps = self  # see _lifetime: a message in use keeps its consumer alive
        receiver.delivered += 1
        if turn.now_ms - turn.yielded_at_ms >= YIELD_AFTER_MS:
            await receiver.let_others_run(message)
        if settler.leases is not None:
            settler.leases.begin(message)
        return message

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
        self._settler.check_open()
        self._receiver.pause(self)

    def resume(self) -> None:
        """Deliver messages again after :meth:`pause`.

        :raises ClosedError: the consumer is closed
        """
        self._settler.check_open()
        self._receiver.resume()

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
            await self._settler.acknowledge(_checked(message))
        else:
            await acknowledge_all(self._settler, message)

    def acknowledge_soon(self, message: Message | MessageId) -> None:
        """Acknowledge without waiting for the outcome, as :meth:`Message.ack_soon`.

        :raises AlreadySettledError: as :meth:`Message.ack` raises it
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            message.ack_soon()
        else:
            self._settler.acknowledge_soon(_checked(message))

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
        written = await self._settler.nack(_checked(message), delay, reason=reason)
        if written is not None:
            await self._settler.until_durable(message, written)

    async def reconsume_later(
        self,
        message: Message,
        delay: Delay | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        reason: str = "",
    ) -> None:
        """Send a message to the retry topic, as :meth:`Message.reconsume_later`."""
        self._settler.check_open()
        if not isinstance(message, Message):
            raise InvalidArgumentError("message", message, "a Message")
        await message.reconsume_later(delay, properties=properties, reason=reason)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message of its partition; holds up to it are cancelled.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: it failed (as on Shared subscriptions); nothing changed
        :raises ClosedError: the consumer is closed
        """
        message_id = message.id if isinstance(message, Message) else _checked(message)
        await self._subscription.acknowledge_cumulative(message_id)

    # --- the subscription ------------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | int | datetime) -> None:
        """Move the subscription to a message id or a publish time; forgets acks, nacks and holds.

        Held messages that the seek does not move are redelivered soon: if this fails or is cancelled, and in other
        partitions.

        :param position: the message, or the publish time of the first one, to be delivered next: a datetime (local time
            if it names no zone) or epoch ms; 0 is before all
        :raises InvalidArgumentError: neither of both, as seconds in place of ms; nothing changed
        :raises NotImplementedError: the port cannot
        :raises NotDurableError: the consumer is durable and this could not be written; nothing was moved
        :raises BrokerError: the broker refused
        :raises ClosedError: the consumer is closed
        """
        await self._subscription.seek(position)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that was received and not settled, each as a further attempt, soon.

        Nacks keep their deadlines, and what waits for :meth:`receive` stays. On Exclusive and Failover subscriptions
        all comes again in order, with what follows it (over the official client without order). You may still
        acknowledge a message that you have. If the call is cancelled, some messages are not redelivered.

        :raises ClosedError: the consumer is closed
        """
        await self._subscription.redeliver()

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic or partition; entry -1 for one that is empty.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: the broker gave no answer; the official client answers for one topic without partitions
        :raises ClosedError: the consumer is closed
        """
        return await self._subscription.last_message_ids()

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the only topic, as :meth:`last_message_ids`.

        :raises BrokerError: there are several topics or partitions, or none
        """
        return await self._subscription.last_message_id()

    async def has_message_available(self) -> bool:
        """Return whether a message waits here, or a topic's last message was neither received here nor acknowledged.

        Messages that are nacked or being processed do not count, delayed ones do. On Shared subscriptions another
        consumer may get the message. Over the official client it counts whether this consumer received the last one.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: as :meth:`last_message_ids`
        :raises ClosedError: the consumer is closed
        """
        return await self._subscription.has_message_available()

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
        await self._subscription.unsubscribe(self, force=force)

    # --- state -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        topic, subscription, _ = names_of(self._engine.port)
        whose = f" of {topic!r} as {subscription!r}" if topic else ""
        state = "closed" if self._settler.is_closed else "not open" if self._settler.acks is None else ""
        return f"<Consumer{whose}, {state or f'{self._engine.limiter.count()} unacked'}>"

    @property
    def port(self) -> Any:
        """Return the port."""
        return self._engine.port

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of the counters."""
        return statistics_of(self._engine)


Consumer.__signature__ = signature_with_settings(Consumer)  # type: ignore[attr-defined]  # names the settings in help()


def _checked(message_id: object) -> MessageId:
    if not isinstance(message_id, MessageId):
        raise InvalidArgumentError("message", message_id, "a Message or a MessageId")
    return message_id
