"""A producer on a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._producer._options import ProducerOptions
from pulsar_nack.wire._producer._producer import Producer
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.consuming import TOPIC, context_of, nothing_remains
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import FakeTopic
from tests.wire.frames import decode_entry, messages_of


class Made:
    """A broker, a client of it, and its producers."""

    def __init__(self, broker: FakeBroker, **settings: Any) -> None:
        self.broker = broker
        self.context = context_of(broker.url, broker.dial, **settings)
        self.producers: list[Producer] = []

    @property
    def topic(self) -> FakeTopic:
        """Return the topic at the broker."""
        return self.broker.topic(TOPIC)

    async def open(self, topic: str = TOPIC, **options: Any) -> Producer:
        """Return a producer that is connected."""
        producer = await Producer.open(self.context, topic, ProducerOptions(**options))
        self.producers.append(producer)
        return producer

    def stored(self, topic: str = TOPIC) -> list[bytes]:
        """Return the payloads that the broker stores, those of batches one by one."""
        return [message.payload for rest in self.rests(topic) for message in messages_of(decode_entry(rest))]

    def metadata(self, topic: str = TOPIC) -> list[pb.MessageMetadata]:
        """Return the metadata of the broker's entries."""
        return [decode_entry(rest).metadata for rest in self.rests(topic)]

    def rests(self, topic: str = TOPIC) -> list[bytes]:
        """Return the headers and payloads of the broker's entries."""
        return [entry.rest for entry in self.broker.topic(topic).entries]


async def drained(connection: Connection) -> None:
    """Wait until the connection takes more; raise the error that ended it."""
    while connection.writable is not None:
        await asyncio.shield(connection.writable)
    connection.send(b"")


@asynccontextmanager
async def producing(**settings: Any) -> AsyncIterator[Made]:
    """Yield a broker and a client; at the end all is closed, and no task and no connection is left."""
    made = Made(FakeBroker(), **settings)
    async with nothing_remains(made.broker, made.context, made.producers):
        yield made
