"""The folder in which an index is built, and the rename that commits it.

The index for the folder ``NAME`` is built beside it, in ``.NAME.<random>.building``::

    owner      locked while the build's process lives
    index/     becomes NAME
    attempts/  logs that are being written, each renamed into ``index`` when it is whole and synced
    old/       the previous NAME, if it is overwritten

Each run has a separate folder, so that late tasks of another run cannot disturb it. A second attempt at a log finds the
log of the first, which has the same bytes, and drops its own. The next run for the same folder removes the leftovers of
a killed one, and moves an old folder back.
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

from ..cursor.format import delayed_cursor
from ..errors import InvalidArgumentError, LogLockedError
from ..inspection.folders import MANIFEST
from ..ledger.files import PRIVATE_FOLDER, OsFiles, storage_errors, write_all
from ..ledger.format import GONE, LOCK, LOG, NEW, log_of
from ._build_encoding import SEGMENT_FILE

INDEX: Final = "index"
ATTEMPTS: Final = "attempts"
_OWNER: Final = "owner"
_OLD: Final = "old"
_BUILDING: Final = ".building"
_CURSOR: Final = delayed_cursor("cursor") + "-"
"""What the names of the cursor's logs begin with."""
_INDEX_LOG: Final = re.compile(re.escape(_CURSOR) + r"\d{10}|snapshot-[0-9a-f]{32}-\d+")
_SUFFIXES: Final = (LOG, LOCK, LOG + NEW, LOG + GONE)
_files: Final = OsFiles()


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that an index may be written to a folder.

    :raises InvalidArgumentError: it exists, and is not to be overwritten or holds something other than an index
    :raises LogLockedError: a tracker has the index open
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
        if name.startswith(_CURSOR) and name.endswith(LOCK):
            _check_unlocked(target / name)


def _is_index(names: Sequence[str]) -> bool:
    """Return whether a folder with these files is empty or holds an index."""
    if not all(name == MANIFEST or _INDEX_LOG.fullmatch(log_of(name, *_SUFFIXES) or "") for name in names):
        return False
    return not names or any(name == MANIFEST or name.startswith("snapshot-") for name in names)


def _check_unlocked(lock: Path) -> None:
    try:
        descriptor = _files.lock(lock)
    except BlockingIOError as error:
        raise LogLockedError(str(lock.parent)) from error
    except OSError:
        return
    _files.close(descriptor)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Make a folder to build in; it is removed at the end, whatever happens."""
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
    staging = re.compile(rf"{re.escape(f'.{target.name}.')}[0-9a-f]+{re.escape(_BUILDING)}")
    for left in target.parent.iterdir():
        if staging.fullmatch(left.name):
            with suppress(OSError):
                _remove(left, _files.lock(left / _OWNER), target)


def _remove(staging: Path, owner: int, target: Path) -> None:
    with suppress(OSError):
        if (staging / _OLD).is_dir() and not target.exists():
            (staging / _OLD).rename(target)
    shutil.rmtree(staging, ignore_errors=True)
    _files.close(owner)


def write_log(staging: Path, name: str, data: bytes) -> None:
    """Write a log of one file durably, and move it into the index as a whole.

    :raises OSError: the log could not be written
    :raises ValueError: another attempt wrote a different log
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
                raise ValueError(f"{name}: two attempts had different rows") from None
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
    """Sync the index and rename it to its target."""
    check_target(target, overwrite=overwrite)
    with storage_errors(str(target), "move the index there"):
        _files.sync_folder(staging / INDEX)
        if overwrite and target.exists():
            target.rename(staging / _OLD)
        (staging / INDEX).rename(target)
        _files.sync_folder(target.parent)
