"""What the trackers and cursors need of an append-only log, wherever it lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable


class Record(NamedTuple):
    """A record of a log and its number; numbers begin at 0 and have no gaps."""

    number: int
    data: bytes


class LogDamage(NamedTuple):
    """Damage of a log: in which of its files, at which byte, which records are lost by it, and what is wrong.

    ``last`` is ``first - 1`` when none is lost. Where the damage reaches the end of the log there may be more than are
    known of: at least one counts as lost then.
    """

    file: str
    offset: int
    first: int
    last: int
    reason: str


@runtime_checkable
class Log(Protocol):
    """An append-only sequence of records with one writer.

    Where there are no locks, as on object storage, that is the one who opened it last; the changes of another one raise
    :class:`~pulsar_nack.LogFencedError`.

    An append that returned is there after a crash. One that failed is not in the log. One that was cancelled has not
    begun, or is carried out all the same. Concurrent appends are numbered in the order in which they were called.
    """

    @property
    def name(self) -> str:
        """Return the name in its store."""
        ...

    @property
    def length(self) -> int:
        """Return how many records are durable, which is the number of the next one. O(1)."""
        ...

    @property
    def size(self) -> int:
        """Return about how many bytes it takes on storage. O(1)."""
        ...

    @property
    def is_sealed(self) -> bool:
        """Return whether nothing can be added any more."""
        ...

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        """Add a record, durably; return its number.

        :raises LogSealedError: the log was sealed
        :raises LogStorageError: it could not be written; nothing was added
        :raises InvalidArgumentError: no bytes, or more than a log takes at once (16 MiB)
        """
        ...

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        """Add records next to each other, all or none, also after a crash; return the number of the first.

        The errors are those of :meth:`append`.
        """
        ...

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records ``first`` to ``last``, both included.

        :raises InvalidArgumentError: they are not all there
        :raises LogCorruptedError: they are damaged
        """
        ...

    def records(self, first: int = 0) -> AsyncIterator[Record]:
        """Go through the records from ``first`` to what is the end at that time, a bounded part in memory at a time."""
        ...

    async def seal(self) -> None:
        """End the log for good, durably; again is harmless."""
        ...

    async def delete(self) -> None:
        """Remove the log and close it; after a crash, or when this fails, it is there as a whole, or not at all."""
        ...

    async def aclose(self) -> None:
        """Let the appends that were called be carried out, and give up the writer's place. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class LogStore(Protocol):
    """A folder or bucket of logs with names."""

    async def create(self, name: str) -> Log:
        """Make an empty log and open it for writing; it is durable when this returns.

        :raises LogExistsError: there is one of this name
        :raises LogLockedError: somebody else makes or deletes it at this time
        :raises InvalidArgumentError: this cannot be a name
        """
        ...

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        """Open a log for writing, or for reading what is durable at this time, beside a writer.

        :raises LogNotFoundError: there is none
        :raises LogLockedError: somebody else writes to it
        :raises LogFencedError: where there are no locks: somebody else opened it at the same time, a moment later
        :raises LogCorruptedError: it is damaged
        """
        ...

    async def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a log that nobody has open for writing; the errors are those of :meth:`open_log`."""
        ...

    async def aclose(self) -> None:
        """Close the logs that it opened, and then itself. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class DamagedLog(Log, Protocol):
    """A damaged log: its writer's place is taken, but it cannot be added to. What is whole of it can be read."""

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return what is damaged, in order; nothing for a log that turned out to be whole."""
        ...


@runtime_checkable
class SalvagingStore(Protocol):
    """A store of logs that can open damaged ones."""

    async def open_damaged(self, name: str) -> DamagedLog:
        """Open a log, as its only owner, for reading what is whole of it; nothing of it is changed.

        ``length`` counts lost records too, as far as they are known. Reading one of them raises
        :class:`~pulsar_nack.LogCorruptedError`; :meth:`Log.records` gives those before it, and then raises that.

        :raises LogNotFoundError: there is none
        :raises LogLockedError: somebody else writes to it
        :raises LogVersionError: a later release wrote it
        :raises LogCorruptedError: nothing of it can be read
        """
        ...
