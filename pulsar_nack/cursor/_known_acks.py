"""What a subscription has acknowledged, to be asked about; what changes it is in ``_acks.py``, with the theory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..ids import Position
from ._batch import BatchSet
from ._figures import Figures
from ._ledger_acks import LedgerAcks, LedgersNotLoaded, LedgerSummary
from ._ledgers import Ledgers, UnknownLedgers, as_ledgers, entries_after, ledger_after
from ._requests import checked


class KnownAcks:
    """The tables of the acknowledgement state, and every question about them; for the parameters see ``AckState``."""

    def __init__(
        self,
        ledgers: Mapping[int, int] | Ledgers | None,
        mark_delete_position: tuple[int, int],
        *,
        ledger_size: Callable[[LedgerAcks], int] | None = None,
    ) -> None:
        self.ledger_states: dict[int, LedgerAcks] = {}
        """What is in memory, of ledgers that have any. Read only; change it by the methods."""
        self.dirty: set[int] = set()
        """Ledgers that differ from what was written; those that are in no other table any more have become empty."""
        self.mark_delete_is_dirty = False
        self.cut_entries = 0
        """Acknowledged entries that were dropped because their ledger has lost them."""
        self.unsettled: int | None = None
        """The evicted ledger without a summary at which the mark-delete position waits, if any."""
        self._is_remote = ledgers is None
        self._ledgers = UnknownLedgers() if ledgers is None else as_ledgers(ledgers)
        self._entries_of = self._ledgers.entries
        self._md_ledger, self._md_entry = checked(mark_delete_position, lowest=-1)
        self._top = self._md_ledger  # the highest ledger in which a whole entry was acknowledged
        self._cumulative: tuple[int, int] | None = None
        self._evicted: dict[int, LedgerSummary | None] = {}
        self._figures = Figures(self.ledger_states, ledger_size)
        self._changed = self._figures.changed

    @property
    def mark_delete_position(self) -> Position:
        """Return the last position such that it and everything before it is acknowledged."""
        return Position(self._md_ledger, self._md_entry)

    @property
    def highest_acked(self) -> Position:
        """Return the highest position that is acknowledged as a whole; O(1)."""
        acks = self.ledger_states.get(self._top)
        if acks is not None:
            last = acks.ranges.last
        else:
            summary = self._evicted.get(self._top)
            last = None if summary is None else summary.last
        return max(self.mark_delete_position, Position(self._top, -1 if last is None else last))

    @property
    def next_position(self) -> Position | None:
        """Return the lowest entry that is not acknowledged as a whole, None when there is none by now."""
        if self._md_entry + 1 < (self._entries_of(self._md_ledger) or 0):
            return Position(self._md_ledger, self._md_entry + 1)
        following = ledger_after(self._ledgers, self._md_ledger)
        return None if following is None else Position(following, 0)

    @property
    def backlog(self) -> int | None:
        """Return how many entries are not acknowledged as a whole; None for a remote topic. O(ledgers)."""
        if self._is_remote:
            return None
        exists = self._entries_of
        acked = sum(len(acks.ranges) for ledger, acks in self.ledger_states.items() if exists(ledger))
        acked += sum(known.acked for ledger, known in self._evicted.items() if known is not None and exists(ledger))
        return max(0, entries_after(self._ledgers, self._md_ledger, self._md_entry) - acked)

    @property
    def evicted(self) -> Mapping[int, LedgerSummary | None]:
        """Return the ledgers that are on storage only, with what is known of them. Read only."""
        return self._evicted

    @property
    def size_bytes(self) -> int:
        """Return what all ledgers take when written, evicted ones included; O(ledgers changed since the last call)."""
        return self._figures.size

    @property
    def memory_bytes(self) -> int:
        """Return about what the ledgers in memory take; O(ledgers changed since the last call)."""
        return self._figures.memory

    @property
    def range_count(self) -> int:
        """Return how many ranges there are, those of evicted ledgers included, as far as they are known."""
        return self._figures.ranges

    def is_acked(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """Return whether an entry is acknowledged as a whole, or at least this index of its batch.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        ledger, entry = position
        if (ledger, entry) <= (self._md_ledger, self._md_entry):
            return True
        acks = self._loaded(ledger)
        if acks is None:
            return False
        if entry in acks.ranges:
            return True
        batch = acks.batches.get(entry)
        return batch is not None and batch_index is not None and batch.is_acked(batch_index)

    def batch_set(self, position: tuple[int, int]) -> BatchSet | None:
        """Return what is left of a batch of which some messages are acknowledged, else None.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        acks = self._loaded(position[0])
        return None if acks is None else acks.batches.get(position[1])

    def adds_range(self, position: tuple[int, int]) -> bool:
        """Return whether acknowledging this entry as a whole would make one range more.

        Not so for the lowest one that is not acknowledged, nor beside one that is. Never loads: in an evicted ledger it
        is taken to be so.
        """
        ledger, entry = position
        if (ledger, entry) <= (self._md_ledger, self._md_entry) or self.next_position == (ledger, entry):
            return False
        acks = self.ledger_states.get(ledger)
        return acks is None or not (entry in acks.ranges or entry - 1 in acks.ranges or entry + 1 in acks.ranges)

    def unacked(self, ledger: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Go through the ranges of entries of a ledger, between these two, that are not acknowledged as a whole.

        They are looked for as they are asked for: acknowledging meanwhile is allowed. Whether they exist is not asked.

        :raises LedgersNotLoaded: the ledger is evicted
        """
        self._loaded(ledger)
        if ledger < self._md_ledger:
            return
        entry = max(first, self._md_entry + 1) if ledger == self._md_ledger else first
        while entry <= last:
            acks = self._loaded(ledger)
            if acks is None:
                yield entry, last
                return
            begin = acks.ranges.next_absent(entry)
            if begin > last:
                return
            present = acks.ranges.next_present(begin)
            end = last if present is None else min(last, present - 1)
            yield begin, end
            entry = end + 1

    def individually_deleted(self) -> list[tuple[Position, Position]]:
        """Return the ranges beyond the mark-delete position, in order; each is open below and closed above.

        :raises LedgersNotLoaded: ledgers are evicted
        """
        if self._evicted:
            raise LedgersNotLoaded(self._evicted)
        return [
            (Position(ledger, first - 1), Position(ledger, last))
            for ledger in sorted(self.ledger_states)
            for first, last in self.ledger_states[ledger].ranges.ranges()
        ]

    def _loaded(self, ledger: int) -> LedgerAcks | None:
        """Return what is known of a ledger, None for nothing; it must not be evicted."""
        acks = self.ledger_states.get(ledger)
        if acks is None and ledger in self._evicted:
            raise LedgersNotLoaded([ledger])
        return acks

    def _need(self, ledgers: Iterable[int]) -> None:
        if self._evicted and (missing := self._evicted.keys() & set(ledgers)):
            raise LedgersNotLoaded(missing)
