"""A subscription of a local topic: its consumers, what they ask for, and what moves it.

What consumers and administrators do changes the cursor first and the dispatcher in the same step, or goes on to its end
when the caller is cancelled; so the two agree about what is acknowledged. Everything that may let something go out
calls :meth:`Subscription.look`, which wakes the task of :mod:`._delivery`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from ..clock import Clock
from ..config import BucketConfig, TopicConfig
from ..consumer import SessionEvent
from ..cursor import BatchSet, Cursor, DispatchGate
from ..delayed import DelayedDeliveryTracker
from ..errors import BrokerError, InvalidArgumentError, LogNotFoundError, WouldBlockError
from ..ids import MessageId, Position
from ._ack_calls import AckCall, ack_call
from ._admission import Admission
from ._delivery import Delivery
from ._dispatcher import Dispatcher, SubscriptionType
from ._jobs import Jobs
from ._ledgers import TopicLedgers
from ._places import first_published, last_entry, nth_unacked
from ._receiver import Receiver
from ._statistics import SubscriptionStatistics

_log = logging.getLogger("pulsar_nack.topic")
_LATEST = (1 << 63) - 1


class Subscription:
    """One subscription, whoever consumes it; made by :class:`~pulsar_nack.LocalTopic`.

    :param config: says how large the acknowledgement state may grow
    :param trimmed: called when the mark-delete position has moved to another ledger
    :param delayed: how delayed messages are kept
    """

    def __init__(
        self,
        name: str,
        topic: str,
        ledgers: TopicLedgers,
        cursor: Cursor,
        clock: Clock,
        *,
        config: TopicConfig,
        trimmed: Callable[[], None],
        delayed: BucketConfig,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.delayed = delayed
        self._ledgers = ledgers
        self._trimmed = trimmed
        self._mark_ledger = cursor.mark_delete_position.ledger
        self._dispatcher = Dispatcher(SubscriptionType.SHARED)
        self._admission = Admission(cursor, config, name, clock)
        self._delivery = Delivery(
            name, topic, ledgers, cursor=cursor, dispatcher=self._dispatcher, admission=self._admission
        )
        self._receivers = self._delivery.receivers
        self._next_number = 0
        self._jobs = Jobs()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def gate(self) -> DispatchGate:
        """Return what holds new messages while the acknowledgement state is too large."""
        return self._admission.gate

    @property
    def tracker(self) -> DelayedDeliveryTracker | None:
        """Return what holds delayed messages."""
        return self._delivery.tracker

    @property
    def mark_delete_position(self) -> Position:
        """Return up to where everything is acknowledged."""
        return self.cursor.mark_delete_position

    async def flush(self) -> None:
        """Return when all that was acknowledged is written."""
        await self.cursor.flush()

    @property
    def backlog(self) -> int:
        """Return how many entries are not acknowledged as a whole."""
        return self.cursor.backlog or 0

    @property
    def is_idle(self) -> bool:
        """Return whether nobody consumes it."""
        return not self._receivers

    @property
    def type(self) -> SubscriptionType:
        """Return how its consumers share the messages."""
        return self._dispatcher.kind

    def statistics(self) -> SubscriptionStatistics:
        """Return a snapshot."""
        dispatcher, tracker = self._dispatcher, self.tracker
        return SubscriptionStatistics(
            type=dispatcher.kind.value,
            consumers=len(self._receivers),
            backlog=self.backlog,
            in_flight=len(dispatcher.in_flight),
            waiting=dispatcher.waiting,
            delayed=0 if tracker is None else tracker.number_of_delayed_messages,
            mark_delete_position=self.cursor.mark_delete_position,
            metadata_size_bytes=self.cursor.metadata_size_bytes,
            is_paused=self.gate.is_paused,
            failed_reads=self._delivery.failures,
        )

    @property
    def look(self) -> Callable[[], None]:
        """Return what is called when something has changed, so that there may be something to deliver."""
        return self._delivery.look

    def use(self, tracker: DelayedDeliveryTracker) -> None:
        """Take the tracker of delayed messages, and begin."""
        self._delivery.tracker = tracker
        self._task = asyncio.get_running_loop().create_task(
            self._delivery.run(), name=f"pulsar_nack.LocalTopic {self.name}"
        )
        self._task.add_done_callback(self._ended)

    async def end(self) -> None:
        """End the task, and close the tracker; consumers were closed before."""
        await self._jobs.idle()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.tracker is not None:
            await self.tracker.aclose()

    async def aclose(self) -> None:
        """Do what :meth:`end` does, and close the cursor."""
        await self.end()
        await self.cursor.aclose()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = error
            _log.error("subscription %s delivers nothing any more", self.name, exc_info=error)
            for receiver in list(self._receivers.values()):
                receiver.fail(error)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(
        self, receiver: Receiver, name: str, *, room: int, unacked_limit: int | None, kind: SubscriptionType
    ) -> int:
        """Take a consumer in; return the number that it is known by.

        :raises BrokerError: those that are there exclude it, or delivery has ended with an error
        """
        if self._failure is not None:
            raise BrokerError(f"subscription {self.name!r} has ended: {self._failure}") from self._failure
        number, before, kind_before = self._next_number, self._dispatcher.active, self.type
        self._dispatcher.join(number, name, room=room, unacked_limit=unacked_limit, kind=kind)
        self._next_number += 1
        self._receivers[number] = receiver
        if kind is not kind_before:
            self._delivery.read_anew()
        elif not kind.is_shared and before is not None and self._dispatcher.active != before:
            self._take_back(self._dispatcher.rewind(), before)
            self._receivers[before].tell(SessionEvent.INACTIVE)
        self.look()
        return number

    def leave(self, number: int) -> None:
        """Let a consumer go, if it is there; what it has not acknowledged goes to the others at once."""
        if self._receivers.pop(number, None) is not None:
            self._admission.came_back(list(self._dispatcher.held_by(number)))
            self._dispatcher.leave(number)
            self._changed()

    def received(self, number: int) -> None:
        """Note that a consumer has received a message."""
        if self._dispatcher.take_room(number, -1):
            self.look()

    @property
    def is_alone(self) -> bool:
        """Return whether there is one consumer at most."""
        return len(self._receivers) <= 1

    def hold(self, number: int) -> None:
        """Give a consumer nothing until :meth:`release`."""
        if number in self._receivers:
            self._dispatcher.hold(number, is_held=True)

    def release(self, number: int) -> None:
        """Give a consumer messages again."""
        if number in self._receivers:
            self._dispatcher.hold(number, is_held=False)
            self.look()

    def give_back(self, number: int, positions: Iterable[Position]) -> None:
        """Give entries to others that a consumer holds and has not shown; they count as not delivered to it."""
        if number in self._receivers:
            self._take_back(self._dispatcher.give_back(number, positions), number)
            self._changed()

    def redeliver(self, number: int, positions: Iterable[Position]) -> None:
        """Send entries again that a consumer holds; on Exclusive and Failover subscriptions all that it holds.

        On the others what was not received yet of these entries stays where it is, as in a client's queue.
        """
        positions = self._dispatcher.redeliver(number, positions)
        self._take_back(positions, *(() if self.type.is_shared else (number,)))
        self._changed()

    def _take_back(self, positions: list[Position], *numbers: int) -> None:
        self._admission.came_back(positions)
        for number in numbers:
            dropped = self._receivers[number].give_back(positions)
            if dropped:
                self._dispatcher.take_room(number, -dropped)

    def _changed(self) -> None:
        self.gate.changed()
        self.look()

    # -- acknowledging -------------------------------------------------------------------------------------------------

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, all or none.

        :raises InvalidArgumentError: one of them cannot exist; none was acknowledged
        """
        call = await ack_call(ids, self._batch_size)
        try:
            self.cursor.acknowledge_nowait(call.positions, batch_sets=call.batch_sets or None)
        except WouldBlockError:
            await self._jobs.to_the_end(self._acknowledge(call))
        else:
            self._note(call)

    async def _acknowledge(self, call: AckCall) -> None:
        await self.cursor.acknowledge(call.positions, batch_sets=call.batch_sets or None)
        self._note(call)

    def _note(self, call: AckCall) -> None:
        for position in call.positions:
            left = call.batch_sets.get(position)
            if left is None or self._dispatcher.acked_in_part(position, left.unacked):
                self._dispatcher.acked(position)
                self._admission.acked(position)
        self._after_acks()

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, itself included; nothing happens when that is so already.

        :raises InvalidArgumentError: it does not exist
        """
        await self._jobs.to_the_end(self._acknowledge_cumulative(message_id))

    async def _acknowledge_cumulative(self, message_id: MessageId) -> None:
        position, left = Position(*message_id[:2]), None
        if message_id.batch_index >= 0:
            left = BatchSet.through(await self._batch_size(message_id), message_id.batch_index)
        try:
            await self.cursor.acknowledge_cumulative(position, batch_set=left)
        except InvalidArgumentError:
            if position > self.cursor.mark_delete_position:
                raise
            return  # a skip or a clear has overtaken it
        mark = self.cursor.mark_delete_position
        if position > mark and left is not None:
            self._note(AckCall([position], {position: left}))
        self._pass(mark)
        self._after_acks()

    def _pass(self, last: Position) -> None:
        """Note that everything up to here is acknowledged."""
        self._admission.passed(last)
        self._dispatcher.forget(last)

    async def _batch_size(self, message_id: MessageId) -> int:
        position = Position(*message_id[:2])
        held = self._dispatcher.batch_size(position)
        if held is not None:
            return held
        if position <= self.cursor.mark_delete_position:  # whatever it was, it is acknowledged
            return max(message_id.batch_size, message_id.batch_index + 1)
        known = self._ledgers.entries(message_id.ledger)
        if known is None or message_id.entry >= known:
            raise InvalidArgumentError("ids", message_id, "messages of this topic")
        try:
            (entry,) = await self._ledgers.read(*position, position.entry)
        except LogNotFoundError:
            if position > self.cursor.mark_delete_position:
                raise
            return await self._batch_size(message_id)  # acknowledged as a whole meanwhile, and deleted
        return entry.batch_size

    def _after_acks(self) -> None:
        if self.cursor.mark_delete_position.ledger != self._mark_ledger:
            self._mark_ledger = self.cursor.mark_delete_position.ledger
            self._trimmed()
        self._changed()

    # -- moving --------------------------------------------------------------------------------------------------------

    async def seek_to(self, position: MessageId | int) -> None:
        """Make this message, or the first that was published at or after this time (epoch ms), the next one.

        The latest id of the clients (the largest of all) stands for what is published from now on.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        if isinstance(position, MessageId):
            if position.entry == _LATEST:
                last = self._ledgers.last_position
                position = MessageId(last.ledger, last.entry + 1)
            await self._jobs.to_the_end(self._seek(Position(*position[:2]), max(position.batch_index, 0)))
        elif type(position) is int and position >= 0:
            target = await first_published(self._ledgers, position)
            await self._jobs.to_the_end(self._seek(target, 0))
        else:
            raise InvalidArgumentError("position", position, "a MessageId, or a publish time in epoch ms")

    async def _seek(self, target: Position, batch_index: int) -> None:
        """Make this entry the next one, without the messages of its batch that are below an index."""
        left = None
        if batch_index and (self._ledgers.entries(target.ledger) or 0) > target.entry:
            (entry,) = await self._ledgers.read(*target, target.entry)
            left = BatchSet.through(entry.batch_size, batch_index - 1)
        await self.cursor.reset(target)
        if left is not None:
            await self.cursor.acknowledge([target], batch_sets={target: left})
        self._take_back(list(self._dispatcher.in_flight), *self._receivers)
        for receiver in self._receivers.values():
            receiver.tell(SessionEvent.CLOSED)
            receiver.tell(SessionEvent.BEGAN)
        self._admission.forget()
        self._delivery.read_anew()
        if self.tracker is not None:
            await self.tracker.clear()
        self._mark_ledger = self.cursor.mark_delete_position.ledger
        self._changed()

    async def skip(self, count: int) -> int:
        """Acknowledge the next entries that are not; return how many that were."""
        return await self._jobs.to_the_end(self._skip(count))

    async def _skip(self, count: int) -> int:
        last, passed = await nth_unacked(self.cursor, self._ledgers, count)
        if last is not None:
            await self._skip_to(last)
        return passed

    async def clear_backlog(self) -> None:
        """Acknowledge everything that there is."""
        await self._jobs.to_the_end(self._clear_backlog())

    async def _clear_backlog(self) -> None:
        last = last_entry(self._ledgers)
        if last is not None:
            await self._skip_to(last)
        if self.tracker is not None:
            self._delivery.look_back()  # it may hold what was published meanwhile
            await self.tracker.clear()
            self.look()

    async def _skip_to(self, last: Position) -> None:
        if last > self.cursor.mark_delete_position:
            try:
                await self.cursor.acknowledge_cumulative(last)
            except InvalidArgumentError:
                if last > self.cursor.mark_delete_position:
                    raise  # else others acknowledged more while this call waited
        self._take_back([each for each in self._dispatcher.in_flight if each <= last], *self._receivers)
        self._dispatcher.forget(last)
        self._admission.forget(last)
        self._after_acks()
