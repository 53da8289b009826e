"""Flow control: how many messages the broker may send before this consumer reports that there is room for more. Pure.

The broker subtracts from a consumer's permits the messages of each entry that it sends, except members of a batch that
are already acknowledged. The count may fall below 0 by the size of a batch. Whatever happens to a message here (taken,
dropped or never delivered), its permit is returned exactly once.

Each permit is in one of three places: *out* at the broker, *free* here, or with a message that is here and not taken;
together they are ``size``. While no message is here at least one permit is out, even if memory is short, except while
permits are held: while the consumer is paused, or has no queue and no call waits.

Other clients return permits when half of them are free. In measurements a broker sent a long backlog of small messages
a tenth to a third faster when it got back a twentieth at a time, at no cost that shows here.

Free memory is shared evenly: each consumer lets the broker send as many messages as fit into its share, judged by the
mean size of its messages so far. Until it knows that, it assumes the largest size that the broker allows. So prefetched
messages stay within the limit while sizes are alike; if sizes grow suddenly, or all consumers fill up together, they
exceed it by what was permitted before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_RETURN_AT_ONCE: Final = 50
"""Permits are returned in groups of this size, or of half or a twentieth of all permits where that fits better."""


class MemoryLimitController:
    """The memory that the prefetched messages of all consumers of one client take.

    :param max_bytes: the limit; None: no limit
    """

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        """Size of the payloads that are here and not taken."""
        self.consumers = 0
        """How many consumers share the memory: those that are subscribed."""

    def fitting(self, mean_bytes: int) -> int:
        """Return how many more messages of this mean size fit into one consumer's share."""
        assert self.max_bytes is not None
        return max(self.max_bytes - self.bytes, 0) // (max(self.consumers, 1) * max(mean_bytes, 1))


class Permits:
    """The permits of one consumer while it is subscribed.

    :param size: most messages that are here or on their way
    :param fitting: returns how many more messages fit into memory; None: any number
    """

    def __init__(self, size: int, fitting: Callable[[], int] | None = None) -> None:
        self.size = size
        self._fitting = fitting
        self._free = 0
        self.out = 0
        """How many more messages the broker may send; below 0 after a batch that was larger than this."""
        self.is_held = False
        """While it is True no permits are given, even if some are free."""
        self._give_at = 1

    def start(self) -> int:
        """Forget the permits of an earlier session; return how many to give the broker after subscribing."""
        self.out = 0
        self._free = self.size
        return self.give()

    def used(self, messages: int) -> None:
        """Note that the broker sent messages."""
        self.out -= messages

    def free(self, messages: int) -> int:
        """Note that there is room for more messages; return how many permits to give now, 0: wait for more."""
        self._free += messages
        return 0 if self._free < self._give_at else self.give()

    def give(self) -> int:
        """Return how many permits to give now: those that are free, as far as memory allows."""
        if self.is_held:
            return 0
        fits = self.size if self._fitting is None else min(self._fitting(), self.size)
        least = 1 if self._free + self.out >= self.size else self.out  # to be out then: nothing is here
        given = max(min(fits, self._free + self.out), least, self.out) - self.out
        self._free -= given
        self.out += given
        at_once = max(min(fits // 2, _RETURN_AT_ONCE), fits // 20, 1)
        self._give_at = min(self._free + at_once, self.size)
        return given
