"""The async shell of a store of logs: opening in threads, and closing what was opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from ..errors import ClosedError
from ._names import check_name
from ._shell import LogShell

_O = TypeVar("_O")
_O_co = TypeVar("_O_co", covariant=True)
_L = TypeVar("_L", bound=LogShell)


class HomeBackend(Protocol[_O_co]):
    """A store of logs; blocking, for any thread. What it opens is what a log is made of."""

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


class StoreShell(Generic[_O, _L]):
    """A :class:`~pulsar_nack.ledger.LogStore` over its blocking work.

    :param make: makes a log of what the home opened
    """

    def __init__(self, home: HomeBackend[_O], make: Callable[[_O], _L], executor: ThreadPoolExecutor) -> None:
        self._home = home
        self._make = make
        self._executor = executor
        self._logs: set[_L] = set()
        self._opening: set[asyncio.Future[_O]] = set()
        self._is_closed = False

    async def create(self, name: str) -> _L:
        """Make an empty log, durably, and open it for writing."""
        return await self._open_log(self._home.create, check_name(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> _L:
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
        log = self._make(opened)
        self._logs = {each for each in self._logs if not each.is_closed}
        self._logs.add(log)
        return log

    def _give_back(self, opening: asyncio.Future[_O]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result()).close_soon()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the store of logs")
