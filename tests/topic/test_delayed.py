"""Delayed messages on local topics: in time, over restarts, in buckets, in one index, and not read in vain."""

from __future__ import annotations

import asyncio
import errno
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsar_nack import BucketConfig, DelayedDeliveryConfig, InvalidArgumentError
from pulsar_nack.config import TopicConfig
from pulsar_nack.testing import FaultyPort, LocalBroker, ManualClock, virtual_time
from tests.topic.using import now, payloads, subscribed, until_quiet

UNCACHED = TopicConfig(cache_bytes=0, max_entries_per_ledger=100)
EXACT: dict[str, Any] = {
    "delayed_delivery_tick_time_millis": 1,
    "is_delayed_delivery_deliver_at_time_strict": True,
}
IN_MEMORY = DelayedDeliveryConfig(**EXACT)
IN_BUCKETS = BucketConfig(
    delayed_delivery_tracker_factory_class_name="bucket", delayed_delivery_min_index_count_per_bucket=50, **EXACT
)
SHARED_INDEX = IN_BUCKETS.model_copy(update={"delayed_delivery_shared_index_enabled": True})
NONE = BucketConfig(delayed_delivery_tracker_factory_class_name="none")
KINDS = pytest.mark.parametrize(
    "delayed", [IN_MEMORY, IN_BUCKETS, SHARED_INDEX], ids=["memory", "buckets", "shared index"]
)


async def arrivals(port: FaultyPort, count: int) -> list[tuple[bytes, float]]:
    """Receive and acknowledge this many messages; return payloads and times."""
    got = []
    for _ in range(count):
        delivery = await asyncio.wait_for(port.receive(), 100_000)
        await port.acknowledge([delivery.id])
        got.append((delivery.data, now()))
    return got


@KINDS
@virtual_time
async def test_in_time(delayed: DelayedDeliveryConfig) -> None:
    """Each message comes at its delivery time, to the tick, in any order; undelayed ones come at once."""
    async with subscribed(delayed=delayed) as (_, topic, port):
        for delay in (5, 1, 3, 2, 4):
            await topic.publish(b"%d" % delay, deliver_after=delay)
        await topic.publish(b"0")
        got = await arrivals(port, 6)
        assert [data for data, _ in got] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert all(abs(at - int(data)) <= 0.005 for data, at in got)
        assert topic.backlog("s") == 0


@KINDS
@virtual_time
async def test_over_a_restart(delayed: DelayedDeliveryConfig) -> None:
    """After a kill delayed messages still come at their delivery times, once each."""
    async with subscribed(UNCACHED, delayed=delayed) as (broker, topic, port):
        for number in range(80):
            await topic.publish(b"%d" % number, deliver_after=1_000 + number)
        assert payloads(await until_quiet(port)) == []
        await broker.restart(kill=True)
        port = await broker.subscribe("s")
        got = await arrivals(port, 80)
        assert [int(data) for data, _ in got] == list(range(80))
        assert all(abs(at - 1_000 - int(data)) <= 5 for data, at in got)


@virtual_time
async def test_what_buckets_hold_is_not_read_again() -> None:
    """After a restart entries in sealed buckets and acknowledged ones are skipped; only the others are read."""
    async with subscribed(UNCACHED, delayed=IN_BUCKETS) as (broker, topic, port):
        await topic.publish([b"now"] * 20)
        ids = [(await port.receive()).id for _ in range(20)]
        await topic.publish([b"later"] * 300, deliver_after=10_000)
        await topic.publish([b"behind"] * 5)
        assert payloads(await until_quiet(port)) == [b"behind"] * 5
        await port.acknowledge([each for at, each in enumerate(ids) if at not in {3, 4, 9}])
        await broker.restart()
        topic = await broker.topic()
        before = broker.entries_read
        port = await broker.subscribe("s")
        assert payloads(await until_quiet(port)) == [b"now"] * 3 + [b"behind"] * 5
        held = topic.statistics().subscriptions["s"].delayed
        assert held == 300
        read = broker.entries_read - before
        assert read <= 8 + 100  # a bucket that was not full was not sealed: its messages are read once more, to be held
        again: FaultyPort = await broker.subscribe("s")
        await port.close()
        assert payloads(await until_quiet(again)) == [b"now"] * 3 + [b"behind"] * 5
        assert broker.entries_read - before - read == 8


@virtual_time
async def test_one_index_for_several_subscriptions() -> None:
    """Subscriptions that share an index each get every message once, in time, whatever the others acknowledge."""
    async with LocalBroker(delayed=SHARED_INDEX) as broker:
        topic = await broker.topic()
        ports: list[FaultyPort] = [await broker.subscribe(name) for name in ("a", "b", "c")]
        for number in range(200):
            await topic.publish(b"%d" % number, deliver_after=10 + number % 7)
        got = await asyncio.gather(*(arrivals(port, 200) for port in ports))
        for each in got:
            assert sorted(int(data) for data, _ in each) == list(range(200))
            assert all(abs(at - 10 - int(data) % 7) < 1 for data, at in each)
        assert [topic.backlog(name) for name in ("a", "b", "c")] == [0, 0, 0]


@virtual_time
async def test_precision_of_one_subscription() -> None:
    """One subscription may be exact while another one is early by up to its tick, or not delayed at all."""
    coarse = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=4_000)
    async with LocalBroker() as broker:
        topic = await broker.topic()
        exact: FaultyPort = await broker.subscribe("exact", delayed=IN_MEMORY)
        early: FaultyPort = await broker.subscribe("early", delayed=coarse)
        at_once: FaultyPort = await broker.subscribe("at once", delayed=NONE)
        await topic.publish(b"m", deliver_after=10)
        (((_, first),), ((_, second),), ((_, third),)) = await asyncio.gather(
            *(arrivals(port, 1) for port in (exact, early, at_once))
        )
        assert first == pytest.approx(10, abs=0.005)
        assert 6 <= second < 10
        assert third < 0.1


@virtual_time
async def test_settings_may_change_while_nobody_consumes() -> None:
    """A subscription gets another tracker when it has no consumer; with a consumer that is refused."""
    async with subscribed(delayed=IN_MEMORY) as (broker, topic, port):
        await topic.publish(b"m", deliver_after=10)
        assert payloads(await until_quiet(port)) == []
        with pytest.raises(Exception, match="another way"):
            await broker.subscribe("s", delayed=IN_BUCKETS)
        await port.close()
        port = await broker.subscribe("s", delayed=IN_BUCKETS)
        ((_, at),) = await arrivals(port, 1)
        assert at == pytest.approx(10, abs=0.005)


@pytest.mark.parametrize("failures", [0, 2])
@virtual_time
async def test_settings_may_change_back_at_once(failures: int) -> None:
    """Snapshots that are being deleted, or will be tried again, stay if the subscription uses buckets again."""
    in_buckets = IN_BUCKETS.model_copy(update={"delayed_delivery_min_index_count_per_bucket": 5})
    async with subscribed(TopicConfig(max_entries_per_ledger=10), delayed=in_buckets) as (broker, topic, port):
        for number in range(40):
            await topic.publish(b"%d" % number, deliver_after=100)
        assert payloads(await until_quiet(port)) == []
        for settings in (IN_MEMORY, in_buckets):
            await port.close()
            broker.files.fail(errno.EIO, "rename", "remove", "write", times=failures)
            port = await broker.subscribe("s", delayed=settings)
        assert len(await arrivals(port, 40)) == 40
        assert topic.backlog("s") == 0


@virtual_time
async def test_what_lies_behind_a_pause_comes_when_storage_answers() -> None:
    """A message after delayed ones that no storage took is delivered as soon as storage takes them."""
    in_buckets = IN_BUCKETS.model_copy(
        update={"delayed_delivery_min_index_count_per_bucket": 5, "max_unsealed_indexes": 20}
    )
    async with subscribed(delayed=in_buckets) as (broker, topic, port):
        broker.files.fail(errno.EIO, "rename", times=3)
        await topic.publish([b"later"] * 30, deliver_after=1_000)
        await topic.publish(b"now")
        assert payloads(await until_quiet(port, 0.1)) == []
        assert [data for data, at in await arrivals(port, 1) if at < 5] == [b"now"]


@virtual_time
async def test_settings_that_are_refused_leave_the_others() -> None:
    """A subscription whose new settings cannot be used keeps its old ones, for a consumer that gives none."""
    async with subscribed(delayed=IN_MEMORY) as (broker, topic, port):
        await port.close()
        await (await broker.subscribe("s", delayed=SHARED_INDEX)).close()
        with pytest.raises(InvalidArgumentError, match="the settings of the index that the subscriptions share"):
            await broker.subscribe("s", delayed=SHARED_INDEX.model_copy(update={"prefetch": timedelta(seconds=9)}))
        await broker.subscribe("s")
        assert topic._subscriptions.used["s"].delayed == SHARED_INDEX


@pytest.mark.parametrize("lookahead", [0, 2])
@virtual_time
async def test_exclusive_subscriptions_hold_nothing_back(lookahead: int) -> None:
    """Exclusive and Failover consumers get delayed messages at once, also those for which Shared ones pause."""
    delayed = DelayedDeliveryConfig(delayed_delivery_fixed_delay_detection_lookahead=lookahead, **EXACT)
    async with subscribed(delayed=delayed) as (broker, topic, port):
        await topic.publish([b"0", b"1"], deliver_after=1_000)
        assert payloads(await until_quiet(port)) == []
        await port.close()
        port = await broker.subscribe("s", "exclusive")
        await topic.publish(b"2", deliver_after=1_000)
        assert payloads(await until_quiet(port)) == [b"0", b"1", b"2"]
        await port.close()
        port = await broker.subscribe("s")
        assert payloads(await until_quiet(port)) == []
        assert sorted(data for data, _ in await arrivals(port, 3)) == [b"0", b"1", b"2"]


@KINDS
@virtual_time
async def test_moving_with_delayed_messages(delayed: DelayedDeliveryConfig) -> None:
    """A clear forgets delayed messages, a skip those that it passes, and a seek delays them again."""
    async with subscribed(delayed=delayed) as (_, topic, port):
        ids = await topic.publish([b"%d" % number for number in range(6)], deliver_after=100)
        assert payloads(await until_quiet(port)) == []
        await topic.skip("s", 2)
        assert [data for data, _ in await arrivals(port, 4)] == [b"2", b"3", b"4", b"5"]
        later = await topic.publish([b"%d" % number for number in range(6, 9)], deliver_after=100)
        await port.seek(ids[4])
        assert payloads(await until_quiet(port)) == [b"4", b"5"]
        await port.acknowledge(ids[4:6])
        assert topic.backlog("s") == len(later)
        await topic.clear_backlog("s")
        assert payloads(await until_quiet(port, 200)) == []
        assert topic.backlog("s") == 0


@virtual_time
async def test_redelivery_is_not_delayed_again() -> None:
    """A delivered delayed message that is requested again, or whose consumer closes, comes at once."""
    coarse = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=4_000)
    async with subscribed(delayed=coarse) as (broker, topic, port):
        sent = await topic.publish(b"m", deliver_after=10)
        assert (await port.receive()).redelivery_count == 0
        at = now()
        assert at < 10  # early by a tick
        await port.redeliver([sent])
        assert (await port.receive()).redelivery_count == 1
        await port.close()
        port = await broker.subscribe("s")
        assert (await port.receive()).redelivery_count == 0
        assert now() - at < 0.01


@virtual_time
async def test_many_in_a_row_that_cannot_go() -> None:
    """Messages after thousands of delayed and acknowledged ones come without a further request."""
    async with subscribed(delayed=IN_MEMORY) as (broker, topic, port):
        first = await topic.publish([b"first"] * 2)
        await topic.publish([b"later"] * 3_000, deliver_after=1_000)
        await topic.publish(b"last")
        assert payloads(await until_quiet(port)) == [b"first", b"first", b"last"]
        assert topic.statistics().subscriptions["s"].delayed == 3_000
        await port.acknowledge(first[:1])
        await port.close()
        port = await broker.subscribe("s")
        assert payloads(await until_quiet(port)) == [b"first", b"last"]


@virtual_time
async def test_seconds_are_no_time_of_delivery() -> None:
    """A time in seconds or microseconds is refused by name; the message would come at once or never."""
    async with LocalBroker(clock=ManualClock(1_700_000_000_000)) as broker:
        topic = await broker.topic()
        for wrong, unit in ((1_700_000_060, "seconds"), (1_700_000_060_000_000, "microseconds")):
            with pytest.raises(InvalidArgumentError, match=f"deliver_at.*not in {unit}"):
                await topic.publish(b"x", deliver_at=wrong)
        assert topic.statistics().entries == 0


@virtual_time
async def test_when_to_deliver_can_be_given_in_several_ways() -> None:
    """Epoch ms, a datetime with a time zone, a timedelta and seconds mean the same; invalid values are refused."""
    clock = ManualClock(1_000_000)
    async with LocalBroker(
        delayed=DelayedDeliveryConfig(**EXACT, delayed_delivery_max_delay_in_millis=60_000), clock=clock
    ) as broker:
        topic = await broker.topic()
        port: FaultyPort = await broker.subscribe("s")
        await topic.publish(b"a", deliver_at=1_010_000)
        await topic.publish(b"b", deliver_at=datetime.fromtimestamp(1_010, UTC))
        await topic.publish(b"c", deliver_at=timedelta(seconds=10))
        await topic.publish(b"d", deliver_after=10)
        clock.advance(9_999)
        assert payloads(await until_quiet(port)) == []
        clock.advance(1)
        assert payloads(await until_quiet(port)) == [b"a", b"b", b"c", b"d"]
        await topic.publish(b"e", deliver_at=5)
        assert payloads(await until_quiet(port)) == [b"e"]
        for wrong in ({"deliver_at": -1}, {"deliver_at": 1.5}, {"deliver_at": "now"}, {"deliver_at": True}):
            with pytest.raises(InvalidArgumentError, match="deliver_at"):
                await topic.publish(b"x", **wrong)
        with pytest.raises(InvalidArgumentError, match="time zone"):
            await topic.publish(b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidArgumentError, match="deliver_after"):
            await topic.publish(b"x", deliver_after=-1)
        with pytest.raises(InvalidArgumentError, match="beside"):
            await topic.publish(b"x", deliver_after=1, deliver_at=1)
        with pytest.raises(InvalidArgumentError, match=r"60,000 ms"):
            await topic.publish(b"x", deliver_after=61)
        assert topic.backlog("s") == 5


@virtual_time
async def test_keys_and_delays() -> None:
    """On a Key_Shared subscription a delayed message does not block its key, and comes when it is due."""
    async with subscribed(delayed=IN_MEMORY, kind="key_shared") as (_, topic, port):
        await topic.publish(b"later", key="k", deliver_after=5)
        await topic.publish(b"now", key="k")
        got = await arrivals(port, 2)
        assert [(data, round(at)) for data, at in got] == [(b"now", 0), (b"later", 5)]
