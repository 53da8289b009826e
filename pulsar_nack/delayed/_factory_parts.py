"""What a factory owns: the storage, the open trackers, and the shared indexes of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ..errors import ClosedError, InvalidArgumentError, WrongLoopError
from ._protocol import DelayedDeliveryTracker
from .bucket import SharedDelayedIndex
from .storage import BucketSnapshotStorage

_MIN_SWEEP: Final = 16


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


class OpenTracker(NamedTuple):
    """An open tracker of a factory, with its topic and subscription."""

    topic_name: str
    cursor_name: str
    tracker: DelayedDeliveryTracker


class TrackerRegistry:
    """The open trackers by topic and subscription, held weakly; another thread may read it."""

    def __init__(self) -> None:
        self._trackers = WeakValueDictionary[tuple[str, str], DelayedDeliveryTracker]()
        self._reserved: set[tuple[str, str]] = set()

    def reserve(self, topic_name: str, cursor_name: str) -> None:
        """Reserve the place of a tracker that is about to be opened.

        :raises InvalidArgumentError: the subscription has an open tracker, or another one is being opened
        """
        key = topic_name, cursor_name
        tracker = self._trackers.get(key)
        if key in self._reserved or (tracker is not None and _is_open(tracker)):
            raise InvalidArgumentError(
                "cursor_name", cursor_name, "a subscription of the topic without an open tracker"
            )
        self._reserved.add(key)

    def settle(self, topic_name: str, cursor_name: str, tracker: DelayedDeliveryTracker | None) -> None:
        """End a reservation: register the tracker, or nothing if it was not opened."""
        key = topic_name, cursor_name
        self._reserved.discard(key)
        if tracker is not None:
            self._trackers[key] = tracker

    def all(self) -> list[OpenTracker]:
        """Return the open trackers."""
        found = ((reference.key, reference()) for reference in self._trackers.valuerefs())
        return [OpenTracker(*key, tracker) for key, tracker in found if tracker is not None and _is_open(tracker)]


class SharedIndexRegistry:
    """One shared index for each topic, opened by its first subscription and closed with its last."""

    def __init__(self) -> None:
        self._indexes: dict[str, SharedDelayedIndex] = {}
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        """Those that are in use: one index at a time is opened or closed for a topic."""
        self._sweep_at = _MIN_SWEEP

    async def get(self, topic_name: str, open_index: Callable[[], Awaitable[SharedDelayedIndex]]) -> SharedDelayedIndex:
        """Return the open index of a topic, after opening it if needed; subscribe to it before the next await.

        :raises Exception: ``open_index`` failed; the next call tries again
        """
        self._drop_closed()
        async with self._lock_of(topic_name):
            index = self._indexes.get(topic_name)
            if index is None or not _is_open(index.tracker):
                if index is not None:
                    await index.aclose()  # its last tasks have to end first
                    del self._indexes[topic_name]
                index = self._indexes[topic_name] = await open_index()
            return index

    def _lock_of(self, topic_name: str) -> asyncio.Lock:
        return self._locks.setdefault(topic_name, asyncio.Lock())

    def _drop_closed(self) -> None:
        """Drop closed indexes, once there are twice as many as remained the last time."""
        if len(self._indexes) >= self._sweep_at:
            for name, index in list(self._indexes.items()):
                if name not in self._locks and not _is_open(index.tracker):
                    del self._indexes[name]
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._indexes))

    async def aclose(self) -> None:
        """Close all indexes, also those that are being opened."""
        for name in dict.fromkeys([*self._indexes, *self._locks]):
            async with self._lock_of(name):
                if name in self._indexes:
                    await self._indexes[name].aclose()


def _is_open(tracker: DelayedDeliveryTracker) -> bool:
    """Return whether a tracker is open, by a call that every tracker supports. O(1)."""
    try:
        tracker.contains_message(0, 0)
    except ClosedError:
        return False
    except WrongLoopError:  # called from a thread that exports metrics: it is open
        pass
    return True
