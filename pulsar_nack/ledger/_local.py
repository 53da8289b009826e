"""Logs in a folder of local files, and their store."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Final, Self

from .._check import as_folder, check_has, check_integer
from ..errors import LogCorruptedError
from ._directory import LogDirectory, OpenedFiles
from ._log import DAMAGED, READ_ONLY, AsyncLog
from ._protocol import LogDamage
from ._store import AsyncLogStore
from .files import Files, OsFiles
from .format import check_name, segment_name
from .segments import record_cost

_MIN_SEGMENT: Final = 1 << 10


class LocalLog(AsyncLog):
    """A :class:`~pulsar_nack.ledger.Log` in a folder, as a store opens it."""

    def __init__(self, directory: LogDirectory, opened: OpenedFiles, executor: ThreadPoolExecutor) -> None:
        why = "" if opened.writer else (DAMAGED if opened.damage else READ_ONLY)
        super().__init__(opened.name, directory.location, opened.state, executor, why)
        self._directory = directory
        self._opened = opened

    @property
    def cut(self) -> int:
        """Return how many bytes of a torn write were cut off when the log was opened."""
        return 0 if self._opened.writer is None else self._opened.writer.cut

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return the damage, if the log was opened in spite of it."""
        return self._opened.damage

    def _read_some(self, first: int, last: int, limit: int) -> list[bytes]:
        segments = list(self._opened.segments)
        at = bisect_right(segments, first, key=lambda segment: segment.first) - 1
        if at < 0:
            raise LogCorruptedError(self.name, segment_name(first), 0, "the file is missing")
        found: list[bytes] = []
        while first <= last and limit > 0:
            stop = self.length if at + 1 == len(segments) else segments[at + 1].first
            end = min(last, stop - 1)
            part = segments[at].read(first, end, limit, stop)
            found += part
            first += len(part)
            limit = limit - sum(map(record_cost, part)) if first > end else 0
            at += 1
        return found

    def _close(self) -> None:
        self._directory.close(self._opened)

    def _delete(self) -> None:
        if self._opened.writer is not None:
            self._opened.writer.close()
        self._directory.delete(self.name, self._opened.lock)


class LocalLogStore(AsyncLogStore[OpenedFiles, LocalLog]):
    """A :class:`~pulsar_nack.ledger.LogStore` in a folder; made by :meth:`open`, and used with ``async with``."""

    _directory: LogDirectory

    def _make_log(self, opened: OpenedFiles) -> LocalLog:
        return LocalLog(self._directory, opened, self._executor)

    async def open_damaged(self, name: str) -> LocalLog:
        """Open a damaged log as its only owner, to read its whole records.

        Nothing is changed or cut off; ``log.damage`` lists what is damaged. Reading a lost record raises
        :class:`~pulsar_nack.errors.LogCorruptedError`. O(size of the log): the whole log is scanned.

        :raises LogNotFoundError: there is no such log
        :raises LogLockedError: another process writes to it
        :raises LogVersionError: a later release wrote it
        """
        return await self._open_log(self._directory.open_damaged, check_name(name))

    @classmethod
    async def open(
        cls,
        path: str | PathLike[str],
        *,
        max_segment_bytes: int = 1 << 26,
        threads: int = 4,
        files: Files | None = None,
    ) -> Self:
        """Open a folder of logs, creating it if it is missing; leftovers of crashes are removed.

        :param max_segment_bytes: a log continues in a new file before one exceeds this size (at least 1 KiB)
        :param threads: how many threads work on files at the same time (1 to 64)
        :param files: the file operations, for tests; those in memory use no threads
        :raises InvalidArgumentError: not a path, a URL, or a number out of its range; nothing was made
        :raises LogStorageError: the folder cannot be made or listed
        """
        folder = as_folder("path", path)
        check_integer("max_segment_bytes", max_segment_bytes, _MIN_SEGMENT, 1 << 40)
        check_integer("threads", threads, 1, 64)
        if files is not None:
            check_has("files", files, ("is_folder", "read"), "file operations, or None")
        executor = _executor(threads, files)
        directory = LogDirectory(files or OsFiles(), folder, max_segment_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, directory.open)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(directory, executor)


def _executor(threads: int, files: Files | None) -> ThreadPoolExecutor:
    if files is not None:
        from .memory import InPlaceExecutor, MemoryFiles

        if isinstance(getattr(files, "inner", files), MemoryFiles):
            return InPlaceExecutor(1)
    return ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")
