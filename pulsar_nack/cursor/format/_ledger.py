"""The acknowledged part of one ledger: its state in memory, its summary when it is evicted, and its records.

A ledger of 50 000 entries takes about a millisecond to encode at most. One that takes longer, because it has far more
ranges or many batch sets, can be encoded in a thread, from a copy that does not change meanwhile.

Acknowledged entries are written in the smallest of four forms, whose lengths are varints:

*intervals*  the lengths of ranges and of the gaps between them, in turn
*runs*       the lengths of ranges that have one missing entry between them; a wider gap takes ranges of length 0. For
             ledgers of which nearly everything is acknowledged
*gaps*       the lengths of gaps that have one acknowledged entry between them; a longer range takes gaps of length 0.
             For ledgers of which little is acknowledged
*words*      one bit for each entry from the lowest to the highest: for irregular acknowledgements

A single entry needs no form. Shorter forms for repetitions were rejected: a ledger whose every second entry is
acknowledged would be tiny, and grow a thousandfold when its acknowledgements become irregular, so that no limit on the
size could be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate, repeat
from typing import Any, Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...index import EntryRanges, Section, add_entries, add_runs, add_words, sections_of, varint_bytes
from ._batch_set import BatchSet, BatchSets, batches_size, decode_batches, encode_batches
from ._record import LEDGER, RecordKind, empty_record, join_parts, messages, parse, split_body, split_size

MAX_ACKED: Final = 1 << 32
"""Most entries of one ledger that are read: beyond that, the record's length does not bound memory and time."""
MAX_RECORD_BYTES: Final = 5 << 20
"""The largest record that is written: what bookkeepers take by default."""
_POSITION: Final = 13
"""Bytes of "ledger 0, entry -1": a negative number takes ten."""
_MARK: Final = 1 + 1 + (1 + 1 + len(LEDGER)) + 1
"""Bytes of the property that marks a ledger's state, but for the ledger."""
_BATCH_BYTES: Final = 200
_FRAME_BYTES: Final = 260

_ENTRIES: Final = "acknowledged entries"


class LedgersNotLoaded(Exception):  # noqa: N818 - for the caller to load them; it never reaches a user
    """The operation needs ledgers that are evicted; nothing has changed. Load and restore them, then call again."""

    def __init__(self, ledgers: Iterable[int]) -> None:
        self.ledgers = frozenset(ledgers)
        super().__init__(f"not loaded: ledgers {sorted(self.ledgers)}")


class LedgerSummary(NamedTuple):
    """The summary of an evicted ledger, beyond the mark-delete position."""

    acked: int
    """Entries that are acknowledged as a whole."""
    leading: int
    """How many of them are the first of the ledger: the number of the first entry that is not acknowledged."""
    last: int
    """The highest entry that is acknowledged as a whole, -1 for none."""
    batches: int
    """Entries of which only a part is acknowledged."""
    ranges: int
    """How many ranges of acknowledged entries were written."""


class LedgerAcks:
    """The acknowledged part of one ledger beyond the mark-delete position: whole entries, and parts of batches."""

    __slots__ = ("batches", "ranges")

    def __init__(self, ranges: EntryRanges | None = None, batches: Mapping[int, BatchSet] | None = None) -> None:
        self.ranges = EntryRanges() if ranges is None else ranges
        self.batches = batches if isinstance(batches, BatchSets) else BatchSets(batches)

    def __bool__(self) -> bool:
        return bool(self.ranges.range_count or self.batches)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerAcks):
            return NotImplemented
        return self.ranges == other.ranges and self.batches == other.batches

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<LedgerAcks: {self.ranges!r}, {len(self.batches)} batches>"

    @property
    def memory_bytes(self) -> int:
        """Return about how many bytes it takes in memory; O(1)."""
        return _FRAME_BYTES + self.ranges.memory_bytes + _BATCH_BYTES * len(self.batches)

    @property
    def summary(self) -> LedgerSummary:
        """Return the summary that stays in memory while the ledger is evicted; see also :meth:`trim`."""
        ranges, last = self.ranges, self.ranges.last
        return LedgerSummary(
            acked=len(ranges),
            leading=ranges.next_absent(0),
            last=-1 if last is None else last,
            batches=len(self.batches),
            ranges=ranges.range_count,
        )

    def trim(self, entry: int) -> None:
        """Drop everything up to this entry, that of the mark-delete position. O(batches)."""
        self.ranges.discard_below(entry + 1)
        for passed in [passed for passed in self.batches if passed <= entry]:
            del self.batches[passed]

    def cut(self, end: int) -> int:
        """Drop the acknowledgements of entries from ``end`` on, and return how many entries they are. O(batches)."""
        last = self.ranges.last
        dropped = 0 if last is None or last < end else self.ranges.discard_range(end, last)
        for beyond in [beyond for beyond in self.batches if beyond >= end]:
            del self.batches[beyond]
            dropped += 1
        return dropped

    def normalise(self) -> None:
        """Remove batch sets in which nothing, or everything, is acknowledged: others may write them."""
        for entry, batch in list(self.batches.items()):
            if batch.is_all_acked:
                self.ranges.add(entry)
            if entry in self.ranges or batch.is_untouched:
                del self.batches[entry]

    def copy(self) -> LedgerAcks:
        """Return an independent copy."""
        return LedgerAcks(self.ranges.copy(), self.batches.copy())


def encode_ledger(ledger: int, state: LedgerAcks, *, limit: int = MAX_RECORD_BYTES) -> list[bytes]:
    """Return the records of a ledger's state: one, or several where one would be longer than the limit.

    :raises InvalidArgumentError: no ledger id, a limit that is too low, or more entries than can be read
    :raises MissingExtraError: protobuf is not installed
    """
    if not 0 <= ledger <= INT64_MAX:
        raise InvalidArgumentError("ledger", ledger, "a ledger, 0 to 2**63 - 1")
    if len(state.ranges) > MAX_ACKED:
        raise InvalidArgumentError("state", state, f"at most {MAX_ACKED} acknowledged entries")

    def envelope() -> Any:
        info = empty_record()
        info.properties.add(name=LEDGER, value=ledger)
        return info

    return split_body(b"".join(encode_body(state)), limit, last=envelope, others=envelope)


def encode_body(state: LedgerAcks) -> Iterator[bytes]:
    """Yield the parts of a ledger's LedgerBody; each takes some milliseconds at most."""
    yield from encode_entries(state.ranges)
    yield from encode_batches(state.batches)


def decode_ledger(records: Sequence[bytes]) -> tuple[int, LedgerAcks]:
    """Return the ledger and its state that some records are, all of them, in order.

    Time and memory are bounded by the records' length, and by some MB.

    :raises CursorFormatError: they are something else, are not complete, or contradict themselves
    :raises MissingExtraError: protobuf is not installed
    """
    joined, _, ledger = join_parts(records, RecordKind.LEDGER, RecordKind.LEDGER)
    body = parse(messages().LedgerBody(), joined, RecordKind.LEDGER.value)
    return ledger, LedgerAcks(decode_entries(body), decode_batches(body))


def decode_state(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Return the state of a ledger.

    :raises CursorFormatError: the records cannot be read, or are another ledger's
    """
    found, acks = decode_ledger(records)
    if found != ledger:
        raise CursorFormatError("a ledger's state", f"it is that of ledger {found}, not of {ledger}")
    return acks


def ledger_size(state: LedgerAcks, ledger: int, *, limit: int = MAX_RECORD_BYTES) -> int:
    """Return how many bytes the records of a ledger's state would take; exact but for some bytes in 1 024 batch sets.

    It is found from the bitmap, without encoding, whenever the ledger has changed. O(bytes of the bitmaps): some
    microseconds for a ledger of 50 000 entries.
    """
    body = entries_size(state.ranges) + batches_size(state.batches)
    return split_size(body, _POSITION + _MARK + varint_bytes(ledger), limit)


# --- acknowledged entries ---------------------------------------------------------------------------------------------


class Form(Enum):
    """How entries are written; the value is the name of the field."""

    ALONE = "first"
    INTERVALS = "intervals"
    RUNS = "runs"
    GAPS = "gaps"
    WORDS = "words"


def smallest_form(piece: Section) -> tuple[int, Form]:
    """Return how many bytes the smallest form of a piece takes, and the form. O(bytes of its bitmap): microseconds."""
    count, ranges, span = piece.count, piece.range_count, piece.span
    if count == 1:
        return 0, Form.ALONE
    words = (span + 7) // 8
    missing = span - count - (ranges - 1)
    """Entries that are missing beyond one for each gap."""
    if words <= min(2 * ranges - 1, ranges + missing, count - 1):
        return words, Form.WORDS
    runs, gaps = piece.run_bytes, piece.gap_bytes
    choices = [
        (runs + gaps, Form.INTERVALS),
        (runs + missing, Form.RUNS),
        (gaps + count - ranges, Form.GAPS),
        (words, Form.WORDS),
    ]
    return min(choices, key=lambda each: each[0])


def encode_entries(ranges: EntryRanges) -> Iterator[bytes]:
    """Yield acknowledged entries as pieces of a LedgerBody; each takes some milliseconds at most."""
    acked = len(ranges)
    for piece in sections_of(ranges):
        yield _encode(piece, smallest_form(piece)[1])
    if acked:
        yield bytes(messages().LedgerBody(acked=acked).SerializeToString())


def entries_size(ranges: EntryRanges) -> int:
    """Return how many bytes :func:`encode_entries` yields."""
    if not ranges.range_count:
        return 0
    total = 1 + varint_bytes(len(ranges))
    for piece in sections_of(ranges):
        size = 1 + varint_bytes(piece.first)
        inner, form = smallest_form(piece)
        if form is not Form.ALONE:
            size += 1 + varint_bytes(inner) + inner
        total += 1 + varint_bytes(size) + size
    return total


def decode_entries(body: Any) -> EntryRanges:
    """Return the acknowledged entries of a LedgerBody.

    :raises CursorFormatError: they do not ascend, are out of range, or are not as many as the body says
    """
    ranges = EntryRanges()
    end = acked = 0
    for each in body.entries:
        if each.first < end:
            raise CursorFormatError(_ENTRIES, f"{each.first} follows on {end - 1}")
        end, count = _decode(each, ranges, MAX_ACKED - acked)
        acked += count
    if len(ranges) != acked or acked != body.acked:
        raise CursorFormatError(_ENTRIES, f"there are {len(ranges)}, and not {body.acked}")
    return ranges


def _encode(piece: Section, form: Form) -> bytes:
    body = messages().LedgerBody()
    entries = body.entries.add(first=piece.first)
    if form is Form.WORDS:
        entries.words = piece.words()
    elif form is Form.INTERVALS:
        entries.intervals.extend(piece.lengths())
    elif form is Form.RUNS:
        entries.runs.extend(_between(piece.lengths(), 0))
    elif form is Form.GAPS:
        entries.gaps.extend(_between([0, *piece.lengths(), 0], 0)[1:-1])
    return bytes(body.SerializeToString())


def _between(lengths: Sequence[int], zero: int) -> list[int]:
    """Return every second length; of the others, a length n becomes n - 1 zeros before the next one."""
    if max(lengths[1::2], default=1) == 1:
        return list(lengths[::2])
    found = list(lengths[:1])
    for between, length in zip(lengths[1::2], lengths[2::2], strict=True):
        found += [*repeat(zero, between - 1), length]
    return found


def _decode(each: Any, ranges: EntryRanges, most: int) -> tuple[int, int]:
    """Add entries in one form; return the entry after the last one, and how many they are."""
    forms = [form for form in Form if form is not Form.ALONE and len(getattr(each, form.value))]
    if len(forms) > 1:
        raise CursorFormatError(_ENTRIES, "they are written in two forms at once")
    form = forms[0] if forms else Form.ALONE
    if form is Form.WORDS:
        return _decode_words(each, ranges)
    if form is Form.GAPS:
        return _add_after_gaps(ranges, each.first, each.gaps)
    if form is Form.INTERVALS:
        return _add_intervals(ranges, each.first, each.intervals, most)
    if form is Form.RUNS:
        return _add_runs(ranges, each.first, each.runs, most)
    return _add_after_gaps(ranges, each.first, ())


def _decode_words(each: Any, ranges: EntryRanges) -> tuple[int, int]:
    data = each.words
    if not data[0] & 1 or not data[-1]:
        raise CursorFormatError(_ENTRIES, "bits that do not begin and end with an entry")
    if each.first + 8 * len(data) > INT64_MAX:
        raise CursorFormatError(_ENTRIES, f"there is no entry {each.first + 8 * len(data)}")
    return add_words(ranges, data, each.first)


def _add_after_gaps(ranges: EntryRanges, first: int, gaps: Sequence[int]) -> tuple[int, int]:
    last = first + sum(gaps) + len(gaps)
    _check_end(last + 1, 0, 0)
    _, count = add_entries(ranges, accumulate(gaps, lambda entry, gap: entry + gap + 1, initial=first))
    return last + 1, count


def _add_intervals(ranges: EntryRanges, first: int, lengths: Sequence[int], most: int) -> tuple[int, int]:
    if len(lengths) % 2 == 0 or not all(lengths):
        raise CursorFormatError(_ENTRIES, "an interval has no end, or nothing in it")
    end, acked = first + sum(lengths), sum(lengths[::2])
    _check_end(end, acked, most)
    edges = accumulate(lengths, initial=first)
    add_runs(ranges, zip(edges, edges, strict=True))
    return end, acked


def _add_runs(ranges: EntryRanges, first: int, runs: Sequence[int], most: int) -> tuple[int, int]:
    if not runs[0] or not runs[-1]:
        raise CursorFormatError(_ENTRIES, "runs that do not begin and end with an entry")
    acked = sum(runs)
    end = first + acked + len(runs) - 1
    _check_end(end, acked, most)
    starts = accumulate(runs, lambda start, length: start + length + 1, initial=first)
    add_runs(ranges, ((start, start + length) for start, length in zip(starts, runs, strict=False) if length))
    return end, acked


def _check_end(end: int, acked: int, most: int) -> None:
    if end - 1 > INT64_MAX:
        raise CursorFormatError(_ENTRIES, f"there is no entry {end - 1}")
    if acked > most:
        raise CursorFormatError(_ENTRIES, f"there are more than {MAX_ACKED} in one ledger")
