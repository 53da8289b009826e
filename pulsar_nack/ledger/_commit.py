"""Group commit: while one write is under way, the appends that come meanwhile gather for the next one.

No task is needed. An append puts its records in line and waits for a future; a write runs in a worker thread, and its
callback answers the futures and begins the next write. So a cancelled append cannot break a write: its future is
cancelled, and it is left out if its write has not begun, or carried out with nobody listening. Nothing is in line whose
caller does not wait for it, hence the line is bounded by the callers, and waiting for the disk is the back-pressure.

The next write begins one round of the loop later: whoever was just answered and appends again still gets into it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from ._record import body_size

_GROUP: Final = 1 << 22


class _Waiting(NamedTuple):
    """Something in line: records to add, without records the seal, or ``work`` to do when all before it is done."""

    records: Sequence[bytes]
    size: int
    done: asyncio.Future[int]
    work: Callable[[], int] | None = None

    @property
    def stands_alone(self) -> bool:
        return not self.records


class GroupCommit:
    """Gathers appends into writes, one at a time.

    :param write: adds records durably and returns the number of the first, or seals; called in a thread
    :param explain: makes the error that appends raise from what ``write`` raised, a new one for each
    :param executor: where ``write`` is called
    """

    def __init__(
        self, write: Callable[[list[bytes]], int], explain: Callable[[BaseException], BaseException], executor: Executor
    ) -> None:
        self._write = write
        self._explain = explain
        self._executor = executor
        self._line: deque[_Waiting] = deque()
        self._is_busy = False

    async def append(self, records: Sequence[bytes]) -> int:
        """Add records next to each other; return the number of the first when they are durable. None: seal."""
        loop = asyncio.get_running_loop()
        return await self._put(_Waiting(records, body_size(records), loop.create_future()), loop)

    def finish(self, work: Callable[[], int]) -> asyncio.Future[int]:
        """Do this in a thread when all that is in line has been done; it is done whoever waits or does not."""
        loop = asyncio.get_running_loop()
        return self._put(_Waiting((), 0, loop.create_future(), work), loop)

    def _put(self, waiting: _Waiting, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        self._line.append(waiting)
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._begin, loop)
        return waiting.done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        group = self._take()
        if not group:
            self._is_busy = False
            return
        records = [record for waiting in group for record in waiting.records]
        work = group[0].work or partial(self._write, records)
        try:
            under_way = loop.run_in_executor(self._executor, work)
        except RuntimeError as error:  # the executor was shut down: the store was closed, or the interpreter ends
            self._answer(loop, group, *_do_here(group[0].work, error))
            return
        under_way.add_done_callback(partial(self._done, loop, group))

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._line:
            waiting = self._line[0]
            if group and (waiting.stands_alone or size + waiting.size > _GROUP):
                break
            self._line.popleft()
            if waiting.done.done() and not waiting.work:
                continue
            group.append(waiting)
            size += waiting.size
            if waiting.stands_alone:
                break
        return group

    def _done(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting], under_way: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if under_way.cancelled() else under_way.exception()
        self._answer(loop, group, error, 0 if error else under_way.result())

    def _answer(
        self, loop: asyncio.AbstractEventLoop, group: list[_Waiting], error: BaseException | None, number: int
    ) -> None:
        for waiting in group:
            if not waiting.done.done():
                if error:
                    waiting.done.set_exception(self._explain(error))
                else:
                    waiting.done.set_result(number)
            number += len(waiting.records)
        loop.call_soon(self._begin, loop)


def _do_here(work: Callable[[], int] | None, refused: RuntimeError) -> tuple[BaseException | None, int]:
    """Do what has to be done all the same, as to close what is open; return its error or result, else the refusal."""
    if work is None:
        return refused, 0
    try:
        return None, work()
    except Exception as error:  # noqa: BLE001 - handed to whoever waits
        return error, 0
