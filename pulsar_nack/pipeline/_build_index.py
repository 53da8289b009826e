"""The job that builds the index of a bucket tracker from the metadata of its messages.

It reads the rows twice. The first pass counts them by blocks of entries, which shows where buckets end
(``_build_buckets``), and finds invalid rows before anything is written. The second pass partitions the rows in order of
position, and workers cut, encode and write one bucket at a time, so a worker holds one bucket. The rows, name and bytes
of a bucket depend on the input alone, not on how Spark partitions it; so a task that is repeated, or runs twice at a
time, writes the same bytes. ``path`` does not exist before the rename at the end.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from os import PathLike
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema

from .._check import as_folder
from ..config import BucketConfig
from ..errors import InvalidArgumentError, LogStorageError, PulsarNackError
from ._build_buckets import (
    BLOCK_BITS,
    BOUNDS,
    UNIT_ROWS,
    Block,
    Longs,
    Rows,
    Unit,
    make_units,
    refused,
    split_evenly,
)
from ._build_folder import BuiltIndex, WrittenSnapshot, building, check_target, finish_build, write_snapshots
from ._jobs import require_columns
from .schemas import METADATA, _schema_of

_MAX_PARTS: Final = 256
"""More parts would make an expression too large to be compiled; a part may have several units."""
_ENTRY_BITS: Final = 32
_PERMANENT: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)
}
_WRITTEN: Final = _schema_of(
    "snapshot_id long, key string, start long, end long, rows long, segments long, first_at long, last_at long, "
    "bytes long, problem string"
)
_WRITTEN_ARROW: Final = to_arrow_schema(_WRITTEN)
_Batches = Iterable[pa.RecordBatch]
_Decode = Callable[[pa.RecordBatch], Rows]


def build_index(
    spark: SparkSession,
    df: DataFrame,
    path: str | PathLike[str],
    config: BucketConfig | None = None,
    *,
    overwrite: bool = False,
    unit_rows: int = UNIT_ROWS,
) -> BuiltIndex:
    """Build the index of delayed messages, a folder for :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`.

    :param spark: the session that ``df`` belongs to
    :param df: columns ``ledger_id``, ``entry_id`` and ``deliver_at`` (epoch ms), long; a row for each delayed message,
        in any order; read twice
    :param path: the folder to create, on storage that the driver and all executors share
    :param config: the settings of the tracker that will open the index
    :param overwrite: replace an existing index
    :param unit_rows: about how many rows a unit of work has
    :raises InvalidArgumentError: a column or value is missing, a value is negative or too high, two rows have the same
        position, or ``path`` exists; nothing was written there
    :raises LogStorageError: the storage failed, or is full; nothing is left
    :raises LogLockedError: a tracker has the index open that would be replaced
    """
    target = as_folder("path", path, for_urls="the path of a folder that this machine and all workers see").absolute()
    config = BucketConfig() if config is None else config
    require_columns(df, METADATA, list(BOUNDS))
    rows = df.select(*BOUNDS)
    check_target(target, overwrite=overwrite)
    with _described(spark, "count rows"):
        units = make_units(_blocks(rows), config, unit_rows)
    with building(target) as staging, _described(spark, "write buckets"):
        built = _build(rows, units, staging, config)
        return finish_build(staging, target, units, built, config, overwrite=overwrite)


@contextmanager
def _described(spark: SparkSession, what: str) -> Iterator[None]:
    """Describe the jobs in Spark's web interface, if the session has a context."""
    context = None
    with suppress(PySparkException):
        context = spark.sparkContext
        context.setJobDescription(f"pulsar-nack build-index: {what}")
    yield
    if context is not None:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


# -- counting ------------------------------------------------------------------------------------------------------


def _blocks(rows: DataFrame) -> Iterator[Block]:
    """Yield the number of rows in each block, in order of position.

    :raises InvalidArgumentError: a row is invalid
    """
    column_is_bad = [
        sf.col(name).isNull() | (sf.col(name) < 0) | (sf.col(name) > most) for name, most in BOUNDS.items()
    ]
    is_bad = reduce(or_, column_is_bad)
    block = sf.shiftright("entry_id", BLOCK_BITS).alias("block")
    counts = rows.groupBy("ledger_id", block).agg(sf.count(sf.lit(1)), sf.count_if(is_bad))
    for ledger, number, count, bad in counts.orderBy("ledger_id", "block").toLocalIterator():
        if bad:
            first = rows.where(is_bad).orderBy(*BOUNDS).first()
            raise refused(*(first or (ledger, None, None)))
        yield ledger, number, count


# -- partitioning --------------------------------------------------------------------------------------------------


def _build(rows: DataFrame, units: Sequence[Unit], staging: Path, config: BucketConfig) -> list[WrittenSnapshot]:
    if not units:
        return []
    base = units[0].ledger
    decode: _Decode
    parts = split_evenly(units, _MAX_PARTS)
    if (units[-1].last_ledger - base) >> (63 - _ENTRY_BITS - 1):
        partitioned, decode = _by_columns(rows, parts), _decode_columns
    else:
        partitioned, decode = _by_position(rows, parts, base), _decode_position(base)
    records = partitioned.mapInArrow(_worker(units, str(staging), config, decode), _WRITTEN).collect()
    for record in records:
        if record["problem"] is not None:
            raise _error(json.loads(record["problem"]), staging)
    return [WrittenSnapshot(*record[:-1]) for record in records]


def _by_position(rows: DataFrame, parts: Sequence[Sequence[Unit]], base: int) -> DataFrame:
    """Partition rows by position as one number, which sorts faster than two; ledgers count from ``base``."""
    position = sf.shiftleft(sf.col("ledger_id") - base, _ENTRY_BITS).bitwiseOR(sf.col("entry_id")).alias("position")

    def is_before(unit: Unit) -> Column:
        return sf.col("position") < (unit.ledger - base << _ENTRY_BITS | unit.entry)

    return _partition(rows.select(position, "deliver_at"), parts, is_before).sortWithinPartitions("position")


def _by_columns(rows: DataFrame, parts: Sequence[Sequence[Unit]]) -> DataFrame:
    """Partition rows by ledger and entry, for ledgers that are too far apart for one number."""

    def is_before(unit: Unit) -> Column:
        ledger = sf.col("ledger_id")
        return (ledger < unit.ledger) | ((ledger == unit.ledger) & (sf.col("entry_id") < unit.entry))

    return _partition(rows, parts, is_before).sortWithinPartitions("ledger_id", "entry_id")


def _partition(rows: DataFrame, parts: Sequence[Sequence[Unit]], is_before: Callable[[Unit], Column]) -> DataFrame:
    number = _choose([part[0] for part in parts], is_before, 0)
    if hasattr(rows, "repartitionById"):  # PySpark 4.1
        return rows.repartitionById(len(parts), number)
    return rows.repartition(len(parts), number)


def _choose(firsts: Sequence[Unit], is_before: Callable[[Unit], Column], at: int) -> Column:
    """Return the number of the part that a row lies in, by binary search."""
    if len(firsts) == 1:
        return sf.lit(at)
    half = len(firsts) // 2
    below, above = _choose(firsts[:half], is_before, at), _choose(firsts[half:], is_before, at + half)
    return sf.when(is_before(firsts[half]), below).otherwise(above)


# -- on the workers ------------------------------------------------------------------------------------------------


def _decode_position(base: int) -> _Decode:
    def decode(batch: pa.RecordBatch) -> Rows:
        positions, times = _column(batch, 0), _column(batch, 1)
        return Rows((positions >> _ENTRY_BITS) + base, positions & (1 << _ENTRY_BITS) - 1, times)

    return decode


def _decode_columns(batch: pa.RecordBatch) -> Rows:
    return Rows(*(_column(batch, number) for number in range(3)))


def _column(batch: pa.RecordBatch, number: int) -> Longs:
    return np.asarray(batch.column(number).to_numpy(zero_copy_only=False), np.int64)


def _worker(
    units: Sequence[Unit], staging: str, config: BucketConfig, decode: _Decode
) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    """Return the function that writes the buckets of a partition; an error that a retry cannot mend becomes a row."""

    def work(batches: _Batches) -> Iterator[pa.RecordBatch]:
        try:
            for written in write_snapshots(map(decode, batches), units, Path(staging), config):
                yield _record(*written, None)
        except InvalidArgumentError as error:
            yield _problem(field=error.field, value=error.value, expected=error.expected)
        except OSError as error:
            if error.errno not in _PERMANENT:
                raise
            yield _problem(storage=error.strerror or os.strerror(error.errno))

    return work


def _problem(**problem: object) -> pa.RecordBatch:
    return _record(*[None] * (len(_WRITTEN_ARROW) - 1), json.dumps(problem))


def _record(*values: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(values, _WRITTEN_ARROW, strict=True)],
        schema=_WRITTEN_ARROW,
    )


def _error(problem: dict[str, str], staging: Path) -> PulsarNackError:
    if "storage" in problem:
        return LogStorageError(str(staging), "write to it", problem["storage"])
    return InvalidArgumentError(**problem)
