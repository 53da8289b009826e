"""Races: acknowledgements, moves, deleted ledgers and cancelled calls between two steps of another operation."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import BrokerError, BucketConfig, MessageId
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.errors import LogStorageError
from pulsar_nack.testing import FaultyPort, LocalBroker, virtual_time
from pulsar_nack.topic import LocalTopic, open_local
from pulsar_nack.topic._inbox import BatchMembers
from tests.topic.test_delayed import IN_BUCKETS, IN_MEMORY
from tests.topic.using import numbered, payloads, subscribed, take, until_quiet

PAIRS = TopicConfig(max_entries_per_ledger=2, cache_bytes=0)
NOTHING_LOADED = TopicConfig(
    max_entries_per_ledger=2,
    cache_bytes=0,
    cursor=CursorConfig(max_individual_ack_cache_bytes_per_cursor=0, flush_interval=0.01),
)


def before_each(monkeypatch: pytest.MonkeyPatch, thing: object, name: str, do: Callable[[], Awaitable[object]]) -> None:
    """Run a function before an object's method is called, the first time only."""
    call, left = getattr(thing, name), [do]

    async def patched(*arguments: Any, **options: Any) -> Any:
        while left:
            await left.pop()()
        return await call(*arguments, **options)

    monkeypatch.setattr(thing, name, patched)


@virtual_time
async def test_what_is_acknowledged_before_it_is_due_is_not_read() -> None:
    """A delayed message that is acknowledged by its id is neither read nor sent when it is due."""
    async with subscribed(PAIRS, delayed=IN_MEMORY) as (broker, topic, port):
        await topic.publish(b"held")
        later = await topic.publish(b"later", deliver_after=10)
        assert payloads(await until_quiet(port)) == [b"held"]
        await port.acknowledge([later])
        before = broker.entries_read
        await asyncio.sleep(20)
        assert payloads(await until_quiet(port)) == []
        assert broker.entries_read == before


@virtual_time
async def test_a_ledger_that_goes_while_a_due_message_is_read() -> None:
    """If an entry is acknowledged and deleted while it is read for a consumer, delivery skips it and continues."""
    async with subscribed(PAIRS, delayed=IN_MEMORY) as (broker, topic, port):
        held = await topic.publish(b"held")
        later = await topic.publish(b"later", deliver_after=10)
        assert payloads(await until_quiet(port)) == [b"held"]
        broker.delay_reads(4)
        await asyncio.sleep(12)
        ids = await topic.publish(numbered(3))
        await port.acknowledge([later])
        topic._subscriptions.used["s"]._dispatcher.requeue([later.position])  # as if it were due once more
        await port.acknowledge([held, ids[0]])
        async with asyncio.timeout(100):
            assert payloads([await port.receive() for _ in range(2)]) == [b"1", b"2"]
        assert list(topic.ledgers) == [2, 3]
        assert topic.statistics().subscriptions["s"].waiting == 0


@pytest.mark.parametrize("delayed", [IN_MEMORY, IN_BUCKETS], ids=["memory", "buckets"])
@virtual_time
async def test_a_clear_keeps_what_comes_meanwhile(delayed: BucketConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message published during a clear is not forgotten, also when it is delayed and was held back."""
    async with subscribed(delayed=delayed) as (_, topic, port):
        await topic.publish([b"cleared"] * 3, deliver_after=5)

        async def publish() -> None:
            await topic.publish(b"kept", deliver_after=5)
            await asyncio.sleep(1)

        before_each(monkeypatch, topic.cursor("s"), "acknowledge_cumulative", publish)
        await topic.clear_backlog("s")
        assert topic.backlog("s") == 1
        async with asyncio.timeout(100):
            assert (await port.receive()).data == b"kept"
        assert payloads(await until_quiet(port)) == []


@virtual_time
async def test_a_skip_beside_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skip whose messages are all acknowledged while it begins does nothing, and raises nothing."""
    async with subscribed(kind="exclusive") as (_, topic, port):
        ids = await topic.publish(numbered(6))
        await take(port, 6)
        cursor = topic.cursor("s")
        before_each(
            monkeypatch,
            cursor,
            "acknowledge_cumulative",
            lambda: cursor.acknowledge([each.position for each in ids[:4]]),
        )
        await topic.skip("s", 2)
        assert topic.backlog("s") == 2
        assert topic.statistics().subscriptions["s"].mark_delete_position == ids[3].position


@virtual_time
async def test_a_member_that_is_acknowledged_while_its_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member acknowledged while its batch is about to be sent is not delivered."""
    async with LocalBroker(PAIRS) as broker:
        topic = await broker.topic()
        ids = await topic.publish(numbered(3), batch=True)
        await topic.create_subscription("s", initial_position="earliest")
        other: FaultyPort = await broker.subscribe("s", "shared")
        assert payloads(await until_quiet(other)) == numbered(3)
        before_each(
            monkeypatch,
            topic.cursor("s"),
            "is_acked",
            lambda: topic._subscriptions.used["s"].moves.acknowledge([ids[1]]),
        )
        await other.redeliver(ids[:1])
        assert payloads(await until_quiet(other)) == [b"0", b"2"]
        await other.acknowledge([ids[0], ids[2]])
        assert topic.backlog("s") == 0
        assert topic.statistics().subscriptions["s"].in_flight == 0


@virtual_time
async def test_acknowledging_in_a_batch_whose_ledger_goes() -> None:
    """A member that is acknowledged again while its ledger is deleted is accepted."""
    async with subscribed(PAIRS) as (broker, topic, port):
        single = await topic.publish(b"3")
        batch = await topic.publish(numbered(3), batch=True)
        next_one = await topic.publish(b"4")
        await take(port, 5)
        await port.acknowledge(batch)
        broker.delay_reads(5)
        again = asyncio.create_task(port.acknowledge(batch[:1]))
        await asyncio.sleep(1)
        await port.acknowledge([single, next_one])
        await again
        assert (list(topic.ledgers), topic.backlog("s")) == ([2], 0)


def test_members_that_are_acknowledged_at_once() -> None:
    """Two concurrent calls that acknowledge the last members of a batch complete it; a failed one is undone."""
    members = BatchMembers()
    ids = [MessageId(1, 0, batch_index=at, batch_size=3) for at in range(3)]
    members.arrived(ids)
    first, taken_first = members.note(ids[:2])
    second, taken_second = members.note(ids[2:])
    assert (first, second) == ([], [MessageId(1, 0)])
    members.undo(taken_second)
    members.undo(taken_first)
    assert members.note(ids[1:])[0] == []
    assert members.note([ids[0]])[0] == [MessageId(1, 0)]
    assert members.note([MessageId(1, 0)])[0] == [MessageId(1, 0)]


@virtual_time
async def test_batches_that_are_completed_by_calls_that_wait() -> None:
    """Without index acknowledgement too, concurrent calls that wait for storage complete a batch."""
    async with subscribed(NOTHING_LOADED, batch_index_ack=False) as (_, topic, port):
        holes = await topic.publish(numbered(20))
        batch = await topic.publish(numbered(2), batch=True)
        await take(port, 22)
        await port.acknowledge([each for each in holes if each.entry])
        await topic.flush()
        await asyncio.gather(*(port.acknowledge([holes[2 * at], batch[at]]) for at in range(2)))
        assert topic.backlog("s") == 8


@virtual_time
async def test_members_whose_acknowledgement_fails() -> None:
    """If acknowledging fails, the members of a batch count as unacknowledged, and may be tried again."""
    async with subscribed(NOTHING_LOADED, batch_index_ack=False) as (_, topic, port):
        (batch, beyond) = await topic.publish(numbered(2), batch=True), MessageId(1, 99)
        await take(port, 2)
        for members in (batch[:1], batch):
            with pytest.raises(ValueError, match=r"ids|position"):
                await port.acknowledge([*members, beyond])
        await port.acknowledge(batch[:1])
        assert topic.backlog("s") == 1
        await port.acknowledge(batch[1:])
        assert topic.backlog("s") == 0


@pytest.mark.parametrize("pause", range(12))
@virtual_time
async def test_cancelled_subscribing(pause: int) -> None:
    """Cancelled at any moment, a subscribe that changes the tracker leaves a usable subscription."""
    async with LocalBroker(delayed=IN_MEMORY) as broker:
        topic = await broker.topic()
        port = await topic.subscribe("s", initial_position="earliest")
        await topic.publish(b"later", deliver_after=10)
        await port.close()
        old = topic._subscriptions.used["s"]
        subscribing = asyncio.create_task(topic.subscribe("s", delayed=IN_BUCKETS))
        for _ in range(pause):
            await asyncio.sleep(0)
        subscribing.cancel()
        await asyncio.gather(subscribing, return_exceptions=True)
        del subscribing
        gc.collect()
        await asyncio.sleep(1)
        assert old is topic._subscriptions.used["s"] or (old._task is not None and old._task.done())
        other = await topic.subscribe("s")
        async with asyncio.timeout(60):
            assert (await other.receive()).data == b"later"
        assert topic.statistics().subscriptions["s"].consumers == 1


@pytest.mark.parametrize("pause", range(12))
@virtual_time
async def test_cancelled_unsubscribing(pause: int) -> None:
    """Cancelled at any moment, an unsubscribe is done or not; the name can be used again."""
    async with LocalBroker(delayed=IN_BUCKETS) as broker:
        topic = await broker.topic()
        port = await topic.subscribe("s", initial_position="earliest")
        ids = await topic.publish(numbered(2))
        await port.acknowledge(ids[:1])
        await port.close()
        leaving = asyncio.create_task(topic.unsubscribe("s"))
        for _ in range(pause):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await asyncio.sleep(1)
        was_there = "s" in topic.subscriptions
        other = await topic.subscribe("s", initial_position="earliest")
        first = ids[1] if was_there else ids[0]
        async with asyncio.timeout(60):
            assert (await other.receive()).id == first
        await other.acknowledge([first])
        await topic.flush()


@virtual_time
async def test_unsubscribing_while_nothing_can_be_written() -> None:
    """An unsubscribe does not need to write acknowledgements that cannot be written, and succeeds in the end."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        port = await topic.subscribe("s", initial_position="earliest")
        ids = await topic.publish(numbered(3))
        await port.acknowledge(ids[:2])
        await port.close()
        broker.files.fail(28, "write")
        try:
            await topic.unsubscribe("s")
        except LogStorageError:
            broker.files.heal()
            await topic.unsubscribe("s")
        broker.files.heal()
        assert list(topic.subscriptions) == []
        port = await topic.subscribe("s", initial_position="earliest")
        assert payloads(await take(port, 3)) == numbered(3)
        with pytest.raises(BrokerError):
            await topic.unsubscribe("s")


@pytest.mark.parametrize("pause", range(8))
@virtual_time
async def test_subscribing_while_ledgers_go(pause: int) -> None:
    """A subscription that begins while ledgers are deleted begins with the first remaining message."""
    async with subscribed(PAIRS) as (broker, topic, port):
        ids = await topic.publish(numbered(9))
        await take(port, 9)
        acknowledging = asyncio.create_task(port.acknowledge(ids[:7]))
        for _ in range(pause):
            await asyncio.sleep(0)
        other: FaultyPort = await broker.subscribe("other")
        await acknowledging
        left = topic.backlog("other")
        assert left in {3, 9}
        assert payloads(await until_quiet(other)) == numbered(9)[-left:]
        await other.acknowledge(ids[-left:])
        await port.acknowledge(ids)
        await topic.publish(b"9")
        assert payloads(await until_quiet(other)) == [b"9"]
        assert (topic.backlog("s"), topic.backlog("other")) == (1, 1)


@virtual_time
async def test_flushing_while_a_subscription_goes() -> None:
    """A flush during an unsubscribe writes the acknowledgements of the other subscriptions."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        await topic.create_subscription("goes")
        port: FaultyPort = await broker.subscribe("stays")
        await port.acknowledge([await topic.publish(b"m")])
        leaving = asyncio.create_task(topic.unsubscribe("goes"))
        for _ in range(30):
            await asyncio.sleep(0)
            await topic.flush()
        await leaving
        await broker.restart(power_cut=True)
        topic = await broker.topic()
        assert (list(topic.subscriptions), topic.backlog("stays")) == (["stays"], 0)


async def test_a_topic_that_was_not_closed_warns(tmp_path: Path) -> None:
    """A topic that is dropped without being closed warns."""
    topics = [await LocalTopic.open(tmp_path)]
    await topics[0].publish(b"m")

    def drop() -> None:
        topics.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed <LocalTopic"):
        drop()
    async with open_local(tmp_path / "other"):
        pass
