"""Logs on object storage: what the shell of :mod:`._shell` needs, blocking."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import LogNotFoundError, LogStorageError
from ._object_home import ObjectHome, Opened
from ._shell import READ_ONLY, LogShell


class ObjectBackend:
    """A log on object storage."""

    def __init__(self, home: ObjectHome, opened: Opened) -> None:
        self._home = home
        self._opened = opened
        self._writer = opened.writer

    @property
    def name(self) -> str:
        """Return the name in its store."""
        return self._opened.name

    @property
    def length(self) -> int:
        """Return how many records are durable."""
        return self._opened.state.manifest.length if self._writer is None else self._writer.length

    @property
    def size(self) -> int:
        """Return about how many bytes its objects have."""
        return self._opened.state.size if self._writer is None else self._writer.size

    @property
    def is_sealed(self) -> bool:
        """Return whether it is sealed."""
        return self._opened.state.manifest.is_sealed if self._writer is None else self._writer.is_sealed

    @property
    def is_writable(self) -> bool:
        """Return whether it was opened for writing."""
        return self._writer is not None

    @property
    def why_read_only(self) -> str:
        """Return why nothing can be added to it."""
        return READ_ONLY

    @property
    def place(self) -> str:
        """Return the address of its store, for errors."""
        return self._home.place

    def write(self, records: Sequence[bytes]) -> int:
        """Add records; without any, seal."""
        if self._writer is None:
            raise LogStorageError(self.name, "append", self.why_read_only, folder=self.place)
        return self._writer.append(records)

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit."""
        try:
            return self._opened.reader.read(first, last, limit)
        except LogNotFoundError:
            self._home.check_claim(self.name)
            raise

    def close(self) -> None:
        """Do nothing: there is nothing to give up, and who opens the log next takes it over."""

    def delete(self) -> None:
        """Delete it; one open for reading is taken over first."""
        self._home.delete(self.name, self._opened.entry)


class ObjectLog(LogShell):
    """A :class:`~pulsar_nack.ledger.Log` on object storage, as a store opens it.

    Whoever opens it for writing later takes it over: appending, sealing and deleting raise
    :class:`~pulsar_nack.LogFencedError` here from then on, and nothing of them counts.
    """
