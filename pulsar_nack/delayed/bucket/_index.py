"""The state of a bucket tracker, without clock, storage or loop. Pure.

- ``pending`` is the set of positions that are held. It alone is the truth: an index whose position is not pending
  (handed out, acknowledged, or both in a merged bucket and its source) is skipped wherever it is met.
- ``queue`` has all indexes in memory, in order of time.
- ``mutable`` is being filled. ``sealing`` are sealed; their indexes are in memory while their snapshots are stored.
- ``buckets`` are stored, in order of their ledgers; a part of each may be in the queue.

No message is handed out while a bucket has an earlier segment on storage, so messages are in order of time across all
buckets, except that a bucket whose segment does not arrive for long is not waited for. Buckets without remaining
indexes go to ``retired``.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from ...config import BucketConfig
from ...ids import Position
from ...index import NEVER, PositionSet
from ..format import Columns
from ..ticks import LATEST
from ._buckets import AnyBucket, ImmutableBucket, MutableBucket
from ._queue import DueQueue

_BATCH: Final = 64
"""How many indexes are taken at a time."""


class BucketIndex:
    """The state of a bucket tracker; see the head of the module. Times are epoch ms."""

    def __init__(self, config: BucketConfig) -> None:
        self._config = config
        self.pending = PositionSet()
        self.mutable = MutableBucket.of(config)
        self.queue = DueQueue(self.mutable)
        self.sealing: deque[MutableBucket] = deque()
        self.buckets: list[ImmutableBucket] = []
        self.retired: list[ImmutableBucket] = []
        self._bucket_bytes = 0
        self._is_stale = self._has_late = False
        self.changes = 0
        self._ordered_until = self._storage_at = self._load_at = NEVER

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Return about how much memory is in use. O(1)."""
        return self.queue.bytes + self.pending.bytes + self._bucket_bytes

    @property
    def unsealed(self) -> int:
        """Return how many indexes are not on storage. O(buckets that are being stored)."""
        return self.mutable.loaded + sum(bucket.loaded for bucket in self.sealing)

    @property
    def ordered_until(self) -> int:
        """Return the time up to which messages may be handed out: the earliest one that may still be on storage."""
        self._refresh()
        return self._ordered_until

    @property
    def storage_at(self) -> int:
        """Return the earliest time on storage that is not in memory."""
        self._refresh()
        return self._storage_at

    @property
    def load_at(self) -> int:
        """Return the earliest time of a segment that may be loaded."""
        self._refresh()
        return self._load_at

    @property
    def has_late(self) -> bool:
        """Return whether loading a segment has failed or takes long."""
        self._refresh()
        return self._has_late

    def _refresh(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        self._has_late = any(each.is_unreadable for each in self.buckets)
        self._ordered_until = min((each.next_at for each in self.buckets if not each.is_slow), default=NEVER)
        self._storage_at = min((each.next_at for each in self.buckets), default=NEVER)
        self._load_at = min((each.next_at for each in self.buckets if each.can_load_next), default=NEVER)

    def changed(self) -> None:
        """Note that the state of a bucket has changed: loading, failing or done. ``changes`` counts these calls."""
        self._is_stale = True
        self.changes += 1

    # -- adding and taking out ---------------------------------------------------------------------------------------

    def add(self, ledger: int, entry: int, deliver_at: int, now_ms: int) -> bool:
        """Hold a position; return False if it is held already, which keeps its time. O(log)."""
        if not self.pending.add(ledger, entry):
            return False
        if self.mutable.is_full(ledger, now_ms):
            self.seal()
        self.queue.push((deliver_at, ledger, entry))
        self.mutable.add(ledger, now_ms)
        return True

    def add_many(self, ledger: int, entries: array[int], times: array[int], now_ms: int) -> None:
        """Hold positions of a ledger (entries of typecode ``I``); those that are already held keep their times."""
        at = 0
        while at < len(entries):
            if self.mutable.is_full(ledger, now_ms):
                self.seal()
            to = at + self.mutable.room
            part = entries[at:to]
            if self.pending.add_new(ledger, part):
                self.queue.push_many(Columns.of_ledger(ledger, part, times[at:to]))
                self.mutable.add(ledger, now_ms, len(part))
            else:
                for deliver_at, entry in zip(times[at:to], part, strict=True):
                    self.add(ledger, entry, deliver_at, now_ms)
            at = to

    def add_later(self, ledger: int, entries: array[int], times: array[int], cutoff: int, now_ms: int) -> list[int]:
        """Hold positions whose time is after ``cutoff``; stop holding the others, and return their entries."""
        due: list[int] = []
        if min(times) <= cutoff:
            due = [entry for at, entry in zip(times, entries, strict=True) if at <= cutoff]
            entries = array("I", (entry for at, entry in zip(times, entries, strict=True) if at > cutoff))
            times = array("q", (at for at in times if at > cutoff))
        if times and max(times) > LATEST:
            times = array("q", (min(at, LATEST) for at in times))
        self.add_many(ledger, entries, times, now_ms)
        for entry in due:
            self.pending.discard(ledger, entry)
        return due

    def seal(self) -> None:
        """Seal the mutable bucket, so that it is stored, and begin a new one."""
        sealed, self.mutable = self.mutable, MutableBucket.of(self._config)
        self.queue.change_tail_owner(self.mutable)
        self.sealing.append(sealed)

    @property
    def seal_at(self) -> int:
        """Return when the mutable bucket has to be sealed because it is old, NEVER while it is too small."""
        return self.mutable.old_at

    @property
    def ready_at(self) -> int:
        """Return the time of the next message to hand out, NEVER while it has to wait for storage. Amortized O(log)."""
        queue, pending = self.queue, self.pending
        while (first := queue.first()) is not None and (first[1], first[2]) not in pending:
            self._took(queue.pop())
        earliest = queue.earliest
        return earliest if earliest <= self.ordered_until else NEVER

    def pop(self, cutoff: int, limit: int) -> list[Position]:
        """Remove and return at most ``limit`` messages that are due at ``cutoff``, earliest first. O(log) each."""
        until = min(cutoff, self.ordered_until)
        positions: list[Position] = []
        while len(positions) < limit:
            taken, owners = self.queue.take(until, min(limit - len(positions), _BATCH))
            if not taken:
                break
            positions += self.pending.take_out(taken)
            for owner in owners:
                self._took(owner)
        return positions

    def _took(self, owner: object) -> None:
        if isinstance(owner, ImmutableBucket):
            if owner.becomes_half_used():
                self.changed()
            self.retire_if_used_up(owner)

    def retire_if_used_up(self, bucket: ImmutableBucket) -> None:
        """Retire a bucket without remaining indexes, unless it is being merged."""
        if bucket.is_used_up and not bucket.is_merging and not bucket.is_dropped:
            self._retire(bucket)

    def _retire(self, bucket: ImmutableBucket) -> None:
        self.buckets.remove(bucket)
        self._bucket_bytes -= bucket.bytes
        self.changed()
        bucket.is_dropped = True
        self.retired.append(bucket)

    # -- buckets -----------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> int:
        """Return the earliest time of all messages, those of slow buckets excluded; NEVER if there are none."""
        return min(self.queue.earliest, self.ordered_until)

    def to_load(self, until: int) -> list[ImmutableBucket]:
        """Return the buckets whose next segment may be loaded and begins at ``until`` or before, earliest first.

        O(buckets) if there is one.
        """
        if self.load_at > until:
            return []
        wanted = (bucket for bucket in self.buckets if bucket.can_load_next and bucket.next_at <= until)
        return sorted(wanted, key=lambda bucket: bucket.next_at)

    def loaded(self, bucket: ImmutableBucket, columns: Columns) -> None:
        """Add the next segment of a bucket, which was read from storage, to the queue."""
        bucket.note_loaded(len(columns))
        self.queue.add(columns, bucket)
        self.changed()
        self.retire_if_used_up(bucket)

    def earliest_of(self, owners: Collection[AnyBucket]) -> int:
        """Return the earliest remaining time of some buckets, or NEVER."""
        heads = (run.columns.times[run.at] for run in self.queue.runs(owners))
        stored = (owner.next_at for owner in owners if isinstance(owner, ImmutableBucket) and not owner.is_dropped)
        return min((*heads, *stored), default=NEVER)

    def replace(
        self, owners: Sequence[AnyBucket], bucket: ImmutableBucket, segment: int, columns: Columns | None
    ) -> None:
        """Replace the buckets that a stored bucket was made from, in the queue too.

        :param segment: the first segment that is still needed
        :param columns: the indexes of that segment; None leaves it on storage
        """
        self.queue.drop(owners)
        for owner in owners:
            if isinstance(owner, MutableBucket):
                self.sealing.remove(owner)
            elif not owner.is_dropped:
                self._retire(owner)
        bucket.skip_to(segment)
        self.put(bucket)
        if columns is not None:
            self.loaded(bucket, columns)
        self.retire_if_used_up(bucket)

    def put(self, bucket: ImmutableBucket) -> None:
        """Add a stored bucket. O(buckets)."""
        insort(self.buckets, bucket, key=lambda each: (each.start, each.end, each.named.snapshot_id))
        self._bucket_bytes += bucket.bytes
        self.changed()

    def trim(self, position: Position) -> int:
        """Drop everything up to a position; return how many messages were dropped. O(ledgers + buckets)."""
        dropped = self.pending.trim(*position)
        passed = [bucket for bucket in self.buckets if bucket.end < position.ledger]
        if passed:
            self.queue.drop(passed)
            for bucket in passed:
                self._retire(bucket)
        return dropped

    def clear(self) -> None:
        """Drop everything, including buckets that are being stored."""
        dropped: list[AnyBucket] = [*self.buckets, *self.sealing]
        for each in dropped:
            each.is_dropped = True
        self.pending.clear()
        self.queue.clear()
        self.mutable = MutableBucket.of(self._config)
        self.queue.change_tail_owner(self.mutable)
        self.sealing.clear()
        self.buckets.clear()
        self._bucket_bytes = 0
        self.changed()
