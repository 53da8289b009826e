"""The consumer of one topic or partition, which stays subscribed whatever happens to connections and brokers.

States: new, subscribed (there is a session), away (there is none, and a task tries to get one), closed.

What belongs to a session ends with it, and an *epoch* ends too: what was delivered and not taken is dropped, permits
start anew, requests for redelivery are forgotten; the broker gives out everything unacknowledged again by itself. What
does not end with it: acknowledgements that the broker has not confirmed, which are sent again first of all; and whoever
waits for an answer, which is asked for again. An epoch ends without a session where the broker sends all again in a
session: after a rewind on Exclusive and Failover, and where another consumer of a Failover subscription takes over.

A seek ends the session, whether the broker closes the consumer for it (as it does) or not: what it sent before is of
the old place. No session begins while a seek is under way.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

from ..._delays import delay_ms
from ..._foreign import shown
from ...consumer import AcksDone, Delivery, SessionEvent
from ...consumer._port import bytes_of
from ...errors import (
    BrokerError,
    BrokerRefusedError,
    ClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    MissingExtraError,
    TopicNotFoundError,
)
from ...ids import MessageId, Position, _names_message
from .. import _pulsar_pb2 as pb
from .._connection._core import Core
from .._connection._refusals import as_text, is_busy, is_of_no_consumer, is_transient
from .._protocol._chunks import Chunks
from .._protocol._heads import MessageHead
from . import _commands as commands
from ._ack_groups import AckGroups, Done
from ._ack_sets import AckSets
from ._deliveries import EntryReader
from ._delivery import Item
from ._inbox import Queued
from ._pausing import Pausing
from ._permits import Permits
from ._redeliveries import MOST_IDS, Redeliveries
from ._resuming import Resuming
from ._session import Session
from ._subscribe_options import SubscribeOptions
from ._unread import Unread

T = TypeVar("T")
_EARLIEST: Final = MessageId(-1, -1)
Sink = Callable[[Item | Unread, "TopicConsumer"], None]

_CLOSE_TIMEOUT_S: Final = 5.0
_LASTING_S: Final = 1.0
"""Sessions that end sooner, one after the other, are begun at longer and longer intervals."""
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_INT64: Final = 1 << 63
_MUCH_MORE: Final = 2
_MANY: Final = 100
"""A backlog that exceeds the unacknowledged messages here by so many is reported if nothing comes."""
_TOLD_AFTER: Final = 3
"""A chunked message whose parts went back to the broker so often is told."""


class _Member(NamedTuple):
    """A message of a batch that is being acknowledged."""

    id: MessageId
    remaining: int
    generation: int
    token: Any
    done: AcksDone[Any]


class TopicConsumer:
    """Consumes one topic or partition; all calls in the client's loop.

    :param core: the client's
    :param topic: the full name, of a partition too
    :param options: of the subscription
    :param sink: gets messages and unread entries in order, synchronously; it reports received ones to :meth:`taken`
    :param partition: its number, -1 where there are none
    :param told: called with what happens to its sessions
    :param unreadable: called when a message comes that cannot be read for want of something in this process; it is not
        delivered, and this consumer is to be paused
    :param became_missing: called when the topic turns out to be deleted, and may not be created again; and when the
        consumer ended without :meth:`aclose`
    """

    def __init__(
        self,
        core: Core,
        topic: str,
        options: SubscribeOptions,
        sink: Sink,
        *,
        partition: int = -1,
        unreadable: Callable[[MissingExtraError], None] | None = None,
        told: Callable[[SessionEvent, str, int], None] | None = None,
        became_missing: Callable[[TopicConsumer], None] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = 0
        self.is_active: bool | None = None
        self.has_ended = False
        self.subscribed_times = 0
        self.failed_attempts = 0
        self.last_error: Exception | None = None
        self.missing: TopicNotFoundError | None = None
        """What the broker says, while the topic is deleted; it is looked for again and again."""
        self._core = core
        self._loop = core.loop
        self._options = options
        self._sink = sink
        self._unreadable = unreadable
        self._told = told
        self._tells_position = False
        self._became_missing = became_missing
        self._was_active = False
        self._prefetched = core.prefetched
        self._has_queue = options.receiver_queue_size > 0
        self._permits = Permits(
            max(options.receiver_queue_size, 1), None if self._prefetched.max_bytes is None else self._fitting
        )
        self._permits.is_held = not self._has_queue
        self._pausing = Pausing(core.loop, self._give_back)
        self._acks = AckGroups(core.loop, options.ack_group_ms)
        self._members_done = self._on_members_done  # one object, by which a group knows them
        self._ack_sets = AckSets()
        self._chunks = Chunks(
            options.max_pending_chunked, options.max_chunked_bytes, delay_ms(options.chunk_timeout, "chunk_timeout")
        )
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._reader = EntryReader(
            topic,
            partition,
            self._ack_sets,
            self._chunks,
            options=core.options,
            now_ms=core.clock.now_ms,
            threads=core.threads,
        )
        most = sys.maxsize if options.only_one_gets_messages else MOST_IDS  # there one rewind is enough for all
        self._redeliveries = Redeliveries(core.loop, self._ask_again, most=most)
        self._queued = self._queued_bytes = 0
        self._mean_bytes: int | None = None
        self._rewinds = 0
        self._resuming = None if options.durable else Resuming(options.start_message_id)
        self._subscribed_at = 0.0
        self._short_lived = 0
        self._sought: MessageId | None = None
        self._moved_to: str | None = None
        self._session: Session | None = None
        self._is_subscribed = asyncio.Event()
        self._subscribing: asyncio.Task[None] | None = None
        self._seeking = asyncio.Lock()
        self._is_deleted = False
        self._is_seeking = False
        self._may_subscribe = asyncio.Event()
        self._may_subscribe.set()
        self._closing: asyncio.Future[None] | None = None
        self._fault: BaseException | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closing else "subscribed" if self.is_connected else "not subscribed"
        return f"<TopicConsumer of {self.topic} as {self._options.subscription!r}, {state}>"

    @property
    def is_connected(self) -> bool:
        """Return whether it is subscribed now."""
        return self._session is not None

    # --- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, ends_at: float | None = None) -> None:
        """Subscribe. After a temporary failure it tries again, until ``ends_at``.

        :param ends_at: time of the loop; None: as long from now as a request may take
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: it cannot be reached
        :raises ClosedError: it is closed
        """
        await self._core.patiently(self._try_to_open, ends_at=ends_at)

    async def _try_to_open(self) -> None:
        self.check_open()
        if self._session is None:
            await self._subscribe()

    async def aclose(self) -> None:
        """Give back what is not acknowledged, after those acknowledgements that are under way. Idempotent."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"pulsar_nack.wire closing {self.topic}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        subscribing = self._subscribing
        if subscribing is not None:
            subscribing.cancel()
            await asyncio.wait([subscribing])
        session = self._session
        limit = min(_CLOSE_TIMEOUT_S, self._core.options.request_timeout.total_seconds())
        try:
            async with asyncio.timeout(limit):
                if session is not None:
                    await self._acks.settled()
                    await session.end()
        except TimeoutError:
            _LOG.warning("%s: the broker has not confirmed within %g s that the consumer is closed", self.topic, limit)
        finally:
            self._leave()
            self._give_up_acks()
            self._is_subscribed.set()  # whoever waits looks again, and finds it closed

    def _give_up_acks(self) -> None:
        self._acks.fail(None if self._is_deleted else ClosedError("the consumer"))

    def topic_deleted(self) -> None:
        """Learn that the topic is gone: there is nothing of it to acknowledge any more, which counts as done."""
        self._is_deleted = True

    async def unsubscribe(self) -> None:
        """Delete the subscription at the broker, and close; closed already, as by an earlier call, do nothing.

        :raises BrokerRefusedError: others are subscribed
        :raises BrokerError: no answer
        """
        if self._closing is not None and self._fault is None:
            return
        await self._acks_settled()
        await self._ask(commands.unsubscribe)
        await self.aclose()

    def check_open(self) -> None:
        """Raise if it is closed.

        :raises ClosedError: caused by the error that ended it, if there was one
        """
        if self._closing is not None:
            raise ClosedError("the consumer") from self._fault

    # --- being subscribed ------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        moved_to, self._moved_to = self._moved_to, None
        connection = await self._core.connection(self.topic, moved_to)
        start = None if self._resuming is None else self._resuming.begin()
        session = await Session.begin(connection, self, self.topic, self._options, start=start, epoch=self._rewinds)
        if start is None and self._resuming is not None and self._options.initial_position == "latest":
            try:
                await self._note_beginning(session, self._resuming)
            except BaseException:
                session.drop()
                raise
            if session.is_over:
                raise ConnectionLostError(f"{self.topic}: the broker closed the consumer at once")
        if self._closing is not None:
            session.drop()
            raise ClosedError("the consumer")
        self._reader.begin_at(self._first_shown(start))
        self._enter(session)
        if self._resuming is not None and self._resuming.is_behind:  # what was asked for meanwhile
            self._start_anew()

    async def _note_beginning(self, session: Session, resuming: Resuming) -> None:
        """Learn where the latest is, so that the next session begins there too if nothing is taken until then.

        Nothing is permitted yet, and nothing acknowledged.
        """
        try:
            told = (await session.ask(commands.last_message_id)).getLastMessageIdResponse
        except BrokerRefusedError as error:
            _LOG.debug("%s: where the latest message is, is not known: %s", self.topic, error)
            return
        is_told = told.HasField("consumer_mark_delete_position")
        last = told.consumer_mark_delete_position if is_told else told.last_message_id
        resuming.move(MessageId(*_position(last)))
        resuming.begin()

    def _first_shown(self, start: MessageId | None) -> MessageId | None:
        """Return what to show first of an entry of which the broker sends all: in the first session after a seek.

        Always where the subscription is not durable; else later sessions show what others may have moved it to.
        """
        sought, self._sought = self._sought, None
        return _after(start) if sought is None and start is not None else sought

    def _enter(self, session: Session) -> None:
        self._session = session
        self._prefetched.consumers += 1
        self._subscribed_at = self._loop.time()
        self.last_error = self.missing = None
        if not self.subscribed_times and self._options.durable:
            # If the subscription is gone when we come again, so is the topic, or we were away for too long: what is
            # there then was published after we began.
            self._options = replace(self._options, initial_position="earliest")
        self.subscribed_times += 1
        self._tells_position = self._resuming is None
        if self._resuming is None:  # else the broker does not send again what is in work and held
            self._tell(SessionEvent.BEGAN)
        self._acks.connected(session)
        if self._session is session:  # not lost while sending
            self._is_subscribed.set()
            permits = self._permits.start()
            if permits:  # of none a broker does not want to hear
                session.permit(permits)

    def _leave(self) -> None:
        """End the session's epoch."""
        if self._session is not None:
            self._prefetched.consumers -= 1
        self._session = None
        self.is_active = None
        self.has_ended = False
        self._is_subscribed.clear()
        self._acks.disconnected()
        self._redeliveries.clear()
        self._pausing.forget()
        self._ack_sets.forget()
        if self._resuming is not None:
            self._resuming.expect(self._chunks.positions())
        self._drop_queue()

    def _drop_queue(self) -> None:
        self.epoch += 1
        self._prefetched.bytes -= self._queued_bytes
        self._queued = self._queued_bytes = 0
        self._chunks.clear()
        self._set_chunk_timer()

    def _tell(self, event: SessionEvent) -> None:
        if self._told is not None:
            self._told(event, self.topic, self.partition)

    def _tell_ended(self, *, is_lost: bool) -> None:
        """Tell that a session ended; what the broker does not keep is lost with each."""
        self._tell(SessionEvent.LOST if is_lost or self._resuming is not None else SessionEvent.CLOSED)

    def on_session_over(self, session: Session, error: Exception, *, is_lost: bool) -> None:
        """Subscribe again; if the broker closed a session that was only beginning, just report that it ended."""
        if session is not self._session and not is_lost:
            self._tell_ended(is_lost=False)
        if session is self._session:
            self.last_error = error
            has_lasted = self._loop.time() - self._subscribed_at >= _LASTING_S
            self._short_lived = 0 if has_lasted or self._is_seeking else self._short_lived + 1
            self._leave()
            self._tell_ended(is_lost=is_lost)
            if self._closing is None:
                self._subscribe_again()
            else:
                self._give_up_acks()

    def _subscribe_again(self) -> None:
        if self._closing is None and self._subscribing is None:
            task = self._loop.create_task(self._resubscribe(), name=f"pulsar_nack.wire subscribing to {self.topic}")
            self._subscribing = task
            task.add_done_callback(self._on_resubscribed)

    def _on_resubscribed(self, task: asyncio.Task[None]) -> None:
        self._subscribing = None
        if self._closing is not None:
            return
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is not None:
            self._end(fault)
        elif self._session is None:
            self._subscribe_again()

    def _end(self, fault: BaseException) -> None:
        """Close without a connection: the client is closed, or our task was cancelled."""
        if not isinstance(fault, ClosedError):
            _LOG.error("%s: does not subscribe again: %r", self.topic, fault)
        self._fault = fault
        self._closing = self._loop.create_future()
        self._closing.set_result(None)
        error = ClosedError("the consumer")
        error.__cause__ = fault
        self._acks.fail(error)
        self._is_subscribed.set()  # waiting calls look again
        if self._became_missing is not None:
            self._became_missing(self)

    async def _resubscribe(self) -> None:
        async def subscribe() -> None:
            await self._may_subscribe.wait()
            await self._subscribe()

        await self._core.reconnect(
            subscribe,
            lambda: self._session is not None or self._closing is not None,
            self._note_failure,
            attempt=self._short_lived,
            at_once=not self._may_subscribe.is_set(),
        )

    def _note_failure(self, error: Exception) -> None:
        self.failed_attempts += 1
        if repr(error) != repr(self.last_error):
            _LOG.warning("%s: cannot subscribe again yet: %s", self.topic, as_text(error))
        self.last_error = error
        if isinstance(error, TopicNotFoundError):
            self._acks.fail(None)  # there is nothing to acknowledge any more
            was_missing, self.missing = self.missing, error
            if was_missing is None and self._became_missing is not None:
                self._became_missing(self)
        elif isinstance(error, BrokerRefusedError) and not is_busy(error) and not is_transient(error):
            self._acks.fail(error)

    # --- receiving -------------------------------------------------------------------------------------------------

    def on_message(self, head: MessageHead, rest: bytes) -> None:
        """Hand on the messages of an entry."""
        session = self._session
        if session is None or session.consumer_id != head[0]:
            return
        item = self._reader.plain(head, rest)
        if item is None:
            self._on_arrival(head, *self._reader.read_other(head, rest))
            return
        if self._rewinds or self._resuming is not None or self._mean_bytes is None or self._pausing.is_in_use:
            self._on_arrival(head, 1, item)
            return
        self._permits.out -= 1
        if not self._is_seeking:  # the session ends with it
            size = len(item[0])
            self._queued += 1
            self._queued_bytes += size
            self._prefetched.bytes += size
            self._sink(item, self)

    def _on_arrival(self, head: MessageHead, permits: int, found: Item | Unread | None) -> None:
        self._permits.used(permits)
        if self._is_seeking:
            return
        if self._rewinds and head.epoch is not None and head.epoch < self._rewinds:
            self._free(permits)
            return
        if self._resuming is not None and self._is_acked((head.ledger, head.entry)):
            self._free(permits)
            return
        error = found.error if isinstance(found, Delivery) else None
        if isinstance(error, MissingExtraError) and self._unreadable is not None:
            self._unreadable(error)
            self._arrived_in_vain(head, permits, found)
            return
        if self._pausing.is_in_use:
            if self._pausing.is_paused and not self._options.only_one_gets_messages:
                self._arrived_in_vain(head, permits, found)
                return
            found = self._counted(head, found)
        shown = size = 0
        if isinstance(found, Unread):
            shown, size = found.messages, found.bytes
        elif found is not None:
            shown, size = 1, len(found[0]) if isinstance(found, tuple) else bytes_of(found)
        if shown != permits:
            self._free(permits - shown)
            self._set_chunk_timer()
        self._queued += shown
        self._queued_bytes += size
        self._prefetched.bytes += size
        if found is not None:
            self._sink(found, self)
        if self._mean_bytes is None:
            self._permit_by_size()

    def _counted(self, head: MessageHead, found: Item | Unread | None) -> Item | Unread | None:
        """Subtract how often we gave the entry back from its redelivery count."""
        times = self._pausing.returned((head.ledger, head.entry))
        if found is None or not times:
            return found
        if isinstance(found, tuple):
            found = self.opened(found)
        found.redelivery_count = max(head.redelivery_count - times, 0)
        return found

    def _arrived_in_vain(self, head: MessageHead, permits: int, found: Item | Unread | None) -> None:
        """Give an entry back, and unfinished chunked messages, as nothing is shown now."""
        self._free(permits)
        if self._options.only_one_gets_messages:
            return  # no other consumer would get it
        ids = () if found is None or isinstance(found, tuple) else (found.id,)
        places = {(head.ledger, head.entry), *_positions(ids), *self._chunks.positions()}
        self._chunks.clear()
        self._set_chunk_timer()
        self._pausing.arrived(sorted(places), is_last=self._permits.out <= 0)

    def opened(self, item: Item) -> Delivery:
        """Return the delivery of an item that the sink got."""
        return self._reader.opened(item)

    def taken(self, item: Item) -> Delivery:
        """Return the delivery of an item of the present epoch that a call receives, and make room for another."""
        delivery = self._reader.opened(item)
        if not self._has_queue:
            self._permits.is_held = True  # until a call waits for the next one
        self._free(1)  # first: while it still counts as here it tells the size of messages
        size = bytes_of(delivery) if type(delivery) is Delivery else len(delivery.data)  # in line: the hot path
        self._queued -= 1
        self._queued_bytes -= size
        self._prefetched.bytes -= size
        if self._resuming is not None:
            self._resuming.taken(delivery.id)
        return delivery

    def note_read(self, unread: Unread, messages: int, size: int) -> None:
        """Note by how many messages and bytes reading an entry of the present epoch has changed the queue."""
        self._queued_bytes += size
        self._prefetched.bytes += size
        if messages:
            self._queued += messages
            self._free(-messages)
        if unread.is_acked:
            self._acks.add_all({(unread.head.ledger, unread.head.entry): 0}, lambda _: None)

    def _free(self, messages: int) -> None:
        permits = self._permits.free(messages)
        if permits and self._session is not None:
            self._session.permit(permits)

    def want(self) -> None:
        """Fetch a message for a waiting call, if there is no queue and no message is on its way."""
        if not self._has_queue and not self._pausing.is_paused:
            self._fetch()

    def _fetch(self) -> None:
        self._permits.is_held = False
        permits = self._permits.give()
        if permits and self._session is not None:
            self._session.permit(permits)

    def pause(self, queued: Sequence[Queued], *, is_idle: bool = False) -> None:
        """Give back what was delivered and not taken, and fetch nothing until :meth:`resume`.

        On Exclusive and Failover no other consumer would get it: it stays.

        :param queued: messages of the present epoch that wait and that the sink drops; none on Exclusive and Failover
        :param is_idle: nothing that was taken is unsettled, so that a new session costs nothing
        """
        self._permits.is_held = True
        self._pausing.pause()
        messages, size = sum(each.messages for each in queued), sum(each.bytes for each in queued)
        self._queued -= messages
        self._queued_bytes -= size
        self._prefetched.bytes -= size
        self._free(messages)
        if not self._options.only_one_gets_messages:
            places = dict.fromkeys((*_positions(each.id for each in queued), *self._chunks.positions()))
            self._chunks.clear()
            self._set_chunk_timer()
            self._pausing.give_back(list(places))
            if is_idle and self._permits.out > 0 and not self._seeking.locked():
                self._start_anew()

    def resume(self) -> None:
        """Fetch messages again."""
        self._pausing.resume()
        if self._has_queue:
            self._fetch()

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Give messages back that were taken and not shown to anybody."""
        if self._session is not None:
            self._pausing.give_back(list(_positions(ids)))

    def _give_back(self, places: Sequence[tuple[int, int]]) -> None:
        if self._session is not None:
            if self._resuming is not None:
                self._resuming.expect(places)
            self._redeliveries.add(places)

    def _fitting(self) -> int:
        """Return for how many messages more there is memory, by the sizes of those that are here, or were last."""
        if self._queued > 0:
            here = self._queued_bytes // self._queued
            self._mean_bytes = here if self._mean_bytes is None else (self._mean_bytes + here) // 2
        mean, session = self._mean_bytes, self._session
        if mean is None:
            mean = self._core.options.max_message_bytes if session is None else session.connection.max_message_bytes
        return self._prefetched.fitting(mean)

    def _permit_by_size(self) -> None:
        """Permit more once the first messages tell their sizes."""
        if self._queued:
            self._mean_bytes = self._queued_bytes // self._queued
            permits = self._permits.give()
            if permits and self._session is not None:
                self._session.permit(permits)

    def _is_acked(self, place: tuple[int, int]) -> bool:
        """Return whether an entry was acknowledged in an earlier session, which this one does not know until told."""
        is_acked = self._resuming is not None and self._resuming.arrived(place)
        if is_acked:
            self._acks.add_all({place: 0}, lambda _: None)
        return is_acked

    def on_active_changed(self, session: Session, is_active: bool) -> None:
        """Drop what was not taken when another consumer gets it from now on."""
        if self._session is not None and session is not self._session:
            return
        self.is_active = is_active
        was_active, self._was_active = self._was_active, is_active
        if was_active and not is_active:
            self._free_queue()
            self._tell(SessionEvent.INACTIVE)

    def _free_queue(self) -> None:
        """Drop what was delivered and not taken; the broker sends it again, to us or to others."""
        queued = self._queued
        self._drop_queue()
        self._free(queued)

    def on_end_of_topic(self) -> None:
        """Note that the topic was terminated, and that all of it was delivered."""
        self.has_ended = True

    def on_topic_migrated(self, url: str | None) -> None:
        """Look for the topic there next time; the broker ends the session itself."""
        self._moved_to = url

    # --- acknowledging -----------------------------------------------------------------------------------------------

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; returns when the broker has confirmed it. A cancelled call does not stop it.

        :raises BrokerError: the broker refused, or did not answer; or an id of a batch does not tell its size
        :raises ClosedError: it is closed, also before the broker has confirmed
        """
        if self._is_deleted or self.missing is not None:
            return
        self.check_open()
        entries = self._entries(ids)
        if not entries:
            return
        await self._until_done(
            lambda done: self._acks.add_all(entries, self._noting_success(entries, self._noting_failure(ids, done)))
        )

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Begin to acknowledge one message; ``done`` gets its token, and None or the error, in a later turn of the
        loop, and may get the tokens of others with it.

        :raises BrokerError: its batch is of unknown size; ``done`` is not called
        :raises ClosedError: it is closed; ``done`` is not called
        """
        if self._closing is not None:
            self.check_open()
        if self.missing is not None:
            self._loop.call_soon(done, [token], None)
        elif message_id[3] >= 0 or self._resuming is not None:
            self._acknowledge_member(message_id, token, done)
        elif message_id.is_chunked:
            self._acks.add_all(self._entries([message_id]), partial(done, [token]))
        else:
            if self._ack_sets.sets:
                self._ack_sets.acked(message_id)
            self._acks.add(message_id[:2], 0, token, done)

    def _acknowledge_member(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Acknowledge a message of a batch, or where more has to be noted than usual."""
        if message_id.is_chunked:
            entries = self._entries([message_id])
            self._acks.add_all(entries, self._noting_success(entries, partial(done, [token])))
            return
        generation = self._ack_sets.generation
        remaining = self._ack_sets.acked(message_id)
        if remaining and not self._options.batch_index_ack:
            self._loop.call_soon(done, [token], None)
        else:
            member = _Member(message_id, remaining, generation, token, done)
            self._acks.add(message_id[:2], remaining, member, self._members_done)

    def _on_members_done(self, members: Sequence[_Member], error: Exception | None) -> None:
        """Tell of members of batches; no mate is to complete the entry of what was not acknowledged."""
        if error is not None:
            for member in members:
                self._ack_sets.failed(member.id, member.generation)
        elif self._resuming is not None:
            self._resuming.acked(member.id[:2] for member in members if not member.remaining)
        for _, some in groupby(members, key=lambda member: id(member.done)):
            its = list(some)
            its[0].done([member.token for member in its], error)

    def _noting_failure(self, ids: Sequence[MessageId], done: Done) -> Done:
        """Return what calls ``done``, and lets no mate of a batch complete the entry of what was not acknowledged."""
        generation = self._ack_sets.generation

        def noting(error: Exception | None) -> None:
            if error is not None:
                for message_id in ids:
                    self._ack_sets.failed(message_id, generation)
            done(error)

        return noting

    def _noting_success(self, entries: Mapping[tuple[int, int], int], done: Done) -> Done:
        """Return what calls ``done``, and notes what is acknowledged wholly where the broker will not remember it."""
        resuming = self._resuming
        if resuming is None:
            return done

        def noting(error: Exception | None) -> None:
            if error is None:
                resuming.acked(place for place, remaining in entries.items() if not remaining)
            done(error)

        return noting

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message; returns when the broker has confirmed it.

        :raises BrokerError: the broker refused, as on Shared and Key_Shared, or did not answer
        :raises ClosedError: it is closed
        """
        self.check_open()
        if not self._options.only_one_gets_messages:
            raise BrokerError(f"{self.topic}: {self._options.type} subscriptions have no cumulative acknowledgement")
        if self.missing is not None:
            return
        remaining = self._ack_sets.acked_through(message_id)
        position = (message_id.ledger, message_id.entry)
        if remaining and not self._options.batch_index_ack:
            if not message_id.entry:
                return
            position, remaining = (message_id.ledger, message_id.entry - 1), 0
        await self._until_done(
            lambda done: self._acks.add_cumulative(position, remaining, self._noting_all(position, remaining, done))
        )

    def _noting_all(self, position: tuple[int, int], remaining: int, done: Done) -> Done:
        """Do so with everything up to an entry."""
        resuming = self._resuming
        if resuming is None:
            return done

        def noting(error: Exception | None) -> None:
            if error is None:
                ledger, entry = position
                resuming.acked_through((ledger, entry - 1) if remaining else position)
            done(error)

        return noting

    async def _until_done(self, begin: Callable[[Done], None]) -> None:
        answer: asyncio.Future[Exception | None] = self._loop.create_future()

        def done(error: Exception | None) -> None:
            if not answer.done():
                answer.set_result(error)

        begin(done)
        error = await answer
        if error is not None:
            raise error

    async def _acks_settled(self) -> None:
        """Wait until the broker has answered to all that was acknowledged before.

        :raises ConnectionLostError: there is no connection for so long that it has not
        """
        try:
            async with asyncio.timeout(self._core.options.request_timeout.total_seconds()):
                await self._acks.settled()
        except TimeoutError:
            raise self._not_subscribed() from None

    def _entries(self, ids: Iterable[MessageId]) -> dict[tuple[int, int], int]:
        """Return what the broker is to be told: what remains of each entry; all ids are looked at before any counts."""
        entries: dict[tuple[int, int], int] = {}
        for message_id in ids:
            if message_id.is_chunked:
                entries.update((tuple(part), 0) for part in message_id.parts)  # type: ignore[misc]
                continue
            remaining = self._ack_sets.acked(message_id)
            if not remaining or self._options.batch_index_ack:
                entries[message_id.ledger, message_id.entry] = remaining
        return entries

    # --- redelivery --------------------------------------------------------------------------------------------------

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Do so; it waits for nothing."""
        self.redeliver_nowait(ids)

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Have these sent again now, with the entries that they are in; on Exclusive and Failover everything.

        While there is no connection nothing needs to be asked: all comes again with the next one.

        :raises ClosedError: it is closed
        """
        self.check_open()
        positions = list(_positions(ids))
        needs_session = self._resuming is not None and self._resuming.ask(positions)
        if needs_session and not self._seeking.locked():
            self._start_anew()
        elif self._session is not None:
            self._redeliveries.add(positions)

    def _ask_again(self, positions: Sequence[tuple[int, int]]) -> None:
        if self._session is None:
            return
        if not self._options.only_one_gets_messages:
            self._session.redeliver(positions)
        elif self.is_active is not False:
            self._rewinds += 1
            self._session.rewind(self._rewinds)
            self._free_queue()

    def _set_chunk_timer(self) -> None:
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
            self._chunk_timer = None
        next_at = self._chunks.next_at()
        if next_at is not None:
            delay_s = max(next_at - self._core.clock.now_ms(), 0) / 1000
            self._chunk_timer = self._loop.call_later(delay_s, self._give_back_chunks)

    def _give_back_chunks(self) -> None:
        self._chunk_timer = None
        positions: list[tuple[int, int]] = []
        for given_up in self._chunks.given_up(self._core.clock.now_ms()):
            if given_up.times == _TOLD_AFTER:
                _LOG.warning(
                    "%s: of the chunked message %s %d of %d parts are here, and went back to the broker %d times; "
                    "is its producer gone, or is there too little room? It goes on at longer and longer intervals",
                    self.topic,
                    shown(given_up.uuid),
                    given_up.here,
                    given_up.of,
                    given_up.times,
                )
            positions += given_up.positions
        self._give_back(positions)
        self._set_chunk_timer()

    # --- moving, asking ----------------------------------------------------------------------------------------------

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first one published at or after an epoch ms, is next.

        :raises BrokerRefusedError: the broker said no; nothing moved
        :raises BrokerError: no answer
        :raises InvalidArgumentError: a time below 0
        :raises ClosedError: it is closed
        """
        if not isinstance(position, MessageId) and (type(position) is not int or not 0 <= position < _INT64):
            raise InvalidArgumentError("position", position, "a MessageId, or epoch ms")
        if isinstance(position, MessageId) and position.first_chunk is not None:
            position = position.first_chunk
        async with self._seeking:
            self.check_open()
            self._drop_queue()
            self._is_seeking = True
            try:
                await self._acks_settled()
                await self._ask(partial(commands.seek, position=position), is_seek=True)
                self._begin_at(position)
            finally:
                self._is_seeking = False
                self._start_anew()
        await self._subscribed_again()

    def _begin_at(self, position: MessageId | int) -> None:
        first = position if isinstance(position, MessageId) else None
        self._sought = position if _names_message(position) else None
        if self._resuming is not None:
            self._resuming.move(_EARLIEST if first is None else _before(first))

    def _start_anew(self) -> None:
        """Begin a new session, if the broker has not ended this one already."""
        session = self._session
        if session is not None and self._closing is None:
            self._leave()
            session.drop()
            self._tell_ended(is_lost=False)
            self._subscribe_again()

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry -1 where there is none.

        :raises BrokerError: the broker refused, or did not answer
        :raises ClosedError: it is closed
        """
        answer = await self._ask(commands.last_message_id)
        last = answer.getLastMessageIdResponse.last_message_id
        index, size = max(last.batch_index, -1), max(last.batch_size, 0)
        return MessageId(*_position(last), self.partition, index, batch_size=size, topic=self.topic)

    async def mark_delete_position(self) -> Position | None:
        """Return up to where everything is acknowledged, None: this broker does not say. Waits for a session.

        It comes with the id of the last message; not every broker sends it, and then it is not asked again in this
        session. A subscription that is not durable has none: each session begins behind what was taken.
        """
        if self._session is None and self.missing is None:
            await self._is_subscribed.wait()  # set too where none is to be expected
        session = self._session
        if session is None or not self._tells_position:
            return None
        try:
            answer = (await session.ask(commands.last_message_id)).getLastMessageIdResponse
        except BrokerError as error:
            self._tells_position = not isinstance(error, BrokerRefusedError) or session is not self._session
            return None
        if session is not self._session:
            return None
        self._tells_position = answer.HasField("consumer_mark_delete_position")
        return _position(answer.consumer_mark_delete_position) if self._tells_position else None

    async def held_back(self) -> str | None:
        """Return why the broker sends nothing more, None where it knows no reason, or there is no connection.

        :raises BrokerError: the broker gave no answer
        """
        session = self._session
        if session is None or self._options.only_one_gets_messages:
            return None
        told = (await session.ask(commands.statistics)).consumerStatsResponse
        if told.blockedConsumerOnUnackedMsgs:
            return f"the broker allows this consumer of {self.topic} no more than {told.unackedMessages} unacknowledged"
        if told.availablePermits and told.msgBacklog > _MUCH_MORE * told.unackedMessages + _MANY:
            return (
                f"{self.topic} has a backlog of {told.msgBacklog} of which {told.unackedMessages} are here: other "
                "consumers have them, or the broker limits the unacknowledged messages of the subscription"
            )
        return None

    async def _ask(self, make: Callable[[int, int], pb.BaseCommand], *, is_seek: bool = False) -> pb.BaseCommand:
        """Ask what does no harm when it is asked twice: in the next session where one ends meanwhile."""
        limit = self._core.options.request_timeout.total_seconds()
        ends_at = self._loop.time() + limit
        while True:
            session = await self._present(ends_at)
            if is_seek:
                self._may_subscribe.clear()
            try:
                return await session.ask(make, timeout=max(ends_at - self._loop.time(), 0.001))
            except ConnectionLostError:
                if self._loop.time() >= ends_at:
                    raise
            except BrokerRefusedError as error:
                is_closed = session is not self._session and is_of_no_consumer(error)
                if not is_closed or self._loop.time() >= ends_at:
                    raise
            finally:
                self._may_subscribe.set()

    async def _present(self, ends_at: float) -> Session:
        while True:
            self.check_open()
            if self._session is not None:
                return self._session
            if self.missing is not None:
                raise TopicNotFoundError(self.missing.code, self.missing.text)
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._is_subscribed.wait()
            except TimeoutError:
                raise self._not_subscribed() from None

    def _not_subscribed(self) -> ConnectionLostError:
        return ConnectionLostError(f"{self.topic}: not subscribed at present: {self.last_error}")

    async def _subscribed_again(self) -> None:
        """Wait for the session after a seek, for as long as a request may take; later it comes all the same."""
        try:
            async with asyncio.timeout(self._core.options.request_timeout.total_seconds()):
                await self._is_subscribed.wait()
        except TimeoutError:
            _LOG.warning("%s: moved, but not subscribed again yet: %s", self.topic, self.last_error)


def _after(message_id: MessageId) -> MessageId | None:
    """Return the least id after this one, None after the id that is before or after all."""
    ledger, entry, partition, index = message_id
    if not _names_message(message_id):
        return None
    return MessageId(ledger, entry + 1, partition) if index < 0 else MessageId(ledger, entry, partition, index + 1)


def _before(message_id: MessageId) -> MessageId:
    """Return an id that is before a message and after all that are before it."""
    ledger, entry, partition, index = message_id
    if index > 0:
        return MessageId(ledger, entry, partition, index - 1)
    return MessageId(ledger, entry - 1, partition) if _names_message(message_id) else message_id


def _positions(ids: Iterable[MessageId]) -> Iterator[tuple[int, int]]:
    for message_id in ids:
        if message_id.is_chunked:
            yield from message_id.parts
        else:
            yield message_id.ledger, message_id.entry


def _position(place: pb.MessageIdData) -> Position:
    """Return a place as the broker names it, with its unsigned numbers as signed ones."""
    numbers = place.ledgerId, place.entryId
    return Position(*(number - 2 * _INT64 if number >= _INT64 else number for number in numbers))
