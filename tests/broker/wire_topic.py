"""A topic's consumer over the broker's own protocol, on a real broker, by itself: without a consumer above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar

from pulsar_nack.clock import LoopClock
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._lookup import Lookup
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.consumer.official import official_client
from tests.wire.consuming import Arrived
from tests.wire.frames import encode_message

SUBSCRIPTION = "sub"


class Wire:
    """A client; ``open`` makes consumers of one topic."""

    def __init__(self, context: ClientContext, topic: str) -> None:
        self.context = context
        self.topic = topic
        self.consumers: list[TopicConsumer] = []

    async def open(self, arrived: Arrived, **options: Any) -> TopicConsumer:
        """Return a consumer that is subscribed, from the earliest message on."""
        told = SubscribeOptions(SUBSCRIPTION, **{"initial_position": "earliest", **options})
        consumer = TopicConsumer(self.context, self.topic, told, arrived.put)
        self.consumers.append(consumer)
        await consumer.open()
        return consumer


@asynccontextmanager
async def wire(url: str, topic: str) -> AsyncIterator[Wire]:
    """Yield a client, closed afterwards with its consumers."""
    options = ClientOptions()
    pool = Pool(url, options)
    made = Wire(ClientContext(pool, Lookup(pool, options), options, asyncio.get_running_loop(), LoopClock()), topic)
    try:
        yield made
    finally:
        for consumer in made.consumers:
            await consumer.aclose()
        await pool.aclose()


async def publish(url: str, topic: str, payloads: list[bytes], **settings: Any) -> None:
    """Send messages by the official client, each as an entry unless ``settings`` tell to batch."""
    async with official_client(url) as client:
        producer = await client.create_producer(topic, **{"batching_enabled": False, **settings})
        if settings.get("batching_enabled"):
            await asyncio.gather(*(producer.send(payload) for payload in payloads))
        else:
            for payload in payloads:
                await producer.send(payload)
        await producer.close()


async def publish_batch(url: str, topic: str, payloads: list[bytes], **settings: Any) -> None:
    """Send messages as one batch."""
    whole = {
        "batching_enabled": True,
        "batching_max_messages": len(payloads),
        "batching_max_publish_delay_ms": 5_000,
        "batching_type": pulsar.BatchingType.Default,
    }
    await publish(url, topic, payloads, **whole, **settings)


async def publish_chunks(
    context: ClientContext, topic: str, payload: bytes, size: int, uuid: str = "chunked-0"
) -> None:
    """Send one message in chunks of ``size`` bytes, by commands of the protocol: small chunks need no large message."""
    connection = await context.lookup.broker(topic)
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    producer, receipts = connection.producers.next_id(), Receipts(len(parts))
    connection.producers.add(producer, receipts)
    request_id = connection.request_id()
    command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, producer, request_id
    name = (await connection.request(command, request_id)).producer_success.producer_name
    for number, part in enumerate(parts):
        send = pb.BaseCommand(type=pb.BaseCommand.SEND)
        send.send.producer_id, send.send.sequence_id, send.send.is_chunk = producer, 0, True
        metadata = pb.MessageMetadata(producer_name=name, sequence_id=0, publish_time=1, uuid=uuid)
        metadata.num_chunks_from_msg, metadata.chunk_id = len(parts), number
        metadata.total_chunk_msg_size = len(payload)
        connection.send(encode_message(send, metadata, part))
    await receipts.all_here
    request_id = connection.request_id()
    closing = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    closing.close_producer.producer_id, closing.close_producer.request_id = producer, request_id
    await connection.request(closing, request_id)
    connection.producers.remove(producer)


class Receipts:
    """Counts the receipts of a producer."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.all_here: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_receipt(self, command: pb.CommandSendReceipt) -> None:
        """Count one."""
        self.left -= 1
        if not self.left:
            self.all_here.set_result(None)

    def on_send_error(self, command: pb.CommandSendError) -> None:
        """Fail."""
        self.all_here.set_exception(AssertionError(str(command)))

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """Fail."""
        self.all_here.set_exception(AssertionError("closed"))

    def on_connection_lost(self, error: Exception) -> None:
        """Nothing."""
