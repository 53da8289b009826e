"""The acknowledgement state of a subscription: the pure core of a cursor.

State
    The *mark-delete position*: everything up to it is acknowledged. It is an entry that exists, or existed, or
    (ledger, -1) for "before the first entry". Above it, a :class:`LedgerTable` holds what is acknowledged of each
    ledger: whole entries as ranges, and of entries acknowledged in part the set of what is left of their batch.

Invariants
    - The entry after the mark-delete position is not acknowledged as a whole. "After" skips the ends of ledgers, empty
      ledgers and deleted ones. The position itself stays on the last entry that it passed; it does not run ahead to the
      beginning of a ledger of which nothing is acknowledged.
    - No ranges and no batch sets at or before the mark-delete position; no batch set of an entry that is in a range,
      and none in which nothing, or everything, is acknowledged. A ledger without any is not in the table.
    - Every call is checked completely before it changes anything.

Only the last ledger may grow after its end was reached; so skipping the end of another one is final.

Evicted ledgers
    An *evicted* ledger has its state on storage only; a :class:`LedgerSummary` of it stays in memory. Acknowledging in
    it raises :class:`LedgersNotLoaded` before anything changed; the shell loads, calls :meth:`AckState.restore` and
    tries again. The mark-delete position moves *into* an evicted ledger without loading it, because the summary says
    how many entries at its beginning are acknowledged, and because nothing can change while it is evicted. What is on
    storage then also holds entries at or before the mark-delete position; ``restore`` drops them. For the same reason a
    ledger that the mark-delete position has passed only in part is not dirty: what is on storage is right together with
    the mark-delete position written beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import as_entries
from ._ledger_table import LedgerTable
from ._ledgers import Ledgers, UnknownLedgers, as_ledgers, entries_after
from ._mark_delete import MarkDeletePosition
from ._requests import BatchSets, check_batch_set, check_exists, check_position, read_request
from .format import BatchSet, LedgerAcks, LedgersNotLoaded, LedgerSummary


class AckState:
    """The acknowledgement state of one subscription, without storage.

    A position is a (ledger, entry) pair. A batch set is what is *not* acknowledged of an entry's batch.

    :param ledgers: a {ledger: entries} mapping or a :class:`Ledgers`; both may grow and lose ledgers while in use.
        None for a remote topic: no position is beyond the end, the mark-delete position does not move from ledger to
        ledger, and there is no backlog
    :param mark_delete_position: where it begins, (ledger, -1) for before the first entry
    :param ledger_size: bytes that one ledger's state takes when written, for the table's ``size_bytes``
    :raises InvalidArgumentError: no ledgers, or no position
    """

    def __init__(
        self,
        ledgers: Mapping[int, int] | Ledgers | None,
        mark_delete_position: tuple[int, int],
        *,
        ledger_size: Callable[[LedgerAcks], int] | None = None,
    ) -> None:
        self.table = LedgerTable(ledger_size)
        """The ledgers at and above the mark-delete position. Read only, except for evicting."""
        self.cut_entries = 0
        """Acknowledged entries that were dropped because their ledger has lost them."""
        self._is_remote = ledgers is None
        self._ledgers = UnknownLedgers() if ledgers is None else as_ledgers(ledgers)
        self._entries_of = self._ledgers.entries
        self.mark_delete = MarkDeletePosition(
            self.table, self._ledgers, mark_delete_position, is_remote=self._is_remote
        )
        self._highest_ledger = self.mark_delete.ledger  # in which a whole entry was acknowledged
        self._cumulative: tuple[int, int] | None = None
        self._states, self._evicted = self.table.states, self.table.evicted
        self._dirty, self._changed = self.table.dirty, self.table.changed

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Return the mark-delete position: everything up to it is acknowledged."""
        return self.mark_delete.position

    @property
    def highest_acked(self) -> Position:
        """Return the highest position that is acknowledged as a whole; O(1)."""
        highest = Position(self._highest_ledger, self.table.last_acked(self._highest_ledger))
        return max(self.mark_delete_position, highest)

    @property
    def next_position(self) -> Position | None:
        """Return the lowest entry that is not acknowledged as a whole, None if there is no such entry yet."""
        return self.mark_delete.next_position

    @property
    def backlog(self) -> int | None:
        """Return how many entries are not acknowledged as a whole; None for a remote topic. O(ledgers)."""
        if self._is_remote:
            return None
        acked = self.table.acked_entries(self._entries_of)
        return max(0, entries_after(self._ledgers, *self.mark_delete.position) - acked)

    def is_acked(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """Return whether an entry is acknowledged as a whole, or at least this index of its batch.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        ledger, entry = position
        mark_delete = self.mark_delete
        if (ledger, entry) <= (mark_delete.ledger, mark_delete.entry):
            return True
        acks = self.table.loaded(ledger)
        if acks is None:
            return False
        if entry in acks.ranges:
            return True
        batch = acks.batches.get(entry)
        return batch is not None and batch_index is not None and batch.is_acked(batch_index)

    def batch_set(self, position: tuple[int, int]) -> BatchSet | None:
        """Return what is left of a batch that is acknowledged in part, else None.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        acks = self.table.loaded(position[0])
        return None if acks is None else acks.batches.get(position[1])

    def adds_range(self, position: tuple[int, int]) -> bool:
        """Return whether acknowledging this entry as a whole would add a range.

        Not so for the lowest unacknowledged entry, nor beside an acknowledged one. Never loads: in an evicted ledger
        the answer is True.
        """
        ledger, entry = position
        mark_delete = self.mark_delete
        if (ledger, entry) <= (mark_delete.ledger, mark_delete.entry):
            return False
        if mark_delete.next_position == (ledger, entry):
            return False
        acks = self._states.get(ledger)
        return acks is None or not (entry in acks.ranges or entry - 1 in acks.ranges or entry + 1 in acks.ranges)

    def unacked(self, ledger: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of entries of a ledger, between these two, that are not acknowledged as a whole.

        Acknowledging meanwhile is allowed. The entries need not exist.

        :raises LedgersNotLoaded: the ledger is evicted
        """
        self.table.loaded(ledger)
        mark_delete = self.mark_delete
        if ledger >= mark_delete.ledger:
            begin = max(first, mark_delete.entry + 1) if ledger == mark_delete.ledger else first
            yield from self.table.unacked(ledger, begin, last)

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Iterable[tuple[int, int]], batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries; of those that have a batch set, only what that set leaves out.

        Entries that are acknowledged already, or lie before the mark-delete position, are accepted and change nothing.

        :param batch_sets: by position; a position that is not among ``positions`` is refused
        :raises InvalidArgumentError: a position does not exist; nothing of the call was applied
        :raises LedgersNotLoaded: a ledger is evicted; nothing of the call was applied
        """
        if batch_sets is None and type(positions) is list and len(positions) == 1:
            position = positions[0]
            if isinstance(position, tuple) and len(position) == 2:
                ledger, entry = position
                if type(ledger) is int and type(entry) is int:
                    end = self._entries_of(ledger)
                    if end is not None and 0 <= entry < end:
                        self._acknowledge_one(ledger, entry, end)
                        return
        whole, partial = read_request(positions, batch_sets, self._ledgers, self.mark_delete.position)
        self.table.require({*whole, *(ledger for ledger, _ in partial)})
        for ledger, entries in whole.items():
            self._acknowledge_many(ledger, entries)
        for (ledger, entry), batch in partial.items():
            self._acknowledge_part(ledger, entry, batch)
        self.mark_delete.advance()

    def acknowledge_entries(self, ledger: int, entries: Iterable[int]) -> None:
        """Acknowledge entries of one ledger: the fast way for many.

        :raises InvalidArgumentError: an entry does not exist; nothing was applied
        :raises LedgersNotLoaded: the ledger is evicted; nothing was applied
        """
        wanted = list(as_entries(entries))
        if not wanted:
            return
        lowest, highest = check_position((ledger, wanted[0])), check_position((ledger, wanted[-1]))
        ledger = highest[0]
        mark_delete = self.mark_delete.position
        if highest <= mark_delete:
            return
        check_exists(self._ledgers, *highest)
        self.table.require((ledger,))
        if lowest <= mark_delete:
            wanted = [entry for entry in wanted if entry > mark_delete.entry]
        self._acknowledge_many(ledger, wanted)
        self.mark_delete.advance()

    def acknowledge_cumulative(self, position: tuple[int, int], batch_set: BatchSet | None = None) -> None:
        """Acknowledge everything up to and including this position.

        With a batch set, the entry itself is acknowledged except for that set. The position of the last cumulative
        acknowledgement, and the mark-delete position, are accepted again.

        :raises InvalidArgumentError: it does not exist, or is older than the mark-delete position; nothing has changed
        :raises LedgersNotLoaded: its ledger is evicted; nothing has changed
        """
        ledger, entry = wanted = check_position(position)
        if batch_set is not None:
            check_batch_set(batch_set)
        mark_delete = self.mark_delete.position
        if wanted <= mark_delete:
            if wanted not in {mark_delete, self._cumulative}:
                raise InvalidArgumentError(
                    "position", position, f"not before the mark-delete position {tuple(mark_delete)}"
                )
            return
        check_exists(self._ledgers, ledger, entry)
        remaining = _remaining(self.table.loaded(ledger), entry, batch_set)
        target = wanted if remaining is None else self.mark_delete.before(ledger, entry)
        self._cumulative = wanted
        if target != mark_delete:
            self.mark_delete.move_to(*target)
        if remaining is not None:
            self._acknowledge_part(ledger, entry, remaining)
        self.mark_delete.advance()

    def reset(self, position: tuple[int, int]) -> None:
        """Make this position the next message: everything before it counts as acknowledged, nothing from it on.

        It may be just after the last entry of a ledger, or in a deleted ledger, which means the first entry after that.
        Evicted ledgers are dropped without being loaded.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        ledger, entry = check_position(position, lowest=-1)
        self.mark_delete.reset(ledger, entry)
        self._highest_ledger = self.mark_delete.ledger
        self._cumulative = None

    # -- writing and loading -------------------------------------------------------------------------------------------

    def take_dirty(self) -> tuple[set[int], bool]:
        """Return the dirty ledgers and whether the mark-delete position is dirty; afterwards nothing is.

        If they could not be written, give them back with :meth:`put_back_dirty`.
        """
        taken = self._dirty.copy(), self.mark_delete.is_dirty
        self._dirty.clear()
        self.mark_delete.is_dirty = False
        return taken

    def put_back_dirty(self, ledgers: Iterable[int], mark_delete: bool) -> None:
        """Make ledgers (and the mark-delete position) dirty again."""
        self._dirty.update(ledgers)
        self.mark_delete.is_dirty |= mark_delete

    def add_evicted(self, ledger: int, summary: LedgerSummary, size: int) -> None:
        """Note, while recovering, a ledger that is on storage and was not loaded.

        :param summary: of the ledger's state as :meth:`restore` would leave it, see :meth:`LedgerAcks.trim`
        :param size: bytes that its state takes when written
        """
        if ledger < self.mark_delete.ledger:
            return
        self.table.add_evicted(ledger, summary, size)
        if summary.acked:
            self._highest_ledger = max(self._highest_ledger, ledger)

    def restore(self, ledger: int, acks: LedgerAcks) -> bool:
        """Put a ledger's state, as it was written, into memory; it belongs to this object then.

        What lies at or before the mark-delete position is dropped. A ledger that is not evicted any more (the position
        passed it, or a reset dropped it, while it was being loaded) is left alone, and the result is False. Between the
        read of the state and this call, the ledger must not be restored, changed and evicted again.
        """
        if ledger not in self._evicted:
            return False
        self._put(ledger, acks)
        return True

    def recover(self, ledger: int, acks: LedgerAcks) -> None:
        """Put a ledger's state, read while recovering, into memory."""
        if ledger >= self.mark_delete.ledger:
            self._put(ledger, acks)

    def _put(self, ledger: int, acks: LedgerAcks) -> None:
        acks.normalise()
        mark_delete = self.mark_delete
        if ledger == mark_delete.ledger:
            acks.trim(mark_delete.entry)
        self.table.put(ledger, acks)
        if acks.ranges:
            self._highest_ledger = max(self._highest_ledger, ledger)
        if ledger == mark_delete.ledger:
            mark_delete.advance()

    # -- changing ------------------------------------------------------------------------------------------------------

    def _acknowledge_one(self, ledger: int, entry: int, end: int) -> None:
        """Acknowledge a whole entry that exists, in a ledger that has ``end`` entries."""
        mark_delete = self.mark_delete
        acks = self._states.get(ledger)
        if ledger == mark_delete.ledger:
            if entry <= mark_delete.entry:
                return
            if entry == mark_delete.entry + 1:
                if acks is None and entry + 1 < end and ledger not in self._evicted:  # in order: the commonest case
                    mark_delete.entry = entry
                    mark_delete.is_dirty = True
                    return
                mark_delete.advance_by_one(acks, end)
                return
        elif ledger < mark_delete.ledger:
            return
        if acks is None:
            if ledger in self._evicted:
                raise LedgersNotLoaded([ledger])
            acks = self._states[ledger] = LedgerAcks()
        if not acks.ranges.add(entry):
            return
        if acks.batches:
            acks.batches.pop(entry, None)
        self._dirty.add(ledger)
        self._changed.add(ledger)
        if not entry or ledger > self._highest_ledger:
            self._highest_ledger = max(self._highest_ledger, ledger)
            mark_delete.advance()

    def _acknowledge_many(self, ledger: int, entries: list[int]) -> None:
        """Acknowledge entries of a ledger in memory that were checked and lie beyond the mark-delete position."""
        if self.table.acknowledge(ledger, entries):
            self._highest_ledger = max(self._highest_ledger, ledger)

    def _acknowledge_part(self, ledger: int, entry: int, batch: BatchSet) -> None:
        remaining = _remaining(self._states.get(ledger), entry, batch)
        if remaining is None:
            self._acknowledge_many(ledger, [entry])
        else:
            self.table.narrow_batch(ledger, entry, remaining)


def _remaining(acks: LedgerAcks | None, entry: int, batch: BatchSet | None) -> BatchSet | None:
    """Return what remains of an entry when ``batch`` is acknowledged as well, None for nothing."""
    if batch is None or (acks is not None and entry in acks.ranges):
        return None
    known = None if acks is None else acks.batches.get(entry)
    remaining = batch if known is None else known.merge(batch)
    return None if remaining.is_all_acked else remaining
