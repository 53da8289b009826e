"""The async shell of a store of logs: opening in threads, and closing what was opened.

A *part* of a store is what the owner of several logs works with (:mod:`._taking`). It is the same store, in the same
threads, but for its home, which refuses what is not the owner's any more, and for what it closes: the logs that were
opened through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from .._check import check_flag
from .._lifetime import LoopBound
from ..errors import ClosedError
from ._names import check_name
from ._shell import LogShell

_O = TypeVar("_O")
_O_co = TypeVar("_O_co", covariant=True)
_L = TypeVar("_L", bound=LogShell)
_H = TypeVar("_H", bound="HomeBackend[Any]")


class HomeBackend(Protocol[_O_co]):
    """A store of logs; blocking, for any thread. What it opens is what a log is made of."""

    def part(self) -> Self:
        """Return the home that a new owner gets; the same home if each log is locked."""
        ...

    def take(self, name: str) -> None:
        """Become the owner of a name."""
        ...

    def give_up(self) -> None:
        """Change nothing any more, not even when storage answers an earlier call later."""
        ...

    def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        ...

    def create(self, log: str) -> _O_co:
        """Make a log and open it."""
        ...

    def open_log(self, log: str, *, read_only: bool) -> _O_co:
        """Open a log that exists."""
        ...

    def delete(self, log: str) -> None:
        """Delete a log."""
        ...


class StoreShell(LoopBound, Generic[_H, _O, _L]):
    """A :class:`~pulsar_nack.ledger.LogStore` over its blocking work.

    :param make: makes a log of what a home opened
    """

    def __init__(self, home: _H, make: Callable[[_H, _O], _L], executor: ThreadPoolExecutor) -> None:
        self._home = home
        self._make = make
        self._executor = executor
        self._logs: set[_L] = set()
        self._opening: set[asyncio.Future[_O]] = set()
        self._parts: list[Self] = []
        self._is_part = False
        self._is_closed = False

    async def take(self, name: str) -> Self:
        """Become the owner of a name; return the part of the store for its logs.

        On object storage this fences the owner before: once another owner has taken the name, the part raises
        :class:`~pulsar_nack.LogFencedError` for each log to be made, opened for writing or deleted. In a folder, logs
        are locked instead.
        """
        check_name(name)
        self._check_open()
        home = self._home.part()
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, home.take, name)
        except asyncio.CancelledError:
            home.give_up()
            raise
        part = copy(self)
        part._home, part._is_part = home, True
        part._logs, part._opening, part._parts = set(), set(), []
        self._parts = [each for each in self._parts if not each._is_closed]
        self._parts.append(part)
        return part

    async def create(self, name: str) -> _L:
        """Make an empty log, durably, and open it for writing."""
        return await self._open_log(self._home.create, check_name(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> _L:
        """Open a log for writing, or for reading what is durable at this time."""
        check_flag("read_only", read_only)
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

    def close_soon(self) -> None:
        """Begin to close the logs that it opened or is opening; this goes on without a caller."""
        self._is_closed = True
        if self._is_part:
            self._home.give_up()
        for part in self._parts:
            part.close_soon()
        for log in self._logs:
            log.close_soon()

    async def aclose(self) -> None:
        """Close the logs that it opened, and then itself. Idempotent; goes on when the call is cancelled."""
        if not self._is_closed:
            self._check_loop("the store of logs")
        self.close_soon()
        while opening := self._all_opening():
            await asyncio.wait(opening)
        if closing := [log.close_soon() for log in self._all_logs()]:
            await asyncio.wait(closing)
        if not self._is_part:
            self._executor.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _open_log(self, work: Callable[[str], _O], name: str) -> _L:
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

    def _keep(self, opened: _O) -> _L:
        log = self._make(self._home, opened)
        if self._is_closed:
            log.close_soon()
        self._logs = {each for each in self._logs if not each.is_closed}
        self._logs.add(log)
        return log

    def _give_back(self, opening: asyncio.Future[_O]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result()).close_soon()

    def _all_opening(self) -> set[asyncio.Future[_O]]:
        return self._opening.union(*(part._all_opening() for part in self._parts))

    def _all_logs(self) -> set[_L]:
        return self._logs.union(*(part._all_logs() for part in self._parts))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the store of logs")
        self._check_loop("the store of logs")
