"""The bucket tracker on append-only logs: storage and cursor in one store, opened and closed with the tracker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import PathLike
from typing import Final, Self

from ..._check import clock_of, config_of
from ...clock import Clock
from ...config import BucketConfig
from ...ledger import LocalLogStore, LogStore
from ...ledger.ownership import OwnedStore, close_on_error, storage_timeout, take_ownership
from .._arguments import check_on_due
from ._log_cursor import CURSOR, LogDelayedCursor, check_name_is_free
from ._log_storage import APPEND, LogSnapshotStorage
from ._tracker import BucketDelayedDeliveryTracker
from ._wire import messages

_LOCAL_APPEND: Final = 1 << 18
"""What is appended together is read together; with files, where a read costs little, a few segments of a snapshot."""


class LogBucketTracker(BucketDelayedDeliveryTracker):
    """A :class:`~pulsar_nack.BucketDelayedDeliveryTracker` that has its cursor with it, and closes what it opened.

    Made by :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local` or :meth:`open_store`.
    """

    _cursor: LogDelayedCursor
    _storage: LogSnapshotStorage | None = None
    _place: OwnedStore | LocalLogStore

    @classmethod
    async def open_store(
        cls,
        store: LogStore,
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> Self:
        """Open the tracker that has its snapshots and its cursor on a store of logs; one at a time has it open.

        The arguments and errors are those of :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`.

        :param store: for this tracker alone; closed by its owner, after the tracker
        """
        check_on_due(on_due)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        messages()
        await check_name_is_free(store, CURSOR)
        part = await take_ownership(store, CURSOR)
        async with close_on_error([part]):
            return await cls._open_in(part, part, config, clock, on_due)

    @classmethod
    async def _open_in(
        cls,
        part: OwnedStore,
        place: OwnedStore | LocalLogStore,
        config: BucketConfig,
        clock: Clock,
        on_due: Callable[[], object] | None,
    ) -> Self:
        """Open the tracker; whoever owns the cursor's name owns the snapshots too.

        :param place: what it closes
        """
        timeout = config.close_timeout
        cursor = await LogDelayedCursor.open(part, close_timeout=timeout)
        max_append = _LOCAL_APPEND if isinstance(part, LocalLogStore) else APPEND
        storage = LogSnapshotStorage(part, max_append=max_append, close_timeout=timeout)
        await storage.start()
        self = await cls.open(storage, cursor, config, clock=clock, on_due=on_due)
        self._cursor, self._storage, self._place = cursor, storage, place
        return self

    @classmethod
    async def open_local(
        cls,
        path: str | PathLike[str],
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> Self:
        """Open the tracker that has its snapshots and its cursor in a folder, made where it is missing."""
        check_on_due(on_due)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        messages()
        store = await LocalLogStore.open(path)
        async with close_on_error([store]):
            await check_name_is_free(store, CURSOR)
            return await cls._open_in(await take_ownership(store, CURSOR), store, config, clock, on_due)

    @property
    def cursor(self) -> LogDelayedCursor:
        """Return the cursor: ``await tracker.cursor.mark_delete(position)`` tells what is acknowledged."""
        return self._cursor

    async def aclose(self) -> None:
        """Stop, and close what was opened with it; snapshots stay. Takes ``close_timeout`` at most. Idempotent.

        :raises TimeoutError: storage did not answer in time; it is given up as soon as it does
        """
        await super().aclose()
        if self._storage is None:
            return
        try:
            async with storage_timeout(self._config.close_timeout.total_seconds(), "the tracker"):
                await asyncio.gather(self._cursor.aclose(), self._storage.close())
                await self._place.aclose()
        finally:
            self._place.close_soon()
