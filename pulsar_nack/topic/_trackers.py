"""The trackers of delayed messages: one for each subscription, from a factory for its settings."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock
from ..config import BucketConfig
from ..cursor import Cursor
from ..delayed import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory
from ..delayed.bucket import LogDelayedCursor, LogSnapshotStorage
from ..errors import InvalidArgumentError
from ..ledger import LogStore


class Trackers:
    """Creates trackers. Subscriptions with the same settings share a factory, and with it a shared index."""

    def __init__(self, topic: str, store: LogStore, clock: Clock) -> None:
        self._topic = topic
        self._store = store
        self._clock = clock
        self._factories: dict[BucketConfig, DelayedDeliveryTrackerFactory] = {}
        self._topic_cursor: LogDelayedCursor | None = None

    async def make(
        self, name: str, cursor: Cursor, config: BucketConfig, on_due: Callable[[], object]
    ) -> DelayedDeliveryTracker:
        """Return the tracker of a subscription.

        :raises InvalidArgumentError: the topic already has a shared index with other settings
        """
        factory = await self._factory(config)
        if _is_shared(config) and self._topic_cursor is None:
            self._topic_cursor = await LogDelayedCursor.open(self._store, name="delayed-index")
        return await factory.new_tracker(
            topic_name=self._topic,
            cursor_name=name,
            cursor=cursor,
            topic_cursor=self._topic_cursor if _is_shared(config) else None,
            on_due=on_due,
        )

    async def delete(self, tracker: DelayedDeliveryTracker, config: BucketConfig) -> None:
        """Delete what a tracker, or an earlier one of its subscription, has on storage."""
        await tracker.clear()
        await self._factories[config].wait_until_clean()

    async def _factory(self, config: BucketConfig) -> DelayedDeliveryTrackerFactory:
        factory = self._factories.get(config)
        if factory is not None:
            return factory
        if _is_shared(config) and any(map(_is_shared, self._factories)):
            raise InvalidArgumentError("delayed", config, "the settings of the index that the subscriptions share")
        storage = LogSnapshotStorage(self._store, clock=self._clock)
        factory = DelayedDeliveryTrackerFactory(config, storage, clock=self._clock)
        await factory.start()
        self._factories[config] = factory
        return factory

    async def aclose(self) -> None:
        """Close all trackers and their storage."""
        try:
            for factory in self._factories.values():
                await factory.aclose()
        finally:
            if self._topic_cursor is not None:
                await self._topic_cursor.aclose()


def _is_shared(config: BucketConfig) -> bool:
    return config.tracker_kind == "bucket" and config.delayed_delivery_shared_index_enabled
