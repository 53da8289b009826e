"""File operations in memory, with the model of durability of :mod:`._memory_nodes`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

from ._memory_nodes import Cut, File, Folder, Write

_T = TypeVar("_T")
_P = ParamSpec("_P")


class InPlace(ThreadPoolExecutor):
    """Runs each job when it is submitted: operations on files in memory do not block, and need no threads."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a job."""
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        done: Future[_T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)
        return done


class MemoryFiles:
    """A :class:`~pulsar_nack.ledger._files.Files` in memory; paths are absolute, and the root is there.

    :param random: decides what a failed sync and a crash leave of what was not synced
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random(0)  # noqa: S311
        self._root = Folder()
        self._open: dict[int, File] = {}
        self._locks: dict[int, File | Folder] = {}
        self._next = 3

    def fork(self, random: Random | None = None) -> MemoryFiles:
        """Return a copy of all files as they are now, durable or not; nothing is open or locked in it. O(size).

        To try a crash at some operation of a run that goes on, take a copy there (see :meth:`FaultyFiles.watch`), and
        later call :meth:`after_crash` on it.

        :param random: decides in the copy what a failed sync and a crash leave; shared with the original if None
        """
        found = MemoryFiles(random or self._random)
        found._root = self._root.copy({})
        return found

    def after_crash(self) -> MemoryFiles:
        """Return the files as they may be found after a crash at this time; nothing is open or locked."""
        found = MemoryFiles(self._random)
        found._root = self._root.left(self._random)
        return found

    def after_kill(self) -> MemoryFiles:
        """Return the files as the next process finds them when only this one ended: all is there, durable or not."""
        found = MemoryFiles(self._random)
        found._root = self._root
        return found

    def fail_sync(self, descriptor: int) -> None:
        """Do what a failed sync does: any of the content may be durable, and a later sync does nothing about it."""
        file = self._file(descriptor)
        file.synced = file.left(self._random)
        file.unsynced.clear()

    def tree(self) -> dict[str, bytes]:
        """Return the content of all files, by their paths."""
        found: dict[str, bytes] = {}
        rest: list[tuple[str, File | Folder]] = [("", self._root)]
        while rest:
            path, node = rest.pop()
            if isinstance(node, Folder):
                rest += [(f"{path}/{name}", each) for name, each in node.live.items()]
            else:
                found[path] = bytes(node.live)
        return found

    def create(self, path: Path) -> int:
        """Make a file, or empty it."""
        folder = self._folder(path.parent)
        file = folder.live.get(path.name)
        if isinstance(file, Folder):
            raise _error(errno.EISDIR, path)
        if file is None:
            file = File()
            folder.change({path.name: file})
        elif file.live:
            file.change(Cut(0))
        return self._add(file)

    def open(self, path: Path, *, writable: bool = False) -> int:  # noqa: ARG002
        """Open a file."""
        return self._add(self._existing(path))

    def close(self, descriptor: int) -> None:
        """Close a file, or give up a lock."""
        if descriptor not in self._open:
            raise _error(errno.EBADF, Path())
        del self._open[descriptor]
        self._locks.pop(descriptor, None)

    def size(self, descriptor: int) -> int:
        """Return the live size."""
        return len(self._file(descriptor).live)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read live content."""
        return bytes(self._file(descriptor).live[offset : offset + size])

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write all of the data."""
        self._file(descriptor).change(Write(offset, bytes(data)))
        return len(data)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut."""
        self._file(descriptor).change(Cut(size))

    def sync(self, descriptor: int) -> None:
        """Make the content durable, but not the name."""
        self._file(descriptor).sync()

    def sync_folder(self, path: Path) -> None:
        """Make the names durable."""
        self._folder(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        """Rename inside one folder; over a file, but over an empty folder only."""
        if old.parent != new.parent:
            raise _error(errno.EXDEV, new)
        folder = self._folder(old.parent)
        node, there = self._node(old), folder.live.get(new.name)
        if isinstance(there, Folder) and there.live:
            raise _error(errno.ENOTEMPTY, new)
        folder.change({old.name: None, new.name: node})

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._existing(path)
        self._folder(path.parent).change({path.name: None})

    def make_folder(self, path: Path) -> None:
        """Make a folder."""
        folder = self._folder(path.parent)
        if path.name in folder.live:
            raise _error(errno.EEXIST, path)
        folder.change({path.name: Folder()})

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        if self._folder(path).live:
            raise _error(errno.ENOTEMPTY, path)
        self._folder(path.parent).change({path.name: None})

    def names(self, path: Path) -> list[str]:
        """List a folder."""
        return list(self._folder(path).live)

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder is there."""
        try:
            return isinstance(self._node(path), Folder)
        except OSError:
            return False

    def lock(self, path: Path) -> int:
        """Lock a file, or a folder."""
        folder = self._folder(path.parent)
        if path.name not in folder.live:
            folder.change({path.name: File()})
        node = folder.live[path.name]
        if any(node is held for held in self._locks.values()):
            raise _error(errno.EAGAIN, path)
        descriptor = self._add(node if isinstance(node, File) else File())
        self._locks[descriptor] = node
        return descriptor

    def owner(self, path: Path) -> None:
        """Return None: all files belong to this process."""

    def _add(self, file: File) -> int:
        self._next += 1
        self._open[self._next] = file
        return self._next

    def _file(self, descriptor: int) -> File:
        if descriptor not in self._open:
            raise _error(errno.EBADF, Path())
        return self._open[descriptor]

    def _node(self, path: Path) -> File | Folder:
        node: File | Folder = self._root
        for name in path.parts[1:]:
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR, path)
            if name not in node.live:
                raise _error(errno.ENOENT, path)
            node = node.live[name]
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _existing(self, path: Path) -> File:
        node = self._node(path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        return node


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
