"""Readers of acknowledgement state: cursor folders, and internal statistics of brokers.

The driver only lists folders and files; an executor reads each of them, and must see it under the same path.

Cursor folders and local topics are read as ``inspect`` reads them. The topic is the name of the folder; the
subscription is that of a local topic, or else the cursor's name. The time is the last write to the cursor's log, so
copies that keep the times of files can be compared.

Internal statistics come from ``GET /admin/v2/persistent/TENANT/NAMESPACE/TOPIC/internalStats`` (``pulsar-admin topics
stats-internal``), an object with neither topic nor time. A file has one such object, or one per line; each may be
wrapped as ``{"topic": ..., "time_ms": ..., "stats": {...}}``. The object of a partitioned topic names its partitions.
Otherwise the topic is the name of the file up to an ``@``, and the time is the number after it, epoch ms, or else when
the file was written: ``persistent%3A%2F%2Fpublic%2Fdefault%2Forders@1763990000000.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ..cursor.format import subscription_of
from ..errors import InvalidArgumentError, PulsarNackError
from ..ids import Position
from ..inspection.folders import CursorFolder, FoundCursor, inspect_cursor_folder, stores_in
from ..ledger.format import LOG
from ._checks import Paths, path_names
from ._holes import ACKED, BATCH, CURSOR, LEDGER, STATE
from ._read import read_each
from .schemas import HOLES

_NUMBER: Final = r"(-?\d{1,19})"
_POSITION: Final = re.compile(rf"\s*{_NUMBER}:{_NUMBER}\s*")
_RANGE: Final = re.compile(rf"\s*([(\[]){_NUMBER}:{_NUMBER}(?:\.\.|‥){_NUMBER}:{_NUMBER}([)\]])\s*(,|\Z)")
_NAME: Final = re.compile(r"(?P<topic>.*?)(?:@(?P<time>\d{1,18}))?(?:\.jsonl?)?")
_MOST: Final = 2**63 - 1
_MAX_TASKS: Final = 1_000
_BATCH: Final = 10_000
_SUFFIXES: Final = {".json", ".jsonl"}
_REFUSED: Final = StructType([StructField("path", StringType()), StructField("reason", StringType())])
"""A folder or file that could not be read, and the reason."""

_READ: Final = StructType([*HOLES.fields, *_REFUSED.fields])
"""Rows of both kinds: ``reason`` is null in a row of holes."""
_READ_ARROW: Final = to_arrow_schema(_READ)


class HoleRow(NamedTuple):
    """A row of ``schemas.HOLES``, as the readers make it."""

    topic: str
    subscription: str
    at_ms: int | None
    kind: str
    ledger: int
    first: int | None
    last: int | None
    bytes: int | None = None


class RefusedRow(NamedTuple):
    """A file, or a part of it, that could not be read, and the reason."""

    path: str
    reason: str


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


def _read(
    spark: SparkSession, paths: Sequence[str], read: Callable[[str], Sequence[HoleRow | RefusedRow]]
) -> ReadHoles:
    def batches(path: str) -> Iterator[pa.RecordBatch]:
        rows = read(path)
        for at in range(0, len(rows), _BATCH):
            yield _batch(rows[at : at + _BATCH])

    found = read_each(spark, paths, batches, _READ, _MAX_TASKS)
    is_refused = sf.col("reason").isNotNull()
    return ReadHoles(
        found.where(~is_refused).select(*HOLES.fieldNames()), found.where(is_refused).select(*_REFUSED.fieldNames())
    )


def _batch(rows: Sequence[HoleRow | RefusedRow]) -> pa.RecordBatch:
    none = (None,) * len(HOLES)
    whole = [(*row, None, None) if isinstance(row, HoleRow) else (*none, *row) for row in rows]
    columns = zip(zip(*whole, strict=True), _READ_ARROW.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], schema=_READ_ARROW)


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


# --- internal statistics --------------------------------------------------------------------------------------------


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


class _InvalidError(Exception):
    """An object is not internal statistics; the message has the reason."""


def read_stats(path: str, text: str, written_ms: int) -> Iterator[HoleRow | RefusedRow]:
    """Yield the rows of a file's objects; an invalid object is refused as a whole.

    :param path: the file's path, for its name
    :param written_ms: when the file was written, epoch ms
    """
    named = _NAME.fullmatch(Path(path).name)
    topic = unquote(named["topic"]) if named else Path(path).name
    at_ms = int(named["time"]) if named and named["time"] else written_ms
    for place, found in _objects(text):
        try:
            if isinstance(found, _InvalidError):
                raise found
            yield from list(_rows_of(found, topic, at_ms))
        except _InvalidError as error:
            yield RefusedRow(path, f"{place}{error}")


def _objects(text: str) -> Iterator[tuple[str, Any]]:
    """Yield each value of a file with its place: one value, or one per line."""
    try:
        yield "", json.loads(text)
    except (ValueError, RecursionError) as whole:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):
            yield "", _InvalidError(f"not JSON: {whole}")
            return
        for number, line in lines:
            try:
                yield f"line {number}: ", json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}: ", _InvalidError(f"not JSON: {error}")


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _rows_of(found: Any, topic: str, at_ms: int) -> Iterator[HoleRow]:
    stats = _dict(found, "statistics")
    if "stats" in stats:
        topic = _typed(stats.get("topic", topic), str, "topic")
        at_ms = _number(stats.get("time_ms", at_ms), "time_ms")
        stats = _dict(stats["stats"], "stats")
    if "partitions" in stats:
        for partition, each in _dict(stats["partitions"], "partitions").items():
            yield from _topic_rows(_dict(each, f"partitions.{partition}"), partition, at_ms)
    else:
        yield from _topic_rows(stats, topic, at_ms)


def _topic_rows(stats: Mapping[str, Any], topic: str, at_ms: int) -> Iterator[HoleRow]:
    if "cursors" not in stats or "ledgers" not in stats:
        raise _InvalidError(f"expected cursors and ledgers, got {', '.join(sorted(stats)) or 'nothing'}")
    ledgers = dict(_ledgers(stats))
    for subscription, cursor in _dict(stats["cursors"], "cursors").items():
        where = f"cursors.{subscription}"
        _dict(cursor, where)
        at = _position(cursor.get("markDeletePosition"), f"{where}.markDeletePosition")
        yield HoleRow(topic, subscription, at_ms, CURSOR, at.ledger, at.entry, at.entry)
        for ledger, (entries, size) in ledgers.items():
            yield HoleRow(topic, subscription, at_ms, LEDGER, ledger, 0, entries - 1, size)
        deleted = _typed(cursor.get("individuallyDeletedMessages", "[]"), str, f"{where}.individuallyDeletedMessages")
        for lower, upper in _ranges(deleted, f"{where}.individuallyDeletedMessages"):
            for ledger, first, last in _in_ledgers(lower, upper, ledgers):
                yield HoleRow(topic, subscription, at_ms, ACKED, ledger, first, last)


def _ledgers(stats: Mapping[str, Any]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each ledger with its entries and bytes; those of the ledger that is written to stand elsewhere."""
    ledgers = _typed(stats["ledgers"], list, "ledgers")
    for number, each in enumerate(ledgers):
        where = f"ledgers[{number}]"
        _dict(each, where)
        entries, size = (_number(each.get(name, 0), f"{where}.{name}") for name in ("entries", "size"))
        if number == len(ledgers) - 1 and not entries:
            entries = _number(stats.get("currentLedgerEntries", 0), "currentLedgerEntries")
            size = _number(stats.get("currentLedgerSize", 0), "currentLedgerSize")
        yield _number(each.get("ledgerId"), f"{where}.ledgerId"), (entries, size)


def _ranges(text: str, where: str) -> Iterator[tuple[Position, Position]]:
    """Yield the ranges of ``[(3:0..3:5],(3:7..3:9]]``: the lower end is excluded, the upper included."""
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise _InvalidError(f"{where}: expected ranges in brackets, got {text[:40]!r}")
    inner, at, has_more = inner[1:-1], 0, bool(inner[1:-1].strip())
    while has_more:
        found = _RANGE.match(inner, at)
        if found is None:
            raise _InvalidError(f"{where}: expected a range, got {inner[at : at + 40]!r}")
        lower = Position(int(found[2]), int(found[3]) - (found[1] == "["))
        upper = Position(int(found[4]), int(found[5]) - (found[6] == ")"))
        if not (Position(-1, -2) <= lower <= upper and upper.ledger >= 0 and max(*lower, *upper) <= _MOST):
            raise _InvalidError(f"{where}: expected a range, got {found[0].strip(' ,')}")
        yield lower, upper
        at, has_more = found.end(), bool(found[7])


def _in_ledgers(
    lower: Position, upper: Position, ledgers: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield a range cut at ledgers; of unlisted ledgers only the last one is covered."""
    for ledger in sorted(each for each in ledgers if lower.ledger <= each < upper.ledger):
        first = lower.entry + 1 if ledger == lower.ledger else 0
        if first < ledgers[ledger][0]:
            yield ledger, max(first, 0), ledgers[ledger][0] - 1
    first = lower.entry + 1 if lower.ledger == upper.ledger else 0
    if max(first, 0) <= upper.entry:
        yield upper.ledger, max(first, 0), upper.entry


def _position(value: Any, where: str) -> Position:
    found = _POSITION.fullmatch(_typed(value, str, where))
    if found is None or max(int(found[1]), int(found[2])) > _MOST or min(int(found[1]), int(found[2])) < -1:
        raise _InvalidError(f"{where}: expected LEDGER:ENTRY, got {value!r:.60}")
    return Position(int(found[1]), int(found[2]))


def _number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise _InvalidError(f"{where}: expected a whole number from 0 on, got {value!r:.60}")
    return value


def _dict(value: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = _typed(value, dict, where)
    return found


def _typed(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise _InvalidError(f"{where}: expected a {kind.__name__}, got {value!r:.60}")
    return value


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
