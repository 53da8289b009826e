"""Replays, resets and clears with the native client, on a real broker."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

import pulsar_nack
from pulsar_nack import DeadLetterPolicy, Message, MessageId
from pulsar_nack.testing import FakePublisher
from tests.broker._admin import Admin
from tests.broker._native import native
from tests.consumer.official import numbered, official_client, payloads, send, take
from tests.patience import patience
from tests.wire.using import received

SUBSCRIPTION: Final = "sub"
FROM_THE_FIRST: Final[dict[str, Any]] = {"initial_position": pulsar.InitialPosition.Earliest}
LATEST: Final = MessageId(2**63 - 1, 2**63 - 1)


async def sent(url: str, topic: str, count: int, *, first: int = 0, batched: bool = False) -> list[bytes]:
    """Send with the official client."""
    async with official_client(url) as client:
        await send(client, topic, numbered(count, first), batched=batched)
    return sorted(numbered(count, first))


def a_moment_ago() -> int:
    """Return an epoch ms before all messages of a test."""
    return int(time.time() * 1000) - 1_000


@pytest.mark.parametrize("batched", [False, True])
async def test_a_seek_by_one_worker_shows_all_again(service_url: str, topic: str, batched: bool) -> None:
    """O1: two consumers have acknowledged 100 messages; one seeks back: the two receive all of them again."""
    began = a_moment_ago()
    settings: dict[str, Any] = {"receiver_queue_size": 5}
    async with native(service_url, topic, **settings) as one, native(service_url, topic, **settings) as two:
        expected = await sent(service_url, topic, 100, batched=batched)
        first = await asyncio.gather(received(one, seconds=1.5), received(two, seconds=1.5))
        assert sorted(first[0] + first[1]) == expected
        await one.seek(began)
        again = await asyncio.gather(received(one, seconds=3), received(two, seconds=3))
        assert sorted(again[0] + again[1]) == expected


@pytest.mark.both_lines
@pytest.mark.parametrize("kind", ["shared", "exclusive", "failover", "key_shared"])
async def test_a_reset_shows_everything_at_once(service_url: str, topic: str, admin: Admin, kind: str) -> None:
    """O2: ten messages are acknowledged; a second later an administrator resets the subscription: all are delivered."""
    began = a_moment_ago()
    async with native(service_url, topic, consumer_type=kind) as consumer:
        expected = await sent(service_url, topic, 10)
        assert sorted(await received(consumer, seconds=1.5)) == expected
        await asyncio.to_thread(admin.reset_cursor, topic, SUBSCRIPTION, began)
        assert sorted(await received(consumer, seconds=3)) == expected
        await asyncio.to_thread(admin.unload, topic)
        assert await received(consumer, seconds=3) == []
    assert admin.backlog(topic, SUBSCRIPTION) == 0


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("form", ["single", "batch", "chunks"])
async def test_a_reset_by_id(
    service_url: str, topic: str, admin: Admin, form: str, is_durable: bool, tmp_path: Path
) -> None:
    """O2: the subscription of a connected consumer is reset to a message: it and all later ones are delivered."""
    settings: dict[str, Any] = {"durable": tmp_path} if is_durable else {}
    async with native(service_url, topic, **settings) as consumer:
        await sent(service_url, topic, 4, batched=form == "batch")
        chunks: dict[str, Any] = {"chunking": True, "chunk_max_bytes": 100_000}
        async with pulsar_nack.connect(service_url) as client, client.producer(topic, **chunks) as producer:
            large = b"5" * (250_000 if form == "chunks" else 1)
            found = await producer.send(large)
            await producer.send(b"6")
        assert len(await received(consumer, seconds=1.5)) == 6
        assert len(found.parts) == (3 if form == "chunks" else 1)
        await asyncio.to_thread(admin.reset_cursor_to, topic, SUBSCRIPTION, *found.parts[0])
        assert sorted(await received(consumer, seconds=3)) == [large, b"6"]
        assert consumer.statistics().acked_again == 0
    assert admin.backlog(topic, SUBSCRIPTION) == 0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_reset_while_a_durable_consumer_is_away(
    service_url: str, topic: str, admin: Admin, is_killed: bool, tmp_path: Path
) -> None:
    """O3: a durable consumer is stopped or killed, the subscription reset, the consumer restarted: it gets all ten."""
    began, folder = a_moment_ago(), tmp_path / "state"
    async with native(service_url, topic, durable=folder) as consumer:
        expected = await sent(service_url, topic, 10)
        assert sorted(await received(consumer, seconds=1.5)) == expected
        if is_killed:
            folder = Path(shutil.copytree(folder, tmp_path / "left"))
    await asyncio.to_thread(admin.reset_cursor, topic, SUBSCRIPTION, began)
    async with native(service_url, topic, durable=folder) as consumer:
        assert sorted(await received(consumer, seconds=3)) == expected


@pytest.mark.parametrize("kind", ["shared", "failover"])
async def test_partitions_that_are_reset(
    service_url: str, admin: Admin, partitioned_topic: Callable[[int], str], kind: str, tmp_path: Path
) -> None:
    """O2, O3b: two partitions, reset while the durable consumer is connected, and while it is away: all, both times."""
    began, topic = a_moment_ago(), partitioned_topic(2)

    async def reset() -> None:
        for number in range(2):
            await asyncio.to_thread(admin.reset_cursor, f"{topic}-partition-{number}", SUBSCRIPTION, began)

    settings: dict[str, Any] = {"durable": tmp_path, "consumer_type": kind}
    async with native(service_url, topic, **settings) as consumer:
        expected = await sent(service_url, topic, 10)
        assert sorted(await received(consumer, seconds=1.5)) == expected
        await reset()
        assert sorted(await received(consumer, seconds=3)) == expected
    await reset()
    async with native(service_url, topic, **settings) as consumer:
        assert sorted(await received(consumer, seconds=3)) == expected


async def test_a_new_subscription_on_the_folder_of_one_that_is_gone(
    service_url: str, topic: str, tmp_path: Path
) -> None:
    """O3b: a durable consumer unsubscribes; a new subscription with its folder delivers all as first attempts."""
    async with native(service_url, topic, durable=tmp_path) as consumer:
        expected = await sent(service_url, topic, 5)
        first, second, *_ = await take(consumer, 5)
        await first.ack()
        await second.nack(3600)
        await consumer.unsubscribe()
    async with native(service_url, topic, durable=tmp_path) as consumer:
        messages = await take(consumer, 5)
        assert payloads(messages) == expected
        assert {message.attempt for message in messages} == {1}


async def test_the_official_client_unsubscribes(service_url: str, topic: str, tmp_path: Path) -> None:
    """O3b: the same with the official client, whose acknowledgements the folder remembers."""
    async with official_client(service_url) as client:
        async with pulsar_nack.subscribe(client, topic, SUBSCRIPTION, durable=tmp_path, **FROM_THE_FIRST) as consumer:
            expected = await sent(service_url, topic, 5)
            first, second, *_ = await take(consumer, 5)
            await first.ack()
            await second.nack(3600)
            await consumer.unsubscribe()
        async with pulsar_nack.subscribe(client, topic, SUBSCRIPTION, durable=tmp_path, **FROM_THE_FIRST) as consumer:
            messages = await take(consumer, 5)
            assert payloads(messages) == expected
            assert {message.attempt for message in messages} == {1}


async def test_seek_to_the_latest(service_url: str, topic: str) -> None:
    """O4: after a seek to the latest id nothing old comes, and a new message is delivered at once."""
    async with native(service_url, topic) as consumer:
        await sent(service_url, topic, 3)
        await take(consumer, 1)
        await consumer.seek(LATEST)
        await sent(service_url, topic, 2, first=7)
        assert await received(consumer, seconds=1.5) == [b"7", b"8"]


async def test_members_are_acknowledged_before_they_come(service_url: str, topic: str, admin: Admin) -> None:
    """O6: members of a batch, acknowledged by ids from elsewhere before they were received, are not delivered."""
    async with native(service_url, topic, receiver_queue_size=100) as other:
        expected = await sent(service_url, topic, 5, batched=True)
        messages = sorted(await take(other, 5), key=lambda message: message.id)
        ids = [MessageId.from_bytes(message.id.to_bytes(), topic) for message in messages]
    async with native(service_url, topic) as consumer:
        for message_id in ids[1:3]:
            await consumer.acknowledge(message_id)
        assert await received(consumer, seconds=1.5) == [expected[0], *expected[3:]]
    assert admin.backlog(topic, SUBSCRIPTION) == 0


CLEARING: Final[dict[str, Callable[[Admin, str], None]]] = {
    "clear": lambda admin, topic: admin.clear(topic, SUBSCRIPTION),
    "skip": lambda admin, topic: admin.skip(topic, SUBSCRIPTION, 10),
    "expire": lambda admin, topic: admin.request(
        "POST", f"persistent/{topic.partition('://')[2]}/subscription/{SUBSCRIPTION}/expireMessages/1"
    ),
}


@pytest.mark.both_lines
@pytest.mark.parametrize("clearing", list(CLEARING))
@pytest.mark.parametrize("kind", ["exclusive", "failover", "batch"])
async def test_a_poison_message_that_was_cleared(
    service_url: str, topic: str, admin: Admin, kind: str, clearing: str
) -> None:
    """O8: a message is nacked every 0.3 s, then cleared: it is delivered once more at most, and not dead-lettered."""
    letters, times = FakePublisher(), 0
    dead = DeadLetterPolicy(15, "dead", publisher=letters)
    kind_of = "shared" if kind == "batch" else kind
    async with native(service_url, topic, consumer_type=kind_of, dead_letter=dead) as consumer:
        await sent(service_url, topic, 2, batched=kind == "batch")

        async def work() -> None:
            nonlocal times
            async for message in consumer:
                if message.data == b"0":
                    times += 1
                    await message.nack(0.3)  # the other one stays in flight

        worker = asyncio.create_task(work())
        await asyncio.sleep(2.2)
        assert times > 3
        await asyncio.to_thread(CLEARING[clearing], admin, topic)
        if clearing == "expire":
            await asyncio.sleep(0.5)  # the broker does it after its answer
        before = times
        await asyncio.sleep(patience(2))
        worker.cancel()
        assert times - before <= 1
        assert letters.letters == []
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.dropped) == (0, 0, 0, 1)


async def test_a_seek_while_acknowledgements_are_on_their_way(service_url: str, topic: str, tmp_path: Path) -> None:
    """O49: 100 acks are being sent when their durable consumer seeks back: all messages are delivered again."""
    began = a_moment_ago()
    async with native(service_url, topic, durable=tmp_path) as consumer:
        expected = await sent(service_url, topic, 100)
        messages: list[Message] = await asyncio.gather(*(consumer.receive(timeout=10) for _ in range(100)))
        acks = [asyncio.ensure_future(message.ack()) for message in messages]
        await asyncio.sleep(0.002)
        await consumer.seek(began)
        await asyncio.gather(*acks)
        again = await asyncio.gather(*(consumer.receive(timeout=10) for _ in range(100)))
        assert payloads(again) == expected


async def test_a_failover_switch(service_url: str, partitioned_topic: Callable[[int], str]) -> None:
    """O53: held messages, and due ones that wait, move to the consumer that takes over."""
    settings: dict[str, Any] = {"consumer_type": "failover"}
    topic = partitioned_topic(1)
    async with native(service_url, topic, consumer_name="b", **settings) as second:
        expected = await sent(service_url, topic, 4)
        for number, message in enumerate(await take(second, 4)):
            await message.nack(0.5 if number < 2 else 60)
        await asyncio.sleep(1)
        assert (second.statistics().ready, second.statistics().held) == (2, 2)
        async with native(service_url, topic, consumer_name="a", **settings) as first:
            assert sorted(await received(first, seconds=3)) == expected
            assert await received(second, seconds=1.5) == []
            assert second.statistics().dropped == 4
