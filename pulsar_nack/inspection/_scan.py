"""Going through a log's files without opening the log: nothing is locked, made, cut, synced or removed.

A reader that repairs nothing has to go on where the library stops. Damage ends a segment, unless what lies behind it is
wanted too; what the next segments hold is gone through all the same, and counted. A writer may be at work: the end of
the last file is looked at again before it is called torn, and a log that disappears meanwhile is told as gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import LogCorruptedError, LogVersionError
from ..ledger._files import Files, OsFiles
from ..ledger._names import LOG, is_own, segment_first, segment_name
from ..ledger._record import SEGMENT_HEADER_SIZE, Frame
from ..ledger._segment import Segment, Walk
from ..ledger._survey import seed_of
from ._damage import Damage, DamageKind

_LOOKS: Final = 4
_PAUSE_S: Final = 0.05


class LogGoneError(Exception):
    """The log is not there any more: its owner deleted it meanwhile."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """A file of a log: its first record, how many good ones of it count, and its size in bytes."""

    file: str
    first: int
    records: int
    bytes: int


class LogScan:
    """One log of a folder. What is found is there after :meth:`records` was gone through to its end.

    :param store: the folder of the store
    :param name: the log's name
    :param past_damage: whether whole frames behind damage are wanted; ``segments`` counts what is missing then, too
    """

    def __init__(self, store: Path, name: str, files: Files | None = None, *, past_damage: bool = False) -> None:
        self.name = name
        self.segments: list[SegmentReport] = []
        self.damage: list[Damage] = []
        self.foreign: list[str] = []
        self.is_sealed = False
        self.store = store
        self._folder = store / (name + LOG)
        self._files = files or OsFiles()
        self._past_damage = past_damage

    @property
    def length(self) -> int:
        """Return how many good records there are."""
        return sum(segment.records for segment in self.segments)

    @property
    def size(self) -> int:
        """Return how many bytes its files have."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def can_be_opened(self) -> bool:
        """Return whether the library would open the log: it looks at the names of the files, and at the last one."""
        looked_at = {segment_name(0) if not self.segments or self.segments[0].first else "", self._last_file}
        return not any(each.kind != "torn" and each.file in looked_at for each in self.damage)

    @property
    def can_be_salvaged(self) -> bool:
        """Return whether a cursor would open the log, for what is whole of it."""
        return not any(each.kind in ("newer", "unreadable") for each in self.damage)

    @property
    def _last_file(self) -> str:
        return self.segments[-1].file if self.segments else ""

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Go through all good records and their numbers, 16 MiB at most in memory at a time.

        :raises LogGoneError: it was deleted meanwhile
        """
        self.segments, self.damage, self.is_sealed = [], [], False
        firsts = self._firsts()
        for _ in range(1, _LOOKS):
            if firsts:
                break
            time.sleep(_PAUSE_S)  # it is being made or deleted, unless this lasts
            self.damage.clear()
            firsts = self._firsts()
        for first, end in zip(firsts, [*firsts[1:], None], strict=False):  # there may be none
            yield from self._segment(first, end)

    def _firsts(self) -> list[int]:
        try:
            names = self._files.names(self._folder)
        except FileNotFoundError as error:
            raise LogGoneError(self.name) from error
        except OSError as error:
            self._note("", None, "unreadable", error.strerror or str(error))
            return []
        self.foreign = sorted(name for name in names if not is_own(name))
        firsts = sorted(first for name in names if (first := segment_first(name)) is not None)
        if not firsts or firsts[0]:
            self._note(segment_name(0), None, "missing", "the file is missing")
        return firsts

    def _segment(self, first: int, end: int | None) -> Iterator[tuple[int, bytes]]:
        """Go through one file, up to the record with which the next one begins."""
        path = self._folder / segment_name(first)
        segment = Segment(self._files, self.name, path, first)
        number, offset, size = first, SEGMENT_HEADER_SIZE, 0
        try:
            if self._past_damage:
                self._find_seed(segment)
            for looks in range(_LOOKS):
                with Walk(segment, number, offset) as walk:
                    size = walk.size
                    yield from self._frames(walk, path.name, end)
                    number, offset = walk.number, walk.end
                    if self._is_at_end(walk, path.name, end, is_last_look=looks + 1 == _LOOKS):
                        break
                time.sleep(_PAUSE_S)
        except LogVersionError as error:
            self._note(path.name, 0, "newer", f"version {error.version} of the format")
        except LogCorruptedError as error:
            self._note(path.name, error.offset, "damaged", error.reason)
        except FileNotFoundError as error:
            if not self._folder.is_dir():
                raise LogGoneError(self.name) from error
            self._note(path.name, None, "missing", "the file is missing")
        except OSError as error:
            self._note(path.name, None, "unreadable", error.strerror or str(error))
        good = number if end is None else min(number, end)
        self.segments.append(SegmentReport(path.name, first, good - first, size))

    def _find_seed(self, segment: Segment) -> None:
        try:
            with Walk(segment, segment.first, SEGMENT_HEADER_SIZE):
                pass
        except LogCorruptedError:
            segment.seed = seed_of(self._files, segment)

    def _frames(self, walk: Walk, file: str, end: int | None) -> Iterator[tuple[int, bytes]]:
        while walk.end < walk.size and not (self.is_sealed and end is None) and (end is None or walk.number < end):
            number, begin, frame = walk.number, walk.end, walk.step()
            if not isinstance(frame, Frame):
                if not self._past_damage or (end is None and walk.is_torn(frame)):
                    return
                self._note(file, begin, "damaged", walk.damage(frame).reason)
                walk.skip(frame)
                continue
            self.is_sealed = frame.is_seal
            records = frame.records(0, None if end is None else end - number)
            yield from enumerate(records, number)

    def _is_at_end(self, walk: Walk, file: str, end: int | None, *, is_last_look: bool) -> bool:
        """Return whether nothing more is to be read; where that is by damage, note it."""
        if end is not None and walk.number >= end:
            return True
        if walk.end >= walk.size:
            if end is not None:
                self._note(file, walk.end, "damaged", f"the file ends before record {end}")
            return True
        if self.is_sealed and end is None:
            self._note(file, walk.end, "damaged", "bytes after the seal")
            return True
        found = walk.step()
        if isinstance(found, Frame):
            return False
        if end is None and walk.is_torn(found):
            if is_last_look:
                rest = walk.size - walk.end
                self._note(file, walk.end, "torn", f"{rest:,} bytes of an append that was not finished")
            return is_last_look
        self._note(file, walk.end, "damaged", walk.damage(found).reason)
        return True

    def _note(self, file: str, offset: int | None, kind: DamageKind, reason: str) -> None:
        self.damage.append(Damage(self.name, file, offset, kind, reason))
