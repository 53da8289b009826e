"""The last bucket, which is being filled, and when it is full. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..._delays import delay_ms
from ...config import BucketConfig

_NO_LEDGER: Final = -1


@dataclass(slots=True, eq=False)
class MutableBucket:
    """Which ledgers are in it and since when. The indexes themselves are in the shared queue, ``loaded`` of them.

    Sealed, it stays what it is, and its indexes stay in memory, until its snapshot is stored.
    """

    loaded: int = 0
    added: int = 0
    """How many were added in all; some of them may be gone already."""
    start: int = _NO_LEDGER
    end: int = _NO_LEDGER
    since_ms: int = 0
    is_gone: bool = field(default=False)
    """Whether it was cleared: a snapshot of it is not wanted any more."""

    def add(self, ledger: int, now_ms: int, count: int = 1) -> None:
        """Indexes of a ledger were added."""
        if not self.added:
            self.start = self.end = ledger
            self.since_ms = now_ms
        elif ledger < self.start:
            self.start = ledger
        elif ledger > self.end:
            self.end = ledger
        self.added += count


@dataclass(frozen=True, slots=True)
class SealRule:
    """When a bucket is sealed, before an index of ``ledger`` is added to it."""

    least: int
    most: int
    oldest_ms: int

    @classmethod
    def of(cls, config: BucketConfig) -> SealRule:
        """Read the rule from a config."""
        return cls(
            config.delayed_delivery_min_index_count_per_bucket,
            config.largest_bucket,
            delay_ms(config.max_unsealed_age),
        )

    def is_full(self, bucket: MutableBucket, ledger: int, now_ms: int) -> bool:
        """Return whether to seal: there are enough, and a new ledger begins, or there are many, or they are old."""
        if bucket.loaded < self.least:
            return False
        return ledger > bucket.end or bucket.loaded >= self.most or now_ms - bucket.since_ms >= self.oldest_ms

    def room(self, bucket: MutableBucket) -> int:
        """Return how many more fit in for sure, at least 1: after these it is to be asked again whether it is full."""
        return max((self.least if bucket.loaded < self.least else self.most) - bucket.loaded, 1)
