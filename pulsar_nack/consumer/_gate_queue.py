"""Messages that wait because the acknowledgement state has no room for them (PIP-299).

They wait in the order of their ids. When the gate opens, the first goes back to the inbox, where calls wait; once that
one is taken, the next one follows if there is room for it too.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ._inbox import Inbox
from ._message import Message

if TYPE_CHECKING:
    from .durable import DurableNacks

_MOST: Final = 1_000


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
        self._forget_released(message)
        is_behind = any(first.id < message.id for first in (*self.waiting[:1], self._released) if first is not None)
        is_admitted = self._is_admitted(message, is_behind=is_behind)
        if not is_admitted:
            insort(self.waiting, message, key=attrgetter("id"))
            if len(self.waiting) >= _MOST:
                self.has_room.clear()
        if self.waiting:
            self._release_when_open()
        return is_admitted

    def gone(self, message: Message) -> None:
        """Note that a ready message is not delivered any more: it was settled by its id."""
        self._forget_released(message)
        self._release_when_open()

    def drop(self, is_gone: Callable[[Message], bool]) -> list[Message]:
        """Drop some waiting messages, and return them; the inbox drops those that are ready."""
        gone = [message for message in self.waiting if is_gone(message)]
        self.waiting = [message for message in self.waiting if not is_gone(message)]
        if self._released is not None and is_gone(self._released):
            self._released = None
        if len(self.waiting) < _MOST:
            self.has_room.set()
        self._release_when_open()
        return gone

    def clear(self) -> None:
        """Drop all messages: the subscription was moved."""
        self._gate.forget(self._release)
        self.waiting.clear()
        self._released = None
        self.has_room.set()

    def _forget_released(self, message: Message) -> None:
        if message is self._released:
            self._released = None

    def _release_when_open(self) -> None:
        """Release the first message, at once or when the gate opens."""
        if self.waiting and self._released is None and not self._gate.wait(self._release, self._is_first_admitted):
            self._release()

    def _release(self) -> None:
        self._released = self.waiting.pop(0)
        if len(self.waiting) < _MOST:
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
