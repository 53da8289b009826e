"""The folder in which an index is built: workers write snapshots into it, and the driver commits it by a rename.

The index for the folder ``NAME`` is built beside it, in ``.NAME.<random>.building``::

    owner      locked while the build's process lives
    index/     becomes NAME
    attempts/  logs that are being written, each renamed into ``index`` when it is whole and synced
    old/       the previous NAME, if it is overwritten

Each run has a separate folder, so that late tasks of another run cannot disturb it. A second attempt at a log finds the
log of the first, which has the same bytes, and drops its own. The next run for the same folder removes the leftovers of
a killed one, and moves an old folder back.

Before the rename the written snapshots are compared with the plan. The manifest describes the build. The tracker does
not read it: its cursor names the snapshots. It contains no times and nothing else that would differ in a rerun.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ..config import BucketConfig
from ..cursor.format import delayed_cursor
from ..delayed.format import bucket_key
from ..errors import InvalidArgumentError, LogLockedError, LogStorageError
from ..inspection.folders import MANIFEST
from ..ledger.files import PRIVATE_FOLDER, OsFiles, storage_errors, write_all
from ..ledger.format import GONE, LOCK, LOG, NEW, log_of
from ._build_buckets import (
    CURSOR,
    SEGMENT_FILE,
    Rows,
    Unit,
    buckets_of,
    cursor_log,
    encode_bucket,
    snapshot_folder,
    snapshot_log,
)

FORMAT: Final = 1
INDEX: Final = "index"
ATTEMPTS: Final = "attempts"
_OWNER: Final = "owner"
_OLD: Final = "old"
_BUILDING: Final = ".building"
_CURSOR_PREFIX: Final = delayed_cursor("cursor") + "-"
"""What the names of the cursor's logs begin with."""
_INDEX_LOG: Final = re.compile(re.escape(_CURSOR_PREFIX) + r"\d{10}|snapshot-[0-9a-f]{32}-\d+")
_SUFFIXES: Final = (LOG, LOCK, LOG + NEW, LOG + GONE)
_files: Final = OsFiles()


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


class WrittenSnapshot(NamedTuple):
    """A written snapshot: its id and key, first and last ledger, counts of rows and segments, times, size in bytes."""

    snapshot_id: int
    key: str
    start: int
    end: int
    rows: int
    segments: int
    first_at: int
    last_at: int
    bytes: int


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that an index may be written to a folder.

    :raises InvalidArgumentError: it exists, and is not to be overwritten or holds something other than an index
    :raises LogLockedError: a tracker has the index open
    """
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise InvalidArgumentError("path", str(target), "a folder that does not exist, or overwrite=True")
    with storage_errors(str(target), "list it"):
        names = _files.names(target) if target.is_dir() and not target.is_symlink() else None
    if names is None or not _is_index(names):
        raise InvalidArgumentError("path", str(target), "the folder of an index; this holds something else")
    for name in names:
        if name.startswith(_CURSOR_PREFIX) and name.endswith(LOCK):
            _check_unlocked(target / name)


def _is_index(names: Sequence[str]) -> bool:
    """Return whether a folder with these files is empty or holds an index."""
    if not all(name == MANIFEST or _INDEX_LOG.fullmatch(log_of(name, *_SUFFIXES) or "") for name in names):
        return False
    return not names or any(name == MANIFEST or name.startswith("snapshot-") for name in names)


def _check_unlocked(lock: Path) -> None:
    try:
        descriptor = _files.lock(lock)
    except BlockingIOError as error:
        raise LogLockedError(str(lock.parent)) from error
    except OSError:
        return
    _files.close(descriptor)


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Make a folder to build in; it is removed at the end, whatever happens."""
    with storage_errors(str(target), "make a folder beside it"):
        target.parent.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        _sweep(target)
        staging = target.parent / f".{target.name}.{secrets.token_hex(8)}{_BUILDING}"
        staging.mkdir(PRIVATE_FOLDER)
        owner = _files.lock(staging / _OWNER)
    try:
        with storage_errors(str(staging), "make a folder in it"):
            (staging / INDEX).mkdir(PRIVATE_FOLDER)
            (staging / ATTEMPTS).mkdir(PRIVATE_FOLDER)
        yield staging
    finally:
        _remove(staging, owner, target)


def _sweep(target: Path) -> None:
    staging = re.compile(rf"{re.escape(f'.{target.name}.')}[0-9a-f]+{re.escape(_BUILDING)}")
    for left in target.parent.iterdir():
        if staging.fullmatch(left.name):
            with suppress(OSError):
                _remove(left, _files.lock(left / _OWNER), target)


def _remove(staging: Path, owner: int, target: Path) -> None:
    with suppress(OSError):
        if (staging / _OLD).is_dir() and not target.exists():
            (staging / _OLD).rename(target)
    shutil.rmtree(staging, ignore_errors=True)
    _files.close(owner)


def write_log(staging: Path, name: str, data: bytes) -> None:
    """Write a log of one file durably, and move it into the index as a whole.

    :raises OSError: the log could not be written
    :raises ValueError: another attempt wrote a different log
    """
    attempt = staging / ATTEMPTS / f"{name}.{secrets.token_hex(8)}"
    attempt.mkdir(PRIVATE_FOLDER)
    try:
        write_file(attempt / SEGMENT_FILE, data)
        _files.sync_folder(attempt)
        final = staging / INDEX / name
        try:
            attempt.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            if (final / SEGMENT_FILE).read_bytes() != data:
                raise ValueError(f"{name}: two attempts had different rows") from None
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file durably."""
    descriptor = _files.create(path)
    try:
        write_all(_files, descriptor, data, 0)
        _files.sync(descriptor)
    finally:
        _files.close(descriptor)


# --- on the workers -------------------------------------------------------------------------------------------------


def write_snapshots(
    batches: Iterable[Rows], units: Sequence[Unit], staging: Path, config: BucketConfig
) -> Iterator[WrittenSnapshot]:
    """Write the snapshots of rows of these units, in order of position: cut, encode and write a bucket at a time.

    :raises InvalidArgumentError: two rows have the same position
    :raises OSError: a log could not be written
    """
    for number, parts in groupby(_by_unit(batches, units), itemgetter(0)):
        unit = units[number]
        buckets = _with_keys(buckets_of(map(itemgetter(1), parts), config), unit)
        for snapshot_id, (key, rows) in enumerate(buckets, unit.first_id):
            metadata, segments = encode_bucket(rows, config)
            data = snapshot_log(key, snapshot_id, metadata, segments)
            write_log(staging, snapshot_folder(snapshot_id), data)
            yield WrittenSnapshot(
                snapshot_id,
                key,
                start=int(rows.ledgers[0]),
                end=int(rows.ledgers[-1]),
                rows=rows.length,
                segments=len(segments),
                first_at=int(rows.times.min()),
                last_at=int(rows.times.max()),
                bytes=len(data),
            )


def _with_keys(buckets: Iterable[Rows], unit: Unit) -> Iterator[tuple[str, Rows]]:
    """Yield the buckets of a unit with their keys, which count those that lie in the same ledger alone."""
    ledger, part = unit.ledger, unit.part
    for rows in buckets:
        start, end = int(rows.ledgers[0]), int(rows.ledgers[-1])
        if start != end:
            yield bucket_key(start, end, 0), rows
            continue
        if start != ledger:
            ledger, part = start, 0
        yield bucket_key(start, end, part), rows
        part += 1


def _by_unit(batches: Iterable[Rows], units: Sequence[Unit]) -> Iterator[tuple[int, Rows]]:
    """Yield batches cut where units begin, with the number of the unit."""
    number = 0
    for rows in batches:
        at = 0
        while at < rows.length:
            to = _begin(units[number + 1], rows, at) if number + 1 < len(units) else rows.length
            if to > at:
                yield number, rows.part(at, to)
            number += to < rows.length
            at = to


def _begin(unit: Unit, rows: Rows, at: int) -> int:
    """Return the index of the first row from ``at`` on that lies in a unit or after it, else the number of rows."""
    first = at + int(np.searchsorted(rows.ledgers[at:], unit.ledger))
    last = first + int(np.searchsorted(rows.ledgers[first:], unit.ledger, side="right"))
    return first + int(np.searchsorted(rows.entries[first:last], unit.entry))


# --- on the driver --------------------------------------------------------------------------------------------------


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


def commit(staging: Path, target: Path, *, overwrite: bool) -> None:
    """Sync the index and rename it to its target."""
    check_target(target, overwrite=overwrite)
    with storage_errors(str(target), "move the index there"):
        _files.sync_folder(staging / INDEX)
        if overwrite and target.exists():
            target.rename(staging / _OLD)
        (staging / INDEX).rename(target)
        _files.sync_folder(target.parent)
