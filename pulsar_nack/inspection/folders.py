"""Finding the stores of logs in a folder, and inspecting each; a store that changes meanwhile is inspected again."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from .._check import as_folder
from ..cursor.format import LedgerAcks, cursors_in, delayed_cursor_of, subscription_of
from ..errors import InvalidArgumentError
from ..ledger.format import LOG, log_of
from ._delayed import inspect_delayed
from ._recovery import find_cursors, inspect_nacks
from ._report import CursorReport, FolderReport, StoreReport, SubscriptionReport, TopicLedger, TopicReport
from ._store import MANIFEST, InspectedStore

__all__ = ["MANIFEST", "inspect_cursors", "inspect_folder", "stores_in"]

_T = TypeVar("_T")
_ATTEMPTS: Final = 8
_PAUSE_S: Final = 0.1
_DEEPEST: Final = 8
_LEDGER: Final = re.compile(r"ledger-(\d{20})")


def inspect_folder(path: str | PathLike[str]) -> FolderReport:
    """Return the contents of a folder of the library, and its damage. Blocking; O(bytes): checks all checksums.

    Nothing is changed: no file is made, locked, repaired or removed. So it works beside a process that uses the folder,
    and on a copy without write permission. Subfolders are searched too. You can also pass the folder of a single log,
    ``NAME.log``.

    :raises InvalidArgumentError: there is no such folder, it cannot be read, or it contains no log
    """
    folder = as_folder("path", path, for_urls="the path of a local folder")
    try:
        folder = folder.resolve()
        if not folder.is_dir():
            raise InvalidArgumentError("path", str(path), "a folder that exists")
        stores = [_until_stable(each, _report) for each in stores_in(folder)]
    except OSError as error:
        raise InvalidArgumentError("path", str(path), f"a folder that can be read ({error.strerror})") from error
    if not stores and (name := log_of(folder.name, LOG)):
        stores = [_until_stable(folder.parent, _report, name)]
    if not any(store.logs or store.leftovers for store in stores):
        raise InvalidArgumentError("path", str(path), "a folder with logs of this library in it or below")
    return FolderReport(str(folder), tuple(stores))


def inspect_cursors(folder: Path) -> tuple[StoreReport, Mapping[str, Mapping[int, LedgerAcks]]]:
    """Return a report on the cursors and the topic of one store, and the state of each cursor by its name and ledger.

    Blocking; changes and locks nothing.

    :raises OSError: the folder cannot be read
    """
    return _until_stable(folder, _cursors)


def stores_in(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folders, from this one down, that contain logs; links are not followed."""
    names = sorted(folder.iterdir())
    if any(log_of(each.name, LOG) and each.is_dir() for each in names):
        yield folder
    for each in names:
        is_log = each.name.endswith(LOG) or f"{LOG}." in each.name
        if depth < _DEEPEST and not is_log and not each.is_symlink() and each.is_dir() and os.access(each, os.R_OK):
            yield from stores_in(each, depth + 1)


def _until_stable(folder: Path, inspect: Callable[[InspectedStore], _T], only: str | None = None) -> _T:
    """Inspect a store until it is whole, or has not changed meanwhile, so that damage is real.

    :param inspect: called with a scanned store, possibly several times
    """
    for attempt in range(_ATTEMPTS):
        before = _fingerprint(folder)
        store = InspectedStore(folder)
        store.scan(only)
        found = inspect(store)
        is_whole = not store.damage and not store.is_incomplete
        if is_whole or attempt + 1 == _ATTEMPTS or before == _fingerprint(folder):
            break
        time.sleep(_PAUSE_S)
    return found


def _report(store: InspectedStore) -> StoreReport:
    nacks = inspect_nacks(store)
    found = [report for report, _ in find_cursors(store)]
    cursors = tuple(each for each in found if delayed_cursor_of(each.name) is None)
    topic = _inspect_topic(store, cursors)
    delayed = inspect_delayed(store, found)
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


def _cursors(store: InspectedStore) -> tuple[StoreReport, dict[str, Mapping[int, LedgerAcks]]]:
    inspect_nacks(store)
    found = [(report, states) for report, states in find_cursors(store) if delayed_cursor_of(report.name) is None]
    cursors = tuple(report for report, _ in found)
    topic = _inspect_topic(store, cursors)
    report = StoreReport(
        str(store.folder), cursors=cursors, topic=topic, notes=tuple(store.notes), damage=tuple(store.damage)
    )
    return report, {report.name: states for report, states in found}


def _fingerprint(folder: Path) -> list[tuple[str, int, int]]:
    """Return the names, sizes and times of all files of logs."""
    found = []
    for log in sorted(each for each in folder.iterdir() if log_of(each.name, LOG)):
        try:
            found += [(f"{log.name}/{each.name}", *_size_and_time(each)) for each in sorted(log.iterdir())]
        except OSError:
            found.append((log.name, -1, -1))
    return found


def _size_and_time(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


# --- local topics ---------------------------------------------------------------------------------------------------


def _inspect_topic(store: InspectedStore, cursors: Sequence[CursorReport]) -> TopicReport | None:
    """Return the local topic whose ledgers are in a store, with the backlog of each subscription, or None."""
    found = {int(match[1]): log for log in store.unclaimed() if (match := _LEDGER.fullmatch(log.name))}
    if not found:
        return None
    ledgers = []
    for ledger, log in sorted(found.items()):
        log.kind = "topic"
        ledgers.append(TopicLedger(ledger, log.length, log.size, log.is_sealed))
        if ledgers[0].ledger < ledger and ledger - 1 not in found:
            store.note(log.name, "", "missing", "the ledger before it is missing")
    for log in store.unclaimed():  # of a subscription whose cursor has no records yet
        if any(map(subscription_of, cursors_in([log.name]))):
            log.kind = "cursor"
    by_name = {cursor.name: cursor for cursor in cursors}
    named = ((subscription_of(each), each) for each in sorted(cursors_in(store.logs)))
    subscriptions = [_subscription(name, each, by_name.get(each), ledgers) for name, each in named if name]
    return TopicReport(tuple(ledgers), tuple(subscriptions))


def _subscription(
    name: str, cursor_name: str, cursor: CursorReport | None, ledgers: Sequence[TopicLedger]
) -> SubscriptionReport:
    if cursor is None:
        return SubscriptionReport(name, cursor_name, None, None)
    at_ledger, at_entry = cursor.mark_delete
    acked = {each.ledger: each.acked for each in cursor.ledgers}
    backlog = 0
    for each in ledgers:
        if each.ledger >= at_ledger:
            passed = at_entry + 1 if each.ledger == at_ledger else 0
            backlog += each.entries - passed - acked.get(each.ledger, 0)
    return SubscriptionReport(name, cursor_name, cursor.mark_delete, backlog)
