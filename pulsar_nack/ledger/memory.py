"""File operations in memory that know which content and names are durable, and what a crash may leave of the rest.

A file has its live content, its synced content, and the writes and cuts since then; a folder has its names in the same
way. After a crash a file has its synced content with all, none, a first part, or any blocks of the later changes, and a
folder has its synced names with a first part of the later changes (a journal keeps their order; a rename is one
change). A file's content and its name are independent: a name may be durable before the content is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, ParamSpec, TypeVar

__all__ = ["InPlaceExecutor", "MemoryFiles"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_BLOCK: Final = 16


class _Change(NamedTuple):
    """Bytes written at an offset; without bytes the file gets this size."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        """Apply the change to ``content``."""
        content.extend(bytes(max(self.offset - len(content), 0)))
        if self.data is None:
            del content[self.offset :]
        else:
            content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, random: Random) -> _Change:
        """Return the first part of a write, of random length."""
        return self if self.data is None else _Change(self.offset, self.data[: random.randint(0, len(self.data))])

    def blocks(self, random: Random) -> list[_Change]:
        """Return random blocks of a write, or all or nothing of a cut."""
        changes = [self]
        if self.data is not None:
            starts = range(0, len(self.data), _BLOCK)
            changes = [_Change(self.offset + start, self.data[start : start + _BLOCK]) for start in starts]
        return [change for change in changes if random.random() < 0.5]


@dataclass(slots=True)
class _File:
    """A file's live and synced content, and the changes between them."""

    live: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        """Change the live content."""
        change.apply(self.live)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make the live content durable, as far as the kept changes produce it."""
        content = bytearray(self.synced)
        for change in self.unsynced:
            change.apply(content)
        self.synced = bytes(content)
        self.unsynced.clear()

    def copy(self) -> _File:
        """Return a copy that can change independently."""
        return _File(self.live[:], self.synced, self.unsynced[:])

    def left(self, random: Random) -> bytes:
        """Return content that may be on disk after a crash."""
        content = bytearray(self.synced)
        way = random.choice(("none", "all", "torn", "blocks"))
        if way == "none":
            return self.synced
        stop = random.randint(0, len(self.unsynced)) if way == "torn" else len(self.unsynced)
        for change in self.unsynced[:stop]:
            for part in change.blocks(random) if way == "blocks" else [change]:
                part.apply(content)
        if stop < len(self.unsynced):
            self.unsynced[stop].torn(random).apply(content)
        if way == "blocks" and random.random() < 0.5:
            content.extend(bytes(max(len(self.live) - len(content), 0)))
        return bytes(content)


@dataclass(slots=True)
class _Folder:
    """A folder's live and synced names, and the changes between them."""

    live: dict[str, _File | _Folder] = field(default_factory=dict)
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    unsynced: list[dict[str, _File | _Folder | None]] = field(default_factory=list)

    def change(self, change: dict[str, _File | _Folder | None]) -> None:
        """Change the live names."""
        _apply(change, self.live)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make the live names durable, as far as the kept changes produce them."""
        self.synced = dict(self.live)
        self.unsynced.clear()

    def copy(self, copies: dict[int, _File | _Folder]) -> _Folder:
        """Return a copy that can change independently; a node has one copy under all its names."""
        found = _Folder()
        for names, copied in ((self.live, found.live), (self.synced, found.synced)):
            copied.update((name, _copy(node, copies)) for name, node in names.items())
        for change in self.unsynced:
            found.unsynced.append({name: node and _copy(node, copies) for name, node in change.items()})
        return found

    def left(self, random: Random) -> _Folder:
        """Return a folder that may be on disk after a crash, all of it synced."""
        names = dict(self.synced)
        for change in self.unsynced[: random.randint(0, len(self.unsynced))]:
            _apply(change, names)
        nodes: dict[str, _File | _Folder] = {}
        for name, node in names.items():
            if isinstance(node, _Folder):
                nodes[name] = node.left(random)
            else:
                content = node.left(random)
                nodes[name] = _File(bytearray(content), content)
        return _Folder(nodes, dict(nodes))


def _copy(node: _File | _Folder, copies: dict[int, _File | _Folder]) -> _File | _Folder:
    copied = copies.get(id(node))
    if copied is None:
        copied = copies[id(node)] = node.copy(copies) if isinstance(node, _Folder) else node.copy()
    return copied


def _apply(change: dict[str, _File | _Folder | None], names: dict[str, _File | _Folder]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class InPlaceExecutor(ThreadPoolExecutor):
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
    """A :class:`~pulsar_nack.ledger.files.Files` in memory; paths are absolute, and the root exists.

    :param random: decides what a failed sync and a crash leave of unsynced changes
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random(0)  # noqa: S311
        self._root = _Folder()
        self._open: dict[int, _File] = {}
        self._locks: dict[int, _File | _Folder] = {}
        self._next = 3

    def fork(self, random: Random | None = None) -> MemoryFiles:
        """Return a copy of all files as they are now, durable or not; nothing is open or locked in it. O(size).

        To try a crash at some operation of a run that continues, fork there (see :meth:`FaultyFiles.watch`), and later
        call
        :meth:`after_crash` on the copy.

        :param random: decides what a failed sync and a crash leave in the copy; None: shared with the original
        """
        found = MemoryFiles(random or self._random)
        found._root = self._root.copy({})
        return found

    def after_crash(self) -> MemoryFiles:
        """Return the files as they may be found after a crash now; nothing is open or locked."""
        found = MemoryFiles(self._random)
        found._root = self._root.left(self._random)
        return found

    def after_kill(self) -> MemoryFiles:
        """Return the files as the next process finds them if only this one ended: everything, durable or not."""
        found = MemoryFiles(self._random)
        found._root = self._root
        return found

    def fail_sync(self, descriptor: int) -> None:
        """Do what a failed sync does: any of the content may be durable, and a later sync does not change that."""
        file = self._file(descriptor)
        file.synced = file.left(self._random)
        file.unsynced.clear()

    def tree(self) -> dict[str, bytes]:
        """Return the content of all files, by their paths."""
        found: dict[str, bytes] = {}
        rest: list[tuple[str, _File | _Folder]] = [("", self._root)]
        while rest:
            path, node = rest.pop()
            if isinstance(node, _Folder):
                rest += [(f"{path}/{name}", each) for name, each in node.live.items()]
            else:
                found[path] = bytes(node.live)
        return found

    def create(self, path: Path) -> int:
        """Make a file, or empty it."""
        folder = self._folder(path.parent)
        file = folder.live.get(path.name)
        if isinstance(file, _Folder):
            raise _error(errno.EISDIR, path)
        if file is None:
            file = _File()
            folder.change({path.name: file})
        elif file.live:
            file.change(_Change(0, None))
        return self._add(file)

    def open(self, path: Path, *, writable: bool = False) -> int:  # noqa: ARG002
        """Open a file."""
        return self._add(self._existing(path))

    def close(self, descriptor: int) -> None:
        """Close a file, or release a lock."""
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
        self._file(descriptor).change(_Change(offset, bytes(data)))
        return len(data)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""
        self._file(descriptor).change(_Change(size, None))

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable, but not its name."""
        self._file(descriptor).sync()

    def sync_folder(self, path: Path) -> None:
        """Make a folder's names durable."""
        self._folder(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        """Rename inside one folder; over a file, or over an empty folder."""
        if old.parent != new.parent:
            raise _error(errno.EXDEV, new)
        folder = self._folder(old.parent)
        node, there = self._node(old), folder.live.get(new.name)
        if isinstance(there, _Folder) and there.live:
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
        folder.change({path.name: _Folder()})

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        if self._folder(path).live:
            raise _error(errno.ENOTEMPTY, path)
        self._folder(path.parent).change({path.name: None})

    def names(self, path: Path) -> list[str]:
        """List a folder."""
        return list(self._folder(path).live)

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder exists."""
        try:
            return isinstance(self._node(path), _Folder)
        except OSError:
            return False

    def lock(self, path: Path) -> int:
        """Lock a file or a folder."""
        folder = self._folder(path.parent)
        if path.name not in folder.live:
            folder.change({path.name: _File()})
        node = folder.live[path.name]
        if any(node is held for held in self._locks.values()):
            raise _error(errno.EAGAIN, path)
        descriptor = self._add(node if isinstance(node, _File) else _File())
        self._locks[descriptor] = node
        return descriptor

    def owner(self, path: Path) -> None:
        """Return None: all files belong to this process."""

    def _add(self, file: _File) -> int:
        self._next += 1
        self._open[self._next] = file
        return self._next

    def _file(self, descriptor: int) -> _File:
        if descriptor not in self._open:
            raise _error(errno.EBADF, Path())
        return self._open[descriptor]

    def _node(self, path: Path) -> _File | _Folder:
        node: _File | _Folder = self._root
        for name in path.parts[1:]:
            if not isinstance(node, _Folder):
                raise _error(errno.ENOTDIR, path)
            if name not in node.live:
                raise _error(errno.ENOENT, path)
            node = node.live[name]
        return node

    def _folder(self, path: Path) -> _Folder:
        node = self._node(path)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _existing(self, path: Path) -> _File:
        node = self._node(path)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        return node


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
