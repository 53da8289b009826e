"""Where the bucket tracker keeps its snapshots, and the cursor that knows which of them count.

The tracker creates a snapshot and then names it in a property of the cursor; it deletes the snapshot first and then the
property, or the other way round where the cursor may be another process's by then (:class:`SupportsForgetting`). The
property is the commit point: a snapshot without one does not count, and a property whose snapshot is gone is dropped
when it is met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ..ids import Position

__all__ = ["BucketSnapshotStorage", "DelayedCursor", "SupportsForgetting", "SupportsSnapshotListing"]


@runtime_checkable
class BucketSnapshotStorage(Protocol):
    """Keeps snapshots: a few entries of bytes under an id, written once, never changed.

    Entry 0 is the metadata, entries 1..n are the segments. A method may fail with any error and is tried again, with
    backoff, for as long as it is wanted; :class:`~pulsar_nack.SnapshotNotFoundError` says that there is no snapshot of
    this id. Calls overlap. A call that is cancelled has either done its work or not. Entries come back as they were
    stored: their form has no checksum, so bytes that changed are for the storage to notice, which raises
    :class:`~pulsar_nack.SnapshotFormatError` then.
    """

    async def start(self) -> None:
        """Get ready; called before anything else, by whoever owns the storage."""
        ...

    async def close(self) -> None:
        """Let go of everything. Idempotent; called by whoever owns the storage."""
        ...

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its new id; durable, and complete, when it returns."""
        ...

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        ...

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``, both included; the first segment is 1."""
        ...

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return how many bytes a snapshot takes."""
        ...

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot; gone for good when it returns."""
        ...


@runtime_checkable
class SupportsSnapshotListing(Protocol):
    """A storage that also tells which snapshots there are, so that those that a crash left behind are found."""

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of all snapshots that were created for a cursor."""
        ...


@runtime_checkable
class DelayedCursor(Protocol):
    """What the bucket tracker needs of a subscription's cursor. Properties are held in memory and persisted."""

    @property
    def mark_delete_position(self) -> Position:
        """Return the last position before which, itself included, everything is acknowledged; entry -1: none of it."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Return the properties as they are now, others' among them; not to be changed."""
        ...

    async def put_property(self, key: str, value: str) -> None:
        """Set a property; durable when it returns."""
        ...

    async def remove_property(self, key: str) -> None:
        """Remove a property, if it is there; durable when it returns."""
        ...


@runtime_checkable
class SupportsForgetting(Protocol):
    """A cursor that another process may take over while this one still runs; then this one must delete nothing.

    With a storage that lists its snapshots, the property goes before the snapshot does.
    """

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot, durably; fail if the cursor is another's by now."""
        ...
