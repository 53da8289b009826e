"""The data source ``pulsar_nack_trace``: trace folders as a table, or as a stream of the files that are closed.

A file is read in pieces that begin after a line's end; a task gets pieces of up to ``partitionBytes`` together, and
returns batches of Arrow. Files are found where the driver and the workers see them: a folder that all of them share.

The offset of a stream is for each writer the number of its last file that was read. A writer closes its files in order
and never changes one again, so a restart from a checkpoint reads each line once; of a file that is still being written
nothing is read. Files must not be deleted before the stream has read them.

A query that ends when all was read (``availableNow``) needs the source's help, or Spark stops after one batch: what
time brings then, such as the end of a window, would be told by the next run only. Where PySpark is too old to ask for
it, a setting of ``local_session`` does the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from ..errors import InvalidArgumentError
from ._lines import batches
from ._read import Read
from .schemas import TRACE

if TYPE_CHECKING:
    import pyarrow as pa

    _EndsByItself = object
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _EndsByItself
    except ImportError:
        _EndsByItself = object

NAME: Final = "pulsar_nack_trace"
SCHEMA: Final = StructType(
    [StructField(field.name, field.dataType) for field in TRACE.fields]
    + [StructField(name, StringType()) for name in ("file", "line", "fault")]
)
_PARTITION_BYTES: Final = 32 * 2**20
_FILE: Final = re.compile(r"trace-\d+-(?P<writer>[0-9a-f]+)-(?P<number>\d+)\.jsonl")


class TraceFile(NamedTuple):
    """A closed file: its writer, with the folder, its number there, and how large it is."""

    writer: str
    number: int
    path: str
    size: int


class Piece(NamedTuple):
    """Lines of a file that begin in a range of bytes."""

    path: str
    start: int
    stop: int


@dataclass
class TracePartition(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]


def register_source(spark: SparkSession) -> None:
    """Make ``format("pulsar_nack_trace")`` known to a session; ``local_session`` has done so already."""
    spark.dataSource.register(TraceSource)


def split_source(df: DataFrame) -> Read:
    """Split what the data source gave, of files or of a stream, into sound events and what was refused.

    The source gives refused lines too: their columns of ``TRACE`` are null, and ``file``, ``line`` and ``fault`` tell
    of them.
    """
    is_sound = sf.col("fault").isNull()
    return Read(
        df.where(is_sound).select(*TRACE.fieldNames()),
        df.where(~is_sound).select("file", "line", sf.col("fault").alias("reason")),
    )


class TraceSource(DataSource):
    """Trace folders: ``spark.read.format("pulsar_nack_trace").load(path)``, and ``readStream`` alike.

    Options: ``path``, a file or folder; ``partitionBytes``, how much a task reads (32 MiB).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of ``TRACE``, and ``file``, ``line`` and ``fault`` of lines that were refused."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table; another schema than that of traces is refused."""
        return _Reader(self._options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        return _StreamReader(self._options(schema))

    def _options(self, schema: StructType) -> _Options:
        if schema.fieldNames() != SCHEMA.fieldNames():
            raise InvalidArgumentError("schema", schema.simpleString(), f"none, or {SCHEMA.simpleString()}")
        return read_options(self.options)


class _Options(NamedTuple):
    path: str
    partition_bytes: int


def read_options(options: MutableMapping[str, str]) -> _Options:
    """Check the options of the source."""
    path = options.get("path", "").removeprefix("file://")
    if not Path(path).exists() or not path:
        raise InvalidArgumentError("path", path, "a file or folder that exists")
    given = options.get("partitionBytes", str(_PARTITION_BYTES))
    if not given.isdecimal() or int(given) < 1:
        raise InvalidArgumentError("partitionBytes", given, "a positive number of bytes")
    return _Options(path, int(given))


def closed_files(path: str) -> list[TraceFile]:
    """Return the closed files of a folder at any depth, in order of writers and numbers."""
    if Path(path).is_file():
        return [_trace_file(path, Path(path).parent.as_posix())]
    found = [Path(folder, name).as_posix() for folder, _, names in os.walk(path) for name in names]
    return sorted(_trace_file(each, path) for each in found if each.endswith(".jsonl"))


def _trace_file(path: str, root: str) -> TraceFile:
    folder, name = os.path.split(os.path.relpath(path, root))
    parts = _FILE.fullmatch(name)
    writer, number = (parts["writer"], int(parts["number"])) if parts else (name, 0)
    return TraceFile(f"{folder}/{writer}", number, path, Path(path).stat().st_size)


def deal(files: Sequence[TraceFile], most: int) -> list[TracePartition]:
    """Deal files out in pieces, together up to ``most`` bytes for each task."""
    tasks: list[list[Piece]] = [[]]
    room = most
    for file in files:
        for start in range(0, file.size, most):
            piece = Piece(file.path, start, min(start + most, file.size))
            if piece.stop - piece.start > room and tasks[-1]:
                tasks.append([])
                room = most
            tasks[-1].append(piece)
            room -= piece.stop - piece.start
    return [TracePartition(tuple(pieces)) for pieces in tasks if pieces]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, TracePartition)
    for path, start, stop in partition.pieces:
        yield from batches(path, start, stop)


class _Reader(DataSourceReader):
    def __init__(self, options: _Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads."""
        return deal(closed_files(self._options.path), self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read it."""
        return _read(partition)


class _StreamReader(DataSourceStreamReader, _EndsByItself):
    def __init__(self, options: _Options) -> None:
        self._options = options
        self._all: dict[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note what is there: what comes later is left to the next query."""
        self._all = self._last_files()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before all files."""
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
        """Return the last closed file of each writer; one whose files are gone keeps its place."""
        last = self._last_files() if self._all is None else self._all
        known: dict[str, int] = start or {}
        return {**known, **{writer: max(number, known.get(writer, -1)) for writer, number in last.items()}}

    def _last_files(self) -> dict[str, int]:
        files = closed_files(self._options.path)
        return {writer: max(file.number for file in each) for writer, each in groupby(files, lambda f: f.writer)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return what each task reads between two offsets."""
        files = closed_files(self._options.path)
        new = [file for file in files if start.get(file.writer, -1) < file.number <= end.get(file.writer, -1)]
        return deal(new, self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read it."""
        return _read(partition)
