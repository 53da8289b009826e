"""Everything that the bucket tracker knows, without clock, storage or loop. Pure.

- ``pending`` says which positions are held. It alone is the truth: an index whose position is not pending any more
  (handed out, acknowledged, or held by a merged bucket as well as by its source) is passed over where it turns up.
- ``queue`` has every index that is in memory, in order of time.
- ``mutable`` is being filled; ``sealings`` are sealed, their indexes still in memory, their snapshots on the way.
- ``buckets`` are stored, in order of their ledgers; a part of each may be in the queue.

Nothing is handed out while a bucket has an earlier segment on storage, so the order of time holds across all buckets;
a bucket whose segment does not come for long is not waited for. Buckets of which nothing is left go to ``retired``.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ...config import BucketConfig
from ...ids import Position
from ...index import NEVER
from ._columns import Columns
from ._immutable import ImmutableBucket
from ._mutable import MutableBucket, SealRule
from ._pending import Pending
from ._queue import DueQueue

_BATCH: Final = 64
"""How many are taken out in one go."""

AnyBucket = MutableBucket | ImmutableBucket


class BucketIndex:
    """The state of a tracker; see the head of the module. Times are epoch ms."""

    def __init__(self, config: BucketConfig) -> None:
        self._rule = SealRule.of(config)
        self.pending = Pending()
        self.mutable = MutableBucket()
        self.queue = DueQueue(self.mutable)
        self.sealings: deque[MutableBucket] = deque()
        self.buckets: list[ImmutableBucket] = []
        self.retired: list[ImmutableBucket] = []
        self._bucket_bytes = 0
        self._is_stale = self._has_late = False
        self.changes = 0
        self._hold_at = self._storage_at = self._load_at = NEVER

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Return about how much memory is in use. O(1)."""
        return self.queue.bytes + self.pending.bytes + self._bucket_bytes

    @property
    def unsealed(self) -> int:
        """Return how many indexes are on no storage. O(buckets that are being stored)."""
        return self.mutable.loaded + sum(sealing.loaded for sealing in self.sealings)

    @property
    def hold_at(self) -> int:
        """Return up to which time something may be handed out: storage may have earlier ones than what comes after."""
        self._look()
        return self._hold_at

    @property
    def storage_at(self) -> int:
        """Return the earliest time that is on storage and not in memory."""
        self._look()
        return self._storage_at

    @property
    def load_at(self) -> int:
        """Return the earliest time of what may be loaded."""
        self._look()
        return self._load_at

    @property
    def has_late(self) -> bool:
        """Return whether loading a segment has failed or takes long."""
        self._look()
        return self._has_late

    def _look(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        self._has_late = any(each.is_in_trouble for each in self.buckets)
        self._hold_at = min((each.next_at for each in self.buckets if not each.is_slow), default=NEVER)
        self._storage_at = min((each.next_at for each in self.buckets), default=NEVER)
        self._load_at = min((each.next_at for each in self.buckets if each.wants_more), default=NEVER)

    def changed(self) -> None:
        """Look at the buckets anew: one of them is loading, failing or done. ``changes`` counts these calls."""
        self._is_stale = True
        self.changes += 1

    # -- adding and taking out ---------------------------------------------------------------------------------------

    def add(self, ledger: int, entry: int, deliver_at: int, now_ms: int) -> bool:
        """Hold a position; return False when it is held already, with the time that it has. O(log)."""
        if not self.pending.add(ledger, entry):
            return False
        if self._rule.is_full(self.mutable, ledger, now_ms):
            self.seal()
        self.queue.push((deliver_at, ledger, entry))
        self.mutable.add(ledger, now_ms)
        return True

    def add_many(self, ledger: int, entries: array[int], times: array[int], now_ms: int) -> None:
        """Hold positions of a ledger (entries of typecode ``I``); those that are held keep the times that they have."""
        at = 0
        while at < len(entries):
            if self._rule.is_full(self.mutable, ledger, now_ms):
                self.seal()
            to = at + self._rule.room(self.mutable)
            part = entries[at:to]
            if self.pending.add_new(ledger, part):
                self.queue.push_many(Columns.of_ledger(ledger, part, times[at:to]))
                self.mutable.add(ledger, now_ms, len(part))
            else:
                for deliver_at, entry in zip(times[at:to], part, strict=True):
                    self.add(ledger, entry, deliver_at, now_ms)
            at = to

    def drop(self, ledger: int, entries: Iterable[int]) -> None:
        """Hold some positions of a ledger no more."""
        for entry in entries:
            self.pending.discard(ledger, entry)

    def seal(self) -> None:
        """Begin a new bucket; what is in the present one is to be stored."""
        sealed, self.mutable = self.mutable, MutableBucket()
        self.queue.turn(self.mutable)
        self.sealings.append(sealed)

    @property
    def ready_at(self) -> int:
        """Return the time of what is handed out next, NEVER while that is to wait for storage. Amortized O(log)."""
        queue, pending = self.queue, self.pending
        while (first := queue.first()) is not None and (first[1], first[2]) not in pending:
            self._took(queue.pop())
        earliest = queue.earliest
        return earliest if earliest <= self.hold_at else NEVER

    def pop(self, cutoff: int, limit: int) -> list[Position]:
        """Take out what is due at ``cutoff`` or before, earliest first. O(log) each."""
        until = min(cutoff, self.hold_at)
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
            if owner.becomes_low():
                self.changed()
            self.retire_if_used_up(owner)

    def retire_if_used_up(self, bucket: ImmutableBucket) -> None:
        """Let a bucket go of which nothing is left, unless it is being merged."""
        if bucket.is_used_up and not bucket.is_merging and not bucket.is_gone:
            self._retire(bucket)

    def _retire(self, bucket: ImmutableBucket) -> None:
        self.buckets.remove(bucket)
        self._bucket_bytes -= bucket.bytes
        self.changed()
        bucket.is_gone = True
        self.retired.append(bucket)

    # -- buckets -----------------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> int:
        """Return the earliest time of all that is held, but for what storage is not waited for; NEVER without any."""
        return min(self.queue.earliest, self.hold_at)

    def to_load(self, until: int) -> list[ImmutableBucket]:
        """Return the buckets of which a segment is to be loaded that begins at ``until`` or before, earliest first.

        O(buckets) when there is one.
        """
        if self.load_at > until:
            return []
        wanted = (bucket for bucket in self.buckets if bucket.wants_more and bucket.next_at <= until)
        return sorted(wanted, key=lambda bucket: bucket.next_at)

    def loaded(self, bucket: ImmutableBucket, columns: Columns) -> None:
        """Put the next segment of a bucket into memory."""
        bucket.took_next(len(columns))
        self.queue.add(columns, bucket)
        self.changed()
        self.retire_if_used_up(bucket)

    def earliest_of(self, owners: Collection[AnyBucket]) -> int:
        """Return the earliest time that is left in some buckets, NEVER when nothing is."""
        heads = (run.columns.times[run.at] for run in self.queue.runs(owners))
        stored = (owner.next_at for owner in owners if isinstance(owner, ImmutableBucket) and not owner.is_gone)
        return min((*heads, *stored), default=NEVER)

    def replace(
        self, owners: Sequence[AnyBucket], bucket: ImmutableBucket, segment: int, columns: Columns | None
    ) -> None:
        """Put a stored bucket in the place of what it was made of; that goes, from memory too.

        :param segment: the first one that is wanted
        :param columns: what is in that one; None leaves it on storage
        """
        self.queue.drop(owners)
        for owner in owners:
            if isinstance(owner, MutableBucket):
                self.sealings.remove(owner)
            elif not owner.is_gone:
                self._retire(owner)
        bucket.skip_to(segment)
        self.put(bucket)
        if columns is not None:
            self.loaded(bucket, columns)
        self.retire_if_used_up(bucket)

    def put(self, bucket: ImmutableBucket) -> None:
        """Take a stored bucket in. O(buckets)."""
        insort(self.buckets, bucket, key=lambda each: (each.start, each.end, each.snapshot_id))
        self._bucket_bytes += bucket.bytes
        self.changed()

    def trim(self, position: Position) -> int:
        """Let go of everything up to a position; return how much went. O(ledgers + buckets)."""
        went = self.pending.trim(*position)
        passed = [bucket for bucket in self.buckets if bucket.end < position.ledger]
        if passed:
            self.queue.drop(passed)
            for bucket in passed:
                self._retire(bucket)
        return went

    def clear(self) -> None:
        """Let go of everything, what is being stored too."""
        wanted: list[AnyBucket] = [*self.buckets, *self.sealings]
        for each in wanted:
            each.is_gone = True
        self.pending.clear()
        self.queue.clear()
        self.mutable = MutableBucket()
        self.queue.turn(self.mutable)
        self.sealings.clear()
        self.buckets.clear()
        self._bucket_bytes = 0
        self.changed()
