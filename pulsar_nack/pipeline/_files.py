"""Finds the files of a trace, and cuts them into splits for tasks; all readers use these rules.

In a folder, at any depth, files that end in one of :data:`SUFFIXES` are trace files. Files and folders whose name
begins with ``_`` or ``.`` are unfinished work of other programs, and are ignored. Files that the trace writer has not
closed yet (``.open``) count only on request. A file that is passed by its path is always read.

A writer's file is identified by writer and number: of several copies, in any folder, one is read. Other files are
identified by their path. Links to folders are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

LINES: Final = ".jsonl"
PACKED: Final = ".jsonl.gz"
PARQUET: Final = ".parquet"
OPEN: Final = ".jsonl.open"
SUFFIXES: Final = (LINES, PACKED, PARQUET)
"""The suffixes of closed files; of several copies the one with the first suffix is read."""

SPLIT_BYTES: Final = 32 * 2**20
"""How many bytes a task reads by default."""

_FILE: Final = re.compile(r"trace-\d+-(?P<writer>[0-9a-f]+)-(?P<number>\d{1,18})(?P<suffix>\.[a-z.]+)")


class TraceFile(NamedTuple):
    """A trace file and its size; ``writer`` and ``number`` from its name, or its path below the folder and 0."""

    writer: str
    number: int
    path: str
    size: int

    @property
    def suffix(self) -> str:
        """Return the suffix of the name; empty if it is not that of a trace file."""
        return next((each for each in (*SUFFIXES, OPEN) if self.path.endswith(each)), "")


class InputSplit(NamedTuple):
    """The lines of a file that begin in a range of bytes; a gzip or Parquet file is always one split."""

    path: str
    start: int
    stop: int


def trace_files(roots: Iterable[str], *, include_open: bool = False) -> list[TraceFile]:
    """Return the trace files of folders, and files passed by path, sorted by writer and number.

    :raises FileNotFoundError: a root does not exist
    """
    found: list[TraceFile] = []
    for root in roots:
        if Path(root).is_dir():
            found += (file for name in _walk(root) if (file := _file_in(root, name, include_open)) is not None)
        else:
            found.append(trace_file(root, Path(root).name, Path(root).stat().st_size))
    return without_copies(found)


def trace_file(path: str, name: str, size: int) -> TraceFile:
    """Return a TraceFile; ``name`` is its path below the folder in which it was found."""
    parts = _FILE.fullmatch(name.rpartition("/")[2])
    if parts is None or parts["suffix"] not in {*SUFFIXES, OPEN}:
        return TraceFile(name, 0, path, size)
    return TraceFile(parts["writer"], int(parts["number"]), path, size)


def is_read(name: str, *, include_open: bool) -> bool:
    """Return whether a file in a folder is read; ``name`` is its path below that folder."""
    if any(part.startswith(("_", ".")) for part in name.split("/")):
        return False
    return name.endswith((*SUFFIXES, OPEN) if include_open else SUFFIXES)


def without_copies(files: Iterable[TraceFile]) -> list[TraceFile]:
    """Return one copy of each file: a closed one rather than an open one, then the largest."""
    chosen: dict[tuple[str, int] | str, TraceFile] = {}
    for file in sorted((each for each in files if each.suffix), key=_preference):
        is_named = _FILE.fullmatch(Path(file.path).name) is not None
        chosen.setdefault((file.writer, file.number) if is_named else os.path.realpath(file.path), file)
    return sorted(chosen.values())


def _preference(file: TraceFile) -> tuple[int, int, str]:
    return (*SUFFIXES, OPEN).index(file.suffix), -file.size, file.path


def _walk(root: str) -> Iterable[str]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name).relative_to(root).as_posix() for name in names)


def _file_in(root: str, name: str, include_open: bool) -> TraceFile | None:
    path = Path(root, name)
    if not is_read(name, include_open=include_open) or not path.is_file():
        return None
    try:
        return trace_file(path.as_posix(), name, path.stat().st_size)
    except FileNotFoundError:  # the file was just removed or closed
        return None


def assign_splits(files: Sequence[TraceFile], max_bytes: int = SPLIT_BYTES) -> list[tuple[InputSplit, ...]]:
    """Cut files into splits, and return those of each task, up to ``max_bytes`` bytes together."""
    tasks: list[list[InputSplit]] = [[]]
    room = max_bytes
    for file in files:
        step = max_bytes if file.suffix in {LINES, OPEN} else max(file.size, 1)
        for start in range(0, file.size, step):
            split = InputSplit(file.path, start, min(start + step, file.size))
            if split.stop - split.start > room and tasks[-1]:
                tasks.append([])
                room = max_bytes
            tasks[-1].append(split)
            room -= split.stop - split.start
    return [tuple(splits) for splits in tasks if splits]
