"""The end of a build, in the process that started it: what was built is compared with what was planned, and committed.

The manifest tells of the build and is not read by the tracker, whose cursor names the snapshots; it has no times and
nothing else that a rerun would not have.
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
from ._build_folder import INDEX, commit, write_file, write_log
from ._build_log import CURSOR, SEGMENT_FILE, cursor_log, snapshot_folder
from ._build_unit import Built
from ._build_units import Unit

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """What was built.

    :param path: the folder, for :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`
    :param rows: messages in it
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
    built: Sequence[Built],
    config: BucketConfig,
    *,
    overwrite: bool,
) -> BuiltIndex:
    """Commit what was built.

    :raises InvalidArgumentError: the rows were not the same when they were counted and when they were read
    :raises LogStorageError: what was written is not to be seen here, or the folder refuses
    """
    built = sorted(built)
    _check_rows(units, built)
    _check_files(staging, built)
    cursor = cursor_log((each.key, each.snapshot_id) for each in built)
    index = BuiltIndex(
        path=target,
        rows=sum(each.rows for each in built),
        buckets=len(built),
        segments=sum(each.segments for each in built),
        bytes=len(cursor) + sum(each.bytes for each in built),
        first_at=min((each.first_at for each in built), default=None),
        last_at=max((each.last_at for each in built), default=None),
    )
    with storage_errors(str(target), "write the manifest"):
        write_log(staging, CURSOR, cursor)
        write_file(staging / INDEX / MANIFEST, _manifest(index, built, config))
    commit(staging, target, overwrite=overwrite)
    return index


def _check_rows(units: Sequence[Unit], built: Sequence[Built]) -> None:
    planned = sum(unit.rows for unit in units)
    found = sum(each.rows for each in built)
    ids = [each.snapshot_id for each in built]
    if found != planned or ids != list(range(1, len(ids) + 1)):
        expected = "rows that stay the same when they are read again (cache them, or write them to a table first)"
        raise InvalidArgumentError("df", f"{planned} rows, then {found} in {len(set(ids))} buckets", expected)


def _check_files(staging: Path, built: Sequence[Built]) -> None:
    for each in built:
        path = staging / INDEX / snapshot_folder(each.snapshot_id) / SEGMENT_FILE
        if not path.is_file() or path.stat().st_size != each.bytes:
            reason = "what the executors wrote is not here: the folder has to be one that all of them share"
            raise LogStorageError(str(path), "find it", reason)


def _manifest(index: BuiltIndex, built: Sequence[Built], config: BucketConfig) -> bytes:
    least = config.delayed_delivery_min_index_count_per_bucket
    said = {
        "format": FORMAT,
        "rows": index.rows,
        "segments": index.segments,
        "bytes": index.bytes,
        "first_at": index.first_at,
        "last_at": index.last_at,
        "least": least,
        "most": config.largest_bucket,
        "segment_ms": config.segment_step_ms,
        "segment_most": config.delayed_delivery_max_indexes_per_bucket_snapshot_segment,
    }
    buckets = ",\n".join(json.dumps(each._asdict()) for each in built)
    return f'{json.dumps(said)[:-1]}, "buckets": [\n{buckets}\n]}}\n'.encode()
