"""A folder of logs: the async shell over :mod:`._home`, and the owner of the threads that do the file work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ..errors import ClosedError
from ._files import Files, OsFiles
from ._home import Home, Opened
from ._local import LocalLog, check_number
from ._names import check_name

_MIN_SEGMENT: Final = 1 << 10


class LocalLogStore:
    """A :class:`~pulsar_nack.ledger.LogStore` in a folder; made by :meth:`open`, and used with ``async with``."""

    def __init__(self, home: Home, executor: ThreadPoolExecutor) -> None:
        self._home = home
        self._executor = executor
        self._logs: set[LocalLog] = set()
        self._opening: set[asyncio.Future[Opened]] = set()
        self._is_closed = False

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
        :param files: the file operations, for tests
        :raises LogStorageError: the folder cannot be made or listed
        """
        check_number("max_segment_bytes", max_segment_bytes, _MIN_SEGMENT, 1 << 40)
        check_number("threads", threads, 1, 64)
        executor = ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")
        home = Home(files or OsFiles(), Path(path), max_segment_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, home.open)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(home, executor)

    async def create(self, name: str) -> LocalLog:
        """Make an empty log, durably, and open it for writing."""
        return await self._open_log(self._home.create, check_name(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> LocalLog:
        """Open a log for writing, or for reading what is durable at this time."""
        return await self._open_log(partial(self._home.open_log, read_only=read_only), check_name(name))

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._home.names)

    async def delete(self, name: str) -> None:
        """Remove a log that nobody has open for writing."""
        check_name(name)
        self._check_open()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._home.delete, name)

    async def aclose(self) -> None:
        """Close the logs that it opened, and then itself. Idempotent."""
        self._is_closed = True
        while self._opening:
            await asyncio.wait(self._opening)
        closing = [log.close_soon() for log in self._logs]
        if closing:
            await asyncio.wait(closing)
        self._executor.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _open_log(self, work: Callable[[str], Opened], name: str) -> LocalLog:
        """Open in a thread; cancelled meanwhile, the log is closed again as soon as it is open."""
        self._check_open()
        opening = asyncio.get_running_loop().run_in_executor(self._executor, work, name)
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return self._keep(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(self._give_back)
            raise

    def _keep(self, opened: Opened) -> LocalLog:
        log = LocalLog(self._home, opened, self._executor)
        self._logs = {each for each in self._logs if not each.is_closed}
        self._logs.add(log)
        return log

    def _give_back(self, opening: asyncio.Future[Opened]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result()).close_soon()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the store of logs")
