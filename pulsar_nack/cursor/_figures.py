"""Sizes of ledgers' states that are summed up as they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ._ledger_acks import LedgerAcks


class Figure(NamedTuple):
    """Bytes that a ledger's state takes when written and in memory, and its ranges."""

    size: int
    memory: int
    ranges: int


_NOTHING = Figure(0, 0, 0)


class Figures:
    """The sums of all ledgers' figures. A ledger is measured anew when it changed and a sum is asked for.

    :param states: the ledgers in memory
    :param ledger_size: bytes that one ledger's state takes when written; None: not asked for, and 0
    """

    __slots__ = ("_known", "_ledger_size", "_states", "_total", "changed")

    def __init__(self, states: Mapping[int, LedgerAcks], ledger_size: Callable[[LedgerAcks], int] | None) -> None:
        self.changed: set[int] = set()
        """Ledgers that differ from what was measured. Add to it whatever changes."""
        self._states = states
        self._ledger_size = ledger_size
        self._known: dict[int, Figure] = {}
        self._total = _NOTHING

    @property
    def total(self) -> Figure:
        """Return the sums; O(ledgers changed since the last time)."""
        while self.changed:
            ledger = self.changed.pop()
            self._set(ledger, self._measure(ledger))
        return self._total

    def of(self, ledger: int) -> Figure:
        """Return the figures of one ledger."""
        if ledger in self.changed:
            self.changed.remove(ledger)
            self._set(ledger, self._measure(ledger))
        return self._known.get(ledger, _NOTHING)

    def keep_size(self, ledger: int, size: int, ranges: int) -> None:
        """Say what a ledger takes that is not in memory."""
        self.changed.discard(ledger)
        self._set(ledger, Figure(size, 0, ranges))

    def _measure(self, ledger: int) -> Figure:
        acks = self._states.get(ledger)
        if acks is None:
            return _NOTHING
        size = 0 if self._ledger_size is None else self._ledger_size(acks)
        return Figure(size, acks.memory_bytes, acks.ranges.range_count)

    def _set(self, ledger: int, figure: Figure) -> None:
        before = self._known.pop(ledger, _NOTHING)
        if figure is not _NOTHING:
            self._known[ledger] = figure
        total = self._total
        self._total = Figure(*(sum_ - old + new for sum_, old, new in zip(total, before, figure, strict=True)))
