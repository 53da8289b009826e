"""What has arrived at a port and was not received yet, of all its topics, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..consumer import Delivery
from ..ids import MessageId
from ._unread import Unread, read_some


class Source(Protocol):
    """Where deliveries come from: one topic or partition."""

    @property
    def epoch(self) -> int:
        """Return what changes when the broker will send again what has arrived and was not taken."""
        ...

    def taken(self, delivery: Delivery) -> None:
        """Note that a delivery was received, so that there is room for another."""

    def read(self, unread: Unread, messages: int, size: int) -> None:
        """Learn by how many messages and bytes reading has changed what is here."""


class Queued(NamedTuple):
    """Messages that wait, of which none was received.

    :param id: of the first, in the entry of all
    """

    id: MessageId
    messages: int
    bytes: int


class WireInbox:
    """First in, first out. What came before its source lost the connection is dropped: it comes again.

    :param check: called before and after each wait; may raise
    :param before_wait: called when nothing is here, before each wait; may raise too
    """

    def __init__(self, check: Callable[[], None], before_wait: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._before_wait = before_wait
        self._ready: deque[tuple[Any, Source, int]] = deque()
        """Deliveries, and what is not read yet, with its epoch inverted: so the usual case costs one comparison."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._epochs: dict[Source, int] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, found: Delivery | Unread, source: Source) -> None:
        """Take what arrived."""
        epoch = source.epoch
        if self._epochs.get(source) != epoch:
            self.drop(source)
            self._epochs[source] = epoch
        if type(found) is Unread:
            self._ready.append((found, source, ~epoch))
            self.wake_all()
            return
        self._ready.append((found, source, epoch))
        if self._waiters:
            self._wake_one()

    async def get(self) -> Delivery:
        """Wait for a delivery and take it; cancelling it loses none."""
        while True:
            self._check()
            delivery = self.get_nowait()
            if delivery is not None:
                return delivery
            self._before_wait()
            await self._wait()

    def get_nowait(self) -> Delivery | None:
        """Take the next delivery, None if none is here."""
        ready = self._ready
        while ready:
            delivery, source, epoch = ready.popleft()
            if source.epoch == epoch:
                source.taken(delivery)
                return delivery  # type: ignore[no-any-return]
            if source.epoch == ~epoch and not self._read(delivery, source, epoch):
                return None
        return None

    def _read(self, unread: Unread, source: Source, epoch: int) -> bool:
        """Put the next messages of an entry first; return False where there are none yet: waiting calls are woken."""
        if unread.is_opening(self.wake_all):
            self._ready.appendleft((unread, source, epoch))
            return False
        deliveries = read_some(unread, source)
        if unread.messages:
            self._ready.appendleft((unread, source, epoch))
        self._ready.extendleft((delivery, source, ~epoch) for delivery in reversed(deliveries))
        if deliveries or not unread.messages:
            return True
        asyncio.get_running_loop().call_soon(self.wake_all)  # many are not to be shown: after others of the loop
        return False

    def take_out(self, source: Source) -> list[Queued]:
        """Take out what came from one source, but for the rest of a batch of which a part was received."""
        here = [each for each, of, epoch in self._ready if of is source and source.epoch in {epoch, ~epoch}]
        first = here[0].id if here else None
        kept = first[:2] if first is not None and first.batch_index > 0 else None
        self._ready = deque(item for item in self._ready if item[1] is not source or item[0].id[:2] == kept)
        return [_queued(each) for each in here if each.id[:2] != kept]

    def drop(self, source: Source) -> None:
        """Drop what came from one source."""
        if self._epochs.pop(source, None) is not None and self._ready:
            self._ready = deque(item for item in self._ready if item[1] is not source)

    def clear(self) -> None:
        """Drop everything."""
        self._ready.clear()
        self._epochs.clear()

    @property
    def is_awaited(self) -> bool:
        """Return whether a call waits."""
        return bool(self._waiters)

    def wake_all(self) -> None:
        """Let everyone who waits look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and self._ready:
                self._wake_one()  # what this wait was woken for is for the next one
            raise
        finally:
            self._waiters.remove(waiter)

    def _wake_one(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return


def _queued(waiting: Delivery | Unread) -> Queued:
    """Return how much that is."""
    if isinstance(waiting, Unread):
        return Queued(waiting.id, waiting.messages, waiting.bytes)
    return Queued(waiting.id, 1, len(waiting.data))
