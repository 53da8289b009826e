"""Where a test's snapshots and cursor are: in memory, or on logs in a folder. They outlive the trackers.

All homes have the same interface: ``storage.snapshots``, the stored snapshots, to be read and changed between calls,
``cursor.held``, and the faults of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from pulsar_nack import BucketSnapshotStorage, Position
from pulsar_nack.delayed import DelayedCursor, LogDelayedCursor, LogSnapshotStorage
from pulsar_nack.delayed.format import (
    SNAPSHOT_LOG_NAME,
    Footer,
    decode_footer,
    split_entries,
    subscription_digest,
)
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger._local import LogDirectory as Folder
from pulsar_nack.ledger.files import Files, OsFiles
from pulsar_nack.testing import MemoryDelayedCursor, MemorySnapshotStorage, StorageFaults

OTHER = {"other": "1"}
"""A property that does not belong to the tracker."""


class StorageOfHome(BucketSnapshotStorage, Protocol):
    """A storage as tests see it."""

    faults: StorageFaults

    @property
    def snapshots(self) -> MutableMapping[int, tuple[bytes, ...]]: ...

    @property
    def keys(self) -> Mapping[int, str]: ...


class CursorOfHome(DelayedCursor, Protocol):
    """A cursor as tests see it."""

    faults: StorageFaults

    @property
    def held(self) -> Mapping[str, str]: ...

    async def mark_delete(self, position: Position) -> None: ...


class Home(Protocol):
    """A place for snapshots and a cursor."""

    @property
    def storage(self) -> StorageOfHome: ...

    @property
    def cursor(self) -> CursorOfHome: ...

    async def __aenter__(self) -> Home: ...

    async def __aexit__(self, *_exception: object) -> None: ...


class MemoryHome:
    """Everything in memory."""

    def __init__(self) -> None:
        self.storage = MemorySnapshotStorage()
        self.cursor = MemoryDelayedCursor(OTHER)

    async def __aenter__(self) -> MemoryHome:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """There is nothing to do."""


class LogHome:
    """Logs in a folder, opened again each time, so that only stored state counts."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._files = files or OsFiles()
        self._path = path
        folder = Folder(self._files, path, 1 << 26)
        folder.open()
        self.storage = FaultyStorage(Lying(folder))
        self.cursor = FaultyCursor()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> LogHome:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(await LocalLogStore.open(self._path, files=self._files))
            cursor = await stack.enter_async_context(await LogDelayedCursor.open(store, compact_at=2_000))
            for key in OTHER.keys() - cursor.properties().keys():
                await cursor.put_property(key, OTHER[key])
            self.cursor.inner = cursor
            self.storage.inner = await stack.enter_async_context(
                LogSnapshotStorage(store, max_open=3, max_append=1_000)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._stack.aclose()


class Lying(MutableMapping[int, tuple[bytes, ...]]):
    """The snapshots in a folder, even if another object has them open; assignment writes as the storage does."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[int]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __getitem__(self, snapshot_id: int) -> tuple[bytes, ...]:
        records, footer = self._read(snapshot_id)
        ends = [sum(footer.parts.get(each, 1) for each in range(entry)) for entry in range(footer.entries + 1)]
        return tuple(b"".join(records[ends[each] : ends[each + 1]]) for each in range(footer.entries))

    def __setitem__(self, snapshot_id: int, entries: tuple[bytes, ...]) -> None:
        key = self.key(snapshot_id) if snapshot_id in self else ""
        self.pop(snapshot_id, None)
        records, parts = split_entries(entries, 1_000)
        opened = self._folder.create(f"snapshot-{subscription_digest('', '')}-{snapshot_id}")
        opened.append([*records, Footer(key, "", "", len(entries), parts).encode()])
        opened.append([])
        self._folder.close(opened)

    def __delitem__(self, snapshot_id: int) -> None:
        self._folder.delete(self._names()[snapshot_id])

    def key(self, snapshot_id: int) -> str:
        """Return the bucket's key."""
        return self._read(snapshot_id)[1].key

    def _read(self, snapshot_id: int) -> tuple[list[bytes], Footer]:
        name = self._names()[snapshot_id]
        opened = self._folder.open_log(name, read_only=True)
        records = opened.read(0, opened.length - 1, 1 << 40)
        return records[:-1], decode_footer(records[-1], name)

    def _names(self) -> dict[int, str]:
        return {
            int(match[2]): match[0] for name in self._folder.names() if (match := SNAPSHOT_LOG_NAME.fullmatch(name))
        }


class FaultyStorage:
    """A storage that fails on demand; ``inner`` changes with each opening."""

    inner: BucketSnapshotStorage

    def __init__(self, snapshots: Lying) -> None:
        self.snapshots = snapshots
        self.faults = StorageFaults()

    @property
    def keys(self) -> Mapping[int, str]:
        """Return the bucket keys."""
        return {each: self.snapshots.key(each) for each in self.snapshots}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        await self.faults.enter("create")
        found = await self.inner.create_bucket_snapshot(metadata, segments, bucket_key, topic_name, cursor_name)
        await self.faults.leave("create")
        return found

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        await self.faults.enter("metadata")
        return await self.inner.get_bucket_snapshot_metadata(snapshot_id)

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        await self.faults.enter("segment")
        return await self.inner.get_bucket_snapshot_segment(snapshot_id, first, last)

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        return await self.inner.get_bucket_snapshot_length(snapshot_id)

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        await self.faults.enter("delete")
        await self.inner.delete_bucket_snapshot(snapshot_id)
        await self.faults.leave("delete")

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        await self.faults.enter("list")
        assert isinstance(self.inner, LogSnapshotStorage)
        return await self.inner.list_bucket_snapshots(topic_name, cursor_name)


class FaultyCursor:
    """A cursor that fails on demand; ``inner`` changes with each opening."""

    inner: LogDelayedCursor

    def __init__(self) -> None:
        self.faults = StorageFaults()

    @property
    def held(self) -> Mapping[str, str]:
        """Return the properties."""
        return self.inner.properties()

    @property
    def mark_delete_position(self) -> Position:
        return self.inner.mark_delete_position

    def properties(self) -> Mapping[str, str]:
        return self.inner.properties()

    async def put_property(self, key: str, value: str) -> None:
        await self.faults.enter("put")
        await self.inner.put_property(key, value)
        await self.faults.leave("put")

    async def remove_property(self, key: str) -> None:
        await self.faults.enter("remove")
        await self.inner.remove_property(key)
        await self.faults.leave("remove")

    async def mark_delete(self, position: Position) -> None:
        await self.inner.mark_delete(position)
