"""The one timer of a bucket tracker: for the next message to hand out, segment to load, or bucket to seal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..._delays import delay_ms
from ..._wake_up import WakeUp
from ...clock import Clock
from ...config import BucketConfig
from ...index import NEVER
from ..ticks import CallPacing, TickRounding
from ._index import BucketIndex


class DispatchTimer:
    """Calls the dispatcher once for the messages that are due, and again when more of them arrive from storage.

    :param on_due: calls the dispatcher; without it the timer only loads segments and seals buckets
    """

    def __init__(
        self,
        index: BucketIndex,
        config: BucketConfig,
        clock: Clock,
        on_due: Callable[[], object] | None,
    ) -> None:
        self.ticks = TickRounding(
            config.delayed_delivery_tick_time_millis, is_strict=config.is_delayed_delivery_deliver_at_time_strict
        )
        self.call_at = NEVER
        """When the dispatcher is called next."""
        self.seal_at = NEVER
        """When the mutable bucket is sealed because it is old."""
        self._index = index
        self._now_ms = clock.now_ms
        self._on_due = on_due
        self.start_work: Callable[[], None] = lambda: None
        """Starts the work on storage that is needed now."""
        self.prefetch_ms = delay_ms(config.prefetch)
        """How long before its time a segment is loaded."""
        self._max_unsealed = config.max_unsealed_indexes
        self._has_paused = False
        self._pacing = CallPacing()
        self._wake_up = WakeUp(clock, self._run)
        self._is_closed = False

    def cutoff(self) -> int:
        """Return the latest time that is due."""
        return self._now_ms() + self.ticks.lead

    def update(self, now_ms: int | None = None) -> None:
        """Start the work that is needed now, and set the timer for the next."""
        if self._is_closed:
            return
        now_ms = self._now_ms() if now_ms is None else now_ms
        ready_at = self._index.ready_at
        if self._index.seal_at <= now_ms:
            self._index.seal()
        self.start_work()
        if self._has_paused and self._index.unsealed <= self._max_unsealed:
            self._has_paused = False
            asyncio.get_running_loop().call_soon(self._call)
        self.call_at, self.seal_at = self._next_call(ready_at, now_ms), self._index.seal_at
        at_ms, load_at = min(self.call_at, self.seal_at), self._index.load_at
        if load_at != NEVER:
            load_at -= self.ticks.lead + self.prefetch_ms
            if load_at > now_ms:  # a segment that is not loaded by now waits for messages to be taken, or for loads
                at_ms = min(at_ms, load_at)
        if at_ms == NEVER:
            self._wake_up.cancel()
        else:
            self._wake_up.set(at_ms, now_ms)

    def change_tick(self, tick_ms: int) -> None:
        """Use another tick from now on."""
        if tick_ms != self.ticks.tick_ms:
            self.ticks = TickRounding(tick_ms, is_strict=self.ticks.is_strict)
            self.update()

    def should_pause(self) -> bool:
        """Return whether the dispatcher has to stop reading. If so, ``on_due`` is called once it may go on."""
        has_to_pause = self._index.unsealed > self._max_unsealed
        self._has_paused |= has_to_pause
        return has_to_pause

    def call_again(self) -> None:
        """Call the dispatcher again for due messages: some were loaded, or no longer wait for others."""
        self._pacing.reset()
        self.update()

    def close(self) -> None:
        """Stop; the dispatcher is not called any more."""
        self._is_closed = True
        self._wake_up.cancel()

    def _next_call(self, ready_at: int, now_ms: int) -> int:
        """Return when to call the dispatcher for the earliest message."""
        if ready_at == NEVER or self._on_due is None:
            return NEVER
        return self._pacing.next_at(ready_at, now_ms, self.ticks.tick_ms, is_due=ready_at <= now_ms)

    def _run(self, planned_at: int) -> None:
        now_ms = self._now_ms()
        is_call = self.call_at <= now_ms
        if is_call:
            self._pacing.note_call(planned_at, now_ms, self.ticks.tick_ms)
        try:
            if is_call and self._index.ready_at <= now_ms + self.ticks.lead:
                self._call()
        finally:
            self.update()

    def _call(self) -> None:
        if self._on_due is not None and not self._is_closed:
            self._on_due()
