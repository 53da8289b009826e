"""Negative acknowledgements in time buckets (PIP-393)."""

from ._events import (
    Cancelled,
    Cleared,
    Closed,
    Hooks,
    Nacked,
    NackEvent,
    NackHook,
    Redelivered,
    RedeliveryFailed,
)
from ._schedule import DueRun, NackSchedule
from ._sender import RedeliveryCallback
from ._statistics import Lateness, NackStatistics
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
