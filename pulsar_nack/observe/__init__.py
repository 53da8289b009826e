"""Optional integrations; each imports its package only when it is used, and none configures anything.

A hook is any callable that takes one event, see :data:`~pulsar_nack.consumer.ConsumerHook`; pass hooks to a consumer.
A :class:`TraceWriter` writes their events to files.
"""

from ._broker_metrics import CursorMetrics, DelayedMetrics
from ._consumer_metrics import ConsumerMetrics
from ._log_hooks import logging_hook, structlog_hook
from ._message_spans import MessageSpans
from ._trace import TraceStatistics, TraceWriter

__all__ = [
    "ConsumerMetrics",
    "CursorMetrics",
    "DelayedMetrics",
    "MessageSpans",
    "TraceStatistics",
    "TraceWriter",
    "logging_hook",
    "structlog_hook",
]
