"""Readers of acknowledgement state: cursor folders, and internal statistics of brokers.

The driver only lists folders and files; an executor reads each of them, and must see it under the same path.

Cursor folders and local topics are read as ``inspect`` reads them. The topic is the name of the folder; the
subscription is that of a local topic, or else the cursor's name. The time is the last write to the cursor's log, so
copies that keep the times of files can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from ..cursor.format import subscription_of
from ..errors import InvalidArgumentError, PulsarNackError
from ..inspection.folders import CursorFolder, FoundCursor, inspect_cursor_folder, stores_in
from ..ledger.format import LOG
from ._checks import Paths, path_names
from ._hole_figures import ACKED, BATCH, CURSOR, LEDGER, STATE, HoleRow, RefusedRow
from ._internal_stats import read_stats
from .schemas import HOLES

if TYPE_CHECKING:
    import pyarrow

_MAX_SLICES: Final = 1_000
_BATCH: Final = 10_000
_SUFFIXES: Final = {".json", ".jsonl"}
_REFUSED: Final = StructType([StructField("path", StringType()), StructField("reason", StringType())])
"""A folder or file that could not be read, and the reason."""

_READ: Final = StructType([*HOLES.fields, *_REFUSED.fields])
"""Rows of both kinds: ``reason`` is null in a row of holes."""


class ReadHoles(NamedTuple):
    """Rows of :data:`~pulsar_nack.pipeline.schemas.HOLES`, and what could not be read: ``path`` and ``reason``.

    Each use reads the files again; cache both if the files change.
    """

    holes: DataFrame
    quarantine: DataFrame


def read_cursors(spark: SparkSession, paths: Paths) -> ReadHoles:
    """Read the cursors in folders of the library and their subfolders, including those of local topics.

    Nothing is changed or locked. A cursor is read in the state of its next opening; damage goes to the quarantine.

    :raises InvalidArgumentError: a folder does not exist, or holds no logs
    """
    folders = [store for path in path_names(paths) for store in _stores(Path(path))]
    return _read(spark, folders, read_cursor_folder)


def read_internal_stats(spark: SparkSession, paths: Paths) -> ReadHoles:
    """Read internal statistics of topics: .json files of the admin API, or folders of them.

    :raises InvalidArgumentError: a path does not exist, or a folder holds no .json or .jsonl
    """
    files = [file for path in path_names(paths) for file in _files(Path(path))]
    return _read(spark, files, read_stats_file)


def read_stats_file(path: str) -> list[HoleRow | RefusedRow]:
    """Return the rows of a file of internal statistics, and what cannot be read."""
    file = Path(path)
    try:
        written_ms = file.stat().st_mtime_ns // 1_000_000
        return list(read_stats(path, file.read_text(encoding="utf-8"), written_ms))
    except UnicodeDecodeError as error:
        return [RefusedRow(path, f"not UTF-8: byte {error.start} is {error.object[error.start]:#x}")]
    except OSError as error:
        return [RefusedRow(path, f"cannot be read: {error.strerror or error}")]


def _read(spark: SparkSession, paths: Sequence[str], read: Callable[[str], list[HoleRow | RefusedRow]]) -> ReadHoles:
    slices = min(len(paths), _MAX_SLICES)
    listed = spark.createDataFrame([(path,) for path in paths], "path string").repartition(slices)
    found = listed.mapInArrow(_reader(read), _READ)
    is_refused = sf.col("reason").isNotNull()
    return ReadHoles(
        found.where(~is_refused).select(*HOLES.fieldNames()), found.where(is_refused).select(*_REFUSED.fieldNames())
    )


def _reader(
    read: Callable[[str], list[HoleRow | RefusedRow]],
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for path in batch.column("path").to_pylist():
                rows = read(path)
                for at in range(0, len(rows), _BATCH):
                    yield _batch(rows[at : at + _BATCH])

    return run


def _batch(rows: Sequence[HoleRow | RefusedRow]) -> pyarrow.RecordBatch:
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    none = (None,) * len(HOLES)
    whole = [(*row, None, None) if isinstance(row, HoleRow) else (*none, *row) for row in rows]
    schema = to_arrow_schema(_READ)
    columns = zip(zip(*whole, strict=True), schema.types, strict=True)
    return pyarrow.RecordBatch.from_arrays([pyarrow.array(values, kind) for values, kind in columns], schema=schema)


# --- cursor folders -------------------------------------------------------------------------------------------------


def read_cursor_folder(path: str) -> list[HoleRow | RefusedRow]:
    """Return the rows of a folder's cursors, and the damage. Blocks; changes and locks nothing."""
    try:
        return _rows(inspect_cursor_folder(Path(path)))
    except OSError as error:
        return [RefusedRow(path, f"cannot be read: {error.strerror or error}")]
    except PulsarNackError as error:
        return [RefusedRow(path, str(error))]


def _rows(store: CursorFolder) -> list[HoleRow | RefusedRow]:
    ledgers = () if store.topic is None else store.topic.ledgers
    lengths = {each.ledger: (each.entries, each.bytes) for each in ledgers}
    rows: list[HoleRow | RefusedRow] = []
    for cursor in store.cursors:
        rows += _cursor_rows(store, cursor, lengths)
    for each in store.damage:
        if each.kind != "torn":
            where = "" if each.offset is None else f" at byte {each.offset}"
            file = "/".join(filter(None, (f"{each.log}{LOG}", each.file)))
            rows.append(RefusedRow(f"{store.folder}/{file}", f"{each.kind}{where}: {each.reason}"))
    rows += [RefusedRow(str(store.folder), note) for note in store.notes]
    return rows


def _cursor_rows(store: CursorFolder, cursor: FoundCursor, lengths: dict[int, tuple[int, int]]) -> Iterator[HoleRow]:
    report = cursor.report
    subscription = subscription_of(report.name) or report.name
    topic, at_ms = store.folder.name, _written_ms(store.folder / (report.log + LOG))
    at = cursor.mark_delete
    marker = report.size_bytes - sum(each.bytes for each in report.ledgers)
    yield HoleRow(topic, subscription, at_ms, CURSOR, at.ledger, at.entry, at.entry, marker)
    for each in report.ledgers:
        yield HoleRow(topic, subscription, at_ms, STATE, each.ledger, None, None, each.bytes)
        acks = cursor.states[each.ledger]
        for first, last in acks.ranges.ranges():
            yield HoleRow(topic, subscription, at_ms, ACKED, each.ledger, first, last)
        for entry in sorted(acks.batches):
            yield HoleRow(topic, subscription, at_ms, BATCH, each.ledger, entry, entry)
    for ledger, (entries, size) in lengths.items():
        yield HoleRow(topic, subscription, at_ms, LEDGER, ledger, 0, entries - 1, size)


def _written_ms(log: Path) -> int | None:
    """Return when a log was written last, None if it is gone."""
    try:
        return max((each.stat().st_mtime_ns for each in log.iterdir()), default=0) // 1_000_000
    except OSError:
        return None


# --- lists of paths -------------------------------------------------------------------------------------------------


def _stores(path: Path) -> list[str]:
    if not path.is_dir():
        raise InvalidArgumentError("paths", str(path), "a folder that exists")
    found = [str(each) for each in stores_in(path.resolve())]
    if not found:
        raise InvalidArgumentError("paths", str(path), "a folder with logs of this library in it or below")
    return found


def _files(path: Path) -> list[str]:
    if path.is_file():
        return [str(path.resolve())]
    if not path.is_dir():
        raise InvalidArgumentError("paths", str(path), "a file or a folder that exists")
    found = sorted(str(each.resolve()) for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
    if not found:
        raise InvalidArgumentError("paths", str(path), "a folder with .json or .jsonl files in it or below")
    return found
