"""The reader: reads topics without a subscription that the broker keeps.

It consumes on an Exclusive non-durable subscription with a unique name. After a lost connection or an unload the
broker begins after the last message that was received. So a message comes once, and none is missed.

What was received and not read waits in ``_kept``, in order for each topic: a message that
:meth:`Reader.has_message_available` found, and messages behind the ends that :meth:`Reader.read_to_end` reads to. A
topic with several kept messages fetches no more, so they are at most as many as are prefetched.

Reading acknowledges once a second what was read, so that the broker's statistics show the backlog. It stops before a
chunk of an incomplete message, which has to come again, for at most twice the time that its other chunks may take.

Not every entry is a message: the broker skips those of transactions and replication, compaction removes some while they
are read, and chunks may lack the rest. Then the last message of a topic never comes. If nothing comes for a second,
``read_to_end`` finds out whether it still waits for something.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from .._delays import Delay, delay_ms
from .._lifetime import ClosesWhenDropped, Opening, check_loop, running_loop
from .._tasks import gather_or_cancel
from ..consumer import Delivery, ReceivedMessage
from ..errors import BrokerError, ClosedError
from ..ids import MessageId, Position
from ._connection._context import ClientContext
from ._consumer._port import WirePort
from ._consumer._positions import EARLIEST, LATEST, TopicPosition, id_or_time, is_after, starts_of
from ._consumer._subscribe_options import SubscribeOptions
from ._consumer._topic_consumer import TopicConsumer
from ._consumer._topic_discovery import Selection

_ACK_INTERVAL_S: Final = 1.0
_YIELD_AFTER_S: Final = 0.005
_STALLED_S: Final = 1.0
_LONGEST_STALL_S: Final = 30.0
_LOG: Final = logging.getLogger("pulsar_nack.wire")


class Reader(ClosesWhenDropped):
    """Reads topics from a place of your choice, without acknowledgements. Get it from ``client.reader``.

    Use it as ``async with``, or call :meth:`aclose`, in one event loop. Within a topic or partition the messages come
    in order. Several tasks may read; each message goes to one of them. Iterating reads without end.
    """

    def __init__(self, port: WirePort, context: ClientContext, options: SubscribeOptions) -> None:
        self.duplicates = 0
        """How many messages the broker sent again after a lost connection; they were dropped."""
        self._port = port
        self._is_compacted = options.read_compacted
        self._loop = context.loop
        self._consumers = port._consumers
        self._read: dict[str, MessageId] = {}
        self._kept: dict[str, deque[Delivery]] = {}
        self._paused: set[str] = set()
        self._receiving = asyncio.Lock()
        self._yield_at = 0.0
        self._acking: asyncio.TimerHandle | None = None
        self._acked: dict[str, MessageId] = {}
        self._incomplete: dict[str, tuple[tuple[int, int], float]] = {}
        self._chunk_patience_s = 2 * delay_ms(options.chunk_timeout) / 1000
        self._closing: asyncio.Task[None] | None = None
        self._inner = self._twin()

    @classmethod
    async def open(
        cls,
        context: ClientContext,
        selection: Selection,
        options: SubscribeOptions,
        start: MessageId | int | tuple[MessageId, ...],
        *,
        inclusive: bool,
        discovery_interval: float,
    ) -> Self:
        """Open a reader; see :meth:`pulsar_nack.wire.Client.reader`.

        :param start: as ``start_of`` returns it
        """
        starts: Mapping[str, MessageId] = {}
        if isinstance(start, tuple) and not isinstance(start, MessageId):
            members = await context.retry_transient(lambda: selection.members(context))
            starts = starts_of(start, members, selection.label, inclusive=inclusive)
        is_late = start == LATEST or isinstance(start, int)
        options = replace(options, initial_position="latest" if is_late else "earliest")
        port = await WirePort.open(context, selection, options, discovery_interval=discovery_interval, starts=starts)
        try:
            if isinstance(start, int):
                await port.seek(start)
            elif start == LATEST and inclusive:
                last_ids = [each for each in await port.last_message_ids() if each.entry >= 0]
                await gather_or_cancel(port.seek(each) for each in last_ids)
        except BaseException:
            await port.close()
            raise
        return cls(port, context, options)

    def __repr__(self) -> str:
        topic, _, name = self._port.names
        return f"<Reader of {topic!r}{f' as {name!r}' if name else ''}{', closed' if self._port.is_closed else ''}>"

    @property
    def is_connected(self) -> bool:
        """Return whether all topics and partitions are connected now."""
        return self._port.is_connected

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, timeout: Delay | None = None) -> ReceivedMessage:
        """Wait for the next message. A call that is cancelled, or timed out, loses nothing.

        :param timeout: seconds or a timedelta; None: wait for ever
        :raises TimeoutError: nothing came in time
        :raises ClosedError: the reader is closed, also while this waits
        :raises TopicNotFoundError: the topic was deleted, and may not be created; a later call checks again
        :raises MissingExtraError: a message came that this process cannot read, as what the error names is not
            installed; each later call raises this too
        """
        return self._noted(await self._next(None if timeout is None else delay_ms(timeout, "timeout") / 1000))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message; iteration ends when the reader is closed."""
        try:
            return await self.read()
        except ClosedError as error:
            if error.__cause__ is not None:
                raise
            raise StopAsyncIteration from None

    async def read_to_end(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over the unread messages that are in the topics when the iteration begins, and end then.

        Of several partitions each is read to its own end. What is published meanwhile is left for later calls. Stopping
        early, or cancelling, loses nothing.

        :raises BrokerError: the broker does not say where the topics end
        :raises ClosedError: and others: as :meth:`read` raises them
        """
        ends = await self._ends()
        stalled_s = _STALLED_S
        while ends:
            try:
                delivery = await self._next(stalled_s, ends)
            except TimeoutError:
                with suppress(BrokerError):  # without an answer all of them may still come
                    ends = await self._ends(ends)
                stalled_s = min(stalled_s * 2, _LONGEST_STALL_S)
                continue
            end = ends.get(delivery.topic)
            if end is None or is_after(delivery.id, end):
                self._keep(delivery)
                ends.pop(delivery.topic, None)
                continue
            if not is_after(end, delivery.id):
                del ends[delivery.topic]
            yield self._noted(delivery)

    async def has_message_available(self) -> bool:
        """Return whether there is an unread message, so that :meth:`read` need not wait for a new one.

        :raises BrokerError: the broker gave no answer
        :raises ClosedError: the reader is closed
        """
        self._check()
        if not self._kept and not self._receiving.locked() and (delivery := self._take()) is not None:
            self._keep(delivery)
        return bool(self._kept) or bool(await self._ends())

    async def _next(self, timeout_s: float | None, topics: Collection[str] | None = None) -> Delivery:
        """Receive a message, kept ones first.

        :param topics: of which topics kept messages are wanted; None: of all
        """
        if running_loop() is not self._loop or self._port.is_closed:
            self._check()
        if self._loop.time() >= self._yield_at:  # before a message is taken, which a cancelled call would lose
            await asyncio.sleep(0)
            self._yield_at = self._loop.time() + _YIELD_AFTER_S
        delivery = None if self._receiving.locked() else self._take(topics)
        if delivery is None:
            async with asyncio.timeout(timeout_s), self._receiving:
                while (delivery := self._take(topics)) is None:
                    received = await self._port.receive()
                    if self._is_new(received):
                        delivery = received
                        break
            self._yield_at = self._loop.time() + _YIELD_AFTER_S
        return delivery

    def _take(self, topics: Collection[str] | None = None) -> Delivery | None:
        for topic, kept in self._kept.items():
            if topics is None or topic in topics:
                delivery = kept.popleft()
                if not kept:
                    del self._kept[topic]
                    self._resume(topic)
                return delivery
        while (received := self._port.receive_nowait()) is not None:
            if self._is_new(received):
                return received
        return None

    def _keep(self, delivery: Delivery) -> None:
        """Keep a message until it is read: the newest that was received of its topic, or the first kept one."""
        topic = delivery.topic
        kept = self._kept.setdefault(topic, deque())
        kept.appendleft(delivery) if kept and is_after(kept[0].id, delivery.id) else kept.append(delivery)
        consumer = self._consumers.by_topic.get(topic)
        if len(kept) > 1 and topic not in self._paused and consumer is not None:
            self._paused.add(topic)
            consumer.queue.pause([])

    def _resume(self, topic: str) -> None:
        """Fetch messages of a topic again, once none of them are kept."""
        if topic in self._paused:
            self._paused.discard(topic)
            consumer = self._consumers.by_topic.get(topic)
            if consumer is not None:
                consumer.queue.resume()

    def _is_new(self, delivery: Delivery) -> bool:
        kept = self._kept.get(delivery.topic)
        newest = kept[-1].id if kept else self._read.get(delivery.topic)
        if newest is None or is_after(delivery.id, newest):
            return True
        self.duplicates += 1
        _LOG.debug("%s: dropped %r, which came again after %r", delivery.topic, delivery.id, newest)
        return False

    def _noted(self, delivery: Delivery) -> ReceivedMessage:
        """Return the message that the caller reads now."""
        self._read[delivery.topic] = delivery.id
        if self._acking is None:
            self._acking = self._loop.call_later(_ACK_INTERVAL_S, self._inner._acknowledge)
        return ReceivedMessage(delivery)

    def _acknowledge(self) -> None:
        self._acking = None
        for topic, message_id in list(self._read.items()):
            is_acked = self._acked.get(topic) is message_id
            consumer = self._consumers.by_topic.get(topic)
            if consumer is not None and consumer.queue.is_seeking:
                continue  # it would move the new position on if it reached the broker after the seek
            if consumer is None:  # the topic was deleted
                for of_topics in (self._read, self._acked, self._incomplete):
                    of_topics.pop(topic, None)
            elif not is_acked and consumer.is_connected and not self._waits_for_chunks(consumer, message_id):
                self._acked[topic] = message_id
                consumer.acks.acknowledge_cumulative_soon(message_id, _note_ack)

    def _waits_for_chunks(self, consumer: TopicConsumer, message_id: MessageId) -> bool:
        """Return whether a message before this one may still be completed."""
        topic, first, now = consumer.topic, consumer.queue.first_chunk(), self._loop.time()
        if first is None or first > message_id[:2]:
            self._incomplete.pop(topic, None)
            return False
        known, ends_at = self._incomplete.get(topic, (None, 0.0))
        if known != first:
            self._incomplete[topic] = first, now + self._chunk_patience_s
        elif now >= ends_at:
            if ends_at:
                self._incomplete[topic] = first, 0.0
                _LOG.warning("%s: gave up the chunked message at %s, which stays incomplete", topic, first)
            return False
        return True

    # --- positions ----------------------------------------------------------------------------------------------------

    async def last_message_ids(self) -> Sequence[MessageId]:
        """Return the id of the last message of each topic or partition; entry -1 for an empty one.

        :raises BrokerError: the broker gave no answer
        :raises ClosedError: the reader is closed
        """
        self._check()
        return await self._port.last_message_ids()

    def positions(self) -> list[MessageId]:
        """Return the id of the last message that was read of each topic or partition, or the one before the first.

        Give them to ``start`` to go on there. A topic that is still at its beginning has none.
        """
        return [
            last if last.topic is not None else last._replace(partition=consumer.partition, topic=consumer.topic)
            for consumer in self._consumers
            if (last := self._position_of(consumer)) is not None and last not in {EARLIEST, LATEST}
        ]

    def _position_of(self, consumer: TopicConsumer) -> MessageId | None:
        return self._read.get(consumer.topic) or consumer.starts_after

    async def seek(self, position: TopicPosition) -> None:
        """Move, so that this message, or the first one from this publish time on, is read next.

        A message moves its topic or partition; a time and both ends move all.

        :param position: ``"earliest"``, ``"latest"``, a message id, a datetime (local time if it names no zone) or
            epoch ms
        :raises InvalidArgumentError: none of these; nothing changed
        :raises BrokerError: the broker refused, or the message is of another topic
        :raises ClosedError: the reader is closed
        """
        target = id_or_time(position)
        self._check()
        await self._consumers.seek(target, self._on_moved)

    def _on_moved(self, consumer: TopicConsumer) -> None:
        """Drop what is kept of a topic; its old messages may be read until now."""
        self._read.pop(consumer.topic, None)
        self._kept.pop(consumer.topic, None)
        self._resume(consumer.topic)

    async def _ends(self, only: Mapping[str, MessageId] | None = None) -> dict[str, MessageId]:
        """Return the last message of each topic with unread ones, by name; ``only`` of these, up to these messages."""
        ends: dict[str, MessageId] = {}
        for consumer, (last, mark) in (await self._consumers.ask(lambda each: each.end(), only)).items():
            end = last if only is None or is_after(only[consumer.topic], last) else only[consumer.topic]
            passed = None if only is None and self._is_compacted else mark  # compacted messages may lie before it
            if end.entry >= 0 and not self._has_read(consumer, end, passed):
                ends[consumer.topic] = end
        return ends

    def _has_read(self, consumer: TopicConsumer, end: MessageId, mark: Position | None) -> bool:
        """Return whether nothing is left to be read up to a message.

        :param mark: the mark-delete position, up to which the broker sends nothing any more
        """
        if kept := self._kept.get(consumer.topic):
            return is_after(kept[0].id, end)
        position = self._position_of(consumer)
        if (position is not None and not is_after(end, position)) or (mark is not None and mark >= end[:2]):
            return True
        arrived = consumer.last_arrived if consumer.is_connected and not len(self._port._inbox) else None
        return arrived is not None and arrived >= end[:2]

    # --- the end ------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the reader. Calls that wait raise :class:`~pulsar_nack.ClosedError`. Idempotent, in any loop.

        :raises WrongLoopError: the reader is open, and was used in another event loop
        """
        if self._closing is None or not self._closing.done():
            check_loop(self._loop, "the reader")
            await asyncio.shield(self._begin_close())

    close = aclose

    def _check(self) -> None:
        check_loop(self._loop, "the reader")
        if self._port.is_closed:
            raise ClosedError("the reader")

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return None if self._port.is_closed else self._loop

    def _begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            if self._acking is not None:
                self._acking.cancel()
            self._kept.clear()
            self._closing = self._loop.create_task(self._port.close(), name="pulsar_nack.wire reader closing")
        return self._closing


Reading = Opening[Reader]
"""A reader to be opened: enter it with ``async with``, or ``await`` it and close the reader yourself."""


def _note_ack(error: Exception | None) -> None:
    if error is not None:
        _LOG.debug("the broker did not take an acknowledgement of a reader: %s", error)
