"""Acknowledged messages that the broker may not know of: if one is delivered, it is acknowledged again and hidden.

This is not a copy of the subscription's cursor. The acknowledgements are kept in *slices* of time, each with the
acknowledged ranges of some ledgers::

    slice       0        1        2   ...   8          each spans an 8th of ``memory_ms``
    ledger 7    0-41     42-77    78-102               a run of any length is one range
    ledger 9             3, 5-8                        other consumers got the rest

A slice is dropped once its newest acknowledgement is ``memory_ms`` old: by then the broker has it. Otherwise a Shared
subscription would leave holes forever, where other consumers acknowledge. Partly acknowledged batches are kept until
they are complete, whatever their age, because the broker need not know of any of their acknowledgements before that. A
cumulative acknowledgement is a mark for its partition.

If the broker keeps what it has confirmed, as over the native wire, only those batches are remembered (``memory_ms`` is
0): a message that was confirmed and is delivered after a restart was replayed, or the broker has lost the
acknowledgement.

Acknowledgements age only while the consumer runs and is connected. One that was not sent before the process or the
connection ended may not have reached the broker, and its message is redelivered when the consumer is back, after a
second or a week. So each time offline makes all of them new again. Hence *uptime*: epoch ms less the time offline and
the age that acknowledgements had before.

Rejected: one cursor that is written with each acknowledgement. It can drop a single entry only by moving its
mark-delete position, which would hide messages that were never acknowledged. And it writes the state of a whole ledger
where the journal appends 49 bytes, in the same write as nacks and attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...ids import MessageId
from ...index import EntryRanges
from .._id_relations import EntryKey, LedgerKey, entry_key, is_member, is_same_topic, is_through
from ._records import MAX_BATCH, MAX_RANGES, BatchAcks, Change, RangeAcks, RecordKind, batch_bytes, ranges_bytes

SLICES: Final = 8
_MAX_MARKS: Final = 10_000
_SHORT_RANGE: Final = 8


@dataclass(slots=True)
class _Slice:
    first_ms: int
    last_ms: int
    ledgers: dict[LedgerKey, EntryRanges] = field(default_factory=dict)
    topics: dict[LedgerKey, str | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        ranges = sum(ledger.range_count for ledger in self.ledgers.values())
        return ranges_bytes(ranges) + sum(batch_bytes(topic, 0) for topic in self.topics.values())


class AckSlices:
    """Entries that were acknowledged as a whole, oldest first. Calls are O(slices) except where noted.

    :param memory_ms: how long they are remembered, up to an 8th longer; 0: not at all
    """

    def __init__(self, memory_ms: int) -> None:
        self.bytes = 0
        """About the size of all records in bytes; kept up to date."""
        self.slice_ms = max(memory_ms // SLICES, 1)
        """The span of a slice."""
        self._memory_ms = memory_ms
        self._slices: deque[_Slice] = deque()

    def __len__(self) -> int:
        """Return the sum of the slices' numbers of ledgers."""
        return sum(len(each.ledgers) for each in self._slices)

    @property
    def entries(self) -> int:
        """Return the number of entries. O(ledgers)."""
        return sum(len(ranges) for each in self._slices for ranges in each.ledgers.values())

    @property
    def last_ms(self) -> int:
        """Return the time of the newest acknowledgement, or 0."""
        return self._slices[-1].last_ms if self._slices else 0

    @property
    def oldest_ms(self) -> int | None:
        """Return the time of the newest acknowledgement in the oldest slice, or None."""
        return self._slices[0].last_ms if self._slices else None

    def __contains__(self, message_id: MessageId) -> bool:
        return any(message_id.entry in ranges for ranges in self._ranges_of(message_id))

    def _ranges_of(self, message_id: MessageId) -> list[EntryRanges]:
        """Return what the slices have of a message's ledger."""
        key = message_id.ledger, message_id.partition
        return [each.ledgers[key] for each in self._slices if key in each.ledgers]

    def has_higher(self, message_id: MessageId) -> bool:
        """Return whether higher entries of the ledger are acknowledged, so that this one is in a hole."""
        lasts = (ranges.last for ranges in self._ranges_of(message_id))
        return any(last is not None and last > message_id.entry for last in lasts)

    def extends_range(self, message_id: MessageId) -> bool:
        """Return whether adding this entry now extends a range instead of making a new one."""
        if not self._slices:
            return False
        ranges = self._slices[-1].ledgers.get((message_id.ledger, message_id.partition))
        entry = message_id.entry
        return ranges is not None and (entry - 1 in ranges or entry + 1 in ranges)

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Add an entry; times must ascend."""
        if not self._memory_ms:
            return
        newest = self._newest(message_id, at_ms)
        before = newest.range_count
        newest.add(message_id.entry)
        self.bytes += ranges_bytes(newest.range_count - before)

    def load(self, message_id: MessageId, at_ms: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Add ranges of a ledger. O(ranges)."""
        if not self._memory_ms:
            return
        newest = self._newest(message_id, at_ms)
        before = newest.range_count
        newest.add_many(
            entry for first, last in ranges if last - first < _SHORT_RANGE for entry in range(first, last + 1)
        )
        for first, last in ranges:
            if last - first >= _SHORT_RANGE:
                newest.add_range(first, last)
        self.bytes += ranges_bytes(newest.range_count - before)

    def _newest(self, message_id: MessageId, at_ms: int) -> EntryRanges:
        """Return the ranges of a message's ledger in the current slice."""
        if not self._slices or at_ms - self._slices[-1].first_ms >= self.slice_ms:
            self._slices.append(_Slice(at_ms, at_ms))
        newest = self._slices[-1]
        newest.last_ms = max(newest.last_ms, at_ms)
        key = message_id.ledger, message_id.partition
        ranges = newest.ledgers.get(key)
        if ranges is None:
            ranges = newest.ledgers[key] = EntryRanges()
            newest.topics[key] = message_id.topic
            self.bytes += batch_bytes(message_id.topic, 0)
        return ranges

    def discard(self, message_id: MessageId) -> bool:
        """Remove an entry; return whether it was acknowledged."""
        entry, was_there = message_id.entry, False
        for ranges in self._ranges_of(message_id):
            if entry in ranges:
                before = ranges.range_count
                ranges.discard_range(entry, entry)
                self.bytes += ranges_bytes(ranges.range_count - before)
                was_there = True
        return was_there

    def drop_old(self, now_ms: int) -> None:
        """Drop the slices whose newest acknowledgement is older than ``memory_ms``. O(dropped ledgers)."""
        while self._slices and self._slices[0].last_ms < now_ms - self._memory_ms:
            self.bytes -= self._slices.popleft().bytes

    def clear(self) -> None:
        """Drop all slices."""
        self._slices.clear()
        self.bytes = 0

    def records(self, offline_ms: int) -> Iterator[RangeAcks]:
        """Return the records of all entries, with times ``offline_ms`` later; the entries may change meanwhile."""
        for each in list(self._slices):
            for (number, partition), ranges in list(each.ledgers.items()):
                message_id = MessageId(number, 0, partition, topic=each.topics[number, partition])
                copied = ranges.copy().ranges()
                while part := list(islice(copied, MAX_RANGES)):
                    yield RangeAcks(message_id, each.last_ms + offline_ms, part)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        assert self.bytes == sum(each.bytes for each in self._slices)
        times = [each.last_ms for each in self._slices]
        assert times == sorted(times)
        for each in self._slices:
            assert each.ledgers.keys() == each.topics.keys()
            for ranges in each.ledgers.values():
                ranges._verify()


class AckedMessages:
    """Recent acknowledgements. Calls are O(slices) except where noted.

    :param memory_ms: as for :class:`AckSlices`; 0: the broker has confirmed acknowledgements when they are added
    :param keeps_members: whether the broker is informed of a batch only when all its messages are acknowledged; False:
        of each message
    """

    def __init__(self, memory_ms: int, *, keeps_members: bool = True) -> None:
        self._memory_ms = memory_ms
        self._keeps_members = keeps_members
        self._entries = AckSlices(memory_ms)
        self.slice_ms = self._entries.slice_ms
        self._batches: dict[EntryKey, BatchAcks] = {}  # with times of the uptime
        self._batch_bytes = 0
        self._marks: dict[tuple[str | None, int], tuple[MessageId, int]] = {}
        self._offline_ms = 0

    def __len__(self) -> int:
        """Return about the number of all records."""
        return len(self._entries) + len(self._batches) + len(self._marks)

    @property
    def bytes(self) -> int:
        """Return about the size of all records in bytes. O(1)."""
        return self._entries.bytes + self._batch_bytes

    @property
    def entries(self) -> int:
        """Return the number of entries that are acknowledged, at least in part. O(ledgers)."""
        return self._entries.entries + len(self._batches)

    @property
    def has_expiring(self) -> bool:
        """Return whether some acknowledgements expire."""
        return bool(len(self._entries) or self._marks)

    def skip_time(self, from_ms: int, to_ms: int) -> None:
        """Exclude a time offline from the ages, and set all ages to zero. O(marks)."""
        self.drop_old(from_ms)
        times = [from_ms - self._offline_ms, *(uptime_ms for _, uptime_ms in self._marks.values())]
        if self._entries.oldest_ms is not None:
            times.append(self._entries.oldest_ms)
        self._offline_ms = to_ms - min(times)

    # --- asking ------------------------------------------------------------------------------------------------------

    def is_acked(self, message_id: MessageId, now_ms: int) -> bool:
        """Return whether a message was acknowledged, so that its acknowledgement has to be repeated."""
        uptime_ms = now_ms - self._offline_ms
        self._entries.drop_old(uptime_ms)
        batch = self._batches.get(entry_key(message_id))
        if batch is not None and message_id.batch_index >= 0:
            return bool(batch.acked >> message_id.batch_index & 1)
        if message_id in self._entries:
            return True
        mark = self._marks.get((message_id.topic, message_id.partition))
        return mark is not None and mark[1] >= uptime_ms - self._memory_ms and is_through(message_id, mark[0])

    def is_in_hole(self, message_id: MessageId) -> bool:
        """Return whether higher entries of the ledger are acknowledged, so that this message fills a hole."""
        return self._entries.has_higher(message_id)

    def adds_nothing(self, message_id: MessageId) -> bool:
        """Return whether the acknowledgement of this message needs no new range and no new batch."""
        if is_member(message_id):
            return entry_key(message_id) in self._batches
        return self._entries.extends_range(message_id)

    # --- adding ------------------------------------------------------------------------------------------------------

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Add an acknowledgement.

        A message of a batch is ignored if the batch size is unknown, or smaller than the batch index.
        """
        uptime_ms = at_ms - self._offline_ms
        self._entries.drop_old(uptime_ms)
        if message_id.entry < 0:
            return
        if not is_member(message_id):
            self._drop_batch(message_id)
            self._entries.add(message_id, uptime_ms)
        elif message_id.batch_index < message_id.batch_size <= MAX_BATCH and message_id not in self._entries:
            self._add_member(message_id, uptime_ms)

    def _add_member(self, message_id: MessageId, uptime_ms: int) -> None:
        batch = self._drop_batch(message_id)
        if batch is None:
            batch = BatchAcks(_batch_id(message_id, message_id.batch_size), uptime_ms, 0)
        elif batch.id.batch_size < message_id.batch_size:
            batch = batch._replace(id=_batch_id(batch.id, message_id.batch_size))
        self._put_batch(batch._replace(at_ms=uptime_ms, acked=batch.acked | 1 << message_id.batch_index))

    def _put_batch(self, batch: BatchAcks) -> None:
        """Keep a batch; it is an entry like others once all its messages are acknowledged."""
        if batch.is_done:
            self._entries.add(batch.id, batch.at_ms)
        else:
            self._batches[entry_key(batch.id)] = batch
            self._batch_bytes += batch_bytes(batch.id.topic, batch.id.batch_size)

    def _drop_batch(self, message_id: MessageId) -> BatchAcks | None:
        batch = self._batches.pop(entry_key(message_id), None)
        if batch is not None:
            self._batch_bytes -= batch_bytes(batch.id.topic, batch.id.batch_size)
        return batch

    def add_up_to(self, message_id: MessageId, at_ms: int) -> None:
        """Add a cumulative acknowledgement. O(batches)."""
        self._marks.pop((message_id.topic, message_id.partition), None)
        if self._memory_ms:
            self._marks[message_id.topic, message_id.partition] = (message_id, at_ms - self._offline_ms)
        if len(self._marks) > _MAX_MARKS:
            del self._marks[next(iter(self._marks))]
        here = entry_key(message_id)
        for key, batch in list(self._batches.items()):
            is_before = key < here and is_same_topic(batch.id, message_id)
            if is_before or (key == here and message_id.batch_index < 0):
                self._drop_batch(batch.id)

    def load(self, item: BatchAcks | RangeAcks) -> None:
        """Add the acknowledged messages of a batch, or ranges of a ledger. O(ranges)."""
        uptime_ms = item.at_ms - self._offline_ms
        if isinstance(item, RangeAcks):
            self._entries.load(item.id, uptime_ms, item.ranges)
            return
        self._drop_batch(item.id)
        self._put_batch(item._replace(at_ms=uptime_ms))

    def forget(self, message_id: MessageId) -> None:
        """Remove the acknowledgement of a message: it was replayed."""
        batch, size = self._drop_batch(message_id), message_id.batch_size
        if self._entries.discard(message_id) and is_member(message_id) and size <= MAX_BATCH:
            batch = BatchAcks(_batch_id(message_id, size), self._entries.last_ms, (1 << size) - 1)
        if batch is None or message_id.batch_index < 0:
            return
        acked = batch.acked & ~(1 << message_id.batch_index)
        if acked:
            self._put_batch(batch._replace(acked=acked))

    def confirm(self) -> None:
        """Drop what the broker has stored now: all but messages that are acknowledged to it with their batch."""
        self._entries.clear()
        self._marks.clear()
        if not self._keeps_members:
            self.clear()

    def clear(self) -> None:
        """Drop all acknowledgements."""
        self._entries.clear()
        self._batches.clear()
        self._marks.clear()
        self._batch_bytes = 0

    # --- dropping ----------------------------------------------------------------------------------------------------

    def drop_old(self, now_ms: int, ttl_ms: int | None = None) -> None:
        """Drop acknowledgements older than ``memory_ms``, and batches without a new acknowledgement for ``ttl_ms``.

        O(dropped batches).
        """
        uptime_ms = now_ms - self._offline_ms
        self._entries.drop_old(uptime_ms)
        self._marks = {key: mark for key, mark in self._marks.items() if mark[1] >= uptime_ms - self._memory_ms}
        while ttl_ms is not None and self._batches:
            oldest = next(iter(self._batches.values()))
            if oldest.at_ms >= uptime_ms - ttl_ms:
                return
            self._drop_batch(oldest.id)

    # --- writing -----------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Change | BatchAcks | RangeAcks]:
        """Return the records of all acknowledgements, with the time offline added back; they may change meanwhile.

        Batches come before the ranges, so that a batch that becomes complete meanwhile is in the ranges. Batches also
        come after the ranges: a complete batch of which a message was replayed meanwhile is a batch again.
        """
        written = set(self._batches)
        yield from self.batches()
        yield from self._entries.records(self._offline_ms)
        yield from self.batches(written)
        yield from self.marks()

    def batches(self, left_out: Collection[EntryKey] = ()) -> Iterator[BatchAcks]:
        """Return the partly acknowledged batches, except those that are left out."""
        for key, batch in list(self._batches.items()):
            if key not in left_out:
                yield batch._replace(at_ms=batch.at_ms + self._offline_ms)

    def marks(self) -> Iterator[Change]:
        """Return the cumulative acknowledgements."""
        for message_id, uptime_ms in list(self._marks.values()):
            at_ms = uptime_ms + self._offline_ms
            yield Change(RecordKind.CUMULATIVE_ACK, message_id, at_ms, at_ms)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        self._entries._check()
        sizes = [batch_bytes(batch.id.topic, batch.id.batch_size) for batch in self._batches.values()]
        assert self._batch_bytes == sum(sizes)
        assert all(0 < batch.acked.bit_count() < batch.id.batch_size for batch in self._batches.values())


def _batch_id(message_id: MessageId, size: int) -> MessageId:
    return MessageId(*entry_key(message_id), batch_size=size, topic=message_id.topic)
