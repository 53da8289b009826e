"""Positions and time: the only place that knows pyroaring and sortedcontainers."""

from ._buckets import TimeBuckets
from ._due import DueIds
from ._entries import as_entries
from ._front import NEVER, Front
from ._slots import Slot

__all__ = ["NEVER", "DueIds", "Front", "Slot", "TimeBuckets", "as_entries"]
