"""Files and object stores that fail or crash on demand: fault injection for tests of everything durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import RLock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from .._check import check_one_of
from ._object_requests import ObjectStoreClient, as_client
from .files import Files
from .memory import MemoryFiles

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["FaultyFiles", "FaultyObjects", "SimulatedCrash", "Watcher"]

_T = TypeVar("_T")

_OPERATIONS: Final = (
    *("create", "open", "read", "write", "truncate", "sync", "sync_folder", "rename", "remove"),
    *("make_folder", "remove_folder", "names", "lock", "get", "list", "delete"),
)
"""Those of files and of object stores: a test may order the same failures for both."""

Watcher = Callable[[Literal["before", "after"], str], object]
"""Called before each operation, and after each one that succeeded, with the operation's name."""


class SimulatedCrash(BaseException):
    """The process under test ended here; not an Exception, so that no code handles it."""


class _Failure(NamedTuple):
    operations: frozenset[str]
    error_number: int
    begin: int
    end: float
    is_carried_out: bool

    @property
    def error(self) -> OSError:
        return OSError(self.error_number, os.strerror(self.error_number))


class _Faulty:
    """Which operations fail, which one is the last, and a history of those that began; for any thread."""

    def __init__(self) -> None:
        self.history: list[str] = []
        self.is_crashed = False
        self._failures: list[_Failure] = []
        self._crash_at: int | None = None
        self._crash_after = False
        self._hooks: dict[int, Callable[[], object]] = {}
        self._watcher: Watcher | None = None
        self._lock = RLock()

    def fail(self, number: int, *operations: str, skip: int = 0, times: float = 1, is_done: bool = False) -> None:
        """Let operations fail with a system error.

        :param number: an errno
        :param operations: which ones; without any, all
        :param skip: how many of them succeed first, counted from now
        :param times: how many fail after that; ``math.inf``: all from then on
        :param is_done: they are carried out, and only their answers are lost
        :raises InvalidArgumentError: no operation has this name
        """
        for name in operations:
            check_one_of("operation", name, _OPERATIONS)
        chosen = frozenset(operations)
        begin = skip + self._count(chosen)
        self._failures.append(_Failure(chosen, number, begin, begin + times, is_done))

    def heal(self) -> None:
        """Forget all failures that were ordered."""
        self._failures.clear()

    def crash(self, at: int, *, after: bool = False) -> None:
        """Crash at the operation with this number: before it is carried out, or after."""
        self._crash_at, self._crash_after = at, after

    def call(self, at: int, hook: Callable[[], object]) -> None:
        """Call ``hook`` before the operation with this number is carried out, to let others act meanwhile."""
        self._hooks[at] = hook

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher`` before each operation, and after each one that succeeded.

        :param watcher: gets "before" or "after", and the name of the operation
        """
        self._watcher = watcher

    def _step(self, operation: str, work: Callable[[], _T]) -> _T:
        """Carry out an operation, unless it is to fail or the crash comes first; return its result."""
        with self._lock:
            at = len(self.history)
            self._crash_if(operation, is_due=at == self._crash_at and not self._crash_after)
            self._notify("before", operation)
            failure = self._failure_of(operation)
            self.history.append(operation)
        if hook := self._hooks.pop(at, None):
            hook()
        if failure is not None:
            if failure.is_carried_out:
                with suppress(OSError):
                    work()
            raise failure.error
        result = work()
        self._notify("after", operation)
        if at == self._crash_at:
            self._crash_if(operation, is_due=True)
        return result

    def _count(self, operations: frozenset[str]) -> int:
        return sum(not operations or name in operations for name in self.history)

    def _failure_of(self, operation: str) -> _Failure | None:
        for failure in self._failures:
            if failure.operations and operation not in failure.operations:
                continue
            if failure.begin <= self._count(failure.operations) < failure.end:
                return failure
        return None

    def _notify(self, when: Literal["before", "after"], operation: str) -> None:
        if self._watcher is not None:
            self._watcher(when, operation)

    def _crash_if(self, operation: str, *, is_due: bool) -> None:
        if is_due:
            self.is_crashed = True
        if self.is_crashed:
            raise SimulatedCrash(operation)


class FaultyFiles(_Faulty):
    """A wrapper around :class:`Files`: any operation can fail, or be the last one before a crash.

    Operations are counted from 0: create, open, read, write, truncate, sync, sync_folder, rename, remove, make_folder,
    remove_folder, names, lock. ``history`` lists those that began.

    Over :class:`MemoryFiles` a failed sync leaves the content in doubt, as a real one does, and
    ``inner.after_crash()`` returns the files as they may be found after a crash. Over real files a crash leaves all
    that was written.
    """

    def __init__(self, inner: Files, *, most_per_write: int | None = None) -> None:
        super().__init__()
        self.inner = inner
        self._most_per_write = most_per_write
        self._descriptors: set[int] = set()

    def release(self) -> None:
        """Close all descriptors, as the end of a process does; for real files after a crash."""
        for descriptor in list(self._descriptors):
            self.close(descriptor)

    def create(self, path: Path) -> int:
        """Make a file, or empty it."""
        return self._step("create", lambda: self._opened(self.inner.create(path)))

    def open(self, path: Path, *, writable: bool = False) -> int:
        """Open a file."""
        return self._step("open", lambda: self._opened(self.inner.open(path, writable=writable)))

    def close(self, descriptor: int) -> None:
        """Close a file; never fails."""
        self._descriptors.discard(descriptor)
        if not (self.is_crashed and isinstance(self.inner, MemoryFiles)):
            with suppress(OSError):
                self.inner.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the size of a file; never fails."""
        return self.inner.size(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read bytes."""
        return self._step("read", lambda: self.inner.read(descriptor, size, offset))

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write at most ``most_per_write`` bytes."""
        return self._step("write", lambda: self.inner.write(descriptor, data[: self._most_per_write], offset))

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""
        self._step("truncate", lambda: self.inner.truncate(descriptor, size))

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        try:
            self._step("sync", lambda: self.inner.sync(descriptor))
        except OSError:
            if isinstance(self.inner, MemoryFiles):
                self.inner.fail_sync(descriptor)
            raise

    def sync_folder(self, path: Path) -> None:
        """Make a folder's names durable."""
        self._step("sync_folder", lambda: self.inner.sync_folder(path))

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a folder."""
        self._step("rename", lambda: self.inner.rename(old, new))

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._step("remove", lambda: self.inner.remove(path))

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        self._step("make_folder", lambda: self.inner.make_folder(path))

    def remove_folder(self, path: Path) -> None:
        """Remove a folder."""
        self._step("remove_folder", lambda: self.inner.remove_folder(path))

    def names(self, path: Path) -> list[str]:
        """List a folder."""
        return self._step("names", lambda: self.inner.names(path))

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder exists; never fails."""
        return self.inner.is_folder(path)

    def owner(self, path: Path) -> int | None:
        """Return which process last locked a file; never fails."""
        return self.inner.owner(path)

    def lock(self, path: Path) -> int:
        """Lock a file or a folder."""
        return self._step("lock", lambda: self._opened(self.inner.lock(path)))

    def _opened(self, descriptor: int) -> int:
        self._descriptors.add(descriptor)
        return descriptor


class FaultyObjects(_Faulty):
    """A wrapper around an object store: any request can fail, or be the last one before a crash.

    Requests are counted from 0: create, get, list, delete; each deleted object counts as one. ``history`` lists those
    that began. Pass it to :meth:`~pulsar_nack.ledger.ObjectLogStore.open` instead of the store; what a crash leaves is
    in the store below. Objects that are deleted together are deleted in a random order.

    :param random: chooses that order
    """

    def __init__(self, inner: ObjectStore | ObjectStoreClient, *, random: Random | None = None) -> None:
        super().__init__()
        self.inner = as_client(inner)
        self.late: list[tuple[str, bytes]] = []
        self._random = random or Random(0)  # noqa: S311
        self._crash_late = False

    @property
    def url(self) -> str:
        """Return the URL of the store below."""
        return self.inner.url

    def crash(self, at: int, *, after: bool = False, late: bool = False) -> None:
        """Crash at the request with this number: before it is carried out, or after.

        :param late: a create that the crash preceded is still on its way; :meth:`land` carries it out
        """
        super().crash(at, after=after)
        self._crash_late = late and not after

    def land(self) -> None:
        """Carry out the creates that are still on their way."""
        while self.late:
            try:
                self.inner.create(*self.late.pop(0))
            except FileExistsError:
                continue

    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist."""
        if self._crash_late and not self.is_crashed and len(self.history) == self._crash_at:
            self.late.append((key, data))
        self._step("create", lambda: self.inner.create(key, data))

    def get(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        return self._step("get", lambda: self.inner.get(key, start, length))

    def list(self, folder: str) -> dict[str, int]:
        """List the objects below a folder."""
        return self._step("list", lambda: self.inner.list(folder))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, one after the other."""
        with self._lock:
            order = self._random.sample(keys, len(keys))
        for key in order:
            self._step("delete", partial(self.inner.delete, [key]))
