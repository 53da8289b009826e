"""Readers of acknowledgement state: cursor folders, and internal statistics of brokers.

The driver only lists what there is; each folder or file is read on an executor, which must see it under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StringType, StructField, StructType

from ..errors import InvalidArgumentError
from ..inspection._folder import stores_in
from ._checks import Paths, path_names
from ._cursor_folders import read_store
from ._hole_figures import HoleRow, RefusedRow
from ._internal_stats import read_stats
from .schemas import HOLES

if TYPE_CHECKING:
    import pyarrow

_MOST_SLICES: Final = 1_000
_BATCH: Final = 10_000
_SUFFIXES: Final = {".json", ".jsonl"}
_REFUSED: Final = StructType([StructField("path", StringType()), StructField("reason", StringType())])
"""What could not be read, and why."""

_READ: Final = StructType([*HOLES.fields, *_REFUSED.fields])
"""Both of them: ``reason`` is null in a row of holes."""


class ReadHoles(NamedTuple):
    """Rows of :data:`~pulsar_nack.pipeline.schemas.HOLES`, and what could not be read: ``path`` and ``reason``.

    Both are read when they are used, each time anew; cache them where the files change meanwhile.
    """

    holes: DataFrame
    quarantine: DataFrame


def read_cursors(spark: SparkSession, paths: Paths) -> ReadHoles:
    """Read the cursors in folders of the library, and in folders in them: those of local topics, and others.

    Nothing is changed or locked. A cursor is told as its next opening finds it; what is damaged goes to the quarantine.

    :raises InvalidArgumentError: there is no such folder, or none with logs in it
    """
    folders = [store for path in path_names(paths) for store in _stores(Path(path))]
    return _read(spark, folders, read_store)


def read_internal_stats(spark: SparkSession, paths: Paths) -> ReadHoles:
    """Read internal statistics of topics: .json files of the admin API, or folders of them.

    :raises InvalidArgumentError: there is no such file, or no .json or .jsonl in a folder
    """
    files = [file for path in path_names(paths) for file in _files(Path(path))]
    return _read(spark, files, read_stats_file)


def read_stats_file(path: str) -> list[HoleRow | RefusedRow]:
    """Return what a file of internal statistics says, and what of it cannot be read."""
    file = Path(path)
    try:
        written_ms = file.stat().st_mtime_ns // 1_000_000
        return list(read_stats(path, file.read_text(encoding="utf-8"), written_ms))
    except UnicodeDecodeError as error:
        return [RefusedRow(path, f"it is no UTF-8: byte {error.start} is {error.object[error.start]:#x}")]
    except OSError as error:
        return [RefusedRow(path, f"it cannot be read: {error.strerror or error}")]


def _read(spark: SparkSession, paths: Sequence[str], read: Callable[[str], list[HoleRow | RefusedRow]]) -> ReadHoles:
    slices = min(len(paths), _MOST_SLICES)
    listed = spark.createDataFrame([(path,) for path in paths], "path string").repartition(slices)
    found = listed.mapInArrow(_reader(read), _READ)
    is_refused = F.col("reason").isNotNull()
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


# --- what is there --------------------------------------------------------------------------------------------------


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
