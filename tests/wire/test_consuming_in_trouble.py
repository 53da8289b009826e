"""Consumers of a failing cluster, at random, on virtual time: nothing is lost, nothing unacked is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from pulsar_nack import AlreadySettledError, BrokerError, Consumer, Message, MessageId
from pulsar_nack.testing import run
from pulsar_nack.wire import Client, ClientOptions
from tests.tiers import examples
from tests.wire.fake_broker import (
    Answer,
    Call,
    FakeBroker,
    as_usual,
    carried_out_then_cut,
    cut,
    half,
    later,
    refuse,
    silence,
)
from tests.wire.fake_topics import FakeTopic

NAME = "persistent://public/default/orders"
URLS = ["pulsar://broker:6650", "pulsar://second:6650", "pulsar://third:6650"]
OPTIONS = ClientOptions(connect_timeout=2, request_timeout=3, keep_alive=1, backoff_maximum=2)
TROUBLED = (
    "CONNECT",
    "LOOKUP",
    "PARTITIONED_METADATA",
    "SUBSCRIBE",
    "ACK",
    "FLOW",
    "REDELIVER_UNACKNOWLEDGED_MESSAGES",
)
Key = tuple[int, int, int, int]
"""Partition, ledger, entry, batch index: the identity of a message."""


def key_of(message_id: MessageId) -> Key:
    """Return the identity of a message."""
    return message_id.partition, message_id.ledger, message_id.entry, message_id.batch_index


class Cluster:
    """Three failing nodes with a topic, perhaps a partitioned one, and a subscription."""

    def __init__(self, chance: Random, partitions: int) -> None:
        self.random = chance
        self.broker = FakeBroker()
        for url in URLS:
            self.broker.node(url)
        if partitions:
            self.broker.partitions[NAME] = partitions
        names = [f"{NAME}-partition-{number}" for number in range(partitions)] or [NAME]
        self.topics = [self.broker.topic(name) for name in names]
        for topic in self.topics:
            topic.owner = chance.choice(URLS)

    def publish(self) -> None:
        """Publish a message or a batch to a topic."""
        topic = self.random.choice(self.topics)
        if self.random.random() < 0.3:
            topic.publish_batch([b"x"] * self.random.randint(2, 70))
        else:
            topic.publish(b"x", partition_key=f"k{self.random.randrange(5)}")

    def published(self) -> Iterator[tuple[FakeTopic, Key]]:
        """Return all messages."""
        for topic in self.topics:
            for entry in topic.entries:
                for index in range(entry.messages) if entry.messages > 1 else (-1,):
                    yield topic, (topic.partition, entry.ledger, entry.entry, index)

    def is_acked(self, topic: FakeTopic, key: Key) -> bool:
        """Return whether the broker has the acknowledgement of a message."""
        subscription = topic.subscriptions["s"]
        _, ledger, entry, index = key
        if (ledger, entry) in subscription.acked:
            return True
        words = subscription.unacked_indexes.get((ledger, entry))
        if index < 0 or words is None:
            return False
        return index // 64 >= len(words) or not words[index // 64] >> index % 64 & 1

    async def make_trouble(self) -> None:
        """Cause faults, one after another, without end."""
        for kind in TROUBLED:
            self.broker.always(kind, self._answer)
        things = [self._cut, self._move, self._kill, self._start, self._start, self._stall, self._twice, self._pieces]
        while True:
            await asyncio.sleep(self.random.random())
            self.random.choice(things)()

    def end_trouble(self) -> None:
        """End all faults."""
        for kind in TROUBLED:
            self.broker.normally(kind)
        for url in URLS:
            self.broker.node(url).start()
        for link in self.broker.links:
            link.transport.go_on()

    def _answer(self, call: Call) -> None:
        bad: list[Answer] = [cut, half(share=self.random.random()), carried_out_then_cut, silence]
        if call.kind != "SUBSCRIBE":  # which a broker ignores after the consumer was closed
            bad.append(later(4.0))
        if call.kind not in {"FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}:
            bad.append(refuse(self.random.choice(["ServiceNotReady", "MetadataError", "TooManyRequests"])))
        else:
            bad = [cut, carried_out_then_cut, later(0.5)]  # a running broker does not lose these
        self.random.choice(bad if self.random.random() < 0.1 else [as_usual, later(self.random.random() / 10)])(call)

    def _cut(self) -> None:
        if self.broker.links:
            self.random.choice(self.broker.links).transport.cut()

    def _move(self) -> None:
        topic, url = self.random.choice(self.topics), self.random.choice(URLS)
        self.broker.move(topic.name, url, tell_where=self.random.random() < 0.5)

    def _kill(self) -> None:
        self.broker.node(self.random.choice(URLS)).kill()

    def _start(self) -> None:
        self.broker.node(self.random.choice(URLS)).start()

    def _stall(self) -> None:
        if self.broker.links:
            transport = self.random.choice(self.broker.links).transport
            transport.stall()
            asyncio.get_running_loop().call_later(self.random.random() * 4, transport.go_on)

    def _pieces(self) -> None:
        if self.broker.links:
            self.random.choice(self.broker.links).transport.piece_bytes = self.random.randint(1, 50)

    def _twice(self) -> None:
        for topic in self.topics:
            subscription = topic.subscriptions.get("s")
            for consumer in subscription.consumers if subscription is not None else ():
                if consumer.pending and subscription is not None:
                    subscription.hand_out_twice(self.random.choice(sorted(consumer.pending)))
                    return


class User:
    """Handles messages; records which are in flight and which it has acknowledged."""

    def __init__(self, cluster: Cluster, consumer: Consumer, chance: Random, acked: set[Key]) -> None:
        self.cluster = cluster
        self.consumer = consumer
        self.random = chance
        self.asked = acked
        self.in_flight: set[Key] = set()
        self.working: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Receive and settle, without end."""
        while True:
            message = await self.consumer.receive()
            key = key_of(message.id)
            assert key not in self.in_flight, "delivered while it is in flight"
            self.in_flight.add(key)
            task = asyncio.create_task(self._work(message, key))
            self.working.add(task)
            task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self.working.discard(task)
        if not task.cancelled():
            task.result()  # a failed assertion reaches the loop's exception handler

    async def _work(self, message: Message, key: Key) -> None:
        await asyncio.sleep(self.random.random() * self.random.choice([0.01, 2]))
        if self.random.random() < 0.3:
            self.in_flight.discard(key)
            with contextlib.suppress(AlreadySettledError):
                await message.nack(delay=self.random.random() * 3)
            return
        self.asked.add(key)
        while True:
            try:
                await message.ack()
            except AlreadySettledError:
                break
            except BrokerError:
                await asyncio.sleep(0.1)
            else:
                topic = next(topic for topic in self.cluster.topics if topic.partition == key[0])
                assert self.cluster.is_acked(topic, key), "reported, and the broker does not have it"
                break
        self.in_flight.discard(key)


async def live(seed: int, kind: Any, partitions: int) -> None:
    """Publish while consumers work during faults, end the faults, and check that all is acknowledged and no more."""
    random.seed(seed)  # from which backoffs take their jitter
    cluster = Cluster(Random(seed), partitions)
    url = ",".join([URLS[0], *(each.removeprefix("pulsar://") for each in URLS[1:])])
    asked: set[Key] = set()
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    clients = [Client(url, OPTIONS, dial=cluster.broker.dial) for _ in range(1 if kind == "exclusive" else 2)]
    consumers = [
        await client.subscribe(
            "orders", "s", consumer_type=kind, initial_position="earliest", receiver_queue_size=20, redelivery="auto"
        )
        for client in clients
    ]
    users = [User(cluster, each, Random(f"{seed} {number}"), asked) for number, each in enumerate(consumers)]
    living = [asyncio.create_task(user.live()) for user in users]
    troubling = asyncio.create_task(cluster.make_trouble())
    for _ in range(60):
        cluster.publish()
        await asyncio.sleep(cluster.random.random() / 3)
    troubling.cancel()
    cluster.end_trouble()
    for _ in range(180):
        await asyncio.sleep(1)
        if all(cluster.is_acked(topic, key) for topic, key in cluster.published()):
            break
    missing = [key for topic, key in cluster.published() if not cluster.is_acked(topic, key)]
    assert missing == [], f"never done: {len(missing)}, the first is {missing[:3]}; {faults}"
    assert {key for _, key in cluster.published()} == asked
    assert [task for task in living if task.done()] == []
    assert faults == []
    for task in living:
        task.cancel()
    for consumer, client in zip(consumers, clients, strict=True):
        await consumer.aclose()
        await client.aclose()
    for user in users:
        for task in user.working:
            task.cancel()
    await asyncio.sleep(1)
    assert cluster.broker.links == []
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, left


@pytest.mark.parametrize("partitions", [0, 3])
def test_nothing_is_lost(partitions: int) -> None:
    """With some faults each message is delivered until it is acked, and every `await ack()` that returned is stored."""
    run(live(0, "shared", partitions))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover", "exclusive"])
def test_nothing_is_lost_in_any_trouble(kind: str, partitions: int) -> None:
    """The same with all kinds of faults, for each type of subscription."""

    @examples(8, phases=[Phase.explicit, Phase.generate])
    @given(st.integers(0, 2**32))
    @example(0)
    def in_trouble(seed: int) -> None:
        run(live(seed, kind, partitions))

    in_trouble()
