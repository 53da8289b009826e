"""What has arrived at a port and was not received yet, of all its topics, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ...consumer import Delivery
from ...consumer._port import bytes_of
from ...ids import MessageId
from ._delivery import Item
from ._unread import Reading, Unread, read_some


class Source(Reading, Protocol):
    """Where deliveries come from: one topic or partition."""

    @property
    def epoch(self) -> int:
        """Return what changes when the broker will send again what has arrived and was not taken."""
        ...

    def opened(self, item: Item) -> Delivery:
        """Return the delivery of an item."""
        ...

    def taken(self, item: Item) -> Delivery:
        """Return the delivery of an item that a call receives, and note that there is room for another."""
        ...


class Queued(NamedTuple):
    """Messages of one entry, none of which was received.

    :param id: the id of the first
    """

    id: MessageId
    messages: int
    bytes: int


class WireInbox:
    """A queue of messages. Those that came before their source lost its connection are dropped: they come again.

    For a queued message nothing is made that the garbage collector tracks, until its entry is read.

    :param check: called before and after each wait; may raise
    :param before_wait: called when nothing is here, before each wait; may raise too
    """

    def __init__(self, check: Callable[[], None], before_wait: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._before_wait = before_wait
        self._ready: deque[Item | Unread] = deque()
        self._sources: deque[Source] = deque()  # the source of each item in _ready
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._epochs: dict[Source, int] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, item: Item | Unread, source: Source) -> None:
        """Take what arrived."""
        epoch = source.epoch
        if self._epochs.get(source) != epoch:
            self.drop(source)
            self._epochs[source] = epoch
        self._ready.append(item)
        self._sources.append(source)
        if self._waiters:
            self.wake_all() if type(item) is Unread else self._wake_one()

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
        ready, sources = self._ready, self._sources
        while ready:
            item, source = ready.popleft(), sources.popleft()
            if source.epoch != self._epochs[source]:
                continue
            try:
                if type(item) is not Unread:
                    return source.taken(item)  # type: ignore[arg-type]
                if not self._read(item, source):
                    return None
            except BaseException:  # such as a lack of memory or threads: another call reads it
                self._put_first([item], source)
                self.wake_all()
                raise
        return None

    def _read(self, unread: Unread, source: Source) -> bool:
        """Put the next messages of an entry first; False: there are none yet, and waiting calls are woken later."""
        if unread.is_opening(self.wake_all):
            self._put_first([unread], source)
            return False
        deliveries = read_some(unread, source)
        if unread.messages:
            self._put_first([unread], source)
        self._put_first(deliveries, source)
        if deliveries or not unread.messages:
            return True
        asyncio.get_running_loop().call_soon(self.wake_all)  # many were hidden: let others run first
        return False

    def _put_first(self, items: Sequence[Item | Unread], source: Source) -> None:
        self._ready.extendleft(reversed(items))
        self._sources.extendleft([source] * len(items))

    def take_out(self, source: Source) -> list[Queued]:
        """Take out what came from one source, but for the rest of a batch of which a part was received."""
        if self._epochs.get(source) != source.epoch:
            self.drop(source)
        out = [each if isinstance(each, Unread) else source.opened(each) for each, of in self._items() if of is source]
        self.drop(source)
        kept = out[0].id[:2] if out and out[0].id.batch_index > 0 else None
        for each in out:
            if each.id[:2] == kept:
                self.put(each, source)
        return [_queued(each) for each in out if each.id[:2] != kept]

    def drop(self, source: Source) -> None:
        """Drop what came from one source."""
        if self._epochs.pop(source, None) is not None and self._ready:
            left = [(item, other) for item, other in self._items() if other is not source]
            self._ready = deque(item for item, _ in left)
            self._sources = deque(other for _, other in left)

    def _items(self) -> Iterator[tuple[Item | Unread, Source]]:
        return zip(self._ready, self._sources, strict=True)

    def clear(self) -> None:
        """Drop everything."""
        self._ready.clear()
        self._sources.clear()
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
    if isinstance(waiting, Unread):
        return Queued(waiting.id, waiting.messages, waiting.bytes)
    return Queued(waiting.id, 1, bytes_of(waiting))
