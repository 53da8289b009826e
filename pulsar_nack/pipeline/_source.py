"""The session of the jobs, and its data source ``pulsar_nack_trace``: trace folders as a table, or as a stream.

Files are found and read as ``read_traces`` does it, see ``_read`` and ``_lines``: in splits that begin at a line, of
up to ``partitionBytes`` together for a task. The driver and all workers must see the folder. A stream reads closed
files only.

The offset of a stream lists, for each writer, the numbers of its files that were read. A closed file never changes, but
files may appear in any order, as those copied by another program do. So a restart from a checkpoint reads each line
once. Files must not be deleted before the stream has read them.

A query that ends when everything was read (``availableNow``) needs the source's help. Otherwise Spark stops after one
batch, and results that depend on time, such as the end of a window, would only come in the next run. If PySpark is too
old to ask the source, a setting of ``local_session`` has the same effect.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ..errors import InvalidArgumentError
from ..index import EntryRanges
from ._lines import read_splits
from ._read import ARROW_BYTES, NO_LIMIT, SPLIT_BYTES, TraceFile, assign_splits, trace_files
from .schemas import READ

if TYPE_CHECKING:
    _AvailableNow = object
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
    except ImportError:
        _AvailableNow = object

NAME: Final = "pulsar_nack_trace"
"""The name of the data source's format."""
STATE_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKS_DB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # it doubles the calls that describe a job to the JVM
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",  # see above
    STATE_STORE: ROCKS_DB,
}
_LOCAL_SETTINGS: Final = {
    ARROW_BYTES: NO_LIMIT,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}


def local_session(
    master: str | None = None, *, name: str = "pulsar-nack", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running Spark session, or start one: on all cores here, unless ``master`` or spark-submit differ.

    A local session lets the JVM that it starts use the parallel garbage collector, which makes most jobs a fifth
    faster, unless ``config`` or ``JAVA_TOOL_OPTIONS`` choose another collector. Spark's errors do not name lines of
    Python, unless ``config`` has ``spark.python.sql.dataFrameDebugging.enabled``: that costs time in each job.

    :param master: such as ``local[2]`` or ``spark://host:7077``; None: the master of ``spark-submit``, if it runs this
    :param config: further settings of Spark, which override those of this function
    """
    settings = dict(_SETTINGS)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    if master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= _LOCAL_SETTINGS | _collector()
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register_source(session)
    return session


def _collector() -> dict[str, str]:
    """Return the option for the parallel collector; with two collectors the JVM would not start."""
    chosen = "".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    return {} if "GC" in chosen else {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}


def register_source(spark: SparkSession) -> None:
    """Register ``format("pulsar_nack_trace")`` with a session; ``local_session`` does this already."""
    spark.dataSource.register(TraceSource)


class TraceSource(DataSource):
    """Trace folders: ``spark.read.format("pulsar_nack_trace").load(path)``, or ``readStream``.

    Options: ``path``, a file or folder; ``partitionBytes``, how much a task reads (32 MiB); ``includeOpen``, whether a
    table includes files that are still open.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of ``TRACE``, and ``file``, ``line`` and ``fault`` of refused lines."""
        return READ

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table; a schema other than that of traces is refused."""
        return _Reader(*self._checked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        path, partition_bytes, include_open = self._checked(schema)
        if include_open:
            raise InvalidArgumentError("includeOpen", "true", "false for a stream: what is read must not change")
        return _StreamReader(path, partition_bytes)

    def _checked(self, schema: StructType) -> tuple[str, int, bool]:
        """Return the options: path, bytes of a task, and whether open files are included."""
        if schema.fieldNames() != READ.fieldNames():
            raise InvalidArgumentError("schema", schema.simpleString(), f"none, or {READ.simpleString()}")
        path = self.options.get("path", "").removeprefix("file://")
        if not Path(path).exists() or not path:
            raise InvalidArgumentError("path", path, "a file or folder that exists")
        given = self.options.get("partitionBytes", str(SPLIT_BYTES))
        if not given.isdecimal() or int(given) < 1:
            raise InvalidArgumentError("partitionBytes", given, "a positive number of bytes")
        with_open = self.options.get("includeOpen", "false").lower()
        if with_open not in {"true", "false"}:
            raise InvalidArgumentError("includeOpen", with_open, "true or false")
        return path, int(given), with_open == "true"


def _partitions(files: Sequence[TraceFile], max_bytes: int) -> list[InputPartition]:
    return [InputPartition(splits) for splits in assign_splits(files, max_bytes)]


class _Reader(DataSourceReader):
    def __init__(self, path: str, partition_bytes: int, include_open: bool) -> None:
        self._path = path
        self._partition_bytes = partition_bytes
        self._include_open = include_open

    def partitions(self) -> Sequence[InputPartition]:
        """Return the input of each task."""
        return _partitions(trace_files([self._path], include_open=self._include_open), self._partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a partition."""
        return read_splits(partition.value)


Offset = dict[str, str]
"""The numbers of the files that were read, by writer, as ranges: ``1-5,7``."""


def _offset_of(files: Sequence[TraceFile]) -> Offset:
    found: dict[str, EntryRanges] = {}
    for file in files:
        found.setdefault(file.writer, EntryRanges()).add(file.number)
    return _texts(found)


def _union(one: Offset, other: Offset) -> Offset:
    found = _numbers(one)
    for writer, numbers in _numbers(other).items():
        mine = found.setdefault(writer, EntryRanges())
        for first, last in numbers.ranges():
            mine.add_range(first, last)
    return _texts(found)


def _numbers(offset: Offset) -> dict[str, EntryRanges]:
    found = {}
    for writer, text in offset.items():
        pairs = (each.partition("-") for each in text.split(","))
        found[writer] = EntryRanges.from_ranges((int(first), int(last or first)) for first, _, last in pairs)
    return found


def _texts(found: dict[str, EntryRanges]) -> Offset:
    return {
        writer: ",".join(str(first) if first == last else f"{first}-{last}" for first, last in numbers.ranges())
        for writer, numbers in sorted(found.items())
    }


class _StreamReader(DataSourceStreamReader, _AvailableNow):
    def __init__(self, path: str, partition_bytes: int) -> None:
        self._path = path
        self._partition_bytes = partition_bytes
        self._until: Offset | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the files that exist now; the next query reads later ones."""
        self._until = _offset_of(trace_files([self._path]))

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before all files."""
        return {}

    def latestOffset(self, start: Any = None, limit: Any = None) -> Offset:  # noqa: ARG002, N802 - Spark's
        """Return the numbers of all files seen so far; deleted ones are included."""
        there = _offset_of(trace_files([self._path])) if self._until is None else self._until
        return _union(start or {}, there)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the input of each task between two offsets."""
        before, until = _numbers(start), _numbers(end)
        new = [
            file
            for file in trace_files([self._path])
            if file.number in until.get(file.writer, ()) and file.number not in before.get(file.writer, ())
        ]
        return _partitions(new, self._partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a partition."""
        return read_splits(partition.value)
