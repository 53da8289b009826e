"""One index for several subscriptions of a topic, so that the same delays are held and stored once.

The index follows the lowest mark-delete position: it drops the messages that all subscriptions have acknowledged.
Due messages go into the replay queue of each subscription, except those that it has acknowledged. A replay queue is a
bitmap per ledger; so it takes little memory even if nobody empties it, and gives its messages in order of position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

from ..._check import INT64_MAX, check_flag, check_integer, clock_of, config_of
from ..._lifetime import ClosesOnExit
from ...clock import Clock
from ...config import BucketConfig
from ...errors import ClosedError, InvalidArgumentError
from ...ids import Position
from ...index import PositionSet
from .._protocol import check_message, check_on_due
from ..storage import BucketSnapshotStorage, DelayedCursor
from ._snapshots import Snapshots
from ._tracker import BucketDelayedDeliveryTracker

_NAME: Final = "SharedSubscription"


class SharedDelayedIndex(ClosesOnExit):
    """A bucket tracker that several subscriptions share; each gets its tracker from :meth:`subscribe`.

    Open it with :meth:`open`, and close it with :meth:`aclose` or ``async with``, which closes the subscriptions too.
    """

    def __init__(self, cursor: DelayedCursor, *, closes_with_last: bool) -> None:
        self._cursor = cursor
        self._subscriptions: dict[str, SharedSubscription] = {}
        self._closes_with_last = closes_with_last
        self._tracker: BucketDelayedDeliveryTracker

    @classmethod
    async def open(
        cls,
        storage: BucketSnapshotStorage,
        cursor: DelayedCursor,
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        topic_name: str = "",
        closes_with_last: bool = False,
    ) -> Self:
        """Open the index; see :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open`.

        :param cursor: keeps the names of the snapshots; its mark-delete position counts while there is no subscription
        :param closes_with_last: close when the last subscription is closed
        """
        check_flag("closes_with_last", closes_with_last)
        self = cls(cursor, closes_with_last=closes_with_last)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        snapshots = Snapshots(storage, cursor, topic_name, "", clock=clock, mark_delete=self._lowest_mark_delete)
        self._tracker = BucketDelayedDeliveryTracker(snapshots, config, clock, self._call_all)
        await self._tracker._recover()
        return self

    def _lowest_mark_delete(self) -> Position:
        marks = [subscription.mark_delete() for subscription in self._subscriptions.values()]
        return min(marks) if marks else self._cursor.mark_delete_position

    @property
    def tracker(self) -> BucketDelayedDeliveryTracker:
        """Return the index's tracker, for its statistics; messages are taken through subscriptions."""
        return self._tracker

    def subscribe(
        self, name: str, mark_delete: Callable[[], Position], *, on_due: Callable[[], object] | None = None
    ) -> SharedSubscription:
        """Return the tracker of one subscription.

        :param mark_delete: returns the subscription's mark-delete position
        :param on_due: as with any tracker
        :raises InvalidArgumentError: the name is taken, or ``on_due`` is not a plain function
        """
        check_on_due(on_due)
        if name in self._subscriptions:
            raise InvalidArgumentError("name", name, "a name that no subscription has yet")
        subscription = SharedSubscription(self, name, mark_delete, on_due)
        self._subscriptions[name] = subscription
        return subscription

    async def aclose(self) -> None:
        """Close the index and its subscriptions; snapshots stay. Idempotent."""
        self._tracker._check_loop(_NAME)
        for subscription in list(self._subscriptions.values()):
            await subscription.aclose()
        await self._tracker.aclose()

    def _call_all(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription._call_on_due()

    def _others(self, one: SharedSubscription) -> list[SharedSubscription]:
        return [each for each in self._subscriptions.values() if each is not one]

    async def _leave(self, name: str) -> None:
        self._subscriptions.pop(name, None)
        if self._closes_with_last and not self._subscriptions:
            await self._tracker.aclose()


class SharedSubscription:
    """The tracker of one subscription over a shared index; a :class:`~pulsar_nack.DelayedDeliveryTracker`."""

    def __init__(
        self,
        shared: SharedDelayedIndex,
        name: str,
        mark_delete: Callable[[], Position],
        on_due: Callable[[], object] | None,
    ) -> None:
        self._shared = shared
        self._name = name
        self.mark_delete = mark_delete
        self._on_due = on_due
        self._replay = PositionSet()
        self._is_closed = False

    @property
    def shared_index(self) -> SharedDelayedIndex:
        """Return the index that the subscription shares."""
        return self._shared

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back; see :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.add_message`.

        If the message is due, this subscription has to dispatch it; the others get it from their replay queues.
        """
        tracker = self._tracker
        was_held = tracker.contains_message(ledger_id, entry_id)
        is_held = tracker.add_message(ledger_id, entry_id, deliver_at)
        if not is_held:
            self._replay.discard(ledger_id, entry_id)
            if was_held:
                self._pass_on([Position(ledger_id, entry_id)])
        return is_held

    def has_message_available(self) -> bool:
        """Return whether a message may be dispatched now."""
        tracker = self._tracker
        self._replay.trim(*self.mark_delete())
        return bool(self._replay) or tracker.has_message_available()

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Remove and return the messages that this subscription may dispatch now, in order of position."""
        check_integer("max_messages", max_messages, 0, INT64_MAX)
        due = self._tracker.get_scheduled_messages(max_messages)
        for position in due:
            self._replay.add(*position)
        self._pass_on(due)
        self._replay.trim(*self.mark_delete())
        return [Position(*position) for position in self._replay.take(max_messages)]

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back or in the replay queue."""
        check_message(ledger_id, entry_id)
        return self._tracker.contains_message(ledger_id, entry_id) or (ledger_id, entry_id) in self._replay

    @property
    def number_of_delayed_messages(self) -> int:
        """Return the number of messages in the index and the replay queue. O(1)."""
        return self._shared.tracker.number_of_delayed_messages + len(self._replay)

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes the index and the replay queue take. O(1)."""
        return self._shared.tracker.buffer_memory_usage + self._replay.bytes

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher has to stop reading."""
        return self._tracker.should_pause_all_deliveries()

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick of all subscriptions."""
        self._tracker.reset_tick_time(tick_ms)

    async def clear(self) -> None:
        """Drop the replay queue, and also the index if no other subscription uses it."""
        tracker = self._tracker
        self._replay.clear()
        if not self._shared._others(self):
            await tracker.clear()

    async def aclose(self) -> None:
        """Close the subscription; the others keep the index. Idempotent."""
        if not self._is_closed:
            self._shared.tracker._check_loop(_NAME)
            self._is_closed = True
            self._replay.clear()
            await self._shared._leave(self._name)

    @property
    def _tracker(self) -> BucketDelayedDeliveryTracker:
        if self._is_closed:
            raise ClosedError(_NAME)
        self._shared.tracker._check_loop(_NAME)
        return self._shared.tracker

    def _pass_on(self, positions: list[Position]) -> None:
        """Give the other subscriptions the messages that this one took from the index."""
        if positions:
            for other in self._shared._others(self):
                other._receive(positions)

    def _receive(self, positions: list[Position]) -> None:
        was_empty = not self._replay
        passed = self.mark_delete()
        for position in positions:
            if position > passed:
                self._replay.add(*position)
        if self._replay and was_empty and self._on_due is not None:
            asyncio.get_running_loop().call_soon(self._call_on_due)

    def _call_on_due(self) -> None:
        if self._on_due is not None and not self._is_closed:
            self._on_due()
