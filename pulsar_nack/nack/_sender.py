"""The tracker's working half: one timer, commands to the redelivery callback, retries, and the end.

States of ``armed_at``, which everyone who adds compares with:

- ``NEVER``: nothing is pending, no timer is set; whatever is added sets it.
- a time: the timer is set for it; only something earlier touches it.
- ``ATTENDED``: the sending task is awake, or waits for a callback to end because ``max_in_flight`` are under way; it
  looks at everything pending before it rests, so nobody needs to set a timer.

The timer wakes the sending task (``serve``), which owns every callback through one task group. A callback that is a
plain function the timer calls itself, with the first ids of those that are due, for each turn of the loop in between
makes them later; what it returns to be awaited is the group's. A callback gets its ids in a :class:`Flight` and lands
when it ends, however it ends; only landing decides what becomes of the ids. Fresh ids go before retries, but one retry
may always be under way, and retries never take the last place: neither holds up the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from anyio.abc import TaskGroup

from .._wake_up import NS_PER_MS, WakeUp, ticker_of
from ..clock import Clock
from ..config import NackConfig
from ..ids import MessageId
from ..index import NEVER
from ._events import Cleared, Hooks
from ._flights import Flight, Landing
from ._joined import join_ids
from ._retries import Retries
from ._room import EVERY_PLACE, Room
from ._schedule import NackSchedule
from ._statistics import Counters

RedeliveryCallback = Callable[[Sequence[MessageId]], Awaitable[None] | None]
"""Takes ids that are due, at most ``max_batch`` of them; what it raises brings them back to it later."""

ATTENDED: Final = -NEVER


class Sender:
    """Sends what is due; see the head of the module."""

    def __init__(
        self,
        redeliver: RedeliveryCallback,
        config: NackConfig,
        schedule: NackSchedule,
        retries: Retries,
        hooks: Hooks,
        *,
        collapse: bool,
        ahead: float,
    ) -> None:
        self._redeliver = redeliver
        self._is_plain = not _is_coroutine_function(redeliver)
        self._config = config
        self._schedule = schedule
        self._buckets = schedule.buckets
        self._hooks = hooks
        self._collapse = collapse
        self._ahead = ahead
        self.ahead_ns = 0
        self._max_in_flight = 1 if collapse else config.max_in_flight
        self._max_retry_flights = max(self._max_in_flight - 1, 1)
        self._retry_flights = 0
        self._was_retry = False
        self._flights: dict[Flight, asyncio.Task[None] | None] = {}
        self._left: list[MessageId] = []
        self._is_closing = False
        self._group: TaskGroup | None = None
        self._fatal: BaseException | None = None
        self._timer: WakeUp | None = None
        self.retries = retries
        self.room = Room(config.max_held)
        self.counters = Counters()
        self.armed_at = NEVER
        self.in_flight = 0

    def open(self, clock: Clock) -> None:
        """Take the clock, in the running loop."""
        loop = asyncio.get_running_loop()
        self.ticks = ticker_of(clock, loop)
        self._timer = WakeUp(clock, self._on_timer, self._ahead)
        self.ahead_ns = self._timer.ahead_ns
        self._kick = asyncio.Event()
        self._landed = asyncio.Event()
        self.settle()

    def settle(self) -> None:
        """Decide whether a nack has to go the long way: with hooks, while anything is to be tried again, and closed."""
        is_special = bool(self._hooks) or len(self.retries) > 0 or self._is_closing
        self.room.reserved = EVERY_PLACE if is_special else 0

    def now_ms(self) -> int:
        """Return the clock's time."""
        return self.ticks() // NS_PER_MS

    def due_ms(self) -> int:
        """Return the time up to which ids are to be sent by now."""
        return (self.ticks() + self.ahead_ns) // NS_PER_MS

    # the timer

    @property
    def early_wakeups(self) -> int:
        """Return how often the timer fired too early."""
        return 0 if self._timer is None else self._timer.early

    def arm(self, now_ms: int) -> None:
        """Set the one timer for the earliest bucket or retry; touch nothing when it is right already."""
        at_ms = self._earliest()
        if self.armed_at in {at_ms, ATTENDED} or self._is_closing:
            return
        self.disarm()
        if at_ms <= now_ms:
            self._wake()
        elif at_ms < NEVER:
            self.armed_at = at_ms
            if self._timer is not None:
                self._timer.set(at_ms, now_ms)

    def _earliest(self) -> int:
        if self._retry_flights >= self._max_retry_flights:
            return self._buckets.earliest
        return min(self._buckets.earliest, self.retries.earliest)

    def disarm(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.armed_at = NEVER

    def _wake(self) -> None:
        self.armed_at = ATTENDED
        self._kick.set()

    def _on_timer(self, _at_ms: int) -> None:
        self.counters.wakeups += 1
        if self._is_plain and self._group is not None and len(self._flights) < self._max_in_flight:
            self.armed_at = NEVER
            try:
                self._send_at_once(self._group, self.due_ms())
            except BaseException as fatal:
                self._fatal = fatal  # ends the sending task
                self._kick.set()
                if isinstance(fatal, KeyboardInterrupt | SystemExit):
                    raise
                return
            self.arm(self.due_ms())
        else:
            self._wake()

    # sending

    async def serve(self) -> None:
        """Send until closing, then give the callbacks that are under way ``close_timeout``, then cancel them."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                while not self._is_closing:
                    await self._kick.wait()
                    self._kick.clear()
                    if self._fatal is not None:
                        raise self._fatal
                    if self.armed_at == ATTENDED:
                        await self._send_due(group)
                with anyio.move_on_after(self._config.close_timeout.total_seconds()):
                    while self._flights:
                        self._landed.clear()
                        await self._landed.wait()
            finally:
                self._group = None
                group.cancel_scope.cancel()

    def _send_at_once(self, group: TaskGroup, now_ms: int) -> None:
        """Call a plain callback where the timer is, once; the sending task sends what is due besides."""
        flight = self._next_flight(now_ms)
        if flight is None:
            return
        self._take_off(flight)
        error: BaseException | None = None
        try:
            result = contextvars.copy_context().run(self._redeliver, flight.ids)  # one of its own, as a task has
        except Exception as raised:  # noqa: BLE001 - as in _fly
            error = raised
        except asyncio.CancelledError as cancelled:
            error = cancelled
        except BaseException as fatal:
            self._land(flight, fatal)
            raise
        else:
            if inspect.isawaitable(result):
                flight.result = result
                group.start_soon(self._fly, flight)
                return
        self._land(flight, error)

    async def _send_due(self, group: TaskGroup) -> None:
        while not self._is_closing and len(self._flights) < self._max_in_flight:
            flight = self._next_flight(self.due_ms())
            if flight is None:
                self.armed_at = NEVER
                self.arm(self.due_ms())
                return
            self._take_off(flight)
            group.start_soon(self._fly, flight)
            await asyncio.sleep(0)

    def _take_off(self, flight: Flight) -> None:
        self._flights[flight] = None
        self.in_flight += len(flight.ids)
        self._retry_flights += flight.is_retry
        self._was_retry = flight.is_retry
        self.counters.commands += 1
        self.counters.retries += flight.is_retry
        self.settle()

    def _next_flight(self, now_ms: int) -> Flight | None:
        if self._earliest() > now_ms:
            return None
        if self._collapse:
            return self._everything(now_ms)
        if self._retry_flights == 0 and (self._max_in_flight > 1 or not self._was_retry):
            return self._next_retry(now_ms) or self._next_fresh(now_ms)
        return self._next_fresh(now_ms) or self._next_retry(now_ms)

    def _next_fresh(self, now_ms: int) -> Flight | None:
        due_at = self._buckets.earliest
        if due_at > now_ms:
            return None
        ids = self._schedule.pop_due(now_ms, self._config.max_batch)
        if not len(ids):
            return None
        self.counters.late_ms.append(now_ms - due_at)
        return Flight(ids)

    def _next_retry(self, now_ms: int) -> Flight | None:
        if self._retry_flights >= self._max_retry_flights:
            return None
        retry = self.retries.pop_due(now_ms)
        return None if retry is None else Flight(list(retry.ids.values()), retry.attempt)

    def _everything(self, now_ms: int) -> Flight | None:
        due_at = self._buckets.earliest
        if due_at <= now_ms:
            self.counters.late_ms.append(now_ms - due_at)
        retries = self.retries.pop_all()
        ids = join_ids([self._buckets.pop_all(), *(list(retry.ids.values()) for retry in retries)])
        return Flight(ids, max((retry.attempt for retry in retries), default=1)) if len(ids) else None

    async def _fly(self, flight: Flight) -> None:
        self._flights[flight] = asyncio.current_task()
        error: BaseException | None = None
        try:
            result, flight.result = flight.result, None
            if result is None:
                result = self._redeliver(flight.ids)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancelled:
            error = cancelled  # of the callback, or of this task, which ends here: it is not to end the tracker
        except Exception as raised:  # noqa: BLE001 - reported to hooks and statistics, and the ids are tried again
            error = raised
        except BaseException as fatal:
            error = fatal
            raise
        finally:
            self._land(flight, error)

    # landing

    def _land(self, flight: Flight, error: BaseException | None) -> None:
        failed = flight.failed(error)
        landing = Landing(
            failed=failed,
            back=self._wanted(flight, failed),
            at_ms=self.now_ms(),
            retry_delay_ms=self.retries.delay_ms(flight.attempt + 1),
            error=error,
        )
        del self._flights[flight]
        self._put_back(flight, landing)
        self.in_flight -= len(flight.ids)
        self._retry_flights -= flight.is_retry
        self.counters.sent += len(flight.ids) - len(failed)
        if error is not None:
            self.counters.failed_commands += 1
            self.counters.last_error = repr(error)
        self._landed.set()
        self.settle()
        if self.armed_at == ATTENDED:
            self._kick.set()
        else:
            self.arm(landing.at_ms)
        self.room.give(len(flight.ids) - len(landing.back))
        if self._hooks:
            for event in flight.events(landing):
                self._hooks.emit(event)

    def _put_back(self, flight: Flight, landing: Landing) -> None:
        if self._is_closing:
            self._left.extend(landing.back)
        elif landing.back:
            self.retries.add(landing.back, flight.attempt + 1, landing.retry_at_ms)

    def _wanted(self, flight: Flight, failed: Sequence[MessageId]) -> Sequence[MessageId]:
        if not len(failed):
            return ()
        flights = list(self._flights)
        later = flights[flights.index(flight) + 1 :]
        return [
            message_id
            for message_id in flight.wanted(failed, self._buckets)
            if not self._is_retried(message_id) and not any(other.learn(message_id) for other in later)
        ]

    def _is_retried(self, message_id: MessageId) -> bool:
        return message_id in self.retries and bool(self.retries.learn(message_id))

    # what happens to ids meanwhile

    def acknowledge_in_flight(self, message_id: MessageId) -> None:
        """Remember an acknowledgement for the case that a callback under way fails."""
        for flight in self._flights:
            flight.acknowledge(message_id)

    def clear(self) -> int:
        """Drop what is pending and forget what is in flight; return how many were pending."""
        count = self._schedule.clear() + len(self.retries)
        self.retries.pop_all()
        self.settle()
        for flight in self._flights:
            flight.is_forgotten = True
        self.counters.cleared += count
        if self.armed_at != ATTENDED:
            self.disarm()
        self.room.give(count)
        if self._hooks and count:
            self._hooks.emit(Cleared(count, self.now_ms()))
        return count

    # the end

    def close(self) -> None:
        """Send nothing more; :meth:`serve` comes to its end."""
        self._is_closing = True
        self.disarm()
        self.settle()
        self._kick.set()
        self.room.dismiss()

    def is_own_task(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether this is a task that runs a callback: it cannot wait for itself."""
        return task is not None and any(task is own for own in self._flights.values())

    def take_left(self) -> Sequence[MessageId]:
        """Take out everything that was not sent: in flight, retrying, pending."""
        flying = [flight.wanted(flight.ids, self._buckets) for flight in self._flights]
        retrying = [retry.ids.values() for retry in self.retries.pop_all()]
        loose = list(dict.fromkeys(itertools.chain(self._left, *flying, *retrying)))
        return join_ids([loose, self._buckets.pop_all()])


def _is_coroutine_function(call: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
