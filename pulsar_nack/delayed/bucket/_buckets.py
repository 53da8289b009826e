"""The two kinds of bucket. Pure.

The indexes of both are in the shared queue, ``loaded`` of them; an immutable bucket has the others on storage.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..._delays import delay_ms
from ...config import BucketConfig
from ...index import NEVER
from ..format import NamedSnapshot

_NO_LEDGER: Final = -1
_BUCKET_BYTES: Final = 1_400
"""About the memory of a bucket, its entries in the storage's and the cursor's tables included."""


@dataclass(slots=True, eq=False)
class MutableBucket:
    """The newest indexes: their ledgers and their age, and when they are sealed.

    A sealed bucket does not change, and its indexes stay in memory, until its snapshot is stored.
    """

    min_size: int
    max_size: int
    max_age_ms: int
    loaded: int = 0
    added: int = 0
    """How many indexes were added in all; some may be gone."""
    start: int = _NO_LEDGER
    end: int = _NO_LEDGER
    since_ms: int = 0
    is_dropped: bool = False
    """Whether it was cleared: its snapshot is not wanted any more."""

    @classmethod
    def of(cls, config: BucketConfig) -> MutableBucket:
        """Return an empty bucket with the limits of a configuration."""
        min_size = min(config.delayed_delivery_min_index_count_per_bucket, config.largest_bucket)
        return cls(min_size, config.largest_bucket, delay_ms(config.max_unsealed_age))

    def add(self, ledger: int, now_ms: int, count: int = 1) -> None:
        """Note that indexes of a ledger were added."""
        if not self.added:
            self.start = self.end = ledger
            self.since_ms = now_ms
        elif ledger < self.start:
            self.start = ledger
        elif ledger > self.end:
            self.end = ledger
        self.added += count

    def is_full(self, ledger: int, now_ms: int) -> bool:
        """Return whether to seal it before adding an index of ``ledger``: a new ledger, or it is large or old."""
        if self.loaded < self.min_size:
            return False
        return ledger > self.end or self.loaded >= self.max_size or now_ms >= self.old_at

    @property
    def old_at(self) -> int:
        """Return when to seal it because it is old, NEVER while it is too small."""
        return self.since_ms + self.max_age_ms if self.loaded >= self.min_size else NEVER

    @property
    def room(self) -> int:
        """Return how many indexes can be added before :meth:`is_full` has to be asked again, at least 1."""
        return max((self.min_size if self.loaded < self.min_size else self.max_size) - self.loaded, 1)


class ImmutableBucket:
    """A bucket with a snapshot. Its first ``next`` segments were loaded, and ``loaded`` of their indexes remain.

    ``is_late``: reading its next segment has failed or takes long. ``is_slow``: other buckets no longer wait for it.

    :param named: its snapshot
    :param mins: earliest time of each segment (epoch ms), or a lower bound where it is unknown
    :param maxs: latest time of each segment
    :param counts: number of indexes of each segment
    """

    __slots__ = (
        "counts",
        "end",
        "failed_merges",
        "failures",
        "is_dropped",
        "is_half_used",
        "is_late",
        "is_loading",
        "is_merging",
        "is_slow",
        "last_size",
        "loaded",
        "maxs",
        "mins",
        "named",
        "next",
        "start",
        "unloaded",
        "wait_until",
    )

    def __init__(
        self,
        named: NamedSnapshot,
        *,
        mins: Sequence[int],
        maxs: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self.named = named
        self.start, self.end = named.start, named.end
        self.mins = array("q", mins)
        self.maxs = array("q", maxs)
        self.counts = array("q", counts)
        self.next = 0
        self.loaded = 0
        self.last_size = 0
        self.unloaded = sum(counts)
        self.failures = self.failed_merges = self.wait_until = 0
        self.is_loading = False
        self.is_half_used = False
        self.is_late = self.is_slow = False
        self.is_merging = False
        self.is_dropped = False

    def __repr__(self) -> str:
        return (
            f"<{self.named.key} {self.named.snapshot_id}: {self.next}/{len(self.mins)} segments, {self.loaded} loaded>"
        )

    @property
    def bytes(self) -> int:
        """Return about how much memory the bucket takes, its loaded indexes excluded."""
        return _BUCKET_BYTES + 24 * len(self.mins)

    @property
    def size(self) -> int:
        """Return how many indexes remain, those that were cancelled meanwhile included."""
        return self.loaded + self.unloaded

    @property
    def next_at(self) -> int:
        """Return the earliest time of the next segment to load, NEVER if all are loaded."""
        return self.mins[self.next] if self.next < len(self.mins) else NEVER

    @property
    def following_at(self) -> int:
        """Return the earliest time of the segment after the next one, or NEVER."""
        return self.mins[self.next + 1] if self.next + 1 < len(self.mins) else NEVER

    @property
    def is_used_up(self) -> bool:
        """Return whether no index remains."""
        return not self.loaded and self.next == len(self.mins)

    @property
    def is_unreadable(self) -> bool:
        """Return whether its next segment cannot be read for now."""
        return self.is_late or self.is_slow

    @property
    def can_load_next(self) -> bool:
        """Return whether its next segment may be loaded: half of the current one is used up."""
        return not self.is_loading and self.next < len(self.mins) and 2 * self.loaded <= self.last_size

    def becomes_half_used(self) -> bool:
        """Return whether half of the current segment is used up; True once for each segment."""
        if self.is_half_used or 2 * self.loaded > self.last_size:
            return False
        self.is_half_used = True
        return True

    def skip_to(self, segment: int) -> None:
        """Skip the segments before this one."""
        self.unloaded -= sum(self.counts[self.next : segment])
        self.next = segment

    def note_loaded(self, size: int) -> None:
        """Note that the next segment was loaded, with ``size`` indexes."""
        self.skip_to(self.next + 1)
        self.last_size = size
        self.is_half_used = False
        self.failures = 0
        self.is_late = self.is_slow = False

    def first_reaching(self, at: int) -> int:
        """Return the first segment that is not loaded and has a time of ``at`` or later."""
        segment = self.next
        while segment < len(self.maxs) and self.maxs[segment] < at:
            segment += 1
        return segment


AnyBucket = MutableBucket | ImmutableBucket
