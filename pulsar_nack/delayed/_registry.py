"""The open trackers of a factory, and the open shared indexes of its topics."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..errors import ClosedError, InvalidArgumentError, WrongLoopError
from ._protocol import DelayedDeliveryTracker
from .bucket import SharedDelayedIndex

_MIN_SWEEP: Final = 16


class OpenTracker(NamedTuple):
    """An open tracker of a factory, with its topic and subscription."""

    topic_name: str
    cursor_name: str
    tracker: DelayedDeliveryTracker


class TrackerRegistry:
    """The open trackers by topic and subscription, held weakly; another thread may read it."""

    def __init__(self) -> None:
        self._trackers: dict[tuple[str, str], weakref.ref[DelayedDeliveryTracker]] = {}
        self._reserved: set[tuple[str, str]] = set()
        self._sweep_at = _MIN_SWEEP

    def reserve(self, topic_name: str, cursor_name: str) -> None:
        """Reserve the place of a tracker that is about to be opened.

        :raises InvalidArgumentError: the subscription has an open tracker, or another one is being opened
        """
        key = topic_name, cursor_name
        if key in self._reserved or self._open(key) is not None:
            raise InvalidArgumentError(
                "cursor_name", cursor_name, "a subscription of the topic without an open tracker"
            )
        self._reserved.add(key)

    def settle(self, topic_name: str, cursor_name: str, tracker: DelayedDeliveryTracker | None) -> None:
        """End a reservation: register the tracker, or nothing if it was not opened."""
        key = topic_name, cursor_name
        self._reserved.discard(key)
        if tracker is not None:
            self._trackers[key] = weakref.ref(tracker)
            self._drop_closed()

    def all(self) -> list[OpenTracker]:
        """Return the open trackers."""
        found = ((key, self._open(key)) for key in list(self._trackers))
        return [OpenTracker(*key, tracker) for key, tracker in found if tracker is not None]

    def _open(self, key: tuple[str, str]) -> DelayedDeliveryTracker | None:
        reference = self._trackers.get(key)
        tracker = None if reference is None else reference()
        return tracker if tracker is not None and _is_open(tracker) else None

    def _drop_closed(self) -> None:
        """Drop closed trackers, once there are twice as many as remained the last time."""
        if len(self._trackers) >= self._sweep_at:
            for key in [key for key in self._trackers if self._open(key) is None]:
                del self._trackers[key]
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._trackers))


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
