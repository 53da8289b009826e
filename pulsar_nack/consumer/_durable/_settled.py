"""What was acknowledged not long ago, so that it is acknowledged again when the broker has not heard of it.

Messages that are entries of their own, and batches whose members all were acknowledged, are kept for ``memory_ms``;
batches that are not done with until they are; cumulative acknowledgements as a mark for each partition. A batch that is
done with stays as it is, all bits set: a member's acknowledgement that is applied once more changes nothing.

Ages are counted while a consumer runs, for an acknowledgement that was not sent when the process ended is as new when
it comes back after a week: hence *uptime*, epoch ms less the time spent away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ...ids import MessageId
from .._batches import EntryKey, entry_key, is_member, is_same_topic
from ._records import Change, EntryAcks, Kind

MOST_WHOLE: Final = 100_000
_MOST_BATCHES: Final = 50_000
_LARGEST_BATCH: Final = 1 << 20
"""Far more than a broker takes; an id that tells of more is none of its own."""


@dataclass(slots=True)
class _Batch:
    topic: str | None
    size: int
    acked: int
    uptime_ms: int


class Settled:
    """Acknowledgements to remember: the newest 100 000 messages, and twice the newest 50 000 batches."""

    def __init__(self, memory_ms: int) -> None:
        self._memory_ms = memory_ms
        self._whole: deque[tuple[int, int, int, int, str | None]] = deque()
        self._open: dict[EntryKey, _Batch] = {}
        self._done: dict[EntryKey, _Batch] = {}
        self._marks: dict[tuple[str | None, int], tuple[MessageId, int]] = {}
        self._away_ms = 0

    def __len__(self) -> int:
        return len(self._whole) + len(self._open) + len(self._done) + len(self._marks)

    def was_away(self, span_ms: int) -> None:
        """Do not count this time."""
        self._away_ms += span_ms

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Note an acknowledgement; amortized O(1).

        A member whose batch size is not known, or which cannot be in a batch of this size, is not remembered.
        """
        uptime_ms = at_ms - self._away_ms
        if not is_member(message_id):
            self._whole.append((uptime_ms, *entry_key(message_id), message_id.topic))
        elif (
            message_id.batch_index < message_id.batch_size <= _LARGEST_BATCH and entry_key(message_id) not in self._done
        ):
            key = entry_key(message_id)
            batch = self._open.pop(key, None) or _Batch(message_id.topic, message_id.batch_size, 0, uptime_ms)
            batch.acked |= 1 << message_id.batch_index
            batch.size = max(batch.size, message_id.batch_size)
            batch.uptime_ms = uptime_ms
            self._put(key, batch)
        self._drop_done(uptime_ms)

    def _put(self, key: EntryKey, batch: _Batch) -> None:
        batches = self._done if batch.acked.bit_count() >= batch.size else self._open
        batches[key] = batch
        if len(batches) > _MOST_BATCHES:
            del batches[next(iter(batches))]

    def add_through(self, message_id: MessageId, at_ms: int) -> None:
        """Note a cumulative acknowledgement. O(batches)."""
        self._marks[message_id.topic, message_id.partition] = (message_id, at_ms - self._away_ms)
        here = entry_key(message_id)
        for batches in (self._open, self._done):
            for key, batch in list(batches.items()):
                is_before = key < here and is_same_topic(MessageId(*key, topic=batch.topic), message_id)
                if is_before or (key == here and message_id.batch_index < 0):
                    del batches[key]

    def load(self, entry: EntryAcks) -> None:
        """Take over the acknowledged members of a batch."""
        batch = _Batch(entry.id.topic, entry.id.batch_size, entry.acked, entry.at_ms - self._away_ms)
        self._put(entry_key(entry.id), batch)

    def shown(self, message_id: MessageId) -> None:
        """Forget that a member was acknowledged: it was replayed."""
        key = entry_key(message_id)
        batch = self._open.pop(key, None) or self._done.pop(key, None)
        if batch is None:
            return
        batch.acked &= ~(1 << message_id.batch_index) if message_id.batch_index >= 0 else 0
        if batch.acked:
            self._put(key, batch)

    def clear(self) -> None:
        """Forget all."""
        self._whole.clear()
        self._open.clear()
        self._done.clear()
        self._marks.clear()

    def drop_old(self, now_ms: int, ttl_ms: int) -> None:
        """Forget what is older than ``memory_ms``, and open batches that nothing was acknowledged of for ``ttl_ms``."""
        uptime_ms = now_ms - self._away_ms
        self._drop_done(uptime_ms)
        oldest_ms = uptime_ms - self._memory_ms
        self._marks = {key: mark for key, mark in self._marks.items() if mark[1] >= oldest_ms}
        for key in [key for key, batch in self._open.items() if batch.uptime_ms < uptime_ms - ttl_ms]:
            del self._open[key]

    def _drop_done(self, uptime_ms: int) -> None:
        oldest_ms = uptime_ms - self._memory_ms
        while self._whole and (len(self._whole) > MOST_WHOLE or self._whole[0][0] < oldest_ms):
            self._whole.popleft()
        while self._done and (first := next(iter(self._done.items())))[1].uptime_ms < oldest_ms:
            del self._done[first[0]]

    def items(self) -> Iterator[Change | EntryAcks]:
        """Go through all of it as records, as at this time, with times as if nothing had been spent away."""
        away_ms = self._away_ms
        for uptime_ms, *key, topic in list(self._whole):
            at_ms = uptime_ms + away_ms
            yield Change(Kind.SETTLED, MessageId(*key, topic=topic), at_ms, at_ms)
        for message_id, uptime_ms in list(self._marks.values()):
            yield Change(Kind.THROUGH, message_id, uptime_ms + away_ms, uptime_ms + away_ms)
        for entry, batch in list(chain(self._open.items(), self._done.items())):
            message_id = MessageId(*entry, batch_size=batch.size, topic=batch.topic)
            yield EntryAcks(message_id, batch.uptime_ms + away_ms, batch.acked)
