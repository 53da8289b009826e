"""The end of a build, on the driver: the written snapshots are compared with the plan, and committed.

The manifest describes the build. The tracker does not read it: its cursor names the snapshots. It contains no times and
nothing else that would differ in a rerun.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..config import BucketConfig
from ..errors import InvalidArgumentError, LogStorageError
from ..inspection.folders import MANIFEST
from ..ledger.files import storage_errors
from ._build_encoding import CURSOR, SEGMENT_FILE, cursor_log, snapshot_folder
from ._build_folder import INDEX, commit, write_file, write_log
from ._build_snapshots import WrittenSnapshot
from ._build_units import Unit

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """The index that was built.

    :param path: its folder, for :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`
    :param rows: number of messages
    :param bytes: size of its files
    :param first_at: earliest time (epoch ms), None without messages
    :param last_at: latest time
    """

    path: Path
    rows: int
    buckets: int
    segments: int
    bytes: int
    first_at: int | None
    last_at: int | None


def finish_build(
    staging: Path,
    target: Path,
    units: Sequence[Unit],
    written: Sequence[WrittenSnapshot],
    config: BucketConfig,
    *,
    overwrite: bool,
) -> BuiltIndex:
    """Commit the written snapshots.

    :raises InvalidArgumentError: the rows changed between the two passes
    :raises LogStorageError: the driver does not see the snapshots, or the folder cannot be written
    """
    written = sorted(written)
    _check_rows(units, written)
    _check_files(staging, written)
    cursor = cursor_log((each.key, each.snapshot_id) for each in written)
    index = BuiltIndex(
        path=target,
        rows=sum(each.rows for each in written),
        buckets=len(written),
        segments=sum(each.segments for each in written),
        bytes=len(cursor) + sum(each.bytes for each in written),
        first_at=min((each.first_at for each in written), default=None),
        last_at=max((each.last_at for each in written), default=None),
    )
    with storage_errors(str(target), "write the manifest"):
        write_log(staging, CURSOR, cursor)
        write_file(staging / INDEX / MANIFEST, _manifest(index, written, config))
    commit(staging, target, overwrite=overwrite)
    return index


def _check_rows(units: Sequence[Unit], written: Sequence[WrittenSnapshot]) -> None:
    planned = sum(unit.rows for unit in units)
    found = sum(each.rows for each in written)
    ids = [each.snapshot_id for each in written]
    if found != planned or ids != list(range(1, len(ids) + 1)):
        expected = "rows that do not change between two reads (cache them, or write them to a table first)"
        raise InvalidArgumentError("df", f"{planned} rows, then {found} in {len(set(ids))} buckets", expected)


def _check_files(staging: Path, written: Sequence[WrittenSnapshot]) -> None:
    for each in written:
        path = staging / INDEX / snapshot_folder(each.snapshot_id) / SEGMENT_FILE
        if not path.is_file() or path.stat().st_size != each.bytes:
            reason = "the executors' files are not here: driver and executors must share the folder"
            raise LogStorageError(str(path), "find it", reason)


def _manifest(index: BuiltIndex, written: Sequence[WrittenSnapshot], config: BucketConfig) -> bytes:
    head = {
        "format": FORMAT,
        "rows": index.rows,
        "segments": index.segments,
        "bytes": index.bytes,
        "first_at": index.first_at,
        "last_at": index.last_at,
        "min_indexes": config.delayed_delivery_min_index_count_per_bucket,
        "max_indexes": config.largest_bucket,
        "segment_ms": config.segment_step_ms,
        "segment_max_indexes": config.delayed_delivery_max_indexes_per_bucket_snapshot_segment,
    }
    buckets = ",\n".join(json.dumps(each._asdict()) for each in written)
    return f'{json.dumps(head)[:-1]}, "buckets": [\n{buckets}\n]}}\n'.encode()
