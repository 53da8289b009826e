"""Snapshots and a cursor in memory, with faults on demand, for tests of the bucket tracker and its users."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ..errors import InjectedError, SnapshotNotFoundError
from ..ids import Position

_NO_NAMES = "", ""


class StorageFaults:
    """Fails or delays the calls of a storage or a cursor, by their short names.

    The names of a storage are ``create``, ``metadata``, ``segment``, ``delete`` and ``list``, those of a cursor
    ``put``, ``remove`` and ``mark``.

    - ``fail["create"] = 2`` lets the next two calls raise :class:`~pulsar_nack.errors.InjectedError` before anything
      is done; -1: all from now on, 0: none.
    - ``fail_after["create"] = 1`` lets one call raise after it has taken effect, as if only the answer was lost.
    - ``calls["create"]`` is how many calls began.
    """

    def __init__(self) -> None:
        self.fail: dict[str, int] = defaultdict(int)
        self.fail_after: dict[str, int] = defaultdict(int)
        self.calls: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> asyncio.Event:
        """Let calls of this name wait, before anything is done, until the returned event is set."""
        if name not in self._gates or self._gates[name].is_set():
            self._gates[name] = asyncio.Event()
        return self._gates[name]

    def heal(self) -> None:
        """Remove all faults, and let waiting calls continue."""
        self.fail.clear()
        self.fail_after.clear()
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()

    async def enter(self, name: str) -> None:
        """Begin a call."""
        self.calls[name] += 1
        await asyncio.sleep(0)
        if name in self._gates:
            await self._gates[name].wait()
        _spend(self.fail, name)

    async def leave(self, name: str) -> None:
        """End a call that has taken effect."""
        await asyncio.sleep(0)
        _spend(self.fail_after, name)


def _spend(faults: dict[str, int], name: str) -> None:
    if faults[name]:
        faults[name] -= faults[name] > 0
        raise InjectedError(name)


class MemorySnapshotStorage:
    """A :class:`~pulsar_nack.BucketSnapshotStorage` in a dict, which outlives the trackers that use it.

    By snapshot id, ``snapshots`` has the entries, ``keys`` the bucket keys and ``names`` topic and cursor; tests may
    change them. ``faults`` is a :class:`StorageFaults`. Ids grow and are never reused.
    """

    def __init__(self) -> None:
        self.snapshots: dict[int, tuple[bytes, ...]] = {}
        self.keys: dict[int, str] = {}
        self.names: dict[int, tuple[str, str]] = {}
        self.faults = StorageFaults()
        self._last_id = 400

    async def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its new id."""
        await self.faults.enter("create")
        self._last_id += 1
        snapshot_id = self._last_id
        self.snapshots[snapshot_id] = (metadata, *segments)
        self.keys[snapshot_id] = bucket_key
        self.names[snapshot_id] = topic_name, cursor_name
        await self.faults.leave("create")
        return snapshot_id

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        await self.faults.enter("metadata")
        return self._entries(snapshot_id)[0]

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``."""
        await self.faults.enter("segment")
        return self._entries(snapshot_id)[first : last + 1]

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return the size of a snapshot in bytes."""
        return sum(map(len, self._entries(snapshot_id)))

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot."""
        await self.faults.enter("delete")
        self._entries(snapshot_id)
        del self.snapshots[snapshot_id]
        await self.faults.leave("delete")

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of a cursor's snapshots; with empty names, those of unknown origin."""
        await self.faults.enter("list")
        wanted = topic_name, cursor_name
        return [each for each in self.snapshots if self.names.get(each, _NO_NAMES) == wanted]

    def _entries(self, snapshot_id: int) -> tuple[bytes, ...]:
        if snapshot_id not in self.snapshots:
            raise SnapshotNotFoundError(snapshot_id)
        return self.snapshots[snapshot_id]


class MemoryDelayedCursor:
    """A :class:`~pulsar_nack.delayed.DelayedCursor` in memory, which outlives the trackers that use it.

    ``held`` has its properties and ``mark_delete_position`` its mark-delete position; tests may set both. ``faults`` is
    a
    :class:`StorageFaults`.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.held: dict[str, str] = dict(properties or {})
        self.mark_delete_position = Position(0, -1)
        self.faults = StorageFaults()

    def properties(self) -> Mapping[str, str]:
        """Return all properties."""
        return self.held

    async def put_property(self, key: str, value: str) -> None:
        """Set a property."""
        await self.faults.enter("put")
        self.held[key] = value
        await self.faults.leave("put")

    async def remove_property(self, key: str) -> None:
        """Remove a property if it exists."""
        await self.faults.enter("remove")
        self.held.pop(key, None)
        await self.faults.leave("remove")

    async def mark_delete(self, position: Position) -> None:
        """Move the mark-delete position forward."""
        await self.faults.enter("mark")
        self.mark_delete_position = max(self.mark_delete_position, position)
        await self.faults.leave("mark")
