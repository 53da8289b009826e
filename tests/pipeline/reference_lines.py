"""Which files and lines of a trace are read, in plain Python: written from the pipeline's page."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

Event = dict[str, Any]
"""The keys of a line."""

TYPES: Final[dict[str, type]] = {
    "v": int, "event": str, "time_ms": int, "mono_ns": int, "topic": str, "partition": int, "subscription": str,
    "consumer": str, "ledger": int, "entry": int, "batch_index": int, "attempt": int, "delay_ms": int,
    "deadline_ms": int, "actual_ms": int, "reason": str,
}  # fmt: skip
SHORT: Final = {"v", "partition", "batch_index", "attempt"}
OPTIONAL: Final = {"ledger", "entry", "attempt", "delay_ms", "deadline_ms", "actual_ms", "reason"}
KINDS: Final = ("arrive", "hold", "error", "nack", "redeliver", "cancel", "ack")
YEAR_9999: Final = 253_402_300_799_999
NO_EVENT: Final = "not a JSON object of this schema"


def read(folder: Path) -> tuple[list[Event], Counter[tuple[str, str]]]:
    """Return the events of a folder, and how often a file's lines were refused for which reason."""
    events: list[Event] = []
    refused: Counter[tuple[str, str]] = Counter()
    for path in files(folder):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read()
        for line in text.split(b"\n")[: -1 if text.endswith(b"\n") else None]:
            found = event_of(line)
            if isinstance(found, str):
                refused[f"file:{path}", found] += 1
            else:
                events.append(found)
    return events, refused


def files(folder: Path) -> list[Path]:
    """Return the files of a folder that are read."""
    chosen: dict[Any, list[Path]] = defaultdict(list)
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if any(part[0] in "._" for part in path.relative_to(folder).parts):
                continue
            if name.endswith((".jsonl", ".jsonl.gz")):
                named = re.fullmatch(r"trace-\d+-([0-9a-f]+)-(\d+)\.jsonl(\.gz)?", name)
                chosen[(named[1], int(named[2])) if named else path].append(path)
    return [min(each, key=lambda path: (path.suffix == ".gz", -path.stat().st_size, str(path)))
            for each in chosen.values()]  # fmt: skip


def event_of(line: bytes) -> Event | str:
    """Return the event of a line, or why it is refused."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "not Unicode text"
    try:
        found = json.loads(text.strip(" \t\r"))
    except (ValueError, RecursionError):
        return NO_EVENT
    if not isinstance(found, dict) or text.startswith("\ufeff"):
        return NO_EVENT
    event = {name: found.get(name) for name in TYPES}
    for name, value in event.items():
        bound = 2**31 if name in SHORT else 2**63
        if value is None:
            continue
        if type(value) is not TYPES[name] or (isinstance(value, int) and not -bound <= value < bound):
            return NO_EVENT
    for value in event.values():
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            return "not Unicode text"
    return nonsense(event) or event


def nonsense(event: Event) -> str | None:
    """Return what is wrong with an event whose fields have the right types."""
    if event["v"] not in {None, 1}:
        return f"unknown version {event['v']}"
    for name in [each for each in TYPES if each not in OPTIONAL]:
        if event[name] is None:
            return f"{name} is missing"
    if event["event"] not in KINDS:
        return f"unknown event {event['event']}"
    for name in ("time_ms", "deadline_ms", "actual_ms"):
        if event[name] is not None and not 0 <= event[name] <= YEAR_9999:
            return f"{name} is negative or beyond the year 9999"
    if event["delay_ms"] is not None and event["delay_ms"] < 0:
        return "delay_ms is negative"
    if event["delay_ms"] is not None and event["delay_ms"] > 3_162_240_000_000:
        return "delay_ms is longer than 36600 days"
    for name in ("ledger", "entry", "attempt"):
        if event[name] is not None and event[name] < 0:
            return f"{name} is negative"
    for name in ("partition", "batch_index"):
        if event[name] < -1:
            return f"{name} is below -1"
    if (event["ledger"] is None) != (event["entry"] is None):
        return f"{'ledger' if event['ledger'] is None else 'entry'} is missing"
    if event["event"] == "nack" and event["deadline_ms"] is not None and event["deadline_ms"] < event["time_ms"]:
        return "deadline_ms of a nack is before its time_ms"
    return None
