"""The in-memory tracker: delayed messages in the time-bucket index, and one timer for the earliest bucket.

The rules of time are in ``_ticks``; the bucket that they give a message is its start in the index, so messages with
different ticks live side by side. A position is held once: added again, its earliest bucket counts.

The timer is set for the earliest bucket, unless that was woken up for already: then something is due, the embedder
knows, and takes it out in its own time. As in Pulsar no two wake-ups are closer than a tick. The gap is counted from
when a wake-up was planned, so that a loop that is a little late each time does not add up.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from .._check import clock_of, config_of
from .._lifetime import NO_THREAD, check_loop, loop_thread_of
from .._wake_up import WakeUp
from ..clock import Clock
from ..config import DelayedDeliveryConfig
from ..errors import ClosedError
from ..ids import MessageId, Position
from ..index import NEVER, TimeBuckets, as_entries
from ._arguments import INT64_MAX, INT64_MIN, check_int, check_message, check_on_due, check_tick
from ._fixed_delay import FixedDelayDetector
from ._ticks import Ticks

_NAME: Final = "InMemoryDelayedDeliveryTracker"
_make = tuple.__new__


class InMemoryDelayedDeliveryTracker:
    """Holds back delayed messages of one subscription in memory: 10 M messages take some hundred kilobytes.

    Not strict, a message may be taken out up to a tick before its time; strict, it never is, and may be late by less
    than ``2**floor(log2(tick))`` ms. Adding and looking up are O(1), taking out is O(taken). Use it in one thread.

    ``on_due`` is a plain function that is called when something has come due, at most once a tick; it should make the
    dispatcher call :meth:`get_scheduled_messages` until :meth:`has_message_available` is false. It is not called again
    for what it was called for. What it raises goes to the event loop's exception handler. Without it there is no timer
    and no loop is needed: look at :meth:`next_at`.

    :param config: see :class:`~pulsar_nack.DelayedDeliveryConfig`
    :param clock: epoch ms, by default the wall clock
    :param on_due: needs a running event loop, or a clock that is an :class:`~pulsar_nack.AlarmClock`
    :raises InvalidArgumentError: ``on_due`` is a coroutine function or cannot be called back
    """

    __slots__ = (
        "__weakref__",
        "_buckets",
        "_delays",
        "_home",
        "_is_closed",
        "_last_run_at",
        "_lookahead",
        "_now_ms",
        "_on_due",
        "_settled_for",
        "_ticks",
        "_wake_up",
    )

    def __init__(
        self,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> None:
        config = config_of(config, DelayedDeliveryConfig)
        clock = clock_of(clock)
        check_on_due(on_due)
        self._now_ms = clock.now_ms
        self._lookahead = config.delayed_delivery_fixed_delay_detection_lookahead
        self._ticks = Ticks(
            config.delayed_delivery_tick_time_millis, is_strict=config.is_delayed_delivery_deliver_at_time_strict
        )
        self._buckets = TimeBuckets()
        self._delays = FixedDelayDetector()
        self._is_closed = False
        self._on_due = on_due
        self._wake_up = None if on_due is None else WakeUp(clock, self._run)
        self._home = NO_THREAD  # the thread whose calls need no further check
        self._settled_for = NEVER
        self._last_run_at: int | None = None

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<{_NAME} {state}, {len(self._buckets)} delayed>"

    # -- adding ------------------------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed). O(1).

        Return False when it has to be dispatched now: its time is past, or not strict less than a tick away. A position
        that is held already counts once, with its earliest bucket. ``delayed_delivery_max_delay_in_millis`` is not
        looked at: what comes here is stored already, and neither losing it nor delivering it early would be right.

        :raises InvalidArgumentError: names what was refused; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        if not (
            type(ledger_id) is type(entry_id) is type(deliver_at) is int
            and 0 <= ledger_id <= INT64_MAX
            and 0 <= entry_id <= INT64_MAX
            and INT64_MIN <= deliver_at <= INT64_MAX
        ):
            check_message(ledger_id, entry_id, deliver_at)
        bucket = self._bucket_for(deliver_at)
        if bucket is None:
            return False
        self._buckets.put(_make(MessageId, (ledger_id, entry_id, -1, -1)), bucket)
        if self._buckets.earliest != self._settled_for:
            self._settle(self._now_ms())
        return True

    def add_messages(self, ledger_id: int, entries: Any, deliver_at: int) -> bool:
        """Hold many entries of a ledger back until one time; return False when all have to be dispatched now.

        ``entries`` is a range, a list, an array or a numpy array. From some hundred entries on this is the cheapest
        way, about 20 ns an entry in order.

        :raises InvalidArgumentError: names what was refused; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_message(ledger_id, 0, deliver_at)
        bitmap = as_entries(entries)
        if not bitmap:
            self._ensure_open()
            return deliver_at >= 0 and deliver_at > self._now_ms() + self._ticks.lead
        bucket = self._bucket_for(deliver_at)
        if bucket is None:
            return False
        self._buckets.put_entries(ledger_id, bitmap, bucket)
        if self._buckets.earliest != self._settled_for:
            self._settle(self._now_ms())
        return True

    def _bucket_for(self, deliver_at: int) -> int | None:
        """Return the bucket of a message that is added now, None when it has to be dispatched."""
        if get_ident() != self._home._thread_id:
            self._check_home()
        ticks = self._ticks
        if deliver_at < 0 or deliver_at <= self._now_ms() + ticks.lead:
            self._delays.refused()
            return None
        self._delays.tracked(deliver_at, ticks.tick_ms)
        return ticks.bucket_of(deliver_at)

    # -- taking out --------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        """Return whether something may be dispatched now. O(1)."""
        self._ensure_open()
        now_ms = self._now_ms()
        if self._is_due(now_ms):
            return True
        self._settle(now_ms)
        return False

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Take out what may be dispatched now: earliest bucket first and by position inside it, at most so many.

        Each of them would be refused if it were added again at this moment with its time.

        :raises InvalidArgumentError: not an int, or negative; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_int("max_messages", max_messages, 0, INT64_MAX)
        self._ensure_open()
        now_ms = self._now_ms()
        positions = self._buckets.pop(self._ticks.last_due(now_ms), max_messages).positions()
        if not self._buckets:
            self._delays.reset()
        self._settle(now_ms)
        return positions

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back. O(1)."""
        check_message(ledger_id, entry_id)
        self._ensure_open()
        return MessageId(ledger_id, entry_id) in self._buckets

    def next_at(self) -> int | None:
        """Return when the next wake-up would be due (epoch ms, may be past), None while nothing is held. O(1).

        Not strict, :meth:`has_message_available` may be true up to a tick earlier.
        """
        self._ensure_open()
        earliest = self._buckets.earliest
        return None if earliest == NEVER else self._ticks.wake_at(earliest)

    @property
    def number_of_delayed_messages(self) -> int:
        """Return how many messages are held back. O(1)."""
        return len(self._buckets)

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes are held. O(1)."""
        return self._buckets.bytes

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher can stop reading: as many messages as the lookahead wait, in order of time.

        All had one delay then, so whatever is read next has to wait too. False while something is due, and always with
        a lookahead of 0.
        """
        self._ensure_open()
        return (
            0 < self._lookahead <= len(self._buckets)
            and self._delays.has_fixed_delay
            and not self.has_message_available()
        )

    # -- changing ----------------------------------------------------------------------------------------------------

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick; what is held keeps the width of bucket that it was added with.

        :raises InvalidArgumentError: not an int from 0 to a century; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_tick(tick_ms)
        self._ensure_open()
        if tick_ms != self._ticks.tick_ms:
            self._ticks = Ticks(tick_ms, is_strict=self._ticks.is_strict)
            self._settled_for = NEVER
            self._settle(self._now_ms())

    async def clear(self) -> None:
        """Drop everything, and start the detection of fixed delays anew.

        :raises ClosedError: after :meth:`aclose`
        """
        self._ensure_open()
        self._drop()

    async def aclose(self) -> None:
        """Drop everything; ``on_due`` is not called any more. Idempotent."""
        if not self._is_closed:
            self._ensure_open()
        self._is_closed, self._home = True, NO_THREAD
        self._drop()

    def _drop(self) -> None:
        self._buckets.clear()
        self._delays.reset()
        self._settle(0)

    def _ensure_open(self) -> None:
        if get_ident() != self._home._thread_id:
            self._check_home()

    def _check_home(self) -> None:
        if self._is_closed:
            raise ClosedError(_NAME)
        loop = None if self._wake_up is None else self._wake_up.loop
        check_loop(loop, "the tracker")
        self._home = loop_thread_of(loop)

    # -- waking up ---------------------------------------------------------------------------------------------------

    def _is_due(self, now_ms: int) -> bool:
        return self._buckets.earliest <= self._ticks.last_due(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Set the timer for the earliest bucket, or to nothing."""
        earliest = self._buckets.earliest
        wake_up = self._wake_up
        if wake_up is None:
            self._settled_for = earliest
            return
        if earliest == self._settled_for and wake_up.at_ms is not None:
            return
        self._settled_for = earliest
        if earliest == NEVER:
            wake_up.cancel()
            return
        wake_at, last_run_at = self._ticks.wake_at(earliest), self._last_run_at
        if last_run_at is None:
            wake_up.set(wake_at, now_ms)
        elif wake_at <= last_run_at and self._is_due(now_ms):
            wake_up.cancel()  # the embedder knows
        else:
            wake_up.set(max(wake_at, min(last_run_at, now_ms) + self._ticks.tick_ms), now_ms)

    def _run(self, planned_at: int) -> None:
        now_ms = self._now_ms()
        self._last_run_at = planned_at if now_ms - planned_at < self._ticks.tick_ms else now_ms
        if self._is_due(now_ms) and self._on_due is not None:
            self._on_due()
        else:
            self._settle(now_ms)
