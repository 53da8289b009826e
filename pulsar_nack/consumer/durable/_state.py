"""The state that outlives a restart: the sum of the records of a consumer's logs. Pure: no clock, no await.

The last record of an id decides. So a snapshot that is taken piece by piece while changes go on is correct once all
changes since its beginning are applied after it: compaction needs no pause.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ids import MessageId
from ._acked import AckedMessages
from ._pending import PendingMessage, PendingMessages
from ._records import (
    NO_ID,
    BatchAcks,
    Change,
    PendingPage,
    RangeAcks,
    Record,
    RecordKind,
    encode_batch,
    encode_change,
    encode_page,
    encode_ranges,
)


class DurableState:
    """Pending messages and recent acknowledgements.

    :param memory_ms: how long acknowledgements are remembered
    :param keeps_members: see :class:`AckedMessages`
    :param ttl_ms: how long pending messages are remembered after their deadline or last delivery
    """

    def __init__(self, memory_ms: int, ttl_ms: int, *, keeps_members: bool = True) -> None:
        self._ttl_ms = ttl_ms
        self._pending = PendingMessages()
        self.acked = AckedMessages(memory_ms, keeps_members=keeps_members)
        self.last_at_ms = -1
        """The time of the newest record; -1: there is no record."""

    def __len__(self) -> int:
        return len(self._pending)

    def find(self, message_id: MessageId) -> PendingMessage | None:
        """Return the attempt and the deadline of a pending message."""
        return self._pending.find(message_id)

    def apply(self, record: Record) -> None:
        """Apply a record."""
        if isinstance(record, PendingPage):
            self._pending.load(record)
        elif isinstance(record, BatchAcks | RangeAcks):
            self.acked.load(record)
        else:
            self._apply_change(record)

    def _apply_change(self, change: Change) -> None:
        kind, message_id, at_ms, time_ms, count = change
        if kind in {RecordKind.NACKED, RecordKind.DELIVERED}:
            self.acked.forget(message_id)
            self._pending.put(message_id, time_ms, count)
        elif kind is RecordKind.ACKED:
            self._pending.drop(message_id)
            self.acked.add(message_id, at_ms)
        elif kind is RecordKind.CUMULATIVE_ACK:
            self._pending.drop_up_to(message_id)
            self.acked.add_up_to(message_id, at_ms)
        elif kind is RecordKind.DISCONNECTED:
            self.acked.skip_time(min(time_ms, at_ms), at_ms)
        elif kind is RecordKind.CONFIRMED:
            self.acked.confirm()
        elif kind is RecordKind.CLEARED:
            self._pending.clear()
            self.acked.clear()
        elif self.last_at_ms >= 0:
            self.acked.skip_time(min(self.last_at_ms, at_ms), at_ms)
        self.last_at_ms = max(self.last_at_ms, at_ms)

    def drop_old(self, now_ms: int) -> None:
        """Drop acknowledgements that are old enough."""
        self.acked.drop_old(now_ms, self._ttl_ms)

    def acknowledged(self) -> Iterator[Change | BatchAcks | RangeAcks]:
        """Return the acknowledgements that have to be repeated if their messages arrive."""
        self.drop_old(self.last_at_ms)
        yield from self.acked.records()

    def pending_pages(self) -> Iterator[PendingPage]:
        """Return the pending messages in columns of at most some thousand messages."""
        return self._pending.pages()

    def snapshot(self, now_ms: int) -> Iterator[bytes | None]:
        """Return the records of the whole state, and drop old parts; None: a step without a record.

        Changes may be applied between the steps.
        """
        yield encode_change(Change(RecordKind.OPENED, NO_ID, now_ms, now_ms))
        self.drop_old(now_ms)
        for record in self.acked.records():
            if isinstance(record, Change):
                yield encode_change(record)
            else:
                yield encode_ranges(record) if isinstance(record, RangeAcks) else encode_batch(record)
        yield from self._pending.drop_before(now_ms - self._ttl_ms)
        yield from map(encode_page, self._pending.pages())
