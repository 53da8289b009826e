"""What the acknowledgements of messages in flight could add to the stored state, at worst.

A ledger's entries are stored in the smallest of some forms. One more acknowledged entry makes most of them longer by a
number or two, :data:`RANGE_BYTES` at most. As bits, however, a dense state takes less, and then an entry far outside
of what was acknowledged makes it longer by a bit for each entry in between, or has it written as numbers again. For
that a ledger has its *stretch*: a bit for each entry by which those in flight reach beyond what is acknowledged, and
not more than writing it as numbers would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..ids import Position
from ..index import EntryRanges

RANGE_BYTES: Final = 32
"""At most what one more acknowledged range takes: the proposal's figure."""
LEDGER_BYTES: Final = 64
"""At most what the first acknowledgement in a ledger takes beside its range: an entry's head and its reference."""
_WORD_BITS: Final = 64
_WORD_BYTES: Final = 11
_DENSE_RANGE_BYTES: Final = 4

Acked = Callable[[int], EntryRanges | None]


def worst_growth(batch_size: int = 0) -> int:
    """Return how many bytes the acknowledgements of one entry add at most, but for its ledger's own.

    An entry adds a range, or the set of its unacknowledged messages, never both.

    :param batch_size: messages in the entry; 0 or 1: it is no batch
    """
    if batch_size <= 1:
        return RANGE_BYTES
    return RANGE_BYTES + _WORD_BYTES * -(-batch_size // _WORD_BITS)


@dataclass(slots=True)
class _Ledger:
    """What of a ledger is in flight: how many entries, from where to where there were any, and its stretch."""

    count: int
    first: int
    last: int
    stretch: int = 0

    def measure(self, acked: EntryRanges | None) -> None:
        """Note by how much the entries in flight reach beyond what is acknowledged, in bytes. O(1)."""
        if acked is None or acked.first is None or acked.last is None:
            self.stretch = 0
            return
        beyond = max(acked.first - self.first, 0) + max(self.last - acked.last, 0)
        self.stretch = min(beyond // 8, _DENSE_RANGE_BYTES * acked.range_count)


class Reserve:
    """The entries in flight, and what they could add. O(1) for each call.

    Put in what is dispatched; take out what was acknowledged, came back or will not be acknowledged any more.

    :param acked: returns what is acknowledged in a ledger beyond the mark-delete position, None: nothing, or it is not
        in memory. Without it entries are taken to be dispatched in order, with none left out
    """

    def __init__(self, acked: Acked | None = None) -> None:
        self._acked = acked
        self._entries: dict[Position, int] = {}
        self._ledgers: dict[int, _Ledger] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, position: object) -> bool:
        return position in self._entries

    def __iter__(self) -> Iterator[Position]:
        return iter(self._entries)

    @property
    def bytes(self) -> int:
        """Return what they add at most, in bytes."""
        return self._bytes

    def add(self, position: Position, batch_size: int = 0) -> None:
        """Put an entry in; one that is there already counts once."""
        growth = worst_growth(batch_size)
        before = self._entries.get(position)
        self._entries[position] = growth
        self._bytes += growth - (before or 0)
        if before is None:
            self._add_to_ledger(*position)

    def discard(self, position: Position) -> bool:
        """Take an entry out; return whether it was there."""
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
        """Take everything out."""
        self._entries.clear()
        self._ledgers.clear()
        self._bytes = 0

    def _add_to_ledger(self, number: int, entry: int) -> None:
        ledger = self._ledgers.get(number)
        if ledger is None:
            ledger = self._ledgers[number] = _Ledger(0, entry, entry)
            self._bytes += LEDGER_BYTES
        ledger.count += 1
        ledger.first, ledger.last = min(ledger.first, entry), max(ledger.last, entry)
        if self._acked is not None:
            before = ledger.stretch
            ledger.measure(self._acked(number))
            self._bytes += ledger.stretch - before
