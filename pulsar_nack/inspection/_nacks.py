"""A consumer's durable state: which of its logs count, and the state that they add up to."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import Final

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
from ._report import NacksReport, WaitingLedger
from ._store import InspectedLog, InspectedStore

_NAME: Final = re.compile(r"nacks-(\d{10})(-base)?")
_FOR_EVER: Final = 1 << 60


def inspect_nacks(store: InspectedStore) -> NacksReport | None:
    """Return what a consumer would remember if it opened this store now; None without such logs."""
    found = {log.name: log for log in store.unclaimed() if log.name == OWNER_LOG or _NAME.fullmatch(log.name)}
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
    return _report(used, ignored, memory)


def _chain(store: InspectedStore, found: dict[str, InspectedLog]) -> Iterator[str]:
    """Return the names of the logs that count: the newest sealed base, and the logs after it."""
    matches = [match for name in found if (match := _NAME.fullmatch(name))]
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


def _report(used: tuple[str, ...], ignored: tuple[str, ...], memory: DurableState) -> NacksReport:
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
