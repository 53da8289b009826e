"""Admission control: which entries of a subscription the gate admits (PIP-299).

It is asked before entries are read, when the size of a batch is known only if it was read before, and again for a batch
that was just read. If the gate holds the batch then, its size is known, so it is read again only to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..clock import Clock
from ..config import TopicConfig
from ..cursor import Cursor, DispatchGate, Reserve, worst_growth
from ..ids import Position
from ._dispatcher import Dispatcher


class AdmissionControl:
    """The gate of one subscription.

    :param dispatcher: has the entries in flight, which are reserved for, and the queue
    :param config: how large the acknowledgement state may grow, and whether delayed messages that are due wait too
    """

    def __init__(self, cursor: Cursor, dispatcher: Dispatcher, config: TopicConfig, name: str, clock: Clock) -> None:
        reserve = Reserve(cursor.acked_entries)
        self._cursor = cursor
        self._queue = dispatcher.queue
        self.gate = DispatchGate(
            config.cursor.max_per_cursor_metadata_size_in_bytes,
            lambda: cursor.metadata_size_bytes,
            lambda: reserve.bytes,
            hold_due_delayed=config.hold_due_delayed,
            name=name,
            clock=clock,
        )
        if self.gate.is_on:
            dispatcher.reserve = reserve

    def choose(self, positions: Iterable[Position], *, are_queued: bool, in_order: bool = False) -> list[Position]:
        """Return which of these entries may be sent, lowest first.

        :param are_queued: whether they are queued; otherwise they are new
        :param in_order: whether an entry that is held also holds those that follow of its key, or all if its key is not
            known
        """
        if not self.gate.is_on:
            return list(positions)
        admitted: list[Position] = []
        held_keys: set[int] = set()
        holds_all = False
        for position in positions:
            info = self._queue.info(position) if are_queued else None
            is_late = info is None and position in self._queue.due  # its place in the order of its key is not known
            is_behind = holds_all or (info is not None and info.key_hash in held_keys)
            if in_order and is_behind and not is_late:
                continue
            if self._may_go(position, 0 if info is None else info.batch_size, len(admitted), is_queued=are_queued):
                admitted.append(position)
            elif info is not None:
                held_keys.add(info.key_hash)
            elif not is_late:
                holds_all = True
        return admitted

    def lets_pass(self, position: Position, batch_size: int, *, is_queued: bool) -> bool:
        """Return whether an entry may be sent, now that it was read."""
        if batch_size <= 1 or not self.gate.is_on or self._may_go(position, batch_size, 0, is_queued=is_queued):
            return True
        if not is_queued:
            self._queue.still_new.add(position)
        return False

    def _may_go(self, position: Position, size: int, before: int, *, is_queued: bool) -> bool:
        """Ask the gate, after ``before`` entries that may be sent and are not in flight yet."""
        gate, growth = self.gate, worst_growth(size)
        is_below = position < self._cursor.highest_acked
        is_lowest = position == self._cursor.next_position
        is_free = is_lowest or (size <= 1 and not self._cursor.adds_range(position))
        if position in self._queue.due:
            if gate.admit_due(before + 1, is_below=is_below, growth=growth) > before:
                return True
            is_free = is_free if is_below else is_lowest
            return is_free and gate.admit_due(1, is_below=is_below, adds_range=False, growth=growth) > 0
        if is_below or (is_queued and position not in self._queue.still_new):
            return is_free or gate.admit_old(before + 1, growth=growth) > before
        return gate.admit_new(before + 1, growth=growth) > before or is_lowest
