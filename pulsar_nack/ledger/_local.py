"""Logs in folders of local files: what the shell of :mod:`._shell` needs, blocking."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ..errors import LogCorruptedError, LogStorageError
from ._home import Home, Opened
from ._names import segment_name
from ._protocol import LogDamage
from ._segment import cost
from ._shell import DAMAGED, READ_ONLY, LogShell


class LocalBackend:
    """A log in a folder of its own."""

    def __init__(self, home: Home, opened: Opened) -> None:
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
        return self._opened.tail.length if self._writer is None else self._writer.length

    @property
    def size(self) -> int:
        """Return about how many bytes its files have."""
        return self._opened.size if self._writer is None else self._writer.size

    @property
    def is_sealed(self) -> bool:
        """Return whether it is sealed."""
        return self._opened.tail.is_sealed if self._writer is None else self._writer.is_sealed

    @property
    def is_writable(self) -> bool:
        """Return whether it was opened for writing."""
        return self._writer is not None

    @property
    def why_read_only(self) -> str:
        """Return why nothing can be added to it."""
        return DAMAGED if self._opened.damage else READ_ONLY

    @property
    def cut(self) -> int:
        """Return how many bytes of a torn write were cut off when the log was opened."""
        return 0 if self._writer is None else self._writer.cut

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return what is damaged, when it was opened in spite of that."""
        return self._opened.damage

    @property
    def place(self) -> str:
        """Return the folder of its store, for errors."""
        return self._home.place

    def write(self, records: Sequence[bytes]) -> int:
        """Add records; without any, seal."""
        if self._writer is None:
            raise LogStorageError(self.name, "append", self.why_read_only, folder=self.place)
        return self._writer.append(records)

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit."""
        segments = list(self._opened.segments)
        at = bisect_right(segments, first, key=lambda segment: segment.first) - 1
        if at < 0:
            raise LogCorruptedError(self.name, segment_name(first), 0, "the file is missing")
        found: list[bytes] = []
        while first <= last and limit > 0:
            stop = self.length if at + 1 == len(segments) else segments[at + 1].first
            end = min(last, stop - 1)
            part = segments[at].read(first, end, limit, stop)
            found += part
            first += len(part)
            limit = limit - sum(map(cost, part)) if first > end else 0
            at += 1
        return found

    def close(self) -> None:
        """Close its files and give up the lock."""
        self._home.close(self._opened)

    def delete(self) -> None:
        """Delete it; one open for reading takes the lock first."""
        if self._writer is not None:
            self._writer.close()
        self._home.delete(self.name, self._opened.lock)


class LocalLog(LogShell):
    """A :class:`~pulsar_nack.ledger.Log` in a folder of its own, as a store opens it."""

    def __init__(self, backend: LocalBackend, executor: ThreadPoolExecutor) -> None:
        super().__init__(backend, executor)
        self._local = backend

    @property
    def cut(self) -> int:
        """Return how many bytes of a torn write were cut off when the log was opened."""
        return self._local.cut

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return what is damaged, when it was opened in spite of that."""
        return self._local.damage
