"""Frames that claim more than any client needs: limited before they cost memory or time."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import pytest

from pulsar_nack import BrokerError, Position
from pulsar_nack.errors import ConnectionLostError, UndecodableMessageError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._chunks import ChunkAssembler, short_uuid
from tests.for_each import for_each
from tests.wire import hostile
from tests.wire.fake_broker import FakeBroker
from tests.wire.hostile import blocked, client_of

TOPIC: Final = "persistent://public/default/orders"


@virtual_time
async def test_a_batch_of_a_million() -> None:
    """O32: a million messages in nine kilobytes are delivered and acknowledged bit by bit, with little memory."""
    broker = FakeBroker()
    entry = broker.topic(TOPIC).append(hostile.bomb(), messages=1_000_000)
    assert len(entry.rest) < 10_000
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s", initial_position="earliest") as consumer:
                tracemalloc.start()
                try:
                    for index in range(20):
                        message = await consumer.receive(timeout=10)
                        assert (message.id.batch_index, message.id.batch_size, message.data) == (index, 1_000_000, b"")
                        await message.ack()
                    most = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
                assert consumer.statistics().received == 20
    turns.check()
    assert most < 32 << 20


async def test_many_batches_at_once() -> None:
    """O32: five hundred batches of a thousand in one piece are not read before their turn."""
    broker = FakeBroker(latency=0)
    broker.always("FLOW", hostile.entries(*[hostile.bomb(1_000)] * 500))
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s") as consumer:
                for index in range(2_100):
                    message = await consumer.receive(timeout=10)
                    assert (message.id.entry, message.id.batch_index) == divmod(index, 1_000)
                    message.ack_soon()
    turns.check()


@virtual_time
async def test_a_batch_with_too_many_messages() -> None:
    """O32: a batch beyond ``max_batch_messages`` is one unreadable message that says so; no permit is lost."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for _ in range(20):
        topic.append(hostile.bomb(1_001), messages=1_001)
    topic.publish(b"good")
    async with (
        client_of(broker, max_batch_messages=1_000) as client,
        client.subscribe("orders", "s", initial_position="earliest", receiver_queue_size=10) as consumer,
    ):
        for _ in range(20):
            with pytest.raises(UndecodableMessageError, match=r"1001 messages, at most 1000.*max_batch_messages"):
                (await consumer.receive(timeout=10)).data  # noqa: B018
        assert (await consumer.receive(timeout=10)).data == b"good"


async def test_a_message_that_swells() -> None:
    """O32: 32 MB in 150 KB are decompressed in a thread; later messages keep their place."""
    broker = FakeBroker(latency=0)
    topic = broker.topic(TOPIC)
    topic.append(hostile.swollen(32 << 20))
    topic.publish(b"next")
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s", initial_position="earliest") as consumer:
                assert len((await consumer.receive(timeout=10)).data) == 32 << 20
                assert (await consumer.receive(timeout=10)).data == b"next"
    turns.check()


async def test_a_message_of_many_empty_blocks() -> None:
    """O32: one byte in 4.5 MB of zstd is decompressed in a thread too, because its blocks are counted."""
    broker = FakeBroker(latency=0)
    broker.topic(TOPIC).append(hostile.shattered(1_500_000))
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s", initial_position="earliest") as consumer:
                assert (await consumer.receive(timeout=10)).data == b"x"
    turns.check()


@for_each("rest", [hostile.with_properties(500_000), hostile.with_empty_properties(500_000)])
def test_properties_without_end(rest: bytes) -> None:
    """O34: ``max_metadata_bytes`` refuses them before they are read; the next message comes, and no permit is lost."""

    async def test() -> None:
        broker = FakeBroker()
        topic = broker.topic(TOPIC)
        for _ in range(3):
            topic.append(rest)
        topic.publish(b"good")
        async with client_of(broker) as client:
            with blocked() as turns:
                options: dict[str, Any] = {"initial_position": "earliest", "receiver_queue_size": 2}
                async with client.subscribe("orders", "s", **options) as consumer:
                    for _ in range(3):
                        message = await consumer.receive(timeout=10)
                        with pytest.raises(UndecodableMessageError, match="max_metadata_bytes"):
                            message.data  # noqa: B018
                        message.ack_soon()
                    assert (await consumer.receive(timeout=10)).data == b"good"
            turns.check()

    run(test())


def test_a_refused_batch_is_counted_as_the_broker_counts_it() -> None:
    """O34: the number of messages is still read from metadata that is too large, so that permits stay right."""

    async def test() -> None:
        broker = FakeBroker()
        topic = broker.topic(TOPIC)
        metadata = hostile.about(num_messages_in_batch=900).SerializeToString() + b"\x22\x06\x0a\x01a\x12\x01b" * 50_000
        for _ in range(3):
            topic.append(hostile.with_metadata(metadata), messages=900)
        for _ in range(1_500):
            topic.publish(b"good")
        async with (
            client_of(broker) as client,
            client.subscribe("orders", "s", initial_position="earliest") as consumer,
        ):
            for _ in range(3):
                assert (await consumer.receive(timeout=10)).error is not None
            for _ in range(1_500):
                (await consumer.receive(timeout=10)).ack_soon()

    run(test())


def test_few_properties_with_nothing_in_them() -> None:
    """O34: more properties than the bytes can hold are refused, in a message and in a batch member."""
    single = b"\x0a\x00" * 60_000 + b"\x18\x00"
    batched = hostile.with_metadata(
        hostile.about(num_messages_in_batch=1).SerializeToString(), len(single).to_bytes(4, "big") + single
    )

    async def test() -> None:
        broker = FakeBroker()
        for rest in (hostile.with_empty_properties(60_000), batched):
            broker.topic(TOPIC).append(rest)
        async with (
            client_of(broker) as client,
            client.subscribe("orders", "s", initial_position="earliest") as consumer,
        ):
            for _ in range(2):
                assert re.search(r"60000 properties in \d+ bytes", str((await consumer.receive(timeout=10)).error))

    run(test())


async def test_properties_in_a_batch() -> None:
    """O34: 400 messages with 1 000 properties each are read a few at a time, while the loop runs other tasks."""
    broker = FakeBroker(latency=0)
    broker.topic(TOPIC).append(hostile.batch_with_properties(400, 1_000), messages=400)
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s", initial_position="earliest") as consumer:
                for _ in range(400):
                    assert (await consumer.receive(timeout=10)).properties == {"a": "b"}
    turns.check()


@virtual_time
async def test_an_ack_set_of_many_words(caplog: pytest.LogCaptureFixture) -> None:
    """O34: 400 000 words are refused by frame, before they are read; the client reconnects and continues."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    frame = hostile.message(1, 0, hostile.bomb(9), ack_set=[-1] * 400_000)  # made here: that takes long
    broker.next("FLOW", hostile.sends(lambda _: frame))
    async with client_of(broker) as client:
        with blocked() as turns:
            async with client.subscribe("orders", "s") as consumer:
                topic.publish(b"good")
                assert (await consumer.receive(timeout=10)).data == b"good"
        assert client.statistics().protocol_errors == 1
    turns.check()
    lost = [text for text in caplog.messages if text.startswith("connection lost")]
    assert len(lost) == 1
    assert re.search(r"pulsar://broker:6650: frame at byte \d+: a command of \d+ bytes.*max_command_bytes", lost[0])


@virtual_time
async def test_an_ack_set_that_is_longer_than_its_batch() -> None:
    """O34: words beyond the batch's messages are ignored."""
    broker = FakeBroker()
    words = [0b101, *[-1] * 20_000]
    broker.always(
        "FLOW", hostile.sends(lambda consumer_id: hostile.message(consumer_id, 0, hostile.bomb(9), ack_set=words))
    )
    async with client_of(broker) as client, client.subscribe("orders", "s") as consumer:
        assert [(await consumer.receive(timeout=10)).id.batch_index for _ in range(2)] == [0, 2]
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=1)


@for_each("count", [10_001, 2**31 - 1, 2**32 - 1])
def test_partitions_without_end(count: int) -> None:
    """O34: refused at once, with the topic, the number and ``max_partitions``, for consumers and producers."""

    async def test() -> None:
        broker = FakeBroker()
        broker.partitions[TOPIC] = count
        async with client_of(broker) as client:
            ways: list[Callable[[], Any]] = [
                lambda: client.subscribe("orders", "s"),
                lambda: client.producer("orders"),
                lambda: client.partitions("orders"),
            ]
            for way in ways:
                began_at = asyncio.get_running_loop().time()
                with pytest.raises(BrokerError, match=rf"orders has {count} partitions, .*max_partitions") as caught:
                    await way()
                assert not isinstance(caught.value, ConnectionLostError)
                assert asyncio.get_running_loop().time() - began_at < 1

    run(test())


@virtual_time
async def test_topics_without_end(caplog: pytest.LogCaptureFixture) -> None:
    """O34: more than ``max_topics`` in a namespace are refused; names too long or not printable are left out."""
    broker = FakeBroker()
    names = [f"{TOPIC}-{number}" for number in range(11)]
    broker.next("GET_TOPICS_OF_NAMESPACE", hostile.answers("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=names))
    strange = [f"{TOPIC}\x1b[31m", f"{TOPIC}-{'x' * 10_000}", f"{TOPIC}-1"]
    broker.always("GET_TOPICS_OF_NAMESPACE", hostile.answers("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=strange))
    async with client_of(broker, max_topics=10) as client:
        with pytest.raises(BrokerError, match=r"11 topics, at most 10.*max_topics"):
            await client.topics()
        for _ in range(2):
            assert await client.topics() == [f"{TOPIC}-1"]
    (warning,) = [text for text in caplog.messages if "left out" in text]
    assert warning.startswith(f"2 topics of namespace public/default, such as {TOPIC}\\x1b[31m, have names")


def chunk_of_two(uuid: str, index: int) -> pb.MessageMetadata:
    """Return the metadata of one of two chunks."""
    return pb.MessageMetadata(uuid=uuid, chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=4, sequence_id=0)


def test_messages_that_are_complete_leave_nothing_behind_one_that_is_not() -> None:
    """O33: while a message waits for its last chunk, 2 000 others come and go in bounded memory."""
    there = ChunkAssembler(10, 1 << 20, 60_000)
    there.add(chunk_of_two("waits", 0), Position(1, 0), b"xx", 0)
    tracemalloc.start()
    try:
        for number in range(2_000):
            for index in range(2):
                whole = there.add(chunk_of_two(f"{number}", index), Position(2, 2 * number + index), b"xx", 0)
            assert whole is not None
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left < 100_000
    assert there.next_at() == 60_000
    assert [each.uuid for each in there.take_abandoned(60_000)] == ["waits"]


def test_uuids_without_end() -> None:
    """O33: chunks of messages that are never completed take bounded memory, whatever their uuids are."""
    there, back = ChunkAssembler(10, 1 << 20, 60_000), 0
    for entry in range(12_000):
        for uuid, ledger in ((f"{entry % 50:08}" + "u" * 1_000, 1), ("sent again", 2)):
            there.add(chunk_of_two(uuid, 0), Position(ledger, entry), b"xx", 0)
        back += sum(len(each.positions) for each in there.take_abandoned(0))
        if entry % 1_000 == 0:
            assert len(there.positions()) <= 16_000
    assert back > 5_000
    long = ["u" * 1_000_000 + end for end in "ab"]
    assert len({short_uuid(each) for each in long}) == 2
    assert all(len(short_uuid(each)) < 200 for each in long)
