"""Acknowledgement state of a subscription: what is acknowledged, kept small and durable."""

from ._gate import DispatchGate, GateStatistics, adds_range
from ._reserve import Reserve, worst_growth

__all__ = ["DispatchGate", "GateStatistics", "Reserve", "adds_range", "worst_growth"]
