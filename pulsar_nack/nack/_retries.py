"""Ids for which the callback failed, and when each is retried."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ..backoff import Exponential
from ..ids import MessageId, _merge_ids
from ..index import NEVER

FIRST_RETRY_DELAY: Final = 0.1
MAX_RETRY_DELAY: Final = 30.0


@dataclass(slots=True)
class Retry:
    """Ids to retry together, each with its topic and chunks; ``attempt`` is the number of the next attempt."""

    at_ms: int
    attempt: int
    ids: dict[MessageId, MessageId] = field(default_factory=dict)


class Retries:
    """Retries by time: 100 ms after the failure, doubling to 30 s, with a jitter of up to half.

    An id is in at most one retry. ``earliest`` is exact: a retry that has lost all its ids is dropped.
    """

    def __init__(self, random: Callable[[], float] = random.random) -> None:
        self._delay = Exponential(FIRST_RETRY_DELAY, MAX_RETRY_DELAY, random=random)
        self._heap: list[tuple[int, int, Retry]] = []
        self._by_id: dict[MessageId, Retry] = {}
        self._count = 0
        self.earliest = NEVER

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._by_id

    def delay_ms(self, attempt: int) -> int:
        """Return how long to wait before an attempt."""
        return max(round(self._delay(attempt - 2) * 1000), 1)

    def add(self, ids: Iterable[MessageId], attempt: int, at_ms: int) -> None:
        """Add ids, none of which is here already."""
        retry = Retry(at_ms, attempt, {message_id: message_id for message_id in ids})
        self._by_id.update(dict.fromkeys(retry.ids, retry))
        self._count += 1
        heapq.heappush(self._heap, (at_ms, self._count, retry))
        self._find_earliest()

    def at_ms(self, message_id: MessageId) -> int | None:
        """Return when an id is retried, None if it is not here."""
        retry = self._by_id.get(message_id)
        return None if retry is None else retry.at_ms

    def learn(self, message_id: MessageId) -> MessageId:
        """Merge the topic and chunks of an id into its equal here, and return the merged id."""
        ids = self._by_id[message_id].ids
        ids[message_id] = known = _merge_ids(message_id, ids[message_id])
        return known

    def learn_if_here(self, message_id: MessageId) -> bool:
        """Return whether an id is here; if so, keep its topic and chunks."""
        return message_id in self._by_id and bool(self.learn(message_id))

    def discard(self, message_id: MessageId) -> bool:
        """Remove an id; return whether it was here."""
        retry = self._by_id.pop(message_id, None)
        if retry is None:
            return False
        del retry.ids[message_id]
        self._find_earliest()
        return True

    def pop_due(self, now_ms: int) -> Retry | None:
        """Remove and return the first retry that is due; None without one."""
        if self.earliest > now_ms:
            return None
        _, _, retry = heapq.heappop(self._heap)
        for message_id in retry.ids:
            del self._by_id[message_id]
        self._find_earliest()
        return retry

    def pop_all(self) -> list[Retry]:
        """Remove and return all retries, in order of time."""
        retries = [retry for _, _, retry in sorted(self._heap, key=lambda item: item[:2]) if retry.ids]
        self._heap.clear()
        self._by_id.clear()
        self._find_earliest()
        return retries

    def _find_earliest(self) -> None:
        while self._heap and not self._heap[0][2].ids:
            heapq.heappop(self._heap)
        self.earliest = self._heap[0][0] if self._heap else NEVER
