"""The in-memory tracker: delayed messages in the time-bucket index, and one timer for the earliest bucket.

The rules of time are in ``ticks``. A message's bucket there is its start in the index, so messages with different
ticks can coexist. A position is held once; if it is added again, its earliest bucket counts.

The timer is set for the earliest bucket, unless the dispatcher was already called for it: then messages are due, and
the dispatcher takes them when it can. As in Pulsar, two wake-ups are at least a tick apart.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any, Final, Self

from .._check import INT64_MAX, INT64_MIN, check_integer, clock_of, config_of
from .._lifetime import NO_THREAD, ClosesOnExit, check_loop, loop_thread_of
from .._wake_up import WakeUp
from ..clock import Clock
from ..config import DelayedDeliveryConfig
from ..errors import ClosedError
from ..ids import MessageId, Position
from ..index import NEVER, TimeBuckets, as_entries
from ._protocol import check_message, check_on_due, check_tick
from .ticks import CallPacing, FixedDelayDetector, TickRounding

_NAME: Final = "InMemoryDelayedDeliveryTracker"
_make = tuple.__new__


class InMemoryDelayedDeliveryTracker(ClosesOnExit):
    """Holds back delayed messages of one subscription in memory: 10 M messages take some hundred kilobytes.

    If it is not strict, a message may be taken up to a tick before its time. If it is strict, a message is never early,
    and late by less than ``2**floor(log2(tick))`` ms. Adding and looking up are O(1), taking is O(taken). Use it in one
    thread.

    ``on_due`` is a plain function that is called when messages are due, at most once a tick. It should make the
    dispatcher call :meth:`get_scheduled_messages` until :meth:`has_message_available` is false. It is called once for
    a message. Its errors go to the event loop's exception handler. Without it there is no timer, and no loop is needed:
    use :meth:`next_at`.

    :param config: see :class:`~pulsar_nack.DelayedDeliveryConfig`
    :param clock: epoch ms, by default the wall clock
    :param on_due: needs a running event loop, or a clock with ``call_at``
    :raises InvalidArgumentError: ``on_due`` is a coroutine function or cannot be called back
    """

    __slots__ = (
        "__weakref__",
        "_buckets",
        "_fixed_delay",
        "_home",
        "_is_closed",
        "_lookahead",
        "_now_ms",
        "_on_due",
        "_pacing",
        "_ticks",
        "_timer_bucket",
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
        self._ticks = TickRounding(
            config.delayed_delivery_tick_time_millis, is_strict=config.is_delayed_delivery_deliver_at_time_strict
        )
        self._buckets = TimeBuckets()
        self._fixed_delay = FixedDelayDetector()
        self._is_closed = False
        self._on_due = on_due
        self._wake_up = None if on_due is None else WakeUp(clock, self._run)
        self._home = NO_THREAD  # where calls need no further check
        self._timer_bucket = NEVER
        self._pacing = CallPacing()

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<{_NAME} {state}, {len(self._buckets)} delayed>"

    # -- adding ------------------------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed). O(1).

        Return False if the message has to be dispatched now: its time is past, or, if not strict, at most a tick away.
        A position that is already held counts once, with its earliest bucket.
        ``delayed_delivery_max_delay_in_millis`` is ignored: the message is stored already, and it would be wrong to
        lose it or to deliver it early.

        :raises InvalidArgumentError: an argument was refused; nothing has changed
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
        if self._buckets.earliest != self._timer_bucket:
            self._set_timer(self._now_ms())
        return True

    def add_messages(self, ledger_id: int, entries: Any, deliver_at: int) -> bool:
        """Hold entries of a ledger back until one time; return False if all have to be dispatched now.

        ``entries`` is a range, a list, an array or a numpy array. From some hundred entries on this is the fastest
        way: about 20 ns an entry in order.

        :raises InvalidArgumentError: an argument was refused; nothing has changed
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
        if self._buckets.earliest != self._timer_bucket:
            self._set_timer(self._now_ms())
        return True

    def _bucket_for(self, deliver_at: int) -> int | None:
        """Return the bucket of a message that is added now; None if it has to be dispatched."""
        if get_ident() != self._home._thread_id:
            self._check_home()
        ticks = self._ticks
        if deliver_at < 0 or deliver_at <= self._now_ms() + ticks.lead:
            self._fixed_delay.refuse()
            return None
        self._fixed_delay.add(deliver_at, ticks.tick_ms)
        return ticks.bucket_of(deliver_at)

    # -- taking out --------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        """Return whether a message may be dispatched now. O(1)."""
        self._ensure_open()
        now_ms = self._now_ms()
        if self._is_due(now_ms):
            return True
        self._set_timer(now_ms)
        return False

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Remove and return messages that may be dispatched now: by bucket, earliest first, and by position inside it.

        At this moment, :meth:`add_message` would refuse each of them.

        :raises InvalidArgumentError: not an int, or negative; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_integer("max_messages", max_messages, 0, INT64_MAX)
        self._ensure_open()
        now_ms = self._now_ms()
        positions = self._buckets.pop(self._ticks.last_due(now_ms), max_messages).positions()
        if not self._buckets:
            self._fixed_delay.reset()
        self._set_timer(now_ms)
        return positions

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back. O(1)."""
        check_message(ledger_id, entry_id)
        self._ensure_open()
        return MessageId(ledger_id, entry_id) in self._buckets

    def next_at(self) -> int | None:
        """Return the time of the next wake-up (epoch ms, may be past), None for an empty tracker. O(1).

        If the tracker is not strict, :meth:`has_message_available` may be true up to a tick earlier.
        """
        self._ensure_open()
        earliest = self._buckets.earliest
        return None if earliest == NEVER else self._ticks.wake_at(earliest)

    @property
    def number_of_delayed_messages(self) -> int:
        """Return the number of messages that are held back. O(1)."""
        return len(self._buckets)

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes of memory are in use. O(1)."""
        return self._buckets.bytes

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher can stop reading: enough messages wait, and all of them had the same delay.

        Then the messages that follow have to wait as well. The lookahead says how many are enough. False while a
        message is due, and always with a lookahead of 0.
        """
        self._ensure_open()
        return (
            0 < self._lookahead <= len(self._buckets)
            and self._fixed_delay.has_fixed_delay
            and not self.has_message_available()
        )

    # -- changing ----------------------------------------------------------------------------------------------------

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick; messages that are held keep their buckets.

        :raises InvalidArgumentError: not an int from 0 to a century; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_tick(tick_ms)
        self._ensure_open()
        if tick_ms != self._ticks.tick_ms:
            self._ticks = TickRounding(tick_ms, is_strict=self._ticks.is_strict)
            self._timer_bucket = NEVER
            self._set_timer(self._now_ms())

    async def clear(self) -> None:
        """Drop all messages, and restart the detection of fixed delays.

        :raises ClosedError: after :meth:`aclose`
        """
        self._ensure_open()
        self._drop()

    async def aclose(self) -> None:
        """Drop all messages and close the tracker; ``on_due`` is not called any more. Idempotent."""
        if not self._is_closed:
            self._ensure_open()
        self._is_closed, self._home = True, NO_THREAD
        self._drop()

    def _drop(self) -> None:
        self._buckets.clear()
        self._fixed_delay.reset()
        self._set_timer(0)

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

    def _set_timer(self, now_ms: int) -> None:
        """Set the timer for the earliest bucket, or cancel it."""
        earliest = self._buckets.earliest
        wake_up = self._wake_up
        if wake_up is None:
            self._timer_bucket = earliest
            return
        if earliest == self._timer_bucket and wake_up.at_ms is not None:
            return
        self._timer_bucket = earliest
        if earliest == NEVER:
            wake_up.cancel()
            return
        ticks = self._ticks
        at_ms = self._pacing.next_at(ticks.wake_at(earliest), now_ms, ticks.tick_ms, is_due=self._is_due(now_ms))
        if at_ms == NEVER:
            wake_up.cancel()
        else:
            wake_up.set(at_ms, now_ms)

    def _run(self, planned_at: int) -> None:
        now_ms = self._now_ms()
        self._pacing.note_call(planned_at, now_ms, self._ticks.tick_ms)
        if self._is_due(now_ms) and self._on_due is not None:
            self._on_due()
        else:
            self._set_timer(now_ms)
