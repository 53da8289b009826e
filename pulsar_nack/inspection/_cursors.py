"""Cursors of acknowledgements: the marker that the next opening would use, and the records that it names.

The rules are those of the cursor's own recovery, applied to records that were read without opening the log.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from ..cursor.format import (
    CURSOR_LOG_NAME,
    LedgerAcks,
    MarkerContents,
    RecordKind,
    check_version,
    decode_legacy,
    decode_marker,
    decode_state,
    delayed_cursor_of,
    kind_of,
    read_marker,
)
from ..errors import CursorFormatError, LogCorruptedError, LogVersionError, MissingExtraError
from ..ids import Position
from ..ledger import Log
from ._report import AckedLedger, CursorReport
from ._store import InspectedLog, InspectedStore

_T = TypeVar("_T")
_Numbered = Mapping[int, bytes]
_STATES: Final = {RecordKind.MARKER, RecordKind.LEGACY}


class _Stored(NamedTuple):
    """The state in a marker, in a record in the legacy format, or in a snapshot."""

    sequence: int
    contents: MarkerContents
    states: dict[int, LedgerAcks]
    numbers: dict[int, tuple[int, ...]]
    marker: int
    form: str


class FoundCursor(NamedTuple):
    """A cursor as the next opening finds it: its whole state, and its report."""

    mark_delete: Position
    states: dict[int, LedgerAcks]
    report: CursorReport


def find_cursors(store: InspectedStore) -> Iterator[FoundCursor]:
    """Iterate over the cursors of a store, with their whole state."""
    cursors: dict[str, dict[str, InspectedLog]] = {}
    for log in store.unclaimed():
        match = CURSOR_LOG_NAME.fullmatch(log.name)
        if match:
            cursors.setdefault(match[1], {})[log.name] = log
    for name, logs in sorted(cursors.items()):
        found = _find(store, name, logs)
        if found:
            yield found


def _find(store: InspectedStore, name: str, logs: dict[str, InspectedLog]) -> FoundCursor | None:
    """Return the cursor of this name; None if the logs only have similar names."""
    try:
        if not any(map(_is_of_a_cursor, logs.values())):
            return None
        for log in logs.values():
            log.kind = "cursor" if delayed_cursor_of(name) is None else "delayed cursor"
        records: dict[str, _Numbered] = {each: dict(log.numbered(past_damage=True)) for each, log in logs.items()}
        return _newest(store, name, logs, records)
    except MissingExtraError as error:
        store.note_missing_package(error)
        return None


def _is_of_a_cursor(log: InspectedLog) -> bool:
    """Return whether a log has a record of a cursor; another log may be too large for memory."""
    return any(kind_of(record) in _STATES for _, record in log.numbered(past_damage=True))


def _newest(
    store: InspectedStore, name: str, logs: dict[str, InspectedLog], records: dict[str, _Numbered]
) -> FoundCursor | None:
    main = [each for each, log in sorted(logs.items(), reverse=True) if _is_main(each) and log.can_be_salvaged]
    found = [(each, stored) for each in main if (stored := _last_usable(store, each, records[each]))]
    if not found:
        snapshots = [each for each in sorted(logs, reverse=True) if not _is_main(each)]
        found = [(each, stored) for each in snapshots if (stored := _last_snapshot(records[each]))]
        store.note(max(logs), "", "inconsistent", f"no marker of the cursor {name} can be used")
    if not found:
        return None
    log, stored = max(found, key=lambda each: each[1].sequence)
    report = _report(name, log, records[log], stored, tuple(sorted(logs.keys() - {log, f"{log}-snapshot"})))
    return FoundCursor(stored.contents.mark_delete, stored.states, report)


def _is_main(log: str) -> bool:
    return not log.endswith("-snapshot")


def _last_usable(store: InspectedStore, name: str, records: _Numbered) -> _Stored | None:
    """Go back from the last record to the last usable marker."""
    for number in sorted(records, reverse=True):
        record = records[number]
        kind = kind_of(record)
        if kind.needs_marker:
            continue
        try:
            check_version(name, number, record)
            return _use_marker(name, number, records) if kind is RecordKind.MARKER else _use_legacy(number, record)
        except LogVersionError as error:
            store.note(name, f"record {number}", "newer", f"version {error.version} of the format")
        except (CursorFormatError, LogCorruptedError) as error:
            store.note(name, f"record {number}", "inconsistent", str(error))
    return None


def _use_legacy(number: int, record: bytes) -> _Stored:
    if kind_of(record) is not RecordKind.LEGACY:
        raise CursorFormatError("record", "it is neither a marker, nor a ledger's state, nor in the legacy format")
    legacy = decode_legacy(record)
    return _Stored(legacy.sequence, legacy.contents, dict(legacy.states), {}, number, "single")


def _use_marker(name: str, number: int, records: _Numbered) -> _Stored:
    marker = _now(read_marker(cast("Log", _Records(name, records)), number))
    states, numbers = {}, {}
    for ledger, named in marker.references.items():
        if not all(each < number and each in records for each in named):
            raise CursorFormatError(
                "a marker", f"it names a record for ledger {ledger} that is not there before it: {named}"
            )
        states[ledger] = decode_state(ledger, [records[each] for each in named])
        numbers[ledger] = tuple(named)
    return _Stored(marker.sequence, marker.contents, states, numbers, number, "ledgers")


def _last_snapshot(records: _Numbered) -> _Stored | None:
    for number in sorted(records, reverse=True):
        try:
            snapshot = decode_marker([records[number]])
        except CursorFormatError:
            continue
        return _Stored(snapshot.sequence, snapshot.contents, {}, {}, number, "snapshot")
    return None


class _Records:
    """Records that were read already, with the methods of their log that :func:`read_marker` needs."""

    def __init__(self, name: str, records: _Numbered) -> None:
        self.name = name
        self._records = records

    @property
    def length(self) -> int:
        """Return the number after the last record."""
        return max(self._records, default=-1) + 1

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records ``first`` to ``last``."""
        missing = next((number for number in range(first, last + 1) if number not in self._records), None)
        if missing is not None:
            raise LogCorruptedError(self.name, f"record {missing}", 0, "the record is missing")
        return [self._records[number] for number in range(first, last + 1)]


def _now(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that awaits nothing but :class:`_Records`."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("_T", done.value)
    work.close()
    raise RuntimeError("it waits for something else than records")


# --- the report -----------------------------------------------------------------------------------------------------


def _report(name: str, log: str, records: _Numbered, stored: _Stored, ignored: tuple[str, ...]) -> CursorReport:
    ledgers = tuple(_ledgers(stored, records))
    in_use = sum(len(numbers) for numbers in stored.numbers.values())
    position = stored.contents.mark_delete
    return CursorReport(
        name=name,
        log=log,
        form=stored.form,
        marker=stored.marker,
        markers=sum(kind_of(record) is RecordKind.MARKER for record in records.values()),
        mark_delete=(position.ledger, position.entry),
        properties=dict(stored.contents.cursor_properties),
        size_bytes=sum(each.bytes for each in ledgers) + len(records[stored.marker]),
        records_in_use=in_use + 1,
        ignored=ignored,
        ledgers=ledgers,
    )


def _ledgers(stored: _Stored, records: _Numbered) -> Iterator[AckedLedger]:
    mark_delete = stored.contents.mark_delete
    for ledger, acks in sorted(stored.states.items()):
        if ledger == mark_delete.ledger:
            acks.trim(mark_delete.entry)
        if ledger < mark_delete.ledger or not acks:
            continue
        numbers = stored.numbers.get(ledger, ())
        yield AckedLedger(
            ledger=ledger,
            acked=len(acks.ranges),
            ranges=acks.ranges.range_count,
            holes=_holes(ledger, acks, mark_delete),
            batches=len(acks.batches),
            bytes=sum(len(records[number]) for number in numbers),
            records=numbers,
        )


def _holes(ledger: int, acks: LedgerAcks, mark_delete: Position) -> int:
    """Return how many runs of unacknowledged entries lie below the highest acknowledged entry of a ledger."""
    first = acks.ranges.first
    if first is None:
        return 0
    begin = mark_delete.entry + 1 if ledger == mark_delete.ledger else 0
    return acks.ranges.range_count - (first <= begin)
