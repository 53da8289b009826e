"""A local topic whose storage fails, at each operation in turn: repeated calls succeed in the same process."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from pulsar_nack import MessageId
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.errors import LedgerError, LogStorageError
from pulsar_nack.testing import LocalBroker, virtual_time
from tests.tiers import sample, seeds
from tests.topic.test_delayed import IN_BUCKETS

_T = TypeVar("_T")

CONFIG = TopicConfig(
    max_entries_per_ledger=3,
    cache_bytes=0,
    cursor=CursorConfig(rollover_bytes=400, flush_interval=0.01, max_individual_ack_cache_bytes_per_cursor=0),
)


async def again(call: Callable[[], Awaitable[_T]], attempts: int = 4) -> _T:
    """Repeat a call until it succeeds."""
    for _ in range(attempts - 1):
        try:
            return await call()
        except LedgerError:
            await asyncio.sleep(0.01)
    return await call()


async def live(broker: LocalBroker, name: str) -> None:
    """Subscribe, publish over the ends of ledgers, acknowledge, flush and unsubscribe."""
    topic = await broker.topic()
    port = await again(lambda: topic.subscribe(name, initial_position="latest"))
    other = await again(lambda: topic.subscribe("keeps", initial_position="earliest"))
    published: dict[MessageId, bytes] = {}
    for number in range(12):
        data = b"%d" % number
        published[await again(partial(topic.publish, data, deliver_after=number % 2))] = data
    got: dict[MessageId, bytes] = {}
    async with asyncio.timeout(100):
        while set(published) - set(got):
            delivery = await port.receive()
            got[delivery.id] = delivery.data
            if delivery.id.entry != 1:
                await again(partial(port.acknowledge, [delivery.id]))
    assert got == published
    await again(topic.flush)
    assert topic.backlog(name) == sum(each.entry == 1 for each in got)
    async with asyncio.timeout(100):
        while topic.backlog("keeps"):
            await again(partial(other.acknowledge, [(await other.receive()).id]))
    await port.close()
    await other.close()
    await again(lambda: topic.unsubscribe(name))
    await again(lambda: topic.publish(b"the end"))
    assert topic.subscriptions == ["keeps"]


async def operations() -> int:
    """Return how many operations on files a run has."""
    async with LocalBroker(CONFIG, delayed=IN_BUCKETS) as broker:
        await broker.topic()
        before = len(broker.files.history)
        await live(broker, "s")
        return len(broker.files.history) - before


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("part", seeds(range(4)))
@virtual_time
async def test_each_operation_fails(part: int, times: int) -> None:
    """Whatever fails a few times, published messages come, acknowledgements hold, and the next run is right."""
    for skip in sample(range(2 * part, await operations(), 8), most=2):
        async with LocalBroker(CONFIG, delayed=IN_BUCKETS) as broker:
            await broker.topic()
            broker.files.fail(errno.EIO, skip=skip, times=times)
            await live(broker, "s")
            broker.files.heal()
            await live(broker, "s")
            await broker.restart()
            topic = await broker.topic()
            assert topic.subscriptions == ["keeps"]
            await live(broker, "t")


@virtual_time
async def test_nothing_can_be_written() -> None:
    """While nothing can be written each publish fails; as soon as it can be, publishing succeeds."""
    async with LocalBroker(CONFIG) as broker:
        topic = await broker.topic()
        port = await topic.subscribe("s")
        broker.files.fail(errno.ENOSPC, "write", "create", "make_folder", times=math.inf)
        for _ in range(10):
            with pytest.raises(LedgerError):
                await topic.publish(b"lost")
        broker.files.heal()
        ids = await topic.publish([b"%d" % number for number in range(10)])
        assert [(await port.receive()).id for _ in range(10)] == ids


@virtual_time
async def test_each_caller_learns_the_reason() -> None:
    """Calls that share a failed write raise an error each, whose cause is the system's error."""
    async with LocalBroker(CONFIG) as broker:
        topic = await broker.topic()
        broker.files.fail(errno.ENOSPC, "write", "create", "make_folder", times=math.inf)
        errors = await asyncio.gather(topic.publish(b"lost"), topic.publish(b"lost"), return_exceptions=True)
        assert errors[0] is not errors[1]
        for error in errors:
            assert isinstance(error, LogStorageError)
            assert isinstance(error.__cause__, OSError)
            assert error.__cause__.errno == errno.ENOSPC
