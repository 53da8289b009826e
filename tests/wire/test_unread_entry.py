"""Entries that have arrived and are not read yet: how they count, and what happens if reading fails."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._consumer import _deliveries as deliveries
from pulsar_nack.wire._consumer import _entry_reader as entry_reader
from pulsar_nack.wire._consumer._deliveries import DeliveryFactory
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._compression import compress
from tests.wire.consuming import TOPIC, consuming
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import batch_payload, message_rest
from tests.wire.using import subscribed

SIZE: Final = 1_000


@virtual_time
async def test_a_batch_of_which_only_the_first_is_delivered_leaves_nothing_counted() -> None:
    """The broker sends all 300, and one is delivered: the later ones do not count once it is received."""
    async with consuming(max_prefetched_bytes=1 << 20) as made:
        consumer = await made.open(batch_index_ack=True)
        for _ in range(5):
            made.topic.publish_batch([bytes(SIZE)] * 300)
            first, *others = await made.arrived.take(300)
            await consumer.acknowledge([each.id for each in others])
            consumer.redeliver_nowait([first.id])
            (again,) = await made.arrived.take(1)
            assert again.id == first.id
            await consumer.acknowledge([again.id])
            await asyncio.sleep(1)
            assert made.context.memory_limit.bytes == 0
            assert made.permits() > 900


NOISE: Final = random.Random(1).randbytes(50_000)
PROPERTIES: Final = {f"{number:04x}": "" for number in range(5_000)}


@pytest.mark.parametrize(
    "rest",
    [
        message_rest(metadata_of(compression=pb.LZ4, uncompressed_size=1), NOISE),
        message_rest(metadata_of(PROPERTIES), b""),
        message_rest(metadata_of(PROPERTIES, compression=pb.LZ4, uncompressed_size=1), b""),
        message_rest(metadata_of(PROPERTIES, num_messages_in_batch=1), batch_payload([b""])),
        message_rest(metadata_of(partition_key="k" * 50_000), b""),
        message_rest(metadata_of(ordering_key=b"k" * 50_000), b""),
        message_rest(metadata_of(schema_version=b"k" * 50_000), b""),
        message_rest(metadata_of(replicated_from="k" * 50_000), b""),
    ],
    ids=["claimed", "properties", "compressed", "batch", "key", "ordering key", "schema version", "replicated"],
)
@virtual_time
async def test_what_is_here_counts_whatever_its_producer_claims(rest: bytes) -> None:
    """A few entries of 50 kB fill 200 kB; once they are received nothing is counted."""
    broker = FakeBroker()
    for _ in range(50):
        broker.topic(TOPIC).append(rest)
    limited = ClientOptions(max_prefetched_bytes=200_000)
    async with subscribed(broker, client_options=limited, redelivery="broker") as consumer:
        await asyncio.sleep(10)
        port: Any = consumer.port
        assert 1 <= len(port._inbox) <= 10
        for _ in range(50):
            await (await consumer.receive(timeout=10)).ack()
        assert port._context.memory_limit.bytes == 0


@virtual_time
async def test_what_is_kept_here_counts_with_its_properties_and_keys() -> None:
    """``max_local_bytes`` limits properties and keys too; beyond it the broker is asked."""
    broker = FakeBroker()
    for _ in range(20):
        broker.topic(TOPIC).publish(b"", properties=PROPERTIES, partition_key="k" * 50_000)
    async with subscribed(broker, redelivery="local", max_local_bytes=2_000_000) as consumer:
        for _ in range(20):
            await (await consumer.receive(timeout=10)).nack(60)
        now = consumer.statistics()
        assert now.kept * 500_000 < now.kept_bytes <= 2_000_000
        for _ in range(20):
            await (await consumer.receive(timeout=100)).ack()
        assert consumer.statistics().kept_bytes == 0


def _packed(payload: bytes, **fields: Any) -> bytes:
    about = metadata_of(compression=pb.LZ4, uncompressed_size=len(payload), **fields)
    return message_rest(about, compress(pb.LZ4, payload))


def _failing(real: Callable[..., Any], error: Exception, times: int) -> Callable[..., Any]:
    """Return a function that raises this error in one call, after this many others, and else calls the real one."""
    calls = iter(range(1_000_000))

    def once(*args: Any, **named: Any) -> Any:
        if next(calls) == times:
            raise error
        return real(*args, **named)

    return once


@pytest.mark.parametrize(
    ("where", "name", "rest", "messages"),
    [
        (entry_reader, "unpack", _packed(b"x"), 1),
        (entry_reader, "unpack", _packed(bytes(2 << 20)), 1),
        (ThreadPoolExecutor, "submit", _packed(bytes(2 << 20)), 1),
        (DeliveryFactory, "delivery", _packed(b"x"), 1),
        (entry_reader, "unpack", _packed(batch_payload([b"a", b"b", b"c"]), num_messages_in_batch=3), 3),
        (entry_reader, "plain_member", message_rest(metadata_of(num_messages_in_batch=3), batch_payload([b""] * 3)), 3),
        (entry_reader, "plain_member", _packed(batch_payload([b"a", b"b", b"c"]), num_messages_in_batch=3), 3),
        (deliveries, "_share_extras", message_rest(metadata_of(), b"x"), 1),
    ],
    ids=["small", "large", "thread", "made", "batch", "member", "packed member", "plain"],
)
@virtual_time
async def test_an_entry_that_cannot_be_read_now_is_read_by_the_next_call(
    where: Any, name: str, rest: bytes, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of memory or threads is raised once; all messages come, in order, and nothing stays counted."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    limited = ClientOptions(max_prefetched_bytes=64 << 20)
    async with subscribed(broker, client_options=limited, redelivery="broker") as consumer:
        for _ in range(3):
            topic.append(rest, messages=messages)
        await asyncio.sleep(1)
        monkeypatch.setattr(where, name, _failing(getattr(where, name), MemoryError(), 0 if messages == 1 else 1))
        got: list[tuple[int, int]] = []
        errors = 0
        while len(got) < 3 * messages:
            try:
                message = await consumer.receive(timeout=10)
            except MemoryError:
                errors += 1
                continue
            got.append((message.id.entry, max(message.id.batch_index, 0)))
            await message.ack()
        assert (got, errors) == ([divmod(number, messages) for number in range(3 * messages)], 1)
        port: Any = consumer.port
        (member,) = port._consumers
        assert (member.queue.messages, member.queue.bytes, port._context.memory_limit.bytes) == (0, 0, 0)
        assert member.queue.permits.out + member.queue.permits._free == member.queue.permits.size


async def test_large_messages_come_while_the_threads_of_the_loop_wait_for_them() -> None:
    """Threads of ``asyncio.to_thread`` may wait for them; the client's own threads end with it."""
    broker = FakeBroker(latency=0)
    topic = broker.topic(TOPIC)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with subscribed(broker) as consumer:

        def work() -> list[int]:
            calls = [asyncio.run_coroutine_threadsafe(consumer.receive(timeout=5), loop) for _ in range(2)]
            return sorted(len(call.result(10).data) for call in calls)

        worker = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(0)
        topic.append(_packed(bytes(2 << 20)))
        topic.publish(b"small")
        assert await worker == [5, 2 << 20]
    assert not any(thread.name.startswith("pulsar-nack-wire") for thread in await _left())


async def _left() -> list[threading.Thread]:
    """Return the remaining threads, after those that should end had time to."""
    for _ in range(500):
        await asyncio.sleep(0.01)
        if not any(thread.name.startswith("pulsar-nack-wire") for thread in threading.enumerate()):
            break
    return threading.enumerate()
