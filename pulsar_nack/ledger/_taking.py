"""Ownership of the logs that make up one state: an owner takes a part of a store, and closes that as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar, runtime_checkable
from weakref import WeakSet

from ..errors import ClosedError
from ._protocol import DamagedLog, Log, LogStore, SalvagingStore

_L = TypeVar("_L", bound=Log)

_AT_ONCE_S: Final = 0.1


class _Closable(Protocol):
    async def aclose(self) -> None:
        """Begin to close it, and wait for that; it goes on when the call is cancelled."""
        ...


class Part(LogStore, Protocol):
    """The part of a store that one owner has; closing it closes the logs that were opened through it."""

    def close_soon(self) -> None:
        """Begin to close the logs, which goes on without a caller; the part cannot be used any more."""
        ...


@runtime_checkable
class SharedStore(Protocol):
    """A store of logs of which several processes may own parts, one after the other."""

    async def take(self, name: str) -> Part:
        """Become the owner of a name; this fences the owner before, unless logs are locked."""
        ...


async def take(store: LogStore, name: str) -> Part:
    """Become the owner of some logs of a store; they are made, opened for writing and deleted through the part.

    A former owner that comes back later changes none of these logs: the store refuses that with
    :class:`~pulsar_nack.LogFencedError`. A store without ``take`` cannot refuse it.

    :param name: the same in every process that may own these logs
    """
    if isinstance(store, SharedStore):
        return await store.take(name)
    return _SalvagingWhole(store) if isinstance(store, SalvagingStore) else _Whole(store)


@asynccontextmanager
async def given_back(opened: Sequence[_Closable]) -> AsyncIterator[None]:
    """Close these, the last one first, when the body fails; the body may add to them.

    When the body is cancelled they are closed once storage answers, and this does not wait for it.
    """
    try:
        yield
    except Exception:
        for each in reversed(opened):
            await each.aclose()
        raise
    except BaseException:
        if closing := [asyncio.ensure_future(each.aclose()) for each in reversed(opened)]:
            await asyncio.wait(closing, timeout=_AT_ONCE_S)
        for task in closing:
            task.cancel()
        raise


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Wait for storage so long at most.

    :raises TimeoutError: it took longer; the body was cancelled
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        why = f"storage did not answer within close_timeout ({seconds:g} s); it is let go as soon as it does"
        raise TimeoutError(f"{what}: {why}") from None


class _Whole:
    """The part of a store without ``take``: the whole store; closing it closes the logs opened through it."""

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("the store of logs")

    def _keep(self, log: _L) -> _L:
        with suppress(TypeError):  # a log without weak references is closed by its opener
            self._logs.add(log)
        return log

    async def _close(self) -> None:
        await asyncio.gather(*(log.aclose() for log in self._logs), return_exceptions=True)


class _SalvagingWhole(_Whole):
    """Such a store that can open damaged logs."""

    _store: SalvagingStore  # type: ignore[assignment]

    async def open_damaged(self, name: str) -> DamagedLog:
        return self._keep(await self._store.open_damaged(name))
