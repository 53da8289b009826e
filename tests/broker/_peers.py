"""One interface for three clients: the official Python client, the Java client, and the native one."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypedDict, Unpack

import pulsar

import pulsar_nack
from pulsar_nack.wire import Client
from tests.broker._java_client import JavaClient
from tests.patience import patience

Place = tuple[int, int, int, int]
"""Ledger, entry, partition and batch index of a message."""

PATIENCE_S: Final = patience(5)
_names = count()


class Out(NamedTuple):
    """A message to be sent."""

    payload: bytes
    properties: Mapping[str, str] = MappingProxyType({})
    key: str | None = None
    ordering_key: str | None = None
    event_time_ms: int = 0
    deliver_after: float = 0.0
    key_bytes: bytes | None = None


class Got(NamedTuple):
    """A message that was received and acknowledged."""

    place: Place
    payload: bytes
    properties: dict[str, str]
    key: str | None
    ordering_key: str | None
    event_time_ms: int
    is_key_encoded: bool = False


class How(TypedDict, total=False):
    """How messages are sent; see :class:`Way`."""

    batching: bool
    by_key: bool
    compression: str
    chunking: bool


class Way(NamedTuple):
    """How messages are sent, with a default for each setting."""

    batching: bool = False
    by_key: bool = False
    compression: Any = "none"
    chunking: bool = False


class Peer(Protocol):
    """A client. Batches are sent as one batch or a few; without batching each message is an entry."""

    name: str

    async def produce(self, topic: str, messages: Sequence[Out], **how: Unpack[How]) -> list[Place]:
        """Send messages, in order, and return their ids."""
        ...

    async def subscribe(self, topic: str, subscription: str, kind: str = "shared") -> Reader:
        """Subscribe from the earliest message on."""
        ...


class Reader(Protocol):
    """A consumer that acknowledges what it receives."""

    async def read(self, most: int, patience: float = PATIENCE_S) -> list[Got]:
        """Receive ``count`` messages, fewer if nothing comes for ``patience`` seconds."""
        ...

    async def close(self) -> None:
        """Close it."""
        ...


# --- the native client -----------------------------------------------------------------------------------------------


class Wire:
    """The native client."""

    name = "wire"

    def __init__(self, client: Client) -> None:
        self._client = client

    async def produce(self, topic: str, messages: Sequence[Out], **how: Unpack[How]) -> list[Place]:
        """Send messages."""
        way = Way(**how)
        async with self._client.producer(
            topic,
            batching=way.batching,
            batch_by_key=way.by_key,
            batch_delay=0.05,
            compression=way.compression,
            chunking=way.chunking,
        ) as producer:
            sending = [
                producer.send(
                    each.payload,
                    properties=dict(each.properties),
                    key=each.key if each.key_bytes is None else each.key_bytes,
                    ordering_key=each.ordering_key,
                    event_time_ms=each.event_time_ms,
                    deliver_after=each.deliver_after or None,
                )
                for each in messages
            ]
            return [_place(id_) for id_ in await asyncio.gather(*sending)]

    async def subscribe(self, topic: str, subscription: str, kind: Any = "shared") -> WireReader:
        """Consume."""
        return WireReader(
            await self._client.subscribe(topic, subscription, consumer_type=kind, initial_position="earliest")
        )


class WireReader:
    """A consumer of the native client."""

    def __init__(self, consumer: pulsar_nack.Consumer) -> None:
        self.consumer = consumer

    async def read(self, most: int, patience: float = PATIENCE_S) -> list[Got]:
        """Receive."""
        found: list[Got] = []
        with suppress(TimeoutError):
            while len(found) < most:
                message = await self.consumer.receive(timeout=patience)
                found.append(
                    Got(
                        _place(message.id),
                        message.data,
                        dict(message.properties),
                        message.key,
                        message.ordering_key,
                        message.event_time_ms,
                        message._delivery.is_key_encoded,
                    )
                )
                await message.ack()
        return found

    async def close(self) -> None:
        """Close it."""
        await self.consumer.aclose()


def _place(id_: pulsar_nack.MessageId) -> Place:
    return (id_.ledger, id_.entry, id_.partition, id_.batch_index)


# --- the official Python client --------------------------------------------------------------------------------------


class Official:
    """The official Python client."""

    name = "official"

    def __init__(self, client: Any) -> None:
        self._client = client

    async def produce(self, topic: str, messages: Sequence[Out], **how: Unpack[How]) -> list[Place]:
        """Send messages."""
        way = Way(**how)
        producer = await self._client.create_producer(
            topic,
            batching_enabled=way.batching,
            batching_type=pulsar.BatchingType.KeyBased if way.by_key else pulsar.BatchingType.Default,
            batching_max_publish_delay_ms=50,
            compression_type=getattr(pulsar.CompressionType, _OF_OFFICIAL[way.compression]),
            chunking_enabled=way.chunking,
            block_if_queue_full=True,
        )
        sending = [
            producer.send(
                each.payload,
                properties=dict(each.properties),
                partition_key=each.key,
                ordering_key=each.ordering_key,
                event_timestamp=each.event_time_ms or None,
                deliver_after=timedelta(seconds=each.deliver_after) if each.deliver_after else None,
            )
            for each in messages
        ]
        ids = await asyncio.gather(*sending)
        await producer.close()
        return [_place_of_official(id_) for id_ in ids]

    async def subscribe(self, topic: str, subscription: str, kind: str = "shared") -> OfficialReader:
        """Consume."""
        consumer = await self._client.subscribe(
            topic,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, _TYPES[kind]),
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )
        return OfficialReader(consumer)


class OfficialReader:
    """A consumer of the official Python client. A cancelled ``receive`` may lose a message there, so it is kept."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._receiving: asyncio.Future[Any] | None = None

    async def read(self, most: int, patience: float = PATIENCE_S) -> list[Got]:
        """Receive."""
        found: list[Got] = []
        with suppress(TimeoutError):
            while len(found) < most:
                self._receiving = self._receiving or asyncio.ensure_future(self._consumer.receive())
                message = await asyncio.wait_for(asyncio.shield(self._receiving), patience)
                self._receiving = None
                found.append(
                    Got(
                        _place_of_official(message.message_id()),
                        message.data(),
                        message.properties(),
                        message.partition_key() or None,
                        message.ordering_key() or None,
                        message.event_timestamp(),
                    )
                )
                await self._consumer.acknowledge(message)
        return found

    async def close(self) -> None:
        """Close it."""
        if self._receiving is not None:
            self._receiving.cancel()
        await self._consumer.close()


_OF_OFFICIAL: Final = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}
_TYPES: Final = {"shared": "Shared", "key_shared": "KeyShared"}


def _place_of_official(id_: Any) -> Place:
    return (id_.ledger_id(), id_.entry_id(), id_.partition(), id_.batch_index())


# --- the Java client -------------------------------------------------------------------------------------------------


class Java:
    """The Java client."""

    name = "java"

    def __init__(self, client: JavaClient) -> None:
        self._client = client

    async def produce(self, topic: str, messages: Sequence[Out], **how: Unpack[How]) -> list[Place]:
        """Send messages."""
        way = Way(**how)
        name = f"p{next(_names)}"
        options = {
            "batching": way.batching,
            "batch_by_key": way.by_key,
            "compression": way.compression.upper(),
            "chunking": way.chunking,
        }
        commands = [
            ("producer", name, topic, *(f"{option}={value}" for option, value in options.items())),
            *(("send", name, _encoded(each.payload), *_about(each)) for each in messages),
            ("flush", name),
            ("close", name),
        ]
        answers = await asyncio.to_thread(self._client.calls, commands)
        return [_place_of_java(words[1]) for words in answers[-2]]

    async def subscribe(self, topic: str, subscription: str, kind: str = "shared") -> JavaReader:
        """Consume."""
        name = f"c{next(_names)}"
        type_ = {"shared": "Shared", "key_shared": "Key_Shared"}[kind]
        await asyncio.to_thread(self._client.call, "consumer", name, topic, subscription, type_)
        return JavaReader(self._client, name)


class JavaReader:
    """A consumer of the Java client."""

    def __init__(self, client: JavaClient, name: str) -> None:
        self._client = client
        self._name = name

    async def read(self, most: int, patience: float = PATIENCE_S) -> list[Got]:
        """Receive."""
        lines = await asyncio.to_thread(
            self._client.call, "receive", self._name, str(most), str(round(patience * 1000))
        )
        return [_got_by_java(words) for words in lines]

    async def close(self) -> None:
        """Close it."""
        await asyncio.to_thread(self._client.call, "close", self._name)


def _about(message: Out) -> list[str]:
    words = [f".{name}={_encoded(value.encode())}" for name, value in message.properties.items()]
    if message.key is not None:
        words.append(f"key={_encoded(message.key.encode())}")
    if message.key_bytes is not None:
        words.append(f"key_bytes={_encoded(message.key_bytes)}")
    if message.ordering_key is not None:
        words.append(f"ordering_key={_encoded(message.ordering_key.encode())}")
    if message.event_time_ms:
        words.append(f"event_time_ms={message.event_time_ms}")
    if message.deliver_after:
        words.append(f"deliver_after_ms={round(message.deliver_after * 1000)}")
    return words


def _got_by_java(words: list[str]) -> Got:
    _, place, payload, key, ordering_key, event_time, properties, kind = words
    pairs = (pair.split(":") for pair in properties.split())
    return Got(
        _place_of_java(place),
        base64.b64decode(payload),
        {_decoded(name): _decoded(value) for name, value in pairs},
        _decoded(key[1:]) if key else None,
        _decoded(ordering_key[1:]) if ordering_key else None,
        int(event_time),
        kind == "bytes",
    )


def _place_of_java(text: str) -> Place:
    ledger, entry, partition, index = map(int, text.split(":"))
    return (ledger, entry, partition, index)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()
