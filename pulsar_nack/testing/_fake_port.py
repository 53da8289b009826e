"""A port over a topic in memory, and a publisher that keeps what it publishes: for tests on virtual time, and demos."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .._check import check_flag, check_integer, check_name
from ..consumer import Delivery, PortTraits
from ..errors import BrokerError, InvalidArgumentError
from ..ids import MessageId, _is_message_id
from ._call_faults import NO_FAULT, CallName, Fault, PortWithFaults, seconds
from ._fake_delivery import FakeEntry, FakeInbox
from ._fake_topic import SHARED, FakeSubscription, FakeTopic, Faults

SubscriptionType = Literal["shared", "exclusive", "failover"]


class FakePort(PortWithFaults):
    """A :class:`~pulsar_nack.ConsumerPort` that behaves like a broker and its client, in memory and in one loop.

    Shared: a redelivery request brings back the whole entry, except the indexes that are acknowledged at the broker, to
    any consumer of the subscription; requests for what another consumer holds are ignored; counts grow with each
    request and are forgotten when the last consumer leaves. Exclusive and failover: every request brings back all
    unacknowledged messages, with count 0. Without index acknowledgement a batch is acknowledged once one consumer has
    acknowledged all its members since it last received the entry. Closing gives everything unacknowledged to the other
    consumers.

    :param topic: the topic; None: a new one, see :attr:`topic`
    :param subscription: ports with the same name share one
    :param subscription_type: ``"shared"``, ``"exclusive"`` or ``"failover"``
    :param latency: seconds from the broker to the port, for every delivery; above 0 publish inside the running loop
    :param min_redelivery_delay: what :attr:`traits` promises; the fake itself can do any
    :param batch_index_ack: acknowledge single messages of a batch at the broker, if the topic allows it. If only the
        port does, the broker's count stays at 1, as on real brokers
    :param max_ids_per_request: a longer, or an empty, redelivery request is refused
    :param receiver_queue_size: how many messages are prefetched
    :param unacked_limit: how many messages may be unacknowledged before the broker stops sending; None: no limit
    :raises InvalidArgumentError: a setting is wrong
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
    :meth:`redeliver_acked_next`; :attr:`calls` lists all calls.
    """

    _yields_always = True

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
        super().__init__()
        if subscription_type not in get_args(SubscriptionType):
            raise InvalidArgumentError("subscription_type", subscription_type, "'shared', 'exclusive' or 'failover'")
        if topic is not None and not isinstance(topic, FakeTopic):
            raise InvalidArgumentError("topic", topic, "a FakeTopic or None")
        check_flag("batch_index_ack", batch_index_ack)
        self._latency = seconds("latency", latency)
        self._traits = PortTraits(
            honours_ids=subscription_type == SHARED,
            redelivery_latency=self._latency,
            min_redelivery_delay=seconds("min_redelivery_delay", min_redelivery_delay),
            max_ids_per_request=check_integer("max_ids_per_request", max_ids_per_request, 1),
            batch_index_ack=batch_index_ack,
            receiver_queue_size=check_integer("receiver_queue_size", receiver_queue_size, 1),
        )
        limit = None if unacked_limit is None else check_integer("unacked_limit", unacked_limit, 1)
        self.topic = topic or FakeTopic(batch_index_ack=batch_index_ack)
        self._forced = 0
        self._subscription = self.topic.subscription(
            check_name("subscription", subscription, "a str that is not empty")
        )
        self._inbox = FakeInbox(
            self._latency, self._subscription._is_open, self._on_arrival, self._traits.receiver_queue_size, limit
        )
        self._subscription._join(self._inbox, subscription_type)

    @property
    def traits(self) -> PortTraits:
        """Return the abilities of this port."""
        return self._traits

    @property
    def names(self) -> tuple[str, str, str]:
        """Return the names of the topic, the subscription and the consumer, for dead letters, traces and metrics."""
        return self.topic.name, self._subscription.name, ""

    @property
    def subscription(self) -> FakeSubscription:
        """Return the broker's side: acknowledgements, the backlog, reset and restart."""
        return self._subscription

    def redeliver_acked_next(self, times: int = 1) -> None:
        """Let the next entries that this port has redelivered arrive even if they are acknowledged on the way.

        By default an acknowledgement before the arrival stops it.
        """
        self._forced += check_integer("times", times, 1)

    async def receive(self) -> Delivery:
        """Return the next message; cancelling the call loses no message."""
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

        If the message is inside a batch, the broker is informed of this batch once all its messages are acknowledged,
        unless it acknowledges indexes.

        :raises BrokerError: the subscription is shared
        """
        if self._traits.honours_ids:
            raise BrokerError("a shared subscription has no cumulative acknowledgement")
        await self._call("acknowledge_cumulative", [message_id], self._carry_out_cumulative_ack)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription to this message, or to the first one published at or after this time in ms."""
        ids = [position] if isinstance(position, MessageId) else []
        await self._call("seek", ids, lambda _: self._carry_out_seek(position))

    def check_seek(self, position: MessageId | int) -> None:
        """Raise if the message does not name its topic, and this port has several partitions."""
        self._check_open()
        self._check_topics([position] if isinstance(position, MessageId) else [])

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of the topic, or of each partition; entry -1 if it is empty."""
        self._check_open()
        return self.topic.last_message_ids()

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery; ids that this port does not hold are ignored.

        :raises InvalidArgumentError: no ids, or more than a request may carry
        """
        if not 0 < len(ids) <= self._traits.max_ids_per_request:
            raise InvalidArgumentError("ids", len(ids), f"1 to {self._traits.max_ids_per_request} ids in one request")
        await self._call("redeliver", ids, self._carry_out_redelivery)

    async def close(self) -> None:
        """Give back all unacknowledged messages; waiting receivers get :class:`~pulsar_nack.ClosedError`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inbox.drop()
        self._subscription._leave(self._inbox)
        self._end("close", ())
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

    def _check_topics(self, ids: Sequence[MessageId]) -> None:
        for message_id in ids if self.topic.partitions else ():
            if message_id.topic is None and _is_message_id(message_id):
                raise BrokerError(f"{message_id!r} names no topic, and this consumer reads several partitions")

    def _carry_out_ack(self, ids: Sequence[MessageId]) -> None:
        done = []
        for message_id in ids:
            entry = self.topic.entry_of(message_id)
            if entry is not None and self._completes(entry, message_id.batch_index):
                done.append(entry)
        self._subscription._ack_entries(done)

    def _carry_out_cumulative_ack(self, ids: Sequence[MessageId]) -> None:
        for last in ids:
            self._subscription._ack_before(last)
            self._carry_out_ack([*(MessageId(*last[:3], index) for index in range(last.batch_index)), last])

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
        members = self._inbox.acked_members.setdefault(entry, set())
        members.add(index)
        return len(members) == len(entry.messages)

    def _carry_out_redelivery(self, ids: Sequence[MessageId]) -> None:
        wanted: dict[FakeEntry, Faults] = {}
        for message_id in ids:
            entry = self.topic.entry_of(message_id)
            if entry is None or entry in wanted or (entry.chunks and message_id.parts != entry.chunks):
                continue
            wanted[entry] = self._faults_of(entry)
        counts_stay_at_one = self._traits.batch_index_ack and not self.topic.batch_index_ack
        self._subscription._redeliver(self._inbox, wanted, 1 if counts_stay_at_one else None)

    def _faults_of(self, entry: FakeEntry) -> Faults:
        copies = (self._duplicates.popleft(),) if self._duplicates else ()
        if not self._forced:
            return copies, frozenset()
        self._forced -= 1
        return copies, self._subscription._open_indexes(entry)

    def _on_arrival(self, entry: FakeEntry) -> None:
        """Count the acknowledged members of a batch from the start: a client begins a new count with each delivery."""
        self._inbox.acked_members[entry] = set(entry.all_indexes() - self._subscription._open_indexes(entry))
        if self._latency:
            self._subscription._dispatch()  # messages that were dropped at the arrival have left room


# --- the publisher --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FakeLetter:
    """A published message; the fields are the arguments of :meth:`pulsar_nack.consumer.Publisher.publish`."""

    topic: str
    data: bytes | None
    properties: Mapping[str, str]
    key: str | bytes | None
    ordering_key: str | None
    event_time_ms: int
    deliver_at_ms: int | None = None


class FakePublisher:
    """A :class:`~pulsar_nack.consumer.Publisher` that keeps what it publishes.

    Pass it as ``DeadLetterPolicy(3, publisher=FakePublisher())``, or to a ``RetryTopicPolicy``.

    :param latency: seconds that publishing takes
    """

    def __init__(self, latency: float = 0.0) -> None:
        self.letters: list[FakeLetter] = []
        """The published messages, in order."""
        self.attempts = 0
        """How often publishing was tried."""
        self._latency = seconds("latency", latency)
        self._faults: deque[Fault] = deque()
        self._may_go = asyncio.Event()
        self._may_go.set()

    def fail_next(self, times: int = 1, *, error: BaseException | None = None, carried_out: bool = False) -> None:
        """Let the next calls raise.

        :param error: by default a :class:`~pulsar_nack.BrokerError`
        :param carried_out: the letter is published, and only the answer is lost
        """
        fault = Fault(error=error or BrokerError("publish failed, as the test asked"), is_carried_out=carried_out)
        self._faults.extend([fault] * check_integer("times", times, 1))

    def hold(self) -> None:
        """Let no call return until :meth:`release`."""
        self._may_go.clear()

    def release(self) -> None:
        """Let waiting calls continue."""
        self._may_go.set()

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message."""
        self.attempts += 1
        if self._latency:
            await asyncio.sleep(self._latency)
        await self._may_go.wait()
        fault = self._faults.popleft() if self._faults else NO_FAULT
        if fault.error is None or fault.is_carried_out:
            about = dict(properties), key, ordering_key, event_time_ms, deliver_at_ms
            self.letters.append(FakeLetter(topic, data, *about))
        if fault.error is not None:
            raise fault.error
        return MessageId(0, len(self.letters) - 1)
