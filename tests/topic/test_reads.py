"""What a topic reads: no acknowledged or delayed entries, after restarts and changes of trackers too."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from pulsar_nack import DelayedDeliveryConfig
from pulsar_nack.observe import CursorMetrics
from pulsar_nack.testing import FaultyPort, LocalBroker, ManualClock, virtual_time
from pulsar_nack.topic import open_local
from tests.topic.test_delayed import IN_BUCKETS, IN_MEMORY, SHARED_INDEX, UNCACHED, arrivals
from tests.topic.using import payloads, subscribed, until_quiet

UNSEALED = 100
"""Messages that may be in buckets that were not sealed when the topic closed."""


@pytest.mark.parametrize("entries", [2_000, pytest.param(200_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_a_topic_of_which_every_second_entry_is_acknowledged(tmp_path: Path, entries: int) -> None:
    """Opening it reads only the last entry, and receiving reads only unacknowledged ones."""
    async with open_local(tmp_path) as topic:
        port = await topic.subscribe("s", receiver_queue_size=1)
        for _ in range(entries // 1_000):
            ids = await topic.publish([b"m"] * 1_000)
            await port.acknowledge(ids[1::2])
    async with open_local(tmp_path) as topic:
        assert topic.backlog("s") == entries // 2
        assert topic.statistics().entries_read == 1
        port = await topic.subscribe("s", receiver_queue_size=10)
        got = [(await port.receive()).id.entry for _ in range(300)]
        assert got == list(range(0, 600, 2))
        assert topic.statistics().entries_read <= 1 + 300 + 10


@virtual_time
async def test_a_shared_index_is_not_read_again() -> None:
    """After a restart two subscriptions of one index read only entries that the index does not hold."""
    async with LocalBroker(UNCACHED, delayed=SHARED_INDEX) as broker:
        topic = await broker.topic()
        ports: list[FaultyPort] = [await broker.subscribe(name) for name in ("a", "b")]
        ids = await topic.publish([b"now"] * 20)
        await topic.publish([b"later"] * 400, deliver_after=10_000)
        for at, port in enumerate(ports):
            assert payloads(await until_quiet(port)) == [b"now"] * 20
            await port.acknowledge(ids[at:])
        await broker.restart()
        before = broker.entries_read
        ports = [await broker.subscribe(name) for name in ("a", "b")]
        assert [payloads(await until_quiet(port)) for port in ports] == [[], [b"now"]]
        assert broker.entries_read - before <= 1 + 2 * UNSEALED
        for got in await asyncio.gather(*(arrivals(port, 400) for port in ports)):
            assert {data for data, _ in got} == {b"later"}
        topic = await broker.topic()
        assert [topic.backlog(name) for name in ("a", "b")] == [0, 1]


@virtual_time
async def test_from_buckets_to_memory_and_back() -> None:
    """Each tracker continues where another one ended, over restarts; unused snapshots are deleted in the end."""
    async with subscribed(UNCACHED, delayed=IN_BUCKETS) as (broker, topic, port):
        for number in range(100):
            await topic.publish(b"%d" % number, deliver_after=1_000 + number)
        assert payloads(await until_quiet(port)) == []
        came: list[tuple[bytes, float]] = []
        settings: list[DelayedDeliveryConfig] = [IN_MEMORY, IN_BUCKETS, SHARED_INDEX, IN_MEMORY]
        for delayed in settings:
            await broker.restart()
            port = await broker.subscribe("s", delayed=delayed)
            came += await arrivals(port, 25)
        assert [int(data) for data, _ in came] == list(range(100))
        assert all(abs(at - 1_000 - int(data)) < 5 for data, at in came)
        topic = await broker.topic()
        assert topic.backlog("s") == 0
        await topic.publish(b"last")
        assert payloads(await until_quiet(port)) == [b"last"]
        names = await topic._subscriptions._trackers._store.names()
        assert {re.sub(r"[-.].*", "", name) for name in names} == {"ledger", "subscription", "delayed"}
        assert {name for name in names if name.startswith("delayed")} == {"delayed.delayed-index-0000000001"}


@virtual_time
async def test_from_the_last_bucket_on_nothing_is_read_twice() -> None:
    """Sealed buckets are used by the next bucket tracker, also after an in-memory one."""
    async with subscribed(UNCACHED, delayed=IN_BUCKETS) as (broker, topic, port):
        await topic.publish([b"later"] * 300, deliver_after=10_000)
        assert payloads(await until_quiet(port)) == []
        for _ in range(2):
            await port.close()
            before = broker.entries_read
            port = await broker.subscribe("s", delayed=IN_BUCKETS)
            assert payloads(await until_quiet(port)) == []
            assert broker.entries_read - before <= UNSEALED
        await port.close()
        port = await broker.subscribe("s", delayed=IN_MEMORY)
        assert payloads(await until_quiet(port)) == []
        assert topic.statistics().subscriptions["s"].delayed == 300


async def test_the_gauge_of_a_topics_cursors(tmp_path: Path) -> None:
    """K47: the gauge of cursors shows each subscription's state, as large as its statistics say."""
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry, cluster="c")
    name = "persistent://public/default/orders"
    async with open_local(tmp_path, name=name, clock=ManualClock(1)) as topic:
        port = await topic.subscribe("s")
        ids = await topic.publish([b"m"] * 100)
        metrics.add(topic.cursor("s"), topic_name=name, subscription="s")
        for acked in (1, 50):
            await port.acknowledge(ids[1 : 2 * acked : 2])
            labels = {"cluster": "c", "namespace": "public/default", "topic": name, "subscription": "s"}
            shown = registry.get_sample_value("pulsar_cursor_metadata_size_bytes", labels)
            assert shown == topic.statistics().subscriptions["s"].metadata_size_bytes
