"""Writing entries: one task, in the order of the calls, all that have gathered meanwhile at a time.

Cancelling a call gives up an entry that is not being written yet; what is being written is added, whoever waits for it.
A group is written as a whole or not at all; whoever waits for one that failed is told, and the next one is tried anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Final, NamedTuple

from ..errors import PulsarNackError
from ..ids import Position
from ..ledger import Log
from ._entry import Entry

_GROUP: Final = 1 << 22
_HEAD: Final = 4


class Place(NamedTuple):
    """Where to write: a ledger, its log, and how many more entries it takes."""

    ledger: int
    log: Log
    room: int


class Written(NamedTuple):
    """An entry that was written, and its bytes on storage."""

    position: Position
    entry: Entry
    size: int


class _Waiting(NamedTuple):
    data: bytes
    entry: Entry
    done: asyncio.Future[Position]


class EntryWriter:
    """Writes the entries of a topic.

    :param find_place: returns where to write next, with room for one entry at least
    :param on_written: called with what was written, before those who wait are told
    """

    def __init__(
        self, find_place: Callable[[], Awaitable[Place]], on_written: Callable[[Sequence[Written]], None]
    ) -> None:
        self._find_place = find_place
        self._on_written = on_written
        self._line: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, entry: Entry, data: bytes) -> Position:
        """Add an entry, durably; return where it is.

        :raises LedgerError: it could not be written; nothing was added
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Position] = loop.create_future()
        self._line.append(_Waiting(data, entry, done))
        if self._task is None:
            self._task = loop.create_task(self._work(), name="pulsar_nack.LocalTopic write")
        return await done

    async def idle(self) -> None:
        """Wait until nothing is left to be written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # who publishes in this round of the loop shares the write
            while self._line:
                await self._write_some()
        finally:
            self._task = None
            for waiting in self._line:
                waiting.done.cancel()

    async def _write_some(self) -> None:
        """Write as much of the line as fits into the ledger, and not too much at a time."""
        group: list[_Waiting] = []
        try:
            place = await self._find_place()
            group = self._take(place.room)
            first = await place.log.append_many([waiting.data for waiting in group]) if group else 0
        except BaseException as error:
            _answer(group or self._take(len(self._line)), error)
            if not isinstance(error, Exception):
                raise
            return
        positions = [Position(place.ledger, first + at) for at in range(len(group))]
        self._on_written(
            [Written(position, each.entry, len(each.data)) for position, each in zip(positions, group, strict=True)]
        )
        for position, waiting in zip(positions, group, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(position)

    def _take(self, most: int) -> list[_Waiting]:
        """Take from the line what is still wanted."""
        group: list[_Waiting] = []
        size = 0
        while self._line and len(group) < most:
            size += len(self._line[0].data) + _HEAD
            if group and size > _GROUP:
                break
            waiting = self._line.popleft()
            if not waiting.done.done():
                group.append(waiting)
        return group


def _answer(group: Sequence[_Waiting], error: BaseException) -> None:
    """Hand an error to several callers, who must not share a traceback."""
    for waiting in group:
        if waiting.done.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            waiting.done.cancel()
        else:
            waiting.done.set_exception(copy(error) if isinstance(error, PulsarNackError) else error)
