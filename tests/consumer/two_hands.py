"""The application above a consumer: its messages in flight, and the dead letters that wait to be stored."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pulsar_nack import AlreadySettledError, BrokerError, Consumer, Message, MessageId
from pulsar_nack.wire._connection._pool import Pool

if TYPE_CHECKING:
    from .two_workers import World

DELAY: Final = 0.3
"""Of each nack, in seconds."""


class Worker:
    """A consumer, and the messages that the application has in flight."""

    def __init__(self, world: World, number: int, consumer: Consumer, pool: Pool) -> None:
        self.number = number
        self.consumer = consumer
        self.pool = pool
        self.hand: dict[str, Message] = {}
        self.acking: dict[str, Message] = {}
        self.calls: set[asyncio.Task[None]] = set()
        """Open calls of the application."""
        self.has_sought = 0
        self._world = world
        self.receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        async for message in self.consumer:
            name = self._world.name_of(message.data)
            if name is not None:
                self.hand[name] = message
                self._world.on_delivered(name, self)

    def begin(self, call: Any) -> None:
        """Start something that may take the application a while."""
        task = asyncio.create_task(call)
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    async def nack(self, name: str) -> None:
        """Nack a message."""
        message = self.hand.pop(name)
        self._world.nacked_at[name] = asyncio.get_running_loop().time()
        self._world.nacked_by[name] = self.number
        with suppress(AlreadySettledError):
            await message.nack(DELAY)

    async def ack(self, name: str) -> None:
        """Acknowledge a message; if that fails it stays in flight."""
        message, turn = self.hand.pop(name), self.has_sought
        self.acking[name] = message
        try:
            await message.ack()
        except AlreadySettledError:
            pass  # another worker's now
        except BrokerError:
            if turn == self.has_sought:
                self.hand.setdefault(name, message)
        finally:
            self.acking.pop(name, None)

    async def seek(self, position: MessageId) -> None:
        """Forget the messages in flight, and request their redelivery."""
        before = dict(self.hand)
        self.hand.clear()
        self.has_sought += 1
        try:
            await self.consumer.seek(position)
        except BrokerError:
            self.hand = before | self.hand


class Letters:
    """Publishes dead letters: each waits until an event stores or refuses it."""

    def __init__(self, world: World) -> None:
        self.waiting: dict[asyncio.Future[MessageId], str] = {}
        self.is_prompt = False
        self._world = world

    async def publish(self, topic: str, data: bytes | None, **_: Any) -> MessageId:
        """Publish one."""
        del topic
        name = self._world.name_of(data or b"")
        if name is not None:
            self._world.on_letter(name)
        stored: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        if self.is_prompt:
            return MessageId(1, 1)
        self.waiting[stored] = name or ""
        try:
            return await stored
        finally:
            self.waiting.pop(stored, None)

    def answer(self, error: Exception | None) -> None:
        """Answer the oldest."""
        stored = next(iter(self.waiting))
        del self.waiting[stored]
        if error is None:
            stored.set_result(MessageId(1, 1))
        else:
            stored.set_exception(error)
