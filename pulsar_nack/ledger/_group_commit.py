"""Group commit: appends that arrive during a write share the next one.

No task is needed. An append puts its records into a queue and waits for a future; a write runs in a worker thread, and
its callback answers the futures and begins the next write. So a cancelled append cannot break a write: its future is
cancelled, and its records are dropped if their write has not begun, or written without anybody waiting. The queue holds
only appends whose callers wait, so the callers bound it, and waiting for the disk is the back-pressure.

The next write begins one turn of the loop later, so that a caller that was just answered can append again in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from .format import body_size

_GROUP: Final = 1 << 22


class _Waiting(NamedTuple):
    """A queued call: ``run`` is called with its records and those of the appends behind it.

    Without records it runs alone: the seal, or other work.

    :param is_kept: it runs even if nobody awaits it any more
    """

    records: Sequence[bytes]
    size: int
    done: asyncio.Future[int]
    run: Callable[[list[bytes]], int]
    is_kept: bool = False

    @property
    def is_alone(self) -> bool:
        return not self.records


class GroupCommit:
    """Gathers appends into writes, one at a time, in the threads of an executor.

    It has no reference to its log, so that the memory of a closed log is free without a run of the garbage collector.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queue: deque[_Waiting] = deque()
        self._is_busy = False

    def append(self, records: Sequence[bytes], write: Callable[[list[bytes]], int]) -> asyncio.Future[int]:
        """Append consecutive records; the result is the first's number, once they are durable.

        :param records: an empty sequence seals the log
        :param write: appends records durably and returns the number of the first, or seals; called in a thread. All
            appends that share a call get its error
        """
        loop = asyncio.get_running_loop()
        return self._put(_Waiting(records, body_size(records), loop.create_future(), write), loop)

    def run_after_pending(self, work: Callable[[], int]) -> asyncio.Future[int]:
        """Run ``work`` in a thread after all queued calls, even if nobody awaits the result."""
        loop = asyncio.get_running_loop()
        return self._put(_Waiting((), 0, loop.create_future(), lambda _: work(), is_kept=True), loop)

    def _put(self, waiting: _Waiting, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        self._queue.append(waiting)
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._begin, loop)
        return waiting.done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        group = self._next_group()
        if not group:
            self._is_busy = False
            return
        records = [record for waiting in group for record in waiting.records]
        try:
            running = loop.run_in_executor(self._executor, group[0].run, records)
        except RuntimeError as error:  # the executor was shut down: the store was closed, or the interpreter ends
            self._answer(loop, group, *_run_here(group[0], error))
            return
        running.add_done_callback(partial(self._done, loop, group))

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._queue:
            waiting = self._queue[0]
            if group and (waiting.is_alone or size + waiting.size > _GROUP):
                break
            self._queue.popleft()
            if waiting.done.done() and not waiting.is_kept:
                continue
            group.append(waiting)
            size += waiting.size
            if waiting.is_alone:
                break
        return group

    def _done(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting], finished: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if finished.cancelled() else finished.exception()
        self._answer(loop, group, error, 0 if error else finished.result())

    def _answer(
        self, loop: asyncio.AbstractEventLoop, group: list[_Waiting], error: BaseException | None, number: int
    ) -> None:
        for waiting in group:
            if not waiting.done.done():
                if error:
                    waiting.done.set_exception(error)
                else:
                    waiting.done.set_result(number)
            number += len(waiting.records)
        loop.call_soon(self._begin, loop)


def _run_here(waiting: _Waiting, refused: RuntimeError) -> tuple[BaseException | None, int]:
    """Run work that must run, such as closing a file, in this thread; return its error or result, or the refusal."""
    if not waiting.is_kept:
        return refused, 0
    try:
        return None, waiting.run([])
    except Exception as error:  # noqa: BLE001 - handed to the caller
        return error, 0
