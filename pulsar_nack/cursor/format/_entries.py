"""Acknowledged entries in the smallest of four forms, and back.

All lengths are varints:

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

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate, repeat
from typing import Any, Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import CursorFormatError
from ...index import EntryRanges, Section, add_entries, add_runs, add_words, sections_of, varint_bytes
from ._record import messages

MAX_ACKED: Final = 1 << 32
"""Most entries of one ledger that are read: beyond that, the record's length does not bound memory and time."""
_WHAT: Final = "acknowledged entries"


class Form(Enum):
    """How entries are written; the value is the name of the field."""

    ALONE = "first"
    INTERVALS = "intervals"
    RUNS = "runs"
    GAPS = "gaps"
    WORDS = "words"


class Choice(NamedTuple):
    """The smallest form of a piece, and how many bytes it takes."""

    size: int
    form: Form


def smallest_form(piece: Section) -> Choice:
    """Choose the form of a piece. O(bytes of its bitmap), in microseconds."""
    count, ranges, span = piece.count, piece.range_count, piece.span
    if count == 1:
        return Choice(0, Form.ALONE)
    words = (span + 7) // 8
    missing = span - count - (ranges - 1)
    """Entries that are missing beyond one for each gap."""
    if words <= min(2 * ranges - 1, ranges + missing, count - 1):
        return Choice(words, Form.WORDS)
    runs, gaps = piece.run_bytes, piece.gap_bytes
    choices = [
        (runs + gaps, Form.INTERVALS),
        (runs + missing, Form.RUNS),
        (gaps + count - ranges, Form.GAPS),
        (words, Form.WORDS),
    ]
    return Choice(*min(choices, key=lambda each: each[0]))


def encode_entries(ranges: EntryRanges) -> Iterator[bytes]:
    """Yield acknowledged entries as pieces of a LedgerBody; each takes some milliseconds at most."""
    acked = len(ranges)
    for piece in sections_of(ranges):
        yield _encode(piece, smallest_form(piece).form)
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
            raise CursorFormatError(_WHAT, f"{each.first} follows on {end - 1}")
        end, count = _decode(each, ranges, MAX_ACKED - acked)
        acked += count
    if len(ranges) != acked or acked != body.acked:
        raise CursorFormatError(_WHAT, f"there are {len(ranges)}, and not {body.acked}")
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
        raise CursorFormatError(_WHAT, "they are written in two forms at once")
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
        raise CursorFormatError(_WHAT, "bits that do not begin and end with an entry")
    if each.first + 8 * len(data) > INT64_MAX:
        raise CursorFormatError(_WHAT, f"there is no entry {each.first + 8 * len(data)}")
    return add_words(ranges, data, each.first)


def _add_after_gaps(ranges: EntryRanges, first: int, gaps: Sequence[int]) -> tuple[int, int]:
    last = first + sum(gaps) + len(gaps)
    _check(last + 1, 0, 0)
    _, count = add_entries(ranges, accumulate(gaps, lambda entry, gap: entry + gap + 1, initial=first))
    return last + 1, count


def _add_intervals(ranges: EntryRanges, first: int, lengths: Sequence[int], most: int) -> tuple[int, int]:
    if len(lengths) % 2 == 0 or not all(lengths):
        raise CursorFormatError(_WHAT, "an interval has no end, or nothing in it")
    end, acked = first + sum(lengths), sum(lengths[::2])
    _check(end, acked, most)
    edges = accumulate(lengths, initial=first)
    add_runs(ranges, zip(edges, edges, strict=True))
    return end, acked


def _add_runs(ranges: EntryRanges, first: int, runs: Sequence[int], most: int) -> tuple[int, int]:
    if not runs[0] or not runs[-1]:
        raise CursorFormatError(_WHAT, "runs that do not begin and end with an entry")
    acked = sum(runs)
    end = first + acked + len(runs) - 1
    _check(end, acked, most)
    starts = accumulate(runs, lambda start, length: start + length + 1, initial=first)
    add_runs(ranges, ((start, start + length) for start, length in zip(starts, runs, strict=False) if length))
    return end, acked


def _check(end: int, acked: int, most: int) -> None:
    if end - 1 > INT64_MAX:
        raise CursorFormatError(_WHAT, f"there is no entry {end - 1}")
    if acked > most:
        raise CursorFormatError(_WHAT, f"there are more than {MAX_ACKED} in one ledger")
