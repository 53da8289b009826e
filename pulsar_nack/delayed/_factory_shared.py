"""The shared indexes of a factory: one for each topic, opened by its first subscription, closed with its last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ._factory_open import is_open
from .bucket import SharedDelayedIndex

_LEAST: Final = 16


@dataclass(slots=True)
class _Topic:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    index: SharedDelayedIndex | None = None


class SharedIndexes:
    """Gives the index of a topic."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._look_at = _LEAST

    async def get(self, topic_name: str, open_index: Callable[[], Awaitable[SharedDelayedIndex]]) -> SharedDelayedIndex:
        """Return the index of a topic, opened unless it is open; subscribe to it before anything else is awaited.

        :raises Exception: whatever ``open_index`` raised; the next call tries again
        """
        self._forget_closed()
        topic = self._topics.setdefault(topic_name, _Topic())
        async with topic.lock:
            if topic.index is None or not is_open(topic.index.tracker):
                if topic.index is not None:
                    await topic.index.aclose()  # its last jobs have to be over
                topic.index = None
                topic.index = await open_index()
            return topic.index

    def _forget_closed(self) -> None:
        """Look through all, but not before there are twice as many as were left the last time."""
        if len(self._topics) >= self._look_at:
            for name, topic in list(self._topics.items()):
                if not topic.lock.locked() and (topic.index is None or not is_open(topic.index.tracker)):
                    del self._topics[name]
            self._look_at = max(_LEAST, 2 * len(self._topics))

    async def aclose(self) -> None:
        """Close all."""
        for topic in list(self._topics.values()):
            async with topic.lock:
                if topic.index is not None:
                    await topic.index.aclose()
