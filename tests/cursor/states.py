"""Helpers for tests of acknowledgement states in memory, and of markers."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_nack import Position
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format import MarkerContents


def contents(
    position: tuple[int, int], longs: Mapping[str, int] | None = None, texts: Mapping[str, str] | None = None
) -> MarkerContents:
    """Return the contents of a marker."""
    return MarkerContents(Position(*position), longs or {}, texts or {})


def individually_deleted(state: AckState) -> list[tuple[Position, Position]]:
    """Return the ranges beyond the mark-delete position, in order; each is open below and closed above."""
    states = state.table.states
    return [
        (Position(ledger, first - 1), Position(ledger, last))
        for ledger in sorted(states)
        for first, last in states[ledger].ranges.ranges()
    ]
