"""Logs in folders of local files: the async shell over blocking file work in a few threads of the store's own.

The threads are an executor of a fixed size, not ``anyio.to_thread``: a write has to go on, and be answered, when the
task that began it is cancelled, also by a plain ``task.cancel()``, from which anyio's shields do not protect.

- A :class:`LocalLog` is open or closed. Appends, the seal and the end go through one line in the order of the calls
  (:mod:`._commit`); reads go past it, each with a descriptor of its own, and see only what is durable.
- ``length`` and ``is_sealed`` change in the writing thread after the sync, a little before the caller is answered.
- A failed append leaves the log usable (:mod:`._writer`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from ..errors import ClosedError, InvalidArgumentError, LedgerError, LogSealedError, LogStorageError
from ._commit import GroupCommit
from ._home import Home, Opened, explain, storage_errors
from ._protocol import Record
from ._record import MAX_BODY, body_size
from ._segment import cost

_T = TypeVar("_T")
_P = ParamSpec("_P")

_CHUNK: Final = 1 << 20
_ALL: Final = 1 << 62


class LocalLog:
    """A :class:`~pulsar_nack.ledger.Log` in a folder of its own, as a store opens it."""

    def __init__(self, home: Home, opened: Opened, executor: ThreadPoolExecutor) -> None:
        self._home = home
        self._opened = opened
        self._writer = opened.writer
        self._executor = executor
        self._ended: asyncio.Future[int] | None = None
        self._commit = GroupCommit(self._write, self._explain, executor)

    @property
    def name(self) -> str:
        """Return the name in its store."""
        return self._opened.name

    @property
    def length(self) -> int:
        """Return how many records are durable. O(1)."""
        return self._opened.tail.length if self._writer is None else self._writer.length

    @property
    def size(self) -> int:
        """Return about how many bytes its files have. O(1)."""
        return self._opened.size if self._writer is None else self._writer.size

    @property
    def is_sealed(self) -> bool:
        """Return whether nothing can be added any more."""
        return self._opened.tail.is_sealed if self._writer is None else self._writer.is_sealed

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, and is done with that."""
        return self._ended is not None and self._ended.done()

    @property
    def cut(self) -> int:
        """Return how many bytes of a torn write were cut off when the log was opened."""
        return 0 if self._writer is None else self._writer.cut

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Add a record, durably; return its number."""
        return await self.append_many((data,))

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        """Add records next to each other, all or none; return the number of the first."""
        checked = [_check_record(record) for record in records]
        if (size := body_size(checked)) > MAX_BODY:
            raise InvalidArgumentError(
                "records", f"{size:,} bytes", f"at most {MAX_BODY:,} bytes, 4 for each record among them"
            )
        self._check_writable()
        if not checked:
            return self.length
        return await self._commit.append(checked)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records ``first`` to ``last``, both included."""
        self._check_open()
        for field, value in (("first", first), ("last", last)):
            check_number(field, value, 0, self.length - 1)
        return await self._run(self._read, first, last, _ALL)

    async def records(self, first: int = 0) -> AsyncIterator[Record]:
        """Go through the records from ``first`` to what is the end at that time, about 1 MiB in memory at a time."""
        check_number("first", first, 0, _ALL)
        while first < self.length:
            self._check_open()
            for data in await self._run(self._read, first, self.length - 1, _CHUNK):
                yield Record(first, data)
                first += 1

    async def seal(self) -> None:
        """End the log for good, durably; again is harmless."""
        self._check_open()
        if not self.is_sealed:
            self._check_writable()
            await self._commit.append(())

    async def delete(self) -> None:
        """Remove the log, and close it whether that could be done or not. One open for reading takes the lock first."""
        self._check_open()
        await asyncio.shield(self._end(self._delete))

    async def aclose(self) -> None:
        """Let the appends that were called be carried out, and give up the lock. Idempotent."""
        ended = self.close_soon()
        await asyncio.wait([ended])
        error = ended.exception()
        if error is not None and not isinstance(error, LedgerError):  # a failed delete has told its caller
            raise error

    def close_soon(self) -> asyncio.Future[int]:
        """Begin closing; it goes on whoever waits for it or does not."""
        return self._ended or self._end(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _end(self, work: Callable[[], int]) -> asyncio.Future[int]:
        self._ended = self._commit.finish(work)
        return self._ended

    def _close(self) -> int:
        self._home.close(self._opened)
        return 0

    def _delete(self) -> int:
        if self._writer is not None:
            self._writer.close()
        self._home.delete(self.name, self._opened.lock)
        return 0

    def _write(self, records: list[bytes]) -> int:
        if self._writer is None:
            raise LogStorageError(self.name, "append", "it is open for reading only")
        return self._writer.append(records)

    def _explain(self, error: BaseException) -> BaseException:
        """Return an error for one of several callers, who must not share a traceback."""
        if not isinstance(error, OSError | LedgerError):
            return error
        ours = explain(error, self.name, "append") if isinstance(error, OSError) else copy(error)
        ours.__cause__ = error
        return ours

    def _read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit. Runs in a thread."""
        segments = list(self._opened.segments)
        at = bisect_right(segments, first, key=lambda segment: segment.first) - 1
        found: list[bytes] = []
        with storage_errors(self.name, "read it"):
            while first <= last and limit > 0:
                end = last if at + 1 == len(segments) else min(last, segments[at + 1].first - 1)
                part = segments[at].read(first, end, limit)
                found += part
                first += len(part)
                limit = limit - sum(map(cost, part)) if first > end else 0
                at += 1
        return found

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ClosedError(f"log {self.name}")

    def _check_writable(self) -> None:
        self._check_open()
        if self._writer is None:
            raise LogStorageError(self.name, "append", "it is open for reading only")
        if self.is_sealed:
            raise LogSealedError(self.name)


def _check_record(data: object) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError("data", data, "bytes")
    return bytes(data)


def check_number(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number in this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(field, value, f"a whole number from {low:,} to {high:,}")
