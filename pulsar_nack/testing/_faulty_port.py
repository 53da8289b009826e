"""A wrapper around any port that injects the faults of a network and a client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..consumer import (
    ConsumerPort,
    Delivery,
    PortTraits,
    SessionEvent,
    SupportsSessions,
    SupportsSubscription,
)
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId, Position
from ._call_faults import CallName, Fault, PortWithFaults


class FaultyPort(PortWithFaults):
    """A :class:`~pulsar_nack.ConsumerPort` around another one, with faults on demand.

    :meth:`LocalBroker.subscribe` returns one for a local topic; wrap any other port, or your own transport, in the same
    way. Without a fault it behaves like the wrapped port, but it gives no message back (``pause``) and cannot
    unsubscribe. It has the faults of :class:`FakePort`, and it can lose its connection: then the wrapped port is
    closed, and its unacknowledged messages go to other consumers, or to this one after it has reconnected.

    :param port: the wrapped port, which is owned and closed
    :param connect: returns a new port like it; None: the connection cannot be lost

    ::

        port = FaultyPort(await topic.subscribe("billing"), lambda: topic.subscribe("billing"))
        port.lose_next("redeliver")
    """

    def __init__(self, port: ConsumerPort, connect: Callable[[], Awaitable[ConsumerPort]] | None = None) -> None:
        super().__init__()
        self._port = port
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._connected = asyncio.Event()
        self._connected.set()
        self._asked: set[tuple[int, int]] = set()
        self._copies: deque[Delivery] = deque()
        self._listener: Callable[[SessionEvent, str, int], None] | None = None

    @property
    def traits(self) -> PortTraits:
        """Return the abilities of the wrapped port."""
        return self._port.traits

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic, subscription and consumer name, each empty if the port does not name it."""
        names: tuple[str, str, str] = getattr(self._port, "names", ("", "", ""))
        return names

    @property
    def name(self) -> str:
        """Return the consumer's name, empty if the port has none."""
        return str(getattr(self._port, "name", ""))

    @property
    def is_connected(self) -> bool:
        """Return whether the port is connected now."""
        port = self._port
        is_open = getattr(port, "is_connected", True) and not getattr(port, "is_closed", False)
        return self._connected.is_set() and is_open

    # -- faults --------------------------------------------------------------------------------------------------------

    async def disconnect(self) -> None:
        """Lose the connection: unacknowledged messages go to others at once, calls fail, and receivers wait.

        :raises InvalidArgumentError: the port was made without ``connect``
        """
        self._check_open()
        if self._connect is None:
            raise InvalidArgumentError("connect", None, "what connects the port again, to lose its connection")
        self._connected.clear()
        self._on_session(SessionEvent.LOST, *self._place)
        await self._port.close()

    async def reconnect(self) -> None:
        """Connect again, as a new consumer of the subscription.

        :raises BrokerError: another consumer excludes this one by now
        """
        async with self._connecting:
            self._check_open()
            if self._connect is None or self._connected.is_set():
                return
            port = await self._connect()
            if self._is_closed:
                await port.close()
                raise ClosedError("the port")
            self._port = port
            if self._listener is not None:
                self.watch_sessions(self._listener)
            self._on_session(SessionEvent.BEGAN, *self._place)
            self._connected.set()

    # -- the port ------------------------------------------------------------------------------------------------------

    async def receive(self) -> Delivery:
        """Return the next message; cancelling the call loses no message."""
        fault = await self._begin("receive", ())
        while True:
            if self._copies:
                delivery = self._copies.popleft()
                break
            port = self._port
            try:
                delivery = await port.receive()
            except ClosedError:
                if self._is_closed or (self._connected.is_set() and port is self._port):
                    raise
                await self._connected.wait()
                self._check_open()
            else:
                self._copy(delivery)
                break
        self._end("receive", (delivery.id,), fault)
        return delivery

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, all or none."""
        await self._call("acknowledge", ids, lambda: self._port.acknowledge(ids))

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to a message, itself included.

        :raises NotImplementedError: the port cannot
        """
        port = self._supporting("acknowledge cumulatively")
        await self._call("acknowledge_cumulative", [message_id], lambda: port.acknowledge_cumulative(message_id))

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery of the entries of these messages."""

        async def ask() -> None:
            await self._port.redeliver(ids)
            self._asked.update((each.ledger, each.entry) for each in ids)

        await self._call("redeliver", ids, ask)

    def check_seek(self, position: MessageId | int) -> None:
        """Raise what the port knows before it asks; without a connection that is little.

        :raises NotImplementedError: the port cannot
        """
        self._check_open()
        port = self._supporting("seek")
        if self._connected.is_set():
            port.check_seek(position)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription to a message, or to a publish time in epoch ms.

        :raises NotImplementedError: the port cannot
        """
        port = self._supporting("seek")
        ids = [position] if isinstance(position, MessageId) else []
        await self._call("seek", ids, lambda: port.seek(position))

    async def last_message_ids(self) -> Sequence[MessageId]:
        """Return the id of the last message of each topic or partition.

        :raises NotImplementedError: the port cannot
        :raises BrokerError: there is no connection
        """
        port = self._supporting("ask for the last message")
        if not self._connected.is_set():
            raise BrokerError("last_message_ids: there is no connection")
        return await port.last_message_ids()

    def watch_sessions(self, listener: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``listener`` with the port's events, and when the connection is lost or restored."""
        self._listener = listener
        if isinstance(self._port, SupportsSessions):
            self._port.watch_sessions(self._on_session)

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position, None if it is not known."""
        if not self._connected.is_set() or not isinstance(self._port, SupportsSessions):
            return None
        return await self._port.mark_delete_position(topic, partition)

    async def held_back(self) -> str | None:
        """Return why the broker holds messages back, None if no reason is known."""
        if not self._connected.is_set() or not isinstance(self._port, SupportsSessions):
            return None
        return await self._port.held_back()

    async def flush(self) -> None:
        """Wait until all acknowledgements survive the end of this process.

        :raises BrokerError: there is no connection
        """
        if not self._connected.is_set():
            raise BrokerError("flush: there is no connection")
        if isinstance(self._port, SupportsSessions):
            await self._port.flush()

    async def close(self) -> None:
        """Give back all unacknowledged messages. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._connected.set()
            self._end("close", ())
            await self._port.close()

    def _supporting(self, verb: str) -> SupportsSubscription:
        if not isinstance(self._port, SupportsSubscription):
            raise NotImplementedError(f"{type(self._port).__name__} cannot {verb}")
        return self._port

    def _on_session(self, event: SessionEvent, topic: str, partition: int) -> None:
        if event is not SessionEvent.BEGAN:
            self._copies.clear()
        if self._listener is not None:
            self._listener(event, topic, partition)

    @property
    def _place(self) -> tuple[str, int]:
        """Return topic and partition, as far as the port knows them."""
        return getattr(self._port, "names", ("", "", ""))[0], -1

    # -- details ------------------------------------------------------------------------------------------------------

    def _copy(self, delivery: Delivery) -> None:
        """Keep a copy of a redelivered message that is to arrive twice."""
        position = delivery.id[:2]
        if position not in self._asked or not self._duplicates:
            return
        count = self._duplicates.popleft()
        if delivery.id.batch_index in {-1, delivery.id.batch_size - 1}:
            self._asked.discard(position)
        self._copies.append(delivery if count is None else replace(delivery, redelivery_count=count))

    async def _call(self, name: CallName, ids: Sequence[MessageId], carry_out: Callable[[], Awaitable[None]]) -> None:
        ids = tuple(ids)
        fault = await self._begin(name, ids)
        if not self._connected.is_set():
            fault = Fault(error=BrokerError(f"{name}: there is no connection"))
        elif not fault.is_lost:
            await carry_out()
        self._end(name, ids, fault)
