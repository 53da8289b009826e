"""What a subscription has acknowledged: the pure core of a cursor.

What it holds
    The *mark-delete position*: the last entry such that it and everything before it is acknowledged. It is an entry
    that exists, or existed, or (ledger, -1) for "before the first entry". For each ledger above it, or in which it
    lies, what is acknowledged beyond it: whole entries as ranges, and entries of which only some messages of the batch
    are acknowledged as sets of what is left.

Invariants
    - The entry after the mark-delete position is not acknowledged as a whole. "After" hops over the ends of ledgers,
      over empty ones and over those that were deleted. The position itself stays on the last entry that it passed; it
      does not run ahead to the beginning of a ledger of which nothing is acknowledged.
    - No ranges and no batch sets at or before the mark-delete position; no batch set of an entry that is in a range,
      and none in which nothing, or all, is acknowledged. A ledger without any is not in ``ledger_states``.
    - Every call is checked completely before it changes anything.

A ledger that ends may grow later only as long as it is the last one; so a hop is final, and needs no second look.

Ledgers out of memory
    A ledger can be *evicted*: its state lies on storage only, and of what it is there remains a :class:`LedgerSummary`.
    Acknowledging in it raises :class:`LedgersNotLoaded` before anything changed; the shell loads, calls
    :meth:`AckState.restore` and tries again. The mark-delete position moves *into* an evicted ledger without loading
    it, because the summary tells how many entries at its beginning are acknowledged, and because nothing can change
    while it is out. What lies on storage then holds entries at or before the mark-delete position as well; ``restore``
    drops them. For the same reason a ledger of which only the beginning went behind the mark-delete position is not
    dirty: what is on storage is right together with the mark-delete position that is written beside it.
    A ledger of which not even a summary is known stops the mark-delete position before it, and is named in
    ``unsettled`` when that happens: nothing is wrong then, only later than it could be. Restoring it lets the position
    move on.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidArgumentError
from ..index import as_entries
from ._batch import BatchSet
from ._known_acks import KnownAcks
from ._ledger_acks import LedgerAcks, LedgersNotLoaded, LedgerSummary
from ._ledgers import ledger_after, position_before, reset_target
from ._requests import BatchSets, checked, must_be_batch, must_exist, read_request

__all__ = ["AckState", "BatchSets", "LedgerAcks", "LedgerSummary", "LedgersNotLoaded"]


class AckState(KnownAcks):
    """The acknowledgement state of one subscription, without storage.

    A position is a (ledger, entry) pair. A batch set is what is *not* acknowledged of an entry's batch.

    :param ledgers: a {ledger: entries} mapping or an object that answers this, see :class:`Ledgers`; both may grow and
        lose ledgers while in use. None for a remote topic: no position is beyond the end, the mark-delete position does
        not hop from ledger to ledger, and there is no backlog
    :param mark_delete_position: where it begins, (ledger, -1) for before the first entry
    :param ledger_size: bytes that one ledger's state takes when written, for ``size_bytes``
    :raises InvalidArgumentError: no ledgers, or no position
    """

    # Acknowledging

    def acknowledge(self, positions: Iterable[tuple[int, int]], batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries; of those that have a batch set, only what that set leaves out.

        What is acknowledged already, or lies before the mark-delete position, is accepted and changes nothing.

        :param batch_sets: by position; what is not among the positions is refused
        :raises InvalidArgumentError: a position does not exist; nothing of the call was applied
        :raises LedgersNotLoaded: see there; nothing of the call was applied
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
        request = read_request(positions, batch_sets, self._ledgers, (self._md_ledger, self._md_entry))
        self._need(request.ledgers)
        for ledger, entries in request.whole.items():
            self._acknowledge_many(ledger, entries)
        for (ledger, entry), batch in request.partial.items():
            self._acknowledge_part(ledger, entry, batch)
        self.settle()

    def acknowledge_entries(self, ledger: int, entries: Iterable[int]) -> None:
        """Acknowledge entries of one ledger: the fast way for many.

        :raises InvalidArgumentError: an entry does not exist; nothing was applied
        :raises LedgersNotLoaded: the ledger is evicted; nothing was applied
        """
        wanted = list(as_entries(entries))
        if not wanted:
            return
        lowest, highest = checked((ledger, wanted[0])), checked((ledger, wanted[-1]))
        ledger = highest[0]
        reached = self._md_ledger, self._md_entry
        if highest <= reached:
            return
        must_exist(self._ledgers, *highest)
        self._need((ledger,))
        if lowest <= reached:
            wanted = [entry for entry in wanted if entry > self._md_entry]
        self._acknowledge_many(ledger, wanted)
        self.settle()

    def acknowledge_cumulative(self, position: tuple[int, int], batch_set: BatchSet | None = None) -> None:
        """Acknowledge everything up to this position, itself included.

        With a batch set, the entry itself is acknowledged as far as that set leaves out. The position of the last
        cumulative acknowledgement, and the mark-delete position, are accepted again.

        :raises InvalidArgumentError: it does not exist, or is older than the mark-delete position; nothing has changed
        :raises LedgersNotLoaded: its ledger is evicted; nothing has changed
        """
        ledger, entry = wanted = checked(position)
        if batch_set is not None:
            must_be_batch(batch_set)
        reached = self._md_ledger, self._md_entry
        if wanted <= reached:
            if wanted not in {reached, self._cumulative}:
                raise InvalidArgumentError("position", position, f"not before the mark-delete position {reached}")
            return
        must_exist(self._ledgers, ledger, entry)
        acks = self._loaded(ledger)
        left = _left(acks, entry, batch_set)
        target = wanted if left is None else self._before(ledger, entry)
        self._cumulative = wanted
        if target != reached:
            self._move_to(*target)
        if left is not None:
            self._acknowledge_part(ledger, entry, left)
        self.settle()

    def reset(self, position: tuple[int, int]) -> None:
        """Make this position the next message: everything before it counts as acknowledged, nothing from it on.

        It may be behind the last entry of a ledger, where the next one will be, and in a ledger that was deleted, which
        means the first entry after that. Evicted ledgers are dropped without being loaded.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        ledger, entry = checked(position, lowest=-1)
        self._md_ledger, self._md_entry = reset_target(self._ledgers, ledger, max(entry, 0))
        self._top = self._md_ledger
        self.mark_delete_is_dirty = True
        self._cumulative = self.unsettled = None
        for other in [*self.ledger_states, *self._evicted]:
            self._drop(other)

    def settle(self) -> None:
        """Move the mark-delete position as far as it can go.

        Each acknowledgement does this by itself. Call it when ledgers were deleted: it may hop over them then.
        """
        self.unsettled = None
        begin = self._md_ledger
        self._pass_run()
        while self._md_entry + 1 >= (self._entries_of(self._md_ledger) or 0):
            following = ledger_after(self._ledgers, self._md_ledger)
            if following is None or not self._enter(following):
                break
            self._pass_run()
        if self._md_ledger != begin:
            self._forget_passed()

    # Ledgers that come and go

    def take_dirty(self) -> tuple[set[int], bool]:
        """Return the dirty ledgers and whether the mark-delete position is; nothing is dirty then.

        When they could not be written, give them back with :meth:`put_back_dirty`.
        """
        taken = self.dirty, self.mark_delete_is_dirty
        self.dirty, self.mark_delete_is_dirty = set(), False
        return taken

    def put_back_dirty(self, ledgers: Iterable[int], mark_delete: bool) -> None:
        """Make these dirty again."""
        self.dirty.update(ledgers)
        self.mark_delete_is_dirty |= mark_delete

    def evict(self, ledger: int) -> LedgerAcks:
        """Take a ledger out of memory, and return what it was. Its state has to be on storage.

        :raises InvalidArgumentError: it is not in memory, or it was not written
        """
        if ledger not in self.ledger_states or ledger in self.dirty:
            raise InvalidArgumentError("ledger", ledger, "a ledger that is in memory and was written")
        self._figures.leave_memory(ledger)
        acks = self.ledger_states.pop(ledger)
        self._evicted[ledger] = acks.summary
        return acks

    def note_evicted(
        self, ledger: int, summary: LedgerSummary | None = None, *, size: int = 0, ranges: int = 0
    ) -> None:
        """Tell it, while recovering, of a ledger that is on storage and was not loaded.

        Without a summary the ledger counts as one with nothing acknowledged until it is restored.

        :param summary: of the ledger's state as :meth:`restore` would leave it, see :meth:`LedgerAcks.trim`
        :param size: bytes that its state takes when written
        :param ranges: how many ranges it has
        """
        if ledger < self._md_ledger:
            return
        self._evicted[ledger] = summary
        self._figures.keep(ledger, size, ranges)
        if summary is not None and summary.acked:
            self._top = max(self._top, ledger)

    def restore(self, ledger: int, acks: LedgerAcks) -> bool:
        """Put a ledger's state, as it was written, into memory; it belongs to this object then.

        What lies at or before the mark-delete position is dropped. A ledger that is not evicted any more (the position
        passed it, or a reset dropped it, while it was being loaded) is left alone, and the result is False. Between the
        read of the state and this call, the ledger must not be restored, changed and evicted again.
        """
        if ledger not in self._evicted:
            return False
        self._adopt(ledger, acks)
        return True

    def recover(self, ledger: int, acks: LedgerAcks) -> None:
        """Take over the state of a ledger that was read while recovering: :meth:`restore` without an evict."""
        if ledger >= self._md_ledger:
            self._adopt(ledger, acks)

    # How it is done

    def _adopt(self, ledger: int, acks: LedgerAcks) -> None:
        self._evicted.pop(ledger, None)
        acks.normalise()
        if ledger == self._md_ledger:
            acks.trim(self._md_entry)
        self.ledger_states[ledger] = acks
        self._changed.add(ledger)
        if not acks:
            self._drop(ledger)
        if acks.ranges:
            self._top = max(self._top, ledger)
        if ledger in {self._md_ledger, self.unsettled}:
            self.settle()

    def _acknowledge_one(self, ledger: int, entry: int, end: int) -> None:
        """Acknowledge a whole entry that exists, of a ledger that has ``end`` by now."""
        md_entry = self._md_entry
        acks = self.ledger_states.get(ledger)
        if ledger == self._md_ledger:
            if entry <= md_entry:
                return
            if entry == md_entry + 1:
                if acks is None and entry + 1 < end and ledger not in self._evicted:  # in order: the commonest case
                    self._md_entry = entry
                    self.mark_delete_is_dirty = True
                    return
                self._advance(acks, entry, end)
                return
        elif ledger < self._md_ledger:
            return
        if acks is None:
            if ledger in self._evicted:
                raise LedgersNotLoaded([ledger])
            acks = self.ledger_states[ledger] = LedgerAcks()
        if not acks.ranges.add(entry):
            return
        if acks.batches:
            acks.batches.pop(entry, None)
        self.dirty.add(ledger)
        self._changed.add(ledger)
        if not entry or ledger > self._top:
            self._top = max(self._top, ledger)
            self.settle()

    def _advance(self, acks: LedgerAcks | None, entry: int, end: int) -> None:
        """Move the mark-delete position to the entry after it, and on over what is acknowledged behind that."""
        if acks is not None:
            if acks.batches:
                acks.batches.pop(entry, None)
            self._changed.add(self._md_ledger)
            self._md_entry = acks.ranges.pop_run(entry + 1) - 1
            if not acks:
                self._drop(self._md_ledger)
        elif self._md_ledger in self._evicted:
            raise LedgersNotLoaded([self._md_ledger])
        else:
            self._md_entry = entry
        self.mark_delete_is_dirty = True
        if self._md_entry + 1 >= end:
            self.settle()

    def _before(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return the last position before this one, where the mark-delete position can go; at least where it is."""
        before = position_before(self._ledgers, ledger, entry)
        reached = self._md_ledger, self._md_entry
        return reached if before[1] < 0 and not self._is_remote else max(before, reached)

    def _acknowledge_many(self, ledger: int, entries: list[int]) -> None:
        """Acknowledge entries of a ledger in memory that were checked and lie beyond the mark-delete position."""
        acks = self.ledger_states.get(ledger)
        if acks is None:
            acks = self.ledger_states[ledger] = LedgerAcks()
        if not acks.ranges.add_many(entries):
            return
        if acks.batches:
            for entry in entries:
                acks.batches.pop(entry, None)
        self._touch(ledger)
        self._top = max(self._top, ledger)

    def _acknowledge_part(self, ledger: int, entry: int, batch: BatchSet) -> None:
        acks = self.ledger_states.get(ledger)
        left = _left(acks, entry, batch)
        if left is None:
            self._acknowledge_many(ledger, [entry])
            return
        if left.is_untouched or (acks is not None and acks.batches.get(entry) == left):
            return
        if acks is None:
            acks = self.ledger_states[ledger] = LedgerAcks()
        acks.batches[entry] = left
        self._touch(ledger)

    def _touch(self, ledger: int) -> None:
        self.dirty.add(ledger)
        self._changed.add(ledger)

    def _drop(self, ledger: int) -> None:
        """Forget a ledger's state, wherever it is; what is on storage has to go as well."""
        self.ledger_states.pop(ledger, None)
        self._evicted.pop(ledger, None)
        self._touch(ledger)

    def _pass_run(self) -> None:
        """Move the mark-delete position over what is acknowledged after it in its ledger."""
        ledger, acks = self._md_ledger, self.ledger_states.get(self._md_ledger)
        if acks is None:
            return
        start = self._md_entry + 1
        end = acks.ranges.pop_run(start)
        if end > start:
            self._md_entry = end - 1
            self.mark_delete_is_dirty = True
            self._changed.add(ledger)
        if not acks:
            self._drop(ledger)

    def _enter(self, ledger: int) -> bool:
        """Move the mark-delete position to this ledger if its first entry is acknowledged; return whether it was."""
        acks = self.ledger_states.get(ledger)
        if acks is not None:
            if 0 not in acks.ranges:
                return False
            self._md_ledger, self._md_entry = ledger, -1
            return True
        summary = self._evicted.get(ledger)
        if summary is None:
            if ledger in self._evicted:
                self.unsettled = ledger
            return False
        if summary.leading:
            self._md_ledger, self._md_entry = ledger, summary.leading - 1
            self.mark_delete_is_dirty = True
            self._evicted[ledger] = summary._replace(acked=summary.acked - summary.leading, leading=0)
            if summary.acked == summary.leading and not summary.batches:
                self._drop(ledger)
        return summary.leading > 0

    def _forget_passed(self) -> None:
        """Forget the ledgers below that of the mark-delete position; among them may be deleted ones. O(ledgers)."""
        for ledger in [ledger for ledger in (*self.ledger_states, *self._evicted) if ledger < self._md_ledger]:
            self._drop(ledger)

    def _move_to(self, ledger: int, entry: int) -> None:
        """Move the mark-delete position forward; forget what lies at or before it."""
        has_left = ledger != self._md_ledger
        self._md_ledger, self._md_entry = ledger, entry
        self.mark_delete_is_dirty = True
        if has_left:
            self._forget_passed()
        if ledger in self._evicted:  # the end of a ledger before the one that was acknowledged up to
            self._drop(ledger)
        acks = self.ledger_states.get(ledger)
        if acks is None:
            return
        acks.trim(entry)
        self._changed.add(ledger)
        if not acks:
            self._drop(ledger)


def _left(acks: LedgerAcks | None, entry: int, batch: BatchSet | None) -> BatchSet | None:
    """Return what is left of an entry when this is acknowledged of it as well, None for nothing."""
    if batch is None or (acks is not None and entry in acks.ranges):
        return None
    known = None if acks is None else acks.batches.get(entry)
    left = batch if known is None else known.merge(batch)
    return None if left.is_all_acked else left
