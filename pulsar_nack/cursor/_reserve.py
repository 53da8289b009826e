"""The bytes that acknowledgements of messages in flight could add to the stored state, at worst.

A ledger's entries are stored in the smallest of several forms. One more acknowledged entry makes most forms longer by a
number or two, :data:`RANGE_BYTES` at most. A dense state, however, is smallest as bits; then an entry far beyond the
acknowledged ones adds a bit for each entry in between, or makes numbers the smaller form again. For that a ledger has a
*stretch*: a bit for each entry by which the entries in flight reach beyond the acknowledged ones, but not more than
numbers would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..ids import Position
from ..index import EntryRanges

RANGE_BYTES: Final = 32
"""Most bytes of one more acknowledged range: the figure of PIP-299."""
LEDGER_BYTES: Final = 64
"""Most bytes of the first acknowledgement in a ledger beside its range: a record's head and its reference."""
_WORD_BITS: Final = 64
_WORD_BYTES: Final = 11
_DENSE_RANGE_BYTES: Final = 4

Acked = Callable[[int], EntryRanges | None]


def worst_growth(batch_size: int = 0) -> int:
    """Return how many bytes the acknowledgements of one entry add at most, except for those of its ledger.

    An entry adds a range or a batch set, never both.

    :param batch_size: messages in the entry; 0 or 1: it is no batch
    """
    if batch_size <= 1:
        return RANGE_BYTES
    return RANGE_BYTES + _WORD_BYTES * -(-batch_size // _WORD_BITS)


@dataclass(slots=True)
class _LedgerInFlight:
    """The entries of a ledger that are in flight: how many, the lowest and highest since the first, and the stretch."""

    count: int
    first: int
    last: int
    stretch: int = 0

    def measure(self, acked: EntryRanges | None) -> None:
        """Set the stretch in bytes, given the acknowledged entries. O(1)."""
        if acked is None or acked.first is None or acked.last is None:
            self.stretch = 0
            return
        beyond = max(acked.first - self.first, 0) + max(self.last - acked.last, 0)
        self.stretch = min(beyond // 8, _DENSE_RANGE_BYTES * acked.range_count)


class Reserve:
    """The entries in flight, and the bytes that they could add. O(1) for each call.

    Add what is dispatched; discard what was acknowledged, came back, or will not be acknowledged any more.

    :param acked: returns the entries of a ledger that are acknowledged beyond the mark-delete position, None if there
        are none or they are not in memory. Without it, entries are assumed to be dispatched in order without gaps
    """

    def __init__(self, acked: Acked | None = None) -> None:
        self._acked = acked
        self._entries: dict[Position, int] = {}
        self._ledgers: dict[int, _LedgerInFlight] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, position: object) -> bool:
        return position in self._entries

    def __iter__(self) -> Iterator[Position]:
        return iter(self._entries)

    @property
    def bytes(self) -> int:
        """Return how many bytes the entries add at most."""
        return self._bytes

    def add(self, position: Position, batch_size: int = 0) -> None:
        """Add an entry; adding it again counts once."""
        growth = worst_growth(batch_size)
        before = self._entries.get(position)
        self._entries[position] = growth
        self._bytes += growth - (before or 0)
        if before is None:
            self._add_to_ledger(*position)

    def discard(self, position: Position) -> bool:
        """Remove an entry; return whether it was there."""
        growth = self._entries.pop(position, None)
        if growth is None:
            return False
        self._bytes -= growth
        ledger = self._ledgers[position[0]]
        ledger.count -= 1
        if not ledger.count:
            del self._ledgers[position[0]]
            self._bytes -= LEDGER_BYTES + ledger.stretch
        return True

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._ledgers.clear()
        self._bytes = 0

    def _add_to_ledger(self, number: int, entry: int) -> None:
        ledger = self._ledgers.get(number)
        if ledger is None:
            ledger = self._ledgers[number] = _LedgerInFlight(0, entry, entry)
            self._bytes += LEDGER_BYTES
        ledger.count += 1
        ledger.first, ledger.last = min(ledger.first, entry), max(ledger.last, entry)
        if self._acked is not None:
            before = ledger.stretch
            ledger.measure(self._acked(number))
            self._bytes += ledger.stretch - before
