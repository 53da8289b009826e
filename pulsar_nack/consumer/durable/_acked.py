"""What was acknowledged and may not have reached the broker: acknowledged again when it comes, and not shown.

This is no mirror of the subscription. The state that a cursor has of a topic (:mod:`pulsar_nack.cursor`) is kept in
*slices* of time, each of them the acknowledged ranges of some ledgers::

    slice       0        1        2   ...   8          each spans an 8th of ``memory_ms``
    ledger 7    0-41     42-77    78-102               a run of any length is one range
    ledger 9             3, 5-8                        the rest went to other consumers

A slice goes as a whole once its youngest acknowledgement is ``memory_ms`` old: by then the broker has it. Without that
a Shared subscription leaves holes for ever, where other consumers acknowledge. Batches of which some messages are left
are kept until they are done, whatever their age: until then the broker need not know of any of their
acknowledgements. Cumulative acknowledgements are a mark for each partition.

Where the broker keeps what it has confirmed, as over the native wire, nothing but those batches is remembered
(``memory_ms`` is 0): what was confirmed and comes again after a restart was replayed, or the broker has lost it.

Ages are counted while a consumer runs and is connected. What was not sent when the process ended, or the connection, is
not known to have reached the broker, and comes again when that is back, after a second or a week. So after each absence
all that is remembered is as new again. Hence *uptime*: epoch ms less the time spent away and what had passed before.

Dropped: one cursor that is written with each acknowledgement. It cannot forget a single entry but by moving its
mark-delete position, which would hide what was never acknowledged; and it writes a whole ledger's state where the
journal appends 49 bytes, in the same write as nacks and attempts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...ids import MessageId
from .._batches import EntryKey, entry_key, is_member, is_same_topic, is_through
from ._records import Change, EntryAcks, Kind, RangeAcks, batch_bytes
from ._slices import Slices

SLICES: Final = 8
_LARGEST_BATCH: Final = 1 << 20
"""Far more than a broker takes; an id that tells of more is none of its own."""
_MOST_MARKS: Final = 10_000


@dataclass(slots=True)
class _Batch:
    topic: str | None
    size: int
    acked: int
    uptime_ms: int

    @property
    def is_done(self) -> bool:
        return self.acked.bit_count() >= self.size

    @property
    def bytes(self) -> int:
        return batch_bytes(self.topic, self.size)


class Settled:
    """Acknowledgements to remember. Each call is O(slices), but where noted.

    :param memory_ms: how long; up to an 8th longer. 0: not at all, as the broker has confirmed what is noted here
    :param keeps_members: the broker learns of a batch when it is done; False: of each message that is acknowledged
    """

    def __init__(self, memory_ms: int, *, keeps_members: bool = True) -> None:
        self._memory_ms = memory_ms
        self._keeps_members = keeps_members
        self.step_ms = max(memory_ms // SLICES, 1)
        """The span of a slice."""
        self._whole = Slices(self.step_ms)
        self._open: dict[EntryKey, _Batch] = {}
        self._open_bytes = 0
        self._marks: dict[tuple[str | None, int], tuple[MessageId, int]] = {}
        self._away_ms = 0

    def __len__(self) -> int:
        """Return how many records writing all of it takes, about."""
        return len(self._whole) + len(self._open) + len(self._marks)

    @property
    def bytes(self) -> int:
        """Return about what writing all of it takes. O(1)."""
        return self._whole.bytes + self._open_bytes

    @property
    def entries(self) -> int:
        """Return how many entries are known to be acknowledged, as a whole or in part. O(ledgers)."""
        return self._whole.entries + len(self._open)

    @property
    def is_ageing(self) -> bool:
        """Return whether anything is kept for a time."""
        return bool(len(self._whole) or self._marks)

    def was_away(self, from_ms: int, to_ms: int) -> None:
        """Do not count this time, and begin anew to count for all that is remembered. O(marks)."""
        self.drop_old(from_ms)
        times = [from_ms - self._away_ms, *(uptime_ms for _, uptime_ms in self._marks.values())]
        if self._whole.oldest_ms is not None:
            times.append(self._whole.oldest_ms)
        self._away_ms = to_ms - min(times)

    # --- asking ------------------------------------------------------------------------------------------------------

    def is_acked(self, message_id: MessageId, now_ms: int) -> bool:
        """Return whether this message was acknowledged, and that is to be given again when it comes."""
        uptime_ms = now_ms - self._away_ms
        self._whole.drop_before(uptime_ms - self._memory_ms)
        batch = self._open.get(entry_key(message_id))
        if batch is not None and message_id.batch_index >= 0:
            return bool(batch.acked >> message_id.batch_index & 1)
        return message_id in self._whole or self._is_below_mark(message_id, uptime_ms)

    def is_hole(self, message_id: MessageId) -> bool:
        """Return whether acknowledged entries of the ledger lie above this one, so that it had better be shown."""
        return self._whole.reach_beyond(message_id)

    def adds_nothing(self, message_id: MessageId) -> bool:
        """Return whether acknowledging this one makes no further range, and no set of a batch."""
        if is_member(message_id):
            return entry_key(message_id) in self._open
        return self._whole.touch(message_id)

    def _is_below_mark(self, message_id: MessageId, uptime_ms: int) -> bool:
        mark = self._marks.get((message_id.topic, message_id.partition))
        return mark is not None and mark[1] >= uptime_ms - self._memory_ms and is_through(message_id, mark[0])

    # --- noting ------------------------------------------------------------------------------------------------------

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Note an acknowledgement.

        A member whose batch size is not known, or which cannot be in a batch of this size, is not remembered.
        """
        uptime_ms = at_ms - self._away_ms
        self._whole.drop_before(uptime_ms - self._memory_ms)
        if message_id.entry < 0:
            return
        if not is_member(message_id):
            self._drop_batch(entry_key(message_id))
            self._add_whole(message_id, uptime_ms)
        elif message_id.batch_index < message_id.batch_size <= _LARGEST_BATCH and message_id not in self._whole:
            self._add_member(message_id, uptime_ms)

    def _add_whole(self, message_id: MessageId, uptime_ms: int) -> None:
        if self._memory_ms:
            self._whole.add(message_id, uptime_ms)

    def _add_member(self, message_id: MessageId, uptime_ms: int) -> None:
        key = entry_key(message_id)
        batch = self._drop_batch(key) or _Batch(message_id.topic, message_id.batch_size, 0, uptime_ms)
        batch.acked |= 1 << message_id.batch_index
        batch.size = max(batch.size, message_id.batch_size)
        batch.uptime_ms = uptime_ms
        if batch.is_done:
            self._add_whole(message_id, uptime_ms)
        else:
            self._put_batch(key, batch)

    def _put_batch(self, key: EntryKey, batch: _Batch) -> None:
        self._open[key] = batch
        self._open_bytes += batch.bytes

    def _drop_batch(self, key: EntryKey) -> _Batch | None:
        batch = self._open.pop(key, None)
        if batch is not None:
            self._open_bytes -= batch.bytes
        return batch

    def add_through(self, message_id: MessageId, at_ms: int) -> None:
        """Note a cumulative acknowledgement. O(batches)."""
        self._marks.pop((message_id.topic, message_id.partition), None)
        if self._memory_ms:
            self._marks[message_id.topic, message_id.partition] = (message_id, at_ms - self._away_ms)
        if len(self._marks) > _MOST_MARKS:
            del self._marks[next(iter(self._marks))]
        here = entry_key(message_id)
        for key, batch in list(self._open.items()):
            is_before = key < here and is_same_topic(MessageId(*key, topic=batch.topic), message_id)
            if is_before or (key == here and message_id.batch_index < 0):
                self._drop_batch(key)

    def load(self, item: EntryAcks | RangeAcks) -> None:
        """Take over the acknowledged members of a batch, or ranges of a ledger. O(ranges)."""
        uptime_ms = item.at_ms - self._away_ms
        if isinstance(item, RangeAcks):
            if self._memory_ms:
                self._whole.load(item.id, uptime_ms, item.ranges)
            return
        batch = _Batch(item.id.topic, item.id.batch_size, item.acked, uptime_ms)
        self._drop_batch(entry_key(item.id))
        if batch.is_done:
            self._add_whole(item.id, uptime_ms)
        else:
            self._put_batch(entry_key(item.id), batch)

    def shown(self, message_id: MessageId) -> None:
        """Forget that a message was acknowledged: it was replayed."""
        key = entry_key(message_id)
        batch = self._drop_batch(key) if key in self._open else None
        size = message_id.batch_size
        if self._whole.discard(message_id) and is_member(message_id) and size <= _LARGEST_BATCH:
            batch = _Batch(message_id.topic, size, (1 << size) - 1, self._whole.last_ms)
        if batch is None:
            return
        batch.acked &= ~(1 << message_id.batch_index) if message_id.batch_index >= 0 else 0
        if batch.acked:
            self._put_batch(key, batch)

    def confirmed(self) -> None:
        """Forget what the broker keeps now: all but members that are acknowledged with their batches only."""
        self._whole.clear()
        self._marks.clear()
        if not self._keeps_members:
            self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._whole.clear()
        self._open.clear()
        self._marks.clear()
        self._open_bytes = 0

    # --- forgetting --------------------------------------------------------------------------------------------------

    def drop_old(self, now_ms: int, ttl_ms: int | None = None) -> None:
        """Forget what is older than ``memory_ms``, and open batches that nothing was acknowledged of for ``ttl_ms``.

        O(batches that go).
        """
        uptime_ms = now_ms - self._away_ms
        oldest_ms = uptime_ms - self._memory_ms
        self._whole.drop_before(oldest_ms)
        self._marks = {key: mark for key, mark in self._marks.items() if mark[1] >= oldest_ms}
        while (
            ttl_ms is not None
            and self._open
            and (first := next(iter(self._open.items())))[1].uptime_ms < uptime_ms - ttl_ms
        ):
            self._drop_batch(first[0])

    # --- writing -----------------------------------------------------------------------------------------------------

    def items(self) -> Iterator[Change | EntryAcks | RangeAcks]:
        """Go through all of it as records, with times as if nothing had been spent away; it may change meanwhile.

        Batches come before the ranges: one that is done meanwhile comes with those, and is not missed. And after them:
        one that was done, and of which a message is shown again, is a batch again.
        """
        written = set(self._open)
        yield from self.batches()
        yield from self._whole.items(self._away_ms)
        yield from self._batches([each for each in self._open.items() if each[0] not in written])
        yield from self.marks()

    def batches(self) -> Iterator[EntryAcks]:
        """Go through the batches of which some messages are left."""
        yield from self._batches(list(self._open.items()))

    def marks(self) -> Iterator[Change]:
        """Go through the cumulative acknowledgements."""
        for message_id, uptime_ms in list(self._marks.values()):
            at_ms = uptime_ms + self._away_ms
            yield Change(Kind.THROUGH, message_id, at_ms, at_ms)

    def _batches(self, some: list[tuple[EntryKey, _Batch]]) -> Iterator[EntryAcks]:
        for key, batch in some:
            message_id = MessageId(*key, batch_size=batch.size, topic=batch.topic)
            yield EntryAcks(message_id, batch.uptime_ms + self._away_ms, batch.acked)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        self._whole._check()
        assert self._open_bytes == sum(batch.bytes for batch in self._open.values())
        assert all(0 < batch.acked.bit_count() < batch.size for batch in self._open.values())
