"""Local topics, on real files and on files in memory: delivery, redelivery, delays and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pulsar_nack import BrokerError, ClosedError, Delivery, InvalidArgumentError, MessageId
from pulsar_nack.config import CursorConfig, DelayedDeliveryConfig, TopicConfig
from pulsar_nack.topic import LocalTopic
from tests.patience import patience
from tests.topic.using import nothing_comes, numbered, payloads, take

SHORT = TopicConfig(max_entries_per_ledger=4)


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[LocalTopic]:
    """Return a topic whose ledgers hold four entries."""
    async with await LocalTopic.open(tmp_path / "topic", SHORT) as opened:
        yield opened


async def test_messages_come_in_order_over_ledgers(topic: LocalTopic) -> None:
    """Messages arrive with all their fields, in order, over the ends of ledgers."""
    port = await topic.subscribe("s", "exclusive")
    ids = [await topic.publish(data, key="k", properties={"n": data.decode()}) for data in numbered(10)]
    assert [(each.ledger, each.entry) for each in ids] == [(1 + at // 4, at % 4) for at in range(10)]
    deliveries = await take(port, 10)
    assert payloads(deliveries) == numbered(10)
    assert [delivery.id for delivery in deliveries] == ids
    assert deliveries[3].properties == {"n": "3"}
    assert (deliveries[3].key, deliveries[3].redelivery_count, deliveries[3].topic) == ("k", 0, topic.name)


async def test_what_was_published_and_acknowledged_stays(tmp_path: Path) -> None:
    """After a restart exactly the unacknowledged messages come, and acknowledged entries are not read."""
    home = tmp_path / "topic"
    async with await LocalTopic.open(home, SHORT) as topic:
        port = await topic.subscribe("s", initial_position="earliest")
        await topic.publish(numbered(12))
        deliveries = await take(port, 12)
        await port.acknowledge([each.id for at, each in enumerate(deliveries) if at not in {2, 3, 9}])
    async with await LocalTopic.open(home, SHORT) as topic:
        assert topic.subscriptions == ["s"]
        assert topic.backlog("s") == 3
        port = await topic.subscribe("s")
        assert payloads(await take(port, 3)) == [b"2", b"3", b"9"]
        assert await nothing_comes(port)
        assert topic.statistics().entries_read == 3 + 1  # and the last entry, for its publish time


async def test_shared_consumers_share_and_inherit(topic: LocalTopic) -> None:
    """Each message goes to one consumer of a Shared subscription, and to another when its consumer closes."""
    one, other = await topic.subscribe("s"), await topic.subscribe("s")
    await topic.publish(numbered(10))
    first, second = await take(one, 5), await take(other, 5)
    assert sorted(payloads(first) + payloads(second)) == numbered(10)
    await one.acknowledge([first[0].id])
    await one.close()
    assert sorted(payloads(await take(other, 4))) == sorted(payloads(first[1:]))
    with pytest.raises(ClosedError):
        await one.receive()


async def test_redelivery_counts(topic: LocalTopic) -> None:
    """A request redelivers the entries it names, each with a count that is one higher; not acked ones."""
    port = await topic.subscribe("s")
    await topic.publish(numbered(3))
    first = await take(port, 3)
    await port.acknowledge([first[0].id])
    for count in (1, 2):
        await port.redeliver([first[0].id, first[2].id])
        again = await take(port, 1)
        assert [(each.data, each.redelivery_count) for each in again] == [(b"2", count)]
    assert await nothing_comes(port)


async def test_exclusive_and_failover(topic: LocalTopic) -> None:
    """An Exclusive subscription has one consumer; on Failover the next one continues from unacked messages."""
    alone = await topic.subscribe("alone", "exclusive")
    with pytest.raises(BrokerError, match="exclusive"):
        await topic.subscribe("alone", "exclusive")
    with pytest.raises(BrokerError, match="exclusive"):
        await topic.subscribe("alone", "shared")
    await alone.close()
    a = await topic.subscribe("f", "failover", consumer_name="a")
    b = await topic.subscribe("f", "failover", consumer_name="b")
    await topic.publish(numbered(4))
    got = await take(a, 4)
    assert await nothing_comes(b)
    await a.acknowledge_cumulative(got[1].id)
    await a.redeliver([got[3].id])
    assert [(each.data, each.redelivery_count) for each in await take(a, 2)] == [(b"2", 0), (b"3", 0)]
    await a.close()
    assert payloads(await take(b, 2)) == [b"2", b"3"]


async def test_keys_stay_in_order(topic: LocalTopic) -> None:
    """On a Key_Shared subscription a key has one consumer, in order, though another's queue is full."""
    ports = [await topic.subscribe("k", "key_shared", receiver_queue_size=3) for _ in range(3)]
    sent = [(f"key-{at % 7}", b"%d" % at) for at in range(70)]
    for key, data in sent:
        await topic.publish(data, key=key)
    received: dict[str, list[bytes]] = {}
    owners: dict[str, set[int]] = {}

    async def consume(number: int) -> None:
        while True:
            delivery = await ports[number].receive()
            received.setdefault(delivery.key or "", []).append(delivery.data)
            owners.setdefault(delivery.key or "", set()).add(number)
            await ports[number].acknowledge([delivery.id])

    tasks = [asyncio.create_task(consume(number)) for number in range(3)]
    async with asyncio.timeout(patience(5)):
        while sum(map(len, received.values())) < 70:
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    assert received == {f"key-{key}": [data for name, data in sent if name == f"key-{key}"] for key in range(7)}
    assert all(len(numbers) == 1 for numbers in owners.values())


async def test_members_of_a_batch(topic: LocalTopic) -> None:
    """A batch is one entry: its members are acknowledged one by one, and the others are redelivered."""
    port = await topic.subscribe("s")
    ids = await topic.publish(numbered(5), batch=True)
    assert [(each.batch_index, each.batch_size) for each in ids] == [(at, 5) for at in range(5)]
    deliveries = await take(port, 5)
    assert [each.id for each in deliveries] == ids
    await port.acknowledge(ids[1:3])
    await port.redeliver([ids[0]])
    assert payloads(await take(port, 3)) == [b"0", b"3", b"4"]
    assert topic.backlog("s") == 1
    await port.acknowledge([ids[0], *ids[3:]])
    assert topic.backlog("s") == 0
    await port.redeliver([ids[0]])
    assert await nothing_comes(port)


async def test_delayed_messages(topic: LocalTopic) -> None:
    """A Shared subscription delays a message until its time; an Exclusive one gets it at once."""
    tick = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=10, is_delayed_delivery_deliver_at_time_strict=True)
    shared = await topic.subscribe("s", delayed=tick)
    alone = await topic.subscribe("x", "exclusive")
    began = asyncio.get_running_loop().time()
    await topic.publish(b"later", deliver_after=0.2)
    await topic.publish(b"now")
    assert payloads(await take(alone, 2)) == [b"later", b"now"]
    assert payloads(await take(shared, 1)) == [b"now"]
    assert payloads(await take(shared, 1)) == [b"later"]
    assert asyncio.get_running_loop().time() - began >= 0.19


async def test_seek_skip_and_clear(topic: LocalTopic) -> None:
    """A subscription can be moved, to a message or a time, and messages can be skipped."""
    port = await topic.subscribe("s")
    ids = await topic.publish(numbered(10))
    await take(port, 10)
    await port.seek(ids[6])
    assert payloads(await take(port, 4)) == numbered(10)[6:]
    await port.seek(0)
    assert await topic.skip("s", 7) == 7
    assert payloads(await take(port, 3)) == numbered(10)[7:]
    await topic.clear_backlog("s")
    assert topic.backlog("s") == 0
    await port.redeliver(ids)
    assert await nothing_comes(port)
    with pytest.raises(InvalidArgumentError):
        await port.seek(MessageId(99, 0))


async def test_ledgers_that_nobody_needs_are_deleted(topic: LocalTopic) -> None:
    """A ledger is deleted when all subscriptions have acknowledged all of it; the last one stays."""
    one, other = await topic.subscribe("one"), await topic.subscribe("other")
    await topic.publish(numbered(10))
    await one.acknowledge([each.id for each in await take(one, 10)])
    assert list(topic.ledgers) == [1, 2, 3]
    await other.acknowledge([each.id for each in await take(other, 6)])
    async with asyncio.timeout(patience(5)):
        while list(topic.ledgers) != [2, 3]:
            await asyncio.sleep(0.01)
    await other.close()
    await topic.unsubscribe("other")
    async with asyncio.timeout(patience(5)):
        while list(topic.ledgers) != [3]:
            await asyncio.sleep(0.01)
    assert topic.subscriptions == ["one"]


async def test_the_gate_holds_new_messages(tmp_path: Path) -> None:
    """K41: holes stop new messages at the limit; when they are filled delivery continues."""
    config = TopicConfig(cursor=CursorConfig(max_per_cursor_metadata_size_in_bytes=1024))
    async with await LocalTopic.open(tmp_path / "topic", config) as topic:
        port = await topic.subscribe("s", receiver_queue_size=10)
        await topic.publish(numbered(2_000))
        kept: list[Delivery] = []
        got = 0
        while True:
            try:
                delivery = await asyncio.wait_for(port.receive(), 0.2)
            except TimeoutError:
                break
            got += 1
            if got % 2:
                await port.acknowledge([delivery.id])
            else:
                kept.append(delivery)
        assert got < 2_000
        assert topic.cursor("s").metadata_size_bytes <= 1024
        assert topic._subscriptions.used["s"]._delivery.gate.is_paused
        await port.acknowledge([each.id for each in kept])
        rest = 2_000 - got
        for _ in range(rest):
            await port.acknowledge([(await asyncio.wait_for(port.receive(), patience(5))).id])
        assert topic.backlog("s") == 0


async def test_a_consumer_on_it(topic: LocalTopic) -> None:
    """The library's consumer runs on a local topic: a nacked message is redelivered at its deadline."""
    async with topic.consumer("s") as consumer:
        await topic.publish(b"order")
        message = await consumer.receive()
        await message.nack(delay=0.05)
        again = await asyncio.wait_for(consumer.receive(), patience(5))
        assert (again.data, again.redelivery_count) == (b"order", 1)
        await again.ack()
    assert topic.backlog("s") == 0


async def test_bad_input_is_named(topic: LocalTopic) -> None:
    """Invalid input is refused by name, and changes nothing."""
    port = await topic.subscribe("s")
    await topic.publish(b"x")
    (delivery,) = await take(port, 1)
    for payload in ("text", [], [b"x", "y"], 5):
        with pytest.raises(InvalidArgumentError, match="payload"):
            await topic.publish(payload)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="type"):
        await topic.subscribe("s", "nonsense")
    with pytest.raises(InvalidArgumentError):
        await port.acknowledge([delivery.id, MessageId(1, 99)])
    with pytest.raises(InvalidArgumentError):
        await port.acknowledge([delivery.id, MessageId(7, 0)])
    assert topic.backlog("s") == 1
    assert topic.last_position == (1, 0)
    with pytest.raises(InvalidArgumentError, match="ids"):
        await port.acknowledge([MessageId(1, 0, topic="another")])
