"""Ownership of the logs that make up one state: the owner works through its own view of a store, and closes that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet

from .._lifetime import ClosesOnExit
from ..errors import ClosedError
from ._protocol import DamagedLog, Log, LogStore, SalvagingStore

__all__ = ["OwnableStore", "OwnedStore", "close_on_error", "storage_timeout", "take_ownership"]

_L = TypeVar("_L", bound=Log)

_CLOSE_WAIT_S: Final = 0.1


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class OwnedStore(LogStore, Protocol):
    """A store as one owner sees it; closing it closes the logs that were opened through it."""

    def close_soon(self) -> None:
        """Begin to close the logs, which continues without a caller; the owned store cannot be used any more."""
        ...


@runtime_checkable
class OwnableStore(Protocol):
    """A store of logs that several processes may own in turn."""

    async def take_ownership(self, name: str) -> OwnedStore:
        """Become the owner of a name; this fences the former owner, unless logs are locked."""
        ...


async def take_ownership(store: LogStore, name: str) -> OwnedStore:
    """Become the owner of some logs of a store, which are made, opened for writing and deleted through the result.

    A former owner that comes back later cannot change any of these logs: the store refuses that with
    :class:`~pulsar_nack.errors.LogFencedError`. A store that is not an :class:`OwnableStore` cannot refuse it.

    :param name: the same in every process that may own these logs
    """
    if isinstance(store, OwnableStore):
        return await store.take_ownership(name)
    return _SalvagingWholeStore(store) if isinstance(store, SalvagingStore) else _WholeStore(store)


@asynccontextmanager
async def close_on_error(opened: Sequence[_Closable]) -> AsyncIterator[None]:
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

    async def create(self, name: str) -> Log:
        self._check_open()
        return self._keep(await self._store.create(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        self._check_open()
        return self._keep(await self._store.open_log(name, read_only=read_only))

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

    def _keep(self, log: _L) -> _L:
        with suppress(TypeError):  # a log that takes no weak references is closed by its opener
            self._logs.add(log)
        return log

    async def _close(self) -> None:
        await asyncio.gather(*(log.aclose() for log in self._logs), return_exceptions=True)


class _SalvagingWholeStore(_WholeStore):
    """The owner's view of such a store that can open damaged logs."""

    _store: SalvagingStore  # type: ignore[assignment]

    async def open_damaged(self, name: str) -> DamagedLog:
        return self._keep(await self._store.open_damaged(name))
