"""The port of a local topic, for a :class:`~pulsar_nack.Consumer` or for code that reads the topic without one.

The topic references the port's inbox and not the port. So a port that is dropped without being closed is collected, and
its unacknowledged messages go to the other consumers as if it had been closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from ..consumer import Delivery, PortTraits, SessionEvent
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId, Position
from ._inbox import BatchMembers, LocalInbox

if TYPE_CHECKING:
    from ._arguments import Joining
    from ._subscription import Subscription

MAX_IDS: Final = 100_000


class LocalPort:
    """One consumer of a local topic's subscription; a :class:`~pulsar_nack.ConsumerPort`.

    Get it from :meth:`~pulsar_nack.LocalTopic.subscribe`. On Exclusive and Failover subscriptions a redelivery request
    brings back everything that is not acknowledged, as it does at a broker.
    """

    def __init__(
        self,
        topic: str,
        subscription: Subscription,
        joining: Joining,
        forget: Callable[..., Awaitable[None]],
    ) -> None:
        self._topic = topic
        self._subscription = subscription
        self._forget = forget
        self.kind = joining.kind
        self._is_shared = joining.kind.is_shared
        self._has_queue = joining.room > 0
        self._is_paused = False
        self.name = joining.consumer_name
        self._traits = PortTraits(
            honours_ids=self._is_shared,
            max_ids_per_request=MAX_IDS,
            batch_index_ack=joining.batch_index_ack,
            receiver_queue_size=joining.room,
            reports_sessions=True,
        )
        self._members = None if joining.batch_index_ack else BatchMembers()
        self._inbox = LocalInbox(self._members)
        self._number = subscription.join(self._inbox, joining)
        self._is_closed = False
        loop = asyncio.get_running_loop()
        self._finalizer = weakref.finalize(self, _leave_soon, loop, subscription, self._number)
        self._finalizer.atexit = False

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic, subscription and consumer name."""
        return self._topic, self._subscription.name, self.name

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._traits

    def watch_sessions(self, on_event: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``on_event`` when the subscription was moved, or its messages go to another consumer from now on."""
        call = weakref.WeakMethod(on_event) if inspect.ismethod(on_event) else lambda: on_event
        topic = self._topic

        def report(event: SessionEvent) -> None:
            if (on_event := call()) is not None:
                on_event(event, topic, -1)

        self._inbox.on_event = report

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position, None for another topic."""
        return self._subscription.cursor.mark_delete_position if (topic, partition) == (self._topic, -1) else None

    async def flush(self) -> None:
        """Return when all acknowledgements are written, so that they survive the end of this process.

        :raises ClosedError: it, or its topic, is closed
        """
        self._check_open()
        await self._subscription.cursor.flush()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._inbox)} messages here"
        return f"<LocalPort {self.name!r} of {self._subscription.name!r}, {state}>"

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, by :meth:`close` or with its topic."""
        return self._is_closed

    async def receive(self) -> Delivery:
        """Return the next message; cancelling it loses none.

        :raises ClosedError: it, or its topic, is closed
        :raises BrokerError: the subscription has ended with an error
        """
        delivery = await self._inbox.get(self._check_open, self._before_wait)
        if not self._has_queue:
            self._subscription.hold(self._number)
        self._subscription.received(self._number)
        return delivery

    def take_nowait(self) -> Delivery | None:
        """Return the next message, None if none is here; for ports with a queue."""
        self._check_open()
        delivery = self._inbox.get_nowait()
        if delivery is not None:
            self._subscription.received(self._number)
        return delivery

    def watch_arrivals(self, on_arrival: Callable[[], object]) -> None:
        """Call a function, which must not reference this port, when messages arrive and when this port is closed."""
        self._inbox.on_arrival = on_arrival

    def _before_wait(self) -> None:
        if not self._has_queue and not self._is_paused:
            self._subscription.release(self._number)

    def pause(self, *, is_idle: bool = False) -> int:
        """Give unreceived messages to other consumers (not on Exclusive and Failover); stop until :meth:`resume`."""
        del is_idle  # nothing is on its way
        self._check_open()
        self._is_paused = True
        self._subscription.hold(self._number)
        before = len(self._inbox)
        if self._is_shared:
            self._subscription.give_back(self._number, self._inbox.whole())
        return before - len(self._inbox)

    def drain(self) -> int:
        """Give unreceived messages to other consumers, as :meth:`pause`: the port is closed next."""
        return self.pause()

    def resume(self) -> None:
        """Get messages again."""
        self._check_open()
        self._is_paused = False
        if self._has_queue or self._inbox.is_awaited:
            self._subscription.release(self._number)

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give received, undelivered messages to other consumers; not on Exclusive and Failover."""
        if self._is_shared:
            self._subscription.give_back(self._number, [Position(*message_id[:2]) for message_id in ids])

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the topic's last message; entry -1: it has none.

        :raises LedgerError: it cannot be read
        """
        self._check_open()
        return [await self._subscription.last_message_id()]

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription with its acknowledgements, and close.

        :param force: also if it has other consumers, whose ports are closed
        :raises BrokerError: it has other consumers; nothing has changed
        """
        self._check_open()
        if not force and not self._subscription.is_alone:
            raise BrokerError(f"subscription {self._subscription.name!r} has other consumers")
        await self.close()
        await self._forget(self._subscription.name, force=force)

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, all or none; written within the cursor's ``flush_interval``.

        :raises InvalidArgumentError: one of them is no message of the topic
        """
        self._check_open()
        self._check_ids(ids)
        if self._members is None:
            await self._subscription.moves.acknowledge(ids)
            return
        noted = self._members.note(ids)
        try:
            await self._subscription.moves.acknowledge(noted.completed)
        except Exception:
            self._members.undo(noted)
            raise

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, itself included.

        :raises BrokerError: the subscription is shared
        :raises InvalidArgumentError: it is no message of the topic
        """
        self._check_open()
        self._check_ids([message_id])
        if self._is_shared:
            raise BrokerError("a shared subscription has no cumulative acknowledgement")
        await self._subscription.moves.acknowledge_cumulative(message_id)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery of the entries of these messages now; ids that this consumer does not hold are ignored.

        :raises InvalidArgumentError: no ids, too many, or of another topic
        """
        self._check_open()
        if not 0 < len(ids) <= MAX_IDS:
            raise InvalidArgumentError("ids", len(ids), f"1 to {MAX_IDS} ids in one request")
        self._check_ids(ids)
        self._subscription.redeliver(self._number, [Position(*message_id[:2]) for message_id in ids])

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first from this publish time in ms on, is next.

        :raises InvalidArgumentError: it lies beyond the end
        """
        self._check_open()
        if isinstance(position, MessageId):
            self._check_ids([position])
        await self._subscription.moves.seek_to(position)

    async def close(self) -> None:
        """Give unacknowledged messages to other consumers at once; receivers that wait get an error. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._finalizer.detach()
            self._inbox.drop()
            self._subscription.leave(self._number)
            self._inbox.wake_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the port")
        failure = self._inbox.failure
        if failure is not None:
            raise BrokerError(f"the subscription has ended: {failure}") from failure

    def _check_ids(self, ids: Sequence[MessageId]) -> None:
        for message_id in ids:
            if not isinstance(message_id, MessageId):
                raise InvalidArgumentError("ids", message_id, "MessageIds of this topic")
            if message_id.topic not in {None, self._topic} or message_id.partition >= 0:
                raise InvalidArgumentError("ids", message_id, f"messages of {self._topic}")


def _leave_soon(loop: asyncio.AbstractEventLoop, subscription: Subscription, number: int) -> None:
    """Remove a port that was dropped without being closed; the collector may run in any thread."""
    with contextlib.suppress(RuntimeError):  # the loop has ended, and the topic with it
        loop.call_soon_threadsafe(subscription.leave, number)
