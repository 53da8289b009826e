"""Ownership of the logs that make up one state: the owner works through its own view of a store, and closes that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, Self, runtime_checkable
from weakref import WeakSet

from .._lifetime import ClosesOnExit
from ..errors import ClosedError
from ._protocol import Log, LogStore

__all__ = ["OwnableStore", "close_on_error", "storage_timeout", "take_ownership"]

_CLOSE_WAIT_S: Final = 0.1


@runtime_checkable
class OwnableStore(LogStore, Protocol):
    """A store of logs that several processes may own in turn; or the part of one that an owner works through."""

    async def take_ownership(self, name: str) -> OwnableStore:
        """Become the owner of a name, and return the part of the store that the owner works through.

        This fences the former owner, unless logs are locked. Closing the part closes the logs opened through it.
        """
        ...

    async def open_damaged(self, name: str) -> Log:
        """Open a damaged log as its only owner, to read its whole records; nothing is changed.

        :attr:`Log.damage` lists what is damaged. ``length`` counts lost records too, as far as they are known. Reading
        a lost record raises :class:`~pulsar_nack.errors.LogCorruptedError`; :meth:`Log.records` yields those before it,
        and then raises.

        :raises LogNotFoundError: there is no such log
        :raises LogLockedError: another process writes to it
        :raises LogVersionError: a later release wrote it
        :raises LogCorruptedError: nothing of it can be read
        """
        ...

    def close_soon(self) -> None:
        """Begin to close the logs, which continues without a caller; the store cannot be used any more."""
        ...


async def take_ownership(store: LogStore, name: str) -> OwnableStore:
    """Become the owner of some logs of a store, which are made, opened for writing and deleted through the result.

    A former owner that comes back later cannot change any of these logs: the store refuses that with
    :class:`~pulsar_nack.errors.LogFencedError`. A store that is not an :class:`OwnableStore` cannot refuse it.

    :param name: the same in every process that may own these logs
    """
    return await store.take_ownership(name) if isinstance(store, OwnableStore) else _WholeStore(store)


@asynccontextmanager
async def close_on_error(opened: Sequence[ClosesOnExit | LogStore]) -> AsyncIterator[None]:
    """Close these objects, the last one first, if the body fails; the body may add to them.

    If the body is cancelled, closing begins but is not awaited for longer than a moment.
    """
    try:
        yield
    except Exception:
        for each in reversed(opened):
            await each.aclose()
        raise
    except BaseException:
        if closing := [asyncio.ensure_future(each.aclose()) for each in reversed(opened)]:
            await asyncio.wait(closing, timeout=_CLOSE_WAIT_S)
        for task in closing:
            task.cancel()
        raise


@asynccontextmanager
async def storage_timeout(seconds: float, what: str) -> AsyncIterator[None]:
    """Cancel the body if storage takes longer than this.

    :raises TimeoutError: storage took longer
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        why = f"storage did not answer within close_timeout ({seconds:g} s); it is released as soon as storage answers"
        raise TimeoutError(f"{what}: {why}") from None


class _WholeStore(ClosesOnExit):
    """The owner's view of a store without ownership: all of it; closing it closes the logs opened through it."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._logs: WeakSet[Log] = WeakSet()
        self._closing: asyncio.Task[None] | None = None

    async def take_ownership(self, name: str) -> Self:
        del name  # nobody can be fenced
        return type(self)(self)

    async def create(self, name: str) -> Log:
        self._check_open()
        return await self._keep(self._store.create(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        self._check_open()
        return await self._keep(self._store.open_log(name, read_only=read_only))

    async def open_damaged(self, name: str) -> Log:
        self._check_open()
        open_damaged = getattr(self._store, "open_damaged", self._store.open_log)
        return await self._keep(open_damaged(name))

    async def names(self) -> list[str]:
        return await self._store.names()

    async def delete(self, name: str) -> None:
        await self._store.delete(name)

    def close_soon(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def aclose(self) -> None:
        self.close_soon()
        assert self._closing is not None
        await asyncio.shield(self._closing)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("the store of logs")

    async def _keep(self, opening: Awaitable[Log]) -> Log:
        log = await opening
        if self._closing is not None:
            await log.aclose()
        with suppress(TypeError):  # a log that takes no weak references is closed by its opener
            self._logs.add(log)
        return log

    async def _close(self) -> None:
        await asyncio.gather(*(log.aclose() for log in self._logs), return_exceptions=True)
