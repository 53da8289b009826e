"""The verbs of a consumer for an id, for several messages, and for its subscription as a whole.

The user's :class:`Consumer` delegates to them; each raises as the :class:`Consumer`'s own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from .._check import check_integer
from .._delays import Delay, delay_ms, seek_position
from ..errors import AcknowledgeError, BrokerError, ClosedError, InvalidArgumentError, NotDurableError, RedeliveryError
from ..ids import MessageId, _is_message_id
from ._consumer_state import ConsumerState
from ._engine import ConsumerEngine
from ._events import ASKED_FOR
from ._id_relations import is_same_topic, place_of
from ._message import Message
from ._message_state import DELIVERED, HELD, MessageState
from ._message_table import UNDELIVERED
from ._port import SupportsSessions
from ._redelivery_queue import RedeliveryQueue
from ._settler import Settler

_AT_ONCE: Final = 256
"""Messages that one turn of the loop requests again."""

# --- arguments -------------------------------------------------------------------------------------------------------


def checked_id(message_id: object) -> MessageId:
    """Return an argument that is the id of a message."""
    if not isinstance(message_id, MessageId):
        raise InvalidArgumentError("message", message_id, "a Message or a MessageId")
    return message_id


def checked_message(state: ConsumerState, message: object) -> Message:
    """Return an argument that is a message, of an open consumer."""
    state.check_open()
    if not isinstance(message, Message):
        raise InvalidArgumentError("message", message, "a Message")
    return message


# --- an id, several messages -----------------------------------------------------------------------------------------


async def receive_batch(
    engine: ConsumerEngine,
    receive: Callable[[], Awaitable[Message]],
    max_messages: int,
    max_bytes: int,
    timeout: Delay | None,
) -> list[Message]:
    """Receive several messages, and take back what is too much; see :meth:`Consumer.batch_receive`.

    Their leases begin when all of them are here: no handler has one before.

    :param receive: :meth:`Consumer.receive`
    """
    check_integer("max_messages", max_messages, 1)
    check_integer("max_bytes", max_bytes, 1)
    seconds = None if timeout is None else delay_ms(timeout, "timeout") / 1000
    take_back, leases = engine.receiver.take_back, engine.settler.leases
    found: list[Message] = []
    size = 0
    try:
        async with asyncio.timeout(seconds) as limit:
            while len(found) < max_messages and size < max_bytes:
                message = await receive()
                size += len(message._delivery.data)
                if found and size > max_bytes:
                    take_back(message)
                    continue
                found.append(message)
                if leases is not None:
                    leases.cancel(message._lease)
    except BaseException as error:
        if not (isinstance(error, TimeoutError) and limit.expired()):
            for message in reversed(found):
                take_back(message)
            raise
    if leases is not None:
        for message in found:
            message._lease = leases.begin(message._delivery, message._redelivery_count)
    return found


async def acknowledge(settler: Settler, message_id: MessageId) -> None:
    """Acknowledge the message with this id."""
    acked = settler.acknowledge(message_id)
    try:
        await acked
    except asyncio.CancelledError as error:
        settler.acks.on_raised(message_id, acked, error)
        raise


async def acknowledge_all(settler: Settler, messages: Iterable[Message | MessageId]) -> None:
    """Acknowledge messages, or those with these ids, at once; see :meth:`Message.ack` for each.

    :raises InvalidArgumentError: something else is among them; nothing changed
    :raises AcknowledgeError: some were not acknowledged
    :raises ClosedError: the consumer is closed
    """
    several = list(messages)
    for each in several:
        if not isinstance(each, Message | MessageId):
            raise InvalidArgumentError(
                "message", each, "a Message, a MessageId (from bytes: MessageId.from_bytes), or a list"
            )
    settler.state.check_open()
    begun: dict[Message, str | None] = {}
    calls: dict[MessageId, asyncio.Future[None]] = {}
    failed: dict[MessageId, BaseException] = {}
    lost: dict[MessageId, BaseException] = {}
    for each in dict.fromkeys(several):
        try:
            _begin_one(settler, each, begun, calls)
        except Exception as error:  # noqa: BLE001 - raised below, once the others are done
            failed[each.id if isinstance(each, Message) else each] = error
    try:
        await asyncio.gather(*calls.values(), return_exceptions=True)
        lost = {each: failure for each, call in calls.items() if (failure := call.exception()) is not None}
    except asyncio.CancelledError as error:
        for each, call in calls.items():
            lost[each] = ClosedError("the call")
            settler.acks.on_raised(each, call, error)
        raise
    finally:
        for message, before in begun.items():
            if message.id in lost:
                message._settled_as = before
    failed |= lost
    if any(isinstance(error, ClosedError) for error in failed.values()):
        raise ClosedError("the consumer")
    if failed:
        raise AcknowledgeError(failed, len(several)) from next(iter(failed.values()))


def _begin_one(
    settler: Settler,
    each: Message | MessageId,
    begun: dict[Message, str | None],
    calls: dict[MessageId, asyncio.Future[None]],
) -> None:
    """Begin to acknowledge one of several messages; note what to restore if that fails, and the outcome."""
    if isinstance(each, MessageId):
        if each not in calls:
            calls[each] = asyncio.ensure_future(settler.acknowledge(each))
        return
    before = each._begin_ack()
    try:
        if each.id not in calls:
            calls[each.id] = asyncio.ensure_future(settler.acknowledge(each.id))
    except BaseException:
        each._settled_as = before
        raise
    begun[each] = before


async def acknowledge_cumulative(engine: ConsumerEngine, message: Message | MessageId) -> None:
    """Acknowledge everything up to and including a message of its partition."""
    if not isinstance(message, Message):
        await _acknowledge_through(engine, checked_id(message))
        return
    before = message._settled_as
    message._begin_ack()
    try:
        engine.state.check_not_sent_away(message.id)
        await _acknowledge_through(engine, message.id)
    except BaseException:
        message._settled_as = before
        raise


async def _acknowledge_through(engine: ConsumerEngine, message_id: MessageId) -> None:
    port = engine.supporting("acknowledge cumulatively")
    record = engine.table.get(message_id)
    message_id = message_id if record is None else record.id
    await port.acknowledge_cumulative(message_id)
    engine.settler.acks.acked_through(message_id, engine.clock.now_ms())
    if engine.state.durable is not None:
        await engine.state.durable.acked_up_to(message_id)


async def redeliver(engine: ConsumerEngine) -> None:
    """Request all delivered, unsettled messages again; on Exclusive and Failover in order, with what follows."""
    settler, table, receiver = engine.settler, engine.table, engine.receiver
    engine.state.check_open()
    waiting = {message.id for message in receiver.set_aside()}
    found = [each for each in table.select({DELIVERED}) if each.id not in waiting]
    records = sorted(found, key=lambda record: record.id)
    if not engine.port.traits.honours_ids:
        places = {place_of(record.id) for record in records}
        try:
            if records and await _request(engine.queue, records):
                for record in receiver.drop(lambda message: place_of(message.id) in places):
                    table.give_back(record.id)  # the broker sends it too
        finally:
            engine.state.check_idle()
        return
    counts = [record.redelivery_count for record in records]
    for number, (record, count) in enumerate(zip(records, counts, strict=True)):
        if _is_attempt(table.get(record.id), record, count):
            settler.redeliver(record)
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
            engine.state.check_open()


async def _request(queue: RedeliveryQueue, records: Sequence[MessageState]) -> bool:
    """Have the broker bring back everything, for messages that are being processed; False: that will be repeated."""
    now_ms = queue.clock.now_ms()
    for record in records:
        queue.table.hold(record.id)
        queue.tracker.ack(record.id)  # the deadline of a lease
        record.is_held, record.is_local, record.due_at_ms, record.lease = True, False, now_ms, None
        queue.trace.nack(record, 0, ASKED_FOR)
    try:
        await queue.on_due([record.id for record in records], is_rewind=True)
    except BaseException as error:
        for record in records:
            if record.state is HELD:
                queue.arm(record.id, 0)
        if not isinstance(error, RedeliveryError):
            raise
        return False
    return True


def _is_attempt(known: MessageState | None, record: MessageState, count: int) -> bool:
    """Return whether a message is still at the attempt that was delivered."""
    return known is record and record.state is DELIVERED and record.redelivery_count == count


# --- the subscription ------------------------------------------------------------------------------------------------


async def seek(engine: ConsumerEngine, position: MessageId | int | datetime) -> None:
    """Move the subscription, and forget what was known about its messages."""
    receiver, table = engine.receiver, engine.table
    port = engine.supporting("seek")
    position = seek_position(position)
    port.check_seek(position)
    durable = engine.state.durable
    cleared = None if durable is None else durable.cleared()  # before anything else is noted
    left = {each: table.requests.counts.get(each, -1) for each in table.requests.repeat_at}
    left |= {each.id: each.redelivery_count for each in table.select(UNDELIVERED)}
    left |= {each.id: each.redelivery_count - 1 for each in receiver.set_aside()}
    receiver.clear()
    engine.settler.clear("seek", "forgotten by a seek")
    try:
        if cleared is not None and (error := await cleared) is not None:
            what = "the subscription was not moved, because that could not be made durable"
            raise NotDurableError(what, error) from error
        await port.seek(position)
        left = {each: count for each, count in left.items() if not _is_moved(each, position)}
        table.acked.clear()
    finally:
        engine.queue.ask_for(left)
        engine.state.waiting_nacks.wake_all(value=False)


def _is_moved(message_id: MessageId, position: MessageId | int) -> bool:
    """Return whether a seek moves a message's partition: a time, and the ends of a topic, move everything."""
    return not _is_message_id(position) or is_same_topic(message_id, position)


async def last_message_ids(engine: ConsumerEngine) -> list[MessageId]:
    """Return the id of the last message of each topic or partition."""
    return list(await engine.supporting("ask for the last message").last_message_ids())


async def last_message_id(engine: ConsumerEngine) -> MessageId:
    """Return the id of the last message of the only topic."""
    found = await last_message_ids(engine)
    if len(found) != 1:
        raise BrokerError(f"there are {len(found)} topics or partitions: use last_message_ids()")
    return found[0]


async def has_message_available(engine: ConsumerEngine) -> bool:
    """Return whether a message waits here, or the last message of a topic has not been received."""
    engine.state.check_open()
    if _has_waiting(engine):
        return True
    for last in await last_message_ids(engine):
        if await _is_ahead(engine, last):
            return True
    return _has_waiting(engine)


def _has_waiting(engine: ConsumerEngine) -> bool:
    engine.receiver.inbox.drop_outdated()
    return engine.receiver.waiting() > 0


async def _is_ahead(engine: ConsumerEngine, last: MessageId) -> bool:
    table, port = engine.table, engine.port
    if last.entry < 0 or table.get(last) is not None or table.acked.is_acked(last):
        return False
    if not port.traits.reports_sessions or not isinstance(port, SupportsSessions):
        return True
    mark_delete = await port.mark_delete_position(last.topic or "", last.partition)
    return mark_delete is None or last[:2] > mark_delete
