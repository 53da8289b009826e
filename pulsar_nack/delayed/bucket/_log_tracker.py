"""The bucket tracker on append-only logs: storage and cursor in one store, opened and closed with the tracker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from os import PathLike
from typing import Final, Self

from ...clock import Clock
from ...config import BucketConfig
from ...ledger import LocalLogStore, LogStore
from .._arguments import check_on_due
from ._log_cursor import LogDelayedCursor
from ._log_storage import LogSnapshotStorage
from ._tracker import BucketDelayedDeliveryTracker
from ._wire import messages

_LOCAL_APPEND: Final = 1 << 18
"""What is appended together is read together; with files, where a read costs little, a few segments of a snapshot."""


class LogBucketTracker(BucketDelayedDeliveryTracker):
    """A :class:`~pulsar_nack.BucketDelayedDeliveryTracker` that has its cursor with it, and closes what it opened.

    Made by :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local` or :meth:`open_store`.
    """

    _cursor: LogDelayedCursor
    _opened: AsyncExitStack | None = None

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
        messages()
        check_on_due(on_due)
        async with AsyncExitStack() as stack:
            return await cls._open_in(stack, store, config, clock, on_due)

    @classmethod
    async def _open_in(
        cls,
        stack: AsyncExitStack,
        store: LogStore,
        config: BucketConfig | None,
        clock: Clock | None,
        on_due: Callable[[], object] | None,
    ) -> Self:
        """Open it, and let it close what it opens and what is on the stack already."""
        cursor = await stack.enter_async_context(await LogDelayedCursor.open(store))
        if isinstance(store, LocalLogStore):
            storage = LogSnapshotStorage(store, max_append=_LOCAL_APPEND)
        else:
            storage = LogSnapshotStorage(store)
        await stack.enter_async_context(storage)
        self = await cls.open(storage, cursor, config, clock=clock, on_due=on_due)
        self._cursor, self._opened = cursor, stack.pop_all()
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
        messages()
        check_on_due(on_due)
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(await LocalLogStore.open(path))
            return await cls._open_in(stack, store, config, clock, on_due)

    @property
    def cursor(self) -> LogDelayedCursor:
        """Return the cursor: ``await tracker.cursor.mark_delete(position)`` tells what is acknowledged."""
        return self._cursor

    async def aclose(self) -> None:
        """Stop, and close what was opened with it; snapshots stay. Idempotent."""
        try:
            await super().aclose()
        finally:
            if self._opened is not None:
                await self._opened.aclose()
