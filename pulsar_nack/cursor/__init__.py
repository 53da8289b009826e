"""Acknowledgement state of a subscription: what is acknowledged, kept small and durable."""

from ._cursor import Cursor
from ._gate import DEFAULT_GATE_LIMIT, DispatchGate, GateStatistics, adds_range, check_gate_limit
from ._reserve import Reserve, worst_growth
from ._statistics import CursorStatistics
from .format import BatchSet

__all__ = [
    "DEFAULT_GATE_LIMIT",
    "BatchSet",
    "Cursor",
    "CursorStatistics",
    "DispatchGate",
    "GateStatistics",
    "Reserve",
    "adds_range",
    "check_gate_limit",
    "worst_growth",
]
