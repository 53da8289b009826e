"""The verbs for a consumer's subscription as a whole; the user's :class:`Consumer` delegates to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

from .._check import check_flag
from .._delays import seek_position
from ..errors import BrokerError, NotDurableError
from ..ids import MessageId, _is_message_id
from ._batches import is_same_topic, place_of
from ._engine import ConsumerEngine
from ._message import Message
from ._message_state import DELIVERED, MessageState
from ._message_table import UNDELIVERED
from ._port import SupportsSessions, SupportsSubscription

_log = logging.getLogger("pulsar_nack.consumer")
_AT_ONCE: Final = 256
"""Messages that one turn of the loop requests again."""


class SubscriptionVerbs:
    """What one consumer does with its subscription; each verb raises as the :class:`Consumer`'s own."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._settler = engine.settler
        self._state = engine.state
        self._port = engine.port
        self._unsubscribing: asyncio.Task[None] | None = None

    async def seek(self, position: MessageId | int | datetime) -> None:
        """Move the subscription, and forget what was known about its messages."""
        settler, table = self._settler, self._engine.table
        port = self._supporting("seek")
        position = seek_position(position)
        port.check_seek(position)
        durable = self._state.durable
        cleared = None if durable is None else durable.cleared()  # before anything else is noted
        receiver = self._engine.receiver
        left = {each: table.requests.counts.get(each, -1) for each in table.requests.repeat_at}
        left |= {each.id: each.redelivery_count for each in table.select(UNDELIVERED)}
        left |= {each.id: each.redelivery_count - 1 for each in receiver.set_aside()}
        receiver.clear()
        settler.clear("seek", "forgotten by a seek")
        try:
            if cleared is not None and (error := await cleared) is not None:
                what = "the subscription was not moved, because that could not be made durable"
                raise NotDurableError(what, error) from error
            await port.seek(position)
            left = {each: count for each, count in left.items() if not _is_moved(each, position)}
            table.acked.clear()
        finally:
            self._engine.queue.ask_for(left)
            self._engine.limiter.changed()

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message of its partition."""
        if isinstance(message, MessageId):
            await self._acknowledge_through(message)
            return
        before = message._settled_as
        message._begin_ack()
        try:
            self._state.check_not_sent_away(message.id)
            await self._acknowledge_through(message.id)
        except BaseException:
            message._settled_as = before
            raise

    async def _acknowledge_through(self, message_id: MessageId) -> None:
        port = self._supporting("acknowledge cumulatively")
        record = self._engine.table.get(message_id)
        message_id = message_id if record is None else record.id
        await port.acknowledge_cumulative(message_id)
        self._settler.settled_through(message_id, self._engine.clock.now_ms())
        if self._state.durable is not None:
            await self._state.durable.acked_up_to(message_id)

    def _supporting(self, verb: str) -> SupportsSubscription:
        self._state.check_open()
        if not isinstance(self._port, SupportsSubscription):
            raise NotImplementedError(f"{type(self._port).__name__} cannot {verb}")
        return self._port

    # --- redelivery --------------------------------------------------------------------------------------------------

    async def redeliver(self) -> None:
        """Request all delivered, unsettled messages again; on Exclusive and Failover in order, with what follows."""
        settler, table, receiver = self._settler, self._engine.table, self._engine.receiver
        self._state.check_open()
        waiting = {message.id for message in receiver.set_aside()}
        found = [each for each in table.select({DELIVERED}) if each.id not in waiting]
        records = sorted(found, key=lambda record: record.id)
        if not self._port.traits.honours_ids:
            places = {place_of(record.id) for record in records}
            try:
                if records and await self._engine.queue.request_now(records):
                    for record in receiver.drop(lambda message: place_of(message.id) in places):
                        table.give_back(record.id)  # the broker sends it too
            finally:
                self._state.check_idle()
            return
        counts = [record.redelivery_count for record in records]
        for number, (record, count) in enumerate(zip(records, counts, strict=True)):
            if _is_attempt(table.get(record.id), record, count):
                settler.redeliver(record)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
                self._state.check_open()

    # --- the end of the topic ----------------------------------------------------------------------------------------

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic or partition."""
        return list(await self._supporting("ask for the last message").last_message_ids())

    async def last_message_id(self) -> MessageId:
        """Return the id of the last message of the only topic."""
        found = await self.last_message_ids()
        if len(found) != 1:
            raise BrokerError(f"there are {len(found)} topics or partitions: use last_message_ids()")
        return found[0]

    async def has_message_available(self) -> bool:
        """Return whether a message waits here, or the last message of a topic has not been received."""
        self._state.check_open()
        if self._has_waiting():
            return True
        for last in await self.last_message_ids():
            if await self._is_ahead(last):
                return True
        return self._has_waiting()

    def _has_waiting(self) -> bool:
        receiver = self._engine.receiver
        receiver.inbox.drop_outdated()
        return receiver.waiting() > 0

    async def _is_ahead(self, last: MessageId) -> bool:
        table, port = self._engine.table, self._port
        if last.entry < 0 or table.get(last) is not None or table.acked.is_acked(last):
            return False
        if not port.traits.reports_sessions or not isinstance(port, SupportsSessions):
            return True
        mark_delete = await port.mark_delete_position(last.topic or "", last.partition)
        return mark_delete is None or last[:2] > mark_delete

    # --- unsubscribing -----------------------------------------------------------------------------------------------

    async def unsubscribe(self, name: object, close: Callable[[], Awaitable[None]], *, force: bool) -> None:
        """Delete the subscription, then close the consumer; goes on when the call is cancelled.

        :param name: the consumer's, for the log
        """
        check_flag("force", force)
        port = self._supporting("unsubscribe")
        if self._unsubscribing is None:
            unsubscribing = self._unsubscribe(port, close, force=force)
            task = asyncio.create_task(unsubscribing, name="pulsar_nack.Consumer unsubscribing")
            self._unsubscribing = task
            task.add_done_callback(partial(self._on_unsubscribed, name))
        await asyncio.shield(self._unsubscribing)

    def _on_unsubscribed(self, name: object, task: asyncio.Task[None]) -> None:
        self._unsubscribing = None  # where it failed it can be tried again
        if not task.cancelled() and task.exception() is not None:
            _log.info("%r could not be unsubscribed: %r", name, task.exception())

    async def _unsubscribe(
        self, port: SupportsSubscription, close: Callable[[], Awaitable[None]], *, force: bool
    ) -> None:
        await port.unsubscribe(force=force)
        durable = self._state.durable
        cleared = None if durable is None else durable.cleared()
        self._settler.clear("unsubscribe", "gone with its subscription")
        error = None if cleared is None else await cleared
        await close()
        if error is not None:
            raise NotDurableError("the subscription is gone, but its durable state is still there", error) from error


def _is_attempt(known: MessageState | None, record: MessageState, count: int) -> bool:
    """Return whether a message is still at the attempt that was delivered."""
    return known is record and record.state is DELIVERED and record.redelivery_count == count


def _is_moved(message_id: MessageId, position: MessageId | int) -> bool:
    """Return whether a seek moves a message's partition: a time, and the ends of a topic, move everything."""
    return not _is_message_id(position) or is_same_topic(message_id, position)
