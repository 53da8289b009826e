"""Which ledgers of a cursor are in memory, and which go first when they take too much (PIP-81).

The order is that of their last use. A ledger is on storage as it is in memory before it may go; so one that is dirty,
or on its way to storage, stays for now, and the caller writes first. The one used last always stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from ._acks import AckState

_SPARE: Final = 64


class LedgerCache:
    """The ledgers in memory of one cursor, by their last use.

    :param limit: bytes that they may take; None: no bound
    """

    def __init__(self, state: AckState, limit: int | None) -> None:
        self.evictions = 0
        self.limit = limit
        self._state = state
        self._order: OrderedDict[int, None] = OrderedDict()

    @property
    def excess(self) -> int:
        """Return how many bytes too many are in memory, below 1 when they fit. One ledger always fits."""
        if self.limit is None or len(self._state.ledger_states) < 2:
            return 0
        return self._state.memory_bytes - self.limit

    def use(self, ledger: int) -> None:
        """Note that a ledger is used. O(1)."""
        order = self._order
        if ledger in order:
            order.move_to_end(ledger)
        else:
            order[ledger] = None
            if len(order) > 2 * len(self._state.ledger_states) + _SPARE:
                self._oldest()

    def use_all(self, ledgers: Iterable[int]) -> None:
        """Note that ledgers are used, the last one last."""
        for ledger in ledgers:
            self.use(ledger)

    def evict(self, kept: Collection[int]) -> bool:
        """Put ledgers out of memory, least recently used first, until the rest fits; return whether it does.

        :param kept: those that must stay, beside the dirty ones
        """
        if self.excess <= 0:
            return True
        state = self._state
        for ledger in self._oldest():
            if ledger not in state.dirty and ledger not in kept:
                state.evict(ledger)
                self._order.pop(ledger, None)
                self.evictions += 1
                if self.excess <= 0:
                    return True
        return False

    def _oldest(self) -> list[int]:
        """Return the ledgers in memory, least recently used first, without the last one; forget those that went."""
        states = self._state.ledger_states
        unknown = [ledger for ledger in states if ledger not in self._order]
        for ledger in unknown:
            self._order[ledger] = None
            self._order.move_to_end(ledger, last=False)
        for ledger in [ledger for ledger in self._order if ledger not in states]:
            del self._order[ledger]
        return list(self._order)[:-1]
