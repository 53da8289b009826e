"""The port of the native client: what a :class:`~pulsar_nack.Consumer` needs, over one topic or many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from ..._tasks import gather_or_cancel, gather_settled
from ...consumer import AcksDone, Delivery, PortTraits, SessionEvent
from ...errors import ClosedError, PulsarNackError
from ...ids import MessageId, Position, _is_message_id
from .._connection._context import ClientContext
from .._protocol._topics import normalize
from ._flow_and_redelivery import MAX_ENTRIES
from ._multi_topic_consumer import MultiTopicConsumer
from ._subscribe_options import SubscribeOptions
from ._topic_discovery import Selection

if TYPE_CHECKING:
    from .._producer._producer import WirePublisher

T = TypeVar("T")
_LATENCY_S: Final = 0.0005
_MAX_ASKED: Final = 100
_LOG: Final = logging.getLogger("pulsar_nack.wire")


class WirePort:
    """A :class:`~pulsar_nack.ConsumerPort` over the broker's own protocol; :meth:`open` makes one.

    Acknowledgements return when the broker has confirmed them. On Exclusive and Failover subscriptions a redelivery
    request brings back everything that is not acknowledged.
    """

    def __init__(self, context: ClientContext, selection: Selection, options: SubscribeOptions) -> None:
        self._context = context
        self._selection = selection
        self._options = options
        self._consumers = MultiTopicConsumer(context, selection, options)
        self._inbox = self._consumers.inbox
        self.receive = self._inbox.get
        """Returns the next message; cancelling it loses none.

        :raises ClosedError: the port, or its client, is closed
        :raises MissingExtraError: a message cannot be read because this process lacks what the error names; other
            consumers may be able to read it. No more messages come here; prefetched ones are returned to the broker
        """
        self._closing: asyncio.Task[None] | None = None
        self.traits = traits_of(options)
        """What this port promises."""

    @classmethod
    async def open(
        cls,
        context: ClientContext,
        selection: Selection,
        options: SubscribeOptions,
        *,
        discovery_interval: float = 60.0,
        starts: Mapping[str, MessageId] = MappingProxyType({}),
    ) -> WirePort:
        """Subscribe to all topics and partitions.

        :param discovery_interval: how often to look for new topics and partitions, in seconds
        :param starts: the message before the first one, by the full names of topics and partitions; for non-durable
            subscriptions
        :raises BrokerError: subscribing to one of them failed; then none is subscribed
        :raises InvalidArgumentError: there are several, and no receiver queue
        """
        self = cls(context, selection, options)
        await self._consumers.open(discovery_interval, starts)
        return self

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic or topics, subscription and consumer name."""
        return self._selection.label, self._options.subscription, self._options.consumer_name or ""

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, by :meth:`close` or with its client."""
        return self._closing is not None

    @property
    def is_connected(self) -> bool:
        """Return whether all topics and partitions have a session."""
        return all(consumer.is_connected for consumer in self._consumers)

    @property
    def is_active(self) -> bool | None:
        """Return whether this consumer of a Failover subscription gets messages; None: it is not known."""
        known = [consumer.is_active for consumer in self._consumers]
        return None if None in known else any(known)

    @property
    def has_ended(self) -> bool:
        """Return whether each topic or partition was terminated, and the broker has delivered all its messages.

        Messages that wait to be received, or are nacked, still come. Topics of a pattern may be added later.
        """
        return len(self._consumers) > 0 and all(consumer.has_ended for consumer in self._consumers)

    def publisher(self, topic: str | None, initial_subscription: str | None) -> WirePublisher:
        """Return a publisher of dead letters over the same connections.

        :raises InvalidArgumentError: not a name of a topic
        """
        from .._producer._producer import WirePublisher  # late: it imports all that producers need

        if topic is not None:
            normalize(topic)
        return WirePublisher(self._context, initial_subscription)

    def watch_sessions(self, on_event: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``on_event`` with each session event, the topic and the partition."""
        self._consumers.on_event = on_event

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position of a topic or partition, None if it is not known."""
        del partition  # it is in the name
        consumer = self._consumers.by_topic.get(topic)
        return None if consumer is None else await consumer.mark_delete_position()

    async def flush(self) -> None:
        """Do nothing: the broker has stored what it confirmed."""

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self._inbox)} messages here"
        return f"<WirePort of {self._selection.label!r} as {self._options.subscription!r}, {state}>"

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive_nowait(self) -> Delivery | None:
        """Return the next message if one is here.

        :raises ClosedError: it, or its client, is closed
        """
        if self._closing is not None:
            self._check_open()
        return self._inbox.get_nowait()

    def pause(self, *, is_idle: bool) -> int:
        """Return prefetched messages to the broker, for other consumers, and fetch nothing until :meth:`resume`.

        The result is how many these are; messages that still arrive are returned too. On Exclusive and Failover all of
        them stay.

        :param is_idle: no message is in flight; a later call may say so
        """
        return self._consumers.pause(is_idle=is_idle)

    def drain(self) -> int:
        """Return prefetched messages to the broker; :meth:`close` returns those that were redelivered before."""
        return self._consumers.pause(is_idle=False, is_last=True)

    def resume(self) -> None:
        """Fetch messages again."""
        self._consumers.resume()

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Return received messages that the application did not get to the broker; not on Exclusive and Failover."""
        for consumer, its_ids in self._consumers.grouped(ids, skip_unknown=True).items():
            consumer.give_back(its_ids)

    # --- settling -----------------------------------------------------------------------------------------------------

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge a message; ``done`` gets its token, and None when the broker has confirmed, or an error.

        It may get the tokens of other messages with it.

        :raises ClosedError: it, or its client, is closed
        :raises BrokerError: the message is of another topic; ``done`` is not called then
        """
        if self._closing is not None:
            self._check_open()
        consumer = self._consumers.by_topic.get(message_id.topic) or self._consumers.of(message_id)
        consumer.acknowledge_soon(message_id, token, done)

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; returns when the broker has confirmed it.

        :raises BrokerError: the broker refused, or a message is of another topic
        """
        self._check_open()
        if len(ids) == 1:
            await self._consumers.of(ids[0]).acknowledge(list(ids))
            return
        await gather_or_cancel(
            consumer.acknowledge(its_ids) for consumer, its_ids in self._consumers.grouped(ids).items()
        )

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, in its topic or partition.

        :raises BrokerError: the broker refused, as on shared subscriptions
        """
        self._check_open()
        await self._consumers.of(message_id).acknowledge_cumulative(message_id)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request the redelivery of messages; see :meth:`redeliver_nowait`.

        :raises BrokerError: the request failed
        """
        self.redeliver_nowait(ids)

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Request the entries of these messages again, without waiting; also from outside of a task.

        Messages of other topics are skipped, so that they do not prevent the rest of the request; messages of deleted
        topics are forgotten.

        :raises BrokerError: the request failed
        """
        if self._closing is not None:
            self._check_open()
        errors: list[Exception] = []
        for consumer, its_ids in self._consumers.grouped(ids, skip_unknown=True).items():
            try:
                consumer.redeliver_nowait(its_ids)
            except PulsarNackError as error:  # the others are requested first
                errors.append(error)
        if errors:
            raise errors[0]

    def check_seek(self, position: MessageId | int) -> None:
        """Raise if the message is of another topic or of a deleted one."""
        self._check_open()
        if _is_message_id(position):
            self._consumers.of(position).check_open()

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first from this publish time in ms on, is next.

        A message moves its topic or partition; a time, and the ids of the earliest and the latest, move all.

        :raises BrokerError: the broker refused, or the message is of another topic
        """
        self._check_open()
        await self._consumers.seek(position)

    # --- asking the broker --------------------------------------------------------------------------------------------

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic or partition, with its topic; entry -1 for an empty one.

        Topics that were deleted and may not be created are left out, unless all were.

        :raises BrokerError: the broker refused, or did not answer
        :raises ClosedError: it, or its client, is closed
        """
        self._check_open()
        return list((await self._consumers.ask(lambda consumer: consumer.last_message_id())).values())

    async def held_back(self) -> str | None:
        """Return why the broker sends no more messages though there are more; None: no reason is known.

        At most 100 topics or partitions are asked.

        :raises BrokerError: the broker gave no answer
        """
        self._check_open()
        answers = await gather_or_cancel(consumer.held_back() for consumer in list(self._consumers)[:_MAX_ASKED])
        return next(filter(None, answers), None)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription at the broker, and close.

        :param force: also while others consume; brokers before 3.1 take no notice of it
        :raises BrokerError: the broker refused, as it does while others consume; a later call deletes what is left
        """
        self._check_open()
        error = await gather_settled(consumer.unsubscribe(force=force) for consumer in self._consumers)
        if error is not None:
            raise error
        await self.close()

    async def close(self) -> None:
        """Return unacknowledged messages to the broker, for others; waiting calls get an error. Idempotent."""
        if self._closing is None:
            self._consumers.is_closed = True
            self._closing = asyncio.create_task(self._close(), name="pulsar_nack.wire closing")
            self._inbox.wake_all()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        error = await self._consumers.aclose()
        if error is not None:
            _LOG.warning("closing %s as %s: %s", self._selection.label, self._options.subscription, error)
        self._inbox.clear()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("the port")


def traits_of(options: SubscribeOptions) -> PortTraits:
    """Return what a port with such options promises."""
    return PortTraits(
        honours_ids=options.type in {"shared", "key_shared"},
        redelivery_latency=_LATENCY_S,
        max_ids_per_request=MAX_ENTRIES,
        batch_index_ack=options.batch_index_ack,
        receiver_queue_size=options.receiver_queue_size,
        reports_sessions=True,
        keeps_acks=True,
    )
