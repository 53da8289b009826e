"""The broker's own protocol as a port: what a :class:`~pulsar_nack.Consumer` needs, over one topic or many."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...consumer import AcksDone, Delivery, PortTraits, SessionEvent
from ...errors import ClosedError, InvalidArgumentError, MissingExtraError, PulsarNackError, TopicNotFoundError
from ...ids import MessageId, Position, _names_message
from .._connection._core import Core
from .._connection._refusals import as_text
from .._connection._together import each_tried, together
from .._protocol._topics import normalize
from ._inbox import WireInbox
from ._many import Member, Members
from ._selection import Matching, Selection
from ._subscribe_options import SubscribeOptions
from ._topic_consumer import TopicConsumer
from ._topic_watch import TopicWatch

if TYPE_CHECKING:
    from .._producer._publisher import WirePublisher

T = TypeVar("T")
MAX_IDS: Final = 1_000
_LATENCY_S: Final = 0.0005
_MOST_ASKED: Final = 100
_MOST_AHEAD: Final = 50_000
"""How many messages are fetched ahead in all, where there are many topics or partitions."""
_LOG: Final = logging.getLogger("pulsar_nack.wire")


class WirePort:
    """A :class:`~pulsar_nack.ConsumerPort` that talks to the broker itself; :meth:`open` makes one.

    Acknowledgements return when the broker has confirmed them. On Exclusive and Failover subscriptions a redelivery
    request brings back everything that is not acknowledged.
    """

    def __init__(
        self, core: Core, selection: Selection, options: SubscribeOptions, *, discovery_interval: float = 60.0
    ) -> None:
        self._core = core
        self._selection = selection
        self._options = options
        self._interval = discovery_interval
        self._inbox = WireInbox(self._check_receivable, self._before_wait)
        self._is_paused = False
        self._unreadable: MissingExtraError | None = None
        self._has_missed = False
        self._members = Members(
            selection,
            core.lookup,
            self._make,
            subscription=options.subscription,
            gone=self._gone,
            core=core,
        )
        self._told: Callable[[SessionEvent, str, int], None] | None = None
        self._watch = (
            TopicWatch(core, selection.namespace, selection.matches) if isinstance(selection, Matching) else None
        )
        self._discovery: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._traits = traits_of(options)

    @classmethod
    async def open(
        cls, core: Core, selection: Selection, options: SubscribeOptions, *, discovery_interval: float = 60.0
    ) -> WirePort:
        """Subscribe to all topics and partitions.

        :raises BrokerError: one of them cannot be subscribed to; none is then
        :raises InvalidArgumentError: there are several, and no queue
        """
        self = cls(core, selection, options, discovery_interval=discovery_interval)
        if not options.receiver_queue_size:
            await self._check_lone()
        await self._members.open()
        if not len(self._members):
            _LOG.warning(
                "no topic matches the pattern %r in namespace %s yet: this consumer waits for one",
                selection.label,
                getattr(selection, "namespace", ""),
            )
        if self._members.may_grow:
            self._discovery = asyncio.create_task(self._discover(), name="pulsar_nack.wire discovery")
        return self

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic or topics, subscription and consumer name."""
        return self._selection.label, self._options.subscription, self._options.consumer_name or ""

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._traits

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, by :meth:`close` or with its client."""
        return self._closing is not None

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection, all of them for several topics or partitions."""
        return all(member.is_connected for member in self._members)

    @property
    def is_active(self) -> bool | None:
        """Return whether this is the consumer that gets messages, on Failover; None where that is not known."""
        known = [member.is_active for member in self._members]
        return None if None in known else any(known)

    @property
    def has_ended(self) -> bool:
        """Return whether each topic or partition that is consumed was terminated, and the broker has sent all of it.

        What waits to be received, or is nacked, is still to come; of a pattern there may be new topics.
        """
        return len(self._members) > 0 and all(member.has_ended for member in self._members)

    def publisher(self, topic: str | None, initial_subscription: str | None) -> WirePublisher:
        """Return what publishes dead letters, over the same connections.

        :raises InvalidArgumentError: not a name of a topic
        """
        from .._producer._publisher import WirePublisher  # late: it imports all that producers need

        if topic is not None:
            normalize(topic)
        return WirePublisher(self._core, initial_subscription)

    def watch_sessions(self, told: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``told`` with each event of the session of a topic or partition."""
        self._told = told

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return up to where everything is acknowledged, None where that is not known."""
        del partition  # it is in the name
        member = self._members.by_topic.get(topic)
        return None if member is None else await member.mark_delete_position()

    async def flush(self) -> None:
        """Do nothing: what is confirmed is with the broker."""

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self._inbox)} messages here"
        return f"<WirePort of {self._selection.label!r} as {self._options.subscription!r}, {state}>"

    # --- the port --------------------------------------------------------------------------------------------------

    async def receive(self) -> Delivery:
        """Return the next message; cancelling it loses none.

        :raises ClosedError: it, or its client, is closed
        :raises MissingExtraError: one came that cannot be read for want of what the error names, so that others may be
            able to. Nothing comes here any more; what was fetched ahead is given back
        """
        return await self._inbox.get()

    def receive_nowait(self) -> Delivery | None:
        """Return the next message if one is here.

        :raises ClosedError: it, or its client, is closed
        """
        if self._closing is not None:
            self._check_open()
        return self._inbox.get_nowait()

    def pause(self, *, is_idle: bool) -> None:
        """Give back what was fetched ahead, to others at once, and fetch nothing until :meth:`resume`.

        What comes by permits that the broker has already is given back too. On Exclusive and Failover all of it stays.

        :param is_idle: nothing that was received is unsettled; a later call may say so
        """
        self._is_paused = True
        for member in self._members:
            self._pause(member, is_idle=is_idle)

    def resume(self) -> None:
        """Fetch messages again."""
        self._is_paused = False
        if self._unreadable is None:
            for member in self._members:
                member.resume()
            if self._inbox.is_awaited:
                self._before_wait()

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give messages back at once that were received and not shown; not on Exclusive and Failover."""
        for member, its in self._members.grouped_known(ids).items():
            member.give_back(its)

    def _pause(self, member: Member, *, is_idle: bool = False) -> None:
        member.pause(self._inbox.take_out(member) if self._traits.honours_ids else [], is_idle=is_idle)

    def _on_unreadable(self, error: MissingExtraError) -> None:
        """Stop, so that other consumers get the message that this process cannot read, and those after it."""
        if self._unreadable is None:
            self._unreadable = error
            label, subscription = self._selection.label, self._options.subscription
            _LOG.error("%s as %s: nothing more is received, for one message cannot be: %s", label, subscription, error)
            for member in self._members:
                self._pause(member)
            self._inbox.wake_all()

    def _before_wait(self) -> None:
        if self._unreadable is not None:
            raise copy.copy(self._unreadable)
        if not self._options.receiver_queue_size and not self._is_paused:
            for member in self._members:
                member.want()

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge a message; ``done`` gets its token, and None when the broker has confirmed, or an error.

        It may get the tokens of others with it.

        :raises ClosedError: it, or its client, is closed
        :raises BrokerError: the message is of another topic; ``done`` is not called then
        """
        if self._closing is not None:
            self._check_open()
        member = self._members.by_topic.get(message_id.topic) or self._members.of(message_id)
        member.acknowledge_soon(message_id, token, done)

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; returns when the broker has confirmed it.

        :raises BrokerError: the broker refused, or one is of another topic
        """
        self._check_open()
        if len(ids) == 1:
            await self._members.of(ids[0]).acknowledge(list(ids))
            return
        await together(member.acknowledge(its) for member, its in self._members.grouped(ids).items())

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, in its topic or partition.

        :raises BrokerError: the broker refused, as on shared subscriptions
        """
        self._check_open()
        await self._members.of(message_id).acknowledge_cumulative(message_id)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Have these sent again now, with the entries that they are in.

        Those of other topics are passed over, lest they keep the others of a request from coming; those of topics that
        were deleted are forgotten.

        :raises BrokerError: it could not be asked for
        """
        self.redeliver_nowait(ids)

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Do the same, from outside of a task too."""
        self._check_open()
        errors: list[Exception] = []
        for member, its in self._members.grouped_known(ids).items():
            try:
                member.redeliver_nowait(its)
            except PulsarNackError as error:  # all others are asked all the same
                errors.append(error)
        if errors:
            raise errors[0]

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first from this publish time in ms on, is next.

        A message moves it in its topic or partition; a time, and the ids of the earliest and the latest, everywhere.

        :raises BrokerError: the broker refused, or the message is of another topic
        """
        self._check_open()
        members = [self._members.of(position)] if _names_message(position) else list(self._members)
        await together(member.seek(position) for member in members)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic or partition; entry -1 where there is none."""
        self._check_open()
        return await together(member.last_message_id() for member in self._members)

    async def held_back(self) -> str | None:
        """Return why the broker sends nothing more though there is more, None where it knows no reason.

        Of very many topics or partitions some are asked.

        :raises BrokerError: the broker gave no answer
        """
        self._check_open()
        answers = await together(member.held_back() for member in list(self._members)[:_MOST_ASKED])
        return next(filter(None, answers), None)

    async def unsubscribe(self) -> None:
        """Delete the subscription at the broker, and close.

        :raises BrokerError: the broker refused, as it does while others consume; a later call deletes what is left
        """
        self._check_open()
        error = await each_tried(member.unsubscribe() for member in self._members)
        if error is not None:
            raise error
        await self.close()

    async def close(self) -> None:
        """Give back what is not acknowledged, to others at once; calls that wait get an error. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="pulsar_nack.wire closing")
            self._inbox.wake_all()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait([self._discovery])
        if self._watch is not None:
            self._watch.close()
        error = await self._members.aclose()
        if error is not None:
            _LOG.warning("closing %s as %s: %s", self._selection.label, self._options.subscription, error)
        self._inbox.clear()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _make(self, name: str, partition: int, *, count: int, is_new: bool) -> Member:
        ahead = min(self._options.receiver_queue_size, max(_MOST_AHEAD // count, 1))
        changes: dict[str, Any] = {} if ahead == self._options.receiver_queue_size else {"receiver_queue_size": ahead}
        if is_new:
            changes["initial_position"] = "earliest"
        if isinstance(self._selection, Matching):
            changes["create_topic"] = False  # one that is deleted is not to come back by this
        options = replace(self._options, **changes) if changes else self._options
        made = TopicConsumer(
            self._core,
            name,
            options,
            self._inbox.put,
            partition=partition,
            told=self._on_session,
            unreadable=self._on_unreadable,
            became_missing=self._became_missing,
        )
        if self._is_paused or self._unreadable is not None:
            made.pause([])
        return made

    async def _check_lone(self) -> None:
        """Refuse partitions without a queue: each would hold a message while another one's is worked on."""
        if self._selection.only not in await self._members.wanted():
            raise no_queue()

    def _gone(self, member: Member) -> None:
        """Drop what waits here of a deleted topic, and let the consumer forget what it holds or asked for."""
        self._inbox.drop(member)
        self._on_session(SessionEvent.INACTIVE, member.topic, member.partition)

    def _on_session(self, event: SessionEvent, topic: str, partition: int) -> None:
        if self._told is not None:
            self._told(event, topic, partition)

    def _became_missing(self, member: TopicConsumer) -> None:
        """Drop what waits of a missing topic, which may be created again; if no topic is left, wake waiting calls."""
        self._gone(member)
        if isinstance(self._selection, Matching) and member.missing is not None:
            return
        self._has_missed = True
        if member.missing is None:  # it has ended
            self._inbox.wake_all()
        elif any(each.missing is None for each in self._members):
            _LOG.warning("%s was deleted, and may not be created again: the other topics go on", member.topic)
        else:
            self._inbox.wake_all()

    def _check_receivable(self) -> None:
        self._check_open()
        if self._has_missed:
            for member in self._members:
                member.check_open()
            missing = [member.missing for member in self._members]
            if missing[0] is not None and None not in missing:
                what = f"{self._selection.label} was deleted, and may not be created again"
                raise TopicNotFoundError(missing[0].code, f"{what} (the broker says: {missing[0].text})")

    async def _discover(self) -> None:
        last_error = ""
        while True:
            try:
                await (asyncio.sleep(self._interval) if self._watch is None else self._watch.changed(self._interval))
                await self._members.refresh()
                last_error = ""
            except Exception as error:  # noqa: BLE001 - also what an authentication of the user's raises
                if self._core.pool.is_closed:
                    return
                if last_error != (last_error := repr(error)):
                    _LOG.warning("cannot look for new topics of %s: %s", self._selection.label, as_text(error))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClosedError("the port")


def traits_of(options: SubscribeOptions) -> PortTraits:
    """Return what a port with such options promises."""
    return PortTraits(
        honours_ids=options.type in {"shared", "key_shared"},
        redelivery_latency=_LATENCY_S,
        max_ids_per_request=MAX_IDS,
        batch_index_ack=options.batch_index_ack,
        receiver_queue_size=options.receiver_queue_size,
        tells_sessions=True,
        keeps_acks=True,
    )


def no_queue() -> InvalidArgumentError:
    """Return why several topics or partitions cannot be consumed without a queue."""
    wanted = "at least 1 for several topics or partitions, each of which would hold a message that nobody works on"
    return InvalidArgumentError("receiver_queue_size", 0, wanted)
