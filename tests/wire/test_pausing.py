"""Consumers without prefetched messages: paused ones, those without a queue, and those that lack a codec."""

from __future__ import annotations

import asyncio
import re
import sys
from random import Random
from typing import Any

import pytest

from pulsar_nack import Consumer, DeadLetterPolicy, InvalidArgumentError, Message
from pulsar_nack.errors import MissingExtraError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._compression import compress
from tests.for_each import for_each
from tests.tiers import seeds, size
from tests.wire.fake_broker import FakeBroker, later
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import batch_payload, message_rest
from tests.wire.using import BASE, TOPIC, TYPES, broker_with, numbers, publish, received, subscribed, take

MANY = size(200, fast=20)
CODECS = (pb.LZ4, pb.ZSTD, pb.SNAPPY)


# --- paused ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_pause_keeps_what_a_key_waits_for() -> None:
    """A retry that is ready while no worker is free stays here during a pause, so that its key's order holds."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for data, key in ((b"0", "k"), (b"1", "k"), (b"long", "other"), (b"2", "k")):
        topic.publish(data, partition_key=key)
    seen = list[tuple[bytes, int]]()

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"long":
            await asyncio.sleep(2)
        if seen[-1] == (b"0", 1):
            await message.nack(0.5)

    async with subscribed(broker) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=1, key_ordered=True))
        await asyncio.sleep(1)
        consumer.pause()
        await asyncio.sleep(0.5)
        consumer.resume()
        await asyncio.sleep(5)
        await consumer.drain()
        await running
    assert [each for each in seen if each[0] != b"long"] == [(b"0", 1), (b"0", 2), (b"1", 1), (b"2", 1)]


@virtual_time
async def test_what_was_fetched_ahead_goes_to_others() -> None:
    """O17, U41: 1 000 prefetched messages all go to a second consumer; nothing comes here until the resume."""
    broker = FakeBroker()
    ahead = numbers(size(1_000, fast=200))
    publish(broker, *ahead)
    async with subscribed(broker, receiver_queue_size=1_000) as first:
        await asyncio.sleep(1)
        assert f"{len(ahead)} messages here" in repr(first.port)
        async with subscribed(broker, receiver_queue_size=1_000) as second:
            first.pause()
            first.pause()
            assert first.is_paused
            assert sorted(await received(second, seconds=1)) == sorted(ahead)
            with pytest.raises(TimeoutError):
                await first.receive(timeout=100)
        publish(broker, b"later")
        first.resume()
        assert await received(first, seconds=1) == [b"later"]


@virtual_time
async def test_messages_in_flight_are_settled_while_paused() -> None:
    """U41: ack and nack work during a pause; deadlines pass, and due messages are delivered after the resume."""
    broker = FakeBroker()
    topic = publish(broker, b"a", b"b", b"c")
    async with subscribed(broker, redelivery="local") as consumer:
        a, b, c = await take(consumer, 3)
        await b.nack(delay=5)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        consumer.pause()
        await a.ack()
        await c.nack(delay=1)
        await asyncio.sleep(10)
        assert not waiting.done()
        assert topic.subscriptions["s"].acked == {a.id[:2]}
        consumer.resume()
        again = [await waiting, await consumer.receive(timeout=0.1)]
        assert [(message.data, message.attempt) for message in again] == [(b"c", 2), (b"b", 2)]


@virtual_time
async def test_what_is_acknowledged_by_its_id_is_not_delivered() -> None:
    """U41: a due message that waited for a call, although the session ends once it is acknowledged."""
    broker = broker_with(b"0")
    async with subscribed(broker, redelivery="local") as consumer:
        message = await consumer.receive(timeout=1)
        await message.nack(delay=1)
        consumer.pause()
        await asyncio.sleep(2)
        assert consumer.statistics().ready == 1
        await consumer.acknowledge(message.id)
        consumer.resume()
        assert await received(consumer, seconds=1) == []


@virtual_time
async def test_a_broker_without_others_is_asked_seldom() -> None:
    """Permits that the broker still has bring messages, which go back after growing pauses and count as no attempt."""
    broker = FakeBroker()
    topic = publish(broker, b"in work")
    async with subscribed(broker, dead_letter=DeadLetterPolicy(1)) as consumer:
        in_work = await consumer.receive(timeout=1)
        consumer.pause()
        publish(broker, b"x")
        await asyncio.sleep(3_600)
        asked = len(broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES"))
        assert 2 <= asked < 40
        assert topic.subscriptions["s"].counts[7, 1] == asked
        await in_work.ack()  # nothing is in flight now, so the permits that the broker has are taken back
        await asyncio.sleep(3_600)
        assert topic.subscriptions["s"].consumers[0].permits == 0
        assert len(broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")) == asked
        consumer.resume()
        message = await consumer.receive(timeout=1)
        assert (message.data, message.attempt) == (b"x", 1)
        await message.nack(delay=0)
        assert (await consumer.receive(timeout=1)).attempt == 2
        assert consumer.statistics().dead_lettered == 0


@virtual_time
async def test_a_long_pause_keeps_the_connection() -> None:
    """An entry that is redelivered for a day is returned each time, in the end every 100 seconds."""
    broker = FakeBroker()
    publish(broker, b"in work")
    async with subscribed(broker) as consumer:
        in_work = await consumer.receive(timeout=1)
        consumer.pause()
        publish(broker, b"x")
        await asyncio.sleep(86_400)
        assert 800 < len(broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")) < 900
        assert len(broker.commands("SUBSCRIBE")) == 1
        await in_work.ack()


@for_each("kind", ["exclusive", "failover"])
@virtual_time
async def test_where_only_one_gets_messages_they_stay(kind: str) -> None:
    """O17: on Exclusive and Failover no other consumer could have them; they are delivered after the resume."""
    broker = broker_with(*numbers(10))
    async with subscribed(broker, consumer_type=kind) as consumer:
        await asyncio.sleep(1)
        consumer.pause()
        publish(broker, b"10")
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=10)
        assert broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []
        consumer.resume()
        assert await received(consumer, seconds=1) == numbers(11)


@virtual_time
async def test_a_partly_delivered_batch_stays() -> None:
    """O17: the rest of a batch goes to others once its members in flight are settled, because they share an entry."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    topic.publish_batch(numbers(3))
    topic.publish_batch([b"3", b"4"])
    async with subscribed(broker) as first:
        message = await first.receive(timeout=1)
        async with subscribed(broker) as second:
            first.pause()
            assert await received(second, seconds=1) == [b"3", b"4"]
            assert first.statistics().unacked == 1
            await message.ack()
            assert await received(second, seconds=1) == [b"1", b"2"]


@virtual_time
async def test_pauses_outlive_connections_and_partitions_share_them() -> None:
    """O17: all members pause; a new session gets no permits; a message that a cancelled call took goes back too."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for number in range(2):
        broker.topic(f"{TOPIC}-partition-{number}").publish(b"%d" % number)
    async with subscribed(broker, receiver_queue_size=5) as first:
        call = asyncio.create_task(first.receive())
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(1)
        assert first.statistics().ready == 1
        first.pause()
        assert first.statistics().ready == 0
        broker.cut()
        await asyncio.sleep(5)
        assert first.port.is_connected
        for number in range(2):
            broker.topic(f"{TOPIC}-partition-{number}").publish(b"%d" % (2 + number))
        async with subscribed(broker) as second:
            assert sorted(await received(second, seconds=1)) == numbers(4)
        first.resume()
        broker.topic(f"{TOPIC}-partition-0").publish(b"4")
        message = await first.receive(timeout=1)
        assert (message.data, message.attempt) == (b"4", 1)


# --- without a queue -------------------------------------------------------------------------------------------------


async def work(consumer: Consumer, done: dict[bytes, float], first: float = 6.0) -> None:
    """Handle jobs, of which the first one takes long."""
    async for message in consumer:
        await asyncio.sleep(first if message.data == b"0" else 0.1)
        done[message.data] = asyncio.get_running_loop().time()
        await message.ack()


@for_each("is_batch", [False, True])
@virtual_time
async def test_a_long_job_keeps_no_others(is_batch: bool) -> None:
    """O16, U42: six jobs, the first takes 6 s and the others 0.1 s, two workers: the five are done within 1.5 s."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for payload in numbers(6):
        if is_batch:
            topic.publish_batch([payload])
        else:
            topic.publish(payload)
    done: dict[bytes, float] = {}
    settings: dict[str, Any] = {"receiver_queue_size": 0}
    async with subscribed(broker, **settings) as one, subscribed(broker, **settings) as two:
        began = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(work(each, done)) for each in (one, two)]
        await asyncio.sleep(8)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert len(done) == 6
    assert max(at for data, at in done.items() if data != b"0") - began < 1.5


@for_each("kind", TYPES)
@virtual_time
async def test_permits_are_given_one_by_one_and_on_request(kind: str) -> None:
    """O16: without a waiting call there are no permits; batches, chunks and nacks still come, also over a reconnect."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    topic.publish_batch([b"a", b"b", b"c"])
    for number in range(3):
        about: dict[str, Any] = {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": number, "total_chunk_msg_size": 3}
        topic.publish(b"d", **about)
    topic.publish(b"e")
    async with subscribed(broker, receiver_queue_size=0, consumer_type=kind) as consumer:
        await asyncio.sleep(1)
        assert broker.commands("FLOW") == []
        found = await take(consumer, 4)
        assert [message.data for message in found] == [b"a", b"b", b"c", b"ddd"]
        await found[3].nack(delay=1)
        for message in found[:3]:
            await message.ack()
        await asyncio.sleep(0.5)
        broker.cut()
        await asyncio.sleep(0.4)
        again = await take(consumer, 2)
        assert sorted(message.data for message in again) == [b"ddd", b"e"]
        assert all(flow.messagePermits <= 3 for flow in broker.commands("FLOW"))


@virtual_time
async def test_a_cancelled_call_loses_nothing() -> None:
    """O16: a message on its way goes to the next call; without one another worker gets it, as the same attempt."""
    broker = FakeBroker()
    publish(broker)
    settings: dict[str, Any] = {"receiver_queue_size": 0}
    async with subscribed(broker, **settings) as first, subscribed(broker, **settings) as second:
        with pytest.raises(TimeoutError):
            await first.receive(timeout=0.5)
        publish(broker, b"a")
        await asyncio.sleep(0.05)
        assert (await first.receive(timeout=0.01)).data == b"a"
        with pytest.raises(TimeoutError):
            await first.receive(timeout=0.5)
        publish(broker, b"b")
        message = await second.receive(timeout=1)
        assert message.data == b"b"
        assert first.statistics().unacked == 1


@virtual_time
async def test_no_queue_is_for_one_topic() -> None:
    """O16: lists and patterns are refused at once, partitions when they are found; all by name."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    async with Client(broker.url, dial=broker.dial) as client:
        for topic in (["a", "b"], re.compile("a.*")):
            with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
                client.subscribe(topic, "s", receiver_queue_size=0)
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            await client.subscribe("t", "s", receiver_queue_size=0)
        async with client.subscribe("t-partition-1", "s", receiver_queue_size=0):
            pass


# --- missing codecs --------------------------------------------------------------------------------------------------


def packed(payload: bytes, codec: pb.CompressionType = pb.LZ4, **fields: Any) -> bytes:
    """Return a compressed entry."""
    about = metadata_of(compression=codec, uncompressed_size=len(payload), **fields)
    return message_rest(about, compress(codec, payload))


@for_each(("kind", "codec"), [*zip(TYPES, CODECS * 2, strict=False), *(("shared", codec) for codec in CODECS[1:])])
@virtual_time
async def test_what_is_not_installed_is_no_fault_of_the_message(
    kind: str, codec: pb.CompressionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O12: each receive raises with what to install; all messages stay in the backlog, and others get them at once."""
    broker = FakeBroker()
    topic = publish(broker, b"readable")
    topic.append(packed(b"x" * 100, codec))
    topic.append(packed(batch_payload([b"y", b"z"]), codec, num_messages_in_batch=2), messages=2)
    for payload in numbers(MANY):
        topic.append(packed(payload, codec))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cramjam", None)
        async with subscribed(broker, consumer_type=kind, dead_letter=DeadLetterPolicy(1)) as consumer:
            for _ in range(3):
                with pytest.raises(MissingExtraError, match=r"pip install 'pulsar-nack\[compression\]'"):
                    await received(consumer, seconds=5, ack=False)
            assert consumer.statistics().dead_lettered == 0
            await asyncio.sleep(100)
            asked = len(broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES"))
    assert asked < 5
    assert topic.subscriptions["s"].acked == set()
    async with subscribed(broker, consumer_type=kind) as other:
        assert len(await received(other, seconds=1)) == 4 + MANY


@virtual_time
async def test_messages_in_flight_are_settled_before_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """O12: messages in flight can be settled; then the consumer closes, so that a Failover standby gets the rest."""
    broker = FakeBroker()
    topic, entry = publish(broker, b"readable"), packed(b"x" * 100)
    async with subscribed(broker, consumer_type="failover", consumer_name="a") as first:
        message = await first.receive(timeout=1)
        async with subscribed(broker, consumer_type="failover", consumer_name="b") as standby:
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, "cramjam", None)
                topic.append(entry)
                with pytest.raises(MissingExtraError):
                    await first.receive(timeout=1)
            with pytest.raises(TimeoutError):
                await standby.receive(timeout=10)
            await message.ack()
            assert await received(standby, seconds=1) == [b"x" * 100]
            with pytest.raises(MissingExtraError):
                await first.receive(timeout=1)


@virtual_time
async def test_another_worker_gets_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """O12: while the first has a message in flight another one on Shared gets most messages, and then the rest."""
    broker = FakeBroker()
    topic, entries = publish(broker, b"readable"), [packed(payload) for payload in numbers(20)]
    async with subscribed(broker) as first:
        message = await first.receive(timeout=1)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "cramjam", None)
            for entry in entries:
                topic.append(entry)
            with pytest.raises(MissingExtraError):
                await first.receive(timeout=1)
        async with subscribed(broker, dead_letter=DeadLetterPolicy(5)) as second:
            found = await received(second, seconds=5)
            assert len(found) >= 10
            await message.ack()
            assert sorted(found + await received(second, seconds=1)) == sorted(numbers(20))
            assert second.statistics().dead_lettered == 0
    assert topic.subscriptions["s"].acked == {entry.place for entry in topic.entries}


@virtual_time
async def test_chunks_of_what_cannot_be_read_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """O12: all chunks of a compressed message are returned."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    whole = compress(pb.LZ4, bytes(range(200)))
    for number in range(2):
        about: dict[str, Any] = {
            "uuid": "u",
            "num_chunks_from_msg": 2,
            "chunk_id": number,
            "total_chunk_msg_size": len(whole),
        }
        part = whole[:50] if number == 0 else whole[50:]
        topic.publish(part, compression=pb.LZ4, uncompressed_size=200, **about)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cramjam", None)
        async with subscribed(broker) as consumer:
            with pytest.raises(MissingExtraError):
                await consumer.receive(timeout=1)
    async with subscribed(broker) as other:
        assert await received(other, seconds=1) == [bytes(range(200))]


# --- at random -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_paused", [False, True])
@virtual_time
async def test_a_partition_that_is_new_while_the_consumer_pauses_or_resumes(is_paused: bool) -> None:
    """O17: it is paused and resumed with the others, also while it is being subscribed."""
    broker, name = FakeBroker(), f"{BASE}parted"
    broker.partitions[name] = 1
    async with subscribed(broker, "parted", discovery_interval=10) as consumer:
        if is_paused:
            consumer.pause()
        await asyncio.sleep(5)
        broker.partitions[name] = 2
        publish(broker, b"new", topic=f"{name}-partition-1")
        broker.next("SUBSCRIBE", later(2))
        await asyncio.sleep(6)
        if is_paused:
            consumer.resume()
            assert (await consumer.receive(timeout=10)).data == b"new"
        else:
            consumer.pause()
            await asyncio.sleep(5)
            async with subscribed(broker, "parted") as other:
                assert (await other.receive(timeout=10)).data == b"new"


class Scenario:
    """Two consumers of one subscription that do anything in any order; a message belongs to one of them at a time."""

    def __init__(self, broker: FakeBroker, both: list[Consumer], random: Random) -> None:
        self.topic = broker.topic(TOPIC)
        self.both = both
        self.random = random
        self.published = 0
        self.in_work: dict[bytes, Message] = {}
        self.acked: set[bytes] = set()

    async def step(self) -> None:
        """Do one random operation."""
        random = self.random
        consumer = random.choice(self.both)
        match random.choice(["publish", "batch", *["receive"] * 4, "cancel", "ack", "ack", "nack", "pause", "resume"]):
            case "publish":
                self.topic.publish(self.next())
            case "batch":
                self.topic.publish_batch([self.next() for _ in range(random.randint(1, 4))])
            case "receive":
                await self.receive(consumer, random.choice([0.0005, 0.01, 0.3]))
            case "cancel":
                call = asyncio.create_task(consumer.receive())
                await asyncio.sleep(random.choice([0, 0.002, 0.1]))
                call.cancel()
                await asyncio.wait([call])
                if not call.cancelled():
                    self.received(call.result())
            case "ack" if self.in_work:
                await self.ack(random.choice(sorted(self.in_work)))
            case "nack" if self.in_work:
                await self.in_work.pop(random.choice(sorted(self.in_work))).nack(random.choice([0, 0.05, 2]))
            case "pause":
                consumer.pause()
            case "resume":
                consumer.resume()
        if random.random() < 0.3:
            await asyncio.sleep(random.choice([0.001, 0.05, 0.5, 20]))

    def next(self) -> bytes:
        """Return the next payload."""
        self.published += 1
        return b"%d" % self.published

    async def receive(self, consumer: Consumer, seconds: float) -> bool:
        """Receive; return whether a message came."""
        try:
            self.received(await consumer.receive(timeout=seconds))
        except TimeoutError:
            return False
        return True

    def received(self, message: Message) -> None:
        """Note a delivered message."""
        assert message.data not in self.in_work, "it is in work"
        assert message.data not in self.acked, "it is acknowledged"
        self.in_work[message.data] = message

    async def ack(self, data: bytes) -> None:
        """Acknowledge a message."""
        await self.in_work[data].ack()
        del self.in_work[data]
        self.acked.add(data)

    async def end(self) -> None:
        """Receive all remaining messages."""
        for consumer in self.both:
            consumer.resume()
        quiet = 0
        while quiet < 4:
            for data in sorted(self.in_work):
                await self.ack(data)
            came = [await self.receive(consumer, 60) for consumer in self.both]
            quiet = 0 if any(came) else quiet + 1
        assert len(self.acked) == self.published
        assert not any(consumer.statistics().unacked for consumer in self.both)


@pytest.mark.parametrize("seed", seeds(range(60)))
@virtual_time
async def test_whatever_happens_each_message_is_with_one_and_nothing_is_lost(seed: int) -> None:
    """O16, O17: pauses, cancelled calls, nacks and queues of any size, even none, on one subscription."""
    random = Random(seed)
    broker = FakeBroker()
    publish(broker)
    about: dict[str, Any] = {
        "consumer_type": random.choice(["shared", "shared", "key_shared"]),
        "receiver_queue_size": random.choice([0, 1, 3, 1_000]),
        "redelivery": random.choice(["local", "auto"]),
    }
    async with subscribed(broker, **about) as one, subscribed(broker, **about) as two:
        scenario = Scenario(broker, [one, two], random)
        for _ in range(size(300, fast=100)):
            await scenario.step()
        await scenario.end()
