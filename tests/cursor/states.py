"""Helpers for tests of acknowledgement states in memory."""

from __future__ import annotations

from pulsar_nack import Position
from pulsar_nack.cursor._acks import AckState


def individually_deleted(state: AckState) -> list[tuple[Position, Position]]:
    """Return the ranges beyond the mark-delete position, in order; each is open below and closed above."""
    states = state.table.states
    return [
        (Position(ledger, first - 1), Position(ledger, last))
        for ledger in sorted(states)
        for first, last in states[ledger].ranges.ranges()
    ]
