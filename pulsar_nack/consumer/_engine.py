"""The parts of a consumer and what runs them: the user's :class:`Consumer` delegates to them, and they do not know it.

One task (:meth:`ConsumerEngine.serve`) owns everything that runs: the tracker, the receiver, the acknowledgements, and
the durable state. Opening starts it, closing ends it, from whatever task either is called.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack

from .._delays import delay_ms
from .._lifetime import NO_THREAD, loop_thread_of
from ..clock import LoopClock, WallClock
from ..errors import ClosedError
from ._consumer_state import ConsumerState, watch_held_back
from ._events import MessageTrace, names_of
from ._inbox import DurableGateQueue
from ._letters import Letters
from ._mark_delete import MarkDeleteWatch
from ._message_state import MessageState, State
from ._message_table import WAITING, MessageTable
from ._port import ConsumerPort, SessionEvent, SupportsSessions, SupportsSubscription
from ._receiver import Receiver
from ._redelivery_queue import RedeliveryQueue
from ._settings import ConsumerSettings
from ._settler import Settler

_log = logging.getLogger("pulsar_nack.consumer")


class ConsumerEngine:
    """Builds the parts of one consumer, and runs them from opening to closing."""

    def __init__(self, port: ConsumerPort, settings: ConsumerSettings) -> None:
        traits = port.traits
        self.port = port
        self.settings = settings
        self.clock = clock = settings.clock or LoopClock()
        note = None if settings.trace is None else settings.trace.source(*names_of(port))
        trace = self.trace = MessageTrace(note, clock, settings.hooks)
        self._reporting = port if traits.reports_sessions and isinstance(port, SupportsSessions) else None
        self._is_local = self._reporting is not None and not traits.keeps_acks
        self._port_keeps_members = self._is_local and traits.batch_index_ack  # a broker loses them at an unload
        limit = None if settings.unacked_limit is None else settings.unacked_limit - traits.receiver_queue_size
        self._ack_memory_ms = delay_ms(settings.ack_memory)
        self.table = table = MessageTable(
            ack_memory_ms=self._ack_memory_ms,
            most_delivered=2 * (limit or 500_000),
            keeps_members=self._port_keeps_members,
        )
        self.mark_delete: MarkDeleteWatch | None = None
        if self._reporting is not None:
            self.mark_delete = MarkDeleteWatch(
                self._reporting, table, clock, is_waiting=self._has_waiting, passed=self._on_passed
            )
        self.letters: Letters | None = None
        if settings.dead_letter is not None or settings.retry_topic is not None:
            self.letters = Letters(settings, port, table, mark_delete=self.mark_delete, trace=trace)
        self.queue = RedeliveryQueue(port, table, settings, trace, mark_delete=self.mark_delete, lost=self._on_lost)
        self.state = ConsumerState(self.queue, self.letters, settings, limit, must_admit=self._must_admit)
        self.settler = Settler(self.state, settings.lease)
        self.receiver = Receiver(port, self.settler, is_durable=settings.durable is not None)
        table.requests.may_be_at_port = self.receiver.may_be_at_port
        table.requests.bring_all = self._reporting is not None and not traits.honours_ids
        self._ends_at = math.inf
        self._has_ended = False
        self._stopping = asyncio.Event()

    def supporting(self, verb: str) -> SupportsSubscription:
        """Return the port of an open consumer as one that can do what a verb says with its subscription."""
        self.state.check_open()
        if not isinstance(self.port, SupportsSubscription):
            raise NotImplementedError(f"{type(self.port).__name__} cannot {verb}")
        return self.port

    # --- running -----------------------------------------------------------------------------------------------------

    async def serve(self, opened: asyncio.Future[None]) -> None:
        """Run everything until :meth:`stop`, then finish and close the port; ``opened`` is set once messages can come.

        :raises LogLockedError: another consumer uses the durable state
        :raises LedgerError: the durable state cannot be read or written
        """
        try:
            async with AsyncExitStack() as stack:
                await self._open_durable(stack)
                async with self.queue.tracker, asyncio.TaskGroup() as tasks:
                    acks = self.settler.acks
                    acks.start(tasks)
                    self.state.is_opened = True
                    self.state.thread = loop_thread_of(self.state.loop)
                    self.receiver.inbox.loop = self.state.loop
                    background = self._start(tasks)
                    opened.set_result(None)
                    self.trace.connected(names_of(self.port)[0], -1)
                    await self._stopping.wait()
                    if self.letters is not None:
                        await self.letters.finish(self._remaining_s())
                    await acks.finish(self._remaining_s())
                    self.settler.trace_cancelled("close")
                    await self._finish_durable()
                    for task in background:
                        task.cancel()
        finally:
            if self.state.is_opened:
                self.settler.acks.give_up()
                self.trace.disconnected(names_of(self.port)[0], -1, "closed")
            if self.letters is not None:
                await self.letters.aclose()
            await self.port.close()

    def _start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        receiver, acks = self.receiver, self.settler.acks
        runs = [receiver.pump(), acks.run(), self.queue.watch()]
        if self.letters is not None:
            self.letters.start(tasks, acks.acknowledge)
        if self.mark_delete is not None:
            runs.append(self.mark_delete.run())
        if self.state.durable is not None:
            runs.append(self.state.durable.run())
        if self._reporting is not None:
            self._reporting.watch_sessions(self._on_session)
            if not self._is_local:
                wanted = receiver.inbox.wanted
                runs.append(watch_held_back(self._reporting, wanted, self.state, lambda: receiver.received))
        return [tasks.create_task(run) for run in runs]

    def stop(self) -> None:
        """Let :meth:`serve` end, within ``close_timeout``."""
        if not self._stopping.is_set():
            self._ends_at = asyncio.get_running_loop().time() + self.queue.config.close_timeout.total_seconds()
        self._stopping.set()

    def end_calls(self, error: Exception) -> None:
        """Raise an error in all calls that wait, and refuse later ones."""
        self.state.is_closed, self.state.thread = True, NO_THREAD
        self.receiver.inbox.close(self.receiver.unreadable or error)
        self.state.end_waiting_nacks(error)

    @property
    def has_ended(self) -> bool:
        """Return whether the consumer is closed, and nothing of it changes any more."""
        return self.state.is_closed and (not self.state.is_opened or self._has_ended)

    def on_end(self, server: asyncio.Task[None]) -> None:
        """End all waiting calls when serving ended, for whatever reason."""
        error = ClosedError("the consumer")
        if not server.cancelled() and server.exception() is not None:
            error.__cause__ = server.exception()
        self._has_ended = True
        self.end_calls(error)

    def _remaining_s(self) -> float:
        """Return how long closing may still take."""
        return max(self._ends_at - asyncio.get_running_loop().time(), 0.0)

    # --- durable state -----------------------------------------------------------------------------------------------

    async def _open_durable(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        if settings.durable is None:
            return
        from .durable import DurableNacks

        durable = DurableNacks(
            memory_ms=0 if self.port.traits.keeps_acks else self._ack_memory_ms,
            keeps_members=not self._port_keeps_members,
            ttl_ms=delay_ms(settings.durable_ttl),
            clock=settings.wall_clock or WallClock(),
            in_flight=lambda: self.state.count_unacked() - self.receiver.waiting(),
            is_connected=lambda: getattr(self.port, "is_connected", True),
            max_ack_state_bytes=settings.max_ack_state_bytes,
        )
        await durable.open(settings.durable)
        self.state.durable = durable
        self.receiver.gate_queue = DurableGateQueue(durable, self.receiver.inbox)

        async def close() -> None:
            await durable.aclose(self._remaining_s())

        stack.push_async_callback(close)
        await durable.restore(self.table, self.queue.hold, self.clock.now_ms())

    async def _finish_durable(self) -> None:
        """Write everything; if the port keeps the acknowledgements, also note that they can be forgotten."""
        durable = self.state.durable
        if durable is None:
            return
        if self._is_local and self._reporting is not None:
            try:
                async with asyncio.timeout(self._remaining_s()):
                    await self._reporting.flush()
            except Exception as error:  # noqa: BLE001 - then they are remembered
                _log.debug("acknowledgements are remembered, as they could not be written: %r", error)
            else:
                durable.confirmed()
        await durable.finish(self._remaining_s())

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_session(self, event: SessionEvent, topic: str, partition: int) -> None:
        table, place = self.table, (topic, partition)
        self.receiver.inbox.drop_outdated()  # by acknowledgements that may be forgotten now
        if event is SessionEvent.BEGAN:
            self.trace.connected(topic, partition)
        else:
            self.trace.disconnected(topic, partition, event.value)
        if event is SessionEvent.LOST:
            table.acked.session_lost(place, self.clock.now_ms())
        elif event is SessionEvent.CLOSED:
            table.acked.session_closed(place)
            if self.state.durable is not None:
                self.state.durable.confirmed()
        elif event is SessionEvent.INACTIVE:
            waiting = [*table.select(WAITING, place), *self.receiver.drop_waiting(place)]
            table.leave(waiting)
            self.settler.drop(waiting, "inactive")
            self.queue.doubt(table.select(set(State), place))
        else:  # what does not come in this session was settled by others, or is theirs
            for record in self.receiver.drop_waiting(place) if table.requests.bring_all else ():
                table.give_back(record.id)
            self.queue.doubt(table.select(set(State), place))
            if self.receiver.key_order is not None:
                self.receiver.key_order.check_waiting()

    def _on_passed(self, records: Sequence[MessageState]) -> None:
        """Drop messages before the mark-delete position: skipped, cleared, expired, or settled by other consumers."""
        if self.letters is not None:
            for record in records:
                self.letters.drop(record.id, "acknowledged at the broker")
        self.settler.drop(records, "passed")

    def _on_lost(self, records: Sequence[MessageState]) -> None:
        self.settler.drop(records, "settled by another consumer")

    def _has_waiting(self) -> bool:
        table = self.table
        return bool(table.held or table.requested or (self.letters is not None and len(self.letters)))

    def _must_admit(self) -> bool:
        """Return whether a nack must not wait: a message is ready, or nothing but nacks that wait is unacknowledged."""
        table, receiver = self.table, self.receiver
        kept = 0 if receiver.key_order is None else len(receiver.key_order)  # behind those that wait
        waiting = len(self.state.waiting_nacks)
        return len(receiver.inbox) > 0 or (not table.held and table.delivered <= waiting + kept + 1)
