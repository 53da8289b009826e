"""The pure schedule (interim, replaced by the time-bucket index)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ..config import NackConfig
from ..ids import MessageId


class DueRun(NamedTuple):
    """Due entries of one ledger, ascending, as ``array('I')`` or ``array('Q')``."""

    partition: int
    batch_index: int
    ledger: int
    entries: array[int]


class NackSchedule:
    """Pending ids and their deadlines; integers in ms, no clock, no await."""

    def __init__(self, config: NackConfig | None = None) -> None:
        self._config = config or NackConfig()
        self._at: dict[MessageId, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    @property
    def bucket_count(self) -> int:
        """Return how many buckets hold something."""
        return len(set(self._at.values()))

    @property
    def bytes(self) -> int:
        """Return the memory held, O(1)."""
        return 240 * len(self._at)

    def __contains__(self, message_id: MessageId) -> bool:
        return message_id in self._at

    def bucket_start(self, now_ms: int, delay_ms: int) -> int:
        """Return when an id nacked now would be sent."""
        bits = self._config.negative_ack_precision_bit_cnt
        ratio = self._config.precision_ratio
        if ratio is not None:
            bits = min(bits, max(int(delay_ms * ratio), 1).bit_length() - 1)
        return (now_ms + delay_ms) >> bits << bits

    def add(self, message_id: MessageId, now_ms: int, delay_ms: int) -> bool:
        """Make an id pending; True when it was not. Pending already: the earliest deadline wins."""
        start = self.bucket_start(now_ms, delay_ms)
        old = self._at.get(message_id)
        self._at[message_id] = start if old is None else min(old, start)
        return old is None

    def add_entries(self, ledger: int, entries: Sequence[int], now_ms: int, delay_ms: int) -> int:
        """Make entries of one ledger pending; return how many were not."""
        return sum(self.add(MessageId(ledger, entry), now_ms, delay_ms) for entry in entries)

    def discard(self, message_id: MessageId) -> bool:
        """Take an id out; True when it was pending."""
        return self._at.pop(message_id, None) is not None

    def clear(self) -> int:
        """Drop everything; return how many were pending."""
        count = len(self._at)
        self._at.clear()
        return count

    def next_at(self) -> int | None:
        """Return when something comes due next, None when nothing is pending."""
        return min(self._at.values(), default=None)

    def pop_due(self, now_ms: int, limit: int | None = None) -> Sequence[MessageId]:
        """Take out what is due at ``now_ms``, earliest bucket first, at most ``limit``."""
        due = sorted((at, message_id) for message_id, at in self._at.items() if at <= now_ms)[:limit]
        for _, message_id in due:
            del self._at[message_id]
        return [message_id for _, message_id in due]

    def pop_all(self) -> Sequence[MessageId]:
        """Take out everything, due or not."""
        ids = sorted(self._at)
        self._at.clear()
        return ids
