"""The legacy format: the whole state of a cursor in one record, as Pulsar writes it without PIP-81.

Acknowledged entries are ranges (lower, upper], or, if Pulsar is configured so, words for each ledger, which are read
here and not written. The number of ranges is limited (``managedLedgerMaxUnackedRangesToPersist``): the lowest are
written, because they keep the mark-delete position moving. Batch sets have such a limit as well. What is left out is
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from ...errors import CursorFormatError, InvalidArgumentError
from ...ids import Position
from ...index import add_words
from .._ledgers import Ledgers
from ._batch_set import BatchSet, checked_batch
from ._ledger import MAX_ACKED, MAX_RECORD_BYTES, LedgerAcks
from ._marker import MarkerContents
from ._record import (
    SEQUENCE,
    RecordKind,
    add_cursor_properties,
    add_properties,
    expect_kind,
    messages,
    read_cursor_properties,
    read_properties,
    read_words,
)

MAX_RANGES: Final = 10_000
MAX_BATCHES: Final = 10_000
_WHAT: Final = RecordKind.LEGACY.value


@dataclass(frozen=True, slots=True)
class LegacyRecord:
    """The contents of a record in the legacy format.

    :param contents: what a marker would say; Pulsar keeps the cursor properties elsewhere
    :param states: what is acknowledged beyond the mark-delete position, by ledger
    :param sequence: sequence number, 0 where Pulsar wrote it
    """

    contents: MarkerContents
    states: Mapping[int, LedgerAcks] = field(default_factory=dict)
    sequence: int = 0


class EncodedLegacy(NamedTuple):
    """A record in the legacy format, and how many ranges and batch sets it leaves out."""

    record: bytes
    dropped_ranges: int
    dropped_batches: int


def encode_legacy(
    legacy: LegacyRecord,
    *,
    max_ranges: int = MAX_RANGES,
    max_batches: int = MAX_BATCHES,
    limit: int = MAX_RECORD_BYTES,
) -> EncodedLegacy:
    """Return a state as one record, with the lowest ranges and batch sets that fit.

    O(ranges written); about 30 ms with the default limits, so do it in a thread, with copies.

    :param max_ranges: most ranges to write
    :param max_batches: most batch sets to write
    :param limit: most bytes of the record
    :raises InvalidArgumentError: the limit leaves no room for the properties, or a value cannot be written
    :raises MissingExtraError: protobuf is not installed
    """
    (ledger, entry), longs, texts = legacy.contents
    info = messages().PositionInfo(ledgerId=ledger, entryId=entry)
    add_properties(info, longs, SEQUENCE, legacy.sequence)
    add_cursor_properties(info.cursorProperties, texts)
    room = limit - info.ByteSize()
    if room < 0:
        raise InvalidArgumentError("properties", f"{info.ByteSize():,} bytes", f"at most the limit of {limit:,} bytes")
    states = [(ledger, legacy.states[ledger]) for ledger in sorted(legacy.states)]
    in_all = sum(state.ranges.range_count for _, state in states)
    written = _add_ranges(info, states, max_ranges, limit)
    batches = _add_batches(info, states, max_batches, limit)
    in_batches = sum(len(state.batches) for _, state in states)
    return EncodedLegacy(bytes(info.SerializeToString()), in_all - written, in_batches - batches)


def decode_legacy(record: bytes, ledgers: Ledgers | None = None) -> LegacyRecord:
    """Return what a record in the legacy format says.

    A range that spans several ledgers is split if ``ledgers`` knows their lengths, which the record lacks. Otherwise
    only the part in its last ledger counts: the result may have fewer acknowledgements than there were, never more.

    :raises CursorFormatError: the record has another format, or contradicts itself
    :raises MissingExtraError: protobuf is not installed
    """
    info, sequence = expect_kind(record, RecordKind.LEGACY)
    states: dict[int, LedgerAcks] = {}
    most = MAX_ACKED
    for ledger, first, last in _ranges_of(info, ledgers):
        most -= last - first + 1
        if most < 0:
            raise CursorFormatError(_WHAT, f"there are more than {MAX_ACKED} acknowledged entries")
        _state(states, ledger).ranges.add_range(first, last)
    if not info.individualDeletedMessages:  # Pulsar prefers ranges to words as well
        for each in info.individualDeletedMessageRanges:
            add_words(_state(states, each.key).ranges, read_words(each.values), 0)
    for each in info.batchedEntryDeletionIndexInfo:
        _read_batch(states, each)
    contents = MarkerContents(
        Position(info.ledgerId, info.entryId), read_properties(info), read_cursor_properties(info.cursorProperties)
    )
    return LegacyRecord(contents, {ledger: state for ledger, state in states.items() if state}, sequence)


def _add_ranges(info: Any, states: Sequence[tuple[int, LedgerAcks]], most: int, limit: int) -> int:
    """Write the lowest ranges; return how many."""
    add = info.individualDeletedMessages.add
    ranges = ((ledger, first, last) for ledger, state in states for first, last in state.ranges.ranges())
    size, count = info.ByteSize(), 0
    for ledger, first, last in islice(ranges, most):
        written = add()
        lower, upper = written.lowerEndpoint, written.upperEndpoint
        lower.ledgerId = upper.ledgerId = ledger
        lower.entryId = first - 1
        upper.entryId = last
        size += 2 + written.ByteSize()
        if size > limit:
            del info.individualDeletedMessages[-1]
            break
        count += 1
    return count


def _add_batches(info: Any, states: Sequence[tuple[int, LedgerAcks]], most: int, limit: int) -> int:
    add = info.batchedEntryDeletionIndexInfo.add
    sets = ((ledger, entry, state.batches[entry]) for ledger, state in states for entry in sorted(state.batches))
    size, count = info.ByteSize(), 0
    for ledger, entry, batch in islice(sets, most):
        written = add()
        written.position.ledgerId, written.position.entryId = ledger, entry
        written.deleteSet.extend(batch.words)
        size += 6 + written.ByteSize()
        if size > limit:
            del info.batchedEntryDeletionIndexInfo[-1]
            break
        count += 1
    return count


def _ranges_of(info: Any, ledgers: Ledgers | None) -> Iterator[tuple[int, int, int]]:
    """Yield each range as (ledger, first entry, last entry)."""
    for each in info.individualDeletedMessages:
        lower = each.lowerEndpoint.ledgerId, each.lowerEndpoint.entryId
        ledger, last = upper = each.upperEndpoint.ledgerId, each.upperEndpoint.entryId
        if not (-1, -1) <= lower <= upper or lower[1] < -1 or ledger < 0 or last < -1:
            raise CursorFormatError(_WHAT, f"there is no range ({lower[0]}:{lower[1]}, {ledger}:{last}]")
        first = lower[1] + 1 if lower[0] == ledger else 0
        if lower[0] != ledger and ledgers is not None:
            yield from _before(ledgers, lower, ledger)
        if first <= last:
            yield ledger, first, last


def _before(ledgers: Ledgers, lower: tuple[int, int], ledger: int) -> Iterator[tuple[int, int, int]]:
    """Yield the entries after ``lower`` in the known ledgers before ``ledger``, as ranges."""
    at, first = lower[0], lower[1] + 1
    while at < ledger:
        last = (ledgers.entries(at) or 0) - 1
        if first <= last:
            yield at, first, last
        following = ledgers.next_ledger(at)
        if following is None:
            return
        at, first = following, 0


def _read_batch(states: dict[int, LedgerAcks], each: Any) -> None:
    entry = each.position.entryId
    if entry < 0:
        raise CursorFormatError(_WHAT, f"there is no batch at {each.position.ledgerId}:{entry}")
    bits = int.from_bytes(read_words(each.deleteSet), "little")
    found = checked_batch(entry, bits.bit_length(), bits)
    if found.is_untouched and found.unacked:  # a set is written if not all is left; the size is not written
        found = BatchSet(found.size + 1, found.unacked)
    state = _state(states, each.position.ledgerId)
    known = state.batches.get(entry)
    state.batches[entry] = found if known is None else known.merge(found)


def _state(states: dict[int, LedgerAcks], ledger: int) -> LedgerAcks:
    if ledger < 0:
        raise CursorFormatError(_WHAT, f"there is no ledger {ledger}")
    return states.setdefault(ledger, LedgerAcks())
