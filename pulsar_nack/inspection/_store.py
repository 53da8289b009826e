"""A folder of logs, read without opening them: nothing is locked, made, cut, synced or removed.

Each log is scanned once, then each inspection claims the logs that it understands.

A reader that repairs nothing has to continue where the library stops. Damage ends a segment, unless the frames behind
it are wanted too; the next segments are read and counted in any case. A writer may be active: the end of the last file
is read again before it is called torn, and a log that disappears meanwhile counts as deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import LogCorruptedError, LogVersionError, MissingExtraError
from ..ledger.files import OsFiles
from ..ledger.format import (
    GONE,
    LOCK,
    LOG,
    NEW,
    SEGMENT_HEADER_SIZE,
    Frame,
    is_log_file,
    log_of,
    segment_first,
    segment_name,
)
from ..ledger.segments import FrameReader, Segment
from ._report import BuiltReport, Damage, DamageKind, LogKind, LogReport, SegmentReport

MANIFEST: Final = "manifest.json"
"""The file in which ``build-index`` notes what it built; nothing that reads the index needs it."""
_LARGEST_MANIFEST: Final = 1 << 28
_COUNTS: Final = ("rows", "segments", "bytes")
_TIMES: Final = ("first_at", "last_at")
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.05
_KEPT: Final = 1 << 16


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
        except FileNotFoundError:
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


# --- one log ----------------------------------------------------------------------------------------------------------


class InspectedLog:
    """A log of a folder: what :meth:`scan` has found in its files.

    :param store: the folder of the store
    :param name: the log's name
    """

    def __init__(self, store: Path, name: str, *, past_damage: bool = False) -> None:
        self.name = name
        self.kind: LogKind = "plain"
        self.first = self.last = b""
        """The first and the last record, unless they are large."""
        self.segments: list[SegmentReport] = []
        self.damage: list[Damage] = []
        self.foreign: list[str] = []
        self.is_sealed = False
        self.is_gone = False
        """Whether the log's owner has deleted it after the scan."""
        self._store = store
        self._folder = store / (name + LOG)
        self._files = OsFiles()
        self._past_damage = past_damage

    @property
    def length(self) -> int:
        """Return how many good records the log has."""
        return sum(segment.records for segment in self.segments)

    @property
    def size(self) -> int:
        """Return how many bytes the log's files have."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def can_be_salvaged(self) -> bool:
        """Return whether a cursor would open the log to read its whole records."""
        return not any(each.kind in ("newer", "unreadable") for each in self.damage)

    def report(self) -> LogReport:
        """Return the report on this log."""
        return LogReport(self.name, self.kind, self.length, self.size, self.is_sealed, tuple(self.segments))

    def scan(self) -> None:
        """Read all records, 16 MiB at most in memory at a time, and note the damage.

        :raises FileNotFoundError: the log's owner has deleted it meanwhile
        """
        for number, data in self._read():
            kept = data if len(data) <= _KEPT else b""
            self.first, self.last = self.first if number else kept, kept

    def records(self) -> Iterator[bytes]:
        """Iterate over the records again, without noting damage again."""
        return (data for _, data in self.numbered())

    def numbered(self, *, past_damage: bool = False) -> Iterator[tuple[int, bytes]]:
        """Iterate over the records and their numbers again; records behind damage in a file are left out.

        If the log is deleted meanwhile, the iteration ends, and ``is_gone`` is set.

        :param past_damage: leave out only what is damaged
        """
        try:
            yield from InspectedLog(self._store, self.name, past_damage=past_damage)._read()
        except FileNotFoundError:
            self.is_gone = True

    def _read(self) -> Iterator[tuple[int, bytes]]:
        firsts = self._firsts()
        for _ in range(1, _ATTEMPTS):
            if firsts:
                break
            time.sleep(_PAUSE_S)  # the log may be in the making, or just being deleted
            self.damage.clear()
            firsts = self._firsts()
        for first, end in zip(firsts, [*firsts[1:], None], strict=False):  # there may be none
            yield from self._segment(first, end)

    def _firsts(self) -> list[int]:
        try:
            names = self._files.names(self._folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._note("", None, "unreadable", error.strerror or str(error))
            return []
        self.foreign = sorted(name for name in names if not is_log_file(name))
        firsts = sorted(first for name in names if (first := segment_first(name)) is not None)
        if not firsts or firsts[0]:
            self._note(segment_name(0), None, "missing", "the file is missing")
        return firsts

    def _segment(self, first: int, end: int | None) -> Iterator[tuple[int, bytes]]:
        """Iterate over the records of one file, up to the record with which the next file begins."""
        path = self._folder / segment_name(first)
        segment = Segment(self._files, self.name, path, first)
        number, offset, size = first, SEGMENT_HEADER_SIZE, 0
        try:
            if self._past_damage:
                with suppress(LogCorruptedError):
                    segment.recover_seed()
            for attempt in range(_ATTEMPTS):
                with FrameReader(segment, number, offset) as reader:
                    size = reader.size
                    yield from self._frames(reader, path.name, end)
                    number, offset = reader.number, reader.end
                    if self._is_at_end(reader, path.name, end, is_last_attempt=attempt + 1 == _ATTEMPTS):
                        break
                time.sleep(_PAUSE_S)
        except LogVersionError as error:
            self._note(path.name, 0, "newer", f"version {error.version} of the format")
        except LogCorruptedError as error:
            self._note(path.name, error.offset, "damaged", error.reason)
        except FileNotFoundError:
            if not self._folder.is_dir():
                raise
            self._note(path.name, None, "missing", "the file is missing")
        except OSError as error:
            self._note(path.name, None, "unreadable", error.strerror or str(error))
        good = number if end is None else min(number, end)
        self.segments.append(SegmentReport(path.name, first, good - first, size))

    def _frames(self, reader: FrameReader, file: str, end: int | None) -> Iterator[tuple[int, bytes]]:
        while (
            reader.end < reader.size and not (self.is_sealed and end is None) and (end is None or reader.number < end)
        ):
            number, begin, frame = reader.number, reader.end, reader.read_frame()
            if not isinstance(frame, Frame):
                if not self._past_damage or (end is None and reader.is_torn(frame)):
                    return
                self._note(file, begin, "damaged", reader.damage(frame).reason)
                reader.skip(frame)
                continue
            self.is_sealed = frame.is_seal
            records = frame.records(0, None if end is None else end - number)
            yield from enumerate(records, number)

    def _is_at_end(self, reader: FrameReader, file: str, end: int | None, *, is_last_attempt: bool) -> bool:
        """Return whether nothing more is to be read; note damage that is the reason."""
        if end is not None and reader.number >= end:
            return True
        if reader.end >= reader.size:
            if end is not None:
                self._note(file, reader.end, "damaged", f"the file ends before record {end}")
            return True
        if self.is_sealed and end is None:
            self._note(file, reader.end, "damaged", "bytes after the seal")
            return True
        found = reader.read_frame()
        if isinstance(found, Frame):
            return False
        if end is None and reader.is_torn(found):
            if is_last_attempt:
                rest = reader.size - reader.end
                self._note(file, reader.end, "torn", f"{rest:,} bytes of an append that was not finished")
            return is_last_attempt
        self._note(file, reader.end, "damaged", reader.damage(found).reason)
        return True

    def _note(self, file: str, offset: int | None, kind: DamageKind, reason: str) -> None:
        self.damage.append(Damage(self.name, file, offset, kind, reason))
