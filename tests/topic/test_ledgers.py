"""The ledgers of a local topic: many publishers, rollover, cancelled and failed writes, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from random import Random

import pytest

from pulsar_nack.config import TopicConfig
from pulsar_nack.errors import LogStorageError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FaultyFiles, MemoryFiles
from pulsar_nack.topic import LocalTopic
from tests.topic.using import numbered, payloads, take

SMALL = TopicConfig(max_entries_per_ledger=3)


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_nothing_is_skipped_while_ledgers_roll_over(tmp_path: Path, kind: str) -> None:
    """Concurrently published entries, over the ends of many ledgers, all come; in order to a single consumer."""
    async with await LocalTopic.open(tmp_path, SMALL) as topic:
        port = await topic.subscribe("s", kind)
        receiving = asyncio.create_task(take(port, 200))
        ids = await asyncio.gather(*(topic.publish(data) for data in numbered(200)))
        assert [(each.ledger, each.entry) for each in ids] == [(1 + at // 3, at % 3) for at in range(200)]
        assert payloads(await receiving) == numbered(200)
        assert all(topic.ledgers[ledger] == 3 for ledger in list(topic.ledgers)[:-1])


async def test_cancelled_publishing_is_whole_or_not_at_all() -> None:
    """The entry of a cancelled publish is in the topic or not, and comes without another publish."""
    async with (
        await LocalLogStore.open("/t", files=MemoryFiles()) as store,
        await LocalTopic.open(store, SMALL) as topic,
    ):
        port = await topic.subscribe("s", "exclusive")
        random = Random(7)
        for number in range(60):
            publishing = asyncio.create_task(topic.publish(b"%d" % number))
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        await asyncio.sleep(0.05)
        there = sum(topic.ledgers.values())
        assert 0 < there < 60
        received = [int(each.data) for each in await take(port, there)]
        assert received == sorted(set(received))


async def test_a_failed_rollover_is_tried_again() -> None:
    """A publish raises if the next ledger cannot be created; later ones continue, without a gap."""
    files = FaultyFiles(MemoryFiles())
    async with (
        await LocalLogStore.open("/t", files=files) as store,
        await LocalTopic.open(store, SMALL) as topic,
    ):
        port = await topic.subscribe("s")
        await topic.publish(numbered(3))
        files.fail(errno.ENOSPC, "make_folder")
        with pytest.raises(LogStorageError):
            await topic.publish(b"3")
        files.heal()
        for data in numbered(9)[3:]:
            await topic.publish(data)
        assert payloads(await take(port, 9)) == numbered(9)
        assert topic.ledgers == {1: 3, 2: 3, 3: 3}


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_adds_nothing(operation: str) -> None:
    """A publish whose write fails raises, and its message does not come; the next one is written."""
    files = FaultyFiles(MemoryFiles())
    async with (
        await LocalLogStore.open("/t", files=files) as store,
        await LocalTopic.open(store, SMALL) as topic,
    ):
        port = await topic.subscribe("s")
        await topic.publish(b"0")
        files.fail(errno.EIO, operation)
        with pytest.raises(LogStorageError):
            await topic.publish(b"lost")
        files.heal()
        await topic.publish(b"1")
        assert payloads(await take(port, 2)) == [b"0", b"1"]


@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_where_a_subscription_begins_is_durable(start: str) -> None:
    """A new subscription is there after an immediate crash, at its initial position."""
    files = MemoryFiles()
    store = await LocalLogStore.open("/t", files=files)
    async with store, await LocalTopic.open(store, SMALL) as topic:
        await topic.publish(numbered(5))
        await topic.subscribe("s", initial_position=start)
        found = files.after_crash()
    async with await LocalLogStore.open("/t", files=found) as store, await LocalTopic.open(store, SMALL) as topic:
        assert topic.subscriptions == ["s"]
        assert topic.backlog("s") == (0 if start == "latest" else 5)
        await topic.publish(b"5")
        port = await topic.subscribe("s")
        assert payloads(await take(port, 1)) == ([b"5"] if start == "latest" else [b"0"])
