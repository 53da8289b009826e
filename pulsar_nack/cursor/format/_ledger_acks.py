"""The acknowledged part of one ledger, and the summary of it that stays in memory when it is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ...index import EntryRanges
from ._batch_set import BatchSet, BatchSets

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
        last = self.ranges.last
        leading = self.ranges.next_absent(0)
        return LedgerSummary(len(self.ranges), leading, -1 if last is None else last, len(self.batches))

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
