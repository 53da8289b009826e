"""A subscription of a local topic: its consumers, its cursor, and the task that delivers to them.

Every change that may let entries be sent wakes that task, see :mod:`._delivery_loop`. What moves the cursor is in
:mod:`._cursor_moves`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from .._tasks import TaskOwner
from ..consumer import SessionEvent
from ..cursor import Cursor
from ..delayed import DelayedDeliveryTracker
from ..errors import BrokerError
from ..ids import MessageId, Position
from ._arguments import Joining, TopicSettings
from ._cursor_moves import CursorMoves
from ._delivery_loop import DeliveryLoop
from ._dispatcher import Dispatcher, SubscriptionType
from ._inbox import LocalInbox
from ._ledgers import TopicLedgers
from ._statistics import SubscriptionStatistics

_log = logging.getLogger("pulsar_nack.topic")


class Subscription:
    """One subscription and its consumers; made by :class:`~pulsar_nack.LocalTopic`.

    :param on_trimmable: called when the mark-delete position has moved to another ledger
    """

    def __init__(
        self,
        name: str,
        topic: str,
        ledgers: TopicLedgers,
        cursor: Cursor,
        settings: TopicSettings,
        *,
        on_trimmable: Callable[[], None],
    ) -> None:
        self.name = name
        self.topic = topic
        self._ledgers = ledgers
        self.cursor = cursor
        self.delayed = settings.delayed
        self._dispatcher = Dispatcher(SubscriptionType.SHARED)
        self._delivery = DeliveryLoop(name, topic, ledgers, settings, cursor=cursor, dispatcher=self._dispatcher)
        self._inboxes = self._delivery.inboxes
        self._next_number = 0
        self._tasks = TaskOwner()
        self.moves = CursorMoves(
            cursor,
            ledgers,
            dispatcher=self._dispatcher,
            delivery=self._delivery,
            tasks=self._tasks,
            on_trimmable=on_trimmable,
        )
        """Acknowledgements, skips and seeks."""
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def tracker(self) -> DelayedDeliveryTracker | None:
        """Return the tracker of delayed messages."""
        return self._delivery.tracker

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry -1 if it has none."""
        last = self._ledgers.last_entry()
        if last is None:
            return MessageId(*self._ledgers.last_position, topic=self.topic)
        entry = (await self._ledgers.read(last.ledger, last.entry, last.entry))[0]
        size = entry.batch_size
        return MessageId(*last, batch_index=size - 1, batch_size=size, topic=self.topic)

    @property
    def consumers(self) -> int:
        """Return how many consumers it has."""
        return len(self._inboxes)

    def statistics(self) -> SubscriptionStatistics:
        """Return a snapshot of the subscription's figures."""
        dispatcher, tracker = self._dispatcher, self.tracker
        return SubscriptionStatistics(
            type=dispatcher.kind.value,
            consumers=self.consumers,
            backlog=self.cursor.backlog or 0,
            in_flight=len(dispatcher.in_flight),
            waiting=len(dispatcher.queue),
            delayed=0 if tracker is None else tracker.number_of_delayed_messages,
            mark_delete_position=self.cursor.mark_delete_position,
            metadata_size_bytes=self.cursor.metadata_size_bytes,
            is_paused=self._delivery.gate.is_paused,
            failed_reads=self._delivery.failures,
        )

    def wake(self) -> None:
        """Look for entries to deliver: something has changed."""
        self._delivery.wake()

    def begin(self, tracker: DelayedDeliveryTracker) -> None:
        """Begin to deliver, with this tracker of delayed messages."""
        self._delivery.tracker = tracker
        self._task = asyncio.get_running_loop().create_task(
            self._delivery.run(), name=f"pulsar_nack.LocalTopic {self.name}"
        )
        self._task.add_done_callback(self._ended)

    async def end(self) -> None:
        """End delivery and close the tracker, after the consumers were closed."""
        await self._tasks.wait_until_idle()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.tracker is not None:
            await self.tracker.aclose()

    async def aclose(self) -> None:
        """End delivery, and close the tracker and the cursor."""
        await self.end()
        await self.cursor.aclose()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = error
            _log.error("subscription %s has stopped delivering", self.name, exc_info=error)
            for inbox in list(self._inboxes.values()):
                inbox.fail(error)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, inbox: LocalInbox, joining: Joining) -> int:
        """Add a consumer; return its number.

        :raises BrokerError: the present consumers exclude it, or delivery has ended with an error
        """
        if self._failure is not None:
            raise BrokerError(f"subscription {self.name!r} has ended: {self._failure}") from self._failure
        number, before, kind_before = self._next_number, self._dispatcher.active, self._dispatcher.kind
        kind, name, limit = joining.kind, joining.consumer_name, joining.unacked_limit
        self._dispatcher.join(number, name, room=joining.room, unacked_limit=limit, kind=kind)
        self._next_number += 1
        self._inboxes[number] = inbox
        if kind is not kind_before:
            self._delivery.rewind(forget=True)
        elif not kind.is_shared and before is not None and self._dispatcher.active != before:
            self._delivery.drop_unreceived(self._dispatcher.rewind(), [before])
            self._delivery.report(SessionEvent.INACTIVE, before)
        self.wake()
        return number

    def leave(self, number: int) -> None:
        """Remove a consumer, if it is there; its unacknowledged entries go to the others at once."""
        if self._inboxes.pop(number, None) is not None:
            self._dispatcher.leave(number)
            self._delivery.changed()

    def received(self, number: int) -> None:
        """Note that a consumer has received a message."""
        if self._dispatcher.take_room(number, -1):
            self.wake()

    def hold(self, number: int) -> None:
        """Give a consumer nothing until :meth:`release`."""
        if number in self._inboxes:
            self._dispatcher.hold(number, is_held=True)

    def release(self, number: int) -> None:
        """Give a consumer messages again."""
        if number in self._inboxes:
            self._dispatcher.hold(number, is_held=False)
            self.wake()

    def give_back(self, number: int, positions: Iterable[Position]) -> None:
        """Give undelivered entries of a consumer to the others; they count as never sent to it."""
        if number in self._inboxes:
            self._delivery.drop_unreceived(self._dispatcher.give_back(number, positions), [number])
            self._delivery.changed()

    def redeliver(self, number: int, positions: Iterable[Position]) -> None:
        """Send entries again that a consumer holds; on Exclusive and Failover subscriptions all that it holds.

        On the other types the messages of these entries that were not received yet stay in the consumer's queue.
        """
        positions = self._dispatcher.redeliver(number, positions)
        if not self._dispatcher.kind.is_shared:
            self._delivery.drop_unreceived(positions, [number])
        self._delivery.changed()
