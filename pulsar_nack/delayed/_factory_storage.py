"""The storage that a factory owns, and the deletion of snapshots that none of its trackers use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._tasks import TaskOwner
from ..clock import Clock
from ..errors import ClosedError
from .bucket import delete_bucket_snapshots
from .storage import BucketSnapshotStorage, DelayedCursor


class OwnedStorage:
    """A storage that is started once, by its first user, and closed at the end.

    A start that takes longer than ``timeout`` seconds continues, but no one waits for it. A start that failed
    is repeated by the next user.
    """

    def __init__(self, storage: BucketSnapshotStorage, timeout: float) -> None:
        self._storage = storage
        self._timeout = timeout
        self._starting: asyncio.Task[None] | None = None
        self._until = 0.0

    async def get(self) -> BucketSnapshotStorage:
        """Return the started storage.

        :raises TimeoutError: it has not started yet
        :raises ClosedError: it was closed meanwhile
        :raises Exception: its start failed
        """
        loop = asyncio.get_running_loop()
        if self._starting is None:
            self._starting = loop.create_task(self._storage.start())
            self._starting.add_done_callback(self._started)
            self._until = loop.time() + self._timeout
        starting = self._starting
        if not starting.done():
            await asyncio.wait([starting], timeout=max(self._until - loop.time(), 0))
        if not starting.done():
            raise TimeoutError(f"the storage did not start within {self._timeout:g} s")
        if starting.cancelled():
            raise ClosedError("the storage")
        starting.result()
        return self._storage

    def _started(self, starting: asyncio.Task[None]) -> None:
        if starting.cancelled() or starting.exception() is not None:
            self._starting = None

    async def aclose(self) -> None:
        """Close the storage, started or not."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._storage.close()


class SnapshotCleaner:
    """Deletes the snapshots of cursors, one task for each; it retries with backoff until all are gone or it is closed.

    :param on_error: called with the error of each failed attempt
    """

    def __init__(self, storage: OwnedStorage, clock: Clock, on_error: Callable[[Exception], None]) -> None:
        self._storage = storage
        self._on_error = on_error
        self._tasks = TaskOwner(clock)
        self._cursors: set[tuple[str, str]] = set()
        self.cleaned = 0

    @property
    def cleaning(self) -> int:
        """Return how many cursors still have snapshots to be deleted."""
        return len(self._cursors)

    def start(self, cursor: DelayedCursor, topic_name: str, cursor_name: str) -> None:
        """Delete all snapshots of a cursor, unless a task already does."""
        key = topic_name, cursor_name
        if key not in self._cursors:
            self._cursors.add(key)
            self._tasks.start(self._clean(cursor, key))

    async def _clean(self, cursor: DelayedCursor, key: tuple[str, str]) -> None:
        try:
            await self._tasks.retry(lambda: self._clean_once(cursor, key))
        finally:
            self._cursors.discard(key)

    async def _clean_once(self, cursor: DelayedCursor, key: tuple[str, str]) -> bool:
        topic_name, cursor_name = key
        if key not in self._cursors:
            return True
        try:
            storage = await self._storage.get()
            self.cleaned += await delete_bucket_snapshots(
                storage, cursor, topic_name=topic_name, cursor_name=cursor_name
            )
        except Exception as error:  # noqa: BLE001 - reported, and retried
            self._on_error(error)
            return False
        return True

    async def stop(self, topic_name: str, cursor_name: str) -> None:
        """Stop with one cursor, and return when nothing is being deleted any more."""
        self._cursors.discard((topic_name, cursor_name))
        await self.idle()

    async def idle(self) -> None:
        """Wait until every cursor is clean or waits for its next attempt."""
        await self._tasks.wait_until_idle()

    async def aclose(self) -> None:
        """Stop; the next run finds the snapshots that remain."""
        await self._tasks.aclose()
