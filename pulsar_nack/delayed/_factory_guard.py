"""Deletes under the protection of a cursor that another process may take over.

On object storage the process that was taken over may still run. It must not delete what the other one uses: so the
name of a snapshot comes off the cursor first, durably, which is refused to whoever has lost the cursor. A snapshot that
cannot be deleted after that has no name any more, and is found by the storage's listing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .storage import BucketSnapshotStorage, DelayedCursor, SupportsSnapshotListing


@runtime_checkable
class _Forgets(Protocol):
    async def forget(self, snapshot_id: int) -> None:
        """Remove the names of a snapshot, which may be deleted then."""
        ...


@runtime_checkable
class _Listing(BucketSnapshotStorage, SupportsSnapshotListing, Protocol):
    pass


def guarded(storage: BucketSnapshotStorage, cursor: DelayedCursor) -> BucketSnapshotStorage:
    """Return a storage that asks the cursor before it deletes, where both can do that; otherwise the storage itself."""
    if isinstance(storage, _Listing) and isinstance(cursor, _Forgets):
        return _Guarded(storage, cursor)
    return storage


class _Guarded:
    def __init__(self, storage: _Listing, cursor: _Forgets) -> None:
        self._cursor = cursor
        self._storage = storage
        self.start = storage.start
        self.close = storage.close
        self.create_bucket_snapshot = storage.create_bucket_snapshot
        self.get_bucket_snapshot_metadata = storage.get_bucket_snapshot_metadata
        self.get_bucket_snapshot_segment = storage.get_bucket_snapshot_segment
        self.get_bucket_snapshot_length = storage.get_bucket_snapshot_length

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot that the cursor has forgotten."""
        await self._cursor.forget(snapshot_id)
        await self._storage.delete_bucket_snapshot(snapshot_id)

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of all snapshots that were created for a cursor."""
        return await self._storage.list_bucket_snapshots(topic_name, cursor_name)
