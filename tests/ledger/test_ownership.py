"""The owned part of a store, also of stores without owners."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest
from obstore.store import MemoryStore

from pulsar_nack.errors import ClosedError, LogCorruptedError
from pulsar_nack.ledger import LocalLogStore, Log, LogStore, ObjectLogStore
from pulsar_nack.ledger.ownership import OwnableStore, take_ownership


class PlainStore:
    """A user's store around one of the library's: with the required calls only."""

    def __init__(self, inner: LocalLogStore) -> None:
        self._inner = inner

    async def create(self, name: str) -> Log:
        """Make a log."""
        return await self._inner.create(name)

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        """Open a log."""
        return await self._inner.open_log(name, read_only=read_only)

    async def names(self) -> list[str]:
        """Return the names of all logs."""
        return await self._inner.names()

    async def delete(self, name: str) -> None:
        """Delete a log."""
        await self._inner.delete(name)

    async def aclose(self) -> None:
        """Close the store."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class SalvagingStore(PlainStore):
    """A user's store that can open damaged logs."""

    async def open_damaged(self, name: str) -> Log:
        """Open a damaged log."""
        return await self._inner.open_damaged(name)


async def damage(folder: Path) -> None:
    """Make a log of two frames, the first one damaged."""
    async with await LocalLogStore.open(folder) as store, await store.create("a") as log:
        await log.append(b"first")
        await log.append(b"second")
    (file,) = (folder / "a.log").glob("*.segment")
    file.write_bytes(file.read_bytes().replace(b"first", b"f1rst"))


async def test_a_store_without_owners_is_owned_as_a_whole(tmp_path: Path) -> None:
    """Closing an owned part closes the logs opened through it, also by a later owner, and not the store."""
    async with await LocalLogStore.open(tmp_path) as inner:
        store: LogStore = PlainStore(inner)
        assert not isinstance(store, OwnableStore)
        part = await take_ownership(store, "state")
        assert isinstance(part, OwnableStore)
        nested = await take_ownership(part, "state")
        logs = [await part.create("a"), await nested.create("b")]
        assert await nested.names() == ["a", "b"]
        await part.aclose()
        for log in logs:
            with pytest.raises(ClosedError):
                await log.append(b"x")
        for opening in (part.create("c"), part.open_log("a"), part.open_damaged("a"), nested.create("c")):
            with pytest.raises(ClosedError):
                await opening
        async with await store.open_log("a") as log:
            assert await log.append(b"x") == 0


class SlowStore(PlainStore):
    """A user's store that creates no log until it may."""

    def __init__(self, inner: LocalLogStore) -> None:
        super().__init__(inner)
        self.may_create = asyncio.Event()

    async def create(self, name: str) -> Log:
        """Wait, then make a log."""
        await self.may_create.wait()
        return await super().create(name)


async def test_a_log_that_is_made_while_its_owner_closes(tmp_path: Path) -> None:
    """It is closed as soon as it exists, so that others can open it."""
    async with await LocalLogStore.open(tmp_path) as inner:
        store = SlowStore(inner)
        part = await take_ownership(store, "state")
        creating = asyncio.ensure_future(part.create("a"))
        await asyncio.sleep(0)
        await part.aclose()
        store.may_create.set()
        log = await creating
        with pytest.raises(ClosedError):
            await log.append(b"x")
        async with await store.open_log("a") as again:
            assert await again.append(b"x") == 0


@pytest.mark.parametrize("kind", [PlainStore, SalvagingStore])
async def test_damaged_logs_of_a_store_without_owners(kind: Any, tmp_path: Path) -> None:
    """If the store can open them, so can the owner; otherwise they are refused as by ``open_log``."""
    await damage(tmp_path)
    async with await LocalLogStore.open(tmp_path) as inner:
        part = await take_ownership(kind(inner), "state")
        if kind is PlainStore:
            with pytest.raises(LogCorruptedError):
                await part.open_damaged("a")
            return
        log = await part.open_damaged("a")
        assert [each.first for each in log.damage] == [0]
        assert await log.read(1, 1) == [b"second"]
        await part.aclose()
        with pytest.raises(ClosedError):
            await log.read(1, 1)


async def test_damaged_logs_on_an_object_store() -> None:
    """They are refused there; a whole log is opened, and reports no damage."""
    memory = MemoryStore()
    async with await ObjectLogStore.open(memory) as store:
        async with await store.create("a") as log:
            await log.append(b"first")
        async with await store.open_damaged("a") as log:
            assert not log.damage
            assert await log.read(0, 0) == [b"first"]
        for key in [each["path"] for each in memory.list().collect() if each["path"].startswith("logs/")]:
            memory.put(key, b"damaged")
        with pytest.raises(LogCorruptedError):
            await store.open_damaged("a")
