"""Calls of the redelivery callback, the ids in them, and the ids to retry because the callback failed for them."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from .._foreign import quoted
from ..backoff import Exponential
from ..errors import RedeliveryError
from ..ids import MessageId, _merge_ids
from ..index import NEVER, TimeBuckets
from ._reports import NackEvent, Redelivered, RedeliveryFailed

FIRST_RETRY_DELAY: Final = 0.1
MAX_RETRY_DELAY: Final = 30.0
_RECENT: Final = 1024


class RedeliveryCall:
    """One call of the callback, which has ids that are no longer pending.

    ``count`` is how many ids there are, and ``attempt`` is 1 unless the callback failed for these ids before. An
    acknowledgement meanwhile is remembered, so that a failure does not bring the id back. The ids stay as lazy as they
    came until a caller reads one.
    """

    __slots__ = (
        "_acked",
        "_known",
        "_members",
        "attempt",
        "count",
        "failed",
        "ids",
        "is_forgotten",
        "is_retry",
        "result",
        "retry_at_ms",
        "task",
        "to_retry",
    )

    def __init__(self, ids: Sequence[MessageId], count: int, attempt: int = 1) -> None:
        self.ids = ids
        self.count = count
        self.attempt = attempt
        self.is_retry = attempt > 1
        """Whether the callback failed for these ids before."""
        self.is_forgotten = False
        self.task: asyncio.Task[None] | None = None
        """The task that awaits the callback."""
        self.result: Awaitable[None] | None = None
        """What the callback returned, until the task awaits it."""
        self.failed: Sequence[MessageId] = ()
        """The ids that the callback has failed for."""
        self.to_retry: Sequence[MessageId] = ()
        """Those of them that are retried, at ``retry_at_ms``."""
        self.retry_at_ms = 0
        self._acked: set[MessageId] = set()
        self._known: dict[MessageId, MessageId] = {}
        self._members: frozenset[MessageId] | None = None

    def __contains__(self, message_id: MessageId) -> bool:
        if self._members is None:
            self._members = frozenset(self.ids)
        return message_id in self._members

    def acknowledge(self, message_id: MessageId) -> None:
        """Remember that an id was acknowledged, if it is in this call."""
        if message_id in self:
            self._acked.add(message_id)

    def learn(self, message_id: MessageId) -> bool:
        """Return whether an id is in this call; if so, keep its topic and chunks in case the call fails."""
        if message_id not in self:
            return False
        self._known[message_id] = _merge_ids(message_id, self._known.get(message_id, message_id))
        return True

    def named_by(self, error: BaseException) -> Sequence[MessageId]:
        """Return the ids that the callback failed for: all, or those that the error names, as far as it names ids."""
        named = error.failed if isinstance(error, RedeliveryError) else None
        if named is None or not all(isinstance(each, MessageId) for each in named):
            return self.ids
        failed = frozenset(named)
        return [message_id for message_id in self.ids if message_id in failed]

    def wanted(self, ids: Sequence[MessageId], buckets: TimeBuckets) -> Sequence[MessageId]:
        """Return the ``ids`` that still have to be redelivered: neither acknowledged nor nacked again meanwhile."""
        if self.is_forgotten:
            return ()
        full = (_merge_ids(message_id, self._known.get(message_id, message_id)) for message_id in ids)
        return [message_id for message_id in full if message_id not in self._acked and not buckets.learn(message_id)]

    def events(self, at_ms: int, error: BaseException | None) -> Iterator[NackEvent]:
        """Yield the events of its end."""
        if not len(self.failed):
            yield Redelivered(self.ids, at_ms, self.attempt)
        elif len(self.failed) < len(self.ids):
            failed = frozenset(self.failed)
            taken = [message_id for message_id in self.ids if message_id not in failed]
            yield Redelivered(taken, at_ms, self.attempt)
        if error is not None:
            yield RedeliveryFailed(self.to_retry, at_ms, self.attempt, error, self.retry_at_ms)


class CallsInFlight:
    """The calls that have not ended, at most ``limit``, and totals of all calls; ``ids`` is how many ids they have.

    One retry may always be in flight, and retries never take the last place, so neither new ids nor retries wait for
    the other.
    """

    __slots__ = (
        "_calls",
        "_limit",
        "_max_retries",
        "_retries",
        "_was_retry",
        "begun",
        "begun_retries",
        "failed",
        "ids",
        "is_full",
        "last_error",
        "late_ms",
        "may_retry",
        "prefers_retry",
        "sent",
    )

    def __init__(self, limit: int) -> None:
        self._calls: dict[RedeliveryCall, None] = {}
        self._limit = limit
        self._max_retries = max(limit - 1, 1)
        self._retries = 0
        self._was_retry = False
        self.ids = 0
        self.is_full = False
        """Whether no further call may begin."""
        self.may_retry = True
        """Whether a retry may begin, if a call may."""
        self.prefers_retry = True
        """Whether the next call is rather a retry than one with new ids."""
        self.begun = self.begun_retries = self.failed = self.sent = 0
        self.last_error: str | None = None
        self.late_ms: deque[int] = deque(maxlen=_RECENT)
        """How late the last calls with new ids were."""

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[RedeliveryCall]:
        return iter(self._calls)

    def begin(self, call: RedeliveryCall) -> RedeliveryCall:
        """Add a call, and return it."""
        self._calls[call] = None
        self.begun += 1
        self.begun_retries += call.is_retry
        self.ids += call.count
        self._was_retry = call.is_retry
        self._retries += call.is_retry
        self.is_full = len(self._calls) >= self._limit
        self.may_retry = self._retries < self._max_retries
        self.prefers_retry = self._retries == 0 and (self._limit > 1 or not self._was_retry)
        return call

    def end(self, call: RedeliveryCall, error: BaseException | None) -> None:
        """Remove a call, and count how it ended."""
        del self._calls[call]
        self.ids -= call.count
        self.sent += call.count - len(call.failed)
        if error is not None:
            self.failed += 1
            self.last_error = quoted(error)
        self._retries -= call.is_retry
        self.is_full = False
        self.may_retry = self._retries < self._max_retries
        self.prefers_retry = self._retries == 0 and (self._limit > 1 or not self._was_retry)

    def learn_after(self, call: RedeliveryCall, message_id: MessageId) -> bool:
        """Return whether a call that began after ``call`` has an id; if so, keep its topic and chunks there."""
        calls = list(self._calls)
        return any(later.learn(message_id) for later in calls[calls.index(call) + 1 :])


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


def join_ids(parts: Sequence[Sequence[MessageId]]) -> Sequence[MessageId]:
    """Return the ids of all parts, one after the other; a single part with ids is returned as it is, made lazily."""
    parts = [part for part in parts if len(part)]
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
