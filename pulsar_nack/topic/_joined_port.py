"""Joins the ports of a local topic and its retry topic into one. The ledgers of retry topics have higher ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ..consumer import Delivery, PortTraits, SessionEvent
from ..errors import ClosedError
from ..ids import MessageId, Position, _is_message_id
from ._port import LocalPort

FIRST_RETRY_LEDGER: Final = 1 << 32
"""The first ledger of a retry topic: a consumer of both distinguishes their messages by it."""


class JoinedPort:
    """A :class:`~pulsar_nack.ConsumerPort` over the ports of a topic and of its retry topic, which it owns."""

    def __init__(self, port: LocalPort, retry_port: LocalPort) -> None:
        self._ports = (port, retry_port)
        self._arrived = asyncio.Event()
        for each in self._ports:
            each.watch_arrivals(self._arrived.set)
        self._turn = 0

    @property
    def names(self) -> tuple[str, str, str]:
        """Return topic, subscription and consumer name."""
        return self._ports[0].names

    @property
    def name(self) -> str:
        """Return the consumer's name."""
        return self._ports[0].name

    @property
    def traits(self) -> PortTraits:
        """Return what this port promises."""
        return self._ports[0].traits

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, or one of the topics."""
        return any(port.is_closed for port in self._ports)

    def __repr__(self) -> str:
        return f"<JoinedPort of {self._ports[0]!r} and {self._ports[1]!r}>"

    async def receive(self) -> Delivery:
        """Return the next message, from both topics in turn; cancelling it loses none.

        :raises ClosedError: it, or one of the topics, is closed
        :raises BrokerError: a subscription has ended with an error
        """
        while True:
            self._arrived.clear()
            for _ in self._ports:
                self._turn = 1 - self._turn
                delivery = self._ports[self._turn].take_nowait()
                if delivery is not None:
                    return delivery
            await self._arrived.wait()

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge messages, in each topic all or none."""
        for port, its_ids in self._grouped(ids):
            await port.acknowledge(its_ids)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Raise, as on any Shared subscription."""
        await self._of(message_id).acknowledge_cumulative(message_id)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request redelivery of the entries of these messages now."""
        for port, its_ids in self._grouped(ids):
            await port.redeliver(its_ids)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription of the message's topic; a time, and the ids of both ends, move both."""
        for port in [self._of(position)] if _is_message_id(position) else self._ports:
            await port.seek(position)

    async def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of each topic."""
        return [message_id for port in self._ports for message_id in await port.last_message_ids()]

    def watch_sessions(self, on_event: Callable[[SessionEvent, str, int], None]) -> None:
        """Call ``on_event`` with the events of both topics' sessions."""
        for port in self._ports:
            port.watch_sessions(on_event)

    async def mark_delete_position(self, topic: str, partition: int) -> Position | None:
        """Return the mark-delete position, None for another topic."""
        for port in self._ports:
            if port.names[0] == topic:
                return await port.mark_delete_position(topic, partition)
        return None

    async def flush(self) -> None:
        """Return when all acknowledgements are written, so that they survive the end of this process."""
        for port in self._ports:
            await port.flush()

    def pause(self, *, is_idle: bool = False) -> None:
        """Give unreceived messages to other consumers; stop until :meth:`resume`."""
        for port in self._ports:
            port.pause(is_idle=is_idle)

    def drain(self) -> int:
        """Give unreceived messages of both topics to other consumers: the port is closed next."""
        return sum(port.drain() for port in self._ports)

    def resume(self) -> None:
        """Get messages again."""
        for port in self._ports:
            port.resume()

    def give_back(self, ids: Sequence[MessageId]) -> None:
        """Give received, undelivered messages to other consumers."""
        for port, its_ids in self._grouped(ids):
            port.give_back(its_ids)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription of both topics with its acknowledgements, and close.

        :raises BrokerError: it has other consumers
        """
        if self.is_closed:
            raise ClosedError("the port")
        for port in self._ports:
            await port.unsubscribe(force=force)

    async def close(self) -> None:
        """Give unacknowledged messages to other consumers at once; receivers that wait get an error. Idempotent."""
        for port in self._ports:
            await port.close()

    def _of(self, message_id: MessageId) -> LocalPort:
        return self._ports[message_id.ledger >= FIRST_RETRY_LEDGER]

    def _grouped(self, ids: Sequence[MessageId]) -> list[tuple[LocalPort, list[MessageId]]]:
        grouped = [(port, [each for each in ids if self._of(each) is port]) for port in self._ports]
        return [(port, its_ids) for port, its_ids in grouped if its_ids]
