"""The asyncio side of a store of logs: it opens logs in threads, and closes those that it opened.

An *owned store* (:mod:`.ownership`) is the part of a store that the owner of several logs works with. It is the same
store in the same threads, except that it refuses what belongs to another owner by now, and closes only its own logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Generic, Self, TypeVar

from .._check import check_flag
from .._lifetime import LoopBound
from ._log import AsyncLog
from ._protocol import BlockingStore
from .format import check_name

_O = TypeVar("_O")
_L = TypeVar("_L", bound=AsyncLog)


class AsyncLogStore(LoopBound, Generic[_O, _L]):
    """A :class:`~pulsar_nack.ledger.LogStore` over a blocking store."""

    _what = "the store of logs"

    def __init__(self, directory: BlockingStore[_O], executor: ThreadPoolExecutor) -> None:
        self._directory = directory
        self._executor = executor
        self._logs: set[_L] = set()
        self._opening: set[asyncio.Future[_O]] = set()
        self._owned: list[Self] = []
        self._is_owned = False

    def _make_log(self, opened: _O) -> _L:
        raise NotImplementedError

    async def take_ownership(self, name: str) -> Self:
        """Become the owner of a name; return the store through which the owner works.

        On object storage this fences the former owner: once another owner has taken the name, the returned store raises
        :class:`~pulsar_nack.errors.LogFencedError` when a log is to be made, opened for writing or deleted. In a folder
        each log is locked instead.
        """
        check_name(name)
        self._ensure_open()
        directory = self._directory.for_owner()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, directory.take_ownership, name)
        except asyncio.CancelledError:
            directory.abandon()
            raise
        owned = copy(self)
        owned._directory, owned._is_owned = directory, True
        owned._logs, owned._opening, owned._owned = set(), set(), []
        self._owned = [each for each in self._owned if not each._is_closed]
        self._owned.append(owned)
        return owned

    async def create(self, name: str) -> _L:
        """Make an empty log durably, and open it for writing."""
        return await self._open_log(self._directory.create, check_name(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> _L:
        """Open a log for writing, or for reading its durable records."""
        check_flag("read_only", read_only)
        return await self._open_log(partial(self._directory.open_log, read_only=read_only), check_name(name))

    async def open_damaged(self, name: str) -> _L:
        """Open a log as its only owner; a damaged one is refused if its whole records cannot be read either."""
        return await self.open_log(name)

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        self._ensure_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._directory.names)

    async def delete(self, name: str) -> None:
        """Delete a log that nobody has open for writing."""
        check_name(name)
        self._ensure_open()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._directory.delete, name)

    def close_soon(self) -> None:
        """Begin to close the logs that are open or being opened; this continues without a caller."""
        self._is_closed = True
        if self._is_owned:
            self._directory.abandon()
        for owned in self._owned:
            owned.close_soon()
        for log in self._logs:
            log.close_soon()

    async def aclose(self) -> None:
        """Close all logs that were opened here, then the store. Idempotent; continues when the call is cancelled."""
        if not self._is_closed:
            self._check_loop()
        self.close_soon()
        while opening := self._all_opening():
            await asyncio.wait(opening)
        if closing := [log.close_soon() for log in self._all_logs()]:
            await asyncio.wait(closing)
        if not self._is_owned:
            self._executor.shutdown(wait=False)

    async def _open_log(self, work: Callable[[str], _O], name: str) -> _L:
        """Open a log in a thread; if the call is cancelled, the log is closed as soon as it is open."""
        self._ensure_open()
        opening = asyncio.get_running_loop().run_in_executor(self._executor, work, name)
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return self._keep(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_opened)
            raise

    def _keep(self, opened: _O) -> _L:
        log = self._make_log(opened)
        if self._is_closed:
            log.close_soon()
        self._logs = {each for each in self._logs if not each.is_closed}
        self._logs.add(log)
        return log

    def _close_opened(self, opening: asyncio.Future[_O]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result()).close_soon()

    def _all_opening(self) -> set[asyncio.Future[_O]]:
        return self._opening.union(*(owned._all_opening() for owned in self._owned))

    def _all_logs(self) -> set[_L]:
        return self._logs.union(*(owned._all_logs() for owned in self._owned))
