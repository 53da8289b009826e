"""Permits: how many messages the broker may send before it hears that there is room for more. Pure.

The broker counts down by the messages of what it sends, less those of a batch that are acknowledged already, and may go
below 0 by a batch. Whatever became of a message here, it is given back once: taken, dropped, or never shown.
"""

from __future__ import annotations


class Permits:
    """Of one consumer while it is subscribed.

    :param size: most messages that are here or on their way
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._threshold = max(size // 2, 1)
        self._free = 0
        self._out = 0

    def start(self) -> int:
        """Return what to permit after subscribing; what was before does not count any more."""
        self._free = 0
        self._out = self.size
        return self.size

    def used(self, messages: int) -> None:
        """Note what the broker has sent."""
        self._out -= messages

    def free(self, messages: int) -> int:
        """Note that there is room again for so many; return what to permit now, 0: wait for more."""
        self._free += messages
        if self._free < self._threshold:
            return 0
        permits, self._free = self._free, 0
        self._out += permits
        return permits

    @property
    def out(self) -> int:
        """Return how many more messages the broker may send; below 0 after a batch that was larger than this."""
        return self._out
