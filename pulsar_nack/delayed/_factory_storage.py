"""The storage that a factory owns: started once, by whoever needs it first, and never waited for too long."""

from __future__ import annotations

import asyncio

from ..errors import ClosedError
from .storage import BucketSnapshotStorage


class OwnedStorage:
    """Starts a storage and closes it.

    A start that takes too long goes on, and nobody waits for it any more; one that failed is tried again the next time
    that the storage is asked for.

    :param patience: how long a start is waited for, in seconds
    """

    def __init__(self, storage: BucketSnapshotStorage, patience: float) -> None:
        self._storage = storage
        self._patience = patience
        self._starting: asyncio.Task[None] | None = None
        self._until = 0.0

    async def get(self) -> BucketSnapshotStorage:
        """Return the storage, started.

        :raises TimeoutError: it is not started yet
        :raises ClosedError: it was closed meanwhile
        :raises Exception: whatever its start raised
        """
        loop = asyncio.get_running_loop()
        if self._starting is None:
            self._starting = loop.create_task(self._storage.start())
            self._starting.add_done_callback(self._started)
            self._until = loop.time() + self._patience
        starting = self._starting
        if not starting.done():
            await asyncio.wait([starting], timeout=max(self._until - loop.time(), 0))
        if not starting.done():
            raise TimeoutError(f"the storage did not start within {self._patience:g} s")
        if starting.cancelled():
            raise ClosedError("the storage")
        starting.result()
        return self._storage

    def _started(self, starting: asyncio.Task[None]) -> None:
        if starting.cancelled() or starting.exception() is not None:
            self._starting = None

    async def aclose(self) -> None:
        """Close it, whether it was started or not."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._storage.close()
