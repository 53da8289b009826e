"""Workers for random operations, the messages that they have in flight, and what is known of each message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pulsar_nack import AlreadySettledError, BrokerError, ClosedError, Consumer, DeadLetterPolicy, Message, MessageId
from pulsar_nack.wire import Client, ClientOptions
from tests.broker._native import through
from tests.broker._proxy import TcpProxy
from tests.consumer.official import EXACT

if TYPE_CHECKING:
    from tests.broker._random_operations import RandomOperations

NAME: Final = "sub"
CHUNK_TIMEOUT: Final = 0.5
"""Brokers may send a message's chunks to two workers of a Shared subscription; it may need several attempts."""
_RANGE: Final = re.compile(r"\((\d+):(-?\d+)\.\.(\d+):(-?\d+)\]")


@dataclass
class Sent:
    """One message and what is known of it."""

    number: int
    id: MessageId | None = None
    """None until it is known to be stored."""
    is_reported: bool = False
    is_deleted: bool = False
    """Whether its topic was deleted."""
    gone_at: float | None = None
    """Since when it is known to be acknowledged or removed."""
    was_acked: bool = False
    """Whether a worker's acknowledgement was confirmed."""
    is_letter: bool = False
    is_doubtful: bool = False
    """Whether its acknowledgement overlapped a replay, or may have been lost with a connection."""
    is_shared: bool = False
    """Whether one worker acknowledged it while another one, which cannot learn that, had it in flight."""
    delivered: list[float] = field(default_factory=list)

    @property
    def is_member(self) -> bool:
        """Return whether it is a member of a batch."""
        return self.id is not None and self.id.batch_index >= 0

    @property
    def is_chunked(self) -> bool:
        """Return whether it is chunked."""
        return self.id is not None and self.id.is_chunked

    @property
    def extra_delay(self) -> float:
        """Return how many seconds beyond its delay it may take until all its chunks have arrived."""
        return 20 * CHUNK_TIMEOUT if self.is_chunked else 0.0

    @property
    def partition(self) -> int:
        """Return its partition; -1 if the topic has none, or if it is not known."""
        return -1 if self.id is None else self.id.partition

    def delivered_since(self, at: float) -> int:
        """Return how often it was delivered since a time."""
        return sum(each > at for each in self.delivered)


class Worker:
    """A consumer with its own proxy, and the messages that it has in flight."""

    def __init__(self, life: RandomOperations, number: int, proxy: TcpProxy) -> None:
        self.number = number
        self.proxy = proxy
        self.hand: dict[int, Message] = {}
        self.consumer: Consumer
        self._life = life
        self._stack = AsyncExitStack()
        self._receiving: asyncio.Task[None] | None = None
        self._seeks = 0

    async def open(self) -> None:
        """Subscribe."""
        life = self._life
        options = ClientOptions(backoff_maximum=0.5)
        client = await self._stack.enter_async_context(Client(life.url, options, dial=through(self.proxy)))
        self.consumer = await self._stack.enter_async_context(
            client.subscribe(
                life.topic,
                NAME,
                consumer_type=life.kind,
                initial_position="earliest",
                consumer_name=f"w{self.number}",
                batch_index_ack=True,
                chunk_timeout=CHUNK_TIMEOUT,
                config=EXACT,
                dead_letter=DeadLetterPolicy(3, topic="dead", publisher=life),
            )
        )
        self._receiving = asyncio.create_task(self._receive(self.consumer))

    async def aclose(self) -> None:
        """Close it; messages in flight go back to the broker."""
        await self._stack.aclose()
        self.hand.clear()
        if self._receiving is not None:
            await asyncio.gather(self._receiving)

    async def _receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            sent = self._life.stored_as(int(message.data.split()[0]), message.id)
            self.hand[sent.number] = message
            self._life.on_delivered(sent, self)

    async def nack(self, number: int, delay: float) -> None:
        """Nack one message."""
        message = self.hand.pop(number)
        try:
            await message.nack(delay)
        except (AlreadySettledError, ClosedError) as error:
            self._life.note(f"not nacked: {error}", number)

    async def ack(self, number: int) -> None:
        """Acknowledge one message; if that fails it stays in flight."""
        life, message, seeks = self._life, self.hand.pop(number), self._seeks
        sent = life.messages[number]
        replay = life.replays[sent.partition]
        try:
            await message.ack()
        except (AlreadySettledError, ClosedError) as error:
            life.note(f"not acked: {error}", number)
            return
        except BrokerError as error:
            life.note(f"ack failed: {error}", number)
            if seeks == self._seeks:
                self.hand.setdefault(number, message)
            return
        life.on_acked(sent, replay)

    async def ack_through(self, number: int) -> None:
        """Acknowledge all messages up to one, in its partition."""
        life, message = self._life, self.hand[number]
        replay = life.replays[message.id.partition]
        try:
            await self.consumer.acknowledge_cumulative(message)
        except (BrokerError, ClosedError) as error:
            life.note(f"cumulative ack failed: {error}", number)
            return
        for each in life.of_partition(message.id.partition):
            if each.id is not None and each.id <= message.id:
                self.hand.pop(each.number, None)
                life.on_acked(each, replay)

    async def seek(self, position: MessageId | int) -> None:
        """Move the subscription, and forget the messages in flight that it moves past."""
        before = dict(self.hand)
        if isinstance(position, int):
            self.hand.clear()
        else:
            for number, message in before.items():
                if message.id.partition == position.partition:
                    del self.hand[number]
        self._seeks += 1
        try:
            await self.consumer.seek(position)
        except (BrokerError, ClosedError) as error:
            self._life.note(f"seek failed: {error}")
            self.hand = before | self.hand


def places_of(sent: Sent) -> list[tuple[int, int]]:
    """Return the ledger and entry ids of a message."""
    assert sent.id is not None
    return [(ledger, entry) for ledger, entry in sent.id.parts] if sent.id.is_chunked else [sent.id[:2]]


def acked_by(cursor: dict[str, Any]) -> Callable[[tuple[int, int]], bool]:
    """Return a function that decides by the broker's statistics whether an entry is acknowledged."""
    ledger, _, entry = cursor["markDeletePosition"].partition(":")
    through_place = (int(ledger), int(entry))
    found = _RANGE.findall(cursor["individuallyDeletedMessages"])
    ranges = [((int(a), int(b)), (int(c), int(d))) for a, b, c, d in found]

    def is_acked(place: tuple[int, int]) -> bool:
        return place <= through_place or any(lower < place <= upper for lower, upper in ranges)

    return is_acked
