"""A folder of logs: :mod:`._home` in the threads that do the file work."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Final, Self

from .._check import check_has, check_integer
from ._files import Files, OsFiles
from ._folder import as_folder
from ._home import Home, Opened
from ._local import LocalBackend, LocalLog
from ._names import check_name
from ._shell_store import StoreShell

_MIN_SEGMENT: Final = 1 << 10


class LocalLogStore(StoreShell[Home, Opened, LocalLog]):
    """A :class:`~pulsar_nack.ledger.LogStore` in a folder; made by :meth:`open`, and used with ``async with``."""

    def __init__(self, home: Home, executor: ThreadPoolExecutor) -> None:
        super().__init__(home, lambda home, opened: LocalLog(LocalBackend(home, opened), executor), executor)
        self._open_damaged = home.open_damaged

    async def open_damaged(self, name: str) -> LocalLog:
        """Open a log that :meth:`open_log` finds damaged, as its only owner, for reading what is whole of it.

        Nothing of it is changed or cut off; what is damaged, ``log.damage`` tells. Reading a lost record raises
        :class:`~pulsar_nack.LogCorruptedError`. O(size of the log): all of it is looked through.

        :raises LogNotFoundError: there is none
        :raises LogLockedError: somebody else writes to it
        :raises LogVersionError: a later release wrote it
        """
        return await self._open_log(self._open_damaged, check_name(name))

    @classmethod
    async def open(
        cls,
        path: str | PathLike[str],
        *,
        max_segment_bytes: int = 1 << 26,
        threads: int = 4,
        files: Files | None = None,
    ) -> Self:
        """Open a folder of logs, made where it is missing; what crashes left there is swept away.

        :param max_segment_bytes: a log goes on in a new file before one would become larger than this (at least 1 KiB)
        :param threads: how many threads work on files at the same time (1 to 64)
        :param files: the file operations, for tests; those in memory use no threads
        :raises InvalidArgumentError: not a path (a URL is none), or a number out of its range; nothing was made
        :raises LogStorageError: the folder cannot be made or listed
        """
        folder = as_folder("path", path)
        check_integer("max_segment_bytes", max_segment_bytes, _MIN_SEGMENT, 1 << 40)
        check_integer("threads", threads, 1, 64)
        if files is not None:
            check_has("files", files, ("is_folder", "read"), "file operations, or None")
        executor = _executor(threads, files)
        home = Home(files or OsFiles(), folder, max_segment_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, home.open)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(home, executor)


def _executor(threads: int, files: Files | None) -> ThreadPoolExecutor:
    if files is not None:
        from ._memory_files import InPlace, MemoryFiles

        if isinstance(getattr(files, "inner", files), MemoryFiles):
            return InPlace(1)
    return ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")
