"""File operations of local logs, behind an interface where tests inject faults and crashes."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from ..errors import LogStorageError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "Files",
    "OsFiles",
    "as_storage_error",
    "read_all",
    "storage_errors",
    "write_all",
]

_BINARY: Final = getattr(os, "O_BINARY", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
_LOCK_TRIES: Final = 100
_MAX_DIGITS: Final = 20

PRIVATE_FILE: Final = 0o600
"""Mode of new files: only the user of the process may read messages, unless the user permits others to."""
PRIVATE_FOLDER: Final = 0o700

_locks: set[int] = set()
"""Descriptors of this process that hold locks: a forked child inherits them, and must not keep them."""


class Files(Protocol):
    """File operations, all blocking; every error is an OSError. Descriptors are plain numbers."""

    def create(self, path: Path) -> int:
        """Open a file for reading and writing, created or emptied."""
        ...

    def open(self, path: Path, *, writable: bool = False) -> int:
        """Open an existing file."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a file."""
        ...

    def size(self, descriptor: int) -> int:
        """Return a file's size in bytes."""
        ...

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes; fewer at the end of the file, or when the system chooses."""
        ...

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write some bytes, at least one; return how many."""
        ...

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""
        ...

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable, with the metadata that reading it needs."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, even over an existing one, or a folder."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def make_folder(self, path: Path) -> None:
        """Make a folder inside an existing one."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a folder, in any order."""
        ...

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder exists."""
        ...

    def lock(self, path: Path) -> int:
        """Lock an existing folder, or a file, which is made if missing, until its descriptor is closed.

        :raises BlockingIOError: this process or another holds the lock
        :raises OSError: the file system cannot lock it, or refuses
        """
        ...

    def owner(self, path: Path) -> int | None:
        """Return the id of the process that last locked a file; None if not known."""
        ...


class OsFiles:
    """The operating system's files."""

    def create(self, path: Path) -> int:
        """Open with O_CREAT and O_TRUNC, for the user alone."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, PRIVATE_FILE)

    def open(self, path: Path, *, writable: bool = False) -> int:
        """Open a regular file for reading, or for reading and writing; refuse anything else without blocking."""
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | _BINARY | _NO_WAIT)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return descriptor

    def close(self, descriptor: int) -> None:
        """Unlock the descriptor, so that forked children do not keep the lock, and close it."""
        if descriptor in _locks:
            _locks.discard(descriptor)
            _unlock(descriptor)
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Call fstat."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read with pread; Windows has none, but there one thread at a time uses a descriptor."""
        if sys.platform == "win32":
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, size)
        return os.pread(descriptor, size, offset)

    def write(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write with pwrite; on Windows as :meth:`read`."""
        if sys.platform == "win32":
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, data)
        return os.pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        """Call ftruncate."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Call fdatasync; on macOS F_FULLFSYNC, because fsync stops at the disk's own cache there."""
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        elif sys.platform == "win32":
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Sync a descriptor of the folder; Windows cannot, and journals names without it."""
        if sys.platform == "win32":
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Call replace."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Call unlink."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder for the user alone."""
        path.mkdir(PRIVATE_FOLDER)

    def remove_folder(self, path: Path) -> None:
        """Call rmdir."""
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        """List a folder."""
        return [each.name for each in path.iterdir()]

    def is_folder(self, path: Path) -> bool:
        """Call stat."""
        return path.is_dir()

    def lock(self, path: Path) -> int:
        """Lock with flock (msvcrt on Windows), and check that the last owner has not removed the file meanwhile.

        The id of this process is written into a locked file. Windows cannot lock folders.
        """
        is_folder = path.is_dir()
        if is_folder and sys.platform == "win32":
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(path))
        for _ in range(_LOCK_TRIES):
            if is_folder:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            else:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, PRIVATE_FILE)
            try:
                _lock(descriptor)
                if _is_same(descriptor, path):
                    if not is_folder:
                        _write_pid(descriptor)
                    return descriptor
            except BaseException:
                self.close(descriptor)
                raise
            self.close(descriptor)
        raise BlockingIOError(f"{path} is removed again and again")

    def owner(self, path: Path) -> int | None:
        """Read the process id from the file."""
        with suppress(OSError, ValueError):
            descriptor = self.open(path)
            try:
                return int(self.read(descriptor, _MAX_DIGITS, 0))
            finally:
                os.close(descriptor)
        return None


def _write_pid(descriptor: int) -> None:
    """Write the id of this process into a lock file; a full disk does not prevent locking."""
    if sys.platform != "win32":
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _is_same(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _drop_locks() -> None:
    """Drop the parent's locks in a forked child, which would otherwise outlive the parent.

    The descriptors then refer to the null device, so that closing them later closes no other file of the child.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor in _locks:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _locks.clear()


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@cache
def _drop_locks_in_children() -> None:
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=_drop_locks)


def _lock(descriptor: int) -> None:
    _drop_locks_in_children()
    _locks.add(descriptor)
    if sys.platform == "win32":
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_all(files: Files, descriptor: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes, or all up to the end of the file: the system may return fewer at a time."""
    parts = []
    while size and (part := files.read(descriptor, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)


def write_all(files: Files, descriptor: int, data: bytes, offset: int) -> None:
    """Write all of the data: the system may take fewer bytes at a time."""
    rest = memoryview(data)
    while rest:
        written = files.write(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


@contextmanager
def storage_errors(log: str, action: str, folder: str | None = None) -> Iterator[None]:
    """Turn system errors into :class:`~pulsar_nack.errors.LogStorageError`."""
    try:
        yield
    except OSError as error:
        raise as_storage_error(error, log, action, folder) from error


def as_storage_error(error: OSError, log: str, action: str, folder: str | None = None) -> LogStorageError:
    """Return our error for a system error."""
    return LogStorageError(log, action, error.strerror or str(error) or type(error).__name__, folder=folder)
