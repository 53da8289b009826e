"""The rules of time: which bucket a time falls into, when a bucket is due, when to wake up for it. Pure.

Times are integers in ms. With a tick of T ms buckets are ``2 ** bits`` ms wide, ``bits = floor(log2(T))``, and a
message is refused, that is dispatched at once, up to the *cutoff*: now + T, or now when strict.

- not strict: a bucket holds the times ``key .. key + 2**bits - 1`` and is due when the last of them is at most the
  cutoff. So what is handed out would be refused if it were added at that moment. The wake-up comes at the key.
- strict: the time is rounded up to the key and the bucket is due at its key.

A bucket is one integer, ``last << 6 | bits``, with ``last`` the latest time in it: it is due when ``last <= cutoff``
whatever the tick is now, its order is that of coming due, and it keeps the bits that it was made with.
"""

from __future__ import annotations

from typing import Final

_BITS: Final = 6
_ALL_BITS: Final = (1 << _BITS) - 1
LATEST: Final = 1 << 56
"""Times later than this, in the year two million, count as this."""


class Ticks:
    """The rules for one tick (ms, at least 0) and mode."""

    __slots__ = ("_low", "bits", "is_strict", "lead", "tick_ms")

    def __init__(self, tick_ms: int, *, is_strict: bool) -> None:
        self.tick_ms = tick_ms
        self.is_strict = is_strict
        self.bits = max(tick_ms.bit_length() - 1, 0)
        self.lead = 0 if is_strict else tick_ms
        """How long before its time a message may be dispatched."""
        self._low = (1 << self.bits) - 1

    def bucket_of(self, deliver_at: int) -> int:
        """Return the bucket of a time. Times later than the year two million count as that."""
        if deliver_at > LATEST:
            return self.bucket_of(LATEST)
        if self.is_strict:
            return (deliver_at + self._low & ~self._low) << _BITS
        return (deliver_at | self._low) << _BITS | self.bits

    def last_due(self, now_ms: int) -> int:
        """Return the greatest bucket that is due."""
        return (now_ms + self.lead) << _BITS | _ALL_BITS

    def wake_at(self, bucket: int) -> int:
        """Return when to wake up for a bucket: at its key, or when it is due where a shorter tick makes that later."""
        last = bucket >> _BITS
        return last - min((1 << (bucket & _ALL_BITS)) - 1, self.lead)
