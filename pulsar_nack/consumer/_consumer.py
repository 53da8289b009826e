"""The consumer: a port below, messages above, nacks that come back in time between them.

One task of its own (``_serve``) owns everything that runs: the tracker, the pump that takes deliveries while somebody
waits for one, and the acknowledgements. Opening starts it, closing ends it, from whatever task either is called.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from .._check import check_has
from .._delays import Delay, delay_ms, seek_position
from .._lifetime import ClosesWhenDropped, check_loop, running_loop
from ..backoff import Backoff
from ..clock import Clock, LoopClock, WallClock
from ..config import NackConfig
from ..errors import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    MissingExtraError,
    NoDeadLetterError,
    NotDurableError,
    NotOpenError,
)
from ..ids import MessageId, _names_message
from ..nack import HookLike
from ._acks import Acks
from ._batches import is_same_topic
from ._checks import checked, refuse_unknown
from ._dead_letter import DeadLetterPolicy, as_reason
from ._dead_letters import REASON_IN_TRACE, DeadLetters, Job
from ._following import Following, not_followed
from ._inbox import Inbox
from ._local_store import LocalStore, Recent
from ._message import ACKED, Message
from ._port import (
    ConsumerPort,
    Delivery,
    PortTraits,
    SessionEvent,
    SupportsConnectionState,
    SupportsCumulativeAck,
    SupportsHeldBack,
    SupportsNowait,
    SupportsPause,
    SupportsSeek,
    SupportsSessions,
    SupportsUnsubscribe,
)
from ._redelivery import Holds
from ._room import Room
from ._sessions import place_of
from ._states import Record, State, States, Verdict
from ._statistics import ConsumerStatistics
from ._tracing import ConsumerTrace, TraceNote, names_of
from ._ways import Redelivery

if TYPE_CHECKING:
    from ._gated import Gated
    from .durable import DurableHome, DurableNacks, Outcome

_log = logging.getLogger("pulsar_nack.consumer")
DEFAULT_MAX_LOCAL_BYTES: Final = 64 * 1024 * 1024
DEFAULT_UNACKED_LIMIT: Final = 50_000
DEFAULT_DURABLE_TTL: Final = timedelta(days=7)
DEFAULT_MAX_ACK_STATE_BYTES: Final = 5_242_880
_YIELD_AFTER_MS: Final = 5
_UNWANTED_AFTER_S: Final = 0.1
"""How long a message waits for a call of ``receive`` without a queue; then it goes back to the broker."""
_HELD_BACK_S: Final = 10.0
"""How long a receiver waits for nothing, with messages unacknowledged, until the consumer asks the broker why."""
_USUAL_QUEUE: Final = 1_000
"""How many messages a client may have prefetched if it does not say."""
_MOST_REFUSALS: Final = 3
"""After so many refused questions the consumer does not ask the broker again."""


class Consumer(ClosesWhenDropped):
    """Receives messages, and shows those that are negatively acknowledged again at their own times.

    Use it as ``async with``, or call :meth:`open` and :meth:`aclose`, in one event loop. If you drop it and all its
    messages without closing it, it warns (:class:`ResourceWarning`) and closes itself.

    Any number of tasks may receive. A nack redelivers its message once, however many copies the broker sends.

    :param port: the transport, which the consumer owns and closes
    :param redelivery: ``"local"`` shows nacked messages again from memory, exactly in time and one by one; ``"broker"``
        asks the broker for them, so that any consumer may get them; ``"auto"`` asks the broker except where it cannot
        do what is wanted: delays below the port's floor, Exclusive and Failover subscriptions, batches with mates in
        work or not due. A callable of your own gets the ids that are due and brings them back itself
    :param backoff: the delay of nacks that name none, from the redelivery count: a callable, a delay, or a list
    :param config: precision, default delay and bounds of the nacks
    :param max_local_bytes: most memory for payloads that are kept; beyond it the broker is asked, and on Exclusive and
        Failover subscriptions ``nack`` waits. At most as much again is held of what is in work, for nacks by id
    :param unacked_limit: the broker's bound on unacknowledged messages, less its prefetch: at 80 % a warning is logged,
        at the bound ``nack`` waits; None: no bound
    :param ack_memory: how long an acknowledged message that comes back is acknowledged again and not shown. If the
        port reports its sessions, this counts only within a session and after a lost connection
    :param dead_letter: after how many redeliveries a message is sent to a dead-letter topic, and to which; one that
        cannot be read goes there at once. None: messages are shown again without end, unreadable ones too
    :param hooks: callables that take each event of the tracker
    :param clock: by default the running loop's own
    :param durable: a folder, or a :class:`~pulsar_nack.ledger.LogStore`, where deadlines, attempts and recent
        acknowledgements are kept over restarts; of this consumer alone
    :param durable_ttl: how long a message that does not come is remembered there, after its deadline
    :param max_ack_state_bytes: most that the durable acknowledgements may take on storage: :meth:`receive` holds new
        messages back before; below 1: no bound
    :param trace: where each event of each message is noted, a :class:`~pulsar_nack.observe.TraceWriter`; off by default
    :param wall_clock: tells the epoch time that deadlines have there; the machine's own by default
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
    _unsubscribing: asyncio.Task[None] | None = None
    _held_back_at: int | None = None

    def __init__(
        self,
        port: ConsumerPort,
        *,
        redelivery: Redelivery = "auto",
        backoff: Backoff | Delay | Sequence[Delay] | None = None,
        config: NackConfig | None = None,
        max_local_bytes: int = DEFAULT_MAX_LOCAL_BYTES,
        unacked_limit: int | None = DEFAULT_UNACKED_LIMIT,
        ack_memory: Delay = 10.0,
        dead_letter: DeadLetterPolicy | None = None,
        hooks: Sequence[HookLike] = (),
        clock: Clock | None = None,
        durable: DurableHome | None = None,
        durable_ttl: Delay = DEFAULT_DURABLE_TTL,
        max_ack_state_bytes: int = DEFAULT_MAX_ACK_STATE_BYTES,
        wall_clock: Clock | None = None,
        trace: ConsumerTrace | None = None,
    ) -> None:
        inner = self._inner = self._twin()
        check_has("port", port, ("traits", "receive"), "a ConsumerPort")
        self._port = port
        settings = checked(
            port.traits,
            redelivery=redelivery,
            backoff=backoff,
            config=config,
            max_local_bytes=max_local_bytes,
            unacked_limit=unacked_limit,
            ack_memory=ack_memory,
            dead_letter=dead_letter,
            hooks=hooks,
            durable=durable,
            durable_ttl=durable_ttl,
            max_ack_state_bytes=max_ack_state_bytes,
            trace=trace,
            clock=clock,
            wall_clock=wall_clock,
        )
        most, limit = settings.max_local_bytes, settings.unacked_limit
        self._note = None if trace is None else trace.source(*names_of(port))
        self._config = settings.config
        self._backoff = settings.backoff
        self._clock = clock or LoopClock()
        self._prefetched = port.traits.receiver_queue_size
        self._ack_memory_ms = settings.ack_memory_ms
        self._telling = port if port.traits.tells_sessions and isinstance(port, SupportsSessions) else None
        is_local = self._telling is not None and not port.traits.keeps_acks
        self._port_keeps_members = is_local and port.traits.batch_index_ack  # a broker loses them as it unloads a topic
        self._states = States(
            ack_memory_ms=self._ack_memory_ms,
            most_in_work=2 * (limit or 500_000),
            keeps_members=self._port_keeps_members,
        )
        self._states.may_be_here = inner._may_be_here
        self._states.gets_all = self._telling is not None and not port.traits.honours_ids
        self._store = LocalStore(most)
        self._recent = Recent(most)
        has_queue = port.traits.receiver_queue_size > 0 or not isinstance(port, SupportsPause)
        self._inbox = Inbox(inner._is_current, None if has_queue else inner._give_back_unwanted)
        self._room = Room(inner._unacked, limit, inner._must_let_pass)
        self._following: Following | None = None
        if self._telling is not None:
            self._following = Following(
                self._telling, self._states, self._clock, is_waiting=inner._has_waiting, passed=inner._on_passed
            )
        waits = not_followed if self._following is None else self._following.note
        self._holds = Holds(
            port,
            self._states,
            self._store,
            redelivery,
            self._config,
            clock=self._clock,
            hooks=hooks,
            show=inner._show_again,
            freed=self._room.changed,
            waits=waits,
            gone=lambda records: inner._drop(records, "settled by another consumer"),
            note=self._note,
        )
        self._dead: DeadLetters | None = None
        if dead_letter is not None:
            self._dead = DeadLetters(
                dead_letter, port, self._states, max_bytes=most, following=self._following, note=self._note
            )
        self._durable_home = durable
        self._durable_ttl_ms = settings.durable_ttl_ms
        self._wall_clock = wall_clock or WallClock()
        self._max_ack_state_bytes = settings.max_ack_state_bytes
        self._durable: DurableNacks | None = None
        self._ends_at = math.inf
        self._gated: Gated | None = None
        self._acks: Acks | None = None
        self._server: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self._is_closed = False
        self._now_ms = self._yielded_at_ms = self._clock.now_ms()
        self._is_plain = durable is None and trace is None and not self._holds.ways.may_keep_all
        self._nowait = port.receive_nowait if durable is None and isinstance(port, SupportsNowait) else None
        self._receive_nowait = self._nowait  # None while it is paused
        self._unreadable: MissingExtraError | None = None
        self._watches_idle = self._keeps_what_it_has = self._is_pumping = False
        self._nacking: list[Message] = []
        self._received = self._shown = self._copies = self._replayed = self._nacked = self._dropped = 0

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Start to serve, and return once it does; ``async with`` does it too. Open already: nothing happens.

        :raises ClosedError: after :meth:`aclose`
        :raises LogLockedError: another consumer uses the durable state
        :raises LedgerError: the durable state cannot be read or written
        """
        if self._is_closed:
            raise ClosedError("the consumer")
        is_first = self._server is None or self._opened is None
        if self._server is None or self._opened is None:
            self._loop = asyncio.get_running_loop()
            self._opened = self._loop.create_future()
            inner = self._inner or self
            self._server = asyncio.create_task(inner._serve(self._opened), name="pulsar_nack.Consumer")
            self._server.add_done_callback(inner._on_end)
        check_loop(self._loop, "the consumer")
        if not self._opened.done():
            try:
                await asyncio.wait({self._opened, self._server}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if is_first:
                    await self.aclose()
                raise
        if self._server.cancelled():
            raise ClosedError("the consumer")
        if self._server.done():
            await self._server
            raise ClosedError("the consumer")
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give everything unacknowledged back to the broker at once, held messages too, and close the port.

        Acknowledgements and dead letters under way are finished first, for at most the configuration's
        ``close_timeout``; dead letters that are not published by then are given back too. Calls that wait raise
        :class:`~pulsar_nack.ClosedError`. Idempotent, in any loop; goes on to its end when the call is cancelled. If
        the storage of the durable state has not answered by then, it is closed once it does. What was not written is
        logged and counted.
        """
        if not self._is_closed or self._server is None or not self._server.done():
            check_loop(self._loop, "the consumer")
            self._begin_close()
        if self._server is None:
            if self._dead is not None:
                await self._dead.aclose()
            await self._port.close()
            return
        if not self._server.done():
            await asyncio.wait([self._server])
        if not self._server.cancelled():
            self._server.result()

    close = aclose

    def _begin_close(self) -> None:
        self._is_closed = True
        self._unreadable = None
        self._inbox.close(ClosedError("the consumer"))
        self._room.close(ClosedError("the consumer"))
        self._stop()
        if self._server is not None and self._opened is not None and not self._opened.done():
            self._server.cancel()

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        is_open = (
            self._loop is not None and not self._is_closed and self._server is not None and not self._server.done()
        )
        return self._loop if is_open else None

    def _stop(self) -> None:
        """Let the server end, within ``close_timeout``."""
        if not self._stopping.is_set():
            self._ends_at = asyncio.get_running_loop().time() + self._config.close_timeout.total_seconds()
        self._stopping.set()

    async def _serve(self, opened: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                durable = await self._open_durable(stack)
                async with self._holds.tracker, asyncio.TaskGroup() as tasks:
                    self._acks = Acks(
                        self._port,
                        self._states,
                        self._clock,
                        tasks=tasks,
                        on_settled=self._on_settled,
                        on_failed=self._on_ack_failed,
                        on_unheard=self._on_ack_unheard,
                        ask_for=self._holds.ask_for,
                        durable=durable,
                    )
                    if self._dead is not None:
                        self._dead.start(tasks, self._acks)
                    runs = [self._pump(), self._acks.run(), self._holds.watch()]
                    if self._following is not None:
                        runs.append(self._following.run())
                    background = [tasks.create_task(run) for run in runs]
                    if durable is not None:
                        background.append(tasks.create_task(durable.run()))
                    if isinstance(self._port, SupportsHeldBack):
                        background.append(tasks.create_task(self._watch_held_back(self._port)))
                    if self._telling is not None:
                        self._telling.watch_sessions(self._on_session)
                    opened.set_result(None)
                    await self._stopping.wait()
                    await self._finish(self._acks)
                    self._note_cancelled("close")
                    if durable is not None:
                        await self._finish_durable(durable)
                    for task in background:
                        task.cancel()
        finally:
            if self._acks is not None:
                self._acks.give_up()
            if self._dead is not None:
                await self._dead.aclose()
            await self._port.close()

    async def _finish(self, acks: Acks) -> None:
        if self._dead is not None:
            await self._dead.finish(self._remaining_s())
        await acks.finish(self._remaining_s())

    def _remaining_s(self) -> float:
        """Return how long closing may still take."""
        return max(self._ends_at - asyncio.get_running_loop().time(), 0.0)

    async def _finish_durable(self, durable: DurableNacks) -> None:
        """Write everything; if the port keeps the acknowledgements, also note that they can be forgotten."""
        if self._telling is not None and not self._port.traits.keeps_acks:
            try:
                async with asyncio.timeout(self._remaining_s()):
                    await self._telling.flush()
            except Exception as error:  # noqa: BLE001 - then they are remembered
                _log.debug("acknowledgements are remembered, as they could not be written: %r", error)
            else:
                durable.confirmed()
        await durable.finish(self._remaining_s())

    async def _open_durable(self, stack: AsyncExitStack) -> DurableNacks | None:
        if self._durable_home is None:
            return None
        from ._gated import Gated
        from .durable import DurableContext, DurableNacks

        port = self._port if isinstance(self._port, SupportsConnectionState) else None
        durable = self._durable = await DurableNacks.open(
            self._durable_home,
            memory_ms=0 if self._port.traits.keeps_acks else self._ack_memory_ms,
            keeps_members=not self._port_keeps_members,
            ttl_ms=self._durable_ttl_ms,
            clock=self._wall_clock,
            context=DurableContext(
                in_flight=lambda: self._unacked() - self._waiting_to_be_shown(),
                is_connected=lambda: port is None or port.is_connected,
                max_ack_state_bytes=self._max_ack_state_bytes,
            ),
        )
        self._gated = Gated(durable, self._inbox)

        async def let_go() -> None:
            await durable.aclose(self._remaining_s())

        stack.push_async_callback(let_go)
        await durable.restore(self._states, self._holds, self._clock.now_ms())
        return durable

    def _on_end(self, server: asyncio.Task[None]) -> None:
        """Tell everybody who waits when serving ended, whatever ended it."""
        error = ClosedError("the consumer")
        if not server.cancelled() and server.exception() is not None:
            error.__cause__ = server.exception()
        self._is_closed = True
        self._inbox.close(self._unreadable or error)
        self._room.close(error)

    # --- receiving -------------------------------------------------------------------------------------------------

    async def receive(self, timeout: Delay | None = None) -> Message:
        """Wait for the next message. A call that is cancelled, or timed out, loses nothing.

        :param timeout: seconds or a timedelta; None: wait for ever
        :raises TimeoutError: nothing came in time
        :raises ClosedError: the consumer is closed, also while this waits
        :raises TopicNotFoundError: the topic was deleted, and may not be created; a later call looks again
        :raises BrokerError: the transport failed; a later call tries again
        :raises MissingExtraError: a message came that this process cannot read, as what the error names is not
            installed. It stays for others, and each later call raises this too. The consumer gives back what it fetched
            ahead, and closes once nothing is in work
        """
        if self._is_closed or self._acks is None or running_loop() is not self._loop:
            if self._unreadable is not None:
                raise copy.copy(self._unreadable)
            self._ensure_open()
        message = None if self._receive_nowait is None else self._message_here(self._receive_nowait)
        if message is None:
            is_plain = timeout is None and self._durable is None
            message = await (self._inbox.get() if is_plain else self._next_message(timeout))
            if self._receive_nowait is None:
                self._now_ms = self._clock.now_ms()
            else:
                self._yielded_at_ms = self._now_ms  # while this waited
        message._consumer = self  # see _lifetime: a message in use keeps its consumer alive
        self._shown += 1
        if self._now_ms - self._yielded_at_ms >= _YIELD_AFTER_MS:
            await self._let_others_run(message)
        return message

    def _message_here(self, receive_nowait: Callable[[], Delivery | None]) -> Message | None:
        """Take a message without waiting, if nobody waits and there is one."""
        inbox = self._inbox
        if inbox.waiters or (self._dead is not None and self._dead.is_full and not inbox.ready):
            return None
        if inbox.ready and (message := inbox.get_nowait()) is not None:
            self._now_ms = self._clock.now_ms()
            return message
        while not self._is_pumping and (delivery := receive_nowait()) is not None:
            self._now_ms = self._clock.now_ms()
            if (message := self._take(delivery)) is not None:
                return message
            if self._dead is not None and self._dead.is_full:
                return None
        return None

    async def _next_message(self, timeout: Delay | None) -> Message:
        async with asyncio.timeout(None if timeout is None else delay_ms(timeout, "timeout") / 1000):
            if self._durable is None:
                return await self._inbox.get()
            return await self._until_noted(await self._next_admitted(), self._durable)

    async def _next_admitted(self) -> Message:
        while True:
            message = await self._inbox.get()
            if self._gated is None or self._gated.admits(message):
                return message
            if self._note is not None:
                self._note("hold", message.id, message.redelivery_count, reason="paused")

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

    async def _until_noted(self, message: Message, durable: DurableNacks) -> Message:
        """Note durably that a message is shown before it is, so that an attempt counts that ends the process.

        Where that fails the message is shown all the same. Cancelled, it goes to the next call.
        """
        while True:
            try:
                await durable.delivered(message.id, message.redelivery_count)
            except asyncio.CancelledError:
                self._put_back(message)
                raise
            self._ensure_open()
            if self._is_current(message):
                return message
            message = await self._next_admitted()

    def _is_turn_long(self) -> bool:
        """Return whether the loop has to run other tasks now, and note that it will."""
        self._now_ms = self._clock.now_ms()
        if self._now_ms - self._yielded_at_ms < _YIELD_AFTER_MS:
            return False
        self._yielded_at_ms = self._now_ms
        return True

    async def _let_others_run(self, message: Message) -> None:
        self._yielded_at_ms = self._now_ms
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._shown -= 1
            self._put_back(message)
            raise

    def _put_back(self, message: Message) -> None:
        """Return an undelivered message to the inbox, for the next call."""
        message._consumer = self._inner or self
        self._inbox.put(message, first=True)

    async def _pump(self) -> None:
        while True:
            await self._inbox.wanted.wait()
            if self._gated is not None:
                await self._gated.has_room.wait()
            if self._dead is not None:
                await self._dead.has_room.wait()
            self._is_pumping = True
            try:
                delivery = await self._port.receive()
            except ClosedError as error:
                self._inbox.close(error)
                return
            except MissingExtraError as error:
                self._inbox.fail(error)
                self._unreadable, self._watches_idle = error, True
                self._note_idle()
            except Exception as error:  # noqa: BLE001 - handed to those who wait
                self._inbox.fail(error)
            else:
                self._is_pumping = False
                self._hand_on(delivery)
            finally:
                self._is_pumping = False

    def _may_be_here(self, record: Record) -> bool:
        """Return whether the port may have what was asked for, as not all that came was received since.

        To ask again would be to give it to another consumer too.
        """
        if self._is_pumping:  # the port has nothing
            return False
        if record.received_before is None:
            record.received_before = self._received
        is_unknown = not self._prefetched and not isinstance(self._port, SupportsPause)
        most = _USUAL_QUEUE if is_unknown else self._prefetched
        return self._received - record.received_before <= most

    async def _watch_held_back(self, port: SupportsHeldBack) -> None:
        """Ask the broker why nothing comes while a receiver waits and messages are unacknowledged; warn once."""
        is_told, refusals = False, 0
        while refusals < _MOST_REFUSALS:
            await self._inbox.wanted.wait()
            received = self._received
            await asyncio.sleep(_HELD_BACK_S)
            if self._received != received or not self._inbox.wanted.is_set() or not self._unacked():
                continue
            try:
                reason = await port.held_back()
            except BrokerError as error:
                _log.debug("the broker does not tell why nothing comes: %s", error)
                refusals += 1
                continue
            self._held_back_at = None if reason is None else received
            if reason is not None and not is_told:
                is_told = True
                _log.warning(
                    "nothing comes while %d messages are in work or held here, of at most %s: %s; acknowledge some, "
                    "raise that limit, or set unacked_limit below it",
                    self._unacked(),
                    "any number" if self._room.limit is None else self._room.limit + self._prefetched,
                    reason,
                )

    def _hand_on(self, delivery: Delivery | None) -> None:
        """Give messages to the calls that wait, one after the other while there are more without waiting."""
        receive_nowait, waiters, dead = self._receive_nowait, self._inbox.waiters, self._dead
        while delivery is not None:
            message = self._take(delivery)
            if message is not None:
                self._put(message)
            if receive_nowait is None or not waiters or (dead is not None and dead.is_full):
                return
            try:
                delivery = receive_nowait()
            except ClosedError:  # as the pump's next call of the port is told
                return

    @property
    def _is_idle(self) -> bool:
        """Return whether no message is in work, held or due."""
        return not self._unacked()

    def _note_idle(self) -> None:
        """Give the remaining messages back once a paused or stopped consumer has nothing in work."""
        if self._unreadable is not None and self._states.in_work <= self._waiting_to_be_shown():
            self._stop()
        elif self._inbox.is_paused and self._is_idle and isinstance(self._port, SupportsPause):
            self._watches_idle = False
            self._port.pause(is_idle=True)

    def _take(self, delivery: Delivery) -> Message | None:
        """Look a delivery up; return the message that it is to be shown as, None where it is not."""
        self._received += 1
        message_id = delivery.id
        record = self._states.show_new(message_id, delivery.redelivery_count) if self._is_plain else None
        if record is None:
            return self._take_known(delivery)
        if self._store.bytes:
            self._store.pop(message_id)
        if self._dead is not None and self._dead.takes(delivery, record):
            return None
        if self._unacked() >= self._room.near:
            self._room.note()
        return Message(self, delivery, record.redelivery_count)

    def _take_known(self, delivery: Delivery) -> Message | None:
        """The same for what something is, or may be, known of, or is to be noted."""
        message_id = delivery.id
        now_ms = self._now_ms = self._clock.now_ms()
        known = self._states.get(message_id)
        if self._durable is not None and known is None:
            if self._durable.was_acked(message_id):
                self._acknowledging.again(message_id)
                return None
            if self._durable.holds_back(delivery, now_ms):
                if self._note is not None:
                    self._note("hold", message_id, delivery.redelivery_count, reason="not due")
                self._room.note()
                return None
        if known is not None and known.is_doubtful:
            self._holds.came_again(known, delivery)
        due_at_ms = None if self._note is None else self._due_at_ms(message_id)
        verdict = self._states.deliver(message_id, delivery.redelivery_count, now_ms)
        if verdict is Verdict.COPY:
            self._copies += 1
            return None
        if verdict is Verdict.ACK_AGAIN:
            if self._states.get(message_id) is None:  # else once its acknowledgement is confirmed, which may fail
                self._acknowledging.again(message_id)
            return None
        self._replayed += verdict is Verdict.REPLAY
        if self._store.bytes:
            self._store.pop(message_id)
        record = self._states.get(message_id)
        return None if record is None else self._message(delivery, record, due_at_ms)

    def _due_at_ms(self, message_id: MessageId) -> int | None:
        """Return the deadline of a message that was asked for, None for others."""
        record = self._states.get(message_id)
        return record.due_at_ms if record is not None and record.state is State.REQUESTED else None

    def _show_again(self, delivery: Delivery, record: Record) -> None:
        message = self._message(delivery, record, record.due_at_ms)
        if message is not None:
            self._put(message)

    def _message(self, delivery: Delivery, record: Record, due_at_ms: int | None) -> Message | None:
        """Return what is to be shown, None if it goes the dead-letter way."""
        if self._note is not None:
            due_in_ms = None if due_at_ms is None else due_at_ms - self._clock.now_ms()
            self._note("arrive", record.id, record.redelivery_count, due_in_ms=due_in_ms)
        if self._dead is not None and self._dead.takes(delivery, record):
            return None
        if self._holds.ways.may_keep(record.id):
            self._recent.add(delivery)
        self._room.note()
        return Message(self, delivery, record.redelivery_count)

    def _put(self, message: Message) -> None:
        self._inbox.put(message)
        if self._inbox.ready:
            self._room.let_pass()

    def _is_current(self, message: Message) -> bool:
        record = self._states.get(message._delivery.id)
        if record is None:  # settled by its id, or one of too many that are in work
            is_current = not self._states.is_settled(message.id)
            is_current = is_current and not self._states.is_hidden(message.id, self._clock.now_ms())
        else:
            is_current = record.state is State.IN_WORK and record.redelivery_count == message._redelivery_count
        if not is_current and self._gated is not None:
            self._gated.gone(message)
        return is_current

    # --- pausing -------------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Return whether nothing is shown until :meth:`resume`."""
        return self._inbox.is_paused

    def pause(self) -> None:
        """Show nothing until :meth:`resume`: calls of :meth:`receive` wait, whatever comes.

        On Shared and Key_Shared subscriptions messages that were fetched ahead go back to the broker at once. It gives
        them to other consumers and counts one more redelivery. On Exclusive and Failover, and over the official client,
        they stay here. You can settle messages in work. Deadlines go on; what comes due is shown after :meth:`resume`.

        :raises ClosedError: the consumer is closed
        """
        self._ensure_open()
        if self._inbox.is_paused:
            return
        self._inbox.pause()
        self._receive_nowait = None
        if isinstance(self._port, SupportsPause):
            self._give_back(list(self._inbox.ready))
            self._watches_idle = not self._is_idle
            self._port.pause(is_idle=self._is_idle)
        elif not self._keeps_what_it_has:
            self._keeps_what_it_has = True
            name = type(self._port).__name__
            _log.warning("%r is paused, and %s cannot give back what it has fetched ahead: that stays here", self, name)

    def resume(self) -> None:
        """Show messages again after :meth:`pause`.

        :raises ClosedError: the consumer is closed
        """
        self._ensure_open()
        if self._inbox.is_paused:
            self._receive_nowait = self._nowait
            self._watches_idle = self._unreadable is not None
            if isinstance(self._port, SupportsPause):
                self._port.resume()
            self._inbox.resume()

    def _give_back(self, messages: Sequence[Message]) -> None:
        """Give messages back to the broker that are ready and not shown; members of batches stay with their mates."""
        port = self._port
        if not isinstance(port, SupportsPause) or not port.traits.honours_ids:
            return
        given = [each for each in messages if each.id.batch_index < 0 and self._is_current(each)]
        for each in given:
            self._inbox.ready.remove(each)
            self._states.give_back(each.id)
            if self._gated is not None:
                self._gated.gone(each)
            if self._note is not None:
                self._note("cancel", each.id, each.redelivery_count, reason="given back")
        port.give_back([each.id for each in given])

    def _give_back_unwanted(self, message: Message) -> None:
        """Give a message back after a moment if no call of ``receive`` takes it; for consumers without a queue."""

        def look() -> None:
            if message in self._inbox.ready and not self._is_closed:
                self._give_back([message])

        asyncio.get_running_loop().call_later(_UNWANTED_AFTER_S, look)

    # --- settling --------------------------------------------------------------------------------------------------

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge a message, as :meth:`Message.ack`, or whatever has this id; a pending nack of it is cancelled.

        :raises AlreadySettledError: as :meth:`Message.ack` raises it
        :raises BrokerError: it failed; nothing changed
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            await message.ack()
        else:
            await self._acknowledge(_checked(message))

    def acknowledge_soon(self, message: Message | MessageId) -> None:
        """Acknowledge without waiting for the outcome, as :meth:`Message.ack_soon`.

        :raises AlreadySettledError: as :meth:`Message.ack` raises it
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            message.ack_soon()
        else:
            self._acknowledge_soon(_checked(message))

    async def negative_acknowledge(
        self, message: Message | MessageId, delay: Delay | None = None, *, reason: str = ""
    ) -> None:
        """Have a message, or whatever has this id, shown again after ``delay``; see :meth:`Message.nack`.

        :raises AlreadySettledError: it is acknowledged
        :raises InvalidArgumentError: the delay, the id or the reason
        :raises NotDurableError: the consumer is durable and this could not be written; the nack is in effect
        :raises ClosedError: the consumer is closed
        """
        if isinstance(message, Message):
            await message.nack(delay, reason=reason)
            return
        written = await self._negative_acknowledge(_checked(message), delay, reason=reason)
        if written is not None:
            await self._until_durable(_checked(message), written)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message of its partition; holds up to it are cancelled.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: it failed (as on Shared subscriptions); nothing changed
        :raises ClosedError: the consumer is closed
        """
        self._ensure_open()
        if not isinstance(self._port, SupportsCumulativeAck):
            raise NotImplementedError(f"{type(self._port).__name__} cannot acknowledge cumulatively")
        message_id = self._known(message.id if isinstance(message, Message) else _checked(message))
        await self._port.acknowledge_cumulative(message_id)
        for settled in self._states.settle_through(message_id, self._clock.now_ms()):
            if self._note is not None:
                if settled in self._holds.tracker:
                    self._note("cancel", settled, reason="ack")
                self._note("ack", settled, reason="ack")
            self._holds.drop(settled)
            self._recent.pop(settled)
            if self._dead is not None:
                self._dead.drop(settled, ACKED)
        self._room.changed()
        if self._durable is not None:
            await self._durable.acked_up_to(message_id)

    async def seek(self, position: MessageId | int | datetime) -> None:
        """Move the subscription to a message id or a publish time; forgets acks, nacks and holds.

        What was held and is not moved comes again soon: where this fails or is cancelled, and in other partitions.

        :param position: the message, or the publish time of the first one, to be shown next: a datetime (local time if
            it names no zone) or epoch ms; 0 is before all
        :raises InvalidArgumentError: neither of both, as seconds are that are meant as ms; nothing changed
        :raises NotImplementedError: the port cannot
        :raises NotDurableError: the consumer is durable and this could not be written; nothing was moved
        :raises BrokerError: the broker refused
        :raises ClosedError: the consumer is closed
        """
        self._ensure_open()
        if not isinstance(self._port, SupportsSeek):
            raise NotImplementedError(f"{type(self._port).__name__} cannot seek")
        position = seek_position(position)
        cleared = None if self._durable is None else self._durable.cleared()  # before anything else is noted
        self._note_cancelled("seek")
        left = self._states.waiting_counts() | {each.id: each.redelivery_count for each in self._inbox.ready}
        self._inbox.clear()
        if self._gated is not None:
            self._gated.clear()
        self._holds.clear()
        self._recent.clear()
        self._states.clear()
        if self._dead is not None:
            self._dead.clear("forgotten by a seek")
        try:
            if cleared is not None and (error := await cleared) is not None:
                what = "the subscription was not moved, for that could not be made durable"
                raise NotDurableError(what, error) from error
            await self._port.seek(position)
            left = {each: count for each, count in left.items() if not _is_moved(each, position)}
            self._states.clear_settled()
        finally:
            self._holds.ask_for(left)
            self._room.changed()

    async def unsubscribe(self) -> None:
        """Delete the subscription at the broker, clear its durable state, and close.

        Goes on to its end when the call is cancelled, as a subscription is not deleted by half.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: the broker refused, as it does while others consume; of partitions and lists some may be
            gone, and a later call deletes the others
        :raises NotDurableError: the subscription is gone, but its durable state could not be cleared
        :raises ClosedError: the consumer is closed
        """
        self._ensure_open()
        if not isinstance(self._port, SupportsUnsubscribe):
            raise NotImplementedError(f"{type(self._port).__name__} cannot unsubscribe")
        if self._unsubscribing is None:
            task = asyncio.create_task(self._unsubscribe(self._port), name="pulsar_nack.Consumer unsubscribing")
            self._unsubscribing = task
            task.add_done_callback(self._on_unsubscribed)
        await asyncio.shield(self._unsubscribing)

    def _on_unsubscribed(self, task: asyncio.Task[None]) -> None:
        self._unsubscribing = None  # where it failed it can be tried again
        if not task.cancelled() and task.exception() is not None:
            _log.info("%r: not unsubscribed: %r", self, task.exception())

    async def _unsubscribe(self, port: SupportsUnsubscribe) -> None:
        await port.unsubscribe()
        cleared = None if self._durable is None else self._durable.cleared()
        self._note_cancelled("unsubscribe")
        self._holds.clear()
        self._states.clear()
        if self._dead is not None:
            self._dead.clear("gone with its subscription")
        error = None if cleared is None else await cleared
        await self.aclose()
        if error is not None:
            raise NotDurableError("the subscription is gone, but its durable state is still there", error) from error

    def _acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        acks = self._acks
        if acks is None or self._is_closed or running_loop() is not self._loop:
            acks = self._ensure_open()
        if self._dead is not None:
            self._check_kept(message_id)
        return acks.acknowledge(message_id)

    def _acknowledge_soon(self, message_id: MessageId) -> None:
        acks = self._ensure_open()
        if self._dead is not None:
            self._check_kept(message_id)
        acks.acknowledge_soon(message_id)

    def _is_given_up(self, message_id: MessageId) -> bool:
        """Return whether a message is on its way to the dead-letter topic."""
        return self._dead is not None and message_id in self._dead

    def _check_kept(self, message_id: MessageId) -> None:
        """Raise for a message that is."""
        if self._is_given_up(message_id):
            raise AlreadySettledError(message_id, State.GIVEN_UP.value)

    async def _dead_letter(self, message: Message, reason: str) -> None:
        """Send a message to the dead-letter topic, and wait until it is there and acknowledged."""
        self._ensure_open()
        dead = self._dead
        if dead is None:
            raise NoDeadLetterError(message.id)
        reason = as_reason(reason)
        if message.id not in dead:
            self._check_unsettled(message.id, message)
        await dead.wait(await self._give_up(dead, message._delivery, message, message.redelivery_count, reason))

    async def _nacked_for_the_last_time(
        self, dead: DeadLetters, message_id: MessageId, payload: Delivery | None, message: Message | None, reason: str
    ) -> bool:
        """Begin to send a message to the dead-letter topic if this was its last attempt; return whether it was.

        Where the payload is not known here, or the message did not come in this session, it is asked for once more, and
        goes there when it comes.
        """
        record = self._states.get(message_id)
        count = 0 if message is None else message.redelivery_count
        count = count if record is None else record.redelivery_count
        if record is not None and record.is_doubtful:
            return False  # others may have settled it
        if payload is None or not dead.rules.is_last(count):
            return False
        await self._give_up(dead, payload, message, count, reason)
        self._nacked += 1
        return True

    async def _give_up(
        self, dead: DeadLetters, payload: Delivery, message: Message | None, count: int, reason: str = ""
    ) -> Job:
        while dead.is_full and payload.id not in dead:
            await dead.has_room.wait()
            self._ensure_open()
            if payload.id not in dead:
                self._check_unsettled(payload.id, message)
        if self._note is not None and payload.id in self._holds.tracker:
            self._note("cancel", payload.id, count, reason=REASON_IN_TRACE)
        self._holds.drop(payload.id)
        self._recent.pop(payload.id)
        return dead.send(payload, count, reason)

    async def _negative_acknowledge(
        self, message_id: MessageId, delay: Delay | None, message: Message | None = None, *, reason: str = ""
    ) -> asyncio.Future[Outcome] | None:
        """Hold a message; return what tells that this is durable, None where nothing is to be waited for."""
        self._ensure_open()
        milliseconds = self._delay_ms(message_id, delay)
        if reason or type(reason) is not str:
            reason = as_reason(reason)
        payload = self._recent.get(message_id) if message is None else message._delivery
        dead = self._dead
        if dead is not None and message_id in dead:
            return None
        record = self._check_unsettled(message_id, message)
        if dead is not None and await self._nacked_for_the_last_time(dead, message_id, payload, message, reason):
            return None
        is_new, left_ms = record is None or record.state is State.IN_WORK, milliseconds
        if is_new and not (self._room.is_free and self._has_room(message_id, milliseconds, payload)):
            if self._note is not None and not self._has_room(message_id, milliseconds, payload):
                count = 0 if record is None else record.redelivery_count
                self._note("hold", message_id, count, reason="no room")
            now = asyncio.get_running_loop().time
            began_at = now()
            await self._room.wait_for(lambda: self._has_room(message_id, milliseconds, payload))
            self._check_unsettled(message_id, message)
            left_ms = max(milliseconds - round((now() - began_at) * 1000), 0)
        record = self._states.hold(message_id)
        self._holds.hold(record, left_ms, payload)
        if self._note is not None:
            due_in_ms = max(record.due_at_ms - self._clock.now_ms(), 0) if record.is_held else None
            self._note(
                "nack",
                record.id,
                record.redelivery_count,
                delay_ms=milliseconds,
                due_in_ms=due_in_ms,
                reason=reason or None,
            )
        self._nacked += 1
        self._recent.pop(message_id)
        self._room.note()
        if self._watches_idle:
            self._note_idle()
        if self._durable is None or record.state is not State.HELD:
            return None
        return self._durable.nacked(record.id, record.due_at_ms - self._clock.now_ms(), record.redelivery_count)

    @staticmethod
    async def _until_durable(message_id: MessageId, written: asyncio.Future[Outcome]) -> None:
        error = await written
        if error is not None:
            what = f"{message_id!r} comes back in time while this consumer lives, but that could not be made durable"
            raise NotDurableError(what, error) from error

    def _check_unsettled(self, message_id: MessageId, message: Message | None) -> Record | None:
        """Raise if the message is settled, or if a later attempt of it is being processed."""
        record = self._states.get(message_id)
        if record is not None and record.state is State.IN_WORK:
            is_later = message is not None and record.redelivery_count != message._redelivery_count
            if is_later and not record.is_guessed:
                raise AlreadySettledError(message_id, "shown again")
            return record
        self._states.check_unsettled(message_id)
        if record is None and self._durable is not None and self._durable.was_acked(message_id):
            raise AlreadySettledError(message_id, "acknowledged")
        return record

    def _check_attempt(self, message: Message) -> None:
        """Raise if a later attempt of the message is being processed."""
        if self._states.state(message.id) is State.IN_WORK:
            self._check_unsettled(message.id, message)

    def _has_room(self, message_id: MessageId, milliseconds: int, payload: Delivery | None) -> bool:
        most = self._config.max_held
        is_full = most is not None and self._states.held >= most
        return not is_full and not self._holds.must_wait(message_id, milliseconds, payload)

    def _must_let_pass(self) -> bool:
        """Return whether a nack is not to wait: a message is ready, or all that there is are nacks that wait."""
        states = self._states
        return len(self._inbox) > 0 or (not states.held and states.in_work <= self._room.waiting + 1)

    def _note_nacking(self, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        """Mark the message as just nacked until the loop's next turn, when one callback clears all such marks."""
        if not self._nacking:
            loop.call_soon(self._forget_nacking)
        self._nacking.append(message)

    def _forget_nacking(self) -> None:
        for message in self._nacking:
            message._nacking = None
        self._nacking.clear()

    def _delay_ms(self, message_id: MessageId, delay: Delay | None) -> int:
        if delay is None and self._backoff is not None:
            record = self._states.get(message_id)
            delay = self._backoff(0 if record is None else record.redelivery_count)
        return self._config.negative_ack_redelivery_delay_ms if delay is None else delay_ms(delay)

    def _note_cancelled(self, reason: str) -> None:
        if self._note is not None:
            for record in self._states.held_records():
                self._note("cancel", record.id, record.redelivery_count, reason=reason)

    # --- events of the port -----------------------------------------------------------------------------------------

    def _on_session(self, event: SessionEvent, topic: str, partition: int) -> None:
        states, place = self._states, (topic, partition)
        if event is SessionEvent.LOST:
            states.sessions.lost(place, self._clock.now_ms())
        elif event is SessionEvent.CLOSED:
            states.sessions.closed(place)
            if self._durable is not None:
                self._durable.confirmed()
        elif event is SessionEvent.INACTIVE:
            waiting = states.waiting_in(topic, partition)
            states.leave(waiting)
            self._drop([*waiting, *self._drop_ready(topic, partition)], "inactive")
        else:  # what does not come in this session was settled by others, or is theirs
            if states.gets_all:
                self._drop_ready(topic, partition)
            self._holds.doubt(states.doubt(topic, partition))

    def _drop_ready(self, topic: str, partition: int) -> list[Record]:
        """Drop messages of a partition that were not received yet: the broker sends them again, here or elsewhere."""
        boxes = (self._inbox,) if self._gated is None else (self._inbox, self._gated)
        gone = [each for box in boxes for each in box.drop(lambda message: place_of(message.id) == (topic, partition))]
        records = [
            record
            for message in gone
            if (record := self._states.get(message.id)) is not None
            and record.state is State.IN_WORK
            and record.redelivery_count == message.redelivery_count
        ]
        self._states.leave(records)
        return records

    def _drop(self, records: Sequence[Record], reason: str) -> None:
        """Forget waiting messages that are settled, or that another consumer gets."""
        for record in records:
            if self._note is not None:
                self._note("cancel", record.id, record.redelivery_count, reason=reason)
            self._holds.drop(record.id)
            self._recent.pop(record.id)
        if records:
            self._dropped += len(records)
            _log.info("%d messages that waited to be shown again are dropped: %s", len(records), reason)
        self._room.changed()

    def _on_passed(self, records: Sequence[Record]) -> None:
        """Drop what the mark-delete position has passed: it was skipped, cleared or expired, or others settled it."""
        if self._dead is not None:
            for record in records:
                self._dead.drop(record.id, "acknowledged at the broker")
        self._drop(records, "passed")

    def _has_waiting(self) -> bool:
        states = self._states
        return bool(states.held or states.requested or (self._dead is not None and len(self._dead)))

    def _on_settled(self, records: Sequence[Record]) -> None:
        if self._note is not None:
            self._note_settled(records, self._note)
        for record in records:
            if record.before_ack is not State.IN_WORK:
                self._holds.drop(record.id)
            if record.has_copy:
                self._acknowledging.again(record.id)
        if len(self._recent):
            for record in records:
                self._recent.pop(record.id)
        if self._room.waiting:
            self._room.changed()
        if self._watches_idle:
            self._note_idle()

    @staticmethod
    def _note_settled(records: Sequence[Record], note: TraceNote) -> None:
        for record in records:
            if record.before_ack is State.HELD:
                note("cancel", record.id, record.redelivery_count, reason="ack")
            reason = REASON_IN_TRACE if record.before_ack is State.GIVEN_UP else "ack"
            note("ack", record.id, record.redelivery_count, reason=reason)

    def _on_ack_failed(self, record: Record, *, was_due: bool, error: BaseException) -> None:
        if self._note is not None:
            self._note("error", record.id, record.redelivery_count, reason=f"ack: {error!r}")
        if was_due:
            self._holds.hold_again(record)
        if record.is_guessed and (record.has_copy or record.redelivery_count) and self._states.get(record.id) is None:
            self._holds.ask_for({record.id: record.redelivery_count})

    def _on_ack_unheard(self, record: Record, error: Exception) -> None:
        """Nobody else will settle the message: it is shown again, as if it had been nacked."""
        if record.is_guessed and not self._is_closed and self._states.get(record.id) is None:
            self._holds.ask_for({record.id: record.redelivery_count})  # no task has it, or it was forgotten in work
            return
        if self._is_closed or self._states.get(record.id) is not record or record.state is not State.IN_WORK:
            return
        _log.warning("%r could not be acknowledged, and is shown again: %s", record.id, error)
        self._holds.hold(self._states.hold(record.id), self._delay_ms(record.id, None), self._recent.pop(record.id))

    # --- looking ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        topic, subscription, _ = names_of(self._port)
        whose = f" of {topic!r} as {subscription!r}" if topic else ""
        state = "closed" if self._is_closed else "not open" if self._acks is None else f"{self._unacked()} unacked"
        return f"<Consumer{whose}, {state}>"

    @property
    def port(self) -> Any:
        """Return the transport."""
        return self._port

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot."""
        self._states.expire(self._clock.now_ms())
        acks, durable, dead = self._acks, self._durable, self._dead
        return ConsumerStatistics(
            received=self._received,
            shown=self._shown,
            copies_dropped=self._copies,
            replayed=self._replayed,
            dropped=self._dropped,
            acked=0 if acks is None else acks.acked,
            acked_again=0 if acks is None else acks.acked_again,
            nacked=self._nacked,
            redelivered_local=self._holds.redelivered_local,
            redelivered_broker=self._holds.redelivered_broker,
            asked_again=self._holds.asked_again,
            in_work=self._states.in_work,
            ready=self._waiting_to_be_shown(),
            held=self._states.held,
            requested=self._states.requested,
            kept=len(self._store),
            kept_bytes=self._store.bytes,
            unacked=self._unacked(),
            prefetched=self._prefetched,
            unacked_limit=None if self._room.limit is None else self._room.limit + self._prefetched,
            is_near_unacked_limit=self._room.is_near_limit,
            is_held_back=self._held_back_at == self._received,
            waiting_nacks=self._room.waiting,
            dead_lettered=0 if dead is None else dead.done,
            dead_letters_waiting=0 if dead is None else len(dead),
            dead_letter_failures=0 if dead is None else dead.failures,
            durable_entries=0 if durable is None else len(durable),
            durable_bytes=0 if durable is None else durable.journal.bytes,
            durable_restored=0 if durable is None else durable.restored,
            durable_compactions=0 if durable is None else durable.journal.compactions,
            durable_failures=0 if durable is None else durable.journal.failures,
            durable_acks=0 if durable is None else durable.acked_entries,
            durable_ack_bytes=0 if durable is None else durable.ack_bytes,
            is_ack_state_full=durable is not None and durable.gate.is_paused,
            gated=0 if self._gated is None else len(self._gated),
            times_gated=0 if durable is None else durable.gate.statistics().times_paused,
            nack=self._holds.tracker.statistics(),
        )

    def _waiting_to_be_shown(self) -> int:
        return len(self._inbox) + (0 if self._gated is None else len(self._gated))

    def _unacked(self) -> int:
        return self._states.in_work + self._states.held

    def _known(self, message_id: MessageId) -> MessageId:
        record = self._states.get(message_id)
        return message_id if record is None else record.id

    @property
    def _acknowledging(self) -> Acks:
        if self._acks is None:
            raise NotOpenError("the consumer")
        return self._acks

    def _ensure_open(self) -> Acks:
        acks = self._acks
        if self._is_closed:
            raise ClosedError("the consumer")
        if acks is None:
            raise NotOpenError("the consumer")
        check_loop(self._loop, "the consumer")
        return acks


def _checked(message_id: object) -> MessageId:
    if not isinstance(message_id, MessageId):
        raise InvalidArgumentError("message", message_id, "a Message or a MessageId")
    return message_id


def _is_moved(message_id: MessageId, position: MessageId | int) -> bool:
    """Return whether a seek moves what a message is in: a time, and the ends of a topic, move everything."""
    return not _names_message(position) or is_same_topic(message_id, position)


_DEFAULTS: Final = {
    name: each.default for name, each in inspect.signature(Consumer).parameters.items() if name != "port"
}
_CHECKED: Final = frozenset(inspect.signature(checked).parameters) - {"traits"}


def check_settings(traits: PortTraits, settings: Mapping[str, Any]) -> None:
    """Refuse what a :class:`Consumer` on a port with such traits would, before there is one, or an event loop.

    :raises InvalidArgumentError: names the setting
    """
    refuse_unknown(settings.items(), _DEFAULTS)
    checked(traits, **{name: settings.get(name, _DEFAULTS[name]) for name in _CHECKED})
