"""The consumer of one topic or partition. It stays subscribed through failures of connections and brokers.

It has three parts: :class:`SessionKeeper` subscribes, :class:`ReceiverQueue` takes what arrives, and
:class:`Acknowledger` acknowledges. Once the topic is deleted, :class:`DeletedTopicConsumer` takes its place.

A seek ends the session, whether or not the broker closes the consumer for it: messages that the broker sent before
belong to the old position. No session begins while a seek is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from ...consumer import AcksDone, Delivery, SessionEvent
from ...errors import BrokerError, BrokerRefusedError, InvalidArgumentError, MissingExtraError, TopicNotFoundError
from ...ids import MessageId, Position
from .._connection._context import ClientContext
from .._protocol._frames import position_of
from ._acknowledger import Acknowledger
from ._consumer_session import last_message_id_command, seek_command, statistics_command, unsubscribe_command
from ._entry_reader import UnreadEntry
from ._positions import places_of
from ._receiver_queue import ReceiverQueue, Sink
from ._session_keeper import SessionKeeper
from ._subscribe_options import SubscribeOptions

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_INT64: Final = 1 << 63
_MUCH_MORE: Final = 2
_MANY: Final = 100
"""A backlog is reported if it exceeds the unacknowledged messages here by this factor and this many messages."""


class TopicConsumer:
    """Consumes one topic or partition; all calls in the client's loop.

    :param context: that of the client
    :param topic: the full name, of a partition too
    :param options: of the subscription
    :param sink: gets messages and unread entries in order, synchronously
    :param partition: its number, -1 for a topic without partitions
    :param on_unreadable: called with the error when a message cannot be read because this process lacks something; the
        message is not delivered, and this consumer is to be paused
    :param on_event: called with each event of its sessions, the topic and the partition
    :param on_missing: called when the topic turns out to be deleted and may not be created again, and when the
        consumer ended without :meth:`aclose`
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: SubscribeOptions,
        sink: Sink,
        *,
        partition: int = -1,
        on_unreadable: Callable[[MissingExtraError], None] | None = None,
        on_event: Callable[[SessionEvent, str, int], None] = lambda *_: None,
        on_missing: Callable[[TopicConsumer], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._request_timeout_s = context.options.request_timeout.total_seconds()
        self._options = options
        self.acks = Acknowledger(context.loop, topic, options, self.check_open)
        self._position = self.acks.position
        self.queue = ReceiverQueue(
            context,
            topic,
            partition,
            options,
            sink,
            acks=self.acks,
            on_unreadable=on_unreadable,
        )
        self.sessions = SessionKeeper(
            context,
            topic,
            options,
            queue=self.queue,
            acks=self.acks,
            on_event=lambda event: on_event(event, topic, partition),
            on_missing=lambda: on_missing(self),
        )
        self._seeking = asyncio.Lock()
        # What the parts do, without a call between: acknowledging is a hot path.
        self.open, self.aclose = self.sessions.open, self.sessions.aclose
        self.acknowledge, self.acknowledge_soon = self.acks.acknowledge, self.acks.acknowledge_soon
        self.acknowledge_cumulative = self.acks.acknowledge_cumulative
        self.give_back = self.queue.give_back

    def __repr__(self) -> str:
        state = "closed" if self.sessions.is_closed else "subscribed" if self.is_connected else "not subscribed"
        return f"<TopicConsumer of {self.topic} as {self._options.subscription!r}, {state}>"

    @property
    def is_connected(self) -> bool:
        """Return whether it is subscribed now."""
        return self.sessions.session is not None

    @property
    def is_active(self) -> bool | None:
        """Return whether this consumer of a Failover subscription gets the messages; None: it is not known."""
        session = self.sessions.session
        return None if session is None else session.is_active

    @property
    def has_ended(self) -> bool:
        """Return whether the topic was terminated and all its messages were delivered."""
        session = self.sessions.session
        return session is not None and session.has_ended

    @property
    def missing(self) -> TopicNotFoundError | None:
        """Return the broker's error while the topic is deleted and may not be created."""
        return self.sessions.missing

    def check_open(self) -> None:
        """Raise if it is closed.

        :raises ClosedError: caused by the error that ended it, if there was one
        """
        self.sessions.check_open()

    def on_topic_deleted(self) -> None:
        """Handle that the topic is deleted: acknowledgements of its messages succeed."""
        self.acks.is_topic_deleted = True

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker, and close; if it is closed already, do nothing.

        A topic that was deleted has no subscription any more.

        :param force: also while others are subscribed; brokers before 3.1 take no notice of it
        :raises BrokerRefusedError: others are subscribed
        :raises BrokerError: no answer
        """
        if self.sessions.is_closed and self.sessions.fault is None:
            return
        await self._settle_acks()
        with suppress(TopicNotFoundError):
            await self.sessions.request(partial(unsubscribe_command, force=force))
        await self.aclose()

    # --- redelivery, pausing ------------------------------------------------------------------------------------------

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Request the entries of these messages again; on Exclusive and Failover everything.

        Without a connection nothing is requested: the next one brings everything.

        :raises ClosedError: the consumer is closed
        """
        if self.acks.is_closed:
            self.sessions.check_open()
        needs_session = self._position is not None and self._position.request(places_of(ids))
        if needs_session and not self._seeking.locked():
            self.sessions.reconnect()
        else:
            self.queue.request_redelivery(ids)

    def pause(self, queued: Sequence[Delivery | UnreadEntry], *, is_idle: bool = False, is_last: bool = False) -> int:
        """Return what arrived and was not taken, and fetch nothing until the queue is resumed.

        The result is how many messages were returned.

        On Exclusive and Failover no other consumer would get it: it stays.

        :param queued: messages of the present epoch that the inbox drops; none on Exclusive and Failover
        :param is_idle: no message is in flight, so that a new session costs nothing
        :param is_last: the consumer is closed next, see :meth:`ReceiverQueue.pause`
        """
        returned = self.queue.pause(queued, is_last=is_last)
        has_permits_out = is_idle and self.queue.permits.out > 0
        if has_permits_out and not self._options.only_one_gets_messages and not self._seeking.locked():
            self.sessions.reconnect()
        return returned

    # --- seeking ------------------------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | int, on_moved: Callable[[TopicConsumer], None] = lambda _: None) -> None:
        """Move the subscription, so that this message, or the first one published at or after an epoch ms, is next.

        :param on_moved: called with this consumer once it is moved; it stays so if the call is cancelled later
        :raises BrokerRefusedError: the broker refused; nothing moved
        :raises BrokerError: no answer
        :raises InvalidArgumentError: a time below 0
        :raises ClosedError: the consumer is closed
        """
        if not isinstance(position, MessageId) and (type(position) is not int or not 0 <= position < _INT64):
            raise InvalidArgumentError("position", position, "a MessageId, or epoch ms")
        if isinstance(position, MessageId) and position.first_chunk is not None:
            position = position.first_chunk
        async with self._seeking:
            self.check_open()
            self.queue.drop()
            self.queue.is_seeking = True
            try:
                await self._settle_acks()
                await self.sessions.request(partial(seek_command, position=position), is_seek=True)
                self.sessions.begin_at(position)
                on_moved(self)
            finally:
                self.queue.is_seeking = False
                self.sessions.reconnect()
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self.sessions.wait_connected()
        except TimeoutError:
            _LOG.warning("%s: moved, but not subscribed again yet: %s", self.topic, self.sessions.last_error)

    async def _settle_acks(self) -> None:
        """Wait until the broker has answered all earlier acknowledgements.

        :raises ConnectionLostError: it did not, as there is no connection
        """
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self.acks.settled()
        except TimeoutError:
            raise self.sessions.not_subscribed() from None

    # --- asking the broker --------------------------------------------------------------------------------------------

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry -1 for an empty topic.

        :raises BrokerError: the broker refused, or did not answer
        :raises ClosedError: the consumer is closed
        """
        return (await self.end())[0]

    async def end(self) -> tuple[MessageId, Position | None]:
        """Return the id of the topic's last message, and the mark-delete position if this broker reports it.

        :raises BrokerError: the broker refused, or did not answer
        :raises ClosedError: the consumer is closed
        """
        answer = (await self.sessions.request(last_message_id_command)).getLastMessageIdResponse
        last = answer.last_message_id
        index, size = max(last.batch_index, -1), max(last.batch_size, 0)
        has_mark = answer.HasField("consumer_mark_delete_position")
        return (
            MessageId(*position_of(last), self.partition, index, batch_size=size, topic=self.topic),
            position_of(answer.consumer_mark_delete_position) if has_mark else None,
        )

    @property
    def starts_after(self) -> MessageId | None:
        """Return the message before the first one of a non-durable subscription; None: it is not known here."""
        return None if self._position is None else self._position.start

    @property
    def last_arrived(self) -> tuple[int, int] | None:
        """Return the ledger and entry that arrived last on a non-durable subscription, None if they come again."""
        return None if self._position is None else self._position.last_arrived

    async def mark_delete_position(self) -> Position | None:
        """Return the mark-delete position, None if this broker does not report it. Waits for a session.

        It comes with the id of the last message. A broker that does not report it is not asked again in this session.
        A non-durable subscription has none: each session begins after the messages that were taken.
        """
        if not self.is_connected:
            await self.sessions.wait_connected()
        session = self.sessions.session
        if session is None or self._position is not None or not session.reports_mark_delete:
            return None
        try:
            answer = (await session.request(last_message_id_command)).getLastMessageIdResponse
        except BrokerError as error:
            session.reports_mark_delete = not isinstance(error, BrokerRefusedError)
            return None
        if session is not self.sessions.session:
            return None
        session.reports_mark_delete = answer.HasField("consumer_mark_delete_position")
        return position_of(answer.consumer_mark_delete_position) if session.reports_mark_delete else None

    async def held_back(self) -> str | None:
        """Return why the broker sends no more messages; None: no reason is known, or there is no connection.

        :raises BrokerError: the broker gave no answer
        """
        session = self.sessions.session
        if session is None or self._options.only_one_gets_messages:
            return None
        answer = (await session.request(statistics_command)).consumerStatsResponse
        unacked, backlog = answer.unackedMessages, answer.msgBacklog
        if answer.blockedConsumerOnUnackedMsgs:
            return f"the broker allows this consumer of {self.topic} no more than {unacked} unacknowledged"
        if answer.availablePermits and backlog > _MUCH_MORE * unacked + _MANY:
            return (
                f"{self.topic} has a backlog of {backlog} of which {unacked} are here: other "
                "consumers have them, or the broker limits the unacknowledged messages of the subscription"
            )
        return None


class DeletedTopicConsumer:
    """Replaces the consumer of a deleted topic or partition for calls that settle its messages.

    Acknowledgements succeed, and redelivery requests are dropped and reported. The first call is logged.

    :param on_request: called with topic and partition when messages are requested that will not come
    """

    def __init__(self, topic: str, partition: int, on_request: Callable[[str, int], None]) -> None:
        self._topic = topic
        self._partition = partition
        self._on_request = on_request
        self._is_logged = False

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:  # noqa: ARG002
        """Report that the acknowledgement succeeded."""
        self._log()
        asyncio.get_running_loop().call_soon(done, [token], None)

    async def acknowledge(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Return, as for acknowledged messages."""
        self._log()

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:  # noqa: ARG002
        """Return, as for acknowledged messages."""
        self._log()

    def redeliver_nowait(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Report that the messages will not come."""
        self._log()
        self._on_request(self._topic, self._partition)

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Do nothing: there is no broker to return the messages to."""

    def check_open(self) -> None:
        """Raise :class:`~pulsar_nack.BrokerError`: the topic was deleted."""
        raise BrokerError(f"{self._topic} was deleted")

    async def seek(self, position: MessageId | int, on_moved: Callable[[TopicConsumer], None]) -> None:  # noqa: ARG002
        """Raise as :meth:`check_open`."""
        self.check_open()

    def _log(self) -> None:
        if not self._is_logged:
            self._is_logged = True
            _LOG.info("%s was deleted: acknowledgements and nacks of its messages have no effect", self._topic)


AnyTopicConsumer = TopicConsumer | DeletedTopicConsumer
