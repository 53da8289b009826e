"""The prefetched messages of all topics of a port, and the calls that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..._waiting import WaitingCalls
from ...consumer import Delivery
from ._deliveries import QueuedMessage
from ._entry_reader import UnreadEntry
from ._receiver_queue import ReceiverQueue


class WireInbox:
    """One queue for the messages of several topics.

    Messages that came before their topic's consumer lost its connection are dropped, because they come again. Nothing
    that the garbage collector tracks is made for a queued message until its entry is read.

    :param check: called before and after each wait; may raise
    :param before_wait: called before each wait, when no message is here; may raise too
    """

    def __init__(self, check: Callable[[], None], before_wait: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._before_wait = before_wait
        self._ready: deque[QueuedMessage | UnreadEntry] = deque()
        self._sources: deque[ReceiverQueue] = deque()  # the source of each item in _ready
        self._waiters = WaitingCalls[None]()
        self._epochs: dict[ReceiverQueue, int] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def put(self, item: QueuedMessage | UnreadEntry, source: ReceiverQueue) -> None:
        """Queue what arrived at one topic's consumer."""
        epoch = source.epoch
        if self._epochs.get(source) != epoch:
            self.drop(source)
            self._epochs[source] = epoch
        self._ready.append(item)
        self._sources.append(source)
        if self._waiters:
            self.wake_all() if type(item) is UnreadEntry else self._waiters.wake_first(None)

    async def get(self) -> Delivery:
        """Wait for a delivery and take it; cancelling it loses none."""
        while True:
            self._check()
            if self._ready and (delivery := self.get_nowait()) is not None:
                return delivery
            self._before_wait()
            await self._waiters.wait(self._pass_on)

    def _pass_on(self, _: None) -> None:
        if self._ready:
            self._waiters.wake_first(None)

    def get_nowait(self) -> Delivery | None:
        """Take the next delivery, None if none is here."""
        ready, sources = self._ready, self._sources
        while ready:
            item, source = ready.popleft(), sources.popleft()
            if source.epoch != self._epochs[source]:
                continue
            try:
                if type(item) is not UnreadEntry:
                    return source.taken(item)  # type: ignore[arg-type]
                if not self._read(item, source):
                    return None
            except BaseException:  # such as a lack of memory or threads: another call reads it
                self._put_first([item], source)
                self.wake_all()
                raise
        return None

    def _read(self, unread: UnreadEntry, source: ReceiverQueue) -> bool:
        """Put an entry's next messages first. Return False if there are none yet: waiting calls are woken later."""
        if unread.is_decompressing(self.wake_all):
            self._put_first([unread], source)
            return False
        deliveries = source.read_some(unread)
        if unread.messages:
            self._put_first([unread], source)
        self._put_first(deliveries, source)
        if deliveries or not unread.messages:
            return True
        asyncio.get_running_loop().call_soon(self.wake_all)  # many were compacted out: let others run first
        return False

    def _put_first(self, items: Sequence[QueuedMessage | UnreadEntry], source: ReceiverQueue) -> None:
        self._ready.extendleft(reversed(items))
        self._sources.extendleft([source] * len(items))

    def take_out(self, source: ReceiverQueue) -> list[Delivery | UnreadEntry]:
        """Take out the messages of one source, except the rest of a batch of which some messages were received."""
        if self._epochs.get(source) != source.epoch:
            self.drop(source)
        out = [
            each if isinstance(each, UnreadEntry) else source.delivery_of(each)
            for each, of in self._items()
            if of is source
        ]
        self.drop(source)
        kept = out[0].id[:2] if out and out[0].id.batch_index > 0 else None
        for each in out:
            if each.id[:2] == kept:
                self.put(each, source)
        return [each for each in out if each.id[:2] != kept]

    def drop(self, source: ReceiverQueue) -> None:
        """Drop the messages of one source."""
        if self._epochs.pop(source, None) is not None and self._ready:
            left = [(item, other) for item, other in self._items() if other is not source]
            self._ready = deque(item for item, _ in left)
            self._sources = deque(other for _, other in left)

    def _items(self) -> Iterator[tuple[QueuedMessage | UnreadEntry, ReceiverQueue]]:
        return zip(self._ready, self._sources, strict=True)

    def clear(self) -> None:
        """Drop everything."""
        self._ready.clear()
        self._sources.clear()
        self._epochs.clear()

    @property
    def is_awaited(self) -> bool:
        """Return whether a call waits for a message."""
        return bool(self._waiters)

    def wake_all(self) -> None:
        """Let every waiting call check again."""
        self._waiters.wake_all(None)
