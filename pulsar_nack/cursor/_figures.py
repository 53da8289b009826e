"""Sizes of ledgers' states that are summed up as they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ._ledger_acks import LedgerAcks

_NOTHING: Final = 0, 0, 0


class Figures:
    """Sums over all ledgers: bytes when written, bytes in memory, ranges.

    A ledger is measured anew when it has changed and a sum is asked for. So asking after each acknowledgement measures
    one ledger, and acknowledging a thousand times before asking measures each ledger once.

    :param states: the ledgers in memory
    :param ledger_size: bytes that one ledger's state takes when written; None: not asked for, and 0
    """

    __slots__ = ("_known", "_ledger_size", "_memory", "_ranges", "_size", "_states", "_unsized", "changed")

    def __init__(self, states: Mapping[int, LedgerAcks], ledger_size: Callable[[LedgerAcks], int] | None) -> None:
        self.changed: set[int] = set()
        """Ledgers that differ from what was measured. Add to it whatever changes."""
        self._states = states
        self._ledger_size = ledger_size
        self._known: dict[int, tuple[int, int, int]] = {}
        self._size = self._memory = self._ranges = 0
        self._unsized: set[int] = set()
        """Ledgers whose bytes when written are not measured yet: that takes much longer than the rest."""

    @property
    def size(self) -> int:
        """Return the bytes of all ledgers when written; O(ledgers that changed)."""
        if self.changed:
            self._measure()
        while self._unsized:
            self._measure_size(self._unsized.pop())
        return self._size

    @property
    def memory(self) -> int:
        """Return the bytes of the ledgers in memory; O(ledgers that changed)."""
        if self.changed:
            self._measure()
        return self._memory

    @property
    def ranges(self) -> int:
        """Return how many ranges there are; O(ledgers that changed)."""
        if self.changed:
            self._measure()
        return self._ranges

    def leave_memory(self, ledger: int) -> None:
        """Say that a ledger stays on storage only: it takes no memory from now on."""
        self._measure()
        if ledger in self._unsized:
            self._measure_size(ledger)
        size, _, ranges = self._known.get(ledger, _NOTHING)
        self.keep(ledger, size, ranges)

    def keep(self, ledger: int, size: int, ranges: int) -> None:
        """Say what a ledger takes that is on storage only."""
        self.changed.discard(ledger)
        self._unsized.discard(ledger)
        self._set(ledger, size, 0, ranges)

    def _measure(self) -> None:
        """Measure what is quickly found."""
        while self.changed:
            ledger = self.changed.pop()
            acks = self._states.get(ledger)
            if acks is None:
                self._unsized.discard(ledger)
                self._set(ledger, 0, 0, 0)
            else:
                self._unsized.add(ledger)
                self._set(ledger, self._known.get(ledger, _NOTHING)[0], acks.memory_bytes, acks.ranges.range_count)

    def _measure_size(self, ledger: int) -> None:
        _, memory, ranges = self._known.get(ledger, _NOTHING)
        acks = self._states.get(ledger)
        size = 0 if acks is None or self._ledger_size is None else self._ledger_size(acks)
        self._unsized.discard(ledger)
        self._set(ledger, size, memory, ranges)

    def _set(self, ledger: int, size: int, memory: int, ranges: int) -> None:
        old_size, old_memory, old_ranges = self._known.get(ledger, _NOTHING)
        self._size += size - old_size
        self._memory += memory - old_memory
        self._ranges += ranges - old_ranges
        if size or memory or ranges:
            self._known[ledger] = size, memory, ranges
        else:
            self._known.pop(ledger, None)
