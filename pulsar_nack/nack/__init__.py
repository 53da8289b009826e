"""Negative acknowledgements in time buckets (PIP-393)."""

from ._reports import (
    Cancelled,
    Cleared,
    Closed,
    Hooks,
    Lateness,
    Nacked,
    NackEvent,
    NackHook,
    NackStatistics,
    Redelivered,
    RedeliveryFailed,
)
from ._schedule import DueRun, NackSchedule
from ._sender import RedeliveryCallback
from ._tracker import NegativeAcksTracker

__all__ = [
    "Cancelled",
    "Cleared",
    "Closed",
    "DueRun",
    "Hooks",
    "Lateness",
    "NackEvent",
    "NackHook",
    "NackSchedule",
    "NackStatistics",
    "Nacked",
    "NegativeAcksTracker",
    "Redelivered",
    "RedeliveryCallback",
    "RedeliveryFailed",
]
