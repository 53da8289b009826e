"""One folder of logs: each log is scanned once, then each inspection claims the logs that it understands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..errors import MissingExtraError
from ..ledger.format import GONE, LOCK, LOG, NEW, log_of
from ._report import BuiltReport, Damage, DamageKind
from ._scan import InspectedLog, LogGoneError

MANIFEST: Final = "manifest.json"
"""The file in which ``build-index`` notes what it built; nothing that reads the index needs it."""
_LARGEST_MANIFEST: Final = 1 << 28
_COUNTS: Final = ("rows", "segments", "bytes")
_TIMES: Final = ("first_at", "last_at")


class InspectedStore:
    """A folder's logs by name, and the damage that was found so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: dict[str, InspectedLog] = {}
        self.damage: list[Damage] = []
        self.notes: list[str] = []
        self.leftovers: list[str] = []
        self.foreign: list[str] = []
        self.built: BuiltReport | None = None
        self._is_incomplete = False

    @property
    def is_incomplete(self) -> bool:
        """Return whether a log was deleted during the inspection, so that the reports lack something."""
        return self._is_incomplete or any(log.is_gone for log in self.logs.values())

    def scan(self, only: str | None = None) -> None:
        """Scan all logs, or one of them."""
        names = sorted(each.name for each in self.folder.iterdir())
        logs = [log for name in names if (log := log_of(name, LOG)) and (self.folder / name).is_dir()]
        for log in logs if only is None else [only]:
            self._scan_log(log)
        if only is None:
            self._classify(names, set(logs))

    def unclaimed(self) -> Iterable[InspectedLog]:
        """Return the logs that no inspection has claimed yet."""
        return [log for log in self.logs.values() if log.kind == "plain"]

    def note(self, log: str, file: str, kind: DamageKind, reason: str) -> None:
        """Note damage that is not at a byte."""
        self.damage.append(Damage(log, file, None, kind, reason))

    def note_missing_package(self, error: MissingExtraError) -> None:
        """Note that something cannot be read because a package is not installed."""
        if str(error) not in self.notes:
            self.notes.append(str(error))

    def _scan_log(self, name: str) -> None:
        log = InspectedLog(self.folder, name)
        try:
            log.scan()
        except LogGoneError:
            self._is_incomplete = True
            return
        self.logs[name] = log
        self.damage += log.damage
        self.foreign += [f"{name}{LOG}/{each}" for each in log.foreign]

    def _classify(self, names: list[str], logs: set[str]) -> None:
        """Sort other files into leftovers of ours and foreign files."""
        for name in names:
            log = log_of(name, LOG, LOCK)
            if log in logs or (name == MANIFEST and self._has_manifest(name)):
                continue
            if log_of(name, LOG + NEW, LOG + GONE, LOCK):
                self.leftovers.append(name)
            elif not (self.folder / name).is_dir():
                self.foreign.append(name)

    def _has_manifest(self, name: str) -> bool:
        self.built = _read_manifest(self.folder / name)
        return self.built is not None


def _read_manifest(path: Path) -> BuiltReport | None:
    """Return the content of a manifest of ``build-index``; None if the file is something else, or is gone."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_MANIFEST:
            return None
        fields = json.loads(path.read_bytes())
        counts = [_as_int(fields[name]) for name in _COUNTS]
        times = [None if fields[name] is None else _as_int(fields[name]) for name in _TIMES]
        return BuiltReport(counts[0], len(list(fields["buckets"])), counts[1], counts[2], times[0], times[1])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None


def _as_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value
