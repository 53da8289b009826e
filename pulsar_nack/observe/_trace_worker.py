"""The thread that formats and writes a trace; the loop only appends events to its queue.

The queue is a deque, whose append and popleft are atomic: the loop takes no lock.

One file is open, the others are closed and never change. A file is `NAME.jsonl.open` while it is written; it is closed
by a sync and a rename to `NAME.jsonl`. Its name contains a random number of the writer, by which readers recognise
copies. A file is created, and never opened a second time, so no writer touches the files of another. A failed write is
cut off, so that the next write begins a line; if that fails too, the file is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ..config import TraceConfig
from ..ids import MessageId
from ..ledger.files import PRIVATE_FILE, PRIVATE_FOLDER, OsFiles, write_all

_VERSION: Final = 1
_LINES_AT_ONCE: Final = 500
_WITH_ACTUAL: Final = ("redeliver", "arrive")
_files: Final = OsFiles()
_log: Final = logging.getLogger("pulsar_nack.trace")


class EventSource(NamedTuple):
    """The consumer that events come from; a name that is not known is empty."""

    topic: str
    subscription: str
    consumer: str


Row = tuple[
    str, int, int, EventSource, MessageId, int | None, int | None, int | None, str | None
]  # event, time_ms, mono_ns, source, id, attempt, delay_ms, due_in_ms, reason


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
        self.last_error = repr(error)
        if not self._has_logged:
            self._has_logged = True
            _log.error("the trace cannot be written, events are lost (logged once): %r", error)


def _line(row: Row) -> str:
    """Return the JSON object of a row, with its line end."""
    event, time_ms, mono_ns, source, message_id, attempt, delay_ms, due_in_ms, reason = row
    topic = message_id.topic or source.topic
    deadline = None if due_in_ms is None else time_ms + due_in_ms
    return (
        f'{{"v":{_VERSION},"event":"{event}","time_ms":{time_ms},"mono_ns":{mono_ns},"topic":{_quoted(topic)},'
        f'"partition":{message_id.partition},"subscription":{_quoted(source.subscription)},'
        f'"consumer":{_quoted(source.consumer)},"ledger":{message_id.ledger},"entry":{message_id.entry},'
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
