"""The tracker of negative acknowledgements: what its users call.

``nack_nowait`` holds all the logic, ``nack`` only waits. The path of an ordinary call is kept short: the delay comes
from a cache of one, everything out of the ordinary (not open, hooks, retries, no room) hides behind two tests, the
schedule checks the id before it changes, and the timer costs one comparison with the earliest bucket. Sending, retries
and the timer are in ``_sender``.

The sending task belongs to the tracker, which awaits it in ``aclose``, and owns every callback through its task group.
A task group entered in ``__aenter__`` would do the same, but only the task that entered could close the tracker.
"""

from __future__ import annotations

import asyncio
import functools
import random
import warnings
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import anyio

from .._check import check_callable, check_clock, check_config, check_flag
from .._delays import Delay, delay_ms
from .._lifetime import NOWHERE, check_loop, home_of
from .._wake_up import NS_PER_MS, is_steady
from ..backoff import Backoff, as_backoff
from ..clock import Clock, LoopClock
from ..config import NackConfig
from ..errors import ClosedError, NotOpenError
from ..ids import MessageId
from ..index import as_entries
from ._arguments import backoff_ms, check_ahead, check_count, check_id, check_ids, count_entries
from ._events import Cancelled, Closed, HookLike, Hooks, Nacked
from ._retries import Retries
from ._schedule import NackSchedule
from ._sender import RedeliveryCallback, Sender
from ._statistics import NackStatistics

_NEW: Final = 0
_OPEN: Final = 1
_CLOSED: Final = 2
_BROKEN: Final = 3
_NO_COUNT: Final = 0
_YIELD_AFTER: Final = 5 * NS_PER_MS
_GRACE: Final = 1.0
_UNSET: Final = object()
_LONG_AGO: Final = -(1 << 127)


class NegativeAcksTracker:
    """Keeps negatively acknowledged ids and hands them to ``redeliver`` when they are due (PIP-393).

    Use it as ``async with``; all calls in the loop's own thread. Each id is handed over once per request, early by less
    than a bucket of time and never late. There is one timer, set for the earliest bucket, and no polling.

    :param redeliver: called with at most ``config.max_batch`` ids at a time (which may be made lazily), up to
        ``config.max_in_flight`` at once; a coroutine function or a plain one. If it raises, its ids are tried again in
        a command of their own after 100 ms, doubling to 30 s; a :class:`~pulsar_nack.RedeliveryError` with ``failed``
        names those that have to be
    :param config: see :class:`~pulsar_nack.NackConfig`
    :param backoff: from the redelivery count to the delay, for nacks that name none: a callable, a delay, or a list
    :param clock: by default the running loop's own
    :param hooks: callables that take each :data:`~pulsar_nack.nack.NackEvent`
    :param collapse: the broker can only rewind to everything that is not acknowledged (Exclusive and Failover): when
        the first deadline comes, everything pending goes out in one command, whatever its size
    :param ahead: seconds, less than a ms, by which ids are handed over before their time, as what has to be asked for
        takes that long at least; nothing on clocks that tell whole ms
    :param random: numbers from 0 to 1 for the jitter of retries
    """

    __slots__ = (
        "__weakref__",
        "_add",
        "_add_at",
        "_backoff",
        "_cached_delay",
        "_cached_ms",
        "_clock",
        "_config",
        "_counters",
        "_home",
        "_hooks",
        "_host",
        "_is_finished",
        "_keeps_start",
        "_left",
        "_loop",
        "_mask",
        "_now",
        "_retries",
        "_room",
        "_schedule",
        "_sender",
        "_start",
        "_start_until",
        "_state",
        "_ticks",
        "_yielded_at",
    )

    def __init__(
        self,
        redeliver: RedeliveryCallback,
        config: NackConfig | None = None,
        *,
        backoff: Backoff | Delay | Sequence[Delay] | None = None,
        clock: Clock | None = None,
        hooks: Sequence[HookLike] = (),
        collapse: bool = False,
        ahead: float = 0.0,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._state = _NEW
        check_callable("redeliver", redeliver, "a callable that takes a sequence of ids")
        check_callable("random", random, "a callable that gives numbers from 0 to 1")
        check_config(config, NackConfig)
        check_clock(clock)
        check_flag("collapse", collapse)
        check_ahead(ahead)
        self._config = NackConfig() if config is None else config
        self._backoff = None if backoff is None else as_backoff(backoff)
        self._clock = clock
        self._hooks = Hooks(hooks)
        self._schedule = NackSchedule(self._config)
        self._retries = Retries(random)
        self._sender = Sender(
            redeliver, self._config, self._schedule, self._retries, self._hooks, collapse=collapse, ahead=ahead
        )
        self._room = self._sender.room
        self._counters = self._sender.counters
        self._add = self._schedule.add
        self._add_at = self._schedule.buckets.put
        self._cached_delay: object = _UNSET
        self._cached_ms = 0
        self._mask = -1
        self._start, self._start_until = 0, _LONG_AGO
        self._keeps_start = True
        self._host: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = NOWHERE
        self._left: Sequence[MessageId] = ()
        self._is_finished = False

    async def __aenter__(self) -> Self:
        if self._state != _NEW:
            raise ClosedError("NegativeAcksTracker (it is entered once)")
        clock = LoopClock() if self._clock is None else self._clock
        self._sender.open(clock)
        self._keeps_start = is_steady(clock)
        self._loop = asyncio.get_running_loop()
        self._home = home_of(self._loop)
        self._ticks = self._sender.ticks
        self._yielded_at = self._now = self._ticks()
        self._state = _OPEN
        self._host = asyncio.create_task(self._sender.serve(), name="pulsar_nack.NegativeAcksTracker")
        self._host.add_done_callback(functools.partial(_end, weakref.ref(self)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        host = getattr(self, "_host", None)
        if host is not None and not host.done() and not host.get_loop().is_closed():
            host.get_loop().call_soon_threadsafe(host.cancel)
        if self._state in {_OPEN, _BROKEN}:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = ("not entered", "open", "closed", "broken")[self._state]
        return f"<NegativeAcksTracker {state}, {len(self._schedule) + len(self._retries)} pending>"

    def __contains__(self, message_id: object) -> bool:
        """Return whether an id is pending: it waits for its time, or for its next try."""
        return isinstance(message_id, MessageId) and (message_id in self._schedule or message_id in self._retries)

    @property
    def ahead(self) -> float:
        """Return by how many seconds ids are handed over before their time: 0 on a clock of whole ms."""
        return self._sender.ahead_ns / 1e9

    # nack

    async def nack(self, id: MessageId, delay: Delay | None = None, *, redelivery_count: int = 0) -> None:
        """Make an id pending, after waiting in line for room if ``max_held`` ids are held.

        The delay runs from when there is room. Cancelled, the id is either pending or it is not. See
        :meth:`nack_nowait` for the rest. Lets the loop run when it has not done so for 5 ms.
        """
        if self._room.free > 0:  # then nobody waits: a place that is given back goes to the first in line
            self.nack_nowait(id, delay, redelivery_count=redelivery_count)
        else:
            await self._nack_in_line(id, delay, redelivery_count)
        if self._now - self._yielded_at >= _YIELD_AFTER:
            await asyncio.sleep(0)
            self._yielded_at = self._ticks()

    def nack_nowait(self, id: MessageId, delay: Delay | None = None, *, redelivery_count: int = 0) -> None:
        """Make an id pending, to be sent after ``delay`` seconds; pending already, the earliest deadline wins.

        Without a delay the backoff is asked with ``redelivery_count``, without a backoff the configuration's delay
        holds. O(1).

        :raises InvalidArgumentError: names what was refused; nothing was added
        :raises WouldBlockError: ``max_held`` ids are held; nothing was added
        :raises ClosedError: after :meth:`aclose`
        :raises NotOpenError: outside of ``async with``
        :raises WrongLoopError: called in another event loop or thread than the tracker's; all methods raise this
        """
        if redelivery_count is not _NO_COUNT:
            check_count(redelivery_count)
        delay_ms = self._cached_ms if delay is self._cached_delay else self._resolve(delay, redelivery_count)
        room = self._room
        if room.free <= room.reserved or get_ident() != self._home._thread_id:
            self._nack_specially(id, delay_ms)
            return
        self._now = now = self._ticks()
        start = self._start if now < self._start_until else self._next_start(now, delay_ms)
        if self._add_at(id, start):
            room.free -= 1
        else:
            self._counters.nacked_again += 1
        if start < self._sender.armed_at:
            self._sender.arm(now // NS_PER_MS)

    def _next_start(self, now: int, delay_ms: int) -> int:
        """Return the start of the bucket for the cached delay, and cache it until the next bucket begins.

        It is not cached if the clock may be set back: the cached bucket would then be too late.
        """
        mask = self._mask
        start = self._start = (now // NS_PER_MS + delay_ms) & mask
        if self._keeps_start:
            self._start_until = (start - mask - delay_ms) * NS_PER_MS
        return start

    def nack_many(self, ids: Iterable[MessageId], delay: Delay | None = None) -> None:
        """Make ids pending with one delay; all of them, or none and an error as :meth:`nack_nowait` raises it."""
        ids = check_ids(ids)
        delay_ms = self._resolve(delay, 0)
        self._ensure_open()
        if len(ids) > self._room.free:
            self._ensure_room(ids)
        self._now = now = self._ticks()
        now_ms = now // NS_PER_MS
        if len(self._retries):
            added = sum(self._add_considering_retries(message_id, now_ms, delay_ms) for message_id in ids)
        else:
            added = self._schedule.add_many(ids, now_ms, delay_ms)
        self._added(len(ids), added, now_ms)
        self._tell(ids, added, now_ms, delay_ms)

    def nack_entries(self, ledger: int, entries: Any, delay: Delay | None = None) -> None:
        """Make entries of one ledger pending (no partition, no batch): a range, list, array or numpy array.

        The cheapest way from some hundred ids on. All of them, or none and an error as :meth:`nack_nowait` raises it.
        """
        check_loop(self._loop, "the tracker")
        entries = entries if hasattr(entries, "__len__") else as_entries(entries)
        count = count_entries(entries)
        if count > self._room.free or self._room.reserved:
            self._nack_each_entry(ledger, entries, count, delay)
            return
        delay_ms = self._resolve(delay, 0)
        self._now = now = self._ticks()
        now_ms = now // NS_PER_MS
        added = self._schedule.add_entries(ledger, entries, now_ms, delay_ms)
        self._added(count, added, now_ms)

    def _nack_each_entry(self, ledger: int, entries: Any, count: int, delay: Delay | None) -> None:
        """Take the long way, unless there are so many that it is plain that they find no room."""
        self._ensure_open()
        if not isinstance(entries, range):
            entries = as_entries(entries)
            count = len(entries)
        wanted = count - len(self._schedule) - len(self._retries)
        if wanted > self._room.free:
            raise self._room.refuse(wanted)
        self.nack_many([MessageId(ledger, entry) for entry in as_entries(entries)], delay)

    def _resolve(self, delay: Delay | None, redelivery_count: int) -> int:
        """Return the delay in ms; keep it, and the mask that goes with it, for the next call with the same object."""
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
        schedule = self._schedule
        is_full = milliseconds >= schedule.full_width_from
        self._mask = schedule.full_width_mask if is_full else schedule.mask(milliseconds)
        return milliseconds

    async def _nack_in_line(self, message_id: MessageId, delay: Delay | None, redelivery_count: int) -> None:
        check_id(message_id)
        check_count(redelivery_count)
        delay_ms = self._resolve(delay, redelivery_count)
        self._ensure_open()
        if message_id not in self:
            await self._room.wait()
        try:
            self._nack_specially(message_id, delay_ms)
        finally:
            self._room.give(0)

    def _nack_specially(self, message_id: MessageId, delay_ms: int) -> None:
        check_id(message_id)
        self._ensure_open()
        if self._room.free <= 0 and message_id not in self:
            raise self._room.refuse(1)
        self._now = now = self._ticks()
        now_ms = now // NS_PER_MS
        added = self._add_considering_retries(message_id, now_ms, delay_ms)
        self._added(1, added, now_ms)
        self._tell((message_id,), added, now_ms, delay_ms)

    def _ensure_open(self) -> None:
        if self._state == _NEW:
            raise NotOpenError("NegativeAcksTracker")
        if self._state != _OPEN:
            raise ClosedError("NegativeAcksTracker")
        check_loop(self._loop, "the tracker")

    def _ensure_room(self, ids: Sequence[MessageId]) -> None:
        wanted = len({message_id for message_id in ids if message_id not in self})
        if wanted > self._room.free:
            raise self._room.refuse(wanted)

    def _add_considering_retries(self, message_id: MessageId, now_ms: int, delay_ms: int) -> bool:
        """Add an id; when it waits for its next try, the earlier of the two times counts."""
        retry_at = self._retries.at_ms(message_id)
        if retry_at is None:
            return self._add(message_id, now_ms, delay_ms)
        message_id = self._retries.learn(message_id)
        if now_ms + delay_ms < retry_at:
            self._retries.discard(message_id)
            self._add(message_id, now_ms, delay_ms)
        return False

    def _added(self, count: int, added: int, now_ms: int) -> None:
        self._room.free -= added
        self._counters.nacked_again += count - added
        self._sender.settle()
        self._sender.arm(now_ms)

    def _tell(self, ids: Sequence[MessageId], added: int, now_ms: int, delay_ms: int) -> None:
        if self._hooks and len(ids):
            self._hooks.emit(Nacked(ids, now_ms, delay_ms, now_ms + delay_ms, is_new=added > 0))

    # the rest of an id's life

    def ack(self, id: MessageId) -> bool:
        """Take a pending id out, as it was acknowledged; True when it was pending.

        An id that a callback has in hand may come back all the same, but a failure will not bring it back. O(1).
        """
        if type(id) is not MessageId:
            check_id(id)
        if get_ident() != self._home._thread_id:
            check_loop(self._loop, "the tracker")
        was_pending = self._schedule.discard(id)
        if len(self._retries) and self._retries.discard(id):
            was_pending = True
            self._sender.settle()
        if self._sender.in_flight:
            self._sender.acknowledge_in_flight(id)
        if was_pending:
            self._cancelled(id)
        return was_pending

    def _cancelled(self, message_id: MessageId) -> None:
        self._counters.cancelled += 1
        if self._state == _OPEN:
            self._sender.arm(self._sender.now_ms())
        self._room.give(1)
        if self._hooks:
            self._hooks.emit(Cancelled(message_id, self._sender.now_ms()))

    def clear(self) -> int:
        """Drop everything that is pending, and forget what is in flight; return how many were pending.

        After a seek, or a reconnect that makes the broker deliver everything again.
        """
        check_loop(self._loop, "the tracker")
        return self._sender.clear() if self._state == _OPEN else 0

    def statistics(self) -> NackStatistics:
        """Return a snapshot."""
        counters, room = self._counters, self._room
        return NackStatistics(
            pending=len(self._schedule) + len(self._retries),
            retrying=len(self._retries),
            in_flight=self._sender.in_flight,
            held=room.taken,
            waiting=room.waiting,
            buckets=self._schedule.bucket_count,
            bytes=self._schedule.bytes,
            wakeups=counters.wakeups + self._sender.early_wakeups,
            early_wakeups=self._sender.early_wakeups,
            nacked=room.times_taken + counters.nacked_again,
            sent=counters.sent,
            commands=counters.commands,
            failed_commands=counters.failed_commands,
            retries=counters.retries,
            cancelled=counters.cancelled,
            cleared=counters.cleared,
            hook_errors=self._hooks.errors,
            last_error=counters.last_error,
            lateness=counters.lateness(),
        )

    # the end

    async def aclose(self) -> Sequence[MessageId]:
        """Stop, wait at most ``close_timeout`` for the callbacks under way, and return the ids that were not sent.

        Idempotent: every call returns the same ids. Shielded: cancelled, it cuts the waiting for callbacks short,
        cleans up, and then is cancelled. Called inside the callback it does not wait for it.
        """
        check_loop(self._loop, "the tracker")
        host = self._host
        self._state = _CLOSED
        if host is None:
            return self._left
        self._sender.close()
        if not self._sender.is_own_task(asyncio.current_task()):
            with anyio.CancelScope(shield=True):
                await self._wait_for(host)
            self._finish()
            if host.done() and not host.cancelled() and (error := host.exception()) is not None:
                raise error
        return self._left

    async def _wait_for(self, host: asyncio.Task[None]) -> None:
        timeout = self._config.close_timeout.total_seconds() + _GRACE
        cancelled: asyncio.CancelledError | None = None
        while not host.done():
            try:
                done, _ = await asyncio.wait({host}, timeout=timeout)
            except asyncio.CancelledError as error:
                cancelled = error
                host.cancel()
                timeout = _GRACE
            else:
                if not done:
                    break
        if cancelled is not None:
            self._finish()
            raise cancelled

    def _finish(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        self._left = self._sender.take_left()
        if self._hooks:
            self._hooks.emit(Closed(len(self._left), self._sender.now_ms()))

    def _end(self) -> None:
        """The sending task has ended: because of :meth:`aclose`, or by itself, which only its cancellation explains."""
        if self._state == _OPEN:
            self._state = _BROKEN
            self._sender.close()
        self._finish()


def _end(tracker: weakref.ref[NegativeAcksTracker], _host: asyncio.Task[None]) -> None:
    alive = tracker()
    if alive is not None:
        alive._end()
