"""Writing entries: one task, in the order of the calls; calls that arrive during a write share the next one.

Cancelling a call withdraws an entry that is not being written yet; one that is being written is added. A group is
written as a whole or not at all; an error is raised in all of its callers, and the next group is tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from .._tasks import set_error
from ..ids import Position
from ..ledger import Log
from ._entry import Entry

_GROUP: Final = 1 << 22
_HEAD: Final = 4


class WritePlace(NamedTuple):
    """Where to write: a ledger, its log, and for how many more entries it has room."""

    ledger: int
    log: Log
    room: int


class QueuedEntry(NamedTuple):
    """An entry to be written, and its bytes on storage."""

    data: bytes
    entry: Entry
    done: asyncio.Future[Position]


class EntryWriter:
    """Writes the entries of a topic.

    :param find_place: returns where to write next, with room for one entry at least
    :param on_written: called with the written entries and their positions, before their calls return
    """

    def __init__(
        self,
        find_place: Callable[[], Awaitable[WritePlace]],
        on_written: Callable[[Sequence[QueuedEntry], Sequence[Position]], None],
    ) -> None:
        self._find_place = find_place
        self._on_written = on_written
        self._queue: deque[QueuedEntry] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, entry: Entry, data: bytes) -> Position:
        """Add an entry durably; return its position.

        :raises LedgerError: the entry could not be written; nothing was added
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Position] = loop.create_future()
        self._queue.append(QueuedEntry(data, entry, done))
        if self._task is None:
            self._task = loop.create_task(self._work(), name="pulsar_nack.LocalTopic write")
        return await done

    async def wait_until_idle(self) -> None:
        """Wait until no entry is left to be written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # calls in this turn of the loop share the write
            while self._queue:
                await self._write_some()
        finally:
            self._task = None
            for waiting in self._queue:
                waiting.done.cancel()

    async def _write_some(self) -> None:
        """Write as many queued entries as fit into the ledger, and not too many at a time."""
        group: list[QueuedEntry] = []
        try:
            place = await self._find_place()
            group = self._take(place.room)
            first = await place.log.append_many([waiting.data for waiting in group]) if group else 0
        except BaseException as error:
            for waiting in group or self._take(len(self._queue)):
                set_error(waiting.done, error)
            if not isinstance(error, Exception):
                raise
            return
        positions = [Position(place.ledger, first + at) for at in range(len(group))]
        self._on_written(group, positions)
        for position, waiting in zip(positions, group, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(position)

    def _take(self, limit: int) -> list[QueuedEntry]:
        """Take entries from the queue, without those that were withdrawn."""
        group: list[QueuedEntry] = []
        size = 0
        while self._queue and len(group) < limit:
            size += len(self._queue[0].data) + _HEAD
            if group and size > _GROUP:
                break
            waiting = self._queue.popleft()
            if not waiting.done.done():
                group.append(waiting)
        return group
