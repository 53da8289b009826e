"""What a tracker counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 1024


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late recent commands went out: ms between the start of a command's earliest bucket and its sending.

    Over the last 1 024 commands that were no retries; all 0 before the first.
    """

    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """A snapshot of a tracker; totals count since it was entered.

    :param pending: ids that wait for their time, ``retrying`` included
    :param retrying: ids whose callback failed and that wait for their next try
    :param in_flight: ids that a callback has in hand
    :param held: what counts against ``max_held``: pending, in flight, and places given to callers about to use them
    :param waiting: callers of ``nack()`` that wait for room
    :param buckets: time buckets that hold something
    :param bytes: memory of the pending ids, as the index counts it
    :param wakeups: times the timer fired, ``early_wakeups`` of these before its time (it was set again)
    :param nacked: ids that were nacked, those pending already included
    :param sent: ids that the callback took
    :param commands: calls of the callback, ``failed_commands`` of these raised, ``retries`` were tries after a failure
    :param cancelled: pending ids taken out by an acknowledgement
    :param cleared: pending ids dropped by ``clear()``
    :param hook_errors: events on which a hook raised
    :param last_error: the callback's last error as text
    :param lateness: see :class:`Lateness`
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
    """The totals, while they grow."""

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
        """Return the percentiles of the recent commands."""
        late = sorted(self.late_ms)
        if not late:
            return Lateness()
        last = len(late) - 1
        return Lateness(late[last // 2], late[-(-last * 99 // 100)], late[last])
