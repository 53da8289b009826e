"""The state that outlives a restart: the sum of the records of a consumer's logs. Pure: no clock, no await.

It has the pending messages, which were nacked or delivered and are not acknowledged, and the acknowledged ones (see
``_acked``). The last record of an id decides. So a snapshot that is taken piece by piece while changes go on is correct
once all changes since its beginning are applied after it: compaction needs no pause.

Pending messages are packed in 20 to 50 bytes each if they are dense. A page has sorted columns for 256 entries of a
ledger: a key made of the entry and the batch index, a time, and a count. Finding a message takes one lookup in a dict
and a binary search, and a page is stored and read as it is. A dict from ids to tuples was rejected: 400 bytes each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import compress
from typing import Final

from ...ids import MessageId
from ._acked import AckedMessages
from ._records import (
    NO_ID,
    BatchAcks,
    Change,
    PendingPage,
    RangeAcks,
    Record,
    RecordKind,
    count_of,
    stored_count,
)

PAGE_BITS: Final = 8
_MAX_IN_RECORD: Final = 1 << 16
_MASK: Final = (1 << PAGE_BITS) - 1
_INDEX_BITS: Final = 32

_PageKey = tuple[int, int, int]


class DurableState:
    """Pending messages and recent acknowledgements.

    :param memory_ms: how long acknowledgements are remembered
    :param keeps_members: see :class:`AckedMessages`
    :param ttl_ms: how long pending messages are remembered after their deadline or last delivery
    """

    def __init__(self, memory_ms: int, ttl_ms: int, *, keeps_members: bool = True) -> None:
        self._ttl_ms = ttl_ms
        self.pending = PendingMessages()
        self.acked = AckedMessages(memory_ms, keeps_members=keeps_members)
        self.last_at_ms = -1
        """The time of the newest record; -1: there is no record."""

    def apply(self, record: Record) -> None:
        """Apply a record."""
        if isinstance(record, PendingPage):
            self.pending.load(record)
        elif isinstance(record, BatchAcks | RangeAcks):
            self.acked.load(record)
        else:
            self._apply_change(record)

    def _apply_change(self, change: Change) -> None:
        kind, message_id, at_ms, time_ms, count = change
        if kind in {RecordKind.NACKED, RecordKind.DELIVERED}:
            self.acked.forget(message_id)
            self.pending.put(message_id, time_ms, count)
        elif kind is RecordKind.ACKED:
            self.pending.drop(message_id)
            self.acked.add(message_id, at_ms)
        elif kind is RecordKind.CUMULATIVE_ACK:
            self.pending.drop_up_to(message_id)
            self.acked.add_up_to(message_id, at_ms)
        elif kind is RecordKind.DISCONNECTED:
            self.acked.skip_time(min(time_ms, at_ms), at_ms)
        elif kind is RecordKind.CONFIRMED:
            self.acked.confirm()
        elif kind is RecordKind.CLEARED:
            self.pending.clear()
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

    def snapshot(self, now_ms: int) -> Iterator[bytes | None]:
        """Return the records of the whole state, and drop old parts; None: a step without a record.

        Changes may be applied between the steps.
        """
        yield Change(RecordKind.OPENED, NO_ID, now_ms, now_ms).encode()
        self.drop_old(now_ms)
        yield from (record.encode() for record in self.acked.records())
        yield from self.pending.drop_before(now_ms - self._ttl_ms)
        yield from (page.encode() for page in self.pending.pages())


class PendingMessages:
    """A packed map from ids of pending messages to times and redelivery counts.

    The time is the deadline of a nacked message, or when another one was delivered, epoch ms.
    """

    def __init__(self) -> None:
        self._pages: dict[_PageKey, PendingPage] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def find(self, message_id: MessageId) -> tuple[int, int] | None:
        """Return the time and count of a message, None if it is not pending. O(log messages of 256 entries)."""
        page = self._pages.get(_page_key(message_id))
        if page is None:
            return None
        key = _key(message_id)
        at = bisect_left(page.keys, key)
        if at == len(page.keys) or page.keys[at] != key:
            return None
        return page.times[at], count_of(page.counts[at])

    def put(self, message_id: MessageId, time_ms: int, count: int) -> None:
        """Set the time and count of a message."""
        page_key, key, count = _page_key(message_id), _key(message_id), stored_count(count)
        page = self._pages.get(page_key)
        if page is None:
            page = self._pages[page_key] = PendingPage(*page_key, message_id.topic, array("Q"), array("q"), array("I"))
        elif page.topic is None and message_id.topic is not None:
            page = self._pages[page_key] = page._replace(topic=message_id.topic)
        at = bisect_left(page.keys, key)
        if at < len(page.keys) and page.keys[at] == key:
            page.times[at], page.counts[at] = time_ms, count
            return
        page.keys.insert(at, key)
        page.times.insert(at, time_ms)
        page.counts.insert(at, count)
        self._length += 1

    def drop(self, message_id: MessageId) -> None:
        """Remove a message, or all messages of an entry if the id has no batch index."""
        page_key = _page_key(message_id)
        page = self._pages.get(page_key)
        if page is None:
            return
        key = _key(message_id)
        at = bisect_left(page.keys, key)
        end = bisect_left(page.keys, _end(message_id))
        if message_id.batch_index >= 0:
            end = at + (at < len(page.keys) and page.keys[at] == key)
        self._cut(page_key, page, at, end)

    def drop_up_to(self, message_id: MessageId) -> None:
        """Remove all messages up to and including ``message_id`` in its partition. O(pages)."""
        for page_key, page in list(self._pages.items()):
            ledger, partition, number = page_key
            is_other = partition != message_id.partition or ledger > message_id.ledger
            if is_other or not _is_same_topic(page.topic, message_id.topic):
                continue
            whole = ledger < message_id.ledger or number < message_id.entry >> PAGE_BITS
            if whole:
                self._cut(page_key, page, 0, len(page.keys))
            elif number == message_id.entry >> PAGE_BITS:
                last = _end(message_id) - 1 if message_id.batch_index < 0 else _key(message_id)
                self._cut(page_key, page, 0, bisect_right(page.keys, last))

    def drop_before(self, time_ms: int) -> Iterator[None]:
        """Remove messages with an earlier time, one page a step; O(messages) in all."""
        for page_key in list(self._pages):
            page = self._pages.get(page_key)
            if page is not None and min(page.times) < time_ms:
                is_kept = [time >= time_ms for time in page.times]
                for column in _columns(page):
                    column[:] = array(column.typecode, compress(column, is_kept))
                self._shrink(page_key, page, is_kept.count(False))
            yield

    def pages(self) -> Iterator[PendingPage]:
        """Return all pages, large ones in parts. They may change meanwhile; new ones are not returned."""
        for page_key in list(self._pages):
            page = self._pages.get(page_key)
            if page is not None:
                yield from _parts(page)

    def load(self, page: PendingPage) -> None:
        """Add a page, or a further part of one."""
        before = self._pages.get(page[:3])
        if before is None:
            self._pages[page[:3]] = page
        elif before.keys[-1] < page.keys[0]:
            for column, more in zip(_columns(before), _columns(page), strict=True):
                column.extend(more)
        else:
            raise ValueError("a page that exists already")
        self._length += len(page.keys)

    def clear(self) -> None:
        """Remove all messages."""
        self._pages.clear()
        self._length = 0

    def _cut(self, page_key: _PageKey, page: PendingPage, at: int, end: int) -> None:
        for column in _columns(page):
            del column[at:end]
        self._shrink(page_key, page, end - at)

    def _shrink(self, page_key: _PageKey, page: PendingPage, removed: int) -> None:
        self._length -= removed
        if not page.keys:
            del self._pages[page_key]

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        assert self._length == sum(len(page.keys) for page in self._pages.values())
        for page_key, page in self._pages.items():
            assert page_key == page[:3]
            assert page.keys
            assert len(page.keys) == len(page.times) == len(page.counts)
            assert sorted(set(page.keys)) == list(page.keys)


def _parts(page: PendingPage) -> list[PendingPage]:
    """Return copies of parts that fit into a record each."""
    return [
        page._replace(
            keys=page.keys[at : at + _MAX_IN_RECORD],
            times=page.times[at : at + _MAX_IN_RECORD],
            counts=page.counts[at : at + _MAX_IN_RECORD],
        )
        for at in range(0, len(page.keys), _MAX_IN_RECORD)
    ]


def _columns(page: PendingPage) -> tuple[array[int], array[int], array[int]]:
    return page.keys, page.times, page.counts


def _page_key(message_id: MessageId) -> _PageKey:
    return message_id.ledger, message_id.partition, message_id.entry >> PAGE_BITS


def _key(message_id: MessageId) -> int:
    return (message_id.entry & _MASK) << _INDEX_BITS | message_id.batch_index + 1


def _end(message_id: MessageId) -> int:
    """Return an upper bound of the keys of an entry's messages."""
    return (message_id.entry & _MASK) + 1 << _INDEX_BITS


def _is_same_topic(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other
