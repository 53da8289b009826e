"""Reads traces into events, and into refused lines with their reasons; no line is dropped silently.

This module decides which files are read, and ``_lines`` which lines are accepted; the data source uses both. Workers
read files of this machine. Spark lists and reads files that only it can reach, and workers parse their lines.

In a folder, at any depth, files that end in one of :data:`SUFFIXES` are trace files. Files and folders whose name
begins with ``_`` or ``.`` are unfinished work of other programs, and are ignored. Files that the trace writer has not
closed yet (``.open``) count only on request. A file that is passed by its path is always read.

A writer's file is identified by writer and number: of several copies, in any folder, one is read. Other files are
identified by their path. Links to folders are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from ..errors import InvalidArgumentError
from ._jobs import require_columns, require_fields
from ._lines import (
    LINES,
    PACKED,
    PARQUET,
    PARQUET_ERRORS,
    InputSplit,
    check_batches,
    kinds_of,
    parse_batches,
    raise_system_error,
    read_splits,
)
from .schemas import READ, TRACE

_T = TypeVar("_T")

OPEN: Final = ".jsonl.open"
SUFFIXES: Final = (LINES, PACKED, PARQUET)
"""The suffixes of closed files; of several copies the one with the first suffix is read."""

SPLIT_BYTES: Final = 32 * 2**20
"""How many bytes a task reads by default."""

_FILE: Final = re.compile(r"trace-\d+-(?P<writer>[0-9a-f]+)-(?P<number>\d{1,18})(?P<suffix>\.[a-z.]+)")

ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
"""The setting for how many bytes Spark sends to a worker at once, besides the limit of 10 000 rows."""
NO_LIMIT: Final = str(2**31 - 1)
"""The value that ends the limit: with one Spark measures the batch for each row, half of the time that rows take."""
_BATCH_LIMIT: Final = "64m"
_COLUMNS: Final = TRACE.fieldNames()
_SPECIAL: Final = "\\{}[]*?^"
"""Characters that Spark takes as a pattern in a path."""

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
"""One path, or several."""


class Read(NamedTuple):
    """Traces that were read: ``traces`` with the schema ``TRACE``, and ``quarantine`` with ``QUARANTINE``.

    Both are lazy, so each use reads the input again.
    """

    traces: DataFrame
    quarantine: DataFrame

    def refused(self) -> dict[str, int]:
        """Return the number of refused lines by reason. Reads the input."""
        rows = self.quarantine.groupBy("reason").count().orderBy("reason").collect()
        return {row["reason"]: row["count"] for row in rows}


def read_traces(spark: SparkSession, paths: Paths, *, include_open: bool = False) -> Read:
    """Read trace files, ``.jsonl`` (also ``.jsonl.gz``) and ``.parquet``, from files and from folders at any depth.

    In folders, names that begin with ``_`` or ``.`` are ignored. Of copies, files with the same writer and number in
    their names, one is read. Paths are taken literally: ``*`` is not a pattern.

    :param paths: files and folders that Spark can reach; they are read together
    :param include_open: also read files that are still being written, or were left by a kill; a half-written line goes
        to the quarantine
    :raises InvalidArgumentError: a file does not exist, or the columns of Parquet are not those of a trace
    """
    where = path_names(paths)
    local = [_local_path(spark, path) for path in where]
    if None in local:
        return _read_by_spark(spark, where, include_open)
    try:
        files = trace_files((path for path in local if path is not None), include_open=include_open)
    except FileNotFoundError as error:
        raise InvalidArgumentError("paths", where, "files or folders that exist") from error
    _check_files(where, files)
    for file in files:
        if file.suffix == PARQUET:
            _check_parquet(file.path)
    tasks = assign_splits(files)
    return split_source(read_each(spark, tasks, read_splits, READ))


def split_source(df: DataFrame) -> Read:
    """Split the rows of a reader, such as those of the data source, into events and refused lines.

    In the rows of refused lines the columns of ``TRACE`` are null, and ``file``, ``line`` and ``fault`` are set.
    """
    is_sound = sf.col("fault").isNull()
    return Read(
        df.where(is_sound).select(*_COLUMNS),
        df.where(~is_sound).select("file", "line", sf.col("fault").alias("reason")),
    )


def check_traces(df: DataFrame) -> Read:
    """Check and split the events of a DataFrame, from Parquet for instance, as :func:`read_traces` does.

    :raises InvalidArgumentError: columns are missing; names the required columns and those found
    """
    require_columns(df, TRACE)
    return split_source(_checked(df.select(*_COLUMNS, sf.lit(None).cast("string").alias("file"))))


def _checked(df: DataFrame) -> DataFrame:
    return df.mapInArrow(check_batches, READ)


def _check_files(where: Sequence[str], files: Sequence[TraceFile]) -> None:
    if not files:
        raise InvalidArgumentError("paths", where, "trace files (.jsonl, closed, or .parquet) in them")


def _check_parquet(path: str) -> None:
    try:
        require_fields(kinds_of(pq.read_schema(path)), TRACE)
    except PARQUET_ERRORS as error:  # a broken file goes to the quarantine when it is read
        raise_system_error(error)


def read_each(
    spark: SparkSession,
    items: Sequence[_T],
    read: Callable[[_T], Iterable[pa.RecordBatch]],
    schema: StructType,
    max_tasks: int | None = None,
) -> DataFrame:
    """Return the rows that ``read`` yields on a worker for each item, by default in a task for each.

    Items are sent with the function: a DataFrame of their numbers is made by Spark alone.
    """

    def read_numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(items[number])

    tasks = max(len(items) if max_tasks is None else min(len(items), max_tasks), 1)
    return spark.range(0, len(items), 1, tasks).mapInArrow(read_numbered, schema)


def path_names(paths: Paths) -> list[str]:
    """Return paths as text; at least one is required."""
    names = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not names:
        raise InvalidArgumentError("paths", names, "at least one file or folder")
    return [fspath(name) for name in names]


# --- files ----------------------------------------------------------------------------------------------------------


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
            stop = min(start + step, file.size)
            if stop - start > room and tasks[-1]:
                tasks.append([])
                room = max_bytes
            tasks[-1].append((file.path, start, stop))
            room -= stop - start
    return [tuple(splits) for splits in tasks if splits]


# --- files that only Spark can reach --------------------------------------------------------------------------------


def _local_path(spark: SparkSession, path: str) -> str | None:
    """Return the path on this machine; None if it is on another file system."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        return None
    hadoop: Any = spark.sparkContext._jsc
    return path if hadoop.hadoopConfiguration().get("fs.defaultFS", "file:///").startswith("file:") else None


def _read_by_spark(spark: SparkSession, where: Sequence[str], include_open: bool) -> Read:
    files = without_copies(file for root in where for file in _listed(spark, root, include_open))
    _check_files(where, files)
    parquet = [_literal(file.path) for file in files if file.suffix == PARQUET]
    lines = [_literal(file.path) for file in files if file.suffix != PARQUET]
    if spark.conf.get(ARROW_BYTES, None) == NO_LIMIT:
        spark.conf.set(ARROW_BYTES, _BATCH_LIMIT)  # foreign lines may be long, and Spark does not cut them
    found: list[DataFrame] = []
    name = sf.col("_metadata.file_path").alias("file")
    if lines:
        text = spark.read.text(lines, lineSep="\n")
        found.append(text.select(name, sf.col("value").cast("binary").alias("line")).mapInArrow(parse_batches, READ))
    if parquet:
        events = spark.read.parquet(*parquet)
        require_columns(events, TRACE)
        found.append(_checked(events.select(*_COLUMNS, name)))
    return split_source(found[0] if len(found) == 1 else found[0].unionByName(found[1]))


def _literal(path: str) -> str:
    """Return a path whose characters for patterns are escaped for Spark."""
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in path)


def _listed(spark: SparkSession, root: str, include_open: bool) -> Iterator[TraceFile]:
    """List the trace files of a folder, or a single file, with Hadoop's file systems."""
    jvm: Any = spark.sparkContext._jvm
    context: Any = spark.sparkContext._jsc
    path = jvm.org.apache.hadoop.fs.Path(root)
    system = path.getFileSystem(context.hadoopConfiguration())
    if not system.exists(path):
        raise InvalidArgumentError("paths", root, "files or folders that exist")
    status = system.getFileStatus(path)
    if status.isFile():
        yield trace_file(str(status.getPath()), path.getName(), status.getLen())
        return
    top = status.getPath().toUri().getPath().rstrip("/") + "/"
    found = system.listFiles(status.getPath(), True)  # noqa: FBT003 - Java knows no names
    while found.hasNext():
        each = found.next()
        name = each.getPath().toUri().getPath().removeprefix(top)
        if is_read(name, include_open=include_open):
            yield trace_file(each.getPath().toString(), name, each.getLen())
