"""File operations that fail or crash when they are told to: the injector for tests of everything durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from ._files import Files
from ._memory_files import MemoryFiles

Watcher = Callable[[Literal["before", "after"], str], object]


class SimulatedCrash(BaseException):
    """The process ended here, for the code under test; not an Exception, so nothing handles it."""


class _Failure(NamedTuple):
    operations: frozenset[str]
    number: int
    begin: int
    end: float


class FaultyFiles:
    """Files over others, of which any operation can be made to fail or to be the last one.

    Operations are counted from 0: create, open, read, write, truncate, sync, sync_folder, rename, remove, make_folder,
    remove_folder, names, lock. ``history`` names those that were begun.

    Over :class:`MemoryFiles` a failed sync leaves the content in doubt, as a real one does, and the files as they may
    be found after a crash are ``inner.after_crash()``. Over real files a crash leaves all that was written.
    """

    def __init__(self, inner: Files, *, most_per_write: int | None = None) -> None:
        self.inner = inner
        self.history: list[str] = []
        self.is_crashed = False
        self._most_per_write = most_per_write
        self._failures: list[_Failure] = []
        self._crash_at: int | None = None
        self._crash_after = False
        self._descriptors: set[int] = set()
        self._watcher: Watcher | None = None

    def fail(self, number: int, *operations: str, skip: int = 0, times: float = 1) -> None:
        """Let operations fail with an error of the system.

        :param number: an errno
        :param operations: which ones; without any, all
        :param skip: how many of them pass first, counted from now
        :param times: how many fail then; ``math.inf``: all from then on
        """
        chosen = frozenset(operations)
        begin = skip + self._count(chosen)
        self._failures.append(_Failure(chosen, number, begin, begin + times))

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._failures.clear()

    def crash(self, at: int, *, after: bool = False) -> None:
        """Crash at the operation with this number: before it is done, or after."""
        self._crash_at = at
        self._crash_after = after

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher`` before each operation, and after each one that succeeded.

        :param watcher: gets "before" or "after", and the name of the operation
        """
        self._watcher = watcher

    def release(self) -> None:
        """Close what is open, as the end of a process does; for real files after a crash."""
        for descriptor in list(self._descriptors):
            self.close(descriptor)

    def create(self, path: Path) -> int:
        """Make a file, or empty it."""
        with self._step("create"):
            return self._opened(self.inner.create(path))

    def open(self, path: Path, *, writable: bool = False) -> int:
        """Open a file."""
        with self._step("open"):
            return self._opened(self.inner.open(path, writable=writable))

    def close(self, descriptor: int) -> None:
        """Close a file; never fails."""
        self._descriptors.discard(descriptor)
        if not (self.is_crashed and isinstance(self.inner, MemoryFiles)):
            with suppress(OSError):
                self.inner.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the size; never fails."""
        return self.inner.size(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read."""
        with self._step("read"):
            return self.inner.read(descriptor, size, offset)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write, not more at a time than was given."""
        with self._step("write"):
            return self.inner.write(descriptor, data[: self._most_per_write], offset)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut."""
        with self._step("truncate"):
            self.inner.truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Make content durable."""
        try:
            with self._step("sync"):
                self.inner.sync(descriptor)
        except OSError:
            if isinstance(self.inner, MemoryFiles):
                self.inner.fail_sync(descriptor)
            raise

    def sync_folder(self, path: Path) -> None:
        """Make names durable."""
        with self._step("sync_folder"):
            self.inner.sync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename."""
        with self._step("rename"):
            self.inner.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with self._step("remove"):
            self.inner.remove(path)

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        with self._step("make_folder"):
            self.inner.make_folder(path)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder."""
        with self._step("remove_folder"):
            self.inner.remove_folder(path)

    def names(self, path: Path) -> list[str]:
        """List a folder."""
        with self._step("names"):
            return self.inner.names(path)

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder is there; never fails."""
        return self.inner.is_folder(path)

    def owner(self, path: Path) -> int | None:
        """Return who locked a file last; never fails."""
        return self.inner.owner(path)

    def lock(self, path: Path) -> int:
        """Lock a file or a folder."""
        with self._step("lock"):
            return self._opened(self.inner.lock(path))

    def _opened(self, descriptor: int) -> int:
        self._descriptors.add(descriptor)
        return descriptor

    def _count(self, operations: frozenset[str]) -> int:
        return sum(not operations or name in operations for name in self.history)

    @contextmanager
    def _step(self, operation: str) -> Iterator[None]:
        if self.is_crashed:
            raise SimulatedCrash(operation)
        at = len(self.history)
        if at == self._crash_at and not self._crash_after:
            self._crash(operation)
        if self._watcher is not None:
            self._watcher("before", operation)
        error = self._error(operation)
        self.history.append(operation)
        if error is not None:
            raise error
        yield
        if self._watcher is not None:
            self._watcher("after", operation)
        if at == self._crash_at:
            self._crash(operation)

    def _crash(self, operation: str) -> None:
        self.is_crashed = True
        raise SimulatedCrash(operation)

    def _error(self, operation: str) -> OSError | None:
        for failure in self._failures:
            if failure.operations and operation not in failure.operations:
                continue
            if failure.begin <= self._count(failure.operations) < failure.end:
                return OSError(failure.number, os.strerror(failure.number))
        return None
