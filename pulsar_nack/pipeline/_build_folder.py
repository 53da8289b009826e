"""The folder of an index in the making, and the one rename that commits it.

Beside the folder ``NAME`` that is wanted, everything is made in ``.NAME.<random>.building``::

    owner      locked as long as whoever builds lives
    index/     becomes NAME
    attempts/  logs that are being written, each renamed into ``index`` when it is whole and synced
    old/       what was NAME before, when it is overwritten

Each run has a folder of its own, so that what a task of another run does late meets nothing; a second attempt at the
same log finds it there, and its own copy, of the same bytes, is given up. What a killed run has left is removed by the
next one for the same folder, and an old folder that had been moved away is put back.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..errors import InvalidArgumentError, LogLockedError
from ..inspection.folders import MANIFEST
from ..ledger.files import PRIVATE_FOLDER, OsFiles, storage_errors, write_all
from ..ledger.format import GONE, LOCK, LOG, NEW, log_of
from ._build_log import SEGMENT_FILE

INDEX: Final = "index"
ATTEMPTS: Final = "attempts"
_OWNER: Final = "owner"
_OLD: Final = "old"
_BUILDING: Final = ".building"
_INDEX_LOG: Final = re.compile(r"cursor-\d+|snapshot-[0-9a-f]{32}-\d+")
_SUFFIXES: Final = (LOG, LOCK, LOG + NEW, LOG + GONE)
_files: Final = OsFiles()


def check_target(target: Path, *, overwrite: bool) -> None:
    """Look whether an index may be put there.

    :raises InvalidArgumentError: something is there, and is not to be overwritten, or is no index
    :raises LogLockedError: a tracker has it open
    """
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise InvalidArgumentError("path", str(target), "a folder that does not exist, or overwrite=True")
    with storage_errors(str(target), "list it"):
        names = _files.names(target) if target.is_dir() and not target.is_symlink() else None
    if names is None or not _is_index(names):
        raise InvalidArgumentError("path", str(target), "the folder of an index; this holds something else")
    for name in names:
        if name.startswith("cursor-") and name.endswith(LOCK):
            _must_be_free(target / name)


def _is_index(names: Sequence[str]) -> bool:
    """Return whether a folder holds an index, or nothing."""
    if not all(name == MANIFEST or _INDEX_LOG.fullmatch(log_of(name, *_SUFFIXES) or "") for name in names):
        return False
    return not names or any(name == MANIFEST or name.startswith("snapshot-") for name in names)


def _must_be_free(lock: Path) -> None:
    try:
        descriptor = _files.lock(lock)
    except BlockingIOError as error:
        raise LogLockedError(str(lock.parent)) from error
    except OSError:
        return
    _files.close(descriptor)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Give a new folder to build in; removed at the end, whatever happens."""
    with storage_errors(str(target), "make a folder beside it"):
        target.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        _sweep(target)
        staging = target.parent / f".{target.name}.{secrets.token_hex(8)}{_BUILDING}"
        staging.mkdir(PRIVATE_FOLDER)
        owner = _files.lock(staging / _OWNER)
    try:
        with storage_errors(str(staging), "make a folder in it"):
            (staging / INDEX).mkdir(PRIVATE_FOLDER)
            (staging / ATTEMPTS).mkdir(PRIVATE_FOLDER)
        yield staging
    finally:
        _remove(staging, owner, target)


def _sweep(target: Path) -> None:
    for left in target.parent.glob(f".{target.name}.*{_BUILDING}"):
        with suppress(OSError):
            _remove(left, _files.lock(left / _OWNER), target)


def _remove(staging: Path, owner: int, target: Path) -> None:
    with suppress(OSError):
        if (staging / _OLD).is_dir() and not target.exists():
            (staging / _OLD).rename(target)
    shutil.rmtree(staging, ignore_errors=True)
    _files.close(owner)


def write_log(staging: Path, name: str, data: bytes) -> None:
    """Write a log of one file, durably, and put it into the index; whole when it is there.

    :raises OSError: it could not be written
    :raises ValueError: another attempt has put something else there
    """
    attempt = staging / ATTEMPTS / f"{name}.{secrets.token_hex(8)}"
    attempt.mkdir(PRIVATE_FOLDER)
    try:
        write_file(attempt / SEGMENT_FILE, data)
        _files.sync_folder(attempt)
        final = staging / INDEX / name
        try:
            attempt.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            if (final / SEGMENT_FILE).read_bytes() != data:
                raise ValueError(f"{name}: two attempts at it had different rows") from None
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file durably."""
    descriptor = _files.create(path)
    try:
        write_all(_files, descriptor, data, 0)
        _files.sync(descriptor)
    finally:
        _files.close(descriptor)


def commit(staging: Path, target: Path, *, overwrite: bool) -> None:
    """Make the index durable and give it its name."""
    check_target(target, overwrite=overwrite)
    with storage_errors(str(target), "put the index there"):
        _files.sync_folder(staging / INDEX)
        if overwrite and target.exists():
            target.rename(staging / _OLD)
        (staging / INDEX).rename(target)
        _files.sync_folder(target.parent)
