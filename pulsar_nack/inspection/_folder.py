"""Finding the stores of logs in a folder, and looking at each; a folder that its owner works on is looked at again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from ..errors import InvalidArgumentError
from ..ledger._folder import as_folder
from ..ledger._names import LOG, log_of
from ._cursors import inspect_cursors
from ._delayed import inspect_delayed
from ._nacks import inspect_nacks
from ._report import FolderReport, StoreReport
from ._store import Store
from ._topics import inspect_topic

_T = TypeVar("_T")
_LOOKS: Final = 8
_PAUSE_S: Final = 0.1
_DEEPEST: Final = 8


def inspect_folder(path: str | PathLike[str]) -> FolderReport:
    """Return what a folder of the library holds, and what is wrong with it. Blocking; O(bytes): it checks all sums.

    Nothing is changed: no file is made, locked, repaired or removed. So it works beside a process that uses the folder,
    and on a copy without rights to write. Folders in it are looked at too. The folder of one log, ``NAME.log``, is good
    as well.

    :raises InvalidArgumentError: there is no such folder, it cannot be read, or there is no log in it
    """
    folder = as_folder("path", path)
    try:
        folder = folder.resolve()
        if not folder.is_dir():
            raise InvalidArgumentError("path", str(path), "a folder that exists")
        stores = [_inspect_store(each) for each in stores_in(folder)]
    except OSError as error:
        raise InvalidArgumentError("path", str(path), f"a folder that can be read ({error.strerror})") from error
    if not stores and (name := log_of(folder.name, LOG)):
        stores = [_inspect_store(folder.parent, name)]
    if not any(store.logs or store.leftovers for store in stores):
        raise InvalidArgumentError("path", str(path), "a folder with logs of this library in it or below")
    return FolderReport(str(folder), tuple(stores))


def stores_in(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Return the folders, from here down, in which logs are; links are not followed."""
    names = sorted(folder.iterdir())
    if any(log_of(each.name, LOG) and each.is_dir() for each in names):
        yield folder
    for each in names:
        is_log = each.name.endswith(LOG) or f"{LOG}." in each.name
        if depth < _DEEPEST and not is_log and not each.is_symlink() and each.is_dir() and os.access(each, os.R_OK):
            yield from stores_in(each, depth + 1)


def _inspect_store(folder: Path, only: str | None = None) -> StoreReport:
    return look_at(folder, _look, only)


def look_at(folder: Path, look: Callable[[Store], _T], only: str | None = None) -> _T:
    """Look at a store until it is whole, or has not changed meanwhile: what is wrong then is wrong.

    :param look: called with a store whose logs were gone through; it may be called several times
    """
    for attempt in range(_LOOKS):
        before = _fingerprint(folder)
        store = Store(folder)
        store.look(only)
        seen = look(store)
        is_fine = not store.damage and not store.has_lost
        if is_fine or attempt + 1 == _LOOKS or before == _fingerprint(folder):
            break
        time.sleep(_PAUSE_S)
    return seen


def _look(store: Store) -> StoreReport:
    nacks = inspect_nacks(store)
    cursors = inspect_cursors(store)
    topic = inspect_topic(store, cursors)
    delayed = inspect_delayed(store, cursors)
    return StoreReport(
        path=str(store.folder),
        logs=tuple(log.report() for log in store.logs.values()),
        delayed=delayed,
        nacks=nacks,
        cursors=cursors,
        topic=topic,
        built=store.built,
        leftovers=tuple(store.leftovers),
        foreign=tuple(store.foreign),
        notes=tuple(store.notes),
        damage=tuple(store.damage),
    )


def _fingerprint(folder: Path) -> list[tuple[str, int, int]]:
    """Return what changes when somebody writes here."""
    found = []
    for log in sorted(each for each in folder.iterdir() if log_of(each.name, LOG)):
        try:
            found += [(f"{log.name}/{each.name}", *_size(each)) for each in sorted(log.iterdir())]
        except OSError:
            found.append((log.name, -1, -1))
    return found


def _size(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
