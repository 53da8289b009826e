"""The queue of messages, or deliveries, that hands them directly to the calls that wait for one.

Messages for which the acknowledgement state has no room (PIP-299) wait aside, in the order of their ids. When the gate
opens, the first goes back to the queue; once that one is taken, the next one follows if there is room for it too.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from ._message import Message
    from .durable import DurableNacks

Item = TypeVar("Item")
_MOST_GATED: Final = 1_000


class Inbox(Generic[Item]):
    """First in, first out, on both sides; a cancelled call gives its message to the next one.

    :param is_current: whether a message that waited here is still to be delivered (it may have been settled by its id);
        None: always
    """

    def __init__(self, is_current: Callable[[Item], bool] | None = None) -> None:
        self.wanted = asyncio.Event()
        """Set while a call waits."""
        self.is_paused = False
        """While this is true, messages are kept and calls wait."""
        self._is_current = is_current
        self.kept: Callable[[Item], None] | None = None
        """Called with a message that no call waits for."""
        self.ready: deque[Item] = deque()
        """Messages that no call has taken yet; some may not be current."""
        self.waiters: deque[asyncio.Future[Item]] = deque()
        """Calls that wait; some may have ended."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where calls wait; None: it is looked up for each, which takes a system call."""
        self._closed_by: Exception | None = None

    def __len__(self) -> int:
        return len(self.ready)

    def put(self, message: Item, *, first: bool = False) -> None:
        """Give a message to the call that waits longest, or keep it for the next one."""
        waiters = self.waiters
        while waiters and not self.is_paused:
            waiter = waiters.popleft()
            if not waiters:
                self.wanted.clear()
            if not waiter.done():
                waiter.set_result(message)
                return
        if first:
            self.ready.appendleft(message)
        else:
            self.ready.append(message)
        if self.kept is not None:
            self.kept(message)

    def pause(self) -> None:
        """Hand nothing out until :meth:`resume`."""
        self.is_paused = True
        self.wanted.clear()

    def resume(self) -> None:
        """Hand out the kept messages, first come, first served."""
        self.is_paused = False
        ready, self.ready = self.ready, deque()
        for message in ready:
            self.put(message)
        if self.waiters:
            self.wanted.set()

    def get_nowait(self) -> Item | None:
        """Return a message that is ready, None if none is."""
        while self.ready and not self.is_paused:
            message = self.ready.popleft()
            if self._is_current is None or self._is_current(message):
                return message
        return None

    async def get(self) -> Item:
        """Wait for a message."""
        while True:
            if self._closed_by is not None:
                raise self._closed_by
            if self.ready and not self.is_paused:
                message = self.ready.popleft()
            else:
                waiter: asyncio.Future[Item] = asyncio.Future(loop=self.loop)
                self.waiters.append(waiter)
                if len(self.waiters) == 1 and not self.is_paused:
                    self.wanted.set()
                try:
                    message = await waiter
                except asyncio.CancelledError:
                    self._leave(waiter)
                    raise
            if self._is_current is None or self._is_current(message):
                return message

    def _leave(self, waiter: asyncio.Future[Item]) -> None:
        """Take a cancelled call out of the line; the next one gets its message."""
        if not waiter.cancelled() and waiter.exception() is None:
            self.put(waiter.result(), first=True)
        elif waiter in self.waiters:
            self.waiters.remove(waiter)
            if not self.waiters:
                self.wanted.clear()

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in every call that waits."""
        waiters = list(self.waiters)
        self.waiters.clear()
        self.wanted.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def close(self, error: Exception) -> None:
        """Raise ``error`` in every call, from now on; the first error stays."""
        self.ready.clear()
        self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Raise ``error`` in every call, from now on, and keep the ready messages."""
        if self._closed_by is None:
            self._closed_by = error
        self.fail(self._closed_by)

    def drop(self, is_gone: Callable[[Item], bool]) -> list[Item]:
        """Drop some of the ready messages, and return them."""
        gone = [message for message in self.ready if is_gone(message)]
        if gone:
            kept = [message for message in self.ready if not is_gone(message)]
            self.ready.clear()
            self.ready.extend(kept)
        return gone

    def drop_outdated(self) -> None:
        """Drop the ready messages that are not to be delivered any more."""
        is_current = self._is_current
        if is_current is not None:
            self.drop(lambda message: not is_current(message))

    def clear(self) -> None:
        """Drop the ready messages."""
        self.ready.clear()


class DurableGateQueue:
    """Sets messages aside that the gate does not admit yet, so that redeliveries and hole fillers overtake them.

    :param durable: has the gate
    :param inbox: where the messages came from, and return to
    """

    def __init__(self, durable: DurableNacks, inbox: Inbox[Message]) -> None:
        self.has_room = asyncio.Event()
        """Clear while too many wait to fetch more."""
        self.has_room.set()
        self._durable = durable
        self._gate = durable.gate
        self._inbox = inbox
        self.waiting: list[Message] = []
        """In the order of their ids."""
        self._released: Message | None = None

    def __len__(self) -> int:
        return len(self.waiting)

    def admits(self, message: Message) -> bool:
        """Return whether a ready message may be delivered; if not it is kept until it may."""
        if message is self._released:
            self._released = None
        is_behind = any(first.id < message.id for first in (*self.waiting[:1], self._released) if first is not None)
        is_admitted = self._is_admitted(message, is_behind=is_behind)
        if not is_admitted:
            insort(self.waiting, message, key=attrgetter("id"))
            if len(self.waiting) >= _MOST_GATED:
                self.has_room.clear()
        if self.waiting:
            self._release_when_open()
        return is_admitted

    def gone(self, message: Message) -> None:
        """Note that a ready message is not delivered any more: it was settled by its id."""
        if message is self._released:
            self._released = None
        self._release_when_open()

    def drop(self, is_gone: Callable[[Message], bool]) -> list[Message]:
        """Drop some waiting messages, and return them; the inbox drops those that are ready."""
        gone = [message for message in self.waiting if is_gone(message)]
        self.waiting = [message for message in self.waiting if not is_gone(message)]
        if self._released is not None and is_gone(self._released):
            self._released = None
        if len(self.waiting) < _MOST_GATED:
            self.has_room.set()
        self._release_when_open()
        return gone

    def clear(self) -> None:
        """Drop all messages: the subscription was moved."""
        self._gate.forget(self._release)
        self.waiting.clear()
        self._released = None
        self.has_room.set()

    def _release_when_open(self) -> None:
        """Release the first message, at once or when the gate opens."""
        if self.waiting and self._released is None and not self._gate.wait(self._release, self._is_first_admitted):
            self._release()

    def _release(self) -> None:
        self._released = self.waiting.pop(0)
        if len(self.waiting) < _MOST_GATED:
            self.has_room.set()
        self._inbox.put(self._released, first=True)

    def _is_first_admitted(self) -> bool:
        if not self.waiting:
            return False
        first = self.waiting.pop(0)  # it counts as in flight then, as it does when it is asked for again
        is_admitted = self._is_admitted(first, is_behind=False)
        self.waiting.insert(0, first)
        return is_admitted

    def _is_admitted(self, message: Message, *, is_behind: bool) -> bool:
        return self._durable.admits(message.id, is_redelivered=message.redelivery_count > 0, is_behind=is_behind)
