"""The cursor of a subscription, and what moves it: acknowledgements, skips and seeks.

Each of them changes the cursor first and the dispatcher in the same step, or runs to its end when the caller is
cancelled; so the two agree about what is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .._tasks import TaskOwner
from ..consumer import SessionEvent
from ..cursor import BatchSet, Cursor
from ..errors import InvalidArgumentError, LogNotFoundError, WouldBlockError
from ..ids import MessageId, Position
from ._delivery_loop import DeliveryLoop
from ._dispatcher import Dispatcher
from ._ledgers import TopicLedgers

_LATEST = (1 << 63) - 1

TopicAcks = dict[Position, BatchSet | None]
"""Entries to acknowledge, with the batch sets of those that are acknowledged in part."""


class CursorMoves:
    """Changes the cursor of one subscription, and keeps the dispatcher in step with it.

    :param on_trimmable: called when the mark-delete position has moved to another ledger
    """

    def __init__(
        self,
        cursor: Cursor,
        ledgers: TopicLedgers,
        *,
        dispatcher: Dispatcher,
        delivery: DeliveryLoop,
        tasks: TaskOwner,
        on_trimmable: Callable[[], None],
    ) -> None:
        self._cursor = cursor
        self._ledgers = ledgers
        self._dispatcher = dispatcher
        self._delivery = delivery
        self._tasks = tasks
        self._on_trimmable = on_trimmable
        self._mark_ledger = cursor.mark_delete_position.ledger

    # -- acknowledging -------------------------------------------------------------------------------------------------

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, all or none.

        :raises InvalidArgumentError: one of them cannot exist; none was acknowledged
        """
        acks = await self._acks_of(ids)
        try:
            self._cursor.acknowledge_nowait(list(acks), batch_sets=_batch_sets(acks))
        except WouldBlockError:
            await asyncio.shield(self._tasks.begin(self._acknowledge(acks)))
        else:
            self._note(acks)

    async def _acks_of(self, ids: Sequence[MessageId]) -> TopicAcks:
        """Gather the messages of each entry.

        :raises InvalidArgumentError: a batch index that the entry does not have
        """
        acks: TopicAcks = {}
        for message_id in ids:
            position, index = Position(*message_id[:2]), message_id.batch_index
            one = None if index < 0 else BatchSet.acked(await self._batch_size(message_id), [index])
            known = acks.get(position, one)
            acks[position] = None if one is None or known is None else known.merge(one)
        return acks

    async def _acknowledge(self, acks: TopicAcks) -> None:
        await self._cursor.acknowledge(list(acks), batch_sets=_batch_sets(acks))
        self._note(acks)

    def _note(self, acks: TopicAcks) -> None:
        for position, left in acks.items():
            if left is None or self._dispatcher.acked_in_part(position, left.unacked):
                self._dispatcher.acked(position)
        self._after_acks()

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message; an older message changes nothing.

        :raises InvalidArgumentError: it does not exist
        """
        await asyncio.shield(self._tasks.begin(self._acknowledge_cumulative(message_id)))

    async def check_member(self, message_id: MessageId) -> None:
        """Raise if there is no such message.

        :raises InvalidArgumentError: the topic has no such message
        """
        if message_id.batch_index >= 0:
            BatchSet.through(await self._batch_size(message_id), message_id.batch_index)

    async def acknowledge_before(self, message_id: MessageId) -> None:
        """Acknowledge everything before the entry of a message."""
        ledger, entry = message_id[:2]
        while not entry and (before := self._ledgers.previous_ledger(ledger)) is not None:
            ledger, entry = before, self._ledgers.entries(before) or 0
        if entry:
            await self.acknowledge_cumulative(MessageId(ledger, entry - 1))

    async def _acknowledge_cumulative(self, message_id: MessageId) -> None:
        position, left = Position(*message_id[:2]), None
        if message_id.batch_index >= 0:
            left = BatchSet.through(await self._batch_size(message_id), message_id.batch_index)
        try:
            await self._cursor.acknowledge_cumulative(position, batch_set=left)
        except InvalidArgumentError:
            if position > self._cursor.mark_delete_position:
                raise
            return  # a skip or a clear has overtaken it
        mark = self._cursor.mark_delete_position
        if position > mark and left is not None:
            self._note({position: left})
        self._dispatcher.forget(mark)
        self._after_acks()

    async def _batch_size(self, message_id: MessageId) -> int:
        """Return the size of a message's batch, 0 if its entry is no batch.

        :raises InvalidArgumentError: the entry does not exist
        """
        position = Position(*message_id[:2])
        held = self._dispatcher.batch_size(position)
        if held is not None:
            return held
        if position <= self._cursor.mark_delete_position:  # acknowledged, so the size does not matter
            return max(message_id.batch_size, message_id.batch_index + 1)
        known = self._ledgers.entries(message_id.ledger)
        if known is None or message_id.entry >= known:
            raise InvalidArgumentError("ids", message_id, "messages of this topic")
        try:
            (entry,) = await self._ledgers.read(*position, position.entry)
        except LogNotFoundError:
            if position > self._cursor.mark_delete_position:
                raise
            return await self._batch_size(message_id)  # acknowledged as a whole meanwhile, and deleted
        return entry.batch_size

    def _after_acks(self) -> None:
        if self._cursor.mark_delete_position.ledger != self._mark_ledger:
            self._mark_ledger = self._cursor.mark_delete_position.ledger
            self._on_trimmable()
        self._delivery.changed()

    # -- skipping and seeking ------------------------------------------------------------------------------------------

    async def skip(self, count: int) -> int:
        """Acknowledge the next unacknowledged entries; return how many they were."""
        return await asyncio.shield(self._tasks.begin(self._skip(count)))

    async def _skip(self, count: int) -> int:
        last, passed = await self._nth_unacked(count)
        if last is not None:
            await self._skip_to(last)
        return passed

    async def _nth_unacked(self, count: int) -> tuple[Position | None, int]:
        """Return the last of the next ``count`` unacknowledged entries, and how many of them there are."""
        last, passed = None, 0
        ledger: int | None = self._cursor.mark_delete_position.ledger
        while ledger is not None and passed < count:
            for first, end in await self._cursor.unacked(ledger, 0, (self._ledgers.entries(ledger) or 0) - 1):
                taken = min(end - first + 1, count - passed)
                last, passed = Position(ledger, first + taken - 1), passed + taken
                if passed >= count:
                    break
            ledger = self._ledgers.next_ledger(ledger)
        return last, passed

    async def clear_backlog(self) -> None:
        """Acknowledge all entries of the topic."""
        await asyncio.shield(self._tasks.begin(self._clear_backlog()))

    async def _clear_backlog(self) -> None:
        last = self._ledgers.last_entry()
        if last is not None:
            await self._skip_to(last)
        if self._delivery.tracker is not None:
            self._delivery.rewind()  # the tracker may hold what was published meanwhile
            await self._delivery.tracker.clear()
            self._delivery.wake()

    async def _skip_to(self, last: Position) -> None:
        if last > self._cursor.mark_delete_position:
            try:
                await self._cursor.acknowledge_cumulative(last)
            except InvalidArgumentError:
                if last > self._cursor.mark_delete_position:
                    raise  # otherwise others acknowledged more while this call waited
        self._delivery.forget(last)
        self._after_acks()

    def check_seek(self, position: MessageId) -> None:
        """Raise if a message lies beyond the end.

        :raises InvalidArgumentError: it does
        """
        ledger, entry = position[:2]
        end = self._ledgers.entries(ledger)
        is_beyond = self._ledgers.next_ledger(ledger) is None if end is None else entry > end
        if is_beyond and entry != _LATEST:
            raise InvalidArgumentError("position", (ledger, entry), "a position that is not beyond the end")

    async def seek_to(self, position: MessageId | int) -> None:
        """Make this message, or the first that was published at or after this time (epoch ms), the next one.

        The latest id of the clients (the largest of all) stands for what is published from now on.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        if isinstance(position, MessageId):
            if position.entry == _LATEST:
                last = self._ledgers.last_position
                position = MessageId(last.ledger, last.entry + 1)
            await asyncio.shield(self._tasks.begin(self._seek(Position(*position[:2]), max(position.batch_index, 0))))
        elif type(position) is int and position >= 0:
            target = await self._ledgers.first_published(position)
            await asyncio.shield(self._tasks.begin(self._seek(target, 0)))
        else:
            raise InvalidArgumentError("position", position, "a MessageId, or a publish time in epoch ms")

    async def _seek(self, target: Position, batch_index: int) -> None:
        """Make this entry the next one, without the messages of its batch below an index."""
        left = None
        if batch_index and (self._ledgers.entries(target.ledger) or 0) > target.entry:
            (entry,) = await self._ledgers.read(*target, target.entry)
            left = BatchSet.through(entry.batch_size, batch_index - 1)
        await self._cursor.reset(target)
        if left is not None:
            await self._cursor.acknowledge([target], batch_sets={target: left})
        self._delivery.forget()
        self._dispatcher.queue.due.clear()
        for number in list(self._delivery.inboxes):
            self._delivery.report(SessionEvent.CLOSED, number)
            self._delivery.report(SessionEvent.BEGAN, number)
        self._delivery.rewind(forget=True)
        if self._delivery.tracker is not None:
            await self._delivery.tracker.clear()
        self._mark_ledger = self._cursor.mark_delete_position.ledger
        self._delivery.changed()


def _batch_sets(acks: TopicAcks) -> dict[Position, BatchSet] | None:
    return {position: left for position, left in acks.items() if left is not None} or None
