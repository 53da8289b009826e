"""Optional integrations, one per file; none is imported unless it is asked for, and none configures anything.

A hook is any callable that takes one :data:`~pulsar_nack.nack.NackEvent`; give them to a tracker or consumer.
A :class:`TraceWriter` writes what they do to files.
"""

from ._cursor_metrics import CursorMetrics
from ._delayed_metrics import DelayedMetrics
from ._logging import logging_hook
from ._structlog import structlog_hook
from ._trace import TraceStatistics, TraceWriter

__all__ = ["CursorMetrics", "DelayedMetrics", "TraceStatistics", "TraceWriter", "logging_hook", "structlog_hook"]
