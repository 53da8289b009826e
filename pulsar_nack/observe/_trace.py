"""The trace writer: one JSON line per event, written by a thread.

On the loop an event is one tuple appended to a queue; a thread formats and writes. The queue is a deque, whose append
and popleft are atomic: the loop takes no lock. If the queue is full, events are dropped and counted: the loop never
waits for a disk.

One file is open, the others are closed and never change. A file is `NAME.jsonl.open` while it is written; it is closed
by a sync and a rename to `NAME.jsonl`. Its name contains a random number of the writer, by which readers recognise
copies. A file is created, and never opened a second time, so no writer touches the files of another. A failed write is
cut off, so that the next write begins a line; if that fails too, the file is left as it is.

The thread has a worker and not the writer, so that a writer which is dropped open is collected, and warns.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import secrets
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, Self

import anyio

from .._foreign import quoted
from .._lifetime import ClosesOnExit
from ..clock import Clock, WallClock
from ..config import TraceConfig
from ..consumer import TraceNote
from ..errors import ClosedError, InvalidArgumentError
from ..ids import MessageId
from ..ledger.files import PRIVATE_FILE, PRIVATE_FOLDER, OsFiles, write_all
from ..nack import Cancelled, Cleared, Closed, Nacked, NackEvent, NackHook, Redelivered, RedeliveryFailed

_MAX_DEADLINES: Final = 100_000
_VERSION: Final = 1
_LINES_AT_ONCE: Final = 500
_WITH_ACTUAL: Final = ("redeliver", "arrive")
_files: Final = OsFiles()
_log: Final = logging.getLogger("pulsar_nack.trace")

Source = tuple[str, str, str]
"""The topic, subscription and consumer that events come from; a name that is not known is empty."""
Row = tuple[
    str, int, int, Source, MessageId, int | None, int | None, int | None, str | None
]  # event, time_ms, mono_ns, source, id, attempt, delay_ms, due_in_ms, reason


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
        source, worker, now_ms, ticks = (topic, subscription, consumer), self._worker, self._now_ms, time.monotonic_ns
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
                    note("error", each, reason=f"redeliver: {quoted(error)}")
            case Cancelled(id=message_id):
                note("cancel", message_id, reason="ack")
                deadlines.pop(message_id, None)
            case Cleared() | Closed():
                deadlines.clear()

    return hook


# --- the thread -----------------------------------------------------------------------------------------------------


class TraceWorker:
    """The queue of a trace writer, its thread and its files."""

    def __init__(self, config: TraceConfig) -> None:
        self.queue: deque[Row] = deque()
        self.dropped = self.written = self.failed = self.failures = 0
        self.last_error: str | None = None
        self.is_open = False
        self.capacity = config.max_buffered_events
        self.wake_at = max(1, self.capacity // 2)
        self.wake = threading.Event()
        self.files = TraceFiles(config)
        self._flush_seconds = config.flush_seconds
        self._is_stopping = False
        self._has_logged = False
        self.thread = threading.Thread(target=self._run, name="pulsar_nack.trace", daemon=True)

    def start(self) -> None:
        """Start the thread, and accept events."""
        self.is_open = True
        self.thread.start()

    def stop(self) -> None:
        """Accept no more events, and let the thread write the queue and end; does not wait."""
        self.is_open = False
        self._is_stopping = True
        self.wake.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self.wake.wait(self._flush_seconds)
            self.wake.clear()
            self._write_queue()
            self._guard(self.files.close_if_old)
        self._write_queue()
        self._guard(self.files.close)

    def _write_queue(self) -> None:
        while self.queue:
            rows = [self.queue.popleft() for _ in range(min(len(self.queue), _LINES_AT_ONCE))]
            try:
                data = "".join(map(_line, rows)).encode(errors="replace")
                if not self.files.has_room(len(data)):
                    self._guard(self.files.close)
                self.files.append(data)
            except Exception as error:  # noqa: BLE001 - a trace never ends the program that it observes
                self.failed += len(rows)
                self._note_failure(error)
            else:
                self.written += len(rows)

    def _guard(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = quoted(error)
        if not self._has_logged:
            self._has_logged = True
            _log.error("the trace cannot be written, events are lost (logged once): %s", self.last_error)


def _line(row: Row) -> str:
    """Return the JSON object of a row, with its line end."""
    event, time_ms, mono_ns, source, message_id, attempt, delay_ms, due_in_ms, reason = row
    topic, subscription, consumer = source
    topic = message_id.topic or topic
    deadline = None if due_in_ms is None else time_ms + due_in_ms
    return (
        f'{{"v":{_VERSION},"event":"{event}","time_ms":{time_ms},"mono_ns":{mono_ns},"topic":{_quoted(topic)},'
        f'"partition":{message_id.partition},"subscription":{_quoted(subscription)},'
        f'"consumer":{_quoted(consumer)},"ledger":{message_id.ledger},"entry":{message_id.entry},'
        f'"batch_index":{message_id.batch_index},"attempt":{_number(attempt)},"delay_ms":{_number(delay_ms)},'
        f'"deadline_ms":{_number(deadline)},"actual_ms":{time_ms if event in _WITH_ACTUAL else "null"},'
        f'"reason":{"null" if reason is None else _quoted(reason)}}}\n'
    )


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


@functools.lru_cache(maxsize=1_024)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- files ----------------------------------------------------------------------------------------------------------


class TraceFiles:
    """The files of a trace: lines are appended to one, and a new one begins by size and by time. For one thread."""

    def __init__(self, config: TraceConfig) -> None:
        self.closed = 0
        self._config = config
        self._folder = Path(config.folder)
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._descriptor: int | None = None
        self._path = self._folder
        self._size = 0
        self._opened_at = 0.0

    def has_room(self, length: int) -> bool:
        """Return whether ``length`` more bytes fit into the open file; True without one."""
        return not self._size or self._size + length <= self._config.max_file_bytes

    def append(self, data: bytes) -> None:
        """Write whole lines to the open file, or a new one.

        :raises OSError: none of the lines counts as written
        """
        descriptor = self._open() if self._descriptor is None else self._descriptor
        try:
            write_all(_files, descriptor, data, self._size)
        except OSError:
            self._cut(descriptor)
            raise
        self._size += len(data)

    def close_if_old(self) -> None:
        """Close the file if it has been open for its maximum time."""
        if self._descriptor is not None and time.monotonic() - self._opened_at >= self._config.max_file_seconds:
            self.close()

    def close(self) -> None:
        """Sync and rename the open file; if that fails it keeps its name, and the next write begins a new file."""
        descriptor, self._descriptor = self._descriptor, None
        self._size = 0
        if descriptor is None:
            return
        try:
            _files.sync(descriptor)
        finally:
            os.close(descriptor)
        self._path.rename(self._path.with_suffix(""))
        self.closed += 1
        _files.sync_folder(self._folder)

    def _open(self) -> int:
        self._folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._number += 1
        self._path = self._folder / f"trace-{time.time_ns() // 1_000_000}-{self._writer}-{self._number}.jsonl.open"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE_FILE)
        self._size, self._opened_at = 0, time.monotonic()
        return self._descriptor

    def _cut(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, self._size)
        except OSError:
            self._descriptor, self._size = None, 0
            with contextlib.suppress(OSError):
                os.close(descriptor)
