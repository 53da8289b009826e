"""Messages of one key are handled in order, one at a time, also while one of them waits for its retry."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from pulsar_nack import BrokerError, Consumer, DeadLetterPolicy, Message, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import DeadLetter, Defer, Retry
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from pulsar_nack.testing._fake_delivery import FakeMessage
from tests.consumer.consuming import EXACT, all_that_comes, digits, now, publish
from tests.hanging import Storage
from tests.tiers import size
from tests.wire.fake_broker import FakeBroker
from tests.wire.using import TOPIC, subscribed

from .durable import Machine
from .ports import Ports
from .test_running import handle_all, running, until

TYPES = ("shared", "exclusive", "failover")


class Handled:
    """What a handler saw: for each key the numbers in the order in which they were done, and when."""

    def __init__(self) -> None:
        self.done: dict[str, list[int]] = defaultdict(list)
        self.at: dict[str, list[float]] = defaultdict(list)
        self.busy: set[str] = set()
        self.most_held = 0

    def end(self, message: Message, consumer: Consumer) -> None:
        """Note a message that is done."""
        key = message.key or ""
        self.done[key].append(int(message.data))
        self.at[key].append(now())
        order = consumer._receiver.key_order
        assert order is not None
        self.most_held = max(self.most_held, *(len(kept) for kept in order._kept.values()))


@pytest.mark.each_kind
@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_a_key_waits_for_its_retry(ports: Ports, kind: str) -> None:
    """U16: 0 is nacked, and the handler still sees 0, 1, 2, 3, 4."""
    port = ports.port(subscription_type=kind)
    publish(port.topic, *digits(5), key="k")
    seen = list[tuple[bytes, int]]()

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        if message.data == b"0" and message.attempt < 3:
            await message.nack(1)

    await handle_all(port, handler, key_ordered=True)
    assert seen == [(b"0", 1), (b"0", 2), (b"0", 3), (b"1", 1), (b"2", 1), (b"3", 1), (b"4", 1)]


@pytest.mark.each_kind
@pytest.mark.parametrize(("kind", "most"), [("shared", 1_000), ("shared", 5), ("exclusive", 1_000), ("exclusive", 5)])
@virtual_time
async def test_other_keys_are_not_delayed(ports: Ports, kind: str, most: int) -> None:
    """U39: order holds within each of four keys; three continue meanwhile; a small limit is kept, and stops all."""
    port = ports.port(subscription_type=kind)
    for number in range(25):
        for key in ("k0", "k1", "k2", "k3"):
            port.topic.publish(b"%d" % number, key=key)
    handled = Handled()

    async def handler(message: Message) -> None:
        key = message.key or ""
        assert key not in handled.busy
        handled.busy.add(key)
        await asyncio.sleep(0.001)
        handled.busy.remove(key)
        if (key, message.data, message.attempt) == ("k1", b"2", 1):
            raise Retry(delay=0.5)
        handled.end(message, consumer)

    async with Consumer(port, config=EXACT) as consumer:
        async with running(consumer, handler, concurrency=8, key_ordered=True, max_held_per_key=most):
            began = now()
            await until(lambda: port.subscription.backlog == 0)
        assert handled.done == {f"k{key}": list(range(25)) for key in range(4)}
        assert handled.most_held <= most
        if most == 1_000:
            assert all(handled.at[key][-1] - began < 0.3 for key in ("k0", "k2", "k3"))
            assert handled.most_held >= 22
        statistics = consumer.statistics()
        assert (statistics.held_for_keys, statistics.is_key_order_full, statistics.in_work) == (0, False, 0)


@virtual_time
async def test_the_bound_of_a_key(caplog: pytest.LogCaptureFixture) -> None:
    """U39: with 5 held of one key no more is received until its retry, as a log line says; memory limits it too."""
    for options, settings, most in (
        ({"max_held_per_key": 5}, {}, 5),
        ({}, {"max_local_bytes": 10_000}, 10),
    ):
        port = FakePort(receiver_queue_size=50)
        publish(port.topic, *digits(30), key="k")
        done = list[int]()
        caplog.clear()

        async def handler(message: Message) -> None:
            if message.data == b"0" and message.attempt == 1:
                raise Retry(delay=10)
            done.append(int(message.data))  # noqa: B023

        async with Consumer(port, config=EXACT, **settings) as consumer:  # type: ignore[arg-type]
            async with running(consumer, handler, key_ordered=True, **options):
                await asyncio.sleep(5)
                statistics = consumer.statistics()
                assert (statistics.held_for_keys, statistics.is_key_order_full) == (most, True)
                assert statistics.received == most + 1
                await until(lambda: len(done) == 30)  # noqa: B023
            assert done == list(range(30))
        assert sum("nothing is fetched until" in record.message for record in caplog.records) == 1


@virtual_time
async def test_batches_and_messages_without_a_key() -> None:
    """U16: members of batches are ordered by their keys; messages without a key wait for nothing."""
    for kind in TYPES:
        port = FakePort(subscription_type=kind)  # type: ignore[arg-type]
        port.topic.publish_batch([FakeMessage(b"%d" % at, key="k" if at % 2 else None) for at in range(8)])
        port.topic.publish(b"9", key="x", ordering_key="k")
        done = list[int]()

        async def handler(message: Message) -> None:
            if message.data in {b"1", b"0"} and message.attempt == 1:
                raise Retry(delay=1)
            done.append(int(message.data))  # noqa: B023

        await handle_all(port, handler, key_ordered=True)
        assert done[:3] == [2, 4, 6]
        assert [number for number in done if number % 2] == [1, 3, 5, 7, 9]


@pytest.mark.each_kind
@virtual_time
async def test_a_drain_gives_held_messages_back(ports: Ports) -> None:
    """U18, U39: messages that wait for their key go to the other consumer, and the drain does not wait for them."""
    port = ports.port()
    topic = port.topic
    publish(topic, *digits(10), key="k")

    async def handler(message: Message) -> None:
        raise Retry(delay=60)

    async with Consumer(port, config=EXACT) as consumer:
        task = asyncio.create_task(consumer.run(handler, key_ordered=True))
        await until(lambda: consumer.statistics().held_for_keys == 9)
        second = ports.port(topic)
        async with Consumer(second, config=EXACT) as other:
            began = now()
            report = await consumer.drain()
            assert (report.cancelled, report.left) == (0, 0)
            got = sorted([(await other.receive(timeout=1)).data for _ in range(10)])
            assert now() - began < 0.5
            assert got == [b"%d" % number for number in range(10)]
        assert await task == report


@virtual_time
async def test_a_message_that_comes_no_more_holds_nobody() -> None:
    """A key continues when the message that it waits for is settled by its id, dead-lettered, or the topic is moved."""
    dead = FakePublisher()
    port = FakePort()
    ids = [port.topic.publish(b"%d" % number, key="k") for number in range(6)]
    done = list[int]()
    failing = {b"0": Retry(100), b"2": DeadLetter("bad"), b"3": Defer(1)}

    async def handler(message: Message) -> None:
        if (verb := failing.pop(message.data, None)) is not None:
            raise verb
        done.append(int(message.data))

    policy = DeadLetterPolicy(1, "dead", publisher=dead)
    async with Consumer(port, config=EXACT, dead_letter=policy) as consumer:  # noqa: SIM117
        async with running(consumer, handler, key_ordered=True):
            await asyncio.sleep(1)
            assert done == []
            await consumer.acknowledge(ids[0])
            await until(lambda: done == [1, 3, 4, 5])
            assert [letter.data for letter in dead.letters] == [b"2"]

            failing |= {b"0": Retry(100)}
            done.clear()
            await consumer.seek(0)
            await asyncio.sleep(1)
            assert done == []
            await consumer.seek(0)
            await until(lambda: done == [0, 1, 2, 3, 4, 5])
            await until(lambda: port.subscription.backlog == 0)


@virtual_time
async def test_a_retry_that_is_nacked_by_its_id_before_it_is_handled() -> None:
    """U39: its payload is no longer known, so the broker redelivers it, though the key's limit is reached."""
    port, done = FakePort(receiver_queue_size=5), list[int]()
    first = port.topic.publish(b"0", key="k")
    publish(port.topic, *digits(1, 20), key="k")

    async def handler(message: Message) -> None:
        if message.data == b"0" and message.attempt == 1:
            raise Retry(1)
        done.append(int(message.data))

    async with Consumer(port, config=EXACT) as consumer:
        async with running(consumer, handler, key_ordered=True, max_held_per_key=3):
            await until(lambda: consumer.statistics().is_key_order_full)
            consumer.pause()
            await asyncio.sleep(2)
            await consumer.negative_acknowledge(first, 1)
            await asyncio.sleep(2)
            consumer.resume()
            await until(lambda: port.subscription.backlog == 0)
        assert done == list(range(20))


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_a_seek_that_fails_while_messages_wait(kind: Any) -> None:
    """U16: messages that waited for their key come again, and are handled."""
    port, handled = FakePort(subscription_type=kind), set[int]()
    publish(port.topic, *digits(6), key="k")

    async def handler(message: Message) -> None:
        if message.data == b"0" and not handled:
            raise Retry(3600)
        handled.add(int(message.data))

    async with Consumer(port, config=EXACT) as consumer, running(consumer, handler, key_ordered=True):
        await until(lambda: consumer.statistics().held_for_keys == 5)
        for _ in range(2):  # again before the request for what the first one has left
            port.fail_next("seek")
            with pytest.raises(BrokerError):
                await consumer.seek(0)
        handled.add(-1)
        await until(lambda: port.subscription.backlog == 0)
    assert handled == set(range(-1, 6))


@virtual_time
async def test_a_seek_in_another_partition() -> None:
    """U16: messages that wait for their key in the partition that is not moved come again, in order."""
    broker, handled = FakeBroker(), list[tuple[int, bytes]]()
    broker.partitions[TOPIC] = 2
    for number in range(12):
        broker.topic(f"{TOPIC}-partition-{number % 2}").publish(b"%d" % number, partition_key="k")

    async def handler(message: Message) -> None:
        if message.data == b"0" and not handled:
            raise Retry(3600)
        handled.append((message.id.partition, message.data))

    async with subscribed(broker) as consumer, running(consumer, handler, key_ordered=True):
        await until(lambda: consumer.statistics().held_for_keys == 5)
        await consumer.seek(MessageId(7, 0, 1, topic=f"{TOPIC}-partition-1"))
        await asyncio.sleep(5)
    assert [data for partition, data in handled if partition == 0] == [b"%d" % number for number in range(0, 12, 2)]


@virtual_time
async def test_messages_that_were_forgotten_while_they_waited() -> None:
    """U16: more wait for a key than are remembered; the first is acknowledged by its id: all come, in order."""
    port = FakePort(receiver_queue_size=10)
    first = port.topic.publish(b"0", key="k")
    publish(port.topic, *digits(1, 100), key="k")
    done = list[int]()

    async def handler(message: Message) -> None:
        if message.data == b"0":
            raise Retry(3600)
        done.append(int(message.data))

    async with Consumer(port, config=EXACT, unacked_limit=30) as consumer:
        async with running(consumer, handler, key_ordered=True, max_held_per_key=90):
            await until(lambda: consumer.statistics().held_for_keys == 90)
            await consumer.acknowledge(first)
            await until(lambda: port.subscription.backlog == 0)
        assert (done, consumer.statistics().held_for_keys) == (list(range(1, 100)), 0)


@virtual_time
async def test_a_nack_that_waits_for_room_is_admitted() -> None:
    """A consumer at its limit of unacknowledged messages, all of one key, is not stuck."""
    port = FakePort(receiver_queue_size=1)
    publish(port.topic, *digits(20), key="k")
    done = list[int]()

    async def handler(message: Message) -> None:
        if message.attempt == 1:
            await asyncio.sleep(1)
            raise Retry(0.1)
        done.append(int(message.data))

    await handle_all(port, handler, {"unacked_limit": 6}, key_ordered=True)
    assert done == list(range(20))


@pytest.mark.each_kind
@pytest.mark.not_on("fake", "nowait", "local")
@virtual_time
async def test_the_connection_breaks_while_a_key_waits(ports: Ports) -> None:
    """U39: the order holds over a new session on Exclusive, though the key's limit is reached."""
    port = ports.port(subscription_type="exclusive")
    publish(port.topic, *digits(12), key="k")
    done = list[int]()

    async def handler(message: Message) -> None:
        if message.data == b"0" and message.attempt == 1:
            raise Retry(delay=2)
        done.append(int(message.data))

    async with Consumer(port, config=EXACT) as consumer:
        async with running(consumer, handler, key_ordered=True, max_held_per_key=4):
            await until(lambda: consumer.statistics().is_key_order_full)
            port.subscription.restart()
            await until(lambda: port.subscription.backlog == 0)
        assert [number for at, number in enumerate(done) if number not in done[:at]] == list(range(12))


@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive"])
@virtual_time
async def test_a_message_that_is_ready_when_the_connection_breaks(kind: str) -> None:
    """U16: the broker sends it again, and the one before it that was kept for their key: order holds."""
    broker, done = FakeBroker(), list[int]()
    topic = broker.topic(TOPIC)

    async def handler(message: Message) -> None:
        if message.data == b"0":
            if message.attempt == 1:
                raise Retry(delay=0.5)
            await asyncio.sleep(2)
        done.append(int(message.data))

    for number in range(2):
        topic.publish(b"%d" % number, partition_key="k")
    async with subscribed(broker, consumer_type=kind, receiver_queue_size=1) as consumer:
        async with running(consumer, handler, concurrency=1, key_ordered=True):
            await asyncio.sleep(1)
            topic.publish(b"2", partition_key="k")
            await until(lambda: consumer.statistics().ready == 1)
            broker.cut()
            await until(lambda: len(done) == 3)
        assert done == [0, 1, 2]


@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive"])
@virtual_time
async def test_the_bound_of_a_key_holds_in_a_new_session(kind: str) -> None:
    """U39: once the message that a key waits for has come again, its retry is from memory, and the limit holds."""
    broker, done = FakeBroker(), list[int]()
    topic = broker.topic(TOPIC)

    async def handler(message: Message) -> None:
        if message.data == b"0" and message.attempt == 1:
            raise Retry(delay=30)
        done.append(int(message.data))

    def publish(numbers: range) -> None:
        for number in numbers:
            topic.publish(b"%d" % number, partition_key="k")

    publish(range(3))
    async with subscribed(broker, consumer_type=kind) as consumer:
        async with running(consumer, handler, key_ordered=True, max_held_per_key=4):
            await until(lambda: consumer.statistics().held_for_keys == 2)
            broker.cut()
            await asyncio.sleep(2)
            publish(range(3, 50))
            await asyncio.sleep(2)
            assert (consumer.statistics().held_for_keys, consumer.statistics().is_key_order_full) == (4, True)
            await asyncio.sleep(30)
        assert done == list(range(50))


@pytest.mark.each_kind
@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_what_waits_for_its_key_is_not_redelivered(ports: Ports, kind: str) -> None:
    """U16: all messages of handlers are redelivered, several times; those that no handler saw are first attempts."""
    port, dead, seen = ports.port(subscription_type=kind), FakePublisher(), list[tuple[bytes, int]]()
    publish(port.topic, *digits(3), key="k")

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        await asyncio.sleep(0.5)

    policy = DeadLetterPolicy(1, "dead", publisher=dead)
    async with (
        Consumer(port, dead_letter=policy, config=EXACT) as consumer,
        running(consumer, handler, key_ordered=True),
    ):
        for _ in range(3):
            await asyncio.sleep(0.1)
            await consumer.redeliver_unacknowledged_messages()
        await until(lambda: port.subscription.backlog == 0)
    assert (seen, dead.letters) == ([(b"0", 1), (b"1", 1), (b"2", 1)], [])


@pytest.mark.each_kind
@virtual_time
async def test_a_paused_consumer_begins_with_no_message_of_a_key(ports: Ports) -> None:
    """U16, O17: messages that wait for their key are handled after the resume, in order."""
    port, handled = ports.port(), list[tuple[bytes, bool]]()
    publish(port.topic, *digits(4), key="k")

    async def handler(message: Message) -> None:
        handled.append((message.data, consumer.is_paused))
        await asyncio.sleep(1)

    async with Consumer(port, config=EXACT) as consumer, running(consumer, handler, key_ordered=True):
        await asyncio.sleep(1.5)
        for _ in range(2):
            consumer.pause()
            await asyncio.sleep(10)
            consumer.resume()
            await asyncio.sleep(0.5)
        await until(lambda: port.subscription.backlog == 0)
    assert handled == [(b"%d" % number, False) for number in range(4)]


@virtual_time
async def test_messages_that_only_waited_count_no_attempt() -> None:
    """U16: durable, drained or killed repeatedly: order holds, and messages that only waited are first attempts."""
    machine, dead = Machine(), FakePublisher()
    publish(machine.topic, *digits(10), key="k")
    attempts: dict[bytes, int] = {}

    async def handler(message: Message) -> None:
        attempts[message.data] = message.attempt
        await asyncio.sleep(0 if turns == 6 else 60)

    policy = DeadLetterPolicy(9, "dead", publisher=dead)
    for turns in range(6):
        async with machine.consuming(killed=turns % 2 == 0, dead_letter=policy, backoff=[3]) as consumer:
            task = asyncio.create_task(consumer.run(handler, key_ordered=True, drain_timeout=1))
            await asyncio.sleep(5)
            assert consumer.statistics().held_for_keys == 9
            if turns % 2:
                await consumer.drain(1)
            task.cancel()
            await asyncio.wait([task])
    turns = 6
    async with machine.consuming(dead_letter=policy) as consumer, running(consumer, handler, key_ordered=True):
        await until(lambda: len(attempts) == 10)
    assert list(attempts.items()) == [(b"%d" % number, 1 if number else 7) for number in range(10)]
    assert dead.letters == []


@pytest.mark.parametrize("settles", ["ack", "ack that fails", "dead letter"])
@virtual_time
async def test_a_worker_that_is_cancelled_while_it_settles(settles: str) -> None:
    """U16: the handler is cancelled too late, while its message is being settled: the key continues."""
    port, dead, handled = FakePort(), FakePublisher(latency=1), list[bytes]()
    publish(port.topic, *digits(3), key="k")

    async def handler(message: Message) -> None:
        handled.append(message.data)
        if len(handled) > 1:
            return
        error = BrokerError("late") if settles == "ack that fails" else None
        port._add_fault("acknowledge", Fault(delay=1, error=error), 1)
        worker = asyncio.current_task()
        assert worker is not None
        asyncio.get_running_loop().call_later(0.5, worker.cancel)
        if settles == "dead letter":
            raise DeadLetter

    policy = DeadLetterPolicy(9, "dead", publisher=dead)
    async with Consumer(port, dead_letter=policy, backoff=[5], config=EXACT) as consumer:
        async with running(consumer, handler, concurrency=2, key_ordered=True):
            await until(lambda: port.subscription.backlog == 0)
        assert consumer.statistics().held_for_keys == 0
    assert handled == [b"0", b"1", b"2"] + [b"0"] * (settles == "ack that fails")
    assert len(dead.letters) == (settles == "dead letter")


@pytest.mark.parametrize(("settings", "until_s"), [({"lease": 1}, 1.2), ({}, 0.5)])
@virtual_time
async def test_an_attempt_that_ended_before_its_handler_began_is_not_acknowledged(
    settings: dict[str, Any], until_s: float
) -> None:
    """U16: while slow storage records the attempt, its lease ends, or it is nacked by its id: it comes again."""
    store, threads = Storage("files").store()
    handled: list[tuple[bytes, int]] = []

    async def handler(message: Message) -> None:
        handled.append((message.data, message.attempt))

    port = FakePort()
    settings = {"durable": store, "backoff": 0.5, "config": EXACT, "wall_clock": LoopClock(), **settings}
    async with store, Consumer(port, **settings) as consumer, running(consumer, handler, key_ordered=True):
        threads.hang()
        message_id = port.topic.publish(b"x", key="k")
        await asyncio.sleep(0.1)
        nacking = asyncio.create_task(consumer.negative_acknowledge(message_id, 0)) if "lease" not in settings else None
        await asyncio.sleep(until_s - 0.1)
        threads.answer()
        await asyncio.sleep(5)
        assert nacking is None or nacking.done()
        assert handled == [(b"x", 2)]
        assert port.subscription.backlog == 0


@pytest.mark.each_kind
@pytest.mark.not_on("fake", "nowait", "local")
@virtual_time
async def test_kept_messages_of_an_ended_session(ports: Ports) -> None:
    """After a new session on Shared, a kept message that another consumer got is not handled here as well."""
    port = ports.port()
    topic = port.topic
    publish(topic, *digits(6), key="k")
    handled = list[bytes]()

    async def handler(message: Message) -> None:
        await asyncio.sleep(2)
        handled.append(message.data)

    async with Consumer(port, config=EXACT) as consumer, running(consumer, handler, key_ordered=True):
        await until(lambda: consumer.statistics().held_for_keys == 5)
        async with Consumer(ports.port(topic), config=EXACT) as other:
            port.subscription.restart()
            got = list[bytes]()
            async for message in all_that_comes(other, 1):
                got.append(message.data)
                await message.ack()
        await until(lambda: port.subscription.backlog == 0)
    assert len(got) > 0
    assert not set(got) & set(handled) - {b"0"}  # the first one was being handled
    assert set(got) | set(handled) == {b"%d" % number for number in range(6)}


@virtual_time
async def test_a_key_waits_for_an_attempt_that_is_ready() -> None:
    """A lease ends while the only worker handles the message: its next attempt comes before later ones of the key."""
    port = FakePort()
    publish(port.topic, *digits(4), key="k")
    seen = list[tuple[bytes, int]]()

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        if seen[-1] == (b"1", 1):
            await message.nack(0.3)  # later ones are received meanwhile, and kept
        await asyncio.sleep(3 if seen[-1] == (b"1", 2) else 0)

    consumer = await handle_all(port, handler, {"lease": 1.0, "backoff": [0.5]}, key_ordered=True, concurrency=1)
    assert consumer.statistics().leases_expired == 1
    assert seen == [(b"0", 1), (b"1", 1), (b"1", 2), (b"1", 3), (b"2", 1), (b"3", 1)]


@virtual_time
async def test_random_runs() -> None:
    """U16, U39: keys, nacks, deferrals, limits and types at random: order holds, nothing is lost."""
    random = Random(11)
    for turn in range(size(30, fast=6)):
        port = FakePort(subscription_type=random.choice(TYPES), receiver_queue_size=random.choice([1, 10, 1_000]))  # type: ignore[arg-type]
        count = 0
        published: dict[str | None, list[int]] = defaultdict(list)
        while count < 80:
            members = random.choice([1, 1, 4])
            keys = [random.choice(["a", "b", "c", None]) for _ in range(members)]
            messages = [FakeMessage(b"%d" % (count + at), key=key) for at, key in enumerate(keys)]
            for at, key in enumerate(keys):
                published[key].append(count + at)
            count += members
            if members == 1:
                port.topic.publish(messages[0].data, key=keys[0])
            else:
                port.topic.publish_batch(messages)
        done: dict[str | None, list[int]] = defaultdict(list)

        async def handler(message: Message) -> None:
            await asyncio.sleep(random.choice([0, 0, 0.01]))
            match random.randrange(8):
                case 0:
                    raise Retry(random.choice([0, 0.05, 1]))
                case 1:
                    raise Defer(random.choice([0, 0.05, 1]))
                case 2:
                    await message.nack(random.choice([0, 0.1]))
                    await asyncio.sleep(random.choice([0, 0.2]))
                case _:
                    done[message.key].append(int(message.data))  # noqa: B023

        async with Consumer(port, config=EXACT) as consumer:
            most = random.choice([1, 3, 1_000])
            async with running(
                consumer, handler, key_ordered=True, concurrency=random.choice([1, 3, 20]), max_held_per_key=most
            ):
                await until(lambda: sum(map(len, done.values())) == count)  # noqa: B023
                await until(lambda: port.subscription.backlog == 0)  # noqa: B023
            order = consumer._receiver.key_order
            assert order is None
        assert {key: numbers for key, numbers in done.items() if key} == {
            key: numbers for key, numbers in published.items() if key
        }, turn
        assert sorted(done[None]) == published[None]


@virtual_time
async def test_leases_do_not_run_while_a_message_waits_for_its_key() -> None:
    """A lease begins when the handler does; one that ends lets the key wait for the message's next attempt."""
    port = FakePort()
    publish(port.topic, *digits(5), key="k")
    seen = list[tuple[bytes, int]]()

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        await asyncio.sleep(3 if seen[-1] == (b"2", 1) else 0.8)

    consumer = await handle_all(port, handler, {"lease": 1.0, "backoff": [1]}, key_ordered=True)
    assert consumer.statistics().leases_expired == 1
    assert seen == [(b"0", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1), (b"4", 1)]


@virtual_time
async def test_the_next_attempt_after_a_lease_comes_before_later_messages() -> None:
    """U16: also if all workers are busy when the message is redelivered."""
    port = FakePort()
    publish(port.topic, *digits(3), key="k")
    port.topic.publish(b"busy")
    seen = list[tuple[bytes, int]]()

    async def handler(message: Message) -> None:
        seen.append((message.data, message.attempt))
        await asyncio.sleep(5 if message.data == b"0" and message.attempt == 1 else 0)
        while message.data == b"busy" and now() < 6:
            await message.in_progress()
            await asyncio.sleep(0.5)

    async with (
        Consumer(port, config=EXACT, lease=1.0, backoff=[1]) as consumer,
        running(consumer, handler, key_ordered=True, concurrency=2),
    ):
        await until(lambda: port.subscription.backlog == 0)
    assert seen == [(b"0", 1), (b"busy", 1), (b"0", 2), (b"1", 1), (b"2", 1)]
