"""The tracker of negative acknowledgements: the methods that its users call.

``nack_nowait`` has all the logic, ``nack`` only waits. An ordinary call is kept short: the delay comes from a cache of
one, everything unusual (not open, hooks, retries, no capacity) is behind two tests, the index checks the id before it
changes, and the timer costs one comparison with the earliest bucket. Sending, retries and the timer are in ``_sender``.

The sending task belongs to the tracker, which awaits it in ``aclose``, and owns every callback through its task group.
With a task group entered in ``__aenter__`` only the task that entered could close the tracker.
"""

from __future__ import annotations

import asyncio
import random
import warnings
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self

from .._check import check_callable, check_clock, check_flag, check_integer, config_of
from .._delays import Delay, backoff_ms, delay_ms
from .._lifetime import NO_THREAD, ClosesOnExit, check_loop, loop_thread_of
from .._waiting import wait_or_cancel
from .._wake_up import NS_PER_MS, check_lead_time, is_steady
from ..backoff import Backoff, as_backoff
from ..clock import Clock, LoopClock
from ..config import NackConfig
from ..errors import ClosedError, NotOpenError
from ..ids import MessageId, _check_all_stored, _check_stored
from ..index import as_entries, count_entries
from ._calls import Retries
from ._reports import Closed, Hooks, Lateness, NackHook, NackStatistics
from ._schedule import NackSchedule
from ._sender import RedeliveryCallback, Sender

_NEW: Final = 0
_OPEN: Final = 1
_CLOSED: Final = 2
_BROKEN: Final = 3
_NO_COUNT: Final = 0
_YIELD_AFTER: Final = 5 * NS_PER_MS
_UNSET: Final = object()
_LONG_AGO: Final = -(1 << 127)


class NegativeAcksTracker(ClosesOnExit):
    """Keeps negatively acknowledged ids and passes them to ``redeliver`` when they are due (PIP-393).

    Use it with ``async with``, and only in the thread of its event loop. Each id is passed once per nack, early by less
    than a bucket of time and never late. There is one timer, set to the earliest bucket, and no polling.

    :param redeliver: called with at most ``config.max_batch`` ids (which may be made lazily), up to
        ``config.max_in_flight`` times at once; a coroutine function or a plain one. If it raises, its ids are retried
        after 100 ms, doubling to 30 s; a :class:`~pulsar_nack.RedeliveryError` with ``failed`` names the ids to retry
    :param config: see :class:`~pulsar_nack.NackConfig`
    :param backoff: the delay of nacks without one, by redelivery count: a callable, a delay, or a list of delays
    :param clock: by default the clock of the running loop
    :param hooks: callables that take each :data:`~pulsar_nack.nack.NackEvent`
    :param collapse: for Exclusive and Failover, where the broker can only redeliver everything that is unacknowledged:
        when the first deadline comes, everything pending is passed in one call, whatever its size
    :param lead_time: seconds, less than a ms, by which ids are passed before their time, to offset the time that a
        redelivery takes; has no effect on clocks of whole ms
    :param random: returns numbers from 0 to 1, for the jitter of retries
    """

    __slots__ = (
        "__weakref__",
        "_backoff",
        "_cached_delay",
        "_cached_ms",
        "_capacity",
        "_clock",
        "_config",
        "_hooks",
        "_keeps_start",
        "_loop",
        "_mask",
        "_now",
        "_put",
        "_retries",
        "_schedule",
        "_sender",
        "_start",
        "_start_until",
        "_state",
        "_task",
        "_thread",
        "_ticks",
        "_unsent",
        "_yielded_at",
    )

    def __init__(
        self,
        redeliver: RedeliveryCallback,
        config: NackConfig | None = None,
        *,
        backoff: Backoff | Delay | Sequence[Delay] | None = None,
        clock: Clock | None = None,
        hooks: Sequence[NackHook] = (),
        collapse: bool = False,
        lead_time: float = 0.0,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._state = _NEW
        check_callable("redeliver", redeliver, "a callable that takes a sequence of ids")
        check_callable("random", random, "a callable that gives numbers from 0 to 1")
        check_clock(clock)
        check_flag("collapse", collapse)
        check_lead_time(lead_time)
        self._config = config_of(config, NackConfig)
        self._backoff = None if backoff is None else as_backoff(backoff)
        self._clock = clock
        self._hooks = hooks if isinstance(hooks, Hooks) else Hooks(hooks)
        self._schedule = NackSchedule(self._config)
        self._retries = Retries(random)
        self._sender = Sender(
            redeliver, self._config, self._schedule, self._retries, self._hooks, collapse=collapse, lead_time=lead_time
        )
        self._capacity = self._sender.capacity
        self._put = self._schedule.buckets.put
        self._cached_delay: object = _UNSET
        self._cached_ms = 0
        self._mask = -1
        self._start, self._start_until = 0, _LONG_AGO
        self._keeps_start = True
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = NO_THREAD
        self._unsent: Sequence[MessageId] | None = None

    async def __aenter__(self) -> Self:
        if self._state != _NEW:
            raise ClosedError("NegativeAcksTracker (it is entered once)")
        clock = LoopClock() if self._clock is None else self._clock
        self._sender.open(clock)
        self._keeps_start = is_steady(clock)
        self._loop = asyncio.get_running_loop()
        self._thread = loop_thread_of(self._loop)
        self._ticks = self._sender.ticks
        self._yielded_at = self._now = self._ticks()
        self._state = _OPEN
        self._task = self._loop.create_task(self._sender.serve(), name="pulsar_nack.NegativeAcksTracker")
        self._task.add_done_callback(partial(_on_task_end, weakref.ref(self)))
        return self

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        task: asyncio.Task[None] | None = getattr(self, "_task", None)
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
        if self._state in {_OPEN, _BROKEN}:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = ("not entered", "open", "closed", "broken")[self._state]
        return f"<NegativeAcksTracker {state}, {len(self._schedule) + len(self._retries)} pending>"

    def __contains__(self, message_id: object) -> bool:
        """Return whether an id is pending or waits for a retry."""
        return isinstance(message_id, MessageId) and (message_id in self._schedule or message_id in self._retries)

    @property
    def lead_time(self) -> float:
        """Return by how many seconds ids are passed before their time: 0 on a clock of whole ms."""
        return self._sender.lead_time_ns / 1e9

    # -- adding ------------------------------------------------------------------------------------------------------

    async def nack(self, id: MessageId, delay: Delay | None = None, *, redelivery_count: int = 0) -> None:
        """Make an id pending; wait in line for capacity if ``max_held`` ids are held.

        The delay begins when there is capacity. If cancelled, the id is either pending or not. Otherwise as
        :meth:`nack_nowait`. Yields to the loop if that has not run for 5 ms.
        """
        if self._capacity.free > 0:  # then no caller waits: a released place goes to the first in line
            self.nack_nowait(id, delay, redelivery_count=redelivery_count)
        else:
            await self._nack_in_line(id, delay, redelivery_count)
        if self._now - self._yielded_at >= _YIELD_AFTER:
            await asyncio.sleep(0)
            self._yielded_at = self._ticks()

    def nack_nowait(self, id: MessageId, delay: Delay | None = None, *, redelivery_count: int = 0) -> None:
        """Make an id pending for ``delay`` seconds; if it is pending already, the earliest deadline wins. O(1).

        Without a delay the backoff gets ``redelivery_count``; without a backoff the delay of the configuration is used.

        :raises InvalidArgumentError: names the argument; nothing was added
        :raises WouldBlockError: ``max_held`` ids are held; nothing was added
        :raises ClosedError: after :meth:`aclose`
        :raises NotOpenError: outside of ``async with``
        :raises WrongLoopError: called in another event loop or thread than the tracker's; all methods raise this
        """
        if redelivery_count is not _NO_COUNT:
            check_integer("redelivery_count", redelivery_count, 0)
        delay_ms = self._cached_ms if delay is self._cached_delay else self._resolve(delay, redelivery_count)
        capacity = self._capacity
        if capacity.free <= capacity.reserved or get_ident() != self._thread._thread_id:
            self._nack_slowly(id, delay_ms)
            return
        self._now = now = self._ticks()
        start = self._start if now < self._start_until else self._next_start(now, delay_ms)
        if self._put(id, start):
            capacity.free -= 1
        else:
            self._sender.nacked_again += 1
        if start < self._sender.armed_at:  # so this id is the earliest
            self._sender.arm_at(start, now // NS_PER_MS)

    def _next_start(self, now: int, delay_ms: int) -> int:
        """Return the start of the bucket for the cached delay, and cache it until the next bucket begins.

        It is not cached if the clock may be set back: then the cached bucket could be too late.
        """
        mask = self._mask
        start = self._start = (now // NS_PER_MS + delay_ms) & mask
        if self._keeps_start:
            self._start_until = (start - mask - delay_ms) * NS_PER_MS
        return start

    def nack_many(self, ids: Iterable[MessageId], delay: Delay | None = None) -> None:
        """Make ids pending with one delay: all of them, or none and an error of :meth:`nack_nowait`."""
        ids = _check_all_stored(ids, "ids")
        delay_ms = self._resolve(delay, 0)
        self._ensure_open()
        if len(ids) > self._capacity.free:
            wanted = len({message_id for message_id in ids if message_id not in self})
            if wanted > self._capacity.free:
                raise self._capacity.would_block(wanted)
        self._now = now = self._ticks()
        self._sender.nack(ids, now // NS_PER_MS, delay_ms)

    def nack_entries(self, ledger: int, entries: Any, delay: Delay | None = None) -> None:
        """Make entries of one ledger pending (no partition, no batch): a range, list, array or numpy array.

        The cheapest way for some hundred ids or more. All of them, or none and an error of :meth:`nack_nowait`.
        """
        check_loop(self._loop, "the tracker")
        entries = entries if hasattr(entries, "__len__") else as_entries(entries)
        count = count_entries(entries)
        if count > self._capacity.free or self._capacity.reserved:
            self._nack_each_entry(ledger, entries, count, delay)
            return
        delay_ms = self._resolve(delay, 0)
        self._now = now = self._ticks()
        now_ms = now // NS_PER_MS
        added = self._schedule.add_entries(ledger, entries, now_ms, delay_ms)
        self._sender.on_nacked(count, added, now_ms)

    def _nack_each_entry(self, ledger: int, entries: Any, count: int, delay: Delay | None) -> None:
        """Nack each entry on the slow path, unless there are certainly too many for the capacity."""
        self._ensure_open()
        if not isinstance(entries, range):
            entries = as_entries(entries)
            count = len(entries)
        wanted = count - len(self._schedule) - len(self._retries)
        if wanted > self._capacity.free:
            raise self._capacity.would_block(wanted)
        self.nack_many([MessageId(ledger, entry) for entry in as_entries(entries)], delay)

    def _resolve(self, delay: Delay | None, redelivery_count: int) -> int:
        """Return the delay in ms; cache it and its mask for the next call with the same object."""
        cached: object = delay
        if delay is not None:
            milliseconds = delay_ms(delay)
        elif self._backoff is not None:
            milliseconds = backoff_ms(self._backoff, redelivery_count)
            cached = _UNSET
        else:
            milliseconds = self._config.negative_ack_redelivery_delay_ms
        self._cached_delay, self._cached_ms = cached, milliseconds
        self._start_until = _LONG_AGO
        self._mask = self._schedule.mask(milliseconds)
        return milliseconds

    async def _nack_in_line(self, message_id: MessageId, delay: Delay | None, redelivery_count: int) -> None:
        _check_stored(message_id, "id")
        check_integer("redelivery_count", redelivery_count, 0)
        delay_ms = self._resolve(delay, redelivery_count)
        self._ensure_open()
        if message_id not in self:
            await self._capacity.wait()
        try:
            self._nack_slowly(message_id, delay_ms)
        finally:
            self._capacity.release(0)

    def _nack_slowly(self, message_id: MessageId, delay_ms: int) -> None:
        _check_stored(message_id, "id")
        self._ensure_open()
        if self._capacity.free <= 0 and message_id not in self:
            raise self._capacity.would_block(1)
        self._now = now = self._ticks()
        self._sender.nack((message_id,), now // NS_PER_MS, delay_ms)

    def _ensure_open(self) -> None:
        if self._state == _NEW:
            raise NotOpenError("NegativeAcksTracker")
        if self._state != _OPEN:
            raise ClosedError("NegativeAcksTracker")
        check_loop(self._loop, "the tracker")

    # -- cancelling --------------------------------------------------------------------------------------------------

    def ack(self, id: MessageId) -> bool:
        """Remove an id because its message was acknowledged; return whether it was pending. O(1).

        An id that is in flight may still be redelivered, but is not retried if the callback fails.
        """
        if type(id) is not MessageId:
            _check_stored(id, "id")
        if get_ident() != self._thread._thread_id:
            check_loop(self._loop, "the tracker")
        return self._sender.cancel(id)

    def clear(self) -> int:
        """Drop all pending ids, and do not retry those in flight; return how many were pending.

        For a seek, or a reconnect after which the broker delivers everything again.
        """
        check_loop(self._loop, "the tracker")
        return self._sender.clear() if self._state == _OPEN else 0

    def statistics(self) -> NackStatistics:
        """Return the present figures."""
        sender, calls, capacity = self._sender, self._sender.calls, self._capacity
        return NackStatistics(
            pending=len(self._schedule) + len(self._retries),
            retrying=len(self._retries),
            in_flight=calls.ids,
            held=capacity.taken,
            waiting=len(capacity.waiting),
            buckets=self._schedule.bucket_count,
            bytes=self._schedule.bytes,
            wakeups=sender.wakeups + sender.early_wakeups,
            early_wakeups=sender.early_wakeups,
            nacked=capacity.times_taken + sender.nacked_again,
            sent=calls.sent,
            commands=calls.begun,
            failed_commands=calls.failed,
            retries=calls.begun_retries,
            cancelled=sender.cancelled,
            cleared=sender.cleared,
            hook_errors=self._hooks.errors,
            last_error=calls.last_error,
            lateness=Lateness.of(calls.late_ms),
        )

    # -- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> Sequence[MessageId]:
        """Stop, wait at most ``close_timeout`` for the calls in flight, and return the ids that were not sent.

        Every call returns the same ids. Shielded: if cancelled, it waits no longer, cleans up, and then raises. Called
        by the callback, it does not wait for it.
        """
        check_loop(self._loop, "the tracker")
        self._state = _CLOSED
        if self._task is not None:
            self._sender.close()
            if not self._sender.is_own_task(asyncio.current_task()):
                try:
                    await wait_or_cancel(self._task, self._config.close_timeout.total_seconds())
                finally:
                    self._finish()
        return self._unsent or ()

    def _finish(self) -> None:
        if self._unsent is None:
            self._unsent = self._sender.take_unsent()
            if self._hooks:
                self._hooks.emit(Closed(len(self._unsent), self._sender.now_ms()))


def _on_task_end(tracker_ref: weakref.ref[NegativeAcksTracker], _task: asyncio.Task[None]) -> None:
    """Handle the end of the sending task: after ``aclose``, because it was cancelled, or its tracker was dropped."""
    tracker = tracker_ref()
    if tracker is None:
        return
    if tracker._state == _OPEN:
        tracker._state = _BROKEN
        tracker._sender.close()
    tracker._finish()
