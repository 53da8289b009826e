"""Commands whose callback failed, and when each is tried again."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..backoff import Exponential
from ..ids import MessageId, _fuller
from ..index import NEVER

FIRST_RETRY_DELAY: Final = 0.1
MAX_RETRY_DELAY: Final = 30.0


@dataclass(slots=True)
class Retry:
    """Ids whose request failed, each with its topic and chunks; ``attempt`` is the number of the next attempt."""

    at_ms: int
    attempt: int
    ids: dict[MessageId, MessageId] = field(default_factory=dict)


class Retries:
    """Failed commands by the time of their next try: 100 ms after the failure, doubling to 30 s, jittered to half.

    An id is in at most one command. ``earliest`` is exact: a command whose ids were all taken out is forgotten.
    """

    def __init__(self, random: Callable[[], float] = random.random) -> None:
        self._delay = Exponential(FIRST_RETRY_DELAY, MAX_RETRY_DELAY, random=random)
        self._heap: list[tuple[int, int, Retry]] = []
        self._of: dict[MessageId, Retry] = {}
        self._made = 0
        self.earliest = NEVER

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._of

    def delay_ms(self, attempt: int) -> int:
        """Return how long to wait before try number ``attempt``."""
        return max(round(self._delay(attempt - 2) * 1000), 1)

    def add(self, ids: Iterable[MessageId], attempt: int, at_ms: int) -> None:
        """Keep ids for try number ``attempt`` at ``at_ms``; none of them is here already."""
        retry = Retry(at_ms, attempt, {message_id: message_id for message_id in ids})
        self._of.update(dict.fromkeys(retry.ids, retry))
        self._made += 1
        heapq.heappush(self._heap, (at_ms, self._made, retry))
        self._settle()

    def at_ms(self, message_id: MessageId) -> int | None:
        """Return when an id is tried again, None when it is not here."""
        retry = self._of.get(message_id)
        return None if retry is None else retry.at_ms

    def learn(self, message_id: MessageId) -> MessageId:
        """Merge the topic and chunks of an id into its equal here, and return the merged id."""
        ids = self._of[message_id].ids
        ids[message_id] = known = _fuller(message_id, ids[message_id])
        return known

    def discard(self, message_id: MessageId) -> bool:
        """Take one id out; True when it was here."""
        retry = self._of.pop(message_id, None)
        if retry is None:
            return False
        del retry.ids[message_id]
        self._settle()
        return True

    def pop_due(self, now_ms: int) -> Retry | None:
        """Take out the first command that is due, if there is one."""
        if self.earliest > now_ms:
            return None
        _, _, retry = heapq.heappop(self._heap)
        for message_id in retry.ids:
            del self._of[message_id]
        self._settle()
        return retry

    def pop_all(self) -> list[Retry]:
        """Take out all commands, the first due first."""
        retries = [retry for _, _, retry in sorted(self._heap, key=lambda item: item[:2]) if retry.ids]
        self._heap.clear()
        self._of.clear()
        self._settle()
        return retries

    def _settle(self) -> None:
        while self._heap and not self._heap[0][2].ids:
            heapq.heappop(self._heap)
        self.earliest = self._heap[0][0] if self._heap else NEVER
