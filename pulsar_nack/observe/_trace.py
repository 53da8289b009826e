"""The trace writer: one JSON line per event, written beside the loop.

On the loop an event is one tuple appended to a queue; a thread formats and writes. A full queue drops what comes, and
counts it: the loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Self

import anyio

from ..clock import Clock, WallClock
from ..config import TraceConfig
from ..consumer import TraceNote
from ..errors import ClosedError, InvalidArgumentError
from ..ids import MessageId
from ..nack import NackHook
from ._trace_hook import tracker_hook
from ._trace_line import Source
from ._trace_worker import TraceWorker


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """What became of the events, in numbers of them; ``failures`` counts errors of the storage, of which one is told.

    ``dropped`` found the buffer full or the writer not open, ``failed`` could not be written.
    """

    buffered: int
    written: int
    dropped: int
    failed: int
    failures: int
    files_closed: int
    last_error: str | None


class TraceWriter:
    """Writes what consumers and trackers do to a folder, as JSON lines. Use it as ``async with``.

    Give it to consumers (``Consumer(..., trace=writer)``, also ``subscribe`` and ``wrap``), or a tracker of your own
    ``writer.hook()``; close those first. Any number of them, and of writers in one folder. Events that find the
    buffer full, or the writer not open, are dropped and counted; an error of the storage is counted, and logged once.

    :param config: the folder, and the bounds of files and buffer; a path alone is good too
    :param wall_clock: tells the epoch time; the machine's own by default
    :raises InvalidArgumentError: names the setting
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        worker = getattr(self, "_worker", None)
        if worker is not None and worker.is_open:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            worker.stop()

    async def aclose(self) -> None:
        """Write what is buffered and close the file; idempotent, and goes on to its end when it is cancelled."""
        self._worker.stop()
        if self._worker.thread.is_alive():
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(self._worker.thread.join)

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> TraceNote:
        """Return what one consumer calls for each of its events; the consumer does this by itself."""
        source, worker, now_ms, ticks = Source(topic, subscription, consumer), self._worker, self._now_ms, _ticks
        queue, most, wake_at = worker.queue, worker.most, worker.wake_at
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
            if buffered >= most or not worker.is_open:
                worker.dropped += 1
                return
            append((event, now_ms(), ticks(), source, message_id, attempt, delay_ms, due_in_ms, reason))
            if buffered == wake_at:
                worker.wake.set()

        return note

    def hook(self, topic: str = "", subscription: str = "", consumer: str = "") -> NackHook:
        """Return a hook for a :class:`~pulsar_nack.NegativeAcksTracker` that no consumer of ours owns.

        It tells nack, redeliver, cancel and error, without attempts. Do not give it to a consumer: that has ``trace``.
        """
        return tracker_hook(self.source(topic, subscription, consumer))

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
