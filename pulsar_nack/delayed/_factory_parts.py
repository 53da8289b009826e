"""What a factory owns: the storage, the open trackers, the shared indexes of topics, and the deletion of snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from .._tasks import TaskOwner
from ..clock import Clock
from ..errors import ClosedError, InvalidArgumentError, WrongLoopError
from ._protocol import DelayedDeliveryTracker
from .bucket import SharedDelayedIndex, delete_bucket_snapshots
from .storage import BucketSnapshotStorage, DelayedCursor

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


@dataclass(slots=True)
class _Topic:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    index: SharedDelayedIndex | None = None


class SharedIndexRegistry:
    """One shared index for each topic, opened by its first subscription and closed with its last."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._sweep_at = _MIN_SWEEP

    async def get(self, topic_name: str, open_index: Callable[[], Awaitable[SharedDelayedIndex]]) -> SharedDelayedIndex:
        """Return the open index of a topic, after opening it if needed; subscribe to it before the next await.

        :raises Exception: ``open_index`` failed; the next call tries again
        """
        self._drop_closed()
        topic = self._topics.setdefault(topic_name, _Topic())
        async with topic.lock:
            if topic.index is None or not _is_open(topic.index.tracker):
                if topic.index is not None:
                    await topic.index.aclose()  # its last tasks have to end first
                topic.index = None
                topic.index = await open_index()
            return topic.index

    def _drop_closed(self) -> None:
        """Drop closed indexes, once there are twice as many topics as remained the last time."""
        if len(self._topics) >= self._sweep_at:
            for name, topic in list(self._topics.items()):
                if not topic.lock.locked() and (topic.index is None or not _is_open(topic.index.tracker)):
                    del self._topics[name]
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._topics))

    async def aclose(self) -> None:
        """Close all indexes."""
        for topic in list(self._topics.values()):
            async with topic.lock:
                if topic.index is not None:
                    await topic.index.aclose()


def _is_open(tracker: DelayedDeliveryTracker) -> bool:
    """Return whether a tracker is open, by a call that every tracker supports. O(1)."""
    try:
        tracker.contains_message(0, 0)
    except ClosedError:
        return False
    except WrongLoopError:  # called from a thread that exports metrics: it is open
        pass
    return True


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
