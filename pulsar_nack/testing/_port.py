"""A port without a broker: :class:`FakePort` over a topic in memory, for tests on virtual time and for demos."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Literal, get_args

from ..consumer import Delivery, PortTraits
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId
from ._fake_faults import CallName, FakeCall, Fault, Faults, seconds
from ._fake_inbox import Inbox
from ._fake_subscription import SHARED, FakeSubscription, Outgoing
from ._fake_topic import FakeEntry, FakeTopic, loop_ms, text, true_or_false, whole

SubscriptionType = Literal["shared", "exclusive", "failover"]


class FakePort:
    """A :class:`~pulsar_nack.ConsumerPort` that behaves as a broker and its client do, in memory and in one loop.

    Shared: a redelivery request brings back the whole entry, less the indexes that are acknowledged at the broker, to
    any consumer of the subscription; requests for what another consumer holds are ignored; counts grow with each
    request and are forgotten when the last consumer leaves. Exclusive and failover: every request brings back all
    that is not acknowledged, with count 0. A batch without index acknowledgement is done when one consumer has
    acknowledged all its members since it last got the entry. Closing gives everything unacknowledged to the others.

    :param topic: what it reads; None: a topic of its own, see :attr:`topic`
    :param subscription: ports with the same name share one
    :param subscription_type: ``"shared"``, ``"exclusive"`` or ``"failover"``
    :param latency: seconds from the broker to here, for every delivery; above 0 publish inside the running loop
    :param min_redelivery_delay: what :attr:`traits` promises; the fake itself can do any
    :param batch_index_ack: acknowledge single messages of a batch at the broker; has effect when the topic allows it.
        Where only this side does, the broker's count stays at 1, as it does on real ones
    :param max_ids_per_request: a longer, or an empty, redelivery request is refused
    :param receiver_queue_size: messages taken ahead of ``receive``
    :param unacked_limit: the broker stops sending when so many messages are unacknowledged here; None: never
    :raises InvalidArgumentError: names the setting
    :raises BrokerError: the subscription has a consumer that excludes this one

    ::

        @virtual_time
        async def test_it_comes_back() -> None:
            port = FakePort(latency=0.005)
            port.topic.publish(b"hello")
            delivery = await port.receive()
            await port.redeliver([delivery.id])
            assert (await port.receive()).redelivery_count == 1
            await port.close()

    Faults are injected with :meth:`fail_next`, :meth:`lose_next`, :meth:`delay_next`, :meth:`duplicate_next` and
    :meth:`redeliver_acked_next`; :attr:`calls` tells what was asked.
    """

    def __init__(
        self,
        topic: FakeTopic | None = None,
        *,
        subscription: str = "fake",
        subscription_type: SubscriptionType = "shared",
        latency: float = 0.0,
        min_redelivery_delay: float = 0.0,
        batch_index_ack: bool = False,
        max_ids_per_request: int = 1_000,
        receiver_queue_size: int = 1_000,
        unacked_limit: int | None = None,
    ) -> None:
        if subscription_type not in get_args(SubscriptionType):
            raise InvalidArgumentError("subscription_type", subscription_type, "'shared', 'exclusive' or 'failover'")
        if topic is not None and not isinstance(topic, FakeTopic):
            raise InvalidArgumentError("topic", topic, "a FakeTopic or None")
        self._latency = seconds("latency", latency)
        self._traits = PortTraits(
            honours_ids=subscription_type == SHARED,
            redelivery_latency=self._latency,
            min_redelivery_delay=seconds("min_redelivery_delay", min_redelivery_delay),
            max_ids_per_request=whole("max_ids_per_request", max_ids_per_request, 1),
            batch_index_ack=true_or_false("batch_index_ack", batch_index_ack),
            receiver_queue_size=whole("receiver_queue_size", receiver_queue_size, 1),
        )
        self._unacked_limit = None if unacked_limit is None else whole("unacked_limit", unacked_limit, 1)
        self.topic = topic or FakeTopic(batch_index_ack=batch_index_ack)
        self.calls: list[FakeCall] = []
        """Every call made, in the order in which they ended."""
        self._faults = Faults()
        self._duplicates: deque[int | None] = deque()
        self._forced = 0
        self._acked_members: dict[FakeEntry, set[int]] = {}
        self._is_closed = False
        self._subscription = self.topic.subscription(text("subscription", subscription))
        self._inbox = Inbox(self._latency, self._subscription._is_open, self._on_arrival)
        self._subscription._join(self, subscription_type)

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._traits

    @property
    def subscription(self) -> FakeSubscription:
        """Return the broker's side: what is acknowledged, the backlog, reset and restart."""
        return self._subscription

    @property
    def is_closed(self) -> bool:
        """Return whether :meth:`close` was called."""
        return self._is_closed

    def requests(self, name: CallName) -> list[tuple[MessageId, ...]]:
        """Return the ids of each call of one kind that succeeded."""
        return [call.ids for call in self.calls if call.name == name and call.error is None]

    def fail_next(
        self, call: CallName, times: int = 1, *, error: BaseException | None = None, carried_out: bool = False
    ) -> None:
        """Let the next calls of one kind raise, any but ``close``; a receive loses nothing by it.

        :param error: what they raise, by default a :class:`~pulsar_nack.BrokerError`
        :param carried_out: they take effect all the same, as when only the answer is lost
        """
        fault = Fault(error=error or BrokerError(f"{call} failed, as the test asked"), is_carried_out=carried_out)
        if carried_out and call == "receive":
            raise InvalidArgumentError("carried_out", carried_out, "False for receive: it would lose a message")
        self._faults.add(call, fault, times)

    def lose_next(self, call: Literal["acknowledge", "redeliver"], times: int = 1) -> None:
        """Let the next calls of one kind be accepted, and lost: clients drop what they could not send yet."""
        if call not in {"acknowledge", "redeliver"}:
            raise InvalidArgumentError("call", call, "acknowledge or redeliver")
        self._faults.add(call, Fault(is_lost=True), times)

    def delay_next(self, call: CallName, delay: float, times: int = 1) -> None:
        """Let the next calls of one kind begin only after ``delay`` seconds."""
        self._faults.add(call, Fault(delay=seconds("delay", delay)), times)

    def duplicate_next(self, times: int = 1, *, second_count: int | None = None) -> None:
        """Let the next entries that this port has redelivered arrive twice at once, as busy brokers do.

        :param second_count: redelivery count of the second copy, as 0; None: the same as the first's
        """
        self._duplicates.extend([second_count] * whole("times", times, 1))

    def redeliver_acked_next(self, times: int = 1) -> None:
        """Let the next entries that this port has redelivered arrive even if they are acknowledged on the way.

        Without it, an acknowledgement that comes before the arrival stops it.
        """
        self._forced += whole("times", times, 1)

    async def receive(self) -> Delivery:
        """Return the next message; cancelling it loses none."""
        fault = await self._begin("receive", ())
        delivery = await self._inbox.get(self._check_open)
        self._end("receive", (delivery.id,), fault)
        self._subscription._dispatch()
        return delivery

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages; ids that the topic does not hold are ignored."""
        await self._call("acknowledge", ids, self._carry_out_ack)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, in its partition.

        A batch that it ends in the middle of is acknowledged up to there where the broker acknowledges indexes.

        :raises BrokerError: the subscription is shared
        """
        if self._traits.honours_ids:
            raise BrokerError("a shared subscription has no cumulative acknowledgement")
        await self._call("acknowledge_cumulative", [message_id], self._carry_out_cumulative_ack)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, so that this message, or the first from this publish time in ms on, is next."""
        ids = [position] if isinstance(position, MessageId) else []
        await self._call("seek", ids, lambda _: self._carry_out_seek(position))

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Have these sent again; ids that this port does not hold are ignored.

        :raises InvalidArgumentError: no ids, or more than a request may carry
        """
        if not 0 < len(ids) <= self._traits.max_ids_per_request:
            raise InvalidArgumentError("ids", len(ids), f"1 to {self._traits.max_ids_per_request} ids in one request")
        await self._call("redeliver", ids, self._carry_out_redelivery)

    async def close(self) -> None:
        """Give back what is not acknowledged; receivers that wait get :class:`~pulsar_nack.ClosedError`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._drop_received()
        self._subscription._leave(self)
        self.calls.append(FakeCall("close", (), loop_ms()))
        self._inbox.wake_all()

    async def _call(
        self, name: CallName, ids: Sequence[MessageId], carry_out: Callable[[Sequence[MessageId]], None]
    ) -> None:
        ids = tuple(ids)
        fault = await self._begin(name, ids)
        self._check_topics(ids)
        if not fault.is_lost:
            carry_out(ids)
        self._end(name, ids, fault)

    async def _begin(self, name: CallName, ids: tuple[MessageId, ...]) -> Fault:
        self._check_open()
        fault = self._faults.take(name)
        if name != "receive" or fault.delay:
            await asyncio.sleep(fault.delay)
            self._check_open()
        if fault.error is not None and not fault.is_carried_out:
            self._end(name, ids, fault)
        return fault

    def _end(self, name: CallName, ids: tuple[MessageId, ...], fault: Fault) -> None:
        self.calls.append(FakeCall(name, ids, loop_ms(), fault.error))
        if fault.error is not None:
            raise fault.error

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the port")

    def _check_topics(self, ids: Sequence[MessageId]) -> None:
        for message_id in ids if self.topic.partitions else ():
            if message_id.topic is None:
                raise BrokerError(f"{message_id!r} names no topic, and this consumer reads several partitions")

    def _carry_out_ack(self, ids: Sequence[MessageId]) -> None:
        done = []
        for message_id in ids:
            entry = self.topic.entry_of(message_id)
            if entry is not None and self._completes(entry, message_id.batch_index):
                done.append(entry)
        self._subscription._ack_entries(done)

    def _carry_out_cumulative_ack(self, ids: Sequence[MessageId]) -> None:
        for message_id in ids:
            self._subscription._ack_up_to(message_id, message_id.batch_index + 1 or sys.maxsize)

    def _carry_out_seek(self, position: MessageId | int) -> None:
        if isinstance(position, MessageId):
            self._subscription.reset(position)
        else:
            self._subscription.reset_to_time(position)

    def _completes(self, entry: FakeEntry, index: int) -> bool:
        if not entry.is_batch or index == -1:
            return True
        if self._traits.batch_index_ack:
            self._subscription._ack_index(entry, index)
        members = self._acked_members.setdefault(entry, set())
        members.add(index)
        return len(members) == len(entry.messages)

    def _carry_out_redelivery(self, ids: Sequence[MessageId]) -> None:
        wanted: dict[FakeEntry, Outgoing] = {}
        for message_id in ids:
            entry = self.topic.entry_of(message_id)
            if entry is None or entry in wanted or (entry.chunks and message_id.parts != entry.chunks):
                continue
            wanted[entry] = self._outgoing(entry)
        counts_stay_at_one = self._traits.batch_index_ack and not self.topic.batch_index_ack
        self._subscription._redeliver(self, wanted, 1 if counts_stay_at_one else None)

    def _outgoing(self, entry: FakeEntry) -> Outgoing:
        copies = (self._duplicates.popleft(),) if self._duplicates else ()
        if not self._forced:
            return Outgoing(copies)
        self._forced -= 1
        return Outgoing(copies, frozenset(self._subscription._open_indexes(entry)))

    def _has_room(self, unacked: int) -> bool:
        if self._unacked_limit is not None and unacked >= self._unacked_limit:
            return False
        return len(self._inbox) < self._traits.receiver_queue_size

    def _accept(self, entry: FakeEntry, indexes: Collection[int], count: int, forced: Collection[int]) -> None:
        self._inbox.send(entry, indexes, count, forced)

    def _on_arrival(self, entry: FakeEntry) -> None:
        """Begin to count a batch anew: a client makes a new counter for each time that it gets the entry."""
        self._acked_members[entry] = set(range(len(entry.messages))) - self._subscription._open_indexes(entry)
        if self._latency:
            self._subscription._dispatch()  # what arrived for nothing has left room

    def _drop_received(self) -> None:
        self._inbox.drop()
        self._acked_members.clear()
