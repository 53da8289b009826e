"""Takes deliveries from the port, decides what each means, and hands messages to the calls that wait for them.

A pump awaits the port while a call waits and none is here. On a port that supports it, calls take messages without the
pump. The message table knows what each delivery means: deliver it, drop it as a duplicate, or acknowledge it again.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from .._delays import Delay, delay_ms
from ..errors import ClosedError, MissingExtraError
from ..ids import MessageId
from ._id_relations import Place, place_of
from ._inbox import DurableGateQueue, Inbox
from ._key_order import KeyOrder
from ._letter_rules import LetterRules
from ._message import Message
from ._message_state import ACKING, DELIVERED, REQUESTED, MessageState
from ._port import ConsumerPort, Delivery, SupportsNowait, SupportsPause
from ._settler import Settler

_log = logging.getLogger("pulsar_nack.consumer")
_USUAL_QUEUE: Final = 1_000
"""How many messages a client may have prefetched if it does not say."""


class Receiver:
    """The receiving half of one consumer.

    :param is_durable: the state will be durable before anything is received
    """

    def __init__(self, port: ConsumerPort, settler: Settler, *, is_durable: bool) -> None:
        self.received = 0
        self.gate_queue: DurableGateQueue | None = None
        self.key_order: KeyOrder | None = None
        """The messages that wait for earlier ones of their keys, which no call receives."""
        self.unreadable: MissingExtraError | None = None
        self.on_unreadable: Callable[[], None]
        """Called after :attr:`unreadable` is set; itself set by what closes the consumer then."""
        self.is_draining = False
        self.state = state = settler.state
        self._port = port
        self._settler = settler
        self._queue = queue = settler.queue
        self._table = queue.table
        self._open_requests = queue.table.requests.open
        self._payloads = queue.payloads
        self._trace = queue.trace
        self._clock = queue.clock
        self._recent = state.recent
        self._letters = letters = state.letters
        self._retry_rules = None if letters is None or letters.retry is None else letters.rules
        self._prefetched = port.traits.receiver_queue_size
        self._can_pause = isinstance(port, SupportsPause)
        self.inbox: Inbox[Message] = Inbox(self.is_current)
        queue.redeliver = self._redeliver
        self.wait: Callable[[], Awaitable[Message]] = self._wait_noted if is_durable else self.inbox.get
        """Waits for a message; cancelling it loses none."""
        self._is_plain = not (is_durable or queue.trace.is_on or queue.may_keep_all)
        self._nowait = port.receive_nowait if not is_durable and isinstance(port, SupportsNowait) else None
        self.receive_nowait = self._nowait
        """Takes a message from the port without waiting; None if that is not possible, or nothing is to be taken."""
        self._is_pumping = False
        self._may_fetch = asyncio.Event()
        self._may_fetch.set()

    # --- receiving -------------------------------------------------------------------------------------------------

    def take_ready(self, receive_nowait: Callable[[], Delivery | None]) -> Message | None:
        """Take a message without waiting, if no call waits and a message is here."""
        inbox, state = self.inbox, self.state
        if inbox.waiters or (self._letters is not None and self._letters.is_full and not inbox.ready):
            return None
        if inbox.ready and (message := inbox.get_nowait()) is not None:
            state.now_ms = self._clock.now_ms()
            return message
        while not self._is_pumping and (delivery := receive_nowait()) is not None:
            state.now_ms = self._clock.now_ms()
            if (message := self._take(delivery)) is not None:
                return message
            if self._letters is not None and self._letters.is_full:
                return None
        return None

    async def wait_within(self, timeout: Delay) -> Message:
        """Wait for a message for at most this long.

        :raises TimeoutError: none came in time
        """
        seconds = delay_ms(timeout, "timeout") / 1000
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"no message within {seconds:g} s") from None

    async def _wait_noted(self) -> Message:
        """Wait for a message of a durable consumer, until it may be delivered and that is noted."""
        message = await self._next_admitted()
        is_noted_later = self.key_order is not None  # when it is its turn
        return message if is_noted_later else await self._until_noted(message)

    async def _next_admitted(self) -> Message:
        while True:
            message = await self.inbox.get()
            if self.gate_queue is None or self.gate_queue.admits(message):
                return message
            self._trace.hold(message.id, message.redelivery_count, "paused")
            self.state.check_idle()

    async def _until_noted(self, message: Message) -> Message:
        """Note durably that a message is delivered before it is, so that an attempt counts that ends the process.

        If that fails the message is delivered anyway. If the call is cancelled, the next one gets the message.
        """
        durable = self.state.durable
        assert durable is not None
        while True:
            try:
                await durable.delivered(message.id, message.redelivery_count)
            except asyncio.CancelledError:
                self._put_back(message)
                raise
            self.state.check_open()
            if self.is_current(message):
                return message
            message = await self._next_admitted()

    async def let_others_run(self, message: Message) -> None:
        """Let other tasks run before a message is delivered; if the call is cancelled, the next one gets it."""
        self.state.yielded_at_ms = self.state.now_ms
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.take_back(message)
            raise

    def take_back(self, message: Message) -> None:
        """Take a message back that a call of ``receive`` returned, for the next one."""
        self.state.delivered -= 1
        if self._settler.leases is not None:
            self._settler.leases.cancel(message._lease)
        self._put_back(message)

    def _put_back(self, message: Message) -> None:
        message._keeps = None
        self.inbox.put(message, first=True)

    def check_readable(self) -> None:
        """Raise the error of a message that this process cannot read, if there was one."""
        if self.unreadable is not None:
            raise copy.copy(self.unreadable)

    # --- the pump --------------------------------------------------------------------------------------------------

    async def pump(self) -> None:
        """Take deliveries from the port while calls wait, until cancelled."""
        while True:
            await self.inbox.wanted.wait()
            await self._may_fetch.wait()
            if self.gate_queue is not None:
                await self.gate_queue.has_room.wait()
            if self._letters is not None:
                await self._letters.has_room.wait()
            self._is_pumping = True
            try:
                delivery = await self._port.receive()
            except ClosedError as error:
                self.inbox.close(error)
                return
            except MissingExtraError as error:
                self.inbox.fail(error)
                self.unreadable = error
                self.on_unreadable()
            except Exception as error:  # noqa: BLE001 - handed to the calls that wait
                self.inbox.fail(error)
            else:
                self._is_pumping = False
                self._hand_on(delivery)
            finally:
                self._is_pumping = False

    def _hand_on(self, delivery: Delivery | None) -> None:
        """Give messages to the calls that wait, one after the other while more come without waiting."""
        receive_nowait, waiters, letters = self.receive_nowait, self.inbox.waiters, self._letters
        while delivery is not None:
            message = self._take(delivery)
            if message is not None:
                self.inbox.put(message)  # as _put: the hot path
                if self.inbox.ready:
                    self.state.admit_one()
            if receive_nowait is None or not waiters or (letters is not None and letters.is_full):
                return
            try:
                delivery = receive_nowait()
            except ClosedError:  # the pump's next call of the port raises it too
                return

    def hold_port(self, *, is_held: bool) -> None:
        """Take nothing from the port, or go on; what is redelivered from memory is delivered all the time."""
        if is_held:
            self._may_fetch.clear()
        else:
            self._may_fetch.set()
        self.use_nowait()

    def use_nowait(self) -> None:
        """Take messages from the port without waiting, unless nothing is to be taken."""
        is_stopped = self.inbox.is_paused or self.is_draining or not self._may_fetch.is_set()
        self.receive_nowait = None if is_stopped else self._nowait

    def may_be_at_port(self, record: MessageState) -> bool:
        """Return whether the port may have a requested message, because it may have more than was received since.

        To request it again would be to give it to another consumer too.
        """
        if self._is_pumping:  # the port has nothing
            return False
        if record.received_before is None:
            record.received_before = self.received
        is_unknown = not self._prefetched and not self._can_pause
        most = _USUAL_QUEUE if is_unknown else self._prefetched
        return self.received - record.received_before <= most

    # --- what a delivery means -------------------------------------------------------------------------------------

    def _take(self, delivery: Delivery) -> Message | None:
        """Return the message to be delivered, None for a delivery that is not."""
        self.received += 1
        if self._retry_rules is not None:
            delivery, wait_ms = self._from_retry_topic(delivery, self._retry_rules)
            if wait_ms:
                return None
        message_id = delivery.id
        is_new = self._is_plain and not self._open_requests  # else it may be the answer to one
        record = self._table.add_new(message_id, delivery.redelivery_count) if is_new else None
        if record is None:
            return self._take_known(delivery, message_id)
        if self._payloads.bytes:
            self._payloads.pop(message_id)
        if self._letters is not None and self._letters.takes(delivery, record):
            return None
        table = self._table
        if table.delivered + table.held >= self.state.near:
            self.state.warn_if_near()
        return Message(self._settler, delivery, record.redelivery_count)

    def _from_retry_topic(self, delivery: Delivery, rules: LetterRules) -> tuple[Delivery, int]:
        """Return a delivery with the attempts before the retry topic, and for how long it is held now, in ms."""
        if not rules.is_retry_topic(delivery.topic):
            return delivery, 0
        now_ms, message_id, table = self._clock.now_ms(), delivery.id, self._table
        delivery, wait_ms = rules.arrive(delivery, self.state.wall_clock.now_ms())
        is_known = table.get(message_id) is not None or table.acked.hides(message_id, now_ms)
        if not wait_ms or is_known or (self.state.durable is not None and self.state.durable.was_acked(message_id)):
            return delivery, 0
        count = max(delivery.redelivery_count, table.requests.take_counts(message_id)[0] + 1)
        record = table.restore(message_id, count - 1, count)
        self._queue.hold(record, wait_ms, delivery, is_local=self._queue.has_room(delivery))
        self._trace.hold(message_id, count, "not due")
        self.state.warn_if_near()
        return delivery, wait_ms

    def _take_known(self, delivery: Delivery, message_id: MessageId) -> Message | None:
        """Judge a delivery of a message that is or may be known, or whose arrival is to be noted."""
        now_ms = self.state.now_ms = self._clock.now_ms()
        known = self._table.get(message_id)
        if self.state.durable is not None and known is None:
            if self.state.durable.was_acked(message_id):
                self._settler.acks.ack_duplicate(message_id)
                return None
            if self.state.durable.holds_back(delivery, now_ms):
                if self.key_order is not None:
                    self.key_order.on_held_back(delivery)
                self._trace.hold(message_id, delivery.redelivery_count, "not due")
                self.state.warn_if_near()
                return None
        if known is not None and known.is_doubtful:
            self._queue.came_again(known, delivery)
            if self.key_order is not None:
                self.key_order.note_origin(message_id)
        due_at_ms = known.due_at_ms if known is not None and known.state is REQUESTED else None
        record = self._table.deliver(message_id, delivery.redelivery_count, now_ms)
        if record is None:
            if self._table.get(message_id) is None:
                self._settler.acks.ack_duplicate(message_id)
            return None
        if self._payloads.bytes:
            self._payloads.pop(message_id)
        return self._message(delivery, record, due_at_ms)

    def _redeliver(self, delivery: Delivery, record: MessageState) -> None:
        """Deliver a message from memory again."""
        message = self._message(delivery, record, record.due_at_ms, is_local=True)
        if message is not None:
            self._put(message)

    def _message(
        self, delivery: Delivery, record: MessageState, due_at_ms: int | None, *, is_local: bool = False
    ) -> Message | None:
        """Return the message to be delivered, None if it is a dead letter."""
        if self._trace.is_on:
            self._trace.arrive(record, due_at_ms, is_local=is_local)
        if self._letters is not None and self._letters.takes(delivery, record):
            return None
        queue = self._queue
        if queue.may_keep_all or (record.id[3] >= 0 and queue.may_keep(record.id)):
            self._recent.add(delivery)
        table = self._table
        if table.delivered + table.held >= self.state.near:
            self.state.warn_if_near()
        return Message(self._settler, delivery, record.redelivery_count)

    def _put(self, message: Message) -> None:
        self.inbox.put(message)
        if self.inbox.ready:
            self.state.admit_one()

    def is_current(self, message: Message) -> bool:
        """Return whether a message is still to be delivered."""
        message_id = message._delivery.id
        record = self._table.get(message_id)
        is_current = False
        if record is None:  # settled by its id, or one of too many delivered messages
            acked = self._table.acked
            is_current = not acked.is_acked(message_id) and not acked.hides(message_id, self._clock.now_ms())
        elif record.redelivery_count == message._redelivery_count:
            is_current = record.state is DELIVERED
            if record.state is ACKING and record.before_ack is DELIVERED:
                record.is_due = True  # by its id; if that fails, no call has the message
        if not is_current and self.gate_queue is not None:
            self.gate_queue.gone(message)
        return is_current

    # --- dropping --------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """Return how many messages wait for a call of ``receive``."""
        return len(self.inbox) + (0 if self.gate_queue is None else len(self.gate_queue))

    def set_aside(self) -> list[Message]:
        """Return the messages that wait for a call of ``receive``, or for earlier ones of their keys."""
        behind = () if self.gate_queue is None else self.gate_queue.waiting
        return [*self.inbox.ready, *behind, *(self.key_order or ())]

    def in_work(self) -> int:
        """Return how many messages the application has, or is settling."""
        kept = 0 if self.key_order is None else len(self.key_order)
        return max(self._table.delivered - self.waiting() - kept, 0)

    def clear(self) -> None:
        """Drop the messages that wait: the subscription is moved."""
        self.inbox.clear()
        for others in (self.gate_queue, self.key_order):
            if others is not None:
                others.clear()

    def drop_waiting(self, place: Place) -> list[MessageState]:
        """Drop the waiting messages of a partition, and return their states: the broker sends them again."""
        return self.drop(lambda message: place_of(message.id) == place)

    def drop(self, is_gone: Callable[[Message], bool]) -> list[MessageState]:
        """Drop some of the messages that wait, and return the states of those that were still to be delivered."""
        gone = self.inbox.drop(is_gone)
        for others in (self.gate_queue, self.key_order):
            gone += [] if others is None else others.drop(is_gone)
        return [
            record
            for message in gone
            if (record := self._table.get(message.id)) is not None
            and record.state is DELIVERED
            and record.redelivery_count == message.redelivery_count
        ]
