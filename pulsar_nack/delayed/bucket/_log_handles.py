"""Snapshots that are open for reading: a few, the least lately used is closed first, none while it is read."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from ...errors import LedgerError
from ._chores import Chores
from ._log_snapshot import LogSnapshot


class _Handle:
    """A snapshot that is being opened, or is open; ``users`` read from it."""

    __slots__ = ("opening", "users")

    def __init__(self, opening: asyncio.Task[LogSnapshot]) -> None:
        self.opening = opening
        self.users = 0


class Handles:
    """Opens snapshots when they are wanted, each once, and keeps at most ``most`` of them beyond those in use."""

    def __init__(self, open_one: Callable[[int], Coroutine[Any, Any, LogSnapshot]], most: int, chores: Chores) -> None:
        self._open_one = open_one
        self._most = most
        self._chores = chores
        self._handles: OrderedDict[int, _Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    @asynccontextmanager
    async def use(self, snapshot_id: int) -> AsyncIterator[LogSnapshot]:
        """Give a snapshot to read from; what opening it raises goes on, and the next one tries anew."""
        handle = self._handles.get(snapshot_id)
        if handle is None or _has_failed(handle):
            handle = self._handles[snapshot_id] = _Handle(self._chores.start(self._open_one(snapshot_id)))
        self._handles.move_to_end(snapshot_id)
        handle.users += 1
        try:
            yield await asyncio.shield(handle.opening)
        finally:
            handle.users -= 1
            self._left(snapshot_id, handle)

    def drop(self, snapshot_id: int) -> None:
        """Close a snapshot, or let it be closed when nobody reads from it any more."""
        handle = self._handles.pop(snapshot_id, None)
        if handle is not None and not handle.users:
            self._close(handle)

    def drop_all(self) -> None:
        """Close all."""
        for snapshot_id in list(self._handles):
            self.drop(snapshot_id)

    def _left(self, snapshot_id: int, handle: _Handle) -> None:
        is_kept = self._handles.get(snapshot_id) is handle
        if is_kept and _has_failed(handle):
            del self._handles[snapshot_id]
        elif not is_kept and not handle.users:
            self._close(handle)
        idle = [each for each, its in self._handles.items() if not its.users]
        for each in idle[: max(len(self._handles) - self._most, 0)]:
            self.drop(each)

    def _close(self, handle: _Handle) -> None:
        self._chores.start(_close(handle.opening))


def _has_failed(handle: _Handle) -> bool:
    opening = handle.opening
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


async def _close(opening: Awaitable[LogSnapshot]) -> None:
    with suppress(Exception):  # it told whoever opened it
        snapshot = await opening
        with suppress(LedgerError):
            await snapshot.log.aclose()
