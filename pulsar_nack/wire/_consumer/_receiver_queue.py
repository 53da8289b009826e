"""The receiver queue of one topic or partition: entries arrive, wait to be received, and free permits when taken.

The messages wait in the port's inbox, in order with those of other topics. This queue counts them: their number and
size decide how many permits the broker gets.

An *epoch* ends when the broker will send everything unacknowledged again: with the session, and within a session after
a rewind on Exclusive and Failover, and when another consumer of a Failover subscription takes over. Messages of an
earlier epoch are dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from ...consumer import Delivery
from ...consumer.transport import bytes_of
from ...errors import MissingExtraError
from ...ids import MessageId
from .._connection._context import ClientContext
from .._protocol._frames import MessageCommand
from ._acknowledger import Acknowledger
from ._consumer_session import ConsumerSession
from ._deliveries import DeliveryFactory, QueuedMessage
from ._entry_reader import READ_AT_ONCE, EntryReader, UnreadEntry
from ._flow_and_redelivery import MAX_ENTRIES, Permits, RedeliveryRequests, ReturnedEntries
from ._positions import NonDurablePosition, Place, places_of
from ._subscribe_options import SubscribeOptions

Sink = Callable[[QueuedMessage | UnreadEntry, "ReceiverQueue"], None]
"""Takes what arrived, in order; synchronous."""


class ReceiverQueue:
    """Takes the entries of one topic or partition from its sessions, and grants permits.

    :param context: that of the client
    :param sink: gets messages and unread entries, in order; it reports received ones to :meth:`taken`
    :param on_unreadable: called with the error when a message cannot be read because this process lacks something; the
        message is not delivered, and this queue is to be paused
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        partition: int,
        options: SubscribeOptions,
        sink: Sink,
        *,
        acks: Acknowledger,
        on_unreadable: Callable[[MissingExtraError], None] | None,
    ) -> None:
        self.epoch = 0
        """Changes when the broker will send again what has arrived and was not taken."""
        self.rewinds = 0
        """How often this consumer asked for all unacknowledged messages again."""
        self.is_seeking = False
        """While it is True arrivals are dropped: the session ends with the seek."""
        self.messages = self.bytes = 0
        """Number and size of the messages that wait."""
        self._sink = sink
        self._on_unreadable = on_unreadable
        self._acks = acks
        self._position = acks.position
        self._session: ConsumerSession | None = None
        self._memory = context.memory_limit
        self._max_message_bytes = context.options.max_message_bytes
        self._mean_bytes: int | None = None
        self._has_queue = options.receiver_queue_size > 0
        self._only_one_gets_messages = options.only_one_gets_messages
        self.permits = Permits(
            max(options.receiver_queue_size, 1), None if self._memory.max_bytes is None else self._fitting
        )
        self.permits.is_held = not self._has_queue
        self._returns = ReturnedEntries(context, topic, options, self._request_returned)
        factory = DeliveryFactory(topic, partition, acks.sets, options=context.options, threads=context.threads)
        self.delivery_of = factory.delivery_of
        """Returns the delivery of a queued message."""
        self._reader = EntryReader(factory, self._returns.chunks, context.clock.now_ms)
        most = sys.maxsize if options.only_one_gets_messages else MAX_ENTRIES  # there one rewind is enough for all
        self._requests = RedeliveryRequests(context.loop, self._send_redelivery, max_entries=most)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def connected(self, session: ConsumerSession, first: MessageId | None) -> None:
        """Take entries from a new session.

        :param first: the first message to deliver, where the broker begins with an earlier one
        """
        self._reader.begin_at(first)
        self._session = session
        self._memory.consumers += 1

    def start(self) -> None:
        """Give the broker the first permits of a session."""
        self._give(self.permits.start())

    def disconnected(self) -> None:
        """End the epoch with the session."""
        if self._session is not None:
            self._memory.consumers -= 1
        self._session = None
        self._requests.clear()
        self._returns.forget()
        self.drop()

    def drop(self) -> None:
        """End the epoch: drop what arrived and was not taken."""
        self.epoch += 1
        self._memory.bytes -= self.bytes
        self.messages = self.bytes = 0
        chunks = self._returns.take_chunks()
        if self._position is not None:
            self._position.expect(chunks)
            self._position.last_arrived = None

    def drop_and_permit(self) -> None:
        """Drop what arrived and was not taken, within a session: the broker sends it again, to us or to others."""
        messages = self.messages
        self.drop()
        self._free(messages)

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def on_message(self, command: MessageCommand, headers_and_payload: bytes) -> None:
        """Take an entry from the connection, and queue its messages."""
        session = self._session
        if session is None or session.id != command[0]:
            return
        item = self._reader.plain(command, headers_and_payload)
        if item is None:
            self._on_arrival(command, *self._reader.read_other(command, headers_and_payload))
            return
        if self.rewinds or self._position is not None or self._mean_bytes is None or self._returns.is_in_use:
            self._on_arrival(command, 1, item)
            return
        self.permits.out -= 1
        if not self.is_seeking:
            size = len(item[0])
            self.messages += 1
            self.bytes += size
            self._memory.bytes += size
            self._sink(item, self)

    def _on_arrival(self, command: MessageCommand, permits: int, found: QueuedMessage | UnreadEntry | None) -> None:
        self.permits.used(permits)
        if self.is_seeking:
            return
        is_before_rewind = self.rewinds and command.epoch is not None and command.epoch < self.rewinds
        if is_before_rewind or (self._position is not None and self._is_acked(self._position, command)):
            self._free(permits)
            return
        error = found.error if isinstance(found, Delivery) else None
        if isinstance(error, MissingExtraError) and self._on_unreadable is not None:
            self._on_unreadable(error)
            self._return_arrived(command, permits, found)
            return
        if self._returns.is_in_use:
            if self._returns.is_paused and not self._only_one_gets_messages:
                self._return_arrived(command, permits, found)
                return
            found = self._without_returns(command, found)
        messages, size = (0, 0) if found is None else _size_of(found)
        if messages != permits:
            self._free(permits - messages)
            self._returns.update_chunks()
        elif self._position is not None and isinstance(found, Delivery | UnreadEntry) and found.id.is_chunked:
            self._position.expect(found.id.parts)  # until it is taken: later messages may be taken before
        self.messages += messages
        self.bytes += size
        self._memory.bytes += size
        if found is not None:
            self._sink(found, self)
        if self._mean_bytes is None:
            self._permit_by_size()

    def _is_acked(self, position: NonDurablePosition, command: MessageCommand) -> bool:
        """Return whether an entry was acknowledged in an earlier session; if so, acknowledge it in this one too."""
        is_acked = position.arrived((command.ledger, command.entry))
        if is_acked:
            self._acks.acknowledge_entry((command.ledger, command.entry))
        return is_acked

    def _without_returns(
        self, command: MessageCommand, found: QueuedMessage | UnreadEntry | None
    ) -> QueuedMessage | UnreadEntry | None:
        """Subtract from the redelivery count how often the entry was returned before the application got it."""
        times = self._returns.times_returned((command.ledger, command.entry))
        if found is None or not times:
            return found
        if isinstance(found, tuple):
            found = self.delivery_of(found)
        found.redelivery_count = max(command.redelivery_count - times, 0)
        return found

    def _return_arrived(self, command: MessageCommand, permits: int, found: QueuedMessage | UnreadEntry | None) -> None:
        """Return an entry to the broker, with all incomplete chunked messages, as nothing is delivered now."""
        self._free(permits)
        if self._only_one_gets_messages or (self._returns.is_last and command.redelivery_count):
            return  # no other consumer would get it, or the close returns it
        ids = () if found is None or isinstance(found, tuple) else (found.id,)
        places = {(command.ledger, command.entry), *places_of(ids), *self._returns.take_chunks()}
        self._returns.arrived(sorted(places), is_last=self.permits.out <= 0)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def taken(self, item: QueuedMessage) -> Delivery:
        """Return the delivery of a message of the present epoch that a call receives, and make room for another."""
        delivery = self.delivery_of(item)
        if not self._has_queue:
            self.permits.is_held = True  # until a call waits for the next one
        permits = self.permits.free(1)  # first: while the message counts as queued its size counts in the mean
        if permits and self._session is not None:
            self._session.permit(permits)
        size = bytes_of(delivery) if type(delivery) is Delivery else len(delivery.data)  # in line: the hot path
        self.messages -= 1
        self.bytes -= size
        self._memory.bytes -= size
        if self._position is not None:
            self._position.taken(delivery.id)
        return delivery

    def read_some(self, unread: UnreadEntry, most: int = READ_AT_ONCE) -> list[Delivery]:
        """Read at most this many of the next messages of an entry of the present epoch; count what that changes."""
        messages, size = unread.messages, unread.bytes
        deliveries: list[Delivery] = []
        try:
            deliveries = unread.take(most)
        finally:
            here = sum([bytes_of(each) if type(each) is Delivery else len(each.data) for each in deliveries])
            more = len(deliveries) + unread.messages - messages
            self._count(more, here + unread.bytes - size)
            if more:
                self._free(-more)
            if unread.is_acked:
                self._acks.acknowledge_entry((unread.command.ledger, unread.command.entry))
        return deliveries

    def fetch_one(self) -> None:
        """Let the broker send a message for a waiting call, if there is no queue and none is on its way."""
        if not self._has_queue and not self._returns.is_paused:
            self._fetch()

    def _fetch(self) -> None:
        self.permits.is_held = False
        self._give(self.permits.give())

    def first_chunk(self) -> Place | None:
        """Return the first entry that is a chunk of an incomplete message, or was one and comes again; None: none."""
        requested = () if self._position is None else self._position.requested
        return min((*self._returns.chunks.positions(), *requested), default=None)

    def _count(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self._memory.bytes += size

    def _free(self, messages: int) -> None:
        self._give(self.permits.free(messages))

    def _give(self, permits: int) -> None:
        if permits and self._session is not None:  # brokers refuse 0 permits
            self._session.permit(permits)

    def _fitting(self) -> int:
        """Return how many more messages fit into memory, by the sizes of those that wait, or waited last."""
        if self.messages > 0:
            mean = self.bytes // self.messages
            self._mean_bytes = mean if self._mean_bytes is None else (self._mean_bytes + mean) // 2
        if self._mean_bytes is not None:
            return self._memory.fitting(self._mean_bytes)
        session = self._session
        return self._memory.fitting(
            self._max_message_bytes if session is None else session.connection.max_message_bytes
        )

    def _permit_by_size(self) -> None:
        """Give more permits once the first messages show their sizes."""
        if self.messages:
            self._mean_bytes = self.bytes // self.messages
            self._give(self.permits.give())

    # --- pausing, giving back, redelivery -----------------------------------------------------------------------------

    def pause(self, queued: Sequence[Delivery | UnreadEntry], *, is_last: bool = False) -> int:
        """Return what arrived and was not taken, and fetch nothing until :meth:`resume`; return how many messages.

        On Exclusive and Failover no other consumer would get it: it stays.

        :param queued: messages of the present epoch that the inbox drops; none on Exclusive and Failover
        :param is_last: the consumer is closed next, so that entries which were redelivered before are left to that: the
            broker counts each return, and consumers that are drained in turn would use up their attempts
        """
        self.permits.is_held = True
        self._returns.pause(is_last=is_last)
        sizes = [_size_of(each) for each in queued]
        messages = sum(count for count, _ in sizes)
        self._count(-messages, -sum(size for _, size in sizes))
        self._free(messages)
        returned = [each for each in queued if not (is_last and each.redelivery_count)]
        if not self._only_one_gets_messages:
            places = dict.fromkeys((*places_of(each.id for each in returned), *self._returns.take_chunks()))
            self._returns.give_back(list(places))
        return sum(_size_of(each)[0] for each in returned)

    def resume(self) -> None:
        """Fetch messages again."""
        self._returns.resume()
        if self._has_queue:
            self._fetch()

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Return messages that were taken but not delivered to the application."""
        if self._session is not None:
            self._returns.give_back(places_of(ids))

    def request_redelivery(self, ids: Iterable[MessageId]) -> None:
        """Request entries again; on Exclusive and Failover everything. The next session brings them without that."""
        if self._session is not None:
            self._requests.add(places_of(ids))

    def _request_returned(self, places: Sequence[Place]) -> None:
        if self._session is not None:
            if self._position is not None:
                self._position.expect(places)
            self._requests.add(places)

    def _send_redelivery(self, places: Sequence[Place]) -> None:
        session = self._session
        if session is None:
            return
        if not self._only_one_gets_messages:
            session.redeliver(places)
        elif session.is_active is not False:
            self.rewinds += 1
            session.rewind(self.rewinds)
            self.drop_and_permit()


def _size_of(waiting: QueuedMessage | UnreadEntry) -> tuple[int, int]:
    """Return how many messages wait in one place of the inbox, and their size."""
    if isinstance(waiting, UnreadEntry):
        return waiting.messages, waiting.bytes
    return 1, len(waiting[0]) if isinstance(waiting, tuple) else bytes_of(waiting)
