"""What the gate lets pass of a subscription's entries (PIP-299), and what of them is in flight.

Asked twice: before entries are read, when the size of a batch is known only of those that were read once, and again for
a batch that was read just now. What it held back then is known, so nothing is read twice for a no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..clock import Clock
from ..config import TopicConfig
from ..cursor import Cursor, DispatchGate, Reserve, worst_growth
from ..ids import Position
from ._waiting import Known

KnownOf = Callable[[Position], Known | None]


class Admission:
    """The gate of one subscription.

    :param config: says how large the acknowledgement state may grow, and whether what comes due waits too
    """

    def __init__(self, cursor: Cursor, config: TopicConfig, name: str, clock: Clock) -> None:
        self._cursor = cursor
        self._reserve = Reserve(cursor.acked_entries)
        self.gate = DispatchGate(
            config.cursor.max_per_cursor_metadata_size_in_bytes,
            lambda: cursor.metadata_size_bytes,
            lambda: self._reserve.bytes,
            hold_due_delayed=config.hold_due_delayed,
            name=name,
            clock=clock,
        )
        self.due: set[Position] = set()
        """Entries that were delayed, came due, and were not sent yet."""
        self._fresh: set[Position] = set()
        """Batches that were held back when they were new: they wait, and are new still."""

    def choose(self, positions: Iterable[Position], known: KnownOf | None, *, in_order: bool = False) -> list[Position]:
        """Return which of these may go, the lowest first.

        :param known: tells what is known of an entry that waits; None: they are new
        :param in_order: whether what is held keeps back all that follows of its key, or all where the key is not known
        """
        if not self.gate.is_on:
            return list(positions)
        admitted: list[Position] = []
        held = _HeldKeys()
        for position in positions:
            found = None if known is None else known(position)
            size = 0 if found is None else found.batch_size
            is_late = found is None and position in self.due  # has no place in the order, as far as is known
            if in_order and not is_late and held.keeps_back(found):
                continue
            if self._may_go(position, size, len(admitted), waiting=known is not None):
                admitted.append(position)
            elif not is_late:
                held.add(found)
        return admitted

    def lets_pass(self, position: Position, batch_size: int, *, waiting: bool) -> bool:
        """Return whether an entry may go now that it was read."""
        if batch_size <= 1 or not self.gate.is_on or self._may_go(position, batch_size, 0, waiting=waiting):
            return True
        if not waiting:
            self._fresh.add(position)
        return False

    def _may_go(self, position: Position, size: int, before: int, *, waiting: bool) -> bool:
        """Ask the gate, where ``before`` entries were let pass that are not in flight yet."""
        gate, growth = self.gate, worst_growth(size)
        is_below = position < self._cursor.highest_acked
        is_lowest = position == self._cursor.next_position
        is_free = is_lowest or (size <= 1 and not self._cursor.adds_range(position))
        if position in self.due:
            if gate.admit_due(before + 1, is_below=is_below, growth=growth) > before:
                return True
            is_free = is_free if is_below else is_lowest
            return is_free and gate.admit_due(1, is_below=is_below, adds_range=False, growth=growth) > 0
        if is_below or (waiting and position not in self._fresh):
            return is_free or gate.admit_old(before + 1, growth=growth) > before
        return gate.admit_new(before + 1, growth=growth) > before or is_lowest

    def sent(self, position: Position, batch_size: int) -> None:
        """An entry is in flight."""
        self.due.discard(position)
        self._fresh.discard(position)
        if self.gate.is_on:
            self._reserve.add(position, batch_size)

    def came_back(self, positions: Iterable[Position]) -> None:
        """Entries are in flight no more."""
        for position in positions:
            self._reserve.discard(position)

    def acked(self, position: Position) -> None:
        """An entry is acknowledged as a whole."""
        self._reserve.discard(position)
        self.due.discard(position)
        self._fresh.discard(position)

    def passed(self, last: Position) -> None:
        """Everything up to here is acknowledged."""
        self.came_back([each for each in self._reserve if each <= last])
        for table in (self.due, self._fresh):
            table.difference_update([each for each in table if each <= last])

    def forget(self, last: Position | None = None) -> None:
        """Begin anew: entries, all or those up to one, were skipped or the subscription was moved."""
        if last is not None:
            self.passed(last)
        else:
            self._reserve.clear()
            self.due.clear()
            self._fresh.clear()
        self.gate.reset()


class _HeldKeys:
    """The keys of entries that the gate holds: without them what follows would overtake, or be read in vain."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._holds_all = False

    def add(self, known: Known | None) -> None:
        if known is None:
            self._holds_all = True
        else:
            self._keys.add(known.key_hash)

    def keeps_back(self, known: Known | None) -> bool:
        return self._holds_all or (known is not None and known.key_hash in self._keys)
