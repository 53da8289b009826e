"""The index of ``build_index``, built in one process from arrays: for tests and benchmarks, without Spark."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from pulsar_nack import BucketConfig, InvalidArgumentError
from pulsar_nack._check import as_folder
from pulsar_nack.ledger.files import storage_errors
from pulsar_nack.pipeline._build_buckets import (
    BLOCK_BITS,
    UNIT_ROWS,
    Block,
    Rows,
    make_units,
)
from pulsar_nack.pipeline._build_folder import BuiltIndex, building, check_target, finish_build, write_snapshots


def rows_of(ledgers: Any, entries: Any, times: Any) -> Rows:
    """Return rows of three columns of the same length."""
    return Rows(*(np.ascontiguousarray(column, np.int64) for column in (ledgers, entries, times)))


def build_local(
    ledgers: Any,
    entries: Any,
    times: Any,
    path: str | PathLike[str],
    config: BucketConfig | None = None,
    *,
    overwrite: bool = False,
    unit_rows: int = UNIT_ROWS,
) -> BuiltIndex:
    """Build an index from three columns, in any order; the bytes are those that the Spark job writes.

    :raises InvalidArgumentError: names what was refused; nothing is written
    :raises LogStorageError: the folder cannot be written
    """
    target = as_folder("path", path).absolute()
    config = BucketConfig() if config is None else config
    check_target(target, overwrite=overwrite)
    rows = rows_of(ledgers, entries, times)
    if not len(rows.ledgers) == len(rows.entries) == len(rows.times):
        raise InvalidArgumentError("times", len(rows.times), "columns of the same length")
    order = np.lexsort((rows.entries, rows.ledgers))
    rows = Rows(*(column[order] for column in rows))
    units = make_units(_blocks(rows), config, unit_rows)
    with building(target) as staging:
        with storage_errors(str(target), "write the index"):
            built = list(write_snapshots([rows] if units else [], units, staging, config))
        return finish_build(staging, target, units, built, config, overwrite=overwrite)


def _blocks(rows: Rows) -> list[Block]:
    if not rows.length:
        return []
    numbers = rows.entries >> BLOCK_BITS
    is_first = np.append(True, (rows.ledgers[1:] != rows.ledgers[:-1]) | (numbers[1:] != numbers[:-1]))
    firsts = np.flatnonzero(is_first)
    counts = np.diff(np.append(firsts, rows.length))
    columns = (rows.ledgers[firsts].tolist(), numbers[firsts].tolist(), counts.tolist())
    return list(zip(*columns, strict=True))
