"""The port of a local topic, for a :class:`~pulsar_nack.Consumer` or for code that reads the topic without one.

A consumer with a retry topic reads both topics through one port, by a message of each in turn.

The topic references the port's inbox and not the port. So a port that is dropped without being closed is collected, and
its unacknowledged messages go to the other consumers as if it had been closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ..consumer import Delivery, PortTraits, SessionEvent
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId, Position, _is_message_id
from ._arguments import Joining
from ._inbox import FIRST_RETRY_LEDGER, BatchMembers, LocalInbox
from ._subscription import Subscription

MAX_IDS: Final = 100_000


class _Part(NamedTuple):
    """A topic that a port reads: its number as a consumer of the subscription there, and what deletes that."""

    subscription: Subscription
    number: int
    forget: Callable[..., Awaitable[None]]
    finalizer: weakref.finalize[..., Any]


class LocalPort:
    """One consumer of a local topic's subscription; a :class:`~pulsar_nack.ConsumerPort`.

    Get it from :meth:`~pulsar_nack.LocalTopic.subscribe`. On Exclusive and Failover subscriptions a redelivery request
    brings back everything that is not acknowledged, as it does at a broker.
    """

    def __init__(self, subscription: Subscription, joining: Joining, forget: Callable[..., Awaitable[None]]) -> None:
        self.joining = joining
        """How it reads its topics."""
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
        self._parts: list[_Part] = []
        self._members = None if joining.batch_index_ack else BatchMembers(partial(_is_passed, self._parts))
        self._inbox = LocalInbox(self._members)
        self._topics: set[str | None] = {None}
        self.read_too(subscription, forget)
        self._is_closed = False

    def read_too(self, subscription: Subscription, forget: Callable[..., Awaitable[None]]) -> None:
        """Read a topic through this port; a second one is the retry topic of the first.

        :raises BrokerError: the present consumers of its subscription exclude this one
        """
        number = subscription.join(self._inbox, self.joining)
        finalizer = weakref.finalize(self, _leave_soon, asyncio.get_running_loop(), subscription, number)
        finalizer.atexit = False
        self._parts.append(_Part(subscription, number, forget, finalizer))
        self._topics.add(subscription.topic)

    def _part_of(self, message_id: MessageId) -> _Part:
        return _part_of(self._parts, message_id.ledger)

    def _moved_by(self, position: MessageId | int) -> Sequence[_Part]:
        return [self._part_of(position)] if _is_message_id(position) else self._parts

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic, subscription and consumer name."""
        subscription = self._parts[0].subscription
        return subscription.topic, subscription.name, self.name

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._traits

    def watch_sessions(self, on_event: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``on_event`` when the subscription was moved, or its messages go to another consumer from now on."""
        call = weakref.WeakMethod(on_event) if inspect.ismethod(on_event) else lambda: on_event

        def report(event: SessionEvent, topic: str) -> None:
            if (on_event := call()) is not None:
                on_event(event, topic, -1)

        self._inbox.on_event = report

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position, None for another topic."""
        for part in self._parts:
            if partition < 0 and part.subscription.topic == topic:
                return part.subscription.cursor.mark_delete_position
        return None

    async def held_back(self) -> None:
        """Return None: the reason is not known here."""

    async def flush(self) -> None:
        """Return when all acknowledgements are written, so that they survive the end of this process.

        :raises ClosedError: it, or its topic, is closed
        """
        self._check_open()
        for part in self._parts:
            await part.subscription.cursor.flush()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._inbox)} messages here"
        return f"<LocalPort {self.name!r} of {self.names[1]!r}, {state}>"

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
        part = self._part_of(delivery.id)
        if not self._has_queue:
            part.subscription.hold(part.number)
        part.subscription.received(part.number)
        return delivery

    def _before_wait(self) -> None:
        if not self._has_queue and not self._is_paused:
            self._release()

    def _release(self) -> None:
        for part in self._parts:
            part.subscription.release(part.number)

    def pause(self, *, is_idle: bool = False) -> int:
        """Give unreceived messages to other consumers (not on Exclusive and Failover); stop until :meth:`resume`."""
        del is_idle  # nothing is on its way
        self._check_open()
        self._is_paused = True
        before, unreceived = len(self._inbox), self._inbox.whole()
        for part in self._parts:
            part.subscription.hold(part.number)
            if self._is_shared:
                part.subscription.give_back(part.number, unreceived)
        return before - len(self._inbox)

    def drain(self) -> int:
        """Give unreceived messages to other consumers, as :meth:`pause`: the port is closed next."""
        return self.pause()

    def resume(self) -> None:
        """Get messages again."""
        self._check_open()
        self._is_paused = False
        if self._has_queue or self._inbox.is_awaited:
            self._release()

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give received, undelivered messages to other consumers; not on Exclusive and Failover."""
        for part in self._parts if self._is_shared else ():
            part.subscription.give_back(part.number, [Position(*message_id[:2]) for message_id in ids])

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of each topic's last message; entry -1: it has none.

        :raises LedgerError: it cannot be read
        """
        self._check_open()
        return [await part.subscription.last_message_id() for part in self._parts]

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription with its acknowledgements, and close.

        :param force: also if it has other consumers, whose ports are closed
        :raises BrokerError: it has other consumers; nothing has changed
        """
        self._check_open()
        if not force and any(part.subscription.consumers > 1 for part in self._parts):
            raise BrokerError(f"subscription {self.names[1]!r} has other consumers")
        await self.close()
        for part in self._parts:
            await part.forget(part.subscription.name, force=force)

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, in each topic all or none; written within the cursor's ``flush_interval``.

        :raises InvalidArgumentError: one of them is no message of the topic
        """
        self._check_open()
        self._check_ids(ids)
        if self._members is None:
            await self._acknowledge(ids)
            return
        completed, taken = self._members.note(ids)
        try:
            await self._acknowledge(completed)
        except Exception:
            self._members.undo(taken)
            raise

    async def _acknowledge(self, ids: Sequence[MessageId]) -> None:
        is_only = len(self._parts) == 1
        for part in self._parts:
            its_ids = ids if is_only else [each for each in ids if self._part_of(each) is part]
            if its_ids:
                await part.subscription.moves.acknowledge(its_ids)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, itself included.

        :raises BrokerError: the subscription is shared
        :raises InvalidArgumentError: it is no message of the topic
        """
        self._check_open()
        self._check_ids([message_id])
        if self._is_shared:
            raise BrokerError("a shared subscription has no cumulative acknowledgement")
        moves = self._part_of(message_id).subscription.moves
        if self._members is None:
            await moves.acknowledge_cumulative(message_id)
            return
        await moves.check_member(message_id)
        completed, taken = self._members.note_through(message_id)
        try:
            if completed:
                await moves.acknowledge_cumulative(completed[0])
            else:  # its batch is acknowledged when all of it is
                await moves.acknowledge_before(message_id)
        except Exception:
            self._members.undo(taken)
            raise

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery of the entries of these messages now; ids that this consumer does not hold are ignored.

        :raises InvalidArgumentError: no ids, too many, or of another topic
        """
        self._check_open()
        if not 0 < len(ids) <= MAX_IDS:
            raise InvalidArgumentError("ids", len(ids), f"1 to {MAX_IDS} ids in one request")
        self._check_ids(ids)
        for part in self._parts:
            part.subscription.redeliver(part.number, [Position(*message_id[:2]) for message_id in ids])

    def check_seek(self, position: MessageId | int) -> None:
        """Raise if the message is of another topic, or lies beyond the end."""
        self._check_open()
        if isinstance(position, MessageId):
            self._check_ids([position])
            for part in self._moved_by(position):
                part.subscription.moves.check_seek(position)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first from this publish time in ms on, is next.

        A time, and the ids of both ends, move the subscriptions of both topics.

        :raises InvalidArgumentError: it lies beyond the end
        """
        self.check_seek(position)
        for part in self._moved_by(position):
            await part.subscription.moves.seek_to(position)

    async def close(self) -> None:
        """Give unacknowledged messages to other consumers at once; receivers that wait get an error. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._inbox.drop()
            for part in self._parts:
                part.finalizer.detach()
                part.subscription.leave(part.number)
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
            if message_id.topic not in self._topics or message_id.partition >= 0:
                raise InvalidArgumentError("ids", message_id, f"messages of {self.names[0]}")


def _part_of(parts: Sequence[_Part], ledger: int) -> _Part:
    return parts[-1 if ledger >= FIRST_RETRY_LEDGER else 0]


def _is_passed(parts: Sequence[_Part], position: Position) -> bool:
    return position <= _part_of(parts, position.ledger).subscription.cursor.mark_delete_position


def _leave_soon(loop: asyncio.AbstractEventLoop, subscription: Subscription, number: int) -> None:
    """Remove a port that was dropped without being closed; the collector may run in any thread."""
    with contextlib.suppress(RuntimeError):  # the loop has ended, and the topic with it
        loop.call_soon_threadsafe(subscription.leave, number)
