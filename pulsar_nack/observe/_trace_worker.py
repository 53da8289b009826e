"""The thread that formats and writes a trace; the loop only appends to its queue.

The queue is a deque, whose append and popleft are atomic: no lock is taken on the loop.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from ..config import TraceConfig
from ._trace_files import TraceFiles
from ._trace_line import Row, line_of

_LINES_AT_ONCE: Final = 500
_log: Final = logging.getLogger("pulsar_nack.trace")


class TraceWorker:
    """Owns the queue, the thread and the files."""

    def __init__(self, config: TraceConfig) -> None:
        self.queue: deque[Row] = deque()
        self.dropped = self.written = self.failed = self.failures = 0
        self.last_error: str | None = None
        self.is_open = False
        self.most = config.max_buffered_events
        self.wake_at = max(1, self.most // 2)
        self.wake = threading.Event()
        self.files = TraceFiles(config)
        self._flush_seconds = config.flush_seconds
        self._is_stopping = False
        self._was_told = False
        self.thread = threading.Thread(target=self._run, name="pulsar_nack.trace", daemon=True)

    def start(self) -> None:
        """Begin to take rows."""
        self.is_open = True
        self.thread.start()

    def stop(self) -> None:
        """Take no more rows, write what there is, and end; does not wait."""
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
                data = "".join(map(line_of, rows)).encode(errors="replace")
                if not self.files.has_room(len(data)):
                    self._guard(self.files.close)
                self.files.append(data)
            except Exception as error:  # noqa: BLE001 - a trace never ends what it looks at
                self.failed += len(rows)
                self._tell(error)
            else:
                self.written += len(rows)

    def _guard(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = repr(error)
        if not self._was_told:
            self._was_told = True
            _log.error("the trace cannot be written, events are lost (told once): %r", error)
