"""Snapshots that are open for reading: a few, of which the least recently used are closed first, never while in use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import accumulate
from typing import Any

from ..._tasks import TaskOwner
from ...errors import LedgerError, LogCorruptedError, LogNotFoundError, SnapshotFormatError, SnapshotNotFoundError
from ...ledger import Log
from ..format import Footer, decode_footer


class OpenSnapshot:
    """A snapshot's log that is open for reading."""

    def __init__(self, log: Log, footer: Footer, snapshot_id: int) -> None:
        self.log = log
        self.footer = footer
        self._id = snapshot_id
        self._ends = list(accumulate(footer.parts.get(entry, 1) for entry in range(footer.entries)))

    @classmethod
    async def read(cls, log: Log, snapshot_id: int) -> OpenSnapshot:
        """Read and check the footer of an open log.

        :raises SnapshotFormatError: the snapshot is truncated, or this is not a snapshot
        :raises LogVersionError: a later release wrote it
        """
        with snapshot_errors(snapshot_id):
            if not log.is_sealed or not log.length:
                raise SnapshotFormatError(f"snapshot {snapshot_id}", "it has no end: it was cut, or never finished")
            (data,) = await log.read(log.length - 1, log.length - 1)
            try:
                footer = decode_footer(data, log.name)
            except ValueError as error:
                raise SnapshotFormatError(f"snapshot {snapshot_id}", str(error)) from error
            if footer.records != log.length - 1:
                reason = f"its footer counts {footer.records} records, there are {log.length - 1}"
                raise SnapshotFormatError(f"snapshot {snapshot_id}", reason)
            return cls(log, footer, snapshot_id)

    async def entries(self, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``, or those of them that exist.

        :raises SnapshotFormatError: they are damaged
        """
        last = min(last, self.footer.entries - 1)
        if first > last:
            return []
        begin = self._ends[first - 1] if first else 0
        with snapshot_errors(self._id):
            records = await self.log.read(begin, self._ends[last] - 1)
        ends = [end - begin for end in self._ends[first : last + 1]]
        return [
            records[start] if end == start + 1 else b"".join(records[start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        ]


@contextmanager
def snapshot_errors(snapshot_id: int) -> Iterator[None]:
    """Turn the errors of a damaged or missing log into those of a snapshot, which the tracker handles."""
    try:
        yield
    except LogCorruptedError as error:
        raise SnapshotFormatError(f"snapshot {snapshot_id}", str(error)) from error
    except LogNotFoundError as error:
        raise SnapshotNotFoundError(snapshot_id) from error


class _Handle:
    """A snapshot that is open or being opened, and the number of its readers."""

    __slots__ = ("opening", "users")

    def __init__(self, opening: asyncio.Task[OpenSnapshot]) -> None:
        self.opening = opening
        self.users = 0


class SnapshotCache:
    """Opens each snapshot once, when it is read, and keeps at most ``max_open`` open beyond those in use."""

    def __init__(
        self, open_one: Callable[[int], Coroutine[Any, Any, OpenSnapshot]], max_open: int, tasks: TaskOwner
    ) -> None:
        self._open_one = open_one
        self._max_open = max_open
        self._tasks = tasks
        self._handles: OrderedDict[int, _Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    @asynccontextmanager
    async def use(self, snapshot_id: int) -> AsyncIterator[OpenSnapshot]:
        """Give a snapshot to read from; if opening it fails, the next reader tries again."""
        handle = self._handles.get(snapshot_id)
        if handle is None or _has_failed(handle):
            opening = self._tasks.begin(self._open_one(snapshot_id))
            handle = self._handles[snapshot_id] = _Handle(opening)
        self._handles.move_to_end(snapshot_id)
        handle.users += 1
        try:
            yield await asyncio.shield(handle.opening)
        finally:
            handle.users -= 1
            self._left(snapshot_id, handle)

    def drop(self, snapshot_id: int) -> None:
        """Close a snapshot, or have its last reader close it."""
        handle = self._handles.pop(snapshot_id, None)
        if handle is not None and not handle.users:
            self._close(handle)

    def drop_all(self) -> None:
        """Drop every snapshot."""
        for snapshot_id in list(self._handles):
            self.drop(snapshot_id)

    def _left(self, snapshot_id: int, handle: _Handle) -> None:
        is_kept = self._handles.get(snapshot_id) is handle
        if is_kept and _has_failed(handle):
            del self._handles[snapshot_id]
        elif not is_kept and not handle.users:
            self._close(handle)
        idle = [each for each, its in self._handles.items() if not its.users]
        for each in idle[: max(len(self._handles) - self._max_open, 0)]:
            self.drop(each)

    def _close(self, handle: _Handle) -> None:
        self._tasks.begin(_close(handle.opening))


def _has_failed(handle: _Handle) -> bool:
    opening = handle.opening
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


async def _close(opening: Awaitable[OpenSnapshot]) -> None:
    with suppress(Exception):  # the reader has the error
        snapshot = await opening
        with suppress(LedgerError):
            await snapshot.log.aclose()
