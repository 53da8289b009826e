"""The asyncio side of a log: blocking file work or requests run in a few threads that the store owns.

The threads are an executor of a fixed size, not ``anyio.to_thread``: a write has to continue, and be answered, when the
task that began it is cancelled, also by a plain ``task.cancel()``, from which anyio's shields do not protect.

- A log is open or closed. Appends, the seal and the close pass through one queue in the order of the calls. Reads
  bypass the queue and see only what is durable.
- ``length`` and ``is_sealed`` change in the writing thread once that is durable, shortly before the caller is answered.
- A failed append leaves the log usable.

*Group commit.* Appends that arrive during a write share the next one. No task is needed. An append puts its records
into the queue and waits for a future; a write runs in a thread, and its callback answers the futures and begins the
next write. So a cancelled append cannot break a write: its future is cancelled, and its records are dropped if their
write has not begun, or written without anybody waiting. The queue holds only appends whose callers wait, so the callers
bound it, and waiting for the disk is the back-pressure. The next write begins one turn of the loop later, so that a
caller that was just answered can append again in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import copy
from functools import partial
from typing import Final, NamedTuple, ParamSpec, TypeVar

from .._check import check_integer, check_list
from .._lifetime import LoopBound
from ..errors import InvalidArgumentError, LedgerError, LogSealedError, LogStorageError
from ._protocol import LogDamage, LogState, Record
from .files import as_storage_error, storage_errors
from .format import MAX_BODY, body_size

_T = TypeVar("_T")
_P = ParamSpec("_P")

_CHUNK: Final = 1 << 20
_GROUP: Final = 1 << 22
_ALL: Final = 1 << 62
READ_ONLY: Final = "it is open for reading only"
DAMAGED: Final = "it is damaged, and open for reading only"


class AsyncLog(LoopBound):
    """A :class:`~pulsar_nack.ledger.Log` over blocking work, which subclasses implement in three methods.

    :param location: the folder or the URL of its store, for errors
    :param state: the log's writer, or what a reader found
    :param why_read_only: why nothing can be appended; empty: the log is open for writing
    """

    def __init__(
        self, name: str, location: str, state: LogState, executor: ThreadPoolExecutor, why_read_only: str
    ) -> None:
        self._name = name
        self._what = f"log {name}"
        self._location = location
        self._state = state
        self._executor = executor
        self._why_read_only = why_read_only
        self._closing: asyncio.Future[int] | None = None
        self._commit = GroupCommit(executor)

    def _read_some(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one and about ``limit`` bytes at most; only those before damage, if any."""
        raise NotImplementedError

    def _close(self) -> None:
        """Release files and locks."""
        raise NotImplementedError

    def _delete(self) -> None:
        """Delete the log, and release files and locks."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Return the log's name in its store."""
        return self._name

    @property
    def length(self) -> int:
        """Return how many records are durable. O(1)."""
        return self._state.length

    @property
    def size(self) -> int:
        """Return about how many bytes the log takes on storage. O(1)."""
        return self._state.size

    @property
    def is_sealed(self) -> bool:
        """Return whether the log is sealed: nothing can be appended any more."""
        return self._state.is_sealed

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return the damage, if the log was opened in spite of it."""
        return ()

    @property
    def is_closed(self) -> bool:
        """Return whether closing has finished."""
        return self._closing is not None and self._closing.done()

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Append a record durably; return its number."""
        return await self.append_many((data,))

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append consecutive records, all or none; return the number of the first."""
        check_list("records", records, "a list of bytes")
        checked = [_check_record(record) for record in records]
        if (size := body_size(checked)) > MAX_BODY:
            raise InvalidArgumentError(
                "records", f"{size:,} bytes", f"at most {MAX_BODY:,} bytes, 4 for each record among them"
            )
        self._check_writable()
        if not checked:
            return self.length
        return await self._append(checked)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records ``first`` to ``last``, both included."""
        self._ensure_open()
        for field, value in (("first", first), ("last", last)):
            check_integer(field, value, 0, self.length - 1)
        return await self._run(self._read_all, first, last)

    async def records(self, first: int = 0) -> AsyncIterator[Record]:
        """Iterate over the records from ``first`` to the present end, with about 1 MiB in memory at a time."""
        check_integer("first", first, 0, _ALL)
        while first < self.length:
            self._ensure_open()
            for data in await self._run(self._read, first, self.length - 1, _CHUNK):
                yield Record(first, data)
                first += 1

    async def seal(self) -> None:
        """Seal the log durably. Idempotent."""
        self._ensure_open()
        if not self.is_sealed:
            self._check_writable()
            await self._append(())

    async def delete(self) -> None:
        """Delete the log, and close it even if that fails. A reader takes the log over first."""
        self._ensure_open()
        await asyncio.shield(self._end(self._delete))

    async def aclose(self) -> None:
        """Finish the appends that were called, then release the log for other writers. Idempotent."""
        if self._closing is None:
            self._check_loop()
        closing = self.close_soon()
        await asyncio.wait([closing])
        error = closing.exception()
        if error is not None and not isinstance(error, LedgerError):  # a failed delete has raised in its caller
            raise error

    def close_soon(self) -> asyncio.Future[int]:
        """Begin to close the log; this continues even if nobody awaits it."""
        return self._closing or self._end(self._close)

    def _end(self, work: Callable[[], None]) -> asyncio.Future[int]:
        def end() -> int:
            work()
            return 0

        self._is_closed = True
        self._closing = self._commit.run_after_pending(end)
        return self._closing

    async def _append(self, records: Sequence[bytes]) -> int:
        """Append or seal in turn; each of several callers gets a new error, as they must not share a traceback."""
        try:
            return await self._commit.append(records, self._state.append)
        except OSError as error:
            raise as_storage_error(error, self.name, "append", self._location) from error
        except LedgerError as error:
            raise copy(error) from error

    def _read(self, first: int, last: int, limit: int) -> list[bytes]:
        with storage_errors(self.name, "read it", self._location):
            return self._read_some(first, last, limit)

    def _read_all(self, first: int, last: int) -> list[bytes]:
        found: list[bytes] = []
        while first + len(found) <= last:
            found += self._read(first + len(found), last, _ALL)
        return found

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    def _check_writable(self) -> None:
        self._ensure_open()
        if self._why_read_only:
            raise LogStorageError(self.name, "append", self._why_read_only, folder=self._location)
        if self.is_sealed:
            raise LogSealedError(self.name)


def _check_record(data: object) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError("data", data, "bytes")
    return bytes(data)


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
