"""The trace writer: one JSON line per event, written by a thread.

On the loop an event is one tuple appended to a queue; a thread formats and writes. If the queue is full, events are
dropped and counted: the loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Final, Self

import anyio

from .._lifetime import ClosesOnExit
from ..clock import Clock, WallClock
from ..config import TraceConfig
from ..consumer import TraceNote
from ..errors import ClosedError, InvalidArgumentError
from ..ids import MessageId
from ..nack import Cancelled, Cleared, Closed, Nacked, NackEvent, NackHook, Redelivered, RedeliveryFailed
from ._trace_worker import EventSource, TraceWorker

_MAX_DEADLINES: Final = 100_000


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Counts of events, and of errors of the storage (``failures``), of which the last one is kept.

    ``dropped`` events found the buffer full or the writer not open, ``failed`` ones could not be written.
    """

    buffered: int
    written: int
    dropped: int
    failed: int
    failures: int
    files_closed: int
    last_error: str | None


class TraceWriter(ClosesOnExit):
    """Writes the events of consumers and trackers to a folder, as JSON lines. Use it as ``async with``.

    Pass it to consumers (``Consumer(..., trace=writer)``, also ``subscribe`` and ``wrap``), or ``writer.hook()`` to
    your own tracker, and close those first. Several consumers may share a writer, and several writers a folder. Events
    that find the buffer full, or the writer not open, are dropped and counted; errors of the storage are counted, and
    the first one is logged.

    :param config: the folder, and the limits of files and buffer, or just a path
    :param wall_clock: the clock for epoch times, by default the machine's
    :raises InvalidArgumentError: a setting is invalid
    """

    def __init__(self, config: TraceConfig | str | PathLike[str], *, wall_clock: Clock | None = None) -> None:
        if isinstance(config, str | PathLike):
            config = TraceConfig(folder=config)
        if not isinstance(config, TraceConfig):
            raise InvalidArgumentError("config", config, "a TraceConfig or a folder")
        self._worker = TraceWorker(config)
        self._now_ms = (wall_clock or WallClock()).now_ms
        self._was_opened = False

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise ClosedError("TraceWriter (it is entered once)")
        self._was_opened = True
        self._worker.start()
        return self

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None and worker.is_open:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            worker.stop()

    async def aclose(self) -> None:
        """Write buffered events and close the file; idempotent, and finishes even if it is cancelled."""
        self._worker.stop()
        if self._worker.thread.is_alive():
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(self._worker.thread.join)

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> TraceNote:
        """Return the function that a consumer calls for each event; consumers call this method themselves."""
        source, worker, now_ms, ticks = EventSource(topic, subscription, consumer), self._worker, self._now_ms, _ticks
        queue, capacity, wake_at = worker.queue, worker.capacity, worker.wake_at
        append = queue.append

        def note(
            event: str,
            message_id: MessageId,
            attempt: int | None = None,
            *,
            delay_ms: int | None = None,
            due_in_ms: int | None = None,
            reason: str | None = None,
        ) -> None:
            buffered = len(queue)
            if buffered >= capacity or not worker.is_open:
                worker.dropped += 1
                return
            append((event, now_ms(), ticks(), source, message_id, attempt, delay_ms, due_in_ms, reason))
            if buffered == wake_at:
                worker.wake.set()

        return note

    def hook(self, topic: str = "", subscription: str = "", consumer: str = "") -> NackHook:
        """Return a hook for a :class:`~pulsar_nack.NegativeAcksTracker` without a consumer.

        It traces nack, redeliver, cancel and error, without attempts. For a consumer use its parameter ``trace``.
        """
        return _tracker_hook(self.source(topic, subscription, consumer))

    def statistics(self) -> TraceStatistics:
        """Return a snapshot."""
        worker = self._worker
        return TraceStatistics(
            buffered=len(worker.queue),
            written=worker.written,
            dropped=worker.dropped,
            failed=worker.failed,
            failures=worker.failures,
            files_closed=worker.files.closed,
            last_error=worker.last_error,
        )


_ticks = time.monotonic_ns


def _tracker_hook(note: TraceNote) -> NackHook:
    """Return a hook that notes each id of an event, with its deadline if it is among the first 100,000 pending ids."""
    deadlines: dict[MessageId, int] = {}

    def due_in(message_id: MessageId, at_ms: int) -> int | None:
        deadline = deadlines.get(message_id)
        return None if deadline is None else deadline - at_ms

    def hook(event: NackEvent) -> None:
        match event:
            case Nacked(ids=ids, delay_ms=delay_ms, deadline_ms=deadline_ms):
                for each in ids:
                    if each in deadlines or len(deadlines) < _MAX_DEADLINES:
                        deadlines[each] = min(deadline_ms, deadlines.get(each, deadline_ms))
                    note("nack", each, delay_ms=delay_ms, due_in_ms=delay_ms)
            case Redelivered(ids=ids, at_ms=at_ms):
                for each in ids:
                    note("redeliver", each, due_in_ms=due_in(each, at_ms))
                    deadlines.pop(each, None)
            case RedeliveryFailed(ids=ids, error=error):
                for each in ids:
                    note("error", each, reason=f"redeliver: {error!r}")
            case Cancelled(id=message_id):
                note("cancel", message_id, reason="ack")
                deadlines.pop(message_id, None)
            case Cleared() | Closed():
                deadlines.clear()

    return hook
