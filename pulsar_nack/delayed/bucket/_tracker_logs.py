"""The cursor and the snapshot storage of one tracker, on one store of logs."""

from __future__ import annotations

import asyncio
from os import PathLike
from typing import Final, Self

from ...config import BucketConfig
from ...ledger import LocalLogStore, LogStore
from ...ledger.ownership import OwnedStore, close_on_error, storage_timeout, take_ownership
from ._log_cursor import CURSOR, LogDelayedCursor, names_of
from ._log_storage import MAX_APPEND, LogSnapshotStorage

_MAX_LOCAL_APPEND: Final = 1 << 18
"""Records of one append are read together. Reads of files are cheap, so there it is a few segments of a snapshot."""


class TrackerLogs:
    """A cursor and a snapshot storage that are opened and closed together.

    The owner of the cursor's name in the store also owns the snapshots.

    :param place: the store, or its owned part, that is closed at last
    """

    def __init__(
        self,
        cursor: LogDelayedCursor,
        storage: LogSnapshotStorage,
        place: OwnedStore | LocalLogStore,
        close_timeout_s: float,
    ) -> None:
        self.cursor = cursor
        self.storage = storage
        self.place = place
        self._close_timeout_s = close_timeout_s

    @classmethod
    async def open_store(cls, store: LogStore, config: BucketConfig) -> Self:
        """Open the logs in a store, which its owner closes afterwards."""
        part = await take_ownership(store, (await names_of(store, CURSOR)).cursor)
        async with close_on_error([part]):
            return await cls._open(part, part, config)

    @classmethod
    async def open_local(cls, path: str | PathLike[str], config: BucketConfig) -> Self:
        """Open the logs in a folder, which is created if it is missing."""
        store = await LocalLogStore.open(path)
        async with close_on_error([store]):
            names = await names_of(store, CURSOR)
            return await cls._open(await take_ownership(store, names.cursor), store, config)

    @classmethod
    async def _open(cls, part: OwnedStore, place: OwnedStore | LocalLogStore, config: BucketConfig) -> Self:
        timeout = config.close_timeout
        cursor = await LogDelayedCursor.open(part, close_timeout=timeout)
        max_append = _MAX_LOCAL_APPEND if isinstance(part, LocalLogStore) else MAX_APPEND
        storage = LogSnapshotStorage(part, max_append=max_append, close_timeout=timeout)
        await storage.start()
        return cls(cursor, storage, place, timeout.total_seconds())

    async def aclose(self) -> None:
        """Close cursor, storage and store. Takes at most ``close_timeout``.

        :raises TimeoutError: storage did not answer in time; everything is closed as soon as it does
        """
        try:
            async with storage_timeout(self._close_timeout_s, "the tracker"):
                await asyncio.gather(self.cursor.aclose(), self.storage.close())
                await self.place.aclose()
        finally:
            self.place.close_soon()
