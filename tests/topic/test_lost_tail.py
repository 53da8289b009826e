"""Topics whose last ledger lost its tail: later messages are delivered, also where lost entries are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pulsar_nack import BucketConfig, DelayedDeliveryConfig, LocalTopic
from pulsar_nack.config import TopicConfig
from pulsar_nack.errors import LogCorruptedError
from pulsar_nack.testing import ManualClock
from tests.topic.using import numbered, payloads, take


async def publish_each(topic: LocalTopic, messages: list[bytes], deliver_after: float | None = None) -> None:
    """Publish messages one after another, so that each is a write."""
    for message in messages:
        await topic.publish(message, deliver_after=deliver_after)


def lose_tail(home: Path) -> None:
    """Cut the last ledger in half, in the middle of an entry."""
    last = max(home.glob("ledger-*.log")) / f"{0:020}.segment"
    data = last.read_bytes()
    last.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive", "failover"])
async def test_what_is_published_afterwards_is_delivered(tmp_path: Path, kind: str) -> None:
    """O24: twenty entries are acknowledged, half of them are lost: the five published afterwards are delivered."""
    async with await LocalTopic.open(tmp_path) as topic:
        port = await topic.subscribe("s", kind)
        await publish_each(topic, numbered(20))
        await port.acknowledge([each.id for each in await take(port, 20)])
    lose_tail(tmp_path)
    async with await LocalTopic.open(tmp_path) as topic:
        assert topic.backlog("s") == 0
        ids = await topic.publish([b"new %d" % number for number in range(5)])
        assert [(each.ledger, each.entry) for each in ids] == [(2, number) for number in range(5)]
        assert topic.backlog("s") == 5
        port = await topic.subscribe("s", kind)
        assert payloads(await take(port, 5)) == [b"new %d" % number for number in range(5)]
    async with await LocalTopic.open(tmp_path) as topic:
        assert list(topic.ledgers)[-1] == 2
        assert topic.backlog("s") == 5


async def test_single_acknowledgements(tmp_path: Path) -> None:
    """O24: single acknowledgements of lost entries are dropped; remaining unacknowledged entries are delivered."""
    async with await LocalTopic.open(tmp_path) as topic:
        port = await topic.subscribe("s")
        await publish_each(topic, numbered(20))
        received = await take(port, 20)
        await port.acknowledge([each.id for each in received if each.id.entry % 2])
    lose_tail(tmp_path)
    async with await LocalTopic.open(tmp_path) as topic:
        left = topic.ledgers[1]
        await topic.publish(numbered(5))
        port = await topic.subscribe("s")
        assert topic.backlog("s") == (left + 1) // 2 + 5
        assert payloads(await take(port, topic.backlog("s"))) == [*numbered(20)[:left:2], *numbered(5)]


async def test_a_whole_ledger_is_lost(tmp_path: Path) -> None:
    """O24: the number of a lost ledger, which a cursor knows, is not used again."""
    config = TopicConfig(max_entries_per_ledger=10)
    async with await LocalTopic.open(tmp_path, config) as topic:
        port = await topic.subscribe("s")
        await publish_each(topic, numbered(25))
        await port.acknowledge([each.id for each in (await take(port, 25))[1:]])
    shutil.rmtree(tmp_path / f"ledger-{3:020}.log")
    async with await LocalTopic.open(tmp_path, config) as topic:
        new = await topic.publish(b"new")
        assert new.ledger > 3
        assert topic.backlog("s") == 2
        assert payloads(await take(await topic.subscribe("s"), 2)) == [numbered(1)[0], b"new"]


@pytest.mark.parametrize(
    "delayed", [DelayedDeliveryConfig(), BucketConfig(delayed_delivery_min_index_count_per_bucket=5)]
)
async def test_lost_messages_that_were_delayed(tmp_path: Path, delayed: DelayedDeliveryConfig) -> None:
    """O24: the delays of lost messages do not apply to later ones, and cause no delivery."""
    clock = ManualClock(1_000_000)
    async with await LocalTopic.open(tmp_path, clock=clock, delayed=delayed) as topic:
        await topic.subscribe("s")
        await publish_each(topic, numbered(20), deliver_after=3_600)
    lose_tail(tmp_path)
    async with await LocalTopic.open(tmp_path, clock=clock, delayed=delayed) as topic:
        left = topic.ledgers[1]
        port = await topic.subscribe("s")
        await topic.publish([b"new %d" % number for number in range(5)])
        assert payloads(await take(port, 5)) == [b"new %d" % number for number in range(5)]
        clock.advance(3_600_000)
        assert payloads(await take(port, left)) == numbered(20)[:left]
        assert topic.backlog("s") == left + 5


async def test_lost_messages_that_were_nacked_durably(tmp_path: Path) -> None:
    """O24: a durable consumer's nacks of lost entries do not delay later messages."""
    async with (
        await LocalTopic.open(tmp_path / "topic") as topic,
        topic.consumer("s", durable=tmp_path / "nacks") as consumer,
    ):
        await publish_each(topic, numbered(20))
        for _ in range(20):
            await (await consumer.receive()).nack(delay=3_600)
    lose_tail(tmp_path / "topic")
    async with (
        await LocalTopic.open(tmp_path / "topic") as topic,
        topic.consumer("s", durable=tmp_path / "nacks") as consumer,
    ):
        await topic.publish([b"new %d" % number for number in range(5)])
        assert [(await consumer.receive(timeout=5)).data for _ in range(5)] == [b"new %d" % n for n in range(5)]


async def test_swapped_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """O26: swapped files of two subscriptions are ignored with a warning; of two ledgers they are damage."""
    config = TopicConfig(max_entries_per_ledger=10)
    async with await LocalTopic.open(tmp_path, config) as topic:
        ports = {name: await topic.subscribe(name, initial_position="earliest") for name in ("few", "many")}
        await publish_each(topic, numbered(20))
        for name, count in (("few", 3), ("many", 16)):
            await ports[name].acknowledge([each.id for each in (await take(ports[name], 20))[:count]])
    swap(tmp_path, "subscription.few-0000000001", "subscription.many-0000000001")
    async with await LocalTopic.open(tmp_path, config) as topic:
        assert {name: topic.backlog(name) for name in ("few", "many")} == {"few": 17, "many": 4}  # by their snapshots
    assert "it is a segment of another log" in caplog.text
    swap(tmp_path, f"ledger-{1:020}", f"ledger-{2:020}")
    with pytest.raises(LogCorruptedError, match="it is a segment of another log"):
        await LocalTopic.open(tmp_path, config)


def swap(home: Path, one: str, other: str) -> None:
    """Swap the first files of two logs."""
    first, second = (home / f"{log}.log" / f"{0:020}.segment" for log in (one, other))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
