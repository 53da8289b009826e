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

from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Final, NamedTuple

from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import EntryRanges
from ._batch import BatchSet
from ._ledgers import Ledgers, as_ledgers

BatchSets = Mapping[tuple[int, int], BatchSet]
_BATCH_BYTES: Final = 200
_FRAME_BYTES: Final = 150


class LedgersNotLoaded(Exception):  # noqa: N818  it tells the shell what to load, and never reaches a user
    """The operation needs ledgers that are evicted; nothing has changed. Load and restore them, then call again."""

    def __init__(self, ledgers: Iterable[int]) -> None:
        self.ledgers = frozenset(ledgers)
        super().__init__(f"not loaded: ledgers {sorted(self.ledgers)}")


class LedgerAcks:
    """What is acknowledged in one ledger beyond the mark-delete position: whole entries, and parts of batches."""

    __slots__ = ("batches", "ranges")

    def __init__(self, ranges: EntryRanges | None = None, batches: dict[int, BatchSet] | None = None) -> None:
        self.ranges = EntryRanges() if ranges is None else ranges
        self.batches = {} if batches is None else batches

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
        """Return about what it takes in memory; O(1)."""
        return _FRAME_BYTES + self.ranges.memory_bytes + _BATCH_BYTES * len(self.batches)

    @property
    def summary(self) -> LedgerSummary:
        """Return what has to be known of it while it is not in memory."""
        return LedgerSummary(len(self.ranges), self.ranges.next_absent(0), len(self.batches))

    def copy(self) -> LedgerAcks:
        """Return an independent copy."""
        return LedgerAcks(self.ranges.copy(), dict(self.batches))


class LedgerSummary(NamedTuple):
    """What is known of an evicted ledger, without what lies at or before the mark-delete position."""

    acked: int
    """Entries that are acknowledged as a whole."""
    leading: int
    """How many of them are the first of the ledger: the first that is not acknowledged."""
    batches: int
    """Entries of which only a part is acknowledged."""


class AckState:
    """The acknowledgement state of one subscription, without storage.

    A position is a (ledger, entry) pair. A batch set is what is *not* acknowledged of an entry's batch.

    :param ledgers: a {ledger: entries} mapping or an object that answers this, see :class:`Ledgers`; both may grow and
        lose ledgers while in use. None for a remote topic: no position is beyond the end, the mark-delete position does
        not hop from ledger to ledger, and there is no backlog
    :param mark_delete_position: where it begins, (ledger, -1) for before the first entry
    :param ledger_size: bytes that one ledger's state takes when written, for ``size_bytes``
    """

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
        self.unsettled: int | None = None
        """The evicted ledger without a summary at which the mark-delete position waits, if any."""
        self._ledgers = None if ledgers is None else as_ledgers(ledgers)
        self._entries_of = None if self._ledgers is None else self._ledgers.entries
        ledger, entry = mark_delete_position
        self._md_ledger, self._md_entry = _checked(ledger, entry, lowest=-1)
        self._cumulative: tuple[int, int] | None = None
        self._evicted: dict[int, LedgerSummary | None] = {}
        self._ledger_size = ledger_size
        self._sizes: dict[int, tuple[int, int]] = {}
        self._size_total = 0
        self._memory_total = 0
        self._unsized: set[int] = set()

    # What it knows

    @property
    def mark_delete_position(self) -> Position:
        """Return the last position such that it and everything before it is acknowledged."""
        return Position(self._md_ledger, self._md_entry)

    @property
    def backlog(self) -> int | None:
        """Return how many entries are not acknowledged as a whole; None for a remote topic. O(ledgers)."""
        ledgers = self._ledgers
        if ledgers is None:
            return None
        total = max(0, (ledgers.entries(self._md_ledger) or 0) - self._md_entry - 1)
        ledger = ledgers.next_ledger(self._md_ledger)
        while ledger is not None:
            total += ledgers.entries(ledger) or 0
            ledger = ledgers.next_ledger(ledger)
        acked = sum(len(acks.ranges) for acks in self.ledger_states.values())
        acked += sum(summary.acked for summary in self._evicted.values() if summary is not None)
        return max(0, total - acked)

    @property
    def evicted(self) -> Mapping[int, LedgerSummary | None]:
        """Return the ledgers that are on storage only, with what is known of them. Read only."""
        return self._evicted

    @property
    def size_bytes(self) -> int:
        """Return what all ledgers take when written, evicted ones included; O(ledgers changed since the last call)."""
        self._measure()
        return self._size_total

    @property
    def memory_bytes(self) -> int:
        """Return about what the ledgers in memory take; O(ledgers changed since the last call)."""
        self._measure()
        return self._memory_total

    def is_acked(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """Return whether an entry is acknowledged as a whole, or at least this index of its batch.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        ledger, entry = position
        if (ledger, entry) <= (self._md_ledger, self._md_entry):
            return True
        acks = self.ledger_states.get(ledger)
        if acks is None:
            self._need(ledger)
            return False
        if entry in acks.ranges:
            return True
        batch = acks.batches.get(entry)
        return batch is not None and batch_index is not None and batch.is_acked(batch_index)

    def batch_set(self, position: tuple[int, int]) -> BatchSet | None:
        """Return what is left of a batch of which some messages are acknowledged, else None.

        :raises LedgersNotLoaded: its ledger is evicted
        """
        ledger, entry = position
        if ledger not in self.ledger_states:
            self._need(ledger)
            return None
        return self.ledger_states[ledger].batches.get(entry)

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

    # Acknowledging

    def acknowledge(self, positions: Iterable[tuple[int, int]], batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries; of those that have a batch set, only what that set leaves out.

        What is acknowledged already, or lies before the mark-delete position, is accepted and changes nothing.

        :param batch_sets: by position; what is not among the positions is refused
        :raises InvalidArgumentError: a position does not exist; nothing of the call was applied
        :raises LedgersNotLoaded: see there; nothing of the call was applied
        """
        if batch_sets is None and type(positions) is list and len(positions) == 1:
            self._acknowledge_one(positions[0])
            return
        whole, partial = self._sorted_out(list(positions), batch_sets)
        for ledger, entries in whole.items():
            self._acknowledge_many(ledger, entries)
        for (ledger, entry), batch in partial.items():
            self._merge_batch(ledger, entry, batch)
        self.settle()

    def acknowledge_entries(self, ledger: int, entries: Iterable[int]) -> None:
        """Acknowledge entries of one ledger: the fast way for many.

        :raises InvalidArgumentError: an entry does not exist; nothing was applied
        :raises LedgersNotLoaded: the ledger is evicted; nothing was applied
        """
        wanted = list(entries)
        if not wanted:
            return
        self._check(ledger, min(wanted))
        self._check(ledger, max(wanted))
        if ledger < self._md_ledger:
            return
        if ledger == self._md_ledger and min(wanted) <= self._md_entry:
            wanted = [entry for entry in wanted if entry > self._md_entry]
        self._need(ledger)
        self._acknowledge_many(ledger, wanted)
        self.settle()

    def acknowledge_cumulative(self, position: tuple[int, int], batch_set: BatchSet | None = None) -> None:
        """Acknowledge everything up to this position, itself included.

        With a batch set, the entry itself is acknowledged as far as that set leaves out. The position of the last
        cumulative acknowledgement, and the mark-delete position, are accepted again.

        :raises InvalidArgumentError: it does not exist, or is older than the mark-delete position; nothing has changed
        :raises LedgersNotLoaded: its ledger is evicted; nothing has changed
        """
        ledger, entry = _checked(*position)
        reached = (self._md_ledger, self._md_entry)
        if (ledger, entry) <= reached:
            if (ledger, entry) not in {reached, self._cumulative}:
                raise InvalidArgumentError("position", position, f"not before the mark-delete position {reached}")
            return
        self._check(ledger, entry)
        self._need(ledger)
        acks = self.ledger_states.get(ledger)
        left = self._left(acks, entry, batch_set)
        target = (ledger, entry) if left is None else max(reached, self._before(ledger, entry))
        self._cumulative = (ledger, entry)
        if target != reached:
            self._move_to(*target)
        if left is not None:
            self._merge_batch(ledger, entry, left)
        self.settle()

    def reset(self, position: tuple[int, int]) -> None:
        """Make this position the next message: everything before it counts as acknowledged, nothing from it on.

        It may be behind the last entry of a ledger, where the next one will be, and in a ledger that was deleted, which
        means the first entry after that. Evicted ledgers are dropped without being loaded.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        ledger, entry = _checked(*position, lowest=-1)
        self._md_ledger, self._md_entry = self._reset_target(ledger, max(entry, 0))
        self.mark_delete_is_dirty = True
        self._cumulative = None
        for other in [*self.ledger_states, *self._evicted]:
            self._drop(other)

    def settle(self) -> None:
        """Move the mark-delete position as far as it can go.

        Each acknowledgement does this by itself. Call it when ledgers were deleted: it may hop over them then.
        """
        self.unsettled = None
        while True:
            self._pass_run()
            following = self._following_ledger()
            if following is None or not self._enter(following):
                return

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
        self._measure()
        acks = self.ledger_states.pop(ledger)
        self._evicted[ledger] = acks.summary
        self._memory_total -= self._sizes[ledger][1]
        self._sizes[ledger] = (self._sizes[ledger][0], 0)
        return acks

    def note_evicted(self, ledger: int, summary: LedgerSummary | None = None, size: int = 0) -> None:
        """Tell it, while recovering, of a ledger that is on storage and was not loaded.

        Without a summary the ledger counts as one with nothing acknowledged until it is restored.

        :param size: bytes that its state takes when written
        """
        if ledger < self._md_ledger:
            return
        self._evicted[ledger] = summary
        self._sizes[ledger] = (size, 0)
        self._size_total += size

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

    def _adopt(self, ledger: int, acks: LedgerAcks) -> None:
        self._evicted.pop(ledger, None)
        if ledger == self._md_ledger:
            acks.ranges.discard_below(self._md_entry + 1)
            for entry in [entry for entry in acks.batches if entry <= self._md_entry]:
                del acks.batches[entry]
        for entry in [entry for entry, batch in acks.batches.items() if entry in acks.ranges or batch.is_untouched]:
            del acks.batches[entry]
        for entry in [entry for entry, batch in acks.batches.items() if batch.is_all_acked]:
            del acks.batches[entry]
            acks.ranges.add(entry)
        self.ledger_states[ledger] = acks
        self._unsized.add(ledger)
        if not acks:
            self._drop(ledger)
        if ledger in {self._md_ledger, self.unsettled}:
            self.settle()

    # How it is done

    def _acknowledge_one(self, position: tuple[int, int]) -> None:
        ledger, entry = position
        if type(ledger) is not int or type(entry) is not int or entry < 0:
            ledger, entry = _checked(ledger, entry)
        end = None
        if self._entries_of is not None:
            end = self._entries_of(ledger)
            if end is None or entry >= end:
                self._check(ledger, entry)
        md_ledger, md_entry = self._md_ledger, self._md_entry
        if ledger <= md_ledger and (ledger < md_ledger or entry <= md_entry):
            return
        acks = self.ledger_states.get(ledger)
        if acks is None and ledger in self._evicted:
            raise LedgersNotLoaded([ledger])
        if entry == md_entry + 1 and ledger == md_ledger:
            self._advance(acks, entry, end)
            return
        if acks is None:
            acks = self.ledger_states[ledger] = LedgerAcks()
        if not acks.ranges.add(entry):
            return
        if acks.batches:
            acks.batches.pop(entry, None)
        self.dirty.add(ledger)
        self._unsized.add(ledger)
        if not entry:
            self.settle()

    def _advance(self, acks: LedgerAcks | None, entry: int, end: int | None) -> None:
        """Move the mark-delete position to the entry after it, and on over what is acknowledged behind that."""
        self._md_entry = entry
        self.mark_delete_is_dirty = True
        if acks is not None:
            acks.batches.pop(entry, None)
            self._unsized.add(self._md_ledger)
            self._pass_run()
        if end is not None and self._md_entry + 1 >= end:
            self.settle()

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

    def _merge_batch(self, ledger: int, entry: int, batch: BatchSet) -> None:
        acks = self.ledger_states.get(ledger)
        left = self._left(acks, entry, batch)
        if left is None:
            self._acknowledge_many(ledger, [entry])
            return
        if left.is_untouched or (acks is not None and acks.batches.get(entry) == left):
            return
        if acks is None:
            acks = self.ledger_states[ledger] = LedgerAcks()
        acks.batches[entry] = left
        self._touch(ledger)

    def _left(self, acks: LedgerAcks | None, entry: int, batch: BatchSet | None) -> BatchSet | None:
        """Return what is left of an entry when this is acknowledged of it as well, None for nothing."""
        if batch is None or (acks is not None and entry in acks.ranges):
            return None
        known = None if acks is None else acks.batches.get(entry)
        left = batch if known is None else known.merge(batch)
        return None if left.is_all_acked else left

    def _sorted_out(
        self, positions: list[tuple[int, int]], batch_sets: BatchSets | None
    ) -> tuple[dict[int, list[int]], dict[tuple[int, int], BatchSet]]:
        """Check all positions; return the new whole ones by ledger, and the partial ones."""
        whole: dict[int, list[int]] = {}
        partial: dict[tuple[int, int], BatchSet] = {}
        batch_sets = batch_sets or {}
        reached = (self._md_ledger, self._md_entry)
        for position in positions:
            ledger, entry = _checked(*position)
            self._check(ledger, entry)
            if (ledger, entry) <= reached:
                continue
            batch = batch_sets.get((ledger, entry))
            if batch is None:
                whole.setdefault(ledger, []).append(entry)
            else:
                partial[ledger, entry] = batch
        stray = batch_sets.keys() - {(ledger, entry) for ledger, entry in positions} if batch_sets else ()
        if stray:
            raise InvalidArgumentError("batch_sets", min(stray), "batch sets of the given positions only")
        missing = self._evicted.keys() & {*whole, *(ledger for ledger, _ in partial)} if self._evicted else ()
        if missing:
            raise LedgersNotLoaded(missing)
        return whole, partial

    def _check(self, ledger: int, entry: int) -> None:
        """Refuse a position beyond the mark-delete position that does not exist."""
        if self._entries_of is None or (ledger, entry) <= (self._md_ledger, self._md_entry):
            return
        end = self._entries_of(ledger)
        if end is None:
            raise InvalidArgumentError("position", (ledger, entry), f"a ledger that exists, {ledger} does not")
        if entry >= end:
            raise InvalidArgumentError("position", (ledger, entry), f"an entry of ledger {ledger}, which has {end}")

    def _need(self, ledger: int) -> None:
        if ledger in self._evicted:
            raise LedgersNotLoaded([ledger])

    def _touch(self, ledger: int) -> None:
        self.dirty.add(ledger)
        self._unsized.add(ledger)

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
            self._unsized.add(ledger)
        if not acks:
            self._drop(ledger)

    def _following_ledger(self) -> int | None:
        """Return the next ledger with entries if the mark-delete position is at the end of its own, else None."""
        ledgers = self._ledgers
        if ledgers is None or self._md_entry + 1 < (ledgers.entries(self._md_ledger) or 0):
            return None
        following = ledgers.next_ledger(self._md_ledger)
        while following is not None and not ledgers.entries(following):
            following = ledgers.next_ledger(following)
        return following

    def _enter(self, ledger: int) -> bool:
        """Move the mark-delete position to this ledger if its first entry is acknowledged; return whether it was."""
        acks = self.ledger_states.get(ledger)
        leading = 0
        if acks is not None:
            leading = int(0 in acks.ranges)
        elif ledger in self._evicted:
            summary = self._evicted[ledger]
            if summary is None:
                self.unsettled = ledger
            else:
                leading = summary.leading
        if not leading:
            return False
        if self._md_ledger in self.ledger_states or self._md_ledger in self._evicted:
            self._drop(self._md_ledger)
        self._md_ledger, self._md_entry = ledger, -1
        self.mark_delete_is_dirty = True
        if acks is None:
            self._pass_beginning(ledger, leading)
        return True

    def _pass_beginning(self, ledger: int, leading: int) -> None:
        """Move the mark-delete position over the first entries of an evicted ledger."""
        summary = self._evicted[ledger]
        if summary is None:
            return
        self._md_entry = leading - 1
        left = LedgerSummary(summary.acked - leading, 0, summary.batches)
        if left.acked or left.batches:
            self._evicted[ledger] = left
        else:
            self._drop(ledger)

    def _move_to(self, ledger: int, entry: int) -> None:
        """Move the mark-delete position forward; forget what lies at or before it."""
        if ledger != self._md_ledger:
            for other in [other for other in (*self.ledger_states, *self._evicted) if other < ledger]:
                self._drop(other)
        self._md_ledger, self._md_entry = ledger, entry
        self.mark_delete_is_dirty = True
        if ledger in self._evicted:  # the end of a ledger before the one that was acknowledged up to
            self._drop(ledger)
        acks = self.ledger_states.get(ledger)
        if acks is None:
            return
        acks.ranges.discard_below(entry + 1)
        for passed in [passed for passed in acks.batches if passed <= entry]:
            del acks.batches[passed]
        self._unsized.add(ledger)
        if not acks:
            self._drop(ledger)

    def _before(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return the last position before this one that exists, else the beginning of its ledger."""
        if entry or self._ledgers is None:
            return ledger, entry - 1
        previous = self._ledgers.previous_ledger(ledger)
        while previous is not None:
            end = self._ledgers.entries(previous)
            if end:
                return previous, end - 1
            previous = self._ledgers.previous_ledger(previous)
        return ledger, -1

    def _reset_target(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return the mark-delete position that makes this one the next message."""
        if self._ledgers is None:
            return ledger, entry - 1
        end = self._ledgers.entries(ledger)
        if end is None:
            following = self._ledgers.next_ledger(ledger)
            if following is None:
                raise InvalidArgumentError("position", (ledger, entry), "a position that is not beyond the end")
            return self._before(following, 0)
        if entry > end:
            raise InvalidArgumentError("position", (ledger, entry), f"at most entry {end} of ledger {ledger}")
        return self._before(ledger, entry)

    def _measure(self) -> None:
        """Measure the ledgers that changed since the last time."""
        while self._unsized:
            ledger = self._unsized.pop()
            size, memory = self._sizes.pop(ledger, (0, 0))
            self._size_total -= size
            self._memory_total -= memory
            acks = self.ledger_states.get(ledger)
            if acks is not None:
                size = 0 if self._ledger_size is None else self._ledger_size(acks)
                self._sizes[ledger] = (size, acks.memory_bytes)
                self._size_total += size
                self._memory_total += acks.memory_bytes


def _checked(ledger: int, entry: int, *, lowest: int = 0) -> tuple[int, int]:
    """Return a position as plain integers.

    :raises InvalidArgumentError: it is none
    """
    try:
        ledger, entry = index(ledger), index(entry)
    except TypeError:
        raise InvalidArgumentError("position", (ledger, entry), "a ledger and an entry, both integers") from None
    if not (lowest <= ledger < 2**63 and lowest <= entry < 2**63):
        raise InvalidArgumentError("position", (ledger, entry), f"a ledger and an entry from {lowest} on")
    return ledger, entry
