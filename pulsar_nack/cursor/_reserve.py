"""What the acknowledgements of messages in flight could add to the stored state, at worst."""

from __future__ import annotations

from typing import Final

from ..ids import Position

RANGE_BYTES: Final = 32
"""At most what one more acknowledged range takes: the proposal's figure."""
LEDGER_BYTES: Final = 64
"""At most what the first acknowledgement in a ledger takes beside its range: an entry's head and its reference."""
_WORD_BITS: Final = 64
_WORD_BYTES: Final = 11


def worst_growth(batch_size: int = 0) -> int:
    """Return how many bytes the acknowledgements of one entry add at most, but for its ledger's own.

    An entry adds a range, or the set of its unacknowledged messages, never both.

    :param batch_size: messages in the entry; 0 or 1: it is no batch
    """
    if batch_size <= 1:
        return RANGE_BYTES
    return RANGE_BYTES + _WORD_BYTES * -(-batch_size // _WORD_BITS)


class Reserve:
    """The entries in flight, and what they could add. O(1) for each call.

    Put in what is dispatched; take out what was acknowledged, came back or will not be acknowledged any more.
    """

    def __init__(self) -> None:
        self._entries: dict[Position, int] = {}
        self._ledgers: dict[int, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, position: object) -> bool:
        return position in self._entries

    @property
    def bytes(self) -> int:
        """Return what they add at most, in bytes."""
        return self._bytes + LEDGER_BYTES * len(self._ledgers)

    def add(self, position: Position, batch_size: int = 0) -> None:
        """Put an entry in; one that is there already counts once."""
        growth = worst_growth(batch_size)
        before = self._entries.get(position)
        if before is None:
            self._ledgers[position[0]] = self._ledgers.get(position[0], 0) + 1
        self._entries[position] = growth
        self._bytes += growth - (before or 0)

    def discard(self, position: Position) -> bool:
        """Take an entry out; return whether it was there."""
        growth = self._entries.pop(position, None)
        if growth is None:
            return False
        self._bytes -= growth
        ledger = position[0]
        if self._ledgers[ledger] == 1:
            del self._ledgers[ledger]
        else:
            self._ledgers[ledger] -= 1
        return True

    def clear(self) -> None:
        """Take everything out."""
        self._entries.clear()
        self._ledgers.clear()
        self._bytes = 0
