"""The snapshots of one cursor: read, stored with the property that names them, and deleted with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import anyio

from ..._check import check_has, check_text
from ..._wake_up import WakeUp, interval_clock
from ...clock import Clock, WallClock
from ...errors import SnapshotFormatError, SnapshotNotFoundError
from ...ids import Position
from ...index import PositionSet
from ..format import (
    Columns,
    NamedSnapshot,
    SegmentRow,
    decode_segment,
    free_key,
    named_snapshots,
    read_metadata,
)
from ..storage import BucketSnapshotStorage, DelayedCursor, SupportsForgetting, SupportsSnapshotListing
from ._statistics import OperationCounters

_T = TypeVar("_T")
MAX_READS: Final = 8
"""How many reads run at the same time, late ones not counted."""
_LATE_MS: Final = 100


class Snapshots:
    """The snapshots of one cursor. Each method is one attempt, and raises the error of the storage or the cursor.

    ``bytes`` is their size on storage, including snapshots that are being deleted.

    :param clock: measures how late a read is; a clock that may be set, such as the default, is replaced by the loop's
    :param mark_delete: returns the position up to which all messages are acknowledged; None: that of the cursor
    :raises InvalidArgumentError: an argument was refused
    """

    def __init__(
        self,
        storage: BucketSnapshotStorage,
        cursor: DelayedCursor,
        topic_name: str,
        cursor_name: str,
        *,
        clock: Clock | None = None,
        mark_delete: Callable[[], Position] | None = None,
    ) -> None:
        check_has("storage", storage, ("create_bucket_snapshot",), "a BucketSnapshotStorage")
        check_has("cursor", cursor, ("properties", "put_property"), "a DelayedCursor")
        check_text("topic_name", topic_name)
        check_text("cursor_name", cursor_name)
        self._storage = storage
        self._cursor = cursor
        self._names = topic_name, cursor_name
        self._mark_delete = mark_delete
        self._reserved: set[str] = set()
        self._created: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._clock = interval_clock(WallClock() if clock is None else clock)
        self._reads = anyio.CapacityLimiter(MAX_READS)
        self._decoding = asyncio.Lock()
        self._naming = asyncio.Lock()
        self.operations = OperationCounters()
        self.bytes = 0

    @property
    def mark_delete_position(self) -> Position:
        """Return the position up to which all messages are acknowledged."""
        return self._cursor.mark_delete_position if self._mark_delete is None else self._mark_delete()

    async def all_named(self) -> list[NamedSnapshot]:
        """Return the named snapshots, after waiting for one that is being named."""
        async with self._naming:
            return self.named()

    def named(self) -> list[NamedSnapshot]:
        """Return the snapshots that the cursor's properties name, the widest first."""
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
        metadata: bytes,
        segments: Sequence[bytes],
        start: int,
        end: int,
        *,
        is_wanted: Callable[[], bool],
        abandon: Callable[[NamedSnapshot], object],
    ) -> NamedSnapshot | None:
        """Store a snapshot, and name it if it is still wanted.

        ``abandon`` is called with a snapshot that is not wanted or could not be named; it has to be deleted.
        """
        key = free_key(start, end, self._reserved | set(self._cursor.properties()))
        self._reserved.add(key)
        try:
            snapshot_id = await self._storage.create_bucket_snapshot(metadata, segments, key, *self._names)
            self._created.add(snapshot_id)
            self._note_size(snapshot_id, len(metadata) + sum(map(len, segments)))
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
        """Delete a snapshot and then the property that names it; either may be gone already.

        The property goes first if the cursor may have been taken over: then its removal is refused, and the snapshot
        stays. A snapshot that a crash leaves in between is found in the list. The property also goes first if the
        snapshot was cleared: its messages must not come back if it cannot be deleted.
        """
        async with self.operations.counted("delete"):
            if isinstance(self._cursor, SupportsForgetting) and isinstance(self._storage, SupportsSnapshotListing):
                await self._cursor.forget(named.snapshot_id)
            if is_cleared:
                await self._remove_property(named)
            with suppress(SnapshotNotFoundError):
                await self._storage.delete_bucket_snapshot(named.snapshot_id)
            self.bytes -= self._sizes.pop(named.snapshot_id, 0)
            await self._remove_property(named)

    async def _remove_property(self, named: NamedSnapshot) -> None:
        """Remove the property that names a snapshot, if it exists."""
        if self._cursor.properties().get(named.key) == str(named.snapshot_id):
            await self._cursor.remove_property(named.key)

    @asynccontextmanager
    async def read_slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. There are :data:`MAX_READS`, but a late read makes room for two more.

        So however many reads hang, the number of concurrent reads keeps doubling, and the reads behind the hanging ones
        begin within a second.
        """

        def become_late(_: int) -> None:
            self._reads.total_tokens += 2

        async with self._reads:
            late = WakeUp(self._clock, become_late)
            now_ms = self._clock.now_ms()
            late.set(now_ms + _LATE_MS, now_ms)
            try:
                yield
            finally:
                if late.at_ms is None:
                    self._reads.total_tokens -= 2
                late.cancel()

    async def recover(self, snapshot_id: int) -> list[SegmentRow]:
        """Return the metadata of a snapshot of an earlier run, and note its size.

        The size is only for statistics, so a failure to get it is ignored.
        """
        rows = await self.rows(snapshot_id)
        with suppress(Exception):
            self._note_size(snapshot_id, await self._storage.get_bucket_snapshot_length(snapshot_id))
        return rows

    def _note_size(self, snapshot_id: int, size: int) -> None:
        self.bytes += size - self._sizes.get(snapshot_id, 0)
        self._sizes[snapshot_id] = size

    async def rows(self, snapshot_id: int) -> list[SegmentRow]:
        """Return the metadata of each segment."""
        return await _in_steps(read_metadata(await self._storage.get_bucket_snapshot_metadata(snapshot_id)))

    async def segment(self, snapshot_id: int, number: int, min_count: int) -> Columns:
        """Return the indexes of a segment; the first segment is 0.

        A damaged segment is rebuilt from the metadata, so that no message is lost: all its messages get the segment's
        latest time, so they may be late but not early.

        :param min_count: the least number of its indexes; a truncated segment may still be readable
        """
        async with self.operations.counted("load"):
            try:
                return _checked(await self.decode(await self._entry(snapshot_id, number)), min_count)
            except SnapshotFormatError as error:
                self.operations.note_damage(
                    error, f"messages of segment {number + 1} of snapshot {snapshot_id} will be late"
                )
                return _rebuilt(await self.rows(snapshot_id), number)

    async def copy(self, snapshot_id: int, number: int) -> bytes:
        """Return the stored bytes of a segment, unchecked."""
        async with self.operations.counted("load"):
            return await self._entry(snapshot_id, number)

    async def _entry(self, snapshot_id: int, number: int) -> bytes:
        entries = await self._storage.get_bucket_snapshot_segment(snapshot_id, number + 1, number + 1)
        if len(entries) != 1:
            raise SnapshotFormatError("snapshot segment", f"{len(entries)} entries where one was wanted")
        return bytes(entries[0])

    async def decode(self, segment: bytes) -> Columns:
        """Return the indexes of a segment; one at a time, so that many together do not fill a turn of the loop."""
        async with self._decoding:
            return await _in_steps(decode_segment(segment))


async def delete_bucket_snapshots(
    storage: BucketSnapshotStorage, cursor: DelayedCursor, *, topic_name: str = "", cursor_name: str = ""
) -> int:
    """Delete all snapshots of a cursor, and the properties that name them, without a tracker; return how many.

    No tracker may have them open. No message is lost: the messages are in the topic. All deletions are tried;
    a snapshot that cannot be deleted keeps its property, so that it can be tried again.

    :raises ExceptionGroup: the storage or the cursor failed for some of them
    """
    snapshots = Snapshots(storage, cursor, topic_name, cursor_name)
    unwanted = snapshots.named()
    deleted = 0
    errors: list[Exception] = []
    try:
        unwanted += await snapshots.orphans() or []
    except Exception as error:  # noqa: BLE001 - raised below
        errors.append(error)
    for named in unwanted:
        try:
            await snapshots.delete(named)
        except Exception as error:  # noqa: BLE001 - raised together with the others
            errors.append(error)
        else:
            deleted += 1
    if errors:
        raise ExceptionGroup("some snapshots could not be deleted", errors)
    return deleted


def _checked(columns: Columns, min_count: int) -> Columns:
    if len(columns) < min_count:
        raise SnapshotFormatError("snapshot segment", f"{len(columns)} indexes are left of {min_count}")
    return columns


def _rebuilt(rows: Sequence[SegmentRow], number: int) -> Columns:
    if number >= len(rows):
        raise SnapshotFormatError("snapshot metadata", f"{len(rows)} segments, number {number + 1} was wanted")
    positions = PositionSet()
    add_bitmaps(rows[number].bitmaps.items(), positions)
    return Columns((rows[number].max_at, ledger, entry) for ledger, entry in sorted(positions))


def add_bitmaps(bitmaps: Iterable[tuple[int, bytes]], positions: PositionSet) -> int:
    """Add the positions of ledgers' portable bitmaps; return how many are new.

    :raises SnapshotFormatError: a bitmap is damaged
    """
    try:
        return sum(positions.join(ledger, bitmap) for ledger, bitmap in bitmaps)
    except ValueError as error:
        raise SnapshotFormatError("snapshot metadata", str(error)) from error


async def _in_steps(work: Generator[None, None, _T]) -> _T:
    """Run a generator to its end, other tasks after each step, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result
        await asyncio.sleep(0)
