"""Bucket trackers: their cursors, and the snapshots that the properties of cursors name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ..cursor.format import CURSOR_LOG_NAME, delayed_cursor_of
from ..delayed.format import (
    SNAPSHOT_LOG_NAME,
    Footer,
    NamedSnapshot,
    SegmentRow,
    decode_footer,
    decode_metadata,
    named_snapshots,
)
from ..errors import LogVersionError, MissingExtraError, SnapshotFormatError
from ..index import PositionSet
from ._report import BucketReport, CursorReport, DelayedReport, SegmentTimes
from ._store import InspectedLog, InspectedStore


def inspect_delayed(store: InspectedStore, cursors: Sequence[CursorReport]) -> tuple[DelayedReport, ...]:
    """Return the trackers of a store; snapshots that no cursor here names come last.

    :param cursors: those of trackers, and those of acknowledgements, whose properties may name snapshots too
    """
    snapshots = dict(_snapshots(store))
    reports = list(_new_cursors(store))
    for cursor in sorted(cursors, key=lambda each: delayed_cursor_of(each.name) is None):
        named = named_snapshots(cursor.properties)
        name = delayed_cursor_of(cursor.name)
        if named or name is not None:
            buckets = _named(store, cursor.log, named, snapshots)
            reports.append(
                DelayedReport(name or cursor.name, cursor.log, cursor.mark_delete, cursor.properties, buckets)
            )
    if snapshots:
        rest = tuple(_bucket(store, number, None, log) for number, log in sorted(snapshots.items()))
        reports = _with_rest(reports, rest)
    return tuple(reports)


def _with_rest(reports: list[DelayedReport], rest: tuple[BucketReport, ...]) -> list[DelayedReport]:
    """Add snapshots that nothing names: to the only tracker, or as those of a cursor that is kept elsewhere."""
    if len(reports) != 1:
        return [*reports, DelayedReport(None, None, None, {}, rest)]
    (one,) = reports
    return [replace(one, buckets=one.buckets + rest)]


def _new_cursors(store: InspectedStore) -> Iterator[DelayedReport]:
    """Yield the trackers whose cursor has no record yet."""
    for log in store.unclaimed():
        match = CURSOR_LOG_NAME.fullmatch(log.name)
        name = None if match is None else delayed_cursor_of(match[1])
        if name is not None and not log.length:
            log.kind = "delayed cursor"
            yield DelayedReport(name, log.name, (0, -1), {}, ())


# --- snapshots ------------------------------------------------------------------------------------------------------


def _snapshots(store: InspectedStore) -> Iterator[tuple[int, InspectedLog]]:
    for log in store.unclaimed():
        match = SNAPSHOT_LOG_NAME.fullmatch(log.name)
        if match:
            log.kind = "snapshot"
            yield int(match[2]), log


def _named(
    store: InspectedStore, cursor: str, named: list[NamedSnapshot], snapshots: dict[int, InspectedLog]
) -> tuple[BucketReport, ...]:
    buckets = []
    for each in named:
        log = snapshots.pop(each.snapshot_id, None)
        if log is None:
            store.note(cursor, each.key, "missing", f"snapshot {each.snapshot_id} is missing")
            buckets.append(BucketReport(each.snapshot_id, each.key, None, "", "", 0, None, ()))
        else:
            buckets.append(_bucket(store, each.snapshot_id, each.key, log))
    return tuple(buckets)


def _bucket(store: InspectedStore, snapshot_id: int, key: str | None, log: InspectedLog) -> BucketReport:
    footer = _footer(store, key, log)
    topic, subscription = ("", "") if footer is None else (footer.topic, footer.cursor)
    times = None if footer is None else _times(store, footer, log)
    messages = None if times is None else sum(each.messages for each in times)
    return BucketReport(snapshot_id, key, log.name, topic, subscription, log.size, messages, tuple(times or ()))


def _footer(store: InspectedStore, key: str | None, log: InspectedLog) -> Footer | None:
    """Return a snapshot's footer; a snapshot without a name and an end is a leftover of a crash."""
    if log.damage:
        return None
    if not log.is_sealed:
        if key is not None:
            store.note(log.name, "", "inconsistent", "the snapshot has no end: it was cut, or never finished")
        return None
    try:
        footer = decode_footer(log.last, log.name)
    except LogVersionError as error:
        store.note(log.name, error.file, "newer", f"version {error.version} of the format")
    except ValueError as error:
        store.note(log.name, "", "inconsistent", str(error))
    else:
        if footer.records == log.length - 1:
            return footer
        reason = f"its footer counts {footer.records} records, there are {log.length - 1}"
        store.note(log.name, "the footer", "inconsistent", reason)
    return None


def _times(store: InspectedStore, footer: Footer, log: InspectedLog) -> list[SegmentTimes] | None:
    metadata = b"".join(islice(log.records(), footer.parts.get(0, 1)))
    try:
        rows = decode_metadata(metadata)
        if len(rows) != footer.entries - 1:
            reason = f"its metadata lists {len(rows)} segments, there are {footer.entries - 1}"
            store.note(log.name, "the metadata", "inconsistent", reason)
            return None
        return [SegmentTimes(row.min_at, row.max_at, _count(row), len(row.bitmaps)) for row in rows]
    except MissingExtraError as error:
        store.note_missing_package(error)
    except (SnapshotFormatError, ValueError) as error:
        store.note(log.name, "the metadata", "inconsistent", str(error))
    return None


def _count(row: SegmentRow) -> int:
    """Return how many messages a segment has.

    :raises ValueError: a bitmap cannot be read
    """
    positions = PositionSet()
    return sum(positions.join(ledger, bitmap) for ledger, bitmap in row.bitmaps.items())
