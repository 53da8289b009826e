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
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ..cursor.format import LedgerAcks, subscription_of
from ..errors import InvalidArgumentError, PulsarNackError
from ..ids import Position
from ..inspection import CursorReport, StoreReport
from ..inspection.folders import inspect_cursors, stores_in
from ..ledger.format import LOG
from ._holes import ACKED, BATCH, CURSOR, LEDGER, STATE
from ._read import Paths, path_names, read_each
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
    """A row that the readers make: one of ``schemas.HOLES``, or ``path`` and ``reason`` of what could not be read."""

    topic: str | None = None
    subscription: str | None = None
    at_ms: int | None = None
    kind: str | None = None
    ledger: int | None = None
    first: int | None = None
    last: int | None = None
    bytes: int | None = None
    path: str | None = None
    reason: str | None = None


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


def _read(spark: SparkSession, paths: Sequence[str], read: Callable[[str], Sequence[HoleRow]]) -> ReadHoles:
    def batches(path: str) -> Iterator[pa.RecordBatch]:
        rows = read(path)
        for at in range(0, len(rows), _BATCH):
            columns = zip(zip(*rows[at : at + _BATCH], strict=True), _READ_ARROW.types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_READ_ARROW)

    found = read_each(spark, paths, batches, _READ, _MAX_TASKS)
    is_refused = sf.col("reason").isNotNull()
    return ReadHoles(
        found.where(~is_refused).select(*HOLES.fieldNames()), found.where(is_refused).select(*_REFUSED.fieldNames())
    )


# --- cursor folders -------------------------------------------------------------------------------------------------


def read_cursor_folder(path: str) -> list[HoleRow]:
    """Return the rows of a folder's cursors, and the damage. Blocks; changes and locks nothing."""
    try:
        store, states = inspect_cursors(Path(path))
    except OSError as error:
        return [HoleRow(path=path, reason=f"cannot be read: {error.strerror or error}")]
    except PulsarNackError as error:
        return [HoleRow(path=path, reason=str(error))]
    rows: list[HoleRow] = []
    for cursor in store.cursors:
        rows += _cursor_rows(store, cursor, states[cursor.name])
    for each in store.damage:
        if each.kind != "torn":
            where = "" if each.offset is None else f" at byte {each.offset}"
            file = "/".join(filter(None, (f"{each.log}{LOG}", each.file)))
            rows.append(HoleRow(path=f"{path}/{file}", reason=f"{each.kind}{where}: {each.reason}"))
    rows += [HoleRow(path=path, reason=note) for note in store.notes]
    return rows


def _cursor_rows(store: StoreReport, cursor: CursorReport, states: Mapping[int, LedgerAcks]) -> Iterator[HoleRow]:
    folder = Path(store.path)
    key = folder.name, subscription_of(cursor.name) or cursor.name, _written_ms(folder / (cursor.log + LOG))
    at_ledger, at_entry = cursor.mark_delete
    marker = cursor.size_bytes - sum(each.bytes for each in cursor.ledgers)
    yield HoleRow(*key, CURSOR, at_ledger, at_entry, at_entry, marker)
    for each in cursor.ledgers:
        yield HoleRow(*key, STATE, each.ledger, bytes=each.bytes)
        acks = states[each.ledger]
        for first, last in acks.ranges.ranges():
            yield HoleRow(*key, ACKED, each.ledger, first, last)
        for entry in sorted(acks.batches):
            yield HoleRow(*key, BATCH, each.ledger, entry, entry)
    for ledger in () if store.topic is None else store.topic.ledgers:
        yield HoleRow(*key, LEDGER, ledger.ledger, 0, ledger.entries - 1, ledger.bytes)


def _written_ms(log: Path) -> int | None:
    """Return when a log was written last, None if it is gone."""
    try:
        return max((each.stat().st_mtime_ns for each in log.iterdir()), default=0) // 1_000_000
    except OSError:
        return None


# --- internal statistics --------------------------------------------------------------------------------------------


def read_stats_file(path: str) -> list[HoleRow]:
    """Return the rows of a file of internal statistics, and what cannot be read."""
    file = Path(path)
    try:
        written_ms = file.stat().st_mtime_ns // 1_000_000
        return list(read_stats(path, file.read_text(encoding="utf-8"), written_ms))
    except UnicodeDecodeError as error:
        return [HoleRow(path=path, reason=f"not UTF-8: byte {error.start} is {error.object[error.start]:#x}")]
    except OSError as error:
        return [HoleRow(path=path, reason=f"cannot be read: {error.strerror or error}")]


def read_stats(path: str, text: str, written_ms: int) -> Iterator[HoleRow]:
    """Yield the rows of a file's objects; an invalid object is refused as a whole.

    :param path: the file's path, for its name
    :param written_ms: when the file was written, epoch ms
    """
    named = _NAME.fullmatch(Path(path).name)
    topic = unquote(named["topic"]) if named else Path(path).name
    at_ms = int(named["time"]) if named and named["time"] else written_ms
    for place, value in _values(text):
        try:
            yield from list(_rows_of(_parsed(value), topic, at_ms))
        except ValueError as error:
            yield HoleRow(path=path, reason=f"{place}{error}")


def _values(text: str) -> list[tuple[str, str]]:
    """Return the JSON text of each value of a file with its place: of one value, or one per line."""
    head, _, others = text.strip().partition("\n")
    with suppress(ValueError):
        if others and isinstance(_parsed(head), dict):
            return [(f"line {number}: ", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [("", text)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


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
        raise ValueError(f"expected cursors and ledgers, got {', '.join(sorted(stats)) or 'nothing'}")
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
        raise ValueError(f"{where}: expected ranges in brackets, got {text[:40]!r}")
    inner, at, has_more = inner[1:-1], 0, bool(inner[1:-1].strip())
    while has_more:
        found = _RANGE.match(inner, at)
        if found is None:
            raise ValueError(f"{where}: expected a range, got {inner[at : at + 40]!r}")
        lower = Position(int(found[2]), int(found[3]) - (found[1] == "["))
        upper = Position(int(found[4]), int(found[5]) - (found[6] == ")"))
        if not (Position(-1, -2) <= lower <= upper and upper.ledger >= 0 and max(*lower, *upper) <= _MOST):
            raise ValueError(f"{where}: expected a range, got {found[0].strip(' ,')}")
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
        raise ValueError(f"{where}: expected LEDGER:ENTRY, got {value!r:.60}")
    return Position(int(found[1]), int(found[2]))


def _number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{where}: expected a whole number from 0 on, got {value!r:.60}")
    return value


def _dict(value: Any, where: str) -> dict[str, Any]:
    found: dict[str, Any] = _typed(value, dict, where)
    return found


def _typed(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected a {kind.__name__}, got {value!r:.60}")  # noqa: TRY004 - of a file
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
