"""The fake port behaves like a broker and its client."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
from obstore.store import MemoryStore

from pulsar_nack import BrokerError, ClosedError, ConsumerPort, Delivery, InvalidArgumentError, MessageId
from pulsar_nack.consumer import SupportsSubscription
from pulsar_nack.testing import (
    FakeMessage,
    FakePort,
    FakePublisher,
    FakeTopic,
    FaultyFiles,
    FaultyObjects,
    MemoryFiles,
    MemorySnapshotStorage,
    virtual_time,
)
from tests.for_each import for_each


async def take(port: FakePort, count: int) -> list[Delivery]:
    """Receive a message that must be there."""
    return [await asyncio.wait_for(port.receive(), 1) for _ in range(count)]


async def holding_one() -> tuple[FakePort, MessageId]:
    """Return a port that has received a message, and its id."""
    port = FakePort()
    sent = port.topic.publish(b"x")
    await take(port, 1)
    return port, sent


async def is_quiet(port: FakePort, seconds: float = 10.0) -> bool:
    """Return whether nothing more arrives."""
    try:
        await asyncio.wait_for(port.receive(), seconds)
    except TimeoutError:
        return True
    return False


def data_of(deliveries: list[Delivery]) -> list[bytes]:
    """Return the payloads in their order."""
    return [delivery.data for delivery in deliveries]


@virtual_time
async def test_is_a_port() -> None:
    """It fits the protocol, and delivers all that was published with it."""
    port: ConsumerPort = FakePort(topic := FakeTopic("persistent://a/b/c", ledger=7))
    sent = topic.publish(b"x", key="k", properties={"a": "1"}, ordering_key="o", event_time_ms=5)
    got = await port.receive()
    assert (got.id, got.id.topic) == (sent, "persistent://a/b/c")
    assert sent == MessageId(7, 0)
    assert (got.data, got.key, got.properties, got.ordering_key) == (b"x", "k", {"a": "1"}, "o")
    assert (got.event_time_ms, got.publish_time_ms, got.redelivery_count, got.topic) == (5, 0, 0, topic.name)
    await port.close()


@virtual_time
async def test_batches_and_ledgers() -> None:
    """Batch members carry index and size, plain messages have no index, and ledgers end where they should."""
    topic = FakeTopic(ledger=3, entries_per_ledger=2)
    port = FakePort(topic)
    ids = topic.publish_batch([b"a", FakeMessage(b"b", key="k")])
    plain = [topic.publish(b"c"), topic.publish(b"d")]
    got = await take(port, 4)
    assert [each.id for each in got] == [*ids, *plain]
    assert ids == [MessageId(3, 0, -1, 0), MessageId(3, 0, -1, 1)]
    assert plain == [MessageId(3, 1), MessageId(4, 0)]
    assert {each.id.batch_size for each in got[:2]} == {2}
    assert got[1].key == "k"


@virtual_time
async def test_acknowledged_messages_do_not_come_back() -> None:
    """An acknowledged entry is done; a redelivery request for it brings nothing."""
    port, sent = await holding_one()
    await port.acknowledge([sent])
    assert port.subscription.is_acked(sent)
    assert port.subscription.backlog == 0
    await port.redeliver([sent])
    assert await is_quiet(port)


@virtual_time
async def test_redelivery_counts_grow() -> None:
    """N34: counts 0, 1, 2, 3, and only requested messages come."""
    port = FakePort()
    sent, other = port.topic.publish(b"x"), port.topic.publish(b"y")
    counts = []
    for _ in range(4):
        delivery = await port.receive()
        counts.append(delivery.redelivery_count)
        if delivery.redelivery_count == 0:
            assert (await port.receive()).id == other
        await port.redeliver([sent])
    assert counts == [0, 1, 2, 3]
    assert port.subscription.redelivery_count(sent) == 4
    assert port.subscription.redelivery_count(other) == 0


@virtual_time
async def test_older_messages_come_first() -> None:
    """A redelivered entry is sent before messages that were never sent, and several in their own order."""
    port = FakePort(receiver_queue_size=1)
    ids = [port.topic.publish(str(number).encode()) for number in range(5)]
    await take(port, 2)
    await port.redeliver([ids[1], ids[0]])
    assert data_of(await take(port, 5)) == [b"2", b"0", b"1", b"3", b"4"]


@pytest.mark.parametrize(("topic_allows", "again"), [(False, [b"0", b"1", b"2"]), (True, [b"0", b"2"])])
@virtual_time
async def test_redelivery_brings_the_whole_entry(topic_allows: bool, again: list[bytes]) -> None:
    """A request for one member redelivers the whole batch, except members acknowledged at the broker."""
    topic = FakeTopic(batch_index_ack=topic_allows)
    port = FakePort(topic, batch_index_ack=topic_allows)
    ids = topic.publish_batch([b"0", b"1", b"2"])
    await take(port, 3)
    await port.acknowledge([ids[1]])
    assert port.subscription.is_acked(ids[1]) is topic_allows
    await port.redeliver([ids[0]])
    got = await take(port, len(again))
    assert data_of(got) == again
    assert {each.redelivery_count for each in got} == {1}
    await port.acknowledge([each.id for each in got])
    assert port.subscription.backlog == 0
    assert await is_quiet(port)


@virtual_time
async def test_batch_without_index_acks_counts_again_after_redelivery() -> None:
    """Without index acknowledgement a member acknowledged before the redelivery must be acknowledged again."""
    port = FakePort()
    ids = port.topic.publish_batch([b"0", b"1"])
    await take(port, 2)
    await port.acknowledge([ids[0]])
    await port.redeliver([ids[1]])
    await take(port, 2)
    await port.acknowledge([ids[1]])
    assert port.subscription.backlog == 2
    await port.acknowledge([ids[0]])
    assert port.subscription.backlog == 0


@virtual_time
async def test_index_acks_that_the_broker_does_not_know() -> None:
    """U25: index acknowledgements on in the port and off at the broker: the batch returns, the count stays at 1."""
    topic = FakeTopic(batch_index_ack=False)
    port = FakePort(topic, batch_index_ack=True)
    ids = topic.publish_batch([b"0", b"1"])
    counts = []
    for _ in range(4):
        got = await take(port, 2)
        counts.append(got[1].redelivery_count)
        await port.acknowledge([ids[0]])
        await port.redeliver([ids[1]])
    assert counts == [0, 1, 1, 1]


@virtual_time
async def test_an_id_without_index_acknowledges_the_whole_entry() -> None:
    """An id without a batch index settles all members of the entry."""
    port = FakePort()
    port.topic.publish_batch([b"0", b"1"])
    await take(port, 2)
    await port.acknowledge([MessageId(1, 0)])
    assert port.subscription.backlog == 0


@virtual_time
async def test_consumers_share() -> None:
    """Two consumers of a Shared subscription take turns, and each may redeliver only what it holds."""
    topic = FakeTopic()
    one, two = FakePort(topic), FakePort(topic)
    ids = [topic.publish(bytes([number])) for number in range(4)]
    mine, other = await take(one, 2), await take(two, 2)
    assert [each.id for each in mine] == ids[::2]
    assert [each.id for each in other] == ids[1::2]
    await one.redeliver([ids[1]])
    assert await is_quiet(one)
    assert await is_quiet(two)
    await one.redeliver([ids[0], ids[2]])
    assert {(await take(port, 1))[0].id for port in (one, two)} == {ids[0], ids[2]}


@virtual_time
async def test_subscriptions_are_independent() -> None:
    """Another subscription of the topic gets every message too, also those published before it was created."""
    topic = FakeTopic()
    first = FakePort(topic, subscription="a")
    sent = topic.publish(b"x")
    second = FakePort(topic, subscription="b")
    await first.acknowledge([(await first.receive()).id])
    assert (await second.receive()).id == sent
    assert second.subscription.backlog == 1


@virtual_time
async def test_close_gives_to_the_others() -> None:
    """U21: messages of a closed consumer, received or not, go to the other one with their counts."""
    topic = FakeTopic()
    one, two = FakePort(topic), FakePort(topic)
    ids = [topic.publish(bytes([number])) for number in range(4)]
    await one.receive()
    await one.redeliver([ids[0]])
    await take(two, 2)
    await one.close()
    await one.close()
    got = await take(two, 2)
    assert {each.id for each in got} <= set(ids)
    assert await is_quiet(two)
    assert topic.subscription().backlog == 4


@virtual_time
async def test_the_last_to_leave_takes_the_counts_along() -> None:
    """U27: after the last consumer has left, all unacknowledged messages wait for the next one, with counts from 0."""
    topic = FakeTopic()
    port = FakePort(topic)
    sent = topic.publish(b"x")
    await take(port, 1)
    await port.redeliver([sent])
    assert (await port.receive()).redelivery_count == 1
    await port.close()
    following = FakePort(topic)
    assert (await following.receive()).redelivery_count == 0


@virtual_time
async def test_closed_port_says_so() -> None:
    """Calls after closing, and a receive that waits while it closes, raise the closed error."""
    port = FakePort()
    waiting = [asyncio.create_task(port.receive()) for _ in range(2)]
    await asyncio.sleep(1)
    await port.close()
    for task in waiting:
        with pytest.raises(ClosedError):
            await task
    assert port.is_closed
    for call in (port.receive(), port.acknowledge([MessageId(1, 0)]), port.redeliver([MessageId(1, 0)])):
        with pytest.raises(ClosedError):
            await call


@pytest.mark.parametrize("subscription_type", ["exclusive", "failover"])
@virtual_time
async def test_exclusive_rewinds_everything(subscription_type: Any) -> None:
    """N20: a request on Exclusive and Failover brings back all unacknowledged messages, in order, with count 0."""
    port = FakePort(subscription_type=subscription_type)
    assert not port.traits.honours_ids
    ids = [port.topic.publish(bytes([number])) for number in range(4)]
    await take(port, 3)
    await port.acknowledge([ids[0]])
    await port.redeliver([ids[2]])
    got = await take(port, 3)
    assert [(each.id, each.redelivery_count) for each in got] == [(each, 0) for each in ids[1:]]
    assert await is_quiet(port)


@virtual_time
async def test_exclusive_admits_one() -> None:
    """A second exclusive consumer, or one of another type, is refused until the first has left."""
    topic = FakeTopic()
    port = FakePort(topic, subscription_type="exclusive")
    with pytest.raises(BrokerError, match="has a consumer"):
        FakePort(topic, subscription_type="exclusive")
    with pytest.raises(BrokerError, match="is exclusive"):
        FakePort(topic)
    await port.close()
    FakePort(topic)


@virtual_time
async def test_failover_takes_over() -> None:
    """The second Failover consumer waits, cannot rewind, and gets all unacknowledged messages when the first leaves."""
    topic = FakeTopic()
    active = FakePort(topic, subscription_type="failover")
    standby = FakePort(topic, subscription_type="failover")
    ids = [topic.publish(bytes([number])) for number in range(3)]
    await take(active, 2)
    await active.acknowledge([ids[0]])
    await standby.redeliver([ids[1]])
    assert await is_quiet(standby)
    assert [each.id for each in await take(active, 1)] == [ids[2]]
    await active.close()
    assert [each.id for each in await take(standby, 2)] == ids[1:]


@virtual_time
async def test_latency_is_exact() -> None:
    """Deliveries and redeliveries arrive exactly after the latency, in order."""
    loop = asyncio.get_running_loop()
    port = FakePort(latency=0.25)
    assert port.traits.redelivery_latency == 0.25
    ids = [port.topic.publish(b"0"), port.topic.publish(b"1")]
    assert data_of([await port.receive(), await port.receive()]) == [b"0", b"1"]
    assert loop.time() == 0.25
    await asyncio.sleep(0.75)
    await port.redeliver(ids[1:])
    await port.receive()
    assert loop.time() == 1.25


@virtual_time
async def test_acknowledged_on_the_way() -> None:
    """U24: a redelivered message that is acknowledged before it arrives stays away, unless the test forces it."""
    port = FakePort(latency=0.1)
    sent = port.topic.publish(b"x")
    for is_forced in (False, True):
        if is_forced:
            port.subscription.reset()
            port.redeliver_acked_next()
        await port.receive()
        await port.redeliver([sent])
        await port.acknowledge([sent])
        assert await is_quiet(port) is not is_forced
    assert port.subscription.backlog == 0


@pytest.mark.parametrize(("second_count", "counts"), [(None, [1, 1]), (0, [1, 0])])
@virtual_time
async def test_duplicates(second_count: int | None, counts: list[int]) -> None:
    """U23: a redelivered message arrives twice, with counts 1 and 1, or 1 and 0, and then once again."""
    port, sent = await holding_one()
    port.duplicate_next(second_count=second_count)
    await port.redeliver([sent])
    assert [each.redelivery_count for each in await take(port, 2)] == counts
    await port.redeliver([sent])
    assert [each.redelivery_count for each in await take(port, 1)] == [2]
    assert await is_quiet(port)


@virtual_time
async def test_failing_calls() -> None:
    """Calls that are set to fail do nothing and raise the given error, and the next ones work."""
    port = FakePort()
    sent = port.topic.publish(b"x")
    port.fail_next("receive")
    with pytest.raises(BrokerError, match="receive failed"):
        await port.receive()
    await take(port, 1)
    port.fail_next("redeliver", 2, error=ConnectionResetError("gone"))
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            await port.redeliver([sent])
    await port.redeliver([sent])
    assert (await port.receive()).redelivery_count == 1
    port.fail_next("acknowledge")
    with pytest.raises(BrokerError):
        await port.acknowledge([sent])
    assert not port.subscription.is_acked(sent)


@virtual_time
async def test_lost_answers() -> None:
    """A call may take effect although it raises, as if only the answer was lost; never a receive."""
    port, sent = await holding_one()
    port.fail_next("acknowledge", carried_out=True)
    with pytest.raises(BrokerError):
        await port.acknowledge([sent])
    assert port.subscription.is_acked(sent)
    with pytest.raises(InvalidArgumentError, match="carried_out"):
        port.fail_next("receive", carried_out=True)


@virtual_time
async def test_lost_requests() -> None:
    """Calls that are set to be lost are accepted and change nothing; a receive cannot be lost."""
    port, sent = await holding_one()
    port.lose_next("acknowledge")
    port.lose_next("redeliver")
    await port.acknowledge([sent])
    await port.redeliver([sent])
    assert not port.subscription.is_acked(sent)
    assert (port.requests("acknowledge"), port.requests("redeliver")) == ([(sent,)], [(sent,)])
    await port.redeliver([sent])
    assert (await port.receive()).redelivery_count == 1
    with pytest.raises(InvalidArgumentError, match="call"):
        port.lose_next("receive")  # type: ignore[arg-type]


@virtual_time
async def test_delayed_calls() -> None:
    """Delayed calls take effect after their delay, and not at all if cancelled before."""
    port = FakePort()
    sent = port.topic.publish(b"x")
    port.delay_next("receive", 2)
    await port.receive()
    assert asyncio.get_running_loop().time() == 2
    port.delay_next("acknowledge", 5, times=2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(port.acknowledge([sent]), 4)
    await asyncio.sleep(10)
    assert not port.subscription.is_acked(sent)
    await port.acknowledge([sent])
    assert asyncio.get_running_loop().time() == 21
    assert port.subscription.is_acked(sent)


@virtual_time
async def test_close_during_a_delayed_call() -> None:
    """An open call raises the closed error when the port is closed, and does nothing."""
    port, sent = await holding_one()
    port.delay_next("acknowledge", 1)
    task = asyncio.create_task(port.acknowledge([sent]))
    await asyncio.sleep(0.5)
    await port.close()
    with pytest.raises(ClosedError):
        await task
    assert not port.subscription.is_acked(sent)


@virtual_time
async def test_calls_are_recorded() -> None:
    """Every call is recorded with its ids, time and error; requests() lists the successful ones."""
    port = FakePort()
    sent = port.topic.publish(b"x")
    await port.receive()
    port.fail_next("redeliver")
    with pytest.raises(BrokerError):
        await port.redeliver([sent])
    await asyncio.sleep(1)
    await port.redeliver([sent])
    await port.acknowledge([sent])
    await port.close()
    assert [(call.name, call.ids, call.at_ms, call.error is None) for call in port.calls] == [
        ("receive", (sent,), 0, True),
        ("redeliver", (sent,), 0, False),
        ("redeliver", (sent,), 1000, True),
        ("acknowledge", (sent,), 1000, True),
        ("close", (), 1000, True),
    ]
    assert port.requests("redeliver") == [(sent,)]


@virtual_time
async def test_requests_are_bounded() -> None:
    """N21: an empty request, or one with too many ids, is refused."""
    port = FakePort(max_ids_per_request=2)
    ids = [port.topic.publish(b"x") for _ in range(3)]
    for wrong in ([], ids):
        with pytest.raises(InvalidArgumentError, match="ids: expected 1 to 2"):
            await port.redeliver(wrong)
    assert port.calls == []


@virtual_time
async def test_prefetch_and_unacked_limit() -> None:
    """The port prefetches no more than the queue holds, and sends nothing past the limit on unacknowledged messages."""
    topic = FakeTopic()
    small, limited = FakePort(topic, receiver_queue_size=2), FakePort(topic, unacked_limit=3, subscription="b")
    ids = [topic.publish(bytes([number])) for number in range(10)]
    second = FakePort(topic)
    assert [each.id for each in await take(second, 8)] == ids[2:]
    assert [each.id for each in await take(small, 2)] == ids[:2]
    await take(limited, 3)
    assert await is_quiet(limited)
    await limited.acknowledge(ids[:1])
    await take(limited, 1)
    assert await is_quiet(limited)


@virtual_time
async def test_room_is_freed_by_what_arrives_for_nothing() -> None:
    """A full queue whose messages were acknowledged on the way continues with the next message."""
    port = FakePort(latency=0.1, receiver_queue_size=1)
    first, second = port.topic.publish(b"0"), port.topic.publish(b"1")
    await port.acknowledge([first])
    assert (await asyncio.wait_for(port.receive(), 1)).id == second


@virtual_time
async def test_partitions_share_entry_numbers() -> None:
    """N13: two partitions have the same ledger and entry; each is redelivered as itself, and only by its own topic."""
    topic = FakeTopic("persistent://a/b/c", partitions=6)
    port = FakePort(topic)
    two, five = topic.publish(b"2", partition=2), topic.publish(b"5", partition=5)
    assert (two.position, two.topic, five.topic) == (
        five.position,
        f"{topic.name}-partition-2",
        f"{topic.name}-partition-5",
    )
    assert two != five
    await take(port, 2)
    await port.redeliver([five])
    got = await take(port, 1)
    assert (got[0].data, got[0].id.topic) == (b"5", five.topic)
    with pytest.raises(BrokerError, match="names no topic"):
        await port.redeliver([MessageId(*five)])
    assert topic.publish(b"", key="k").partition == topic.publish(b"", key="k").partition
    assert len({topic.publish(b"").partition for _ in range(6)}) == 6


@virtual_time
async def test_chunked_messages_need_all_parts() -> None:
    """U19: a chunked message comes whole, and again only when a request names all its chunks."""
    port = FakePort()
    sent = port.topic.publish_chunked([b"a", b"b", b"c"])
    assert sent.parts == ((1, 0), (1, 1), (1, 2))
    assert (await port.receive()).data == b"abc"
    await port.redeliver([MessageId(1, 2)])
    assert await is_quiet(port)
    await port.redeliver([MessageId.from_bytes(sent.to_bytes())])
    assert (await port.receive()).data == b"abc"
    await port.acknowledge([sent])
    assert port.subscription.backlog == 0


@virtual_time
async def test_reset_and_restart() -> None:
    """U32: a reset sends everything from a message on again, acknowledged or not; a restart the unacknowledged."""
    port = FakePort()
    ids = [port.topic.publish(bytes([number])) for number in range(4)]
    await take(port, 4)
    await port.redeliver(ids[3:])
    assert (await port.receive()).redelivery_count == 1
    await port.acknowledge(ids[:2])
    port.subscription.restart()
    assert [(each.id, each.redelivery_count) for each in await take(port, 2)] == [(ids[2], 0), (ids[3], 0)]
    port.subscription.reset(ids[1])
    assert [each.id for each in await take(port, 3)] == ids[1:]
    assert port.subscription.is_acked(ids[0])
    port.subscription.reset()
    assert [each.id for each in await take(port, 4)] == ids


@virtual_time
async def test_cumulative_acknowledgement() -> None:
    """U35: on an exclusive subscription everything up to a message is done, within a batch where indexes count."""
    for is_by_index, backlog in ((False, 4), (True, 2)):
        port = FakePort(subscription_type="exclusive", batch_index_ack=is_by_index)
        ids = [port.topic.publish(b"0"), *port.topic.publish_batch([b"1", b"2", b"3"]), port.topic.publish(b"4")]
        await take(port, 5)
        await port.acknowledge_cumulative(ids[2])
        assert port.subscription.backlog == backlog
        await port.acknowledge_cumulative(ids[3])
        assert port.subscription.backlog == 1
        await port.acknowledge_cumulative(ids[4])
        assert port.subscription.backlog == 0
    with pytest.raises(BrokerError, match="shared"):
        await FakePort().acknowledge_cumulative(ids[0])


@pytest.mark.parametrize("is_by_index", [False, True])
@virtual_time
async def test_a_batch_that_is_acknowledged_in_both_ways(is_by_index: bool) -> None:
    """A batch is done once all its members are, some of them cumulatively and the others one by one, in any order."""
    port = FakePort(subscription_type="exclusive", batch_index_ack=is_by_index)
    ids = [*port.topic.publish_batch([b"0", b"1", b"2"]), *port.topic.publish_batch([b"3", b"4", b"5"])]
    await take(port, 6)
    await port.acknowledge_cumulative(ids[1])
    await port.acknowledge([ids[2], ids[5]])
    assert port.subscription.is_acked(ids[0])
    assert port.subscription.backlog == (2 if is_by_index else 3)
    await port.acknowledge_cumulative(ids[4])
    assert port.subscription.backlog == 0


@virtual_time
async def test_seek() -> None:
    """Seeking to a message or a publish time brings everything from there on again, also past the end."""
    port = FakePort()
    ids = []
    for number in range(4):
        ids.append(port.topic.publish(bytes([number])))
        await asyncio.sleep(1)
    await take(port, 4)
    await port.acknowledge(ids)
    await port.seek(ids[2])
    assert [each.id for each in await take(port, 2)] == ids[2:]
    await port.seek(1000)
    assert [each.id for each in await take(port, 3)] == ids[1:]
    await port.seek(MessageId(-1, -1))
    assert [each.id for each in await take(port, 4)] == ids
    await port.seek(5000)
    assert port.subscription.backlog == 0
    assert await is_quiet(port)


@virtual_time
async def test_a_seek_moves_the_partition_of_its_message() -> None:
    """U32: in another partition it acknowledges nothing, and acknowledged messages stay acknowledged."""
    topic = FakeTopic(partitions=2)
    port = FakePort(topic)
    ids = [topic.publish(b"%d" % number, partition=number % 2) for number in range(4)]
    await take(port, 4)
    await port.redeliver([ids[1]])
    await take(port, 1)
    await port.seek(ids[2])
    assert [port.subscription.is_acked(each) for each in ids] == [True, False, False, False]
    assert [(each.id, each.redelivery_count) for each in await take(port, 3)] == [(ids[1], 1), (ids[2], 0), (ids[3], 0)]
    await port.acknowledge(ids)
    await port.seek(ids[0])
    assert [each.id for each in await take(port, 2)] == [ids[0], ids[2]]
    assert port.subscription.is_acked(ids[1])
    port.check_seek(MessageId(-1, -1))
    await port.seek(MessageId(-1, -1))
    assert [each.id for each in await take(port, 4)] == ids


@virtual_time
async def test_offers_what_consumers_may_use() -> None:
    """The port supports the optional calls of ports, and says how much it prefetches."""
    port = FakePort(receiver_queue_size=7)
    assert isinstance(port, SupportsSubscription)
    assert port.traits.receiver_queue_size == 7


@virtual_time
async def test_unknown_ids_are_ignored() -> None:
    """Ids that the topic does not hold do nothing, as at a real broker."""
    port = FakePort()
    await port.acknowledge([MessageId(9, 9)])
    await port.redeliver([MessageId(9, 9)])
    assert not port.subscription.is_acked(MessageId(9, 9))
    assert port.subscription.redelivery_count(MessageId(9, 9)) == 0


@for_each(
    ("make", "setting"),
    [
        (FakePort, {"subscription_type": "key_shared"}),
        (FakePort, {"subscription": ""}),
        (FakePort, {"latency": -1}),
        (FakePort, {"latency": float("nan")}),
        (FakePort, {"latency": True}),
        (FakePort, {"latency": 10**400}),
        (FakePort, {"min_redelivery_delay": "1"}),
        (FakePort, {"batch_index_ack": 1}),
        (FakePort, {"max_ids_per_request": 0}),
        (FakePort, {"receiver_queue_size": 1.5}),
        (FakePort, {"unacked_limit": 0}),
        (FakePort, {"topic": "persistent://a/b/c"}),
        (FakeTopic, {"name": ""}),
        (FakeTopic, {"partitions": -1}),
        (FakeTopic, {"ledger": None}),
        (FakeTopic, {"entries_per_ledger": 0}),
    ],
)
def test_settings_are_checked(make: Callable[..., object], setting: dict[str, Any]) -> None:
    """A wrong setting of a port, or of a topic, is refused with its name."""
    with pytest.raises(InvalidArgumentError, match=next(iter(setting))):
        make(**setting)


def test_publishing_is_checked() -> None:
    """Values that cannot be published are refused, and nothing is stored."""
    topic: Any = FakeTopic()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: topic.publish("text"), "data"),
        (lambda: topic.publish_batch([]), "messages"),
        (lambda: topic.publish_chunked([b"one"]), "parts"),
        (lambda: topic.publish(b"x", partition=0), "partition"),
    ]
    for call, field in wrong:
        with pytest.raises(InvalidArgumentError, match=f"^{field}:"):
            call()
    assert list(topic.entries) == []


def test_faults_are_checked() -> None:
    """A fault for a call that cannot fail or does not exist, or no times, is refused."""
    port: Any = FakePort()
    wrong: list[Callable[[], object]] = [
        lambda: port.fail_next("close"),
        lambda: port.fail_next("receive", 0),
        lambda: port.delay_next("receive", -1),
        lambda: port.duplicate_next(0),
        lambda: port.redeliver_acked_next(-1),
        lambda: FakePublisher().fail_next(0),
        lambda: FaultyFiles(MemoryFiles()).fail(errno.EIO, "fsync"),
        lambda: FaultyObjects(MemoryStore()).fail(errno.EIO, "get", "put"),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgumentError):
            call()


@virtual_time
async def test_calls_of_a_storage_are_held_again() -> None:
    """After held calls have continued, the next ones can be held; until then all wait for the same event."""
    storage = MemorySnapshotStorage()

    def create() -> asyncio.Task[int]:
        return asyncio.create_task(storage.create_bucket_snapshot(b"m", [], "key", "topic", "cursor"))

    for _ in range(2):
        gate, held = storage.faults.hold("create"), create()
        await asyncio.sleep(1)
        assert not held.done()
        assert storage.faults.hold("create") is gate
        gate.set()
        await held
    assert len(storage.snapshots) == 2
