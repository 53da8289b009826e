"""A storage and a cursor in memory, with faults and delays to inject; they outlive the trackers that use them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pulsar_nack import Position, SnapshotNotFoundError


class BrokenError(Exception):
    """What an injected fault raises."""


class Faults:
    """Fails or holds up calls by name: ``fail["create"] = 2`` fails the next two, -1 all from now on."""

    def __init__(self) -> None:
        self.fail: dict[str, int] = defaultdict(int)
        self.fail_after: dict[str, int] = defaultdict(int)
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: Counter[str] = Counter()

    def hold(self, name: str) -> asyncio.Event:
        """Let calls wait until the event that is returned is set."""
        return self.gates.setdefault(name, asyncio.Event())

    async def enter(self, name: str) -> None:
        """Begin a call: before anything is done."""
        self.calls[name] += 1
        await asyncio.sleep(0)
        if name in self.gates:
            await self.gates[name].wait()
        _spend(self.fail, name)

    async def leave(self, name: str) -> None:
        """End a call: what it is for has been done, but the answer may be a failure."""
        await asyncio.sleep(0)
        _spend(self.fail_after, name)


def _spend(faults: dict[str, int], name: str) -> None:
    if faults[name]:
        faults[name] -= faults[name] > 0
        raise BrokenError(name)


class MemoryStorage:
    """Snapshots in a dict; ids grow and are never used again."""

    def __init__(self) -> None:
        self.snapshots: dict[int, tuple[bytes, ...]] = {}
        self.keys: dict[int, str] = {}
        self.faults = Faults()
        self._last_id = 400

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store entries."""
        await self.faults.enter("create")
        self._last_id += 1
        snapshot_id = self._last_id
        self.snapshots[snapshot_id] = (metadata, *segments)
        self.keys[snapshot_id] = bucket_key
        await self.faults.leave("create")
        return snapshot_id

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        await self.faults.enter("metadata")
        return self._entries(snapshot_id)[0]

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return entries."""
        await self.faults.enter("segment")
        return self._entries(snapshot_id)[first : last + 1]

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return bytes."""
        return sum(map(len, self._entries(snapshot_id)))

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete entries."""
        await self.faults.enter("delete")
        self._entries(snapshot_id)
        del self.snapshots[snapshot_id]
        await self.faults.leave("delete")

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return all ids."""
        await self.faults.enter("list")
        return list(self.snapshots)

    def _entries(self, snapshot_id: int) -> tuple[bytes, ...]:
        if snapshot_id not in self.snapshots:
            raise SnapshotNotFoundError(snapshot_id)
        return self.snapshots[snapshot_id]


class MemoryCursor:
    """Properties in a dict, and a mark-delete position that tests set."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {"other": "1"}
        self.mark_delete_position = Position(0, -1)
        self.faults = Faults()

    def properties(self) -> Mapping[str, str]:
        """Return all."""
        return self.held

    async def put_property(self, key: str, value: str) -> None:
        """Set one."""
        await self.faults.enter("put")
        self.held[key] = value
        await self.faults.leave("put")

    async def remove_property(self, key: str) -> None:
        """Remove one."""
        await self.faults.enter("remove")
        self.held.pop(key, None)
        await self.faults.leave("remove")
