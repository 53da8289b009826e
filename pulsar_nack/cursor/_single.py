"""The old form: the whole state of a cursor in one record, as Pulsar writes it.

Acknowledged entries are there as ranges (lower, upper], or, where Pulsar is set so, as words for each ledger. Of the
former it writes a limited number (``managedLedgerMaxUnackedRangesToPersist``): the lowest, which are dearest, because a
position is lost for each hole above. Batch sets have such a limit as well. What the record has no room for is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from ..errors import CursorFormatError, InvalidArgumentError
from ..ids import Position
from ..index import EntryRanges, add_words, sections_of
from ._batch import BatchSet
from ._batch_columns import checked_batch
from ._codec import LIMIT
from ._encodings import MOST_ACKED
from ._ledger_acks import LedgerAcks
from ._ledgers import Ledgers
from ._wire import (
    SEQUENCE,
    Kind,
    add_properties,
    add_strings,
    expect,
    messages,
    read_properties,
    read_strings,
    read_words,
)

MOST_RANGES: Final = 10_000
MOST_BATCHES: Final = 10_000
_WHAT: Final = "the old form"
_WORD: Final = 8


@dataclass(frozen=True, slots=True)
class Single:
    """What a record of the old form says.

    :param mark_delete: the mark-delete position
    :param states: what is acknowledged beyond it, by ledger
    :param properties: of the position: names and longs
    :param cursor_properties: names and texts; Pulsar keeps them elsewhere
    :param sequence: sequence number, 0 where Pulsar wrote it
    """

    mark_delete: Position
    states: Mapping[int, LedgerAcks] = field(default_factory=dict)
    properties: Mapping[str, int] = field(default_factory=dict)
    cursor_properties: Mapping[str, str] = field(default_factory=dict)
    sequence: int = 0


class Written(NamedTuple):
    """A record of the old form, and what it had no room for."""

    record: bytes
    dropped_ranges: int
    dropped_batches: int


def encode_single(
    single: Single,
    *,
    most_ranges: int = MOST_RANGES,
    most_batches: int = MOST_BATCHES,
    as_words: bool = False,
    limit: int = LIMIT,
) -> Written:
    """Return everything in one record: the lowest ranges and batch sets that may be, and that the record has room for.

    O(ranges) for those that are written; with the default limits about 30 ms, so do it in a thread, with copies.

    :param most_ranges: ranges that are written at most
    :param most_batches: batch sets that are written at most
    :param as_words: write words instead of ranges, which Pulsar reads too
    :param limit: bytes that the record may have
    :raises InvalidArgumentError: the limit leaves no room for the properties, or a value cannot be written
    :raises MissingExtraError: protobuf is not installed
    """
    ledger, entry = single.mark_delete
    info = messages().PositionInfo(ledgerId=ledger, entryId=entry)
    add_properties(info, single.properties, SEQUENCE, single.sequence)
    add_strings(info.cursorProperties, single.cursor_properties)
    room = limit - info.ByteSize()
    if room < 0:
        raise InvalidArgumentError("limit", limit, f"at least {info.ByteSize()} bytes, for the properties")
    states = [(ledger, single.states[ledger]) for ledger in sorted(single.states)]
    in_all = sum(state.ranges.range_count for _, state in states)
    if as_words:
        written = _add_words(info, states, most_ranges, limit)
    else:
        written = _add_ranges(info, states, most_ranges, limit)
    batches = _add_batches(info, states, most_batches, limit)
    in_batches = sum(len(state.batches) for _, state in states)
    return Written(bytes(info.SerializeToString()), in_all - written, in_batches - batches)


def decode_single(record: bytes, ledgers: Ledgers | None = None) -> Single:
    """Return what a record of the old form says.

    A range that spans several ledgers is split, if ``ledgers`` knows their lengths, which the record lacks. Otherwise
    only the part in its last ledger counts: the result may have fewer acknowledgements than there were, never more.

    :raises CursorFormatError: it is something else, or contradicts itself
    :raises MissingExtraError: protobuf is not installed
    """
    info, sequence = expect(record, Kind.SINGLE)
    states: dict[int, LedgerAcks] = {}
    most = MOST_ACKED
    for ledger, first, last in _ranges_of(info, ledgers):
        most -= last - first + 1
        if most < 0:
            raise CursorFormatError(_WHAT, f"there are more than {MOST_ACKED} acknowledged entries")
        _state(states, ledger).ranges.add_range(first, last)
    if not info.individualDeletedMessages:  # Pulsar prefers ranges to words as well
        for each in info.individualDeletedMessageRanges:
            add_words(_state(states, each.key).ranges, read_words(each.values), 0)
    for each in info.batchedEntryDeletionIndexInfo:
        _read_batch(states, each)
    position = Position(info.ledgerId, info.entryId)
    states = {ledger: state for ledger, state in states.items() if state}
    return Single(position, states, read_properties(info), read_strings(info.cursorProperties), sequence)


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


def _add_words(info: Any, states: Sequence[tuple[int, LedgerAcks]], most: int, limit: int) -> int:
    """Write ledgers as words, lowest first, of the last one only the lowest ranges; return how many ranges."""
    size, left = info.ByteSize(), most
    for ledger, state in states:
        ranges = state.ranges
        if ranges.range_count > left:
            ranges = EntryRanges.from_ranges(islice(ranges.ranges(), left))
        if not ranges.range_count:
            continue
        last = ranges.last or 0
        if size + last // _WORD > limit:
            break
        written = info.individualDeletedMessageRanges.add(key=ledger)
        written.values.extend(_words(ranges))
        size += 6 + written.ByteSize()
        if size > limit:
            del info.individualDeletedMessageRanges[-1]
            break
        left -= ranges.range_count
    return most - left


def _words(ranges: EntryRanges) -> Sequence[int]:
    bits = 0
    for piece in sections_of(ranges):
        bits |= int.from_bytes(piece.words(), "little") << piece.first
    return BatchSet(0, 0).words if not bits else BatchSet(bits.bit_length(), bits).words


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
    """Yield (ledger, first, last), both in it."""
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
    """Yield the ranges of entries after position ``lower`` in the known ledgers before ``ledger``."""
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
    if found.is_untouched and found.unacked:  # the size is not written, and a set is there because not all is left
        found = BatchSet(found.size + 1, found.unacked)
    state = _state(states, each.position.ledgerId)
    known = state.batches.get(entry)
    state.batches[entry] = found if known is None else known.merge(found)


def _state(states: dict[int, LedgerAcks], ledger: int) -> LedgerAcks:
    if ledger < 0:
        raise CursorFormatError(_WHAT, f"there is no ledger {ledger}")
    return states.setdefault(ledger, LedgerAcks())
