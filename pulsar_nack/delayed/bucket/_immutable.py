"""A sealed bucket: which snapshot it is, and how far it is used up. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from ...index import NEVER

_BUCKET_BYTES: Final = 1_400
"""With what the storage and the cursor know of it."""


class ImmutableBucket:
    """Segments on storage of which the first ``next`` were loaded; ``loaded`` indexes of those are still in memory.

    ``is_late``: reading its next segment has failed or takes long. ``is_slow``: other buckets no longer wait for it.

    :param key: the property that names it
    :param snapshot_id: the storage's id
    :param ledgers: first and last ledger
    :param mins: earliest time of each segment, a lower bound where it is not known (epoch ms)
    :param maxs: latest time of each segment
    :param counts: number of indexes of each segment
    """

    __slots__ = (
        "counts",
        "end",
        "failed_merges",
        "failures",
        "is_gone",
        "is_late",
        "is_loading",
        "is_low",
        "is_merging",
        "is_slow",
        "key",
        "last_size",
        "loaded",
        "maxs",
        "mins",
        "next",
        "snapshot_id",
        "start",
        "unloaded",
        "wait_until",
    )

    def __init__(
        self,
        key: str,
        snapshot_id: int,
        ledgers: tuple[int, int],
        *,
        mins: Sequence[int],
        maxs: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self.key = key
        self.snapshot_id = snapshot_id
        self.start, self.end = ledgers
        self.mins = array("q", mins)
        self.maxs = array("q", maxs)
        self.counts = array("q", counts)
        self.next = 0
        self.loaded = 0
        self.last_size = 0
        self.unloaded = sum(counts)
        self.failures = self.failed_merges = self.wait_until = 0
        self.is_loading = False
        self.is_low = False
        self.is_late = self.is_slow = False
        self.is_merging = False
        self.is_gone = False

    def __repr__(self) -> str:
        return f"<{self.key} {self.snapshot_id}: {self.next}/{len(self.mins)} segments, {self.loaded} loaded>"

    @property
    def bytes(self) -> int:
        """Return about how much memory it takes, its names too, but not what is loaded."""
        return _BUCKET_BYTES + 24 * len(self.mins)

    @property
    def size(self) -> int:
        """Return how many indexes are left in it, those that were cancelled in the meantime too."""
        return self.loaded + self.unloaded

    @property
    def next_at(self) -> int:
        """Return the earliest time of the segment that is to be loaded next, NEVER when all are."""
        return self.mins[self.next] if self.next < len(self.mins) else NEVER

    @property
    def following_at(self) -> int:
        """Return the earliest time of the segment after that, NEVER without one."""
        return self.mins[self.next + 1] if self.next + 1 < len(self.mins) else NEVER

    @property
    def is_used_up(self) -> bool:
        """Return whether nothing of it is left."""
        return not self.loaded and self.next == len(self.mins)

    @property
    def is_in_trouble(self) -> bool:
        """Return whether its next segment could not be had yet: better leave it alone."""
        return self.is_late or self.is_slow

    @property
    def wants_more(self) -> bool:
        """Return whether its next segment may be loaded: not before half of the one in use is gone."""
        return not self.is_loading and self.next < len(self.mins) and 2 * self.loaded <= self.last_size

    def becomes_low(self) -> bool:
        """Return whether half of the segment in use is gone, once for each segment."""
        if self.is_low or 2 * self.loaded > self.last_size:
            return False
        self.is_low = True
        return True

    def skip_to(self, segment: int) -> None:
        """Leave the segments before this one out."""
        self.unloaded -= sum(self.counts[self.next : segment])
        self.next = segment

    def took_next(self, size: int) -> None:
        """The next segment was loaded; ``size`` of its indexes went into memory."""
        self.skip_to(self.next + 1)
        self.last_size = size
        self.is_low = False
        self.failures = 0
        self.is_late = self.is_slow = False

    def first_reaching(self, at: int) -> int:
        """Return the first segment, from the next one on, that has something at ``at`` or later."""
        segment = self.next
        while segment < len(self.maxs) and self.maxs[segment] < at:
            segment += 1
        return segment
