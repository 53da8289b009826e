"""Turns cursor folders and local topics into rows of holes, read as ``inspect`` reads them; runs on executors.

The topic is the name of the folder; the subscription is that of a local topic, or else the cursor's name. The time is
the last write to the cursor's log, so copies that keep the times of files can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..cursor.format import subscription_of
from ..errors import PulsarNackError
from ..inspection.folders import CursorFolder, FoundCursor, inspect_cursor_folder
from ..ledger.format import LOG
from ._hole_figures import ACKED, BATCH, CURSOR, LEDGER, STATE, HoleRow, RefusedRow


def read_store(path: str) -> list[HoleRow | RefusedRow]:
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
        if store.topic is not None and subscription_of(cursor.report.name) is None:
            continue  # that of the topic's shared index of delayed messages
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
