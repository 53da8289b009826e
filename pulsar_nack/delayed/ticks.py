"""The rules of delivery time: which bucket a time rounds to, when a bucket is due, and when to wake up for it. Pure.

Times are integers in ms. With a tick of T ms, buckets are ``2 ** bits`` ms wide with ``bits = floor(log2(T))``. A
message up to the *cutoff* is refused, so the dispatcher delivers it at once. The cutoff is now + T, or now when strict.

- not strict: a bucket holds the times ``key .. key + 2**bits - 1`` and is due when the last of them is at most the
  cutoff. So a message that is handed out would be refused if it were added at that moment. The wake-up is at the key.
- strict: a time is rounded up to the key, and the bucket is due at its key.

A bucket is one integer, ``last << 6 | bits``, where ``last`` is its latest time. It is due when ``last <= cutoff``,
whatever the tick is by then; buckets sort by the time at which they are due, and each keeps its own ``bits``.
"""

from __future__ import annotations

from typing import Final

from ..index import NEVER

__all__ = ["LATEST", "CallPacing", "FixedDelayDetector", "TickRounding"]

_BITS: Final = 6
_ALL_BITS: Final = (1 << _BITS) - 1
LATEST: Final = 1 << 56
"""Later times, after the year two million, count as this one."""


class TickRounding:
    """Rounds times to buckets for one tick (ms, at least 0) and mode."""

    __slots__ = ("_low", "bits", "is_strict", "lead", "tick_ms")

    def __init__(self, tick_ms: int, *, is_strict: bool) -> None:
        self.tick_ms = tick_ms
        self.is_strict = is_strict
        self.bits = max(tick_ms.bit_length() - 1, 0)
        self.lead = 0 if is_strict else tick_ms
        """How long before its time a message may be dispatched."""
        self._low = (1 << self.bits) - 1

    def bucket_of(self, deliver_at: int) -> int:
        """Return the bucket of a time, at most :data:`LATEST`."""
        if deliver_at > LATEST:
            return self.bucket_of(LATEST)
        if self.is_strict:
            return (deliver_at + self._low & ~self._low) << _BITS
        return (deliver_at | self._low) << _BITS | self.bits

    def last_due(self, now_ms: int) -> int:
        """Return the greatest bucket that is due."""
        return (now_ms + self.lead) << _BITS | _ALL_BITS

    def wake_at(self, bucket: int) -> int:
        """Return when to wake up for a bucket: at its key, or when it is due if a shorter tick makes that later."""
        last = bucket >> _BITS
        return last - min((1 << (bucket & _ALL_BITS)) - 1, self.lead)


class CallPacing:
    """When to call the dispatcher for due messages: once for each, and at most once a tick. All methods are O(1).

    The gap is counted from the planned time of a call, so that the lateness of the loop does not accumulate.
    """

    __slots__ = ("_last_at",)

    def __init__(self) -> None:
        self._last_at: int | None = None

    def next_at(self, wake_at: int, now_ms: int, tick_ms: int, *, is_due: bool) -> int:
        """Return when to call for messages, of which the earliest wants a wake-up at ``wake_at``.

        NEVER: they are due, and the dispatcher was called for them already.
        """
        last_at = self._last_at
        if last_at is None:
            return wake_at
        if is_due and wake_at <= last_at:
            return NEVER
        return max(wake_at, min(last_at, now_ms) + tick_ms)

    def note_call(self, planned_at: int, now_ms: int, tick_ms: int) -> None:
        """Note a call at ``now_ms`` that was planned for ``planned_at``."""
        self._last_at = planned_at if now_ms - planned_at < tick_ms else now_ms

    def reset(self) -> None:
        """Forget the last call: the dispatcher is called for messages that are due already."""
        self._last_at = None


class FixedDelayDetector:
    """Pulsar's fixed delay detection: do all messages have the same delay? All methods are O(1).

    They do if each had to wait and their times ascend, up to a tick. Then the messages that are read next wait longer.
    """

    __slots__ = ("_highest", "has_fixed_delay")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all messages."""
        self.has_fixed_delay = True
        self._highest = 0

    def add(self, deliver_at: int, tick_ms: int) -> None:
        """Note a message that was added."""
        if deliver_at > self._highest:
            self._highest = deliver_at
        elif deliver_at < self._highest - tick_ms:
            self.has_fixed_delay = False

    def refuse(self) -> None:
        """Note a message that was dispatched at once."""
        self.has_fixed_delay = False
