"""The storage of bucket snapshots, and the cursor whose properties name the valid ones.

The tracker creates a snapshot and then names it in a cursor property. It deletes the snapshot first and then the
property, or the other way round if another process may own the cursor by then (:class:`SupportsForgetting`). The
property is the commit point: a snapshot without one is an orphan, and a property without a snapshot is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ..ids import Position

__all__ = ["BucketSnapshotStorage", "DelayedCursor", "SupportsForgetting", "SupportsSnapshotListing"]


@runtime_checkable
class BucketSnapshotStorage(Protocol):
    """Keeps snapshots. A snapshot is a few entries of bytes under an id, written once and never changed.

    Entry 0 is the metadata, entries 1..n are the segments. A method may raise any error; the tracker retries with
    backoff while the result is wanted. :class:`~pulsar_nack.errors.SnapshotNotFoundError` means that there is no
    snapshot with this id. Calls overlap. A cancelled call has either done its work or changed nothing. Entries have no
    checksum, so the storage has to detect changed bytes and raise :class:`~pulsar_nack.errors.SnapshotFormatError`.
    """

    async def start(self) -> None:
        """Get ready; the owner of the storage calls it first."""
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent; the owner of the storage calls it."""
        ...

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its new id; it is durable and complete when this returns."""
        ...

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        ...

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``, both included; the first segment is 1."""
        ...

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return the size of a snapshot in bytes."""
        ...

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot durably."""
        ...


@runtime_checkable
class SupportsSnapshotListing(Protocol):
    """A storage that can list its snapshots, so that the orphans of a crash are found."""

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of all snapshots of a cursor."""
        ...


@runtime_checkable
class DelayedCursor(Protocol):
    """A subscription's cursor as the bucket tracker uses it. Its properties are in memory and on storage."""

    @property
    def mark_delete_position(self) -> Position:
        """Return the position up to which everything is acknowledged; entry -1: nothing of the ledger."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Return the current properties, those of other users included; the caller must not change them."""
        ...

    async def put_property(self, key: str, value: str) -> None:
        """Set a property durably."""
        ...

    async def remove_property(self, key: str) -> None:
        """Remove a property durably, if it exists."""
        ...


@runtime_checkable
class SupportsForgetting(Protocol):
    """A cursor that another process may take over while this one still runs; this one must delete nothing then.

    With a storage that lists its snapshots, the property is removed before the snapshot.
    """

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot, durably; fail if another process owns the cursor by now."""
        ...
