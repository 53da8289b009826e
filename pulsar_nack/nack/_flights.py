"""Commands that the redelivery callback has in hand."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import NamedTuple

from ..errors import RedeliveryError
from ..ids import MessageId, _fuller
from ..index import TimeBuckets
from ._events import NackEvent, Redelivered, RedeliveryFailed


class Landing(NamedTuple):
    """How a flight ended: the ids that failed, those of them that go back to be tried again, and why."""

    failed: Sequence[MessageId]
    back: Sequence[MessageId]
    at_ms: int
    retry_delay_ms: int
    error: BaseException | None

    @property
    def retry_at_ms(self) -> int:
        """Return when the ids that go back are tried again."""
        return self.at_ms + self.retry_delay_ms


class Flight:
    """One command under way: its ids are neither pending nor lost.

    ``attempt`` is 1 unless the callback failed for these ids before. An acknowledgement meanwhile is remembered, so
    that a failure does not bring the id back. The ids stay as lazy as they came until one is asked for.
    """

    __slots__ = ("_acked", "_known", "_members", "attempt", "ids", "is_forgotten", "result")

    def __init__(self, ids: Sequence[MessageId], attempt: int = 1) -> None:
        self.ids = ids
        self.attempt = attempt
        self.is_forgotten = False
        self.result: Awaitable[None] | None = None
        """What the callback returned, while nobody awaits it."""
        self._acked: set[MessageId] = set()
        self._known: dict[MessageId, MessageId] = {}
        self._members: frozenset[MessageId] | None = None

    @property
    def is_retry(self) -> bool:
        """Return whether the callback failed for these ids before."""
        return self.attempt > 1

    def __contains__(self, message_id: MessageId) -> bool:
        if self._members is None:
            self._members = frozenset(self.ids)
        return message_id in self._members

    def acknowledge(self, message_id: MessageId) -> None:
        """Remember that an id was acknowledged, if it is one of these."""
        if message_id in self:
            self._acked.add(message_id)

    def learn(self, message_id: MessageId) -> bool:
        """Return whether a request holds this id; keep its topic and chunks in case the request fails."""
        if message_id not in self:
            return False
        self._known[message_id] = _fuller(message_id, self._known.get(message_id, message_id))
        return True

    def failed(self, error: BaseException | None) -> Sequence[MessageId]:
        """Return the ids that the callback failed for: all, or those which its error names."""
        if error is None:
            return ()
        if isinstance(error, RedeliveryError) and error.failed is not None:
            return [message_id for message_id in dict.fromkeys(error.failed) if message_id in self]
        return self.ids

    def wanted(self, ids: Sequence[MessageId], buckets: TimeBuckets) -> Sequence[MessageId]:
        """Return those of ``ids`` that still have to come back.

        Not the acknowledged ones, and not those which were nacked meanwhile: their new deadline counts.
        """
        if self.is_forgotten:
            return ()
        full = (_fuller(message_id, self._known.get(message_id, message_id)) for message_id in ids)
        return [message_id for message_id in full if message_id not in self._acked and not buckets.learn(message_id)]

    def events(self, landing: Landing) -> Iterator[NackEvent]:
        """Return what hooks are told of the end."""
        if not len(landing.failed):
            yield Redelivered(self.ids, landing.at_ms, self.attempt)
        elif len(landing.failed) < len(self.ids):
            named = frozenset(landing.failed)
            taken = [message_id for message_id in self.ids if message_id not in named]
            yield Redelivered(taken, landing.at_ms, self.attempt)
        if landing.error is not None:
            back, at_ms = landing.back, landing.at_ms
            yield RedeliveryFailed(back, at_ms, self.attempt, landing.error, landing.retry_at_ms)
