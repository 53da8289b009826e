"""Permits: how many messages the broker may send before it hears that there is room for more. Pure.

The broker counts down by the messages of what it sends, less those of a batch that are acknowledged already, and may go
below 0 by a batch. Whatever became of a message here, it is given back once: taken, dropped, or never shown.

Each permit is in one of three places: *out* at the broker, *free* here, or with a message that is here and not taken;
together they are ``size``. Where nothing is here one at least is out, whatever memory there is, unless they are held:
while the consumer is paused, and of one without a queue while no call waits.

Other clients give permits back when half of all are free. Measured, a broker sends a long backlog of small messages a
tenth to a third faster when it hears of a twentieth at a time, which costs nothing that shows here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_GIVEN_AT_ONCE: Final = 50
"""So many permits go back together, unless half of all or a twentieth of all is the better number."""


class Permits:
    """Of one consumer while it is subscribed.

    :param size: most messages that are here or on their way
    :param fitting: tells for how many more messages there is memory; None: for all
    """

    def __init__(self, size: int, fitting: Callable[[], int] | None = None) -> None:
        self.size = size
        self._fitting = fitting
        self._free = 0
        self.out = 0
        """How many more messages the broker may send; below 0 after a batch that was larger than this."""
        self.is_held = False
        """While it is, none are given, whatever is free."""
        self._give_at = 1

    def start(self) -> int:
        """Return what to permit after subscribing; what was before does not count any more."""
        self.out = 0
        self._free = self.size
        return self.give()

    def used(self, messages: int) -> None:
        """Note what the broker has sent."""
        self.out -= messages

    def free(self, messages: int) -> int:
        """Note that there is room again for so many; return what to permit now, 0: wait for more."""
        self._free += messages
        return 0 if self._free < self._give_at else self.give()

    def give(self) -> int:
        """Return what to permit now: what is free, as far as there is memory for it."""
        if self.is_held:
            return 0
        fits = self.size if self._fitting is None else min(self._fitting(), self.size)
        least = 1 if self._free + self.out >= self.size else self.out  # to be out then: nothing is here
        given = max(min(fits, self._free + self.out), least, self.out) - self.out
        self._free -= given
        self.out += given
        at_once = max(min(fits // 2, _GIVEN_AT_ONCE), fits // 20, 1)
        self._give_at = min(self._free + at_once, self.size)
        return given
