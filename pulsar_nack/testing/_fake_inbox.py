"""What a fake port has received and what is on its way to it; whoever waits for a message waits here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..consumer import Delivery
from ._fake_topic import FakeEntry


class _Arrival(NamedTuple):
    at: float
    entry: FakeEntry
    indexes: Collection[int]
    redelivery_count: int
    forced: Collection[int]


class Inbox:
    """A queue with a way of ``latency`` seconds in front of it: one timer, for the arrival that is next.

    :param is_wanted: asked at the arrival whether a message is to be handed over still
    :param on_arrival: called for each entry that arrives
    """

    def __init__(
        self,
        latency: float,
        is_wanted: Callable[[FakeEntry, int], bool],
        on_arrival: Callable[[FakeEntry], None],
    ) -> None:
        self._latency = latency
        self._is_wanted = is_wanted
        self._on_arrival = on_arrival
        self._on_the_way: deque[_Arrival] = deque()
        self._coming = 0
        self._timer: asyncio.TimerHandle | None = None
        self._here: deque[Delivery] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Return how many messages are here or on the way."""
        return len(self._here) + self._coming

    def send(self, entry: FakeEntry, indexes: Collection[int], redelivery_count: int, forced: Collection[int]) -> None:
        """Put messages of an entry on the way; those in ``forced`` arrive whether they are wanted or not."""
        at = asyncio.get_running_loop().time() + self._latency if self._latency else 0.0
        arrival = _Arrival(at, entry, indexes, redelivery_count, forced)
        if not self._latency:
            self._take_in(arrival)
            return
        self._on_the_way.append(arrival)
        self._coming += len(indexes)
        self._arm()

    async def get(self, check: Callable[[], None]) -> Delivery:
        """Wait for a message and take it; ``check`` is called after each wait and may raise."""
        while not self._here:
            await self._wait()
            check()
        return self._here.popleft()

    def drop(self) -> None:
        """Forget what is here and on the way."""
        self._here.clear()
        self._on_the_way.clear()
        self._coming = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake_all(self) -> None:
        """Let everyone who waits look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _arm(self) -> None:
        if self._timer is None and self._on_the_way:
            self._timer = asyncio.get_running_loop().call_at(self._on_the_way[0].at, self._come_in)

    def _come_in(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._on_the_way and self._on_the_way[0].at <= now:
            arrival = self._on_the_way.popleft()
            self._coming -= len(arrival.indexes)
            self._take_in(arrival)
        self._arm()

    def _take_in(self, arrival: _Arrival) -> None:
        for index in arrival.indexes:
            if index in arrival.forced or self._is_wanted(arrival.entry, index):
                self._here.append(arrival.entry.delivery(index, arrival.redelivery_count))
                self._wake_one()
        self._on_arrival(arrival.entry)

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and self._here:
                self._wake_one()  # the message that this wait was woken for goes to the next one
            raise
        finally:
            self._waiters.remove(waiter)

    def _wake_one(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return
