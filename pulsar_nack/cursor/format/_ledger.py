"""The acknowledged part of one ledger: its state in memory, its summary when it is evicted, and its records.

A ledger of 50 000 entries takes about a millisecond to encode at most. One that takes longer, because it has far more
ranges or many batch sets, can be encoded in a thread, from a copy that does not change meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...index import EntryRanges, varint_bytes
from ._batch_set import BatchSet, BatchSets, batches_size, decode_batches, encode_batches
from ._entries import MAX_ACKED, decode_entries, encode_entries, entries_size
from ._record import LEDGER, RecordKind, empty_record, join_parts, messages, parse, split_body, split_size

MAX_RECORD_BYTES: Final = 5 << 20
"""The largest record that is written: what bookkeepers take by default."""
_POSITION: Final = 13
"""Bytes of "ledger 0, entry -1": a negative number takes ten."""
_MARK: Final = 1 + 1 + (1 + 1 + len(LEDGER)) + 1
"""Bytes of the property that marks a ledger's state, but for the ledger."""
_BATCH_BYTES: Final = 200
_FRAME_BYTES: Final = 260


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
