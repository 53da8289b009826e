"""Snapshots that are open for reading: a few, of which the least recently used are closed first, never while in use."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import accumulate

from ..._tasks import TaskOwner
from ...errors import LedgerError, LogCorruptedError, LogNotFoundError, SnapshotFormatError, SnapshotNotFoundError
from ...ledger import Log
from ..format import Footer, decode_footer


class OpenSnapshot:
    """A snapshot whose log is open for reading, or being opened, and the number of its readers.

    :param open_log: opens the log
    """

    log: Log
    footer: Footer
    _ends: list[int]

    def __init__(self, snapshot_id: int, open_log: Callable[[int], Awaitable[Log]], tasks: TaskOwner) -> None:
        self._id = snapshot_id
        self.users = 0
        self.opening = tasks.begin(self._open(open_log))

    async def _open(self, open_log: Callable[[int], Awaitable[Log]]) -> None:
        """Open the log, and read and check its footer.

        :raises SnapshotFormatError: the snapshot is truncated, or this is not a snapshot
        :raises LogVersionError: a later release wrote it
        """
        log = await open_log(self._id)
        try:
            with snapshot_errors(self._id):
                self.footer = footer = await self._read_footer(log)
            self._ends = list(accumulate(footer.parts.get(entry, 1) for entry in range(footer.entries)))
        except BaseException:
            await log.aclose()
            raise
        self.log = log

    async def _read_footer(self, log: Log) -> Footer:
        if not log.is_sealed or not log.length:
            raise SnapshotFormatError(f"snapshot {self._id}", "it has no end: it was cut, or never finished")
        (data,) = await log.read(log.length - 1, log.length - 1)
        try:
            footer = decode_footer(data, log.name)
        except ValueError as error:
            raise SnapshotFormatError(f"snapshot {self._id}", str(error)) from error
        if footer.records != log.length - 1:
            reason = f"its footer counts {footer.records} records, there are {log.length - 1}"
            raise SnapshotFormatError(f"snapshot {self._id}", reason)
        return footer

    @property
    def has_failed(self) -> bool:
        """Return whether it could not be opened."""
        return self.opening.done() and (self.opening.cancelled() or self.opening.exception() is not None)

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

    async def aclose(self) -> None:
        """Close the log, once it is open."""
        with suppress(Exception):  # the reader has the error
            await self.opening
            with suppress(LedgerError):
                await self.log.aclose()


@contextmanager
def snapshot_errors(snapshot_id: int) -> Iterator[None]:
    """Turn the errors of a damaged or missing log into those of a snapshot, which the tracker handles."""
    try:
        yield
    except LogCorruptedError as error:
        raise SnapshotFormatError(f"snapshot {snapshot_id}", str(error)) from error
    except LogNotFoundError as error:
        raise SnapshotNotFoundError(snapshot_id) from error


class SnapshotCache:
    """Opens each snapshot once, when it is read, and keeps at most ``max_open`` open beyond those in use."""

    def __init__(self, open_log: Callable[[int], Awaitable[Log]], max_open: int, tasks: TaskOwner) -> None:
        self._open_log = open_log
        self._max_open = max_open
        self._tasks = tasks
        self._snapshots: OrderedDict[int, OpenSnapshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._snapshots)

    @asynccontextmanager
    async def use(self, snapshot_id: int) -> AsyncIterator[OpenSnapshot]:
        """Give a snapshot to read from; if opening it fails, the next reader tries again."""
        snapshot = self._snapshots.get(snapshot_id)
        if snapshot is None or snapshot.has_failed:
            snapshot = self._snapshots[snapshot_id] = OpenSnapshot(snapshot_id, self._open_log, self._tasks)
        self._snapshots.move_to_end(snapshot_id)
        snapshot.users += 1
        try:
            await asyncio.shield(snapshot.opening)
            yield snapshot
        finally:
            snapshot.users -= 1
            self._left(snapshot_id, snapshot)

    def drop(self, snapshot_id: int) -> None:
        """Close a snapshot, or have its last reader close it."""
        snapshot = self._snapshots.pop(snapshot_id, None)
        if snapshot is not None and not snapshot.users:
            self._close(snapshot)

    def drop_all(self) -> None:
        """Drop every snapshot."""
        for snapshot_id in list(self._snapshots):
            self.drop(snapshot_id)

    def _left(self, snapshot_id: int, snapshot: OpenSnapshot) -> None:
        is_kept = self._snapshots.get(snapshot_id) is snapshot
        if is_kept and snapshot.has_failed:
            del self._snapshots[snapshot_id]
        elif not is_kept and not snapshot.users:
            self._close(snapshot)
        idle = [each for each, its in self._snapshots.items() if not its.users]
        for each in idle[: max(len(self._snapshots) - self._max_open, 0)]:
            self.drop(each)

    def _close(self, snapshot: OpenSnapshot) -> None:
        self._tasks.begin(snapshot.aclose())
