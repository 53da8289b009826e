"""``pulsar-nack inspect``: the contents of a durable folder, and its damage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .._foreign import shown
from ..inspection import (
    BucketReport,
    CursorReport,
    DelayedReport,
    FolderReport,
    NacksReport,
    StoreReport,
    TopicReport,
    inspect_folder,
)
from ..planning import format_size
from ._terminal import open_console, print_json, require

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH: Final = 120
_MAX_ROWS: Final = 40
_NUMBERS: Final = {
    *("entries", "backlog", "messages", "segments", "size", "records", "record", "byte", "ledger", "partition"),
    *("acked", "ranges", "holes", "batches"),
}
"""The columns that are aligned to the right."""


def inspect(
    path: Annotated[Path, typer.Argument(help="A durable folder, a folder of such folders, or a NAME.log in one.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Also show each log and its files.")] = False,
) -> None:
    """Show what a durable folder holds: delayed messages, acknowledgement state, nacks, other logs, and any damage.

    Nothing is changed, repaired or locked, so the folder may be in use. All checksums are checked.

    Exit codes: 0 no damage, 1 something is damaged or torn, 2 the folder does not exist or holds nothing of
    pulsar-nack, or a package is missing, so not everything was read.
    """
    report = inspect_folder(path)
    if json:
        print_json(report.as_dict())
    else:
        _show(report, with_files=files)
    if report.is_damaged:
        raise typer.Exit(1)
    if not report.is_complete:
        raise typer.Exit(2)


def _show(report: FolderReport, *, with_files: bool) -> None:
    require("rich", "inspect (but for --json)", "cli")
    console = open_console(_WIDTH)
    for store in report.stores:
        _show_store(console, store, with_files=with_files)
    damage = list(report.damage)
    if damage:
        _show_damage(console, report)
    elif report.is_complete:
        console.print("[green]No damage.[/]")
    else:
        console.print("[yellow]No damage in what was read. Not everything was read: see above.[/]")


def _show_store(console: Console, store: StoreReport, *, with_files: bool) -> None:
    size = sum(log.bytes for log in store.logs)
    records = sum(log.records for log in store.logs)
    counts = f"{_count(len(store.logs), 'log')}, {_count(records, 'record')}, {format_size(size)}"
    console.print(f"[bold]{_text(store.path)}[/]  {counts}\n")
    if store.topic is not None:
        _show_topic(console, store.topic)
    for delayed in store.delayed:
        _show_delayed(console, delayed)
    if store.built is not None:
        counts = f"{_count(store.built.messages, 'message')} in {_count(store.built.buckets, 'bucket')}"
        console.print(f"Made by build-index, with {counts} (manifest.json)\n")
    if store.nacks is not None:
        _show_nacks(console, store.nacks)
    for cursor in store.cursors:
        _show_cursor(console, cursor)
    plain = [log for log in store.logs if log.kind == "plain"]
    if with_files:
        _show_files(console, store)
    elif plain:
        rows = [(log.name, f"{log.records:,}", format_size(log.bytes), _yes(log.is_sealed)) for log in plain]
        _print_table(console, "Other logs", ("log", "records", "size", "sealed"), rows)
    for label, names in (("Left by a crash, or being written", store.leftovers), ("Not ours", store.foreign)):
        if names:
            console.print(f"{label}: {_names(names)}\n")
    for note in store.notes:
        console.print(f"[yellow]{_text(note)}[/]\n")


def _show_topic(console: Console, topic: TopicReport) -> None:
    entries = sum(each.entries for each in topic.ledgers)
    title = f"Local topic, {_count(len(topic.ledgers), 'ledger')}, {_count(entries, 'entry', 'entries')}"
    ledgers = [
        (str(each.ledger), f"{each.entries:,}", format_size(each.bytes), _yes(each.is_sealed)) for each in topic.ledgers
    ]
    _print_table(console, title, ("ledger", "entries", "size", "sealed"), ledgers)
    rows = [
        (
            each.name,
            "unreadable" if each.mark_delete is None else _position(each.mark_delete),
            "" if each.backlog is None else f"{each.backlog:,}",
        )
        for each in topic.subscriptions
    ]
    _print_table(console, "Subscriptions", ("subscription", "mark-delete", "backlog"), rows)


def _show_delayed(console: Console, delayed: DelayedReport) -> None:
    title = "Delayed messages"
    if delayed.mark_delete is not None:
        title += f", cursor {delayed.cursor}: mark-delete {_position(delayed.mark_delete)}"
    others = len(delayed.properties) - sum(bucket.key is not None for bucket in delayed.buckets)
    if others > 0:
        title += f", {_count(others, 'other property', 'other properties')}"
    columns = ("bucket", "snapshot", "messages", "segments", "from", "to", "size")
    total = sum(bucket.messages or 0 for bucket in delayed.buckets)
    title += f"; {_count(len(delayed.buckets), 'bucket')}, {_count(total, 'message')}"
    _print_table(console, title, columns, map(_bucket_row, delayed.buckets))


def _bucket_row(bucket: BucketReport) -> tuple[str, ...]:
    name = "orphan" if bucket.key is None else bucket.key.rpartition(".")[2]
    messages = "?" if bucket.messages is None else f"{bucket.messages:,}"
    size = "missing" if bucket.log is None else format_size(bucket.bytes)
    times = (_time(bucket.first_at), _time(bucket.last_at))
    return name, str(bucket.snapshot_id), messages, f"{len(bucket.segments):,}", *times, size


def _show_nacks(console: Console, nacks: NacksReport) -> None:
    console.print(f"[bold]Durable nacks of a consumer[/], last written {_time(nacks.last_written_at) or 'never'}")
    waits = f", from {_time(nacks.first_at)} to {_time(nacks.last_at)}" if nacks.unsettled else ""
    most = nacks.most_redeliveries
    redelivered = f"redelivered up to {_count(most, 'time')}" if most else "none redelivered yet"
    console.print(f"  {_count(nacks.unsettled, 'unsettled message')}{waits}; {redelivered}")
    console.print(f"  {_count(nacks.acknowledged, 'acknowledgement')} remembered")
    console.print(f"  in {_names(nacks.logs) or 'no log'}")
    if nacks.ignored:
        console.print(f"  ignored: {_names(nacks.ignored)}")
    console.print()
    rows = [(str(each.ledger), str(each.partition), each.topic or "", f"{each.messages:,}") for each in nacks.ledgers]
    if rows:
        _print_table(console, "Unsettled", ("ledger", "partition", "topic", "messages"), rows)


def _show_cursor(console: Console, cursor: CursorReport) -> None:
    forms = {
        "ledgers": f"{_count(len(cursor.ledgers), 'ledger')}, marker at record {cursor.marker}",
        "single": f"all in record {cursor.marker}, the legacy format",
        "snapshot": "[red]no usable marker, only the mark-delete position is known[/]",
    }
    console.print(
        f"[bold]Acknowledgements, cursor {_text(cursor.name)}[/]: mark-delete {_position(cursor.mark_delete)}, "
        f"{format_size(cursor.size_bytes)} in use; {forms[cursor.form]}"
    )
    if cursor.properties:
        console.print(f"  {_count(len(cursor.properties), 'property', 'properties')}")
    if cursor.ignored:
        console.print(f"  ignored: {_names(cursor.ignored)}")
    columns = ("ledger", "acked", "ranges", "holes", "batches", "size", "record")
    rows: list[tuple[str, ...]] = []
    for each in cursor.ledgers:
        counts = (f"{count:,}" for count in (each.acked, each.ranges, each.holes, each.batches))
        record = f"{each.records[0]}{'...' if len(each.records) > 1 else ''}" if each.records else ""
        rows.append((str(each.ledger), *counts, format_size(each.bytes), record))
    _print_table(console, "", columns, rows)


def _show_files(console: Console, store: StoreReport) -> None:
    rows: list[tuple[str, ...]] = []
    for log in store.logs:
        sealed = " (sealed)" if log.is_sealed else ""
        rows.append((log.name + sealed, log.kind, "", f"{log.records:,}", format_size(log.bytes)))
        rows += [("", "", each.file, f"{each.records:,}", format_size(each.bytes)) for each in log.segments]
    _print_table(console, "Logs", ("log", "part of", "file", "records", "size"), rows, limit=None)


def _show_damage(console: Console, report: FolderReport) -> None:
    columns = ("what", "log", "file", "byte", "reason")
    rows = [
        (each.kind, each.log, each.file, "" if each.offset is None else f"{each.offset:,}", each.reason)
        for each in report.damage
    ]
    _print_table(console, f"[red]{_count(len(rows), 'thing')} wrong[/]", columns, rows, limit=None)


# --- tables and cells ------------------------------------------------------------------------------------------------


def _print_table(
    console: Console,
    title: str,
    columns: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    *,
    limit: int | None = _MAX_ROWS,
) -> None:
    from rich.table import Table

    rows = list(rows)
    if title:
        console.print(f"[bold]{title}[/]")
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 2))
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    for row in rows[:limit]:
        table.add_row(*map(_text, row))
    if rows:
        console.print(table)
    if limit is not None and len(rows) > limit:
        console.print(f"  ... and {len(rows) - limit:,} more; --json has all")
    console.print()


def _text(text: str) -> str:
    """Return text from files, cut and escaped for a terminal."""
    from rich.markup import escape

    return escape(shown(text))


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(_text, names))


def _count(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _position(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _time(at_ms: int | None) -> str:
    """Return an epoch time in UTC, to the second; as a number if no calendar has it."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
