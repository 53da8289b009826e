"""What was acknowledged not long ago, so that it is acknowledged again when the broker has not heard of it.

Three things: whole entries, for as long as ``memory_ms``; members of batches that are not done with, until they are;
and marks of cumulative acknowledgements. Ages are counted while a consumer runs, for an acknowledgement that was not
sent when the process ended is as new when it comes back after a week: hence *uptime*, epoch ms less time spent away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...ids import MessageId
from .._batches import EntryKey, entry_key, is_member, is_same_topic
from ._records import Change, EntryAcks, Kind

MOST_WHOLE: Final = 100_000
_MOST_PARTLY: Final = 50_000


@dataclass(slots=True)
class _Partly:
    topic: str | None
    size: int
    acked: int
    uptime_ms: int


class Settled:
    """Acknowledgements to remember; the newest 100 000 entries and the newest 50 000 batches."""

    def __init__(self, memory_ms: int) -> None:
        self._memory_ms = memory_ms
        self._whole: deque[tuple[int, int, int, int, str | None]] = deque()
        self._partly: dict[EntryKey, _Partly] = {}
        self._marks: dict[tuple[str | None, int], tuple[MessageId, int]] = {}
        self._away_ms = 0

    def __len__(self) -> int:
        return len(self._whole) + len(self._partly) + len(self._marks)

    def was_away(self, span_ms: int) -> None:
        """Do not count this time."""
        self._away_ms += span_ms

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Note an acknowledgement; amortized O(1)."""
        uptime_ms = at_ms - self._away_ms
        key = entry_key(message_id)
        if is_member(message_id):
            if message_id.batch_size < 1 or not self._complete(message_id, uptime_ms):
                return
        else:
            self._partly.pop(key, None)
        self._whole.append((uptime_ms, *key, message_id.topic))
        self._drop_whole(uptime_ms)

    def _complete(self, message_id: MessageId, uptime_ms: int) -> bool:
        """Note a member; True when it was the last one."""
        key, size = entry_key(message_id), message_id.batch_size
        partly = self._partly.setdefault(key, _Partly(message_id.topic, size, 0, uptime_ms))
        partly.acked |= 1 << message_id.batch_index
        partly.uptime_ms = uptime_ms
        is_done = partly.acked.bit_count() >= size
        if is_done:
            del self._partly[key]
        elif len(self._partly) > _MOST_PARTLY:
            del self._partly[next(iter(self._partly))]
        return is_done

    def add_through(self, message_id: MessageId, at_ms: int) -> None:
        """Note a cumulative acknowledgement. O(batches)."""
        self._marks[message_id.topic, message_id.partition] = (message_id, at_ms - self._away_ms)
        here = entry_key(message_id)
        for key, partly in list(self._partly.items()):
            is_before = key < here and is_same_topic(MessageId(*key, topic=partly.topic), message_id)
            if is_before or (key == here and message_id.batch_index < 0):
                del self._partly[key]

    def load(self, entry: EntryAcks) -> None:
        """Take over the acknowledged members of a batch."""
        acks = _Partly(entry.id.topic, entry.id.batch_size, entry.acked, entry.at_ms - self._away_ms)
        self._partly[entry_key(entry.id)] = acks

    def shown(self, message_id: MessageId) -> None:
        """Forget that a member was acknowledged: it was replayed."""
        partly = self._partly.get(entry_key(message_id))
        if partly is not None and message_id.batch_index >= 0:
            partly.acked &= ~(1 << message_id.batch_index)
            if not partly.acked:
                del self._partly[entry_key(message_id)]

    def clear(self) -> None:
        """Forget all."""
        self._whole.clear()
        self._partly.clear()
        self._marks.clear()

    def drop_old(self, now_ms: int, ttl_ms: int) -> None:
        """Forget what is older than ``memory_ms``, and batches of which nothing was acknowledged for ``ttl_ms``."""
        uptime_ms = now_ms - self._away_ms
        self._drop_whole(uptime_ms)
        oldest_ms = uptime_ms - self._memory_ms
        self._marks = {key: mark for key, mark in self._marks.items() if mark[1] >= oldest_ms}
        for key in [key for key, partly in self._partly.items() if partly.uptime_ms < uptime_ms - ttl_ms]:
            del self._partly[key]

    def _drop_whole(self, uptime_ms: int) -> None:
        oldest_ms = uptime_ms - self._memory_ms
        while self._whole and (len(self._whole) > MOST_WHOLE or self._whole[0][0] < oldest_ms):
            self._whole.popleft()

    def items(self) -> Iterator[Change | EntryAcks]:
        """Go through all of it as records, as at this time, with times as if nothing had been spent away."""
        away_ms = self._away_ms
        for uptime_ms, *key, topic in list(self._whole):
            at_ms = uptime_ms + away_ms
            yield Change(Kind.SETTLED, MessageId(*key, topic=topic), at_ms, at_ms)
        for message_id, uptime_ms in list(self._marks.values()):
            yield Change(Kind.THROUGH, message_id, uptime_ms + away_ms, uptime_ms + away_ms)
        for entry, partly in list(self._partly.items()):
            message_id = MessageId(*entry, batch_size=partly.size, topic=partly.topic)
            yield EntryAcks(message_id, partly.uptime_ms + away_ms, partly.acked)
