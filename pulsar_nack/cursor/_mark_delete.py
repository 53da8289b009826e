"""The mark-delete position, and how it moves over acknowledged entries; the theory is at the head of ``_acks.py``."""

from __future__ import annotations

from ..ids import Position
from ._ledger_table import LedgerTable
from ._ledgers import Ledgers, ledger_after, position_before, reset_target
from ._requests import check_position
from .format import LedgerAcks, LedgersNotLoaded


class MarkDeletePosition:
    """The mark-delete position of one acknowledgement state. It moves forward, except by :meth:`reset`.

    :param is_remote: whether the topic is a remote one, whose ledgers are not known
    """

    __slots__ = ("_entries_of", "_is_remote", "_ledgers", "_table", "entry", "is_dirty", "ledger")

    def __init__(
        self, table: LedgerTable, ledgers: Ledgers, position: tuple[int, int], *, is_remote: bool = False
    ) -> None:
        self.ledger, self.entry = check_position(position, lowest=-1)
        self.is_dirty = False
        """Whether it differs from what was written."""
        self._table = table
        self._ledgers = ledgers
        self._entries_of = ledgers.entries
        self._is_remote = is_remote

    @property
    def position(self) -> Position:
        """Return the mark-delete position."""
        return Position(self.ledger, self.entry)

    @property
    def next_position(self) -> Position | None:
        """Return the entry after the mark-delete position, None if there is no such entry yet."""
        if self.entry + 1 < (self._entries_of(self.ledger) or 0):
            return Position(self.ledger, self.entry + 1)
        following = ledger_after(self._ledgers, self.ledger)
        return None if following is None else Position(following, 0)

    def before(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return the position before this one to which the mark-delete position can move; never before where it is."""
        before = position_before(self._ledgers, ledger, entry)
        here = self.ledger, self.entry
        return here if before[1] < 0 and not self._is_remote else max(before, here)

    def advance(self) -> None:
        """Move it over everything that is acknowledged after it, and over the ends of ledgers."""
        begin = self.ledger
        self._pass_run()
        while self.entry + 1 >= (self._entries_of(self.ledger) or 0):
            following = ledger_after(self._ledgers, self.ledger)
            if following is None or not self._enter(following):
                break
            self._pass_run()
        if self.ledger != begin:
            self._table.drop_below(self.ledger)

    def advance_by_one(self, acks: LedgerAcks | None, end: int) -> None:
        """Move it to the next entry, which is in its ledger, and over the acknowledged entries after that.

        :param acks: the ledger's state, if it is in memory
        :param end: how many entries the ledger has
        :raises LedgersNotLoaded: the ledger is evicted; nothing has changed
        """
        if acks is not None:
            if acks.batches:
                acks.batches.pop(self.entry + 1, None)
            self._table.changed.add(self.ledger)
            self.entry = acks.ranges.pop_run(self.entry + 2) - 1
            if not acks:
                self._table.drop(self.ledger)
        elif self.ledger in self._table.evicted:
            raise LedgersNotLoaded([self.ledger])
        else:
            self.entry += 1
        self.is_dirty = True
        if self.entry + 1 >= end:
            self.advance()

    def move_to(self, ledger: int, entry: int) -> None:
        """Move it forward to this position; forget what lies at or before it."""
        has_left = ledger != self.ledger
        self.ledger, self.entry = ledger, entry
        self.is_dirty = True
        table = self._table
        if has_left:
            table.drop_below(ledger)
        if ledger in table.evicted:  # the end of a ledger before the one that was acknowledged up to
            table.drop(ledger)
        acks = table.states.get(ledger)
        if acks is None:
            return
        acks.trim(entry)
        table.changed.add(ledger)
        if not acks:
            table.drop(ledger)

    def reset(self, ledger: int, entry: int) -> None:
        """Make this position the next message, and forget all ledgers.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        self.ledger, self.entry = reset_target(self._ledgers, ledger, max(entry, 0))
        self.is_dirty = True
        for other in [*self._table.states, *self._table.evicted]:
            self._table.drop(other)

    def _pass_run(self) -> None:
        """Move it over the acknowledged entries right after it in its ledger."""
        ledger, acks = self.ledger, self._table.states.get(self.ledger)
        if acks is None:
            return
        start = self.entry + 1
        end = acks.ranges.pop_run(start)
        if end > start:
            self.entry = end - 1
            self.is_dirty = True
            self._table.changed.add(ledger)
        if not acks:
            self._table.drop(ledger)

    def _enter(self, ledger: int) -> bool:
        """Move it to this ledger if the ledger's first entry is acknowledged; return whether it was."""
        table = self._table
        acks = table.states.get(ledger)
        if acks is not None:
            if 0 not in acks.ranges:
                return False
            self.ledger, self.entry = ledger, -1
            return True
        summary = table.evicted.get(ledger)
        if summary is None or not summary.leading:
            return False
        self.ledger, self.entry = ledger, summary.leading - 1
        self.is_dirty = True
        table.evicted[ledger] = summary._replace(acked=summary.acked - summary.leading, leading=0)
        if summary.acked == summary.leading and not summary.batches:
            table.drop(ledger)
        return True
