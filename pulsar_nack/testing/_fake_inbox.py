"""A consumer of a fake subscription: the entries that it holds, and the messages here and on the way to its port."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..consumer import Delivery
from ._fake_entry import FakeEntry


class _Arrival(NamedTuple):
    at: float
    entry: FakeEntry
    indexes: Collection[int]
    redelivery_count: int
    forced: Collection[int]


class FakeInbox:
    """A queue that messages reach after ``latency`` seconds: one timer, for the next arrival.

    :param is_wanted: asked at the arrival whether a message is still to be received
    :param on_arrival: called for each entry that arrives
    :param queue_size: the broker sends nothing while so many messages are here or on the way
    :param unacked_limit: the broker sends nothing while so many messages are unacknowledged; None: no limit
    """

    def __init__(
        self,
        latency: float,
        is_wanted: Callable[[FakeEntry, int], bool],
        on_arrival: Callable[[FakeEntry], None],
        queue_size: int = 1_000,
        unacked_limit: int | None = None,
    ) -> None:
        self.held: dict[FakeEntry, None] = {}
        """The entries that were sent here and are not acknowledged."""
        self.unacked = 0
        """How many of their messages are not acknowledged."""
        self.acked_members: dict[FakeEntry, set[int]] = {}
        """What the client has acknowledged of each batch since the batch arrived."""
        self._latency = latency
        self._is_wanted = is_wanted
        self._on_arrival = on_arrival
        self._queue_size = queue_size
        self._unacked_limit = unacked_limit
        self._on_the_way: deque[_Arrival] = deque()
        self._coming = 0
        self._timer: asyncio.TimerHandle | None = None
        self._here: deque[Delivery] = deque()
        self._changed = asyncio.Event()

    def has_room(self) -> bool:
        """Return whether the broker may send an entry."""
        if self._unacked_limit is not None and self.unacked >= self._unacked_limit:
            return False
        return len(self._here) + self._coming < self._queue_size

    def send(self, entry: FakeEntry, indexes: Collection[int], redelivery_count: int, forced: Collection[int]) -> None:
        """Put messages of an entry on the way; those in ``forced`` arrive even if they are acknowledged by then."""
        at = asyncio.get_running_loop().time() + self._latency if self._latency else 0.0
        arrival = _Arrival(at, entry, indexes, redelivery_count, forced)
        if not self._latency:
            self._receive(arrival)
            return
        self._on_the_way.append(arrival)
        self._coming += len(indexes)
        self._set_timer()

    async def get(self, check: Callable[[], None]) -> Delivery:
        """Wait for a message and take it; ``check`` is called after each wait and may raise."""
        while not self._here:
            self._changed.clear()
            await self._changed.wait()
            check()
        return self._here.popleft()

    def drop(self) -> None:
        """Forget the messages here and on the way, and what the client has noted of batches."""
        self._here.clear()
        self._on_the_way.clear()
        self._coming = 0
        self.acked_members.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake_all(self) -> None:
        """Let all waiting calls check again."""
        self._changed.set()

    def _set_timer(self) -> None:
        if self._timer is None and self._on_the_way:
            self._timer = asyncio.get_running_loop().call_at(self._on_the_way[0].at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._on_the_way and self._on_the_way[0].at <= now:
            arrival = self._on_the_way.popleft()
            self._coming -= len(arrival.indexes)
            self._receive(arrival)
        self._set_timer()

    def _receive(self, arrival: _Arrival) -> None:
        for index in arrival.indexes:
            if index in arrival.forced or self._is_wanted(arrival.entry, index):
                self._here.append(arrival.entry.delivery(index, arrival.redelivery_count))
                self._changed.set()
        self._on_arrival(arrival.entry)
