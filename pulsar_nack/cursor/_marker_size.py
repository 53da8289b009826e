"""How large a cursor's marker is: measured when the number of ledgers has changed noticeably, else in proportion."""

from __future__ import annotations

from typing import Final

from ._acks import AckState
from ._chain import whole_size

_CLOSE: Final = 64


class MarkerSize:
    """The bytes of the marker that would name all ledgers of a state."""

    def __init__(self, state: AckState) -> None:
        self._state = state
        self._count = -1
        self._size = 0

    def now(self) -> int:
        """Return them, within a 64th of what ledgers add; O(1) but for one call in many."""
        state = self._state
        count = len(state.ledger_states) + len(state.evicted)
        if _CLOSE * abs(count - self._count) > self._count:
            self._count = count
            self._size = whole_size(state.mark_delete_position, [*state.ledger_states, *state.evicted])
        return self._size * (count + _CLOSE) // (self._count + _CLOSE)
