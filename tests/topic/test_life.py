"""Consumers that join, leave, are dropped and cancelled; many at once; deleted ledgers; moves, batches, restarts."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from pulsar_nack import BrokerError, ClosedError, InvalidArgumentError, MessageId
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.consumer import ConsumerPort
from pulsar_nack.errors import AlreadyEnteredError, LogLockedError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FaultyPort, LocalBroker, ManualClock, MemoryFiles, virtual_time
from pulsar_nack.topic import LocalTopic, SubscriptionType, open_local
from tests.topic.using import nothing_comes, numbered, payloads, subscribed, take, until_quiet

SMALL = TopicConfig(max_entries_per_ledger=7)
TYPES = pytest.mark.parametrize("kind", [each.value for each in SubscriptionType])


async def test_entered_once_at_a_time(tmp_path: Path) -> None:
    """Entering an opening twice is refused, because nothing would close the first topic; later it works."""
    opening = open_local(tmp_path, SMALL)
    async with open_local(tmp_path):
        with pytest.raises(LogLockedError):
            await opening.__aenter__()
    for _ in range(2):
        async with opening as topic:
            with pytest.raises(AlreadyEnteredError, match="the topic was entered already"):
                await opening.__aenter__()
            await topic.publish(b"x")
        with pytest.raises(ClosedError):
            await topic.publish(b"x")


async def test_a_dropped_consumer_gives_back_at_once(tmp_path: Path) -> None:
    """Messages of a port that was garbage-collected go to the others, without a close."""
    async with open_local(tmp_path, SMALL) as topic:
        dropped = await topic.subscribe("s")
        await topic.publish(numbered(5))
        await take(dropped, 3)
        other = await topic.subscribe("s")
        del dropped
        gc.collect()
        assert payloads(await take(other, 5)) == numbered(5)
        assert topic.statistics().subscriptions["s"].consumers == 1


async def test_a_failover_consumer_takes_over(tmp_path: Path) -> None:
    """The first by name gets everything, also an earlier one's messages; when it leaves the next one continues."""
    async with open_local(tmp_path, SMALL) as topic:
        second = await topic.subscribe("s", "failover", consumer_name="second")
        await topic.publish(numbered(4))
        held = await take(second, 2)
        first = await topic.subscribe("s", "failover", consumer_name="first")
        assert payloads(await take(first, 4)) == numbered(4)
        assert await nothing_comes(second)
        await second.acknowledge([held[0].id])
        await second.redeliver([held[1].id])
        assert await nothing_comes(first)
        await first.close()
        assert payloads(await take(second, 3)) == numbered(4)[1:]


@TYPES
@virtual_time
async def test_whatever_consumers_do_every_message_is_done_once(kind: str) -> None:
    """Consumers join, leave, reconnect, request and acknowledge at random: each message is done, none is lost."""
    random = Random(kind)
    async with LocalBroker(SMALL) as broker:
        topic = await broker.topic()
        await topic.create_subscription("s", initial_position="earliest")
        done: Counter[bytes] = Counter()
        order: dict[str, list[int]] = {}

        async def produce() -> None:
            for number in range(300):
                await topic.publish(b"%d" % number, key=f"key-{number % 11}")
                await asyncio.sleep(random.random() / 10)

        async def consume() -> None:
            port: FaultyPort = await broker.subscribe("s", kind, receiver_queue_size=random.randint(1, 20))
            for _ in range(random.randint(5, 60)):
                try:
                    delivery = await asyncio.wait_for(port.receive(), 3)
                except TimeoutError:
                    continue
                await asyncio.sleep(random.random() / 20)
                if random.random() < 0.1:
                    await port.redeliver([delivery.id])
                elif random.random() < 0.05:
                    await port.disconnect()
                    await asyncio.sleep(random.random())
                    await port.reconnect()
                else:
                    await port.acknowledge([delivery.id])
                    done[delivery.data] += 1
                    order.setdefault(delivery.key or "", []).append(int(delivery.data))
            await port.close()

        async def keep_consuming() -> None:
            while len(done) < 300:
                await consume()

        consumers = 1 if kind == "exclusive" else 4
        async with asyncio.timeout(3_600):
            await asyncio.gather(produce(), *(keep_consuming() for _ in range(consumers)))
        assert set(done) == {b"%d" % number for number in range(300)}
        assert topic.backlog("s") == 0


@virtual_time
async def test_a_key_is_in_order_however_consumers_come_and_go() -> None:
    """On a Key_Shared subscription a key's messages are acknowledged in the order of publishing."""
    random = Random(3)
    async with LocalBroker(SMALL) as broker:
        topic = await broker.topic()
        await topic.create_subscription("s", initial_position="earliest")
        await topic.publish(b"-")
        done: dict[str, list[int]] = {}
        for number in range(240):
            await topic.publish(b"%d" % number, key=f"key-{number % 5}")

        async def consume() -> None:
            port: FaultyPort = await broker.subscribe("s", "key_shared", receiver_queue_size=random.randint(1, 9))
            for _ in range(random.randint(3, 30)):
                try:
                    delivery = await asyncio.wait_for(port.receive(), 1)
                except TimeoutError:
                    continue
                await asyncio.sleep(random.random())
                if random.random() < 0.2:  # the rest of the key waits behind it: all of them are given back
                    break
                await port.acknowledge([delivery.id])
                if delivery.key is not None:
                    done.setdefault(delivery.key, []).append(int(delivery.data))
            await port.close()

        async def keep_consuming() -> None:
            while topic.backlog("s"):
                await consume()

        async with asyncio.timeout(36_000):
            await asyncio.gather(*(keep_consuming() for _ in range(3)))
        assert done == {f"key-{key}": list(range(key, 240, 5)) for key in range(5)}


@virtual_time
async def test_cancelled_calls_do_all_or_nothing() -> None:
    """Cancelled at any moment, an acknowledgement, a skip or a seek is done or not, and delivery continues."""
    little = TopicConfig(
        max_entries_per_ledger=5, cursor=CursorConfig(max_individual_ack_cache_bytes_per_cursor=0, flush_interval=0.01)
    )
    for pause in range(8):
        async with subscribed(little) as (_, topic, port):
            ids = await topic.publish(numbered(40))
            await take(port, 40)
            await port.acknowledge([each for each in ids if each.entry % 2])
            await topic.flush()
            for call in (
                port.acknowledge([ids[2], ids[22], ids[38]]),
                topic.skip("s", 3),
                port.seek(ids[10]),
                port.acknowledge(ids[11:20]),
            ):
                task = asyncio.create_task(call)
                for _ in range(pause):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(1)
            await port.redeliver(ids)
            async with asyncio.timeout(60):
                while topic.backlog("s"):
                    await port.acknowledge([(await port.receive()).id])
            assert topic.statistics().subscriptions["s"].in_flight == 0


async def test_what_is_on_storage_only_is_loaded(tmp_path: Path) -> None:
    """With an acknowledgement cache for one ledger, many ledgers with holes are delivered and acknowledged right."""
    little = TopicConfig(
        max_entries_per_ledger=10, cursor=CursorConfig(max_individual_ack_cache_bytes_per_cursor=0, flush_interval=0.01)
    )
    for index in range(2):
        async with open_local(tmp_path, little) as topic:
            port = await topic.subscribe("s", initial_position="earliest")
            if not index:
                await topic.publish(numbered(200))
                deliveries = await take(port, 200)
                await port.acknowledge([each.id for each in deliveries if int(each.data) % 3])
                await topic.flush()
            else:
                deliveries = await take(port, 67)
                assert [int(each.data) for each in deliveries] == list(range(0, 200, 3))
                Random(1).shuffle(deliveries)
                for each in deliveries:
                    await port.acknowledge([each.id])
                assert topic.backlog("s") == 0


async def test_batches_without_index_acknowledgement(tmp_path: Path) -> None:
    """Without index acknowledgement a batch is done when all its members were acknowledged since its last delivery."""
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s", batch_index_ack=False)
        assert not port.traits.batch_index_ack
        ids = await topic.publish(numbered(3), batch=True)
        await take(port, 3)
        await port.acknowledge(ids[:2])
        await port.redeliver(ids[2:])
        again = await take(port, 3)
        assert [(each.id, each.redelivery_count) for each in again] == [(each, 1) for each in ids]
        await port.acknowledge(ids[2:])
        assert topic.backlog("s") == 1
        await port.acknowledge(ids[:2])
        assert topic.backlog("s") == 0
        await topic.publish(numbered(2), batch=True)
        whole = await take(port, 2)
        await port.acknowledge([MessageId(*whole[0].id[:2])])
        assert topic.backlog("s") == 0


@virtual_time
async def test_up_to_a_member_without_index_acknowledgement() -> None:
    """Acknowledging up to a member counts for its batch, in any order, and acknowledges everything before it."""
    two = TopicConfig(max_entries_per_ledger=2)
    async with subscribed(two, kind="exclusive", batch_index_ack=False) as (broker, topic, port):
        await topic.publish(numbered(2))
        for in_order in (True, False):
            first = await topic.publish(numbered(3), batch=True)
            second = await topic.publish(numbered(3), batch=True)
            await until_quiet(port, 0.2)
            if in_order:
                await port.acknowledge_cumulative(second[1])
                assert topic.backlog("s") == 1
                await port.acknowledge([second[2]])
            else:
                await port.acknowledge([first[2], second[2]])
                await port.acknowledge_cumulative(first[1])
                assert topic.backlog("s") == 1
                await port.acknowledge_cumulative(second[1])
            assert topic.backlog("s") == 0
        third = await topic.publish(numbered(2), batch=True)
        await until_quiet(port, 0.2)
        for beyond in (third[1]._replace(batch_index=2), third[0]._replace(entry=1)):
            with pytest.raises(InvalidArgumentError):
                await port.acknowledge_cumulative(beyond)
        await port.acknowledge_cumulative(third[0])
        await port.close()
        port = await broker.subscribe("s", "exclusive", batch_index_ack=False)
        assert payloads(await until_quiet(port, 0.2)) == numbered(2)


@virtual_time
async def test_batches_that_others_settle_are_forgotten() -> None:
    """A consumer without index acknowledgement forgets batches that others acknowledge."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        port = await topic.subscribe("s", batch_index_ack=False)
        for _ in range(3):
            await asyncio.gather(*(topic.publish(numbered(2), batch=True) for _ in range(200)))
            await until_quiet(port)
            await topic.clear_backlog("s")
        assert port._members is not None
        assert len(port._members._open) < 256


async def test_batches_on_every_way(tmp_path: Path) -> None:
    """Members of a batch are acknowledged one by one, up to one, and skipped by a seek; over a restart too."""
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s", "exclusive")
        ids = await topic.publish(numbered(6), batch=True)
        await topic.publish(b"single")
        await take(port, 7)
        await port.acknowledge([ids[4]])
        await port.acknowledge_cumulative(ids[1])
        await port.redeliver([ids[0]])
        assert payloads(await until_quiet(port, 0.2)) == [b"2", b"3", b"5", b"single"]
        await topic.flush()
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s", "exclusive")
        assert payloads(await until_quiet(port, 0.2)) == [b"2", b"3", b"5", b"single"]
        await port.seek(ids[3])
        assert payloads(await until_quiet(port, 0.2)) == [b"3", b"4", b"5", b"single"]
        await port.seek(ids[0])
        assert payloads(await until_quiet(port, 0.2)) == [*numbered(6), b"single"]


async def test_bad_acknowledgements_change_nothing(tmp_path: Path) -> None:
    """Ids beyond the end, of no ledger, or of no member are refused, and the good ids with them."""
    async with open_local(tmp_path, SMALL) as topic:
        port = await topic.subscribe("s", "exclusive")
        batch = await topic.publish(numbered(3), batch=True)
        single = await topic.publish(b"3")
        await take(port, 4)
        good = batch[0]
        for wrong in (
            MessageId(1, 2),
            MessageId(9, 0),
            MessageId(9, 0, batch_index=0, batch_size=3),
            MessageId(1, 0, batch_index=3, batch_size=9),
            MessageId(1, 1, batch_index=0, batch_size=1),
            MessageId(1, 1, partition=0),
        ):
            with pytest.raises(InvalidArgumentError):
                await port.acknowledge([good, wrong])
            with pytest.raises(InvalidArgumentError):
                await port.acknowledge_cumulative(wrong)
        assert topic.backlog("s") == 2
        assert await topic.cursor("s").batch_set(single.position) is None
        assert await topic.cursor("s").batch_set(good.position) is None
        await port.acknowledge_cumulative(single)
        await port.acknowledge_cumulative(good)  # it is acknowledged already
        await port.acknowledge([good, single])
        shared = await topic.subscribe("shared")
        with pytest.raises(BrokerError):
            await shared.acknowledge_cumulative(single)
        for ids in ([], [MessageId(1, 0)] * 100_001):
            with pytest.raises(InvalidArgumentError):
                await shared.redeliver(ids)


async def test_bad_arguments_are_named(tmp_path: Path) -> None:
    """Invalid settings are refused by name, and nothing is created."""
    with pytest.raises(InvalidArgumentError, match="config"):
        await LocalTopic.open(tmp_path / "a", config=CursorConfig())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="delayed"):
        await LocalTopic.open(tmp_path / "a", delayed=SMALL)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()
    async with open_local(tmp_path / "b", TopicConfig(max_entry_bytes=1_000)) as topic:
        for settings in (
            {"receiver_queue_size": -1},
            {"unacked_limit": 0},
            {"initial_position": "first"},
            {"batch_index_ack": 1},
            {"consumer_name": 5},
        ):
            with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
                await topic.subscribe("s", **settings)
        for name in ("", "x" * 101, 5):
            with pytest.raises(InvalidArgumentError, match="name"):
                await topic.subscribe(name)  # type: ignore[arg-type]
        assert list(topic.subscriptions) == []
        for payload in (b"x" * 1_001, [b"ok", b"x" * 1_001]):
            with pytest.raises(InvalidArgumentError, match="max_entry_bytes"):
                await topic.publish(payload)
        for wrong in (
            {"key": 5},
            {"properties": {"a": 1}},
            {"properties": "ab"},
            {"event_time_ms": -1},
            {"batch": True},
        ):
            with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
                await topic.publish(b"x", **wrong)
        assert topic.statistics().entries == 0
        for call in (
            topic.skip("none", 1),
            topic.clear_backlog("none"),
            topic.seek("none", 0),
            topic.unsubscribe("none"),
        ):
            with pytest.raises(InvalidArgumentError, match="subscription"):
                await call
        await topic.create_subscription("s")
        with pytest.raises(InvalidArgumentError, match="count"):
            await topic.skip("s", -1)
        for position in (-1, "x", 1.5):
            with pytest.raises(InvalidArgumentError, match="position"):
                await topic.seek("s", position)  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        await topic.publish(b"x")


async def test_seek_by_time(tmp_path: Path) -> None:
    """A time means the first message that was published then or later, in any ledger; after all: the end."""
    files = MemoryFiles()
    clock = ManualClock(1_000)
    for index in range(2):
        async with (
            await LocalLogStore.open("/t", files=files) as store,
            open_local(store, SMALL, clock=clock) as topic,
        ):
            if not index:
                await topic.create_subscription("keeps all", initial_position="earliest")
                for number in range(30):
                    await topic.publish(b"%d" % number)
                    clock.advance(10 if number % 3 == 2 else 0)
                assert topic.ledgers == {1: 7, 2: 7, 3: 7, 4: 7, 5: 2}
            port = await topic.subscribe("s")
            for at, first in ((0, 0), (1_000, 0), (1_001, 3), (1_010, 3), (1_075, 24), (1_090, 27)):
                await port.seek(at)
                assert payloads(await take(port, 30 - first)) == numbered(30)[first:]
            await port.seek(2_000)
            assert await nothing_comes(port)


async def test_seeking_while_ledgers_go(tmp_path: Path) -> None:
    """A seek into ledgers that are being deleted leads to the first remaining message, and loses none."""
    for pause in range(10):
        async with open_local(tmp_path / str(pause), SMALL) as topic:
            port = await topic.subscribe("s", "exclusive")
            ids = await topic.publish(numbered(30))
            await take(port, 30)
            await port.acknowledge_cumulative(ids[-1])
            for _ in range(pause):
                await asyncio.sleep(0.001)
            await port.seek(0 if pause % 2 else ids[8])
            first = topic.backlog("s")
            there = sum(topic.ledgers.values())
            assert first in {there, 22}
            assert payloads(await take(port, first)) == numbered(30)[-first:]


async def test_publish_times_do_not_fall(tmp_path: Path) -> None:
    """When the clock is set back, also over a restart, messages get the publish time of the one before."""
    for at in (5_000, 3_000):
        async with open_local(tmp_path, clock=ManualClock(at)) as topic:
            port = await topic.subscribe("s", initial_position="earliest")
            await topic.publish(b"m")
            assert {each.publish_time_ms for each in await until_quiet(port, 0.2)} == {5_000}


async def test_publish_times_do_not_fall_after_an_empty_ledger(tmp_path: Path) -> None:
    """An empty last ledger does not hide, after a restart, when the entry before was published."""
    async with await LocalTopic.open(tmp_path, clock=ManualClock(5_000)) as topic:
        await topic.subscribe("s")
        await topic.publish(b"before")
        await topic._ledgers.continue_after(0)
    async with await LocalTopic.open(tmp_path, clock=ManualClock(1_000)) as topic:
        assert topic.ledgers == {1: 1, 2: 0}
        await topic.publish(b"after")
        port = await topic.subscribe("s")
        assert [each.publish_time_ms for each in await take(port, 2)] == [5_000, 5_000]


async def test_ledgers_that_are_done_with_go_also_after_a_restart(tmp_path: Path) -> None:
    """Acknowledged ledgers are deleted at once; a restart deletes the rest, and reuses no numbers."""
    async with open_local(tmp_path, SMALL) as topic:
        one, other = await topic.subscribe("one", "exclusive"), await topic.subscribe("other", "exclusive")
        ids = await topic.publish(numbered(21))
        await take(one, 21)
        await one.acknowledge_cumulative(ids[-1])
        await asyncio.sleep(0.05)
        assert list(topic.ledgers) == [1, 2, 3]
        await take(other, 21)
        await other.acknowledge_cumulative(ids[13])
        async with asyncio.timeout(5):
            while list(topic.ledgers) != [3]:
                await asyncio.sleep(0.01)
        await topic.publish(b"21")
        await other.acknowledge_cumulative(ids[-1])
        async with asyncio.timeout(5):
            while list(topic.ledgers) != [4]:
                await asyncio.sleep(0.01)
    async with open_local(tmp_path, SMALL) as topic:
        assert list(topic.ledgers) == [4]
        assert topic.backlog("one") == topic.backlog("other") == 1
        port = await topic.subscribe("other", "exclusive")
        assert payloads(await until_quiet(port, 0.2)) == [b"21"]
        await port.seek(ids[0])
        assert payloads(await until_quiet(port, 0.2)) == [b"21"]
        await port.acknowledge_cumulative(await topic.publish(b"22"))
        assert topic.backlog("other") == 0
        await topic.unsubscribe("one")
        assert list(topic.ledgers) == [4]


async def test_unsubscribing(tmp_path: Path) -> None:
    """A subscription is deleted only without a consumer; a new one begins again, also after a restart."""
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s ä/~%", initial_position="earliest")
        await topic.publish(b"m")
        await port.acknowledge([(await port.receive()).id])
        with pytest.raises(BrokerError):
            await topic.unsubscribe("s ä/~%")
        await port.close()
        await topic.unsubscribe("s ä/~%")
        assert list(topic.subscriptions) == []
    async with open_local(tmp_path) as topic:
        assert list(topic.subscriptions) == []
        port = await topic.subscribe("s ä/~%", initial_position="earliest")
        assert payloads(await take(port, 1)) == [b"m"]
    async with open_local(tmp_path) as topic:
        assert list(topic.subscriptions) == ["s ä/~%"]


async def test_many_producers_and_consumers(tmp_path: Path) -> None:
    """Many tasks publish and consume at once on real files: everything is done once, in order for each producer."""
    async with open_local(tmp_path, TopicConfig(max_entries_per_ledger=100)) as topic:
        ports = [await topic.subscribe("shared", receiver_queue_size=50) for _ in range(4)]
        alone = await topic.subscribe("alone", "exclusive")
        seen: Counter[bytes] = Counter()

        async def produce(number: int) -> None:
            for at in range(50):
                await topic.publish(b"%d %d" % (number, at))

        async def consume(port: ConsumerPort) -> None:
            while True:
                delivery = await port.receive()
                seen[delivery.data] += 1
                await port.acknowledge([delivery.id])

        consuming = [asyncio.create_task(consume(port)) for port in ports]
        async with asyncio.timeout(60):
            await asyncio.gather(*(produce(number) for number in range(20)))
            ordered = [tuple(map(int, each.data.split())) for each in await take(alone, 1_000)]
            while topic.backlog("shared"):
                await asyncio.sleep(0.01)
        for task in consuming:
            task.cancel()
        assert len(seen) == 1_000
        assert set(seen.values()) == {1}
        for number in range(20):
            assert [at for producer, at in ordered if producer == number] == list(range(50))


@virtual_time
async def test_ledgers_that_go_while_they_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """An entry that is acknowledged and deleted while it is being read is no failure."""
    async with subscribed(TopicConfig(max_entries_per_ledger=2, cache_bytes=0)) as (broker, topic, port):
        ids = await topic.publish(numbered(4))
        await take(port, 4)
        broker.delay_reads(10)
        await port.redeliver(ids[:2])
        await asyncio.sleep(1)
        await port.acknowledge(ids[:3])
        await topic.publish(b"4")
        assert [each.data for each in [await port.receive()]] == [b"4"]
        assert list(topic.ledgers) == [2, 3]
        assert topic.statistics().subscriptions["s"].failed_reads == 0
        assert "cannot read" not in caplog.text


async def test_our_own_fault_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If delivery ends with an unexpected error, all receiving and subscribing calls get it, for good."""
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s")
        receiving = asyncio.create_task(port.receive())

        def fault(*_arguments: object) -> None:
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr("pulsar_nack.topic._delivery_loop.deliveries_of", fault)
        await topic.publish(b"m")
        with pytest.raises(BrokerError, match="a fault"):
            await receiving
        with pytest.raises(BrokerError, match="a fault"):
            await topic.subscribe("s")
    monkeypatch.undo()
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s")
        assert payloads(await take(port, 1)) == [b"m"]


async def test_seeking_by_datetime_and_not_by_seconds(tmp_path: Path) -> None:
    """O7: the topic and its consumers accept a datetime, and refuse seconds with a hint."""
    clock = ManualClock(1_790_000_000_000)
    async with open_local(tmp_path, clock=clock) as topic:
        await topic.publish(b"old")
        clock.advance(1_000)
        await topic.publish(b"new")
        await topic.create_subscription("s", initial_position="earliest")
        with pytest.raises(InvalidArgumentError, match="not in seconds"):
            await topic.seek("s", 1_790_000_000)
        assert topic.backlog("s") == 2
        await topic.seek("s", datetime.fromtimestamp(1_790_000_000.5, tz=UTC))
        assert topic.backlog("s") == 1
        async with topic.consumer("s") as consumer:
            with pytest.raises(InvalidArgumentError, match="not in seconds"):
                await consumer.seek(1_790_000_000)
            assert (await consumer.receive(timeout=5)).data == b"new"
            await consumer.seek(datetime.fromtimestamp(1_790_000_000, tz=UTC))
            assert (await consumer.receive(timeout=5)).data == b"old"
