"""The async shell of a log and of a store of logs, over blocking work in a few threads of the store's own.

The threads are an executor of a fixed size, not ``anyio.to_thread``: a write has to go on, and be answered, when the
task that began it is cancelled, also by a plain ``task.cancel()``, from which anyio's shields do not protect.

- A log is open or closed. Appends, the seal and the end go through one line in the order of the calls
  (:mod:`._commit`); reads go past it, and see only what is durable.
- ``length`` and ``is_sealed`` change in the writing thread when that is durable, a little before the answer.
- A failed append leaves the log usable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from types import TracebackType
from typing import Final, ParamSpec, Protocol, Self, TypeVar

from .._check import check_integer, check_list
from .._lifetime import LoopBound
from ..errors import ClosedError, InvalidArgumentError, LedgerError, LogSealedError, LogStorageError
from ._commit import GroupCommit
from ._home import explain, storage_errors
from ._protocol import Record
from ._record import MAX_BODY, body_size

_T = TypeVar("_T")
_P = ParamSpec("_P")

_CHUNK: Final = 1 << 20
_ALL: Final = 1 << 62
READ_ONLY: Final = "it is open for reading only"
DAMAGED: Final = "it is damaged, and open for reading only"


class LogBackend(Protocol):
    """A log as its home has it; blocking. One thread writes at a time, any reads."""

    @property
    def name(self) -> str:
        """Return the name in its store."""
        ...

    @property
    def length(self) -> int:
        """Return how many records are durable."""
        ...

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        ...

    @property
    def is_sealed(self) -> bool:
        """Return whether it is sealed."""
        ...

    @property
    def is_writable(self) -> bool:
        """Return whether it was opened for writing."""
        ...

    @property
    def why_read_only(self) -> str:
        """Return why nothing can be added to one that is not writable."""
        ...

    @property
    def place(self) -> str:
        """Return the folder or the address of its store, for errors."""
        ...

    def write(self, records: Sequence[bytes]) -> int:
        """Add records, durably, and return the number of the first; without records, seal."""
        ...

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit; those before damage, if there are."""
        ...

    def close(self) -> None:
        """Give up what is open."""
        ...

    def delete(self) -> None:
        """Delete the log, and give up what is open."""
        ...


class LogShell(LoopBound):
    """A :class:`~pulsar_nack.ledger.Log` over its blocking work."""

    def __init__(self, backend: LogBackend, executor: ThreadPoolExecutor) -> None:
        self._backend = backend
        self._executor = executor
        self._ended: asyncio.Future[int] | None = None
        self._commit = GroupCommit(backend.write, self._explain, executor)

    @property
    def name(self) -> str:
        """Return the name in its store."""
        return self._backend.name

    @property
    def length(self) -> int:
        """Return how many records are durable. O(1)."""
        return self._backend.length

    @property
    def size(self) -> int:
        """Return about how many bytes it takes on storage. O(1)."""
        return self._backend.size

    @property
    def is_sealed(self) -> bool:
        """Return whether nothing can be added any more."""
        return self._backend.is_sealed

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, and is done with that."""
        return self._ended is not None and self._ended.done()

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Add a record, durably; return its number."""
        return await self.append_many((data,))

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        """Add records next to each other, all or none; return the number of the first."""
        check_list("records", records, "a list of bytes")
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
            check_integer(field, value, 0, self.length - 1)
        return await self._run(self._read_all, first, last)

    async def records(self, first: int = 0) -> AsyncIterator[Record]:
        """Go through the records from ``first`` to what is the end at that time, about 1 MiB in memory at a time."""
        check_integer("first", first, 0, _ALL)
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
        """Remove the log, and close it whether that could be done or not. A reader takes it over first."""
        self._check_open()
        await asyncio.shield(self._end(self._backend.delete))

    async def aclose(self) -> None:
        """Let the appends that were called be carried out, and give up the writer's place. Idempotent."""
        if self._ended is None:
            self._check_loop(f"log {self.name}")
        ended = self.close_soon()
        await asyncio.wait([ended])
        error = ended.exception()
        if error is not None and not isinstance(error, LedgerError):  # a failed delete has told its caller
            raise error

    def close_soon(self) -> asyncio.Future[int]:
        """Begin closing; it goes on whoever waits for it or does not."""
        return self._ended or self._end(self._backend.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _end(self, work: Callable[[], None]) -> asyncio.Future[int]:
        def to_the_end() -> int:
            work()
            return 0

        self._ended = self._commit.finish(to_the_end)
        return self._ended

    def _explain(self, error: BaseException) -> BaseException:
        """Return an error for one of several callers, who must not share a traceback."""
        if not isinstance(error, OSError | LedgerError):
            return error
        ours = explain(error, self.name, "append", self._backend.place) if isinstance(error, OSError) else copy(error)
        ours.__cause__ = error
        return ours

    def _read(self, first: int, last: int, limit: int) -> list[bytes]:
        with storage_errors(self.name, "read it", self._backend.place):
            return self._backend.read(first, last, limit)

    def _read_all(self, first: int, last: int) -> list[bytes]:
        found: list[bytes] = []
        while first + len(found) <= last:
            found += self._read(first + len(found), last, _ALL)
        return found

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args, **kwargs))

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ClosedError(f"log {self.name}")
        self._check_loop(f"log {self.name}")

    def _check_writable(self) -> None:
        self._check_open()
        if not self._backend.is_writable:
            raise LogStorageError(self.name, "append", self._backend.why_read_only, folder=self._backend.place)
        if self.is_sealed:
            raise LogSealedError(self.name)


def _check_record(data: object) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError("data", data, "bytes")
    return bytes(data)
