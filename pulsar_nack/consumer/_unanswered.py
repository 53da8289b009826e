"""Requests that brought nothing within 30 s: what the broker is asked for once more, and when. Pure.

Mostly another consumer of the subscription got the message, and the broker passes over what we ask. Or the request was
lost: a client accepts one while it has no connection, and drops it. Nothing tells the two apart, so a few more requests
are made, further and further apart, and then the message is left to the broker, which holds it unacknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ..ids import MessageId

PAUSES_MS: Final = (0, 60_000, 120_000, 240_000)
"""How long after a request has brought nothing the next one is made."""
_FAILED_PAUSE_MS: Final = 5_000
_MOST: Final = 10_000


class Unanswered(NamedTuple):
    """A message to be asked for again, for the ``turn``-th time, from 0."""

    id: MessageId
    turn: int


class AskAgain:
    """What is to be asked for again; O(1) for each call and message.

    :param most: beyond it the oldest are left to the broker
    """

    def __init__(self, most: int = _MOST) -> None:
        self.given_up = 0
        self._most = most
        self._at: dict[MessageId, int] = {}
        self.known: Mapping[MessageId, int] = self._at
        """What is to be asked for, and when."""
        self._queues: list[deque[tuple[int, Unanswered]]] = [deque() for _ in (*PAUSES_MS, _FAILED_PAUSE_MS)]

    def __len__(self) -> int:
        return len(self._at)

    def make_room(self, count: int) -> None:
        """Let there be so many more than there are, whatever the bound was: they took as much memory before."""
        self._most = max(self._most, len(self._at) + count)

    def add(self, message_id: MessageId, now_ms: int, turn: int = 0) -> None:
        """Note that a request, the ``turn``-th one made again, brought nothing or is not known to have."""
        self._at.pop(message_id, None)
        if turn == len(PAUSES_MS):
            self.given_up += 1
            return
        if len(self._at) >= self._most:
            del self._at[next(iter(self._at))]
            self.given_up += 1
        self._put(Unanswered(message_id, turn), now_ms + PAUSES_MS[turn], turn)

    def failed(self, some: Iterable[Unanswered], now_ms: int) -> None:
        """Put back what could not be asked for."""
        for one in some:
            self._put(one, now_ms + _FAILED_PAUSE_MS, -1)

    def _put(self, one: Unanswered, at_ms: int, queue: int) -> None:
        self._at[one.id] = at_ms
        self._queues[queue].append((at_ms, one))

    def discard(self, message_id: MessageId) -> None:
        """Forget one: it came, or it is settled."""
        self._at.pop(message_id, None)

    def discard_if(self, is_gone: Callable[[MessageId], bool]) -> None:
        """Forget those that a rule says are gone; O(all)."""
        for message_id in [known for known in self._at if is_gone(known)]:
            del self._at[message_id]

    def clear(self) -> None:
        """Forget all."""
        self._at.clear()

    def next_at(self) -> int | None:
        """Return when the next is to be asked for."""
        for queue in self._queues:
            while queue and self._is_stale(*queue[0]):
                queue.popleft()
        return min((queue[0][0] for queue in self._queues if queue), default=None)

    def pop_due(self, now_ms: int, limit: int) -> list[Unanswered]:
        """Take out at most ``limit`` of what is to be asked for now."""
        due: list[Unanswered] = []
        for queue in self._queues:
            while queue and len(due) < limit and (queue[0][0] <= now_ms or self._is_stale(*queue[0])):
                at_ms, one = queue.popleft()
                if not self._is_stale(at_ms, one):
                    del self._at[one.id]
                    due.append(one)
        return due

    def _is_stale(self, at_ms: int, one: Unanswered) -> bool:
        return self._at.get(one.id) != at_ms
