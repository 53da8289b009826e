"""Turns the internal statistics of topics, as brokers report them, into rows of holes. Pure; runs on executors.

``GET /admin/v2/persistent/TENANT/NAMESPACE/TOPIC/internalStats`` (``pulsar-admin topics stats-internal``) returns an
object with neither topic nor time. A file has one such object, or one per line; each may be wrapped as
``{"topic": ..., "time_ms": ..., "stats": {...}}``. The object of a partitioned topic names its partitions. Otherwise
the topic is the name of the file up to an ``@``, and the time is the number after it, epoch ms, or else when the file
was written: ``persistent%3A%2F%2Fpublic%2Fdefault%2Forders@1763990000000.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ..ids import Position
from ._hole_figures import ACKED, CURSOR, LEDGER, HoleRow, RefusedRow

_NUMBER: Final = r"(-?\d{1,19})"
_POSITION: Final = re.compile(rf"\s*{_NUMBER}:{_NUMBER}\s*")
_RANGE: Final = re.compile(rf"\s*([(\[]){_NUMBER}:{_NUMBER}(?:\.\.|‥){_NUMBER}:{_NUMBER}([)\]])\s*(,|\Z)")
_NAME: Final = re.compile(r"(?P<topic>.*?)(?:@(?P<time>\d{1,18}))?(?:\.jsonl?)?")
_MOST: Final = 2**63 - 1


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


# --- checks ---------------------------------------------------------------------------------------------------------


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
