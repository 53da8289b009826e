"""One folder of logs: each log is gone through once, and then each part tells what its logs say together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ..errors import MissingExtraError
from ..ledger._names import GONE, LOCK, LOG, NEW, log_of
from ._built import MANIFEST, read_manifest
from ._damage import Damage, DamageKind
from ._report import BuiltReport, LogKind, LogReport
from ._scan import LogGoneError, LogScan

_KEPT: Final = 1 << 16


class Inspected:
    """A log that was gone through: its scan, and its first and last record where they are small or needed whole."""

    def __init__(self, scan: LogScan, first: bytes, last: bytes) -> None:
        self.scan = scan
        self.first = first
        self.last = last
        self.kind: LogKind = "plain"
        self.is_gone = False

    @property
    def name(self) -> str:
        """Return the log's name."""
        return self.scan.name

    def records(self) -> Iterator[bytes]:
        """Go through its records again; the damage is noted already."""
        return (data for _, data in self.numbered())

    def numbered(self, *, past_damage: bool = False) -> Iterator[tuple[int, bytes]]:
        """Go through its records again with their numbers; some are left out where a file is damaged.

        :param past_damage: leave out no more than is damaged

        When the log is deleted meanwhile the rest is left out, and ``is_gone`` is set.
        """
        try:
            yield from LogScan(self.scan.store, self.name, past_damage=past_damage).records()
        except LogGoneError:
            self.is_gone = True

    def report(self) -> LogReport:
        """Return what is told of it."""
        scan = self.scan
        return LogReport(self.name, self.kind, scan.length, scan.size, scan.is_sealed, tuple(scan.segments))


class Store:
    """What lies in a folder: its logs by name, and what was found wrong so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: dict[str, Inspected] = {}
        self.damage: list[Damage] = []
        self.notes: list[str] = []
        self.leftovers: list[str] = []
        self.foreign: list[str] = []
        self.built: BuiltReport | None = None
        self._has_lost = False

    @property
    def has_lost(self) -> bool:
        """Return whether a log was deleted by its owner while it was looked at: what is told is not all of it."""
        return self._has_lost or any(log.is_gone for log in self.logs.values())

    def look(self, only: str | None = None) -> None:
        """Go through all logs, or one of them."""
        names = sorted(each.name for each in self.folder.iterdir())
        logs = [log for name in names if (log := log_of(name, LOG)) and (self.folder / name).is_dir()]
        for log in logs if only is None else [only]:
            self._scan(log)
        if only is None:
            self._sort(names, set(logs))

    def untaken(self) -> Iterable[Inspected]:
        """Return the logs that no part has taken for its own yet."""
        return [log for log in self.logs.values() if log.kind == "plain"]

    def note(self, log: str, file: str, kind: DamageKind, reason: str) -> None:
        """Note something wrong that is not a matter of bytes."""
        self.damage.append(Damage(log, file, None, kind, reason))

    def lacks(self, error: MissingExtraError) -> None:
        """Note that something cannot be read here for want of a package."""
        if str(error) not in self.notes:
            self.notes.append(str(error))

    def _scan(self, name: str) -> None:
        scan = LogScan(self.folder, name)
        first = last = b""
        try:
            for number, data in scan.records():
                if not number:
                    first = data
                last = data
        except LogGoneError:
            self._has_lost = True
            return
        self.logs[name] = Inspected(scan, first if len(first) <= _KEPT else b"", last if len(last) <= _KEPT else b"")
        self.damage += scan.damage
        self.foreign += [f"{name}{LOG}/{each}" for each in scan.foreign]

    def _sort(self, names: list[str], logs: set[str]) -> None:
        """Tell what is left over of ours from what is not ours."""
        for name in names:
            log = log_of(name, LOG, LOCK)
            if log in logs or (name == MANIFEST and self._find_built(name)):
                continue
            if log_of(name, LOG + NEW, LOG + GONE, LOCK):
                self.leftovers.append(name)
            elif not (self.folder / name).is_dir():
                self.foreign.append(name)

    def _find_built(self, name: str) -> bool:
        self.built = read_manifest(self.folder / name)
        return self.built is not None
