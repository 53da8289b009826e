"""What a bucket tracker says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """A snapshot of a tracker's figures."""

    messages: int
    """Messages that are held back."""
    buckets: int
    """Sealed buckets that are on storage."""
    loaded: int
    """Indexes in memory, those that are on storage too among them."""
    unsealed: int
    """Indexes that are on no storage yet."""
    bytes: int
    """About how much memory is in use."""
    is_recovering: bool
    """Whether snapshots of an earlier run are still being read; until then their messages may be read anew."""
    operations: Mapping[tuple[str, str], int]
    """How often by type (``create``, ``load``, ``delete``, ``merge``) and state (``all``, ``succeed``, ``failed``)."""
    last_error: Exception | None
    """What last went wrong on storage; it was, or is, tried again."""
