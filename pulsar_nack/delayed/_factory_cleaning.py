"""Deletes the snapshots of cursors whose trackers do not use them any more, beside everything else."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock
from ._factory_storage import OwnedStorage
from .bucket._jobs import Jobs
from .bucket._residues import delete_bucket_snapshots
from .storage import DelayedCursor


class Cleaning:
    """One job for each cursor: it is tried again, with backoff, until nothing is left or the factory is closed.

    :param on_error: told of each attempt that failed
    """

    def __init__(self, storage: OwnedStorage, clock: Clock, on_error: Callable[[Exception], None]) -> None:
        self._storage = storage
        self._on_error = on_error
        self._jobs = Jobs(clock)
        self._going_on: set[tuple[str, str]] = set()
        self.cleaned = 0

    @property
    def going_on(self) -> int:
        """Return how many cursors are not done."""
        return len(self._going_on)

    def start(self, cursor: DelayedCursor, topic_name: str, cursor_name: str) -> None:
        """Delete all snapshots of a cursor, unless that is being done already."""
        key = topic_name, cursor_name
        if key not in self._going_on:
            self._going_on.add(key)
            self._jobs.start(self._clean(cursor, key))

    async def _clean(self, cursor: DelayedCursor, key: tuple[str, str]) -> None:
        failures = 0
        try:
            while not await self._clean_once(cursor, key):
                failures += 1
                await self._jobs.back_off(failures)
        finally:
            self._going_on.discard(key)

    async def _clean_once(self, cursor: DelayedCursor, key: tuple[str, str]) -> bool:
        topic_name, cursor_name = key
        try:
            storage = await self._storage.get()
            self.cleaned += await delete_bucket_snapshots(
                storage, cursor, topic_name=topic_name, cursor_name=cursor_name
            )
        except Exception as error:  # noqa: BLE001 - told, and tried again whatever it is
            self._on_error(error)
            return False
        return True

    async def idle(self) -> None:
        """Wait until all is done, or waits for its next attempt."""
        await self._jobs.idle()

    async def aclose(self) -> None:
        """Give up what is not done; the next run finds it."""
        await self._jobs.aclose()
