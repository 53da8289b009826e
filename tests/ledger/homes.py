"""The homes (files, objects) of logs, for tests that apply to all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar, cast

from obstore.store import LocalStore, MemoryStore

from pulsar_nack.backoff import Fixed
from pulsar_nack.ledger import LocalLogStore, Log, LogStore, ObjectLogStore
from pulsar_nack.ledger._object_requests import ObjectStoreClient

Opener = Callable[[], Awaitable[LogStore]]
SomeLog = TypeVar("SomeLog", bound=Log)
KINDS = ("local", "memory objects", "local objects")


def opener(kind: str, path: Path) -> Opener:
    """Return a function that opens the same store of this kind, with small parts, as often as it is called."""
    if kind == "local":
        return lambda: LocalLogStore.open(path, max_segment_bytes=2048)
    objects: MemoryStore | LocalStore = MemoryStore()
    if kind == "local objects":
        objects = LocalStore(path, mkdir=True, automatic_cleanup=True)
    return lambda: ObjectLogStore.open(objects, max_object_bytes=2048, max_small_objects=5)


async def open_objects(
    objects: ObjectStoreClient | MemoryStore, *, threads: int = 4, attempts: int = 3
) -> ObjectLogStore:
    """Open a store of logs with small parts on these objects."""
    return await ObjectLogStore.open(
        objects, max_object_bytes=2048, max_small_objects=4, threads=threads, attempts=attempts, backoff=Fixed(0)
    )


async def content(log: Log) -> list[bytes]:
    """Return all records."""
    return [record.data async for record in log.records()]


async def reopened(store: LogStore, log: SomeLog, *, read_only: bool = False) -> SomeLog:
    """Close a log and open it again."""
    await log.aclose()
    return cast("SomeLog", await store.open_log(log.name, read_only=read_only))
