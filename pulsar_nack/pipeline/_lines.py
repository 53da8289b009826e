"""Lines of a trace file as Arrow batches, in a worker: plain Python, without a session of Spark.

The rules of what is refused, and their order and words, are those of ``_read``; a test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from .schemas import BROKEN, EVENTS, MAX_TIME_MS, REQUIRED, TIMES, TRACE, TRACE_VERSION

BATCH: Final = 8_192
"""Rows of a batch."""

_NAMES: Final = TRACE.fieldNames()
_TYPES: Final = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
_LIMITS: Final = {"int": 2**31, "bigint": 2**63}
_KINDS: Final = [(field.name, _LIMITS.get(field.dataType.simpleString())) for field in TRACE.fields]
_ARROW: Final = pa.schema(
    [(field.name, _TYPES[field.dataType.simpleString()]) for field in TRACE.fields]
    + [(name, pa.string()) for name in ("file", "line", "fault")]
)


def batches(path: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Read the lines that begin in a range of bytes."""
    rows: list[dict[str, Any]] = []
    for line in _lines(path, start, stop):
        rows.append(_row(path, line))
        if len(rows) == BATCH:
            yield pa.RecordBatch.from_pylist(rows, _ARROW)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _ARROW)


def _lines(path: str, start: int, stop: int) -> Iterator[str]:
    with Path(path).open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # the line that began before this range, or the end of it
        while file.tell() < stop:
            yield file.readline().rstrip(b"\r\n").decode("utf-8", "replace")


def _row(path: str, line: str) -> dict[str, Any]:
    event = parse(line)
    if isinstance(event, str):
        return {"file": f"file:{path}", "line": line, "fault": event}
    return event


def parse(line: str) -> dict[str, Any] | str:
    """Return an event, or why its line is refused."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return BROKEN
    if not isinstance(event, dict) or not all(_fits(event.get(name), limit) for name, limit in _KINDS):
        return BROKEN
    return _fault(event) or {name: event.get(name) for name in _NAMES}


def _fits(value: object, limit: int | None) -> bool:
    if value is None:
        return True
    if limit is None:
        return isinstance(value, str)
    return type(value) is int and -limit <= value < limit


def _fault(event: dict[str, Any]) -> str | None:
    """Return why an event with fields of the right types is refused."""
    if event.get("v") not in {None, TRACE_VERSION}:
        return f"unknown version {event['v']}"
    for name in REQUIRED:
        if event.get(name) is None:
            return f"{name} is missing"
    if event["event"] not in EVENTS:
        return f"unknown event {event['event']}"
    for name in TIMES:
        if event.get(name) is not None and not 0 <= event[name] <= MAX_TIME_MS:
            return f"{name} is negative or beyond the year 9999"
    if (event.get("delay_ms") or 0) < 0:
        return "delay_ms is negative"
    return None
