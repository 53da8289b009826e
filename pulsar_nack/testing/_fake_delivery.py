"""Delivery without a broker: the entries of a fake topic, and the inbox of a consumer that they are sent to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ..consumer import Delivery
from ..ids import MessageId, Position


@lru_cache(maxsize=1_024)
def _indexes(count: int) -> frozenset[int]:
    """Return the numbers below ``count``; one object serves all entries of a size, of which there may be millions."""
    return frozenset(range(count))


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """A message as a producer sends it; ``data`` is None for no value. :meth:`FakeTopic.publish_batch` takes it."""

    data: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str | None = None
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FakeEntry:
    """One stored entry, compared by identity; ``number`` is its place in the order of publishing."""

    number: int
    position: Position
    partition: int
    topic: str
    messages: tuple[FakeMessage, ...]
    is_batch: bool
    published_ms: int
    chunks: tuple[Position, ...] = ()

    def message_id(self, index: int) -> MessageId:
        """Return the id of the message at ``index``."""
        ledger, entry = self.position
        if self.is_batch:
            return MessageId(ledger, entry, self.partition, index, batch_size=len(self.messages), topic=self.topic)
        first = MessageId(*self.chunks[0], self.partition, topic=self.topic) if self.chunks else None
        return MessageId(ledger, entry, self.partition, topic=self.topic, first_chunk=first, chunks=self.chunks)

    def all_indexes(self) -> frozenset[int]:
        """Return the indexes of all messages."""
        return _indexes(len(self.messages))

    def delivery(self, index: int, redelivery_count: int) -> Delivery:
        """Return the message at ``index`` as a port delivers it."""
        message = self.messages[index]
        return Delivery(
            id=self.message_id(index),
            data=message.data or b"",
            properties=dict(message.properties),
            key=message.key,
            ordering_key=message.ordering_key,
            redelivery_count=redelivery_count,
            publish_time_ms=self.published_ms,
            event_time_ms=message.event_time_ms,
            topic=self.topic,
            is_null=message.data is None,
        )


_Arrival = tuple[FakeEntry, Collection[int], int, Collection[int]]
"""An entry, the indexes that arrive, their redelivery count, and those that arrive even if they are acknowledged."""


class FakeInbox:
    """The inbox of a consumer of a fake subscription: messages on the way, and here.

    Messages arrive after ``latency`` seconds; one timer serves the next arrival.

    :param is_wanted: asked at the arrival whether a message is still to be received
    :param on_arrival: called for each entry that arrives
    :param queue_size: how many messages may be here or on the way before the broker stops sending
    :param unacked_limit: how many messages may be unacknowledged before the broker stops sending; None: no limit
    """

    def __init__(
        self,
        latency: float,
        is_wanted: Callable[[FakeEntry, int], bool],
        on_arrival: Callable[[FakeEntry], None],
        queue_size: int = 1_000,
        unacked_limit: int | None = None,
    ) -> None:
        self.unacked = 0
        """How many messages of the entries that were sent here are not acknowledged."""
        self.acked_members: dict[FakeEntry, set[int]] = {}
        """The members of each batch that the client has acknowledged since the batch arrived."""
        self._latency = latency
        self._is_wanted = is_wanted
        self._on_arrival = on_arrival
        self._queue_size = queue_size
        self._unacked_limit = unacked_limit
        self._on_the_way: deque[tuple[float, _Arrival]] = deque()
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
        if not self._latency:
            self._receive(entry, indexes, redelivery_count, forced)
            return
        at = asyncio.get_running_loop().time() + self._latency
        self._on_the_way.append((at, (entry, indexes, redelivery_count, forced)))
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
            self._timer = asyncio.get_running_loop().call_at(self._on_the_way[0][0], self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, (entry, indexes, redelivery_count, forced) = self._on_the_way.popleft()
            self._coming -= len(indexes)
            self._receive(entry, indexes, redelivery_count, forced)
        self._set_timer()

    def _receive(
        self, entry: FakeEntry, indexes: Collection[int], redelivery_count: int, forced: Collection[int]
    ) -> None:
        for index in indexes:
            if index in forced or self._is_wanted(entry, index):
                self._here.append(entry.delivery(index, redelivery_count))
                self._changed.set()
        self._on_arrival(entry)
