"""The state that the next opening of a cursor or of a consumer would recover from its logs.

The rules are those by which they recover, applied to records that were read without opening a log: of a cursor the last
usable marker and the records that it names, of a consumer the newest base and the logs after it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from ..consumer.durable import (
    DEFERRED_FIRST,
    OWNER_LOG,
    RECORD_VERSION,
    DurableState,
    RangeAcks,
    Record,
    UnreadableRecordError,
    base_name,
    decode_record,
    log_name,
)
from ..cursor.format import (
    CURSOR_LOG_NAME,
    LedgerAcks,
    Marker,
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
from ..ledger import Log
from ._report import AckedLedger, CursorReport, NacksReport, WaitingLedger
from ._store import InspectedLog, InspectedStore

_T = TypeVar("_T")
_Numbered = Mapping[int, bytes]
_STATES: Final = {RecordKind.MARKER, RecordKind.LEGACY}
_NACKS: Final = re.compile(r"nacks-(\d{10})(-base)?")
_FOR_EVER: Final = 1 << 60

FoundCursor = tuple[CursorReport, Mapping[int, LedgerAcks]]
"""The report on a cursor, and its state by ledger."""


# --- cursors --------------------------------------------------------------------------------------------------------


class _Stored(NamedTuple):
    """A marker with the states that it names, or what a record in the legacy format or a snapshot says in its place."""

    number: int
    form: str
    marker: Marker
    states: dict[int, LedgerAcks]


def find_cursors(store: InspectedStore) -> Iterator[FoundCursor]:
    """Iterate over the cursors of a store as the next opening finds them."""
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
    log, stored = max(found, key=lambda each: each[1].marker.sequence)
    ignored = tuple(sorted(logs.keys() - {log, f"{log}-snapshot"}))
    return _cursor_report(name, log, records[log], stored, ignored), stored.states


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
    return _Stored(number, "single", Marker(legacy.sequence, legacy.contents), dict(legacy.states))


def _use_marker(name: str, number: int, records: _Numbered) -> _Stored:
    marker = _now(read_marker(cast("Log", _Records(name, records)), number))
    states = {}
    for ledger, named in marker.references.items():
        if not all(each < number and each in records for each in named):
            raise CursorFormatError(
                "a marker", f"it names a record for ledger {ledger} that is not there before it: {named}"
            )
        states[ledger] = decode_state(ledger, [records[each] for each in named])
    return _Stored(number, "ledgers", marker, states)


def _last_snapshot(records: _Numbered) -> _Stored | None:
    for number in sorted(records, reverse=True):
        try:
            return _Stored(number, "snapshot", decode_marker([records[number]]), {})
        except CursorFormatError:
            continue
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


def _cursor_report(name: str, log: str, records: _Numbered, stored: _Stored, ignored: tuple[str, ...]) -> CursorReport:
    ledgers = tuple(_ledgers(stored, records))
    contents, references = stored.marker.contents, stored.marker.references
    return CursorReport(
        name=name,
        log=log,
        form=stored.form,
        marker=stored.number,
        markers=sum(kind_of(record) is RecordKind.MARKER for record in records.values()),
        mark_delete=(contents.mark_delete.ledger, contents.mark_delete.entry),
        properties=dict(contents.cursor_properties),
        size_bytes=sum(each.bytes for each in ledgers) + len(records[stored.number]),
        records_in_use=sum(len(references.get(ledger, ())) for ledger in stored.states) + 1,
        ignored=ignored,
        ledgers=ledgers,
    )


def _ledgers(stored: _Stored, records: _Numbered) -> Iterator[AckedLedger]:
    mark_delete = stored.marker.contents.mark_delete
    for ledger, acks in sorted(stored.states.items()):
        begin = 0
        if ledger == mark_delete.ledger:
            acks.trim(mark_delete.entry)
            begin = mark_delete.entry + 1
        if ledger < mark_delete.ledger or not acks:
            continue
        numbers = tuple(stored.marker.references.get(ledger, ()))
        first = acks.ranges.first
        yield AckedLedger(
            ledger=ledger,
            acked=len(acks.ranges),
            ranges=acks.ranges.range_count,
            holes=0 if first is None else acks.ranges.range_count - (first <= begin),
            batches=len(acks.batches),
            bytes=sum(len(records[number]) for number in numbers),
            records=numbers,
        )


# --- the durable nacks of a consumer --------------------------------------------------------------------------------


def inspect_nacks(store: InspectedStore) -> NacksReport | None:
    """Return what a consumer would remember if it opened this store now; None without such logs."""
    found = {log.name: log for log in store.unclaimed() if log.name == OWNER_LOG or _NACKS.fullmatch(log.name)}
    if not found:
        return None
    for log in found.values():
        log.kind = "nacks"
    chain = [found[name] for name in _chain(store, found)]
    memory = DurableState(_FOR_EVER, _FOR_EVER)
    for log in chain:
        _replay(store, log, memory)
    used = tuple(log.name for log in chain)
    ignored = tuple(sorted(found.keys() - {*used, OWNER_LOG}))
    return _nacks_report(used, ignored, memory)


def _chain(store: InspectedStore, found: dict[str, InspectedLog]) -> Iterator[str]:
    """Return the names of the logs that count: the newest sealed base, and the logs after it."""
    matches = [match for name in found if (match := _NACKS.fullmatch(name))]
    sealed = (int(match[1]) for match in matches if match[2] and found[match[0]].is_sealed)
    base = max(sealed, default=0)
    logs = sorted(int(match[1]) for match in matches if not match[2] and int(match[1]) > base)
    if base:
        yield base_name(base)
    expected, is_open = base + 1, False
    for number in logs:
        log = found[log_name(number)]
        if number != expected:
            store.note(log_name(expected), "", "missing", f"the log is missing, and there is {log.name}")
        if is_open and log.length:
            reason = f"it has no seal, and yet {log.name} has records"
            store.note(log_name(number - 1), "", "inconsistent", reason)
        expected, is_open = number + 1, not log.is_sealed
        yield log.name
    if base and not logs:
        store.note(log_name(expected), "", "missing", f"the log is missing that {base_name(base)} was made beside")


def _replay(store: InspectedStore, log: InspectedLog, memory: DurableState) -> None:
    for number, data in enumerate(log.records()):
        try:
            memory.apply(decode_record(data))
        except (UnreadableRecordError, ValueError) as error:
            is_newer = isinstance(error, UnreadableRecordError) and error.version > RECORD_VERSION
            store.note(log.name, f"record {number}", "newer" if is_newer else "inconsistent", str(error))
            return


def _entries_of(acknowledged: Record) -> int:
    """Return how many entries a record acknowledges: one, or those of its ranges."""
    if not isinstance(acknowledged, RangeAcks):
        return 1
    return sum(last - first + 1 for first, last in acknowledged.ranges)


def _nacks_report(used: tuple[str, ...], ignored: tuple[str, ...], memory: DurableState) -> NacksReport:
    times, counts = array("q"), array("I")
    ledgers: dict[tuple[int, int, str | None], int] = {}
    for page in memory.pending.pages():
        times.extend(page.times)
        counts.extend(page.counts)
        key = page.ledger, page.partition, page.topic
        ledgers[key] = ledgers.get(key, 0) + len(page.keys)
    return NacksReport(
        logs=used,
        ignored=ignored,
        last_written_at=memory.last_at_ms if memory.last_at_ms >= 0 else None,
        unsettled=len(memory.pending),
        first_at=min(times, default=None),
        last_at=max(times, default=None),
        most_redeliveries=max((count for count in counts if count != DEFERRED_FIRST), default=0),
        acknowledged=sum(map(_entries_of, memory.acknowledged())),
        ledgers=tuple(
            WaitingLedger(*key, messages) for key, messages in sorted(ledgers.items(), key=lambda each: each[0][:2])
        ),
    )
