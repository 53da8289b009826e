"""Epoch time that never goes back, neither while it runs nor behind what a log says."""

from __future__ import annotations

from ...clock import Clock


class Epoch:
    """The wall clock in epoch ms; set back, it goes on from where it was.

    So no deadline moves further away than it was: what remains of a delay is at most the delay.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shift_ms = 0
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return the present time, at least that of the last call."""
        now_ms = self._clock.now_ms() + self._shift_ms
        if now_ms < self._last_ms:
            self._shift_ms += self._last_ms - now_ms
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    def note(self, at_ms: int) -> None:
        """Never return less than this from now on."""
        self._last_ms = max(self._last_ms, at_ms)
