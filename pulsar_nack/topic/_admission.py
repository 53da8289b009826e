"""Admission control: which entries of a subscription the gate admits (PIP-299), and which are in flight.

It is asked before entries are read, when the size of a batch is known only if it was read before, and again for a batch
that was just read. If the gate holds the batch then, its size is known, so it is read again only to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..clock import Clock
from ..config import TopicConfig
from ..cursor import Cursor, DispatchGate, Reserve, worst_growth
from ..ids import Position
from ._dispatch_queue import EntryInfo

InfoOf = Callable[[Position], EntryInfo | None]


class AdmissionControl:
    """The gate of one subscription, and the entries in flight.

    :param config: how large the acknowledgement state may grow, and whether delayed messages that are due wait too
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
        """Delayed entries that are due and were not sent yet."""
        self._fresh: set[Position] = set()
        """Batches that were held when they were new: they are queued, and still new."""

    def choose(
        self, positions: Iterable[Position], info_of: InfoOf | None, *, in_order: bool = False
    ) -> list[Position]:
        """Return which of these entries may be sent, lowest first.

        :param info_of: returns what is known of a queued entry; None: the entries are new
        :param in_order: whether an entry that is held also holds those that follow of its key, or all if its key is not
            known
        """
        if not self.gate.is_on:
            return list(positions)
        admitted: list[Position] = []
        held = _HeldKeys()
        for position in positions:
            info = None if info_of is None else info_of(position)
            size = 0 if info is None else info.batch_size
            is_late = info is None and position in self.due  # its place in the order of its key is not known
            if in_order and not is_late and held.holds(info):
                continue
            if self._may_go(position, size, len(admitted), is_queued=info_of is not None):
                admitted.append(position)
            elif not is_late:
                held.add(info)
        return admitted

    def lets_pass(self, position: Position, batch_size: int, *, is_queued: bool) -> bool:
        """Return whether an entry may be sent, now that it was read."""
        if batch_size <= 1 or not self.gate.is_on or self._may_go(position, batch_size, 0, is_queued=is_queued):
            return True
        if not is_queued:
            self._fresh.add(position)
        return False

    def _may_go(self, position: Position, size: int, before: int, *, is_queued: bool) -> bool:
        """Ask the gate, after ``before`` entries that may be sent and are not in flight yet."""
        gate, growth = self.gate, worst_growth(size)
        is_below = position < self._cursor.highest_acked
        is_lowest = position == self._cursor.next_position
        is_free = is_lowest or (size <= 1 and not self._cursor.adds_range(position))
        if position in self.due:
            if gate.admit_due(before + 1, is_below=is_below, growth=growth) > before:
                return True
            is_free = is_free if is_below else is_lowest
            return is_free and gate.admit_due(1, is_below=is_below, adds_range=False, growth=growth) > 0
        if is_below or (is_queued and position not in self._fresh):
            return is_free or gate.admit_old(before + 1, growth=growth) > before
        return gate.admit_new(before + 1, growth=growth) > before or is_lowest

    def sent(self, position: Position, batch_size: int) -> None:
        """Note that an entry is in flight."""
        self.due.discard(position)
        self._fresh.discard(position)
        if self.gate.is_on:
            self._reserve.add(position, batch_size)

    def came_back(self, positions: Iterable[Position]) -> None:
        """Note that entries are not in flight any more."""
        for position in positions:
            self._reserve.discard(position)

    def acked(self, position: Position) -> None:
        """Note that an entry is acknowledged as a whole."""
        self._reserve.discard(position)
        self.due.discard(position)
        self._fresh.discard(position)

    def passed(self, last: Position) -> None:
        """Note that everything up to and including ``last`` is acknowledged."""
        self.came_back([each for each in self._reserve if each <= last])
        for table in (self.due, self._fresh):
            table.difference_update([each for each in table if each <= last])

    def forget(self, last: Position | None = None) -> None:
        """Forget all entries, or those up to one: they were skipped, or the subscription was moved."""
        if last is not None:
            self.passed(last)
        else:
            self._reserve.clear()
            self.due.clear()
            self._fresh.clear()
        self.gate.reset()


class _HeldKeys:
    """The keys of entries that the gate holds: later entries of these keys have to wait too."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._holds_all = False

    def add(self, info: EntryInfo | None) -> None:
        if info is None:
            self._holds_all = True
        else:
            self._keys.add(info.key_hash)

    def holds(self, info: EntryInfo | None) -> bool:
        return self._holds_all or (info is not None and info.key_hash in self._keys)
