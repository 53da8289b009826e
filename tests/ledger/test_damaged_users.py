"""Users of logs with a wrong byte in one of them: those that refuse to open change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pulsar_nack import Position
from pulsar_nack.delayed import LogDelayedCursor
from pulsar_nack.errors import LogCorruptedError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.format import SEGMENT_HEADER_SIZE
from pulsar_nack.testing import LocalBroker
from pulsar_nack.topic import LocalTopic


async def topic(folder: Path) -> None:
    """Use a topic, with a few more entries each time."""
    async with await LocalTopic.open(folder) as topic:
        for number in range(4):
            await topic.publish(b"%d" % number)


async def durable(folder: Path) -> None:
    """Use a consumer's durable state; its messages are held for long from the first time on."""
    is_new = not any(folder.iterdir())
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("s", durable=folder) as consumer:
            for number in range(4 if is_new else 0):
                await topic.publish(b"%d" % number)
                await (await consumer.receive()).nack(delay=3_600)


async def delayed_cursor(folder: Path) -> None:
    """Use the properties of a bucket tracker."""
    async with await LocalLogStore.open(folder) as store, await LogDelayedCursor.open(store) as cursor:
        for number in range(4):
            await cursor.put_property(f"key {number}", "1")


def files(folder: Path) -> dict[str, bytes]:
    """Return all files of records."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.segment")}


@pytest.mark.parametrize("use", [topic, durable, delayed_cursor])
async def test_who_refuses(use: Callable[[Path], Awaitable[None]], tmp_path: Path) -> None:
    """Topics, durable consumers and bucket trackers do not open with a damaged log, because all of it counts."""
    await use(tmp_path)
    before = files(tmp_path)
    name = max(before, key=lambda each: len(before[each]))
    damaged = bytearray(before[name])
    damaged[SEGMENT_HEADER_SIZE + 30] ^= 1
    (tmp_path / name).write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(LogCorruptedError, match=f"damaged at byte {SEGMENT_HEADER_SIZE}"):
            await use(tmp_path)
    assert files(tmp_path) == {**before, name: damaged}
    (tmp_path / name).write_bytes(before[name])
    await use(tmp_path)


async def test_subscription_of_a_topic(tmp_path: Path) -> None:
    """K25: a topic opens with a damaged subscription log, which continues from the last whole marker."""
    async with await LocalTopic.open(tmp_path) as topic:
        await topic.create_subscription("s", initial_position="earliest")
        ids = await topic.publish([b"%d" % number for number in range(10)])
        port = await topic.subscribe("s")
        for number in (2, 4, 6):
            await port.acknowledge([ids[number]])
            await topic.flush()
    (folder,) = (each for each in tmp_path.glob("subscription.s-*.log") if "snapshot" not in each.name)
    (file,) = folder.iterdir()
    damaged = bytearray(file.read_bytes())
    at = SEGMENT_HEADER_SIZE
    for _ in range(2):  # the third frame: after those of the new subscription, and of the first acknowledgement
        at += 24 + int.from_bytes(damaged[at + 8 : at + 12], "big")
    damaged[at] ^= 1
    file.write_bytes(damaged)
    for acked in ([2, 4, 6], [2, 4, 6, 9], [2, 4, 6, 9]):  # the last marker needs nothing that is lost
        async with await LocalTopic.open(tmp_path) as topic:
            cursor = topic.cursor("s")
            found = [number for number in range(10) if await cursor.is_acked(Position(*ids[number][:2]))]
            assert found == acked
            await (await topic.subscribe("s")).acknowledge([ids[9]])
            await topic.flush()
    assert file.read_bytes() == damaged
