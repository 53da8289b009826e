"""The files of a trace: one is open, the others are closed and never change. For one thread only.

A file is `NAME.jsonl.open` while it is written; it is closed by a sync and a rename to `NAME.jsonl`. Its name contains
a random number of the writer, by which readers recognise copies. A file is created, and never opened a second time, so
no writer touches the files of another. A failed write is cut off, so that the next write begins a line; if that fails
too, the file is left as it is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Final

from ..config import TraceConfig
from ..ledger.files import PRIVATE_FILE, PRIVATE_FOLDER, OsFiles, write_all

_files: Final = OsFiles()


class TraceFiles:
    """Appends lines to a file, and begins a new file by size and by time."""

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
