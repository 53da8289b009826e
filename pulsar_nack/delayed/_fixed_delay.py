"""Notices that all messages have the same delay, so that reading on brings nothing that could be dispatched earlier."""

from __future__ import annotations


class FixedDelayDetector:
    """Whether messages came in order of their time, but for a tick, and each had to wait. All methods O(1)."""

    __slots__ = ("_highest", "has_fixed_delay")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self.has_fixed_delay = True
        self._highest = 0

    def tracked(self, deliver_at: int, tick_ms: int) -> None:
        """A message was taken."""
        if deliver_at > self._highest:
            self._highest = deliver_at
        elif deliver_at < self._highest - tick_ms:
            self.has_fixed_delay = False

    def refused(self) -> None:
        """A message had to be dispatched at once."""
        self.has_fixed_delay = False
