"""The acknowledgement state of a subscription, kept small and durable."""

from ._cursor import Cursor
from ._gate import DispatchGate, GateStatistics, Reserve, adds_range, worst_growth
from ._statistics import CursorStatistics
from .format import BatchSet

__all__ = [
    "BatchSet",
    "Cursor",
    "CursorStatistics",
    "DispatchGate",
    "GateStatistics",
    "Reserve",
    "adds_range",
    "worst_growth",
]
