"""Any port, with faults between it and its consumer, as a network and a client have them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Literal

from ..consumer import (
    ConsumerPort,
    Delivery,
    PortTraits,
    SessionEvent,
    SupportsConnectionState,
    SupportsCumulativeAck,
    SupportsSeek,
    SupportsSessions,
)
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId, Position
from ._fake_faults import CallName, FakeCall, Fault, Faults, seconds
from ._fake_topic import loop_ms, whole


class FaultyPort:
    """A :class:`~pulsar_nack.ConsumerPort` around another one that fails when a test says so.

    :meth:`LocalBroker.subscribe` gives one of a local topic; make one around any other port, or around a transport of
    yours. Without a fault it does what that port does. The faults are those of :class:`FakePort`, and it can lose its
    connection: then the port is closed, and what this consumer has not acknowledged goes to others, or to itself when
    it is connected again.

    :param port: the port it owns and closes
    :param connect: returns a port like it, anew; None: it cannot lose its connection

    ::

        port = FaultyPort(await topic.subscribe("billing"), lambda: topic.subscribe("billing"))
        port.lose_next("redeliver")
    """

    def __init__(self, port: ConsumerPort, connect: Callable[[], Awaitable[ConsumerPort]] | None = None) -> None:
        self._port = port
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._connected = asyncio.Event()
        self._connected.set()
        self._is_closed = False
        self._faults = Faults()
        self._duplicates: deque[int | None] = deque()
        self._asked: set[tuple[int, int]] = set()
        self._copies: deque[Delivery] = deque()
        self._told: Callable[[SessionEvent, str, int], None] | None = None
        self.calls: list[FakeCall] = []
        """Every call made, in the order in which they ended."""

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._port.traits

    @property
    def name(self) -> str:
        """Return the consumer's name, an empty one where the port has none."""
        return str(getattr(self._port, "name", ""))

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        port = self._port
        if isinstance(port, SupportsConnectionState) and not port.is_connected:
            return False
        return self._connected.is_set() and not getattr(port, "is_closed", False)

    def requests(self, name: CallName) -> list[tuple[MessageId, ...]]:
        """Return the ids of each call of one kind that succeeded."""
        return [call.ids for call in self.calls if call.name == name and call.error is None]

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail_next(
        self, call: CallName, times: int = 1, *, error: BaseException | None = None, carried_out: bool = False
    ) -> None:
        """Let the next calls of one kind raise, any but ``close``; a receive loses nothing by it.

        :param error: what they raise, by default a :class:`~pulsar_nack.BrokerError`
        :param carried_out: they take effect all the same, as when only the answer is lost
        """
        if carried_out and call == "receive":
            raise InvalidArgumentError("carried_out", carried_out, "False for receive: it would lose a message")
        failure = error or BrokerError(f"{call} failed, as the test asked")
        self._faults.add(call, Fault(error=failure, is_carried_out=carried_out), times)

    def lose_next(self, call: Literal["acknowledge", "redeliver"], times: int = 1) -> None:
        """Let the next calls of one kind be accepted, and lost: clients drop what they could not send yet."""
        if call not in {"acknowledge", "redeliver"}:
            raise InvalidArgumentError("call", call, "acknowledge or redeliver")
        self._faults.add(call, Fault(is_lost=True), times)

    def delay_next(self, call: CallName, delay: float, times: int = 1) -> None:
        """Let the next calls of one kind begin only after ``delay`` seconds."""
        self._faults.add(call, Fault(delay=seconds("delay", delay)), times)

    def duplicate_next(self, times: int = 1, *, second_count: int | None = None) -> None:
        """Let the next messages that this port has redelivered arrive twice, as busy brokers send them.

        :param second_count: redelivery count of the second copy, as 0; None: the same as the first's
        """
        self._duplicates.extend([second_count] * whole("times", times, 1))

    async def disconnect(self) -> None:
        """Lose the connection: what is not acknowledged goes to others at once, calls fail, and receivers wait.

        :raises InvalidArgumentError: it was made without ``connect``
        """
        self._check_open()
        if self._connect is None:
            raise InvalidArgumentError("connect", None, "what connects the port again, to lose its connection")
        self._connected.clear()
        self._on_session(SessionEvent.LOST, *self._place)
        await self._port.close()

    async def reconnect(self) -> None:
        """Connect again, as a new consumer of the subscription.

        :raises BrokerError: another consumer excludes it by now
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
            if self._told is not None:
                self.watch_sessions(self._told)
            self._on_session(SessionEvent.BEGAN, *self._place)
            self._connected.set()

    # -- the port ------------------------------------------------------------------------------------------------------

    async def receive(self) -> Delivery:
        """Return the next message; cancelling it loses none."""
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
        port = self._port
        if not isinstance(port, SupportsCumulativeAck):
            raise NotImplementedError(f"{type(port).__name__} cannot acknowledge cumulatively")
        await self._call("acknowledge_cumulative", [message_id], lambda: port.acknowledge_cumulative(message_id))

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Have the entries of these sent again now."""

        async def ask() -> None:
            await self._port.redeliver(ids)
            self._asked.update((each.ledger, each.entry) for each in ids)

        await self._call("redeliver", ids, ask)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription to a message, or to a publish time in epoch ms.

        :raises NotImplementedError: the port cannot
        """
        port = self._port
        if not isinstance(port, SupportsSeek):
            raise NotImplementedError(f"{type(port).__name__} cannot seek")
        ids = [position] if isinstance(position, MessageId) else []
        await self._call("seek", ids, lambda: port.seek(position))

    def watch_sessions(self, told: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``told`` with the port's events, and when the connection is lost and there again."""
        self._told = told
        if isinstance(self._port, SupportsSessions):
            self._port.watch_sessions(self._on_session)

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return up to where everything is acknowledged, None where that is not known."""
        if not self._connected.is_set() or not isinstance(self._port, SupportsSessions):
            return None
        return await self._port.mark_delete_position(topic, partition)

    async def flush(self) -> None:
        """Return when what was acknowledged outlives this process.

        :raises BrokerError: there is no connection
        """
        if not self._connected.is_set():
            raise BrokerError("flush: there is no connection")
        if isinstance(self._port, SupportsSessions):
            await self._port.flush()

    async def close(self) -> None:
        """Give back what is not acknowledged; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._connected.set()
            self.calls.append(FakeCall("close", (), loop_ms()))
            await self._port.close()

    def _on_session(self, event: SessionEvent, topic: str, partition: int) -> None:
        if event is not SessionEvent.BEGAN:
            self._copies.clear()
        if self._told is not None:
            self._told(event, topic, partition)

    @property
    def _place(self) -> tuple[str, int]:
        """Return topic and partition, as far as the port names them."""
        return getattr(self._port, "names", ("", "", ""))[0], -1

    # -- how it is done ------------------------------------------------------------------------------------------------

    def _copy(self, delivery: Delivery) -> None:
        """Keep a copy of what was asked for again, if it is to come twice."""
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

    async def _begin(self, name: CallName, ids: tuple[MessageId, ...]) -> Fault:
        self._check_open()
        fault = self._faults.take(name)
        if fault.delay:
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
