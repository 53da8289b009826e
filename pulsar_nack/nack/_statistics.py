"""The figures of a tracker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 1024


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late calls of the callback were: ms between the start of their earliest bucket and the call.

    Over the last 1 024 calls that were not retries; all 0 before the first.
    """

    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """A snapshot of a tracker; totals count since it was entered.

    :param pending: ids that are not due, including ``retrying``
    :param retrying: ids for which the callback failed and that wait for a retry
    :param in_flight: ids that the callback is processing
    :param held: what counts against ``max_held``: pending, in flight, and places of callers that were just woken
    :param waiting: callers of ``nack()`` that wait because ``max_held`` ids are held
    :param buckets: time buckets that are not empty
    :param bytes: estimated memory of the pending ids
    :param wakeups: how often the timer fired; ``early_wakeups`` of these came too early, and it was set again
    :param nacked: ids that were nacked, including those that were pending
    :param sent: ids that the callback took
    :param commands: calls of the callback; ``failed_commands`` of these raised, ``retries`` were retries
    :param cancelled: pending ids removed by an acknowledgement
    :param cleared: pending ids dropped by ``clear()``
    :param hook_errors: events for which a hook raised
    :param last_error: the last error of the callback as text
    :param lateness: see :class:`~pulsar_nack.nack.Lateness`
    """

    pending: int
    retrying: int
    in_flight: int
    held: int
    waiting: int
    buckets: int
    bytes: int
    wakeups: int
    early_wakeups: int
    nacked: int
    sent: int
    commands: int
    failed_commands: int
    retries: int
    cancelled: int
    cleared: int
    hook_errors: int
    last_error: str | None
    lateness: Lateness


@dataclass(slots=True)
class Counters:
    """The running totals."""

    wakeups: int = 0
    nacked_again: int = 0
    sent: int = 0
    commands: int = 0
    failed_commands: int = 0
    retries: int = 0
    cancelled: int = 0
    cleared: int = 0
    last_error: str | None = None
    late_ms: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def lateness(self) -> Lateness:
        """Return the percentiles of the recent calls."""
        late = sorted(self.late_ms)
        if not late:
            return Lateness()
        last = len(late) - 1
        return Lateness(late[last // 2], late[-(-last * 99 // 100)], late[last])
