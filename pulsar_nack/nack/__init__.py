"""Negative acknowledgements in time buckets (PIP-393)."""

from ._events import (
    Cancelled,
    Cleared,
    Closed,
    HookLike,
    Nacked,
    NackEvent,
    NackHook,
    Redelivered,
    RedeliveryFailed,
)
from ._schedule import DueRun, NackSchedule

__all__ = [
    "Cancelled",
    "Cleared",
    "Closed",
    "DueRun",
    "HookLike",
    "NackEvent",
    "NackHook",
    "NackSchedule",
    "Nacked",
    "Redelivered",
    "RedeliveryFailed",
]
