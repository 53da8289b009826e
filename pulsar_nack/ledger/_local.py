"""Logs in a folder of local files, and their store.

A process that makes, writes or deletes a log holds two locks: on a file beside the log, which is removed with it, and
on the log's folder. The file exists before the log and after it. The folder's lock survives cleanup jobs that remove
unused files, and keeps some of them (systemd-tmpfiles) from removing the log. Where folders cannot be locked, as on
NFS, the file's lock has to suffice.

A log is made under another name and then renamed; it is deleted by renaming it first: each has one commit point. The
next process that opens the store or locks that name removes the leftovers of a crash, under the locks.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from os import PathLike
from pathlib import Path
from typing import Final, Self

from .._check import as_folder, check_has, check_integer
from ..errors import (
    LogCorruptedError,
    LogExistsError,
    LogForeignFilesError,
    LogLockedError,
    LogNotFoundError,
    LogStorageError,
)
from ._log import DAMAGED, READ_ONLY, AsyncLog
from ._log_files import LogFiles, LogLock, SegmentWriter, begin_segment
from ._protocol import BlockingStore, LogDamage
from ._store import AsyncLogStore
from .files import Files, OsFiles, storage_errors
from .format import GONE, LOCK, LOG, NEW, check_name, is_log_file, log_of, segment_first, segment_name
from .segments import Segment, scan

_MIN_SEGMENT: Final = 1 << 10
_NO_LOCKS: Final = {errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOENT, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
"""Errors of file systems, and of Windows, that cannot lock folders, and of a folder that has just been removed."""


class LogDirectory(BlockingStore[LogFiles]):
    """One folder of logs: making, opening, deleting and sweeping them; blocking."""

    def __init__(self, files: Files, folder: Path, max_segment_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._max_segment_bytes = max_segment_bytes

    def open(self) -> None:
        """Make the folder if it is missing, and remove leftovers of crashes; locked or refused ones stay."""
        with storage_errors(str(self._folder), "open the folder"):
            _make_folder(self._files, self._folder)
            names = self._files.names(self._folder)
            self._sync_parents(is_new=not any(log_of(name, LOG) for name in names))
        left = {log for name in names if (log := log_of(name, LOG + NEW, LOG + GONE))}
        left |= {log for name in names if (log := log_of(name, LOCK)) and log + LOG not in names}
        for log in sorted(left):
            with suppress(LogLockedError, LogStorageError):
                self._unlock(log, self._lock(log))

    @property
    def location(self) -> str:
        """Return the folder, for errors."""
        return str(self._folder)

    def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        with storage_errors(str(self._folder), "list the folder"):
            names = self._files.names(self._folder)
            return sorted(log for name in names if (log := log_of(name, LOG)) and self._exists(log))

    def create(self, log: str) -> LogFiles:
        """Make a log and open it."""
        self._check_new(log)
        lock = self._lock(log)
        try:
            self._check_new(log)
            with self._errors(log, "create it"):
                lock = self._make(log, lock)
                return self._open_made(log, lock)
        except Exception:
            self._unlock(log, lock)
            raise

    def open_log(self, log: str, *, read_only: bool) -> LogFiles:
        """Open an existing log."""
        if read_only:
            self._check_exists(log)
            return self._open(log, None)
        return self._open_locked(log, self._open)

    def open_damaged(self, log: str) -> LogFiles:
        """Open a damaged log, locked as for writing, to read its whole records."""
        return self._open_locked(log, self._open_damaged)

    def _open_locked(self, log: str, opening: Callable[[str, LogLock], LogFiles]) -> LogFiles:
        self._check_exists(log)
        lock = self._lock(log)
        try:
            self._check_exists(log)
            return opening(log, lock)
        except Exception:
            self._unlock(log, lock)
            raise

    def close(self, opened: LogFiles) -> None:
        """Close a log and unlock it."""
        opened.close()
        if opened.lock is not None:
            self._unlock(opened.name, opened.lock)

    def delete(self, log: str, lock: LogLock | None = None) -> None:
        """Delete a log, which is locked already or locked here; it is unlocked in every case."""
        if lock is None:
            self._check_exists(log)
            lock = self._lock(log)
        try:
            self._check_exists(log)
            with self._errors(log, "delete it"):
                self._check_no_foreign_files(log)
                self._files.rename(self._path(log, LOG), self._path(log, LOG + GONE))
                self._files.sync_folder(self._folder)
        finally:
            self._unlock(log, lock)

    def _make(self, log: str, lock: LogLock) -> LogLock:
        """Make a log, and lock its folder before the log gets its name."""
        new, path = self._path(log, LOG + NEW), self._path(log, LOG)
        self._files.make_folder(new)
        self._files.close(begin_segment(self._files, new / segment_name(0), 0, secrets.randbits(32), log))
        folder = self._lock_folder(new)
        try:
            self._files.rename(new, path)
        except Exception:
            self._close_lock(folder)
            raise
        return lock + folder

    def _open_made(self, log: str, lock: LogLock) -> LogFiles:
        try:
            return self._open(log, lock)  # this makes the name durable too
        except Exception:
            with suppress(OSError):
                self._files.rename(self._path(log, LOG), self._path(log, LOG + GONE))
            raise

    def _lock(self, log: str) -> LogLock:
        """Lock a log, and remove leftovers of earlier logs of this name."""
        with self._errors(log, "lock it"):
            folder: LogLock = ()
            try:
                folder = self._lock_folder(self._path(log, LOG))
                lock = (self._files.lock(self._path(log, LOCK)), *folder)
            except BlockingIOError as error:
                self._close_lock(folder)
                owner = self._files.owner(self._path(log, LOCK))
                raise LogLockedError(log, folder=str(self._folder), owner=owner) from error
            except Exception:
                self._close_lock(folder)
                raise
        try:
            with self._errors(log, "remove leftovers of an older log"):
                self._sweep(log)
        except LogStorageError:
            self._close_lock(lock)
            raise
        return lock

    def _lock_folder(self, path: Path) -> LogLock:
        """Lock a log's folder; nothing is locked if it does not exist, or the file system cannot lock folders."""
        try:
            return (self._files.lock(path),) if self._files.is_folder(path) else ()
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return ()
            raise

    def _unlock(self, log: str, lock: LogLock) -> None:
        """Remove leftovers and, if the log is gone, its lock file; then unlock the log. Ignores errors."""
        with suppress(OSError):
            self._sweep(log)
            if not self._exists(log):
                self._files.remove(self._path(log, LOCK))
        self._close_lock(lock)

    def _close_lock(self, lock: LogLock) -> None:
        for descriptor in lock:
            with suppress(OSError):
                self._files.close(descriptor)

    def _sweep(self, log: str) -> None:
        new, gone = self._path(log, LOG + NEW), self._path(log, LOG + GONE)
        if self._files.is_folder(new):
            self._remove_folder(new)
        if self._files.is_folder(gone):
            self._files.sync_folder(self._folder)  # the deletion must be durable before the files are removed
            self._remove_folder(gone)

    def _remove_folder(self, folder: Path) -> None:
        for name in filter(is_log_file, self._files.names(folder)):
            self._files.remove(folder / name)
        self._files.remove_folder(folder)

    def _open(self, log: str, lock: LogLock | None) -> LogFiles:
        with self._errors(log, "open it"):
            segments = self._segments(log)
            size = sum(segment.check_owner() for segment in segments)
            tail = segments[-1].find_tail()
            if lock is not None:
                self._remove_new_segments(log)
                writer = SegmentWriter(self._files, log, segments, lock, self._max_segment_bytes)
                writer.open(tail, size)
                return writer
            opened = LogFiles(log, segments, None)
            opened.length, opened.size, opened.is_sealed = tail.number, size, tail.is_sealed
            return opened

    def _open_damaged(self, log: str, lock: LogLock) -> LogFiles:
        with self._errors(log, "open it"):
            segments = self._find_segments(log)
            opened = LogFiles(log, segments, lock)
            opened.length, opened.is_sealed, opened.damage = scan(segments)
            opened.size = sum(segment.file_size() for segment in segments)
            return opened

    def _segments(self, log: str) -> list[Segment]:
        segments = self._find_segments(log)
        if not segments or segments[0].first:
            raise LogCorruptedError(log, segment_name(0), 0, "the file is missing")
        return segments

    def _find_segments(self, log: str) -> list[Segment]:
        folder = self._path(log, LOG)
        found = {first: name for name in self._files.names(folder) if (first := segment_first(name)) is not None}
        return [Segment(self._files, log, folder / found[first], first) for first in sorted(found)]

    def _remove_new_segments(self, log: str) -> None:
        folder = self._path(log, LOG)
        for name in self._files.names(folder):
            if is_log_file(name) and name.endswith(NEW):
                self._files.remove(folder / name)

    def _sync_parents(self, *, is_new: bool) -> None:
        """Make the names of the folder and of its parents durable: the process that made them may have failed before.

        Before the first log is made all parents are synced, except those that refuse it or cannot be synced.
        """
        if not is_new:
            with suppress(OSError):
                self._files.sync_folder(self._folder.parent)
            return
        for parent in self._folder.parents:
            try:
                self._files.sync_folder(parent)
            except OSError as error:
                if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                    raise

    def _check_new(self, log: str) -> None:
        with self._errors(log, "look for it"):
            exists = self._exists(log)
        if exists:
            raise LogExistsError(log)

    def _check_exists(self, log: str) -> None:
        with self._errors(log, "look for it"):
            exists = self._exists(log)
        if not exists:
            raise LogNotFoundError(log)

    def _check_no_foreign_files(self, log: str) -> None:
        foreign = [name for name in self._files.names(self._path(log, LOG)) if not is_log_file(name)]
        if foreign:
            raise LogForeignFilesError(log, sorted(foreign))

    def _exists(self, log: str) -> bool:
        return self._files.is_folder(self._path(log, LOG))

    def _errors(self, log: str, action: str) -> AbstractContextManager[None]:
        return storage_errors(log, action, str(self._folder))

    def _path(self, log: str, suffix: str) -> Path:
        return self._folder / (log + suffix)


class LocalLog(AsyncLog):
    """A :class:`~pulsar_nack.ledger.Log` in a folder, as a store opens it."""

    def __init__(self, directory: LogDirectory, files: LogFiles, executor: ThreadPoolExecutor) -> None:
        why = "" if isinstance(files, SegmentWriter) else (DAMAGED if files.damage else READ_ONLY)
        super().__init__(files.name, directory.location, files, executor, why)
        self._directory = directory
        self._files = files

    @property
    def cut(self) -> int:
        """Return how many bytes of a torn write were cut off when the log was opened."""
        return self._files.cut

    @property
    def damage(self) -> Sequence[LogDamage]:
        """Return the damage, if the log was opened in spite of it."""
        return self._files.damage

    def _read_some(self, first: int, last: int, limit: int) -> list[bytes]:
        return self._files.read(first, last, limit)

    def _close(self) -> None:
        self._directory.close(self._files)

    def _delete(self) -> None:
        self._files.close()
        self._directory.delete(self.name, self._files.lock)


class LocalLogStore(AsyncLogStore[LogFiles, LocalLog]):
    """A :class:`~pulsar_nack.ledger.LogStore` in a folder; made by :meth:`open`, and used with ``async with``."""

    _directory: LogDirectory
    _log_type: Callable[[LogDirectory, LogFiles, ThreadPoolExecutor], LocalLog] = LocalLog

    def _make_log(self, opened: LogFiles) -> LocalLog:
        return self._log_type(self._directory, opened, self._executor)

    async def open_damaged(self, name: str) -> LocalLog:
        """Open a damaged log as its only owner, to read its whole records.

        Nothing is changed or cut off; ``log.damage`` lists what is damaged. Reading a lost record raises
        :class:`~pulsar_nack.errors.LogCorruptedError`. O(size of the log): the whole log is scanned.

        :raises LogNotFoundError: there is no such log
        :raises LogLockedError: another process writes to it
        :raises LogVersionError: a later release wrote it
        """
        return await self._open_log(self._directory.open_damaged, check_name(name))

    @classmethod
    async def open(
        cls,
        path: str | PathLike[str],
        *,
        max_segment_bytes: int = 1 << 26,
        threads: int = 4,
        files: Files | None = None,
    ) -> Self:
        """Open a folder of logs, creating it if it is missing; leftovers of crashes are removed.

        :param max_segment_bytes: a log continues in a new file before one exceeds this size (at least 1 KiB)
        :param threads: how many threads work on files at the same time (1 to 64)
        :param files: the file operations, for tests; those in memory use no threads
        :raises InvalidArgumentError: not a path, a URL, or a number out of its range; nothing was made
        :raises LogStorageError: the folder cannot be made or listed
        """
        folder = as_folder("path", path)
        check_integer("max_segment_bytes", max_segment_bytes, _MIN_SEGMENT, 1 << 40)
        check_integer("threads", threads, 1, 64)
        if files is not None:
            check_has("files", files, ("is_folder", "read"), "file operations, or None")
        executor = _executor(threads, files)
        directory = LogDirectory(files or OsFiles(), folder, max_segment_bytes)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, directory.open)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(directory, executor)


def _executor(threads: int, files: Files | None) -> ThreadPoolExecutor:
    if files is not None:
        from .memory import InPlaceExecutor, MemoryFiles

        if isinstance(getattr(files, "inner", files), MemoryFiles):
            return InPlaceExecutor(1)
    return ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")


def _make_folder(files: Files, folder: Path) -> None:
    """Make a folder and its parents durably, as far as they are missing."""
    if not files.is_folder(folder):
        if folder != folder.parent:
            _make_folder(files, folder.parent)
        with suppress(FileExistsError):
            files.make_folder(folder)
        files.sync_folder(folder.parent)
