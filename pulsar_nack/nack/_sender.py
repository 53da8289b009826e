"""The tracker's working half: one timer, calls of the redelivery callback, retries, and the end.

States of ``armed_at``, which is compared whenever an id is added:

- ``NEVER``: nothing is pending and no timer is set; whatever is added sets it
- a time: the timer is set to it; only something earlier changes it
- ``AWAKE``: the sending task runs, or waits for a call to end because ``max_in_flight`` are in flight. It looks at
  everything pending before it rests, so adding an id need not set a timer

The timer wakes the sending task (:meth:`Sender.serve`), which owns every callback through one task group. A plain
function is called by the timer, with the first ids that are due, because each turn of the loop in between makes them
later; what it returns to be awaited belongs to the group. The end of a :class:`RedeliveryCall` decides what becomes of
its ids, however it ends. New ids go before retries.
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
from ._calls import CallsInFlight, RedeliveryCall, Retries, join_ids
from ._capacity import EVERY_PLACE, CapacityLimiter
from ._reports import Cancelled, Cleared, Hooks, Nacked
from ._schedule import NackSchedule

RedeliveryCallback = Callable[[Sequence[MessageId]], Awaitable[None] | None]
"""Takes due ids, at most ``max_batch`` of them; if it raises, it gets them again later."""

AWAKE: Final = -NEVER


class Sender:
    """Sends the ids that are due; see the head of the module."""

    def __init__(
        self,
        redeliver: RedeliveryCallback,
        config: NackConfig,
        schedule: NackSchedule,
        retries: Retries,
        hooks: Hooks,
        *,
        collapse: bool,
        lead_time: float,
    ) -> None:
        self._redeliver = redeliver
        self._is_plain = not _is_coroutine_function(redeliver)
        self._config = config
        self._schedule = schedule
        self._buckets = schedule.buckets
        self._first = schedule.buckets.first
        self._hooks = hooks
        self._has_hooks = bool(hooks)
        self._collapse = collapse
        self._lead_time = lead_time
        self.lead_time_ns = 0
        self.calls = CallsInFlight(1 if collapse else config.max_in_flight)
        self._unsent: list[MessageId] = []
        self._is_closing = False
        self._group: TaskGroup | None = None
        self._fatal: BaseException | None = None
        self._timer: WakeUp | None = None
        self.retries = retries
        self.capacity = CapacityLimiter(config.max_held)
        self.wakeups = self.nacked_again = self.cancelled = self.cleared = 0
        self.armed_at = NEVER

    def open(self, clock: Clock) -> None:
        """Use this clock, in the running loop."""
        loop = asyncio.get_running_loop()
        self.ticks = ticker_of(clock, loop)
        self._timer = WakeUp(clock, self._on_timer, self._lead_time)
        self.lead_time_ns = self._timer.lead_time_ns
        self._wake_event = asyncio.Event()
        self._call_ended = asyncio.Event()
        self.update_slow_path()

    def update_slow_path(self) -> None:
        """Choose the path of nacks: the slow one if there are hooks or ids to retry, or the tracker is closing."""
        is_slow = self._has_hooks or len(self.retries) > 0 or self._is_closing
        self.capacity.reserved = EVERY_PLACE if is_slow else 0

    def now_ms(self) -> int:
        """Return the time of the clock."""
        return self.ticks() // NS_PER_MS

    def due_ms(self) -> int:
        """Return the time up to which ids are sent by now."""
        return (self.ticks() + self.lead_time_ns) // NS_PER_MS

    # -- the timer ---------------------------------------------------------------------------------------------------

    @property
    def early_wakeups(self) -> int:
        """Return how often the timer fired too early."""
        return 0 if self._timer is None else self._timer.early

    def arm(self, now_ms: int) -> None:
        """Set the timer to the earliest bucket or retry, if it is not."""
        at_ms, retry_at = self._first.start, self.retries.earliest
        if retry_at < at_ms and self.calls.may_retry:
            at_ms = retry_at
        if self.armed_at not in {at_ms, AWAKE}:
            self.arm_at(at_ms, now_ms)

    def arm_at(self, at_ms: int, now_ms: int) -> None:
        """Set the timer, unless the sending task is awake, to a time that it is not set to; NEVER: cancel it."""
        if self._is_closing:
            return
        if now_ms < at_ms < NEVER and self._timer is not None:
            self.armed_at = at_ms
            self._timer.set(at_ms, now_ms)
            return
        self.disarm()
        if at_ms <= now_ms:
            self._wake()
        elif at_ms < NEVER:
            self.armed_at = at_ms

    def disarm(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.armed_at = NEVER

    def _wake(self) -> None:
        self.armed_at = AWAKE
        self._wake_event.set()

    def _on_timer(self, _at_ms: int) -> None:
        self.wakeups += 1
        if self._is_plain and self._group is not None and not self.calls.is_full:
            self.armed_at = NEVER
            try:
                is_armed = self._send_at_once(self._group, (self.ticks() + self.lead_time_ns) // NS_PER_MS)
            except BaseException as fatal:
                self._fatal = fatal  # ends the sending task
                self._wake_event.set()
                if isinstance(fatal, KeyboardInterrupt | SystemExit):
                    raise
                return
            if not is_armed:
                self.arm(self.due_ms())
        else:
            self._wake()

    # -- sending -----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Send until closing; then wait ``close_timeout`` for the calls in flight, and cancel the rest."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                while not self._is_closing:
                    await self._wake_event.wait()
                    self._wake_event.clear()
                    if self._fatal is not None:
                        raise self._fatal
                    if self.armed_at == AWAKE:
                        await self._send_due(group)
                with anyio.move_on_after(self._config.close_timeout.total_seconds()):
                    while len(self.calls):
                        self._call_ended.clear()
                        await self._call_ended.wait()
            finally:
                self._group = None
                group.cancel_scope.cancel()

    def _send_at_once(self, group: TaskGroup, now_ms: int) -> bool:
        """Call a plain callback from the timer, once; the sending task sends what else is due.

        Return whether the call has ended, and set the timer again.
        """
        call = self._begin_next(now_ms)
        if call is None:
            return False
        error: BaseException | None = None
        try:
            result = contextvars.copy_context().run(self._redeliver, call.ids)  # its own context, as a task has
        except Exception as raised:  # noqa: BLE001 - as in _run
            error = raised
        except asyncio.CancelledError as cancelled:
            error = cancelled
        except BaseException as fatal:
            self._end(call, fatal)
            raise
        else:
            if inspect.isawaitable(result):
                call.result = result
                group.start_soon(self._run, call)
                return False
        self._end(call, error)
        return True

    async def _send_due(self, group: TaskGroup) -> None:
        while not self._is_closing and not self.calls.is_full:
            call = self._begin_next(self.due_ms())
            if call is None:
                self.armed_at = NEVER
                self.arm(self.due_ms())
                return
            group.start_soon(self._run, call)
            await asyncio.sleep(0)

    def _begin_next(self, now_ms: int) -> RedeliveryCall | None:
        """Begin a call with ids that are due; None: nothing is."""
        due_at, is_retry_due = self._first.start, self.retries.earliest <= now_ms and self.calls.may_retry
        if due_at > now_ms and not is_retry_due:
            return None
        if self._collapse:
            return self._begin_retry(self._all_pending(now_ms))
        if due_at <= now_ms and not (is_retry_due and self.calls.prefers_retry):
            ids = self._buckets.pop(now_ms, self._config.max_batch)
            if count := len(ids):
                self.calls.late_ms.append(now_ms - due_at)
                return self.calls.begin(RedeliveryCall(ids, count))
        retry = self.retries.pop_due(now_ms) if is_retry_due else None
        if retry is None:
            return None
        return self._begin_retry(RedeliveryCall(list(retry.ids.values()), len(retry.ids), retry.attempt))

    def _begin_retry(self, call: RedeliveryCall | None) -> RedeliveryCall | None:
        """Begin a call that may have ids for which the callback failed."""
        if call is None:
            return None
        self.calls.begin(call)
        self.update_slow_path()
        return call

    def _all_pending(self, now_ms: int) -> RedeliveryCall | None:
        due_at = self._first.start
        if due_at <= now_ms:
            self.calls.late_ms.append(now_ms - due_at)
        retries = self.retries.pop_all()
        ids = join_ids([self._buckets.pop_all(), *(list(retry.ids.values()) for retry in retries)])
        attempt = max((retry.attempt for retry in retries), default=1)
        return RedeliveryCall(ids, len(ids), attempt) if len(ids) else None

    async def _run(self, call: RedeliveryCall) -> None:
        call.task = asyncio.current_task()
        error: BaseException | None = None
        try:
            result, call.result = call.result, None
            if result is None:
                result = self._redeliver(call.ids)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancelled:
            error = cancelled  # of the callback, or of this task, which ends here: it must not end the tracker
        except Exception as raised:  # noqa: BLE001 - reported to hooks and statistics, and the ids are retried
            error = raised
        except BaseException as fatal:
            error = fatal
            raise
        finally:
            self._end(call, error)

    # -- the end of a call -------------------------------------------------------------------------------------------

    def _end(self, call: RedeliveryCall, error: BaseException | None) -> None:
        now_ms = self.ticks() // NS_PER_MS
        if error is not None:
            self._fail(call, error, now_ms)
        self.calls.end(call, error)
        self._call_ended.set()
        if self.armed_at == AWAKE:
            self._wake_event.set()
        elif self.armed_at != self._first.start or self.retries.earliest < NEVER:
            self.arm(now_ms)
        self.capacity.release(call.count - len(call.to_retry))
        if self._has_hooks:
            for event in call.events(now_ms, error):
                self._hooks.emit(event)

    def _fail(self, call: RedeliveryCall, error: BaseException, now_ms: int) -> None:
        """Let failed ids be retried unless they are acknowledged, pending, to be retried or in a later call already."""
        call.failed = call.named_by(error)
        call.to_retry = [
            message_id
            for message_id in call.wanted(call.failed, self._buckets)
            if not self.retries.learn_if_here(message_id) and not self.calls.learn_after(call, message_id)
        ]
        call.retry_at_ms = now_ms + self.retries.delay_ms(call.attempt + 1)
        if self._is_closing:
            self._unsent.extend(call.to_retry)
        elif call.to_retry:
            self.retries.add(call.to_retry, call.attempt + 1, call.retry_at_ms)
            self.update_slow_path()

    # -- adding and cancelling ---------------------------------------------------------------------------------------

    def nack(self, ids: Sequence[MessageId], now_ms: int, delay_ms: int) -> None:
        """Make ids pending that have been checked, set the timer, and call the hooks."""
        if len(self.retries):
            added = sum(self._add(message_id, now_ms, delay_ms) for message_id in ids)
        else:
            added = self._schedule.add_many(ids, now_ms, delay_ms)
        self.on_nacked(len(ids), added, now_ms)
        if self._has_hooks and len(ids):
            self._hooks.emit(Nacked(ids, now_ms, delay_ms, now_ms + delay_ms, is_new=added > 0))

    def _add(self, message_id: MessageId, now_ms: int, delay_ms: int) -> bool:
        """Add an id and return whether it is new; if it waits for a retry, the earlier of the two times counts."""
        retry_at = self.retries.at_ms(message_id)
        if retry_at is None:
            return self._schedule.add(message_id, now_ms, delay_ms)
        message_id = self.retries.learn(message_id)
        if now_ms + delay_ms < retry_at:
            self.retries.discard(message_id)
            self._schedule.add(message_id, now_ms, delay_ms)
        return False

    def on_nacked(self, count: int, added: int, now_ms: int) -> None:
        """Count nacks, of which ``added`` ids were new, and set the timer."""
        self.capacity.free -= added
        self.nacked_again += count - added
        self.update_slow_path()
        self.arm(now_ms)

    def cancel(self, message_id: MessageId) -> bool:
        """Remove an acknowledged id and return whether it was pending; remember it for calls in flight."""
        was_pending = self._buckets.discard(message_id)
        if len(self.retries) and self.retries.discard(message_id):
            was_pending = True
            self.update_slow_path()
        for call in self.calls if self.calls.ids else ():
            call.acknowledge(message_id)
        if was_pending:
            self.cancelled += 1
            self.arm(self.now_ms())
            self.capacity.release(1)
            if self._has_hooks:
                self._hooks.emit(Cancelled(message_id, self.now_ms()))
        return was_pending

    def clear(self) -> int:
        """Drop pending ids and forget those in flight; return how many were pending."""
        count = self._buckets.clear() + len(self.retries)
        self.retries.pop_all()
        self.update_slow_path()
        for call in self.calls:
            call.is_forgotten = True
        self.cleared += count
        if self.armed_at != AWAKE:
            self.disarm()
        self.capacity.release(count)
        if self._has_hooks and count:
            self._hooks.emit(Cleared(count, self.now_ms()))
        return count

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop sending; :meth:`serve` returns."""
        self._is_closing = True
        self.disarm()
        self.update_slow_path()
        self._wake_event.set()
        self.capacity.waiting.wake_all(value=False)

    def is_own_task(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether a task runs a callback: it cannot wait for its own end."""
        return task is not None and any(task is call.task for call in self.calls)

    def take_unsent(self) -> Sequence[MessageId]:
        """Remove and return all ids that were not sent: in flight, to be retried, pending."""
        in_flight = [call.wanted(call.ids, self._buckets) for call in self.calls]
        to_retry = [retry.ids.values() for retry in self.retries.pop_all()]
        others = list(dict.fromkeys(itertools.chain(self._unsent, *in_flight, *to_retry)))
        return join_ids([others, self._buckets.pop_all()])


def _is_coroutine_function(call: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004
