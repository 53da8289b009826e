"""Interfaces of an append-only log and its store, wherever the log lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

_O = TypeVar("_O")


class Record(NamedTuple):
    """A record of a log and its number; numbers begin at 0 without gaps."""

    number: int
    data: bytes


class LogDamage(NamedTuple):
    """Damage of a log: the file and the offset, which records it loses, and the reason.

    ``last`` is ``first - 1`` if no record is lost. Where damage reaches the end of the log, more records may be lost
    than are known; at least one counts as lost then.
    """

    file: str
    offset: int
    first: int
    last: int
    reason: str


@dataclass(slots=True, eq=False)
class LogState:
    """The size of a log, and whether it is sealed. Its writer is a subclass and keeps this up to date."""

    length: int = 0
    size: int = 0
    is_sealed: bool = False

    def append(self, records: Sequence[bytes]) -> int:
        """Append records durably and return the number of the first; without records, seal. One thread at a time."""
        raise NotImplementedError


@runtime_checkable
class Log(Protocol):
    """An append-only sequence of records with one writer.

    Without locks, as on object storage, the writer is the process that opened the log last; changes by another one
    raise
    :class:`~pulsar_nack.errors.LogFencedError`.

    A successful append survives a crash, a failed one has added nothing. A cancelled append is either dropped before it
    begins or still carried out. Concurrent appends are numbered in the order of the calls.
    """

    @property
    def name(self) -> str:
        """Return the log's name in its store."""
        ...

    @property
    def length(self) -> int:
        """Return how many records are durable, which is the number of the next one. O(1)."""
        ...

    @property
    def size(self) -> int:
        """Return about how many bytes the log takes on storage. O(1)."""
        ...

    @property
    def is_sealed(self) -> bool:
        """Return whether the log is sealed: nothing can be appended any more."""
        ...

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return the damaged parts, in order, of a log that was opened in spite of them; else nothing."""
        ...

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Append a record durably; return its number.

        :raises LogSealedError: the log is sealed
        :raises LogStorageError: it could not be written; nothing was added
        :raises InvalidArgumentError: no bytes, or more than a log takes at once (16 MiB)
        """
        ...

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append consecutive records, all or none, even after a crash; return the number of the first.

        The errors are those of :meth:`append`.
        """
        ...

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records ``first`` to ``last``, both included.

        :raises InvalidArgumentError: not all of them exist
        :raises LogCorruptedError: they are damaged
        """
        ...

    def records(self, first: int = 0) -> AsyncIterator[Record]:
        """Iterate over the records from ``first`` to the present end, with a bounded part in memory at a time."""
        ...

    async def seal(self) -> None:
        """Seal the log durably. Idempotent."""
        ...

    async def delete(self) -> None:
        """Delete the log and close it; after a crash or a failure it exists as a whole, or not at all."""
        ...

    async def aclose(self) -> None:
        """Finish the appends that were called, then release the log for other writers. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class LogStore(Protocol):
    """A folder or bucket of named logs."""

    async def create(self, name: str) -> Log:
        """Make an empty log durably, and open it for writing.

        :raises LogExistsError: a log has this name
        :raises LogLockedError: another process is making or deleting it
        :raises InvalidArgumentError: a log cannot have this name
        """
        ...

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        """Open a log for writing, or beside its writer for reading its durable records.

        :raises LogNotFoundError: there is no such log
        :raises LogLockedError: another process writes to it
        :raises LogFencedError: without locks: another process opened it at the same time, a moment later
        :raises LogCorruptedError: it is damaged
        """
        ...

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a log that nobody has open for writing; the errors are those of :meth:`open_log`."""
        ...

    async def aclose(self) -> None:
        """Close the logs that were opened here, then the store. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BlockingStore(Generic[_O]):
    """Base class of stores of logs whose calls block, for any thread; a log object is made of what one opens.

    The first three methods are for stores that lock each log: the holder of the locks is the owner.
    """

    def for_owner(self) -> Self:
        """Return what a new owner works with; with locks that is the same store."""
        return self

    def take_ownership(self, name: str) -> None:
        """Become the owner of a name; a store with locks has nothing to do."""

    def abandon(self) -> None:
        """Change nothing from now on, not even when storage answers an earlier call later.

        A store with locks has nothing to do: a log that is opened too late is closed, which unlocks it.
        """

    def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        raise NotImplementedError

    def create(self, log: str) -> _O:
        """Make a log and open it."""
        raise NotImplementedError

    def open_log(self, log: str, *, read_only: bool) -> _O:
        """Open an existing log."""
        raise NotImplementedError

    def delete(self, log: str) -> None:
        """Delete a log."""
        raise NotImplementedError
