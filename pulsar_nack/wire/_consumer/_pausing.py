"""Gives back what a paused consumer has fetched ahead, and what still comes by permits that the broker has.

Only a new session takes permits back, which there is once nothing is in work. Until then what comes by them goes back
after a moment, and after ten times as long each time that it comes again: a broker may have no other consumer for it,
and counts each return as a redelivery. Those of messages that come here later are left out of the count. Once no
permits are out all goes back for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

Place = tuple[int, int]
"""Ledger and entry."""

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 100.0
_MOST_KNOWN: Final = 10_000


class Pausing:
    """The entries that one consumer gives back while it is subscribed.

    :param give_back: asks the broker to send entries again, to any consumer
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, give_back: Callable[[Sequence[Place]], None]) -> None:
        self.is_paused = False
        self.is_in_use = False
        """Whether deliveries concern this: it is paused, or has given entries back."""
        self._loop = loop
        self._give_back = give_back
        self._times: dict[Place, int] = {}
        self._here: dict[Place, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def pause(self) -> None:
        """Give back what comes from now on."""
        self.is_paused = True
        self._note()

    def resume(self) -> None:
        """Give back what has come, and nothing after that."""
        self._return(list(self._here))
        self.is_paused = False
        self._note()

    def arrived(self, places: Iterable[Place], *, is_last: bool) -> None:
        """Note entries that came while it is paused.

        :param is_last: nothing more comes
        """
        now = self._loop.time()
        for place in places:
            due_at = now + min(_FIRST_S * 10 ** self._times.get(place, 0), _LONGEST_S)
            self._here[place] = due_at
            if self._timer is None or due_at < self._timer.when():
                self._arm(due_at)
        if is_last:
            self._return(list(self._here))

    def give_back(self, places: Sequence[Place]) -> None:
        """Give back entries that were not shown."""
        for place in places:
            self._times[place] = self._times.pop(place, 0) + 1
        for oldest in list(self._times)[: max(len(self._times) - _MOST_KNOWN, 0)]:
            del self._times[oldest]
        if places:
            self._note()
            self._give_back(places)

    def returned(self, place: Place) -> int:
        """Return how often an entry was given back without having been shown."""
        return self._times.get(place, 0)

    def forget(self) -> None:
        """Forget what came, and the counts: the session has ended, and the broker gives everything out again."""
        self._here.clear()
        self._times.clear()
        self._arm(None)
        self._note()

    def _return(self, places: Sequence[Place]) -> None:
        for place in places:
            del self._here[place]
        self._arm(min(self._here.values(), default=None))
        self.give_back(places)

    def _return_due(self) -> None:
        now = self._loop.time()
        self._return([place for place, due_at in self._here.items() if due_at <= now])

    def _arm(self, due_at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due_at is None else self._loop.call_at(due_at, self._return_due)

    def _note(self) -> None:
        self.is_in_use = self.is_paused or bool(self._times)
