"""Snapshots as the tracker sees them: read, stored together with the property that names them, deleted with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ...errors import SnapshotFormatError, SnapshotNotFoundError
from ...ids import Position
from ..storage import BucketSnapshotStorage, DelayedCursor, SupportsForgetting, SupportsSnapshotListing
from ._columns import Columns
from ._jobs import in_steps
from ._keys import NamedSnapshot, free_key, named_snapshots
from ._operations import Operations
from ._pending import Pending
from ._segments import Snapshot
from ._wire import SegmentRow, decode_segment, read_metadata


class Snapshots:
    """The snapshots of one cursor. Each method is one attempt and raises what the storage or the cursor raised.

    ``bytes`` is what they take on storage, those that are being deleted too.
    """

    def __init__(
        self, storage: BucketSnapshotStorage, cursor: DelayedCursor, topic_name: str, cursor_name: str
    ) -> None:
        self._storage = storage
        self._cursor = cursor
        self._names = topic_name, cursor_name
        self._reserved: set[str] = set()
        self._created: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._reading = asyncio.Lock()
        self._naming = asyncio.Lock()
        self.operations = Operations()
        self.bytes = 0

    @property
    def mark_delete_position(self) -> Position:
        """Return up to where everything is acknowledged."""
        return self._cursor.mark_delete_position

    async def all_named(self) -> list[NamedSnapshot]:
        """Return what :meth:`named` does, after waiting for a snapshot that is being named."""
        async with self._naming:
            return self.named()

    def named(self) -> list[NamedSnapshot]:
        """Return all that the cursor's properties name, the widest first."""
        return named_snapshots(self._cursor.properties())

    async def orphans(self) -> list[NamedSnapshot] | None:
        """Return the snapshots of earlier runs that no property names, if the storage can list snapshots.

        None: a snapshot is being stored. The list may have it, and its id is not known here yet.
        """
        if not isinstance(self._storage, SupportsSnapshotListing):
            return []
        created = len(self._created)
        listed = await self._storage.list_bucket_snapshots(*self._names)
        if self._reserved or len(self._created) != created:
            return None
        known = {each.snapshot_id for each in self.named()} | self._created
        return [NamedSnapshot("", each, 0, 0) for each in listed if each not in known]

    async def store(
        self,
        snapshot: Snapshot,
        start: int,
        end: int,
        *,
        is_wanted: Callable[[], bool],
        abandon: Callable[[NamedSnapshot], object],
    ) -> NamedSnapshot | None:
        """Store a snapshot, and name it if it is still wanted.

        ``abandon`` is called for a snapshot that is not wanted or could not be named; it has to be deleted.
        """
        key = free_key(start, end, self._reserved | set(self._cursor.properties()))
        self._reserved.add(key)
        try:
            snapshot_id = await self._storage.create_bucket_snapshot(
                snapshot.metadata, snapshot.segments, key, *self._names
            )
            self._created.add(snapshot_id)
            self._note_size(snapshot_id, len(snapshot.metadata) + sum(map(len, snapshot.segments)))
            named = NamedSnapshot(key, snapshot_id, start, end)
            async with self._naming:
                if not is_wanted():
                    abandon(named)
                    return None
                try:
                    await self._cursor.put_property(key, str(snapshot_id))
                except Exception:
                    abandon(named)
                    raise
        finally:
            self._reserved.discard(key)
        return named

    async def delete(self, named: NamedSnapshot, *, is_cleared: bool = False) -> None:
        """Delete a snapshot and then the property that names it; what is gone already is no error.

        The property goes first if the cursor may have been taken over: then its removal is refused, and the snapshot
        stays. A snapshot that a crash leaves in between is found in the list. The property also goes first if the
        snapshot was cleared: its messages must not come back if it cannot be deleted.
        """
        async with self.operations.counted("delete"):
            if isinstance(self._cursor, SupportsForgetting) and isinstance(self._storage, SupportsSnapshotListing):
                await self._cursor.forget(named.snapshot_id)
            elif is_cleared:
                await self._disown(named)
            with suppress(SnapshotNotFoundError):
                await self._storage.delete_bucket_snapshot(named.snapshot_id)
            self.bytes -= self._sizes.pop(named.snapshot_id, 0)
            await self._disown(named)

    async def _disown(self, named: NamedSnapshot) -> None:
        """Remove the property that names a snapshot, if it exists."""
        if self._cursor.properties().get(named.key) == str(named.snapshot_id):
            await self._cursor.remove_property(named.key)

    async def recover(self, snapshot_id: int) -> list[SegmentRow]:
        """Return what the metadata tell of each segment of an earlier run's snapshot, and note its size.

        A size that cannot be had is passed over: it is told only, nothing depends on it.
        """
        rows = await self.rows(snapshot_id)
        with suppress(Exception):
            self._note_size(snapshot_id, await self._storage.get_bucket_snapshot_length(snapshot_id))
        return rows

    def _note_size(self, snapshot_id: int, size: int) -> None:
        self.bytes += size - self._sizes.get(snapshot_id, 0)
        self._sizes[snapshot_id] = size

    async def rows(self, snapshot_id: int) -> list[SegmentRow]:
        """Return what the metadata tell of each segment."""
        return await in_steps(read_metadata(await self._storage.get_bucket_snapshot_metadata(snapshot_id)))

    async def segment(self, snapshot_id: int, number: int, least: int) -> Columns:
        """Return a segment, the first is 0.

        One that is damaged is made up from the metadata, so that its messages are not lost: all of them come at the
        latest of its times then, which is not before the time of any.

        :param least: how many indexes it has, at the least; one that was cut between two of them can still be read
        """
        async with self.operations.counted("load"):
            try:
                return _whole(await self.decode(await self._entry(snapshot_id, number)), least)
            except SnapshotFormatError as error:
                self.operations.note_damage(
                    error, f"messages of segment {number + 1} of snapshot {snapshot_id} will be late"
                )
                return _made_up(await self.rows(snapshot_id), number)

    async def copy(self, snapshot_id: int, number: int) -> bytes:
        """Return a segment as it is stored; nothing looks at what is in it."""
        async with self.operations.counted("load"):
            return await self._entry(snapshot_id, number)

    async def _entry(self, snapshot_id: int, number: int) -> bytes:
        entries = await self._storage.get_bucket_snapshot_segment(snapshot_id, number + 1, number + 1)
        return _only(entries)

    async def decode(self, segment: bytes) -> Columns:
        """Return what is in a segment; one at a time, so that many together do not fill a round of the loop."""
        async with self._reading:
            return await in_steps(decode_segment(segment))


def _only(entries: Sequence[bytes]) -> bytes:
    if len(entries) != 1:
        raise SnapshotFormatError("snapshot segment", f"{len(entries)} entries where one was wanted")
    return bytes(entries[0])


def _whole(columns: Columns, least: int) -> Columns:
    if len(columns) < least:
        raise SnapshotFormatError("snapshot segment", f"{len(columns)} indexes are left of {least}")
    return columns


def _made_up(rows: Sequence[SegmentRow], number: int) -> Columns:
    if number >= len(rows):
        raise SnapshotFormatError("snapshot metadata", f"{len(rows)} segments, number {number + 1} was wanted")
    positions = Pending()
    add_bitmaps(rows[number].bitmaps.items(), positions)
    return Columns((rows[number].max_at, ledger, entry) for ledger, entry in sorted(positions))


def add_bitmaps(bitmaps: Iterable[tuple[int, bytes]], positions: Pending) -> int:
    """Add the positions of portable bitmaps, with their ledgers; return how many are new there.

    :raises SnapshotFormatError: a bitmap is damaged
    """
    try:
        return sum(positions.join(ledger, bitmap) for ledger, bitmap in bitmaps)
    except ValueError as error:
        raise SnapshotFormatError("snapshot metadata", str(error)) from error
