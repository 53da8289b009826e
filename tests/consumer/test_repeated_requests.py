"""Requests that the client accepts without effect: on the fake port, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_nack import BrokerError, Consumer, MessageId
from pulsar_nack.consumer._message_state import MessageState
from pulsar_nack.consumer._message_table import MessageTable
from pulsar_nack.consumer._requests import PAUSES_MS, REQUEST_MEMORY_MS, OpenRequests
from pulsar_nack.testing import FakePort, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, new_message, now, publish
from tests.consumer.ports import Ports

ID = MessageId(1, 2)
ROUNDS_S = [30, 90, 210, 450]
"""When requests are repeated, counted from the first one."""


async def nacked(port: FakePort, consumer: Consumer) -> float:
    """Publish a message and nack it; return when it is requested."""
    port.topic.publish(b"x")
    await (await consumer.receive()).nack(delay=1)
    return now() + 1


@pytest.mark.parametrize("lost", [1, 2, 4])
@pytest.mark.parametrize("subscription_type", ["shared", "exclusive"])
@virtual_time
async def test_a_lost_request_is_made_again(ports: Ports, subscription_type: Any, lost: int) -> None:
    """U22: requests that a client accepts and drops are repeated; the message is delivered and counted once."""
    port = ports.port(subscription_type=subscription_type)
    port.lose_next("redeliver", lost)
    async with Consumer(port, redelivery="broker", config=EXACT) as consumer:
        asked_at = await nacked(port, consumer)
        again = await consumer.receive(timeout=1_000)
        assert now() - asked_at == ROUNDS_S[lost - 1]
        assert (again.data, again.redelivery_count) == (b"x", 1)
        assert consumer.statistics().requested_again == lost
        await again.ack()
        await asyncio.sleep(1_000)
        assert port.subscription.backlog == 0
        assert len(port.requests("redeliver")) == lost + 1


@virtual_time
async def test_a_late_failure_is_not_that_of_a_newer_request(ports: Ports) -> None:
    """U22: a request fails after it took effect, while the next one is open: the message still comes."""
    port = ports.port()
    calls = 0

    async def redeliver(ids: Sequence[MessageId]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await port.redeliver(ids)
            await asyncio.sleep(3)
            raise BrokerError("no answer came")
        await asyncio.sleep(5)
        await port.redeliver(ids)

    async with Consumer(port, redelivery=redeliver, config=EXACT) as consumer:
        await nacked(port, consumer)
        await (await consumer.receive()).nack(delay=1)
        again = await consumer.receive(timeout=100)
        assert (now(), again.redelivery_count, calls) == (7, 2, 2)
        await again.ack()
        assert consumer.statistics().held == 0


@virtual_time
async def test_asking_again_ends(ports: Ports) -> None:
    """U34: a message that another consumer got is requested four times more, and then left to the broker."""
    topic = ports.topic()
    port, other = ports.port(topic), ports.port(topic)
    async with Consumer(port, redelivery="broker", config=EXACT) as consumer:
        port.lose_next("redeliver", 100)
        asked_at = await nacked(port, consumer)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=2_000)
        times = [call.at_ms / 1_000 - asked_at for call in port.calls if call.name == "redeliver"]
        assert times == [0, *ROUNDS_S]
        statistics = consumer.statistics()
        assert (statistics.requested_again, statistics.requested) == (4, 0)
    await other.close()


@virtual_time
async def test_a_request_that_is_answered_is_not_made_again(ports: Ports) -> None:
    """U23: a message that comes is requested once, also if it is nacked again or acknowledged meanwhile."""
    async with Consumer(port := ports.port(latency=0.005), redelivery="broker", config=EXACT) as consumer:
        for _ in range(3):
            await nacked(port, consumer)
        for _ in range(3):
            await (await consumer.receive()).nack(delay=20)
        for _ in range(3):
            await (await consumer.receive()).ack()
        await asyncio.sleep(1_000)
        assert sum(map(len, port.requests("redeliver"))) == 6
        assert consumer.statistics().requested_again == 0


@pytest.mark.each_kind
@virtual_time
async def test_what_waits_at_the_port_is_not_asked_for_again(ports: Ports) -> None:
    """U23: during a long job the answer waits in the port's queue; a second request would reach others as well."""
    topic = ports.topic()
    async with Consumer(port := ports.port(topic), redelivery="broker", config=EXACT) as consumer:
        await nacked(port, consumer)
        publish(topic, *[b"y"] * 3)
        job = await consumer.receive(timeout=10)
        await asyncio.sleep(2)
        async with Consumer(ports.port(topic), config=EXACT) as other:
            await asyncio.sleep(300)
            assert len(port.requests("redeliver")) == 1
            found = [await consumer.receive(timeout=1) for _ in range(3)]
            assert sorted(each.data for each in (job, *found)) == [b"x", b"y", b"y", b"y"]
            assert consumer.statistics().requested_again == 0
            with pytest.raises(TimeoutError):
                await other.receive(timeout=100)


@virtual_time
async def test_a_queue_that_is_never_empty_does_not_keep_it_from_being_asked_for(ports: Ports) -> None:
    """U22: once as many were received as the port can have had, a lost request is repeated."""
    port = ports.port(receiver_queue_size=10)
    port.lose_next("redeliver")
    async with Consumer(port, redelivery="broker", config=EXACT) as consumer:
        asked_at = await nacked(port, consumer)
        publish(port.topic, *[b"y"] * 1_000)
        while (message := await consumer.receive()).data != b"x":
            await asyncio.sleep(1)
            await message.ack()
        assert 60 <= now() - asked_at < 80


@virtual_time
async def test_what_is_settled_by_its_id_is_not_asked_for_again(ports: Ports) -> None:
    """U24: a message requested in vain and then acknowledged, or nacked again, is not requested meanwhile."""
    async with Consumer(port := ports.port(), redelivery="broker", config=EXACT) as consumer:
        publish(port.topic, b"a", b"b")
        port.lose_next("redeliver", 2)
        messages = [await consumer.receive() for _ in range(2)]
        for message in messages:
            await message.nack(delay=1)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=40)
        assert consumer.statistics().requested_again == 2
        await consumer.acknowledge(messages[0].id)
        await consumer.negative_acknowledge(messages[1].id, 500)
        nacked_at = now()
        again = await consumer.receive()
        assert (again.data, now() - nacked_at) == (b"b", 500)
        assert len(port.requests("redeliver")) == 3


@virtual_time
async def test_a_failed_ack_of_what_was_asked_for_does_not_end_the_request(ports: Ports) -> None:
    """U24: a lost request whose 30 s end during an acknowledgement that fails is repeated."""
    async with Consumer(port := ports.port(), redelivery="broker", config=EXACT) as consumer:
        port.lose_next("redeliver")
        message = await new_message(port, consumer)
        await message.nack(delay=1)
        await asyncio.sleep(20)
        port._add_fault("acknowledge", Fault(delay=20, error=BrokerError("refused")), 1)
        ack = asyncio.create_task(consumer.acknowledge(message.id))
        await asyncio.wait([ack])
        assert ack.exception() is not None
        assert (await consumer.receive(timeout=100)).data == b"x"


@pytest.mark.each_kind
@virtual_time
async def test_failures_are_tried_again_and_closing_ends_it(ports: Ports) -> None:
    """U22: a repeated request that fails does not count; a closed consumer requests no more."""
    port = ports.port()
    port.lose_next("redeliver")
    async with Consumer(port, redelivery="broker", config=EXACT) as consumer:
        asked_at = await nacked(port, consumer)
        await asyncio.sleep(20)
        port.fail_next("redeliver", 3)
        assert (await consumer.receive(timeout=1_000)).redelivery_count == 1
        assert now() - asked_at == 30 + 3 * 5
    await asyncio.sleep(1_000)
    assert len([call for call in port.calls if call.name == "redeliver"]) == 5


@virtual_time
async def test_a_callable_is_asked_once(ports: Ports) -> None:
    """Ids given to a user's callable are never given to it again for the same nack."""
    asked: list[MessageId] = []
    async with Consumer(port := ports.port(), redelivery=asked.extend, config=EXACT) as consumer:
        await nacked(port, consumer)
        await asyncio.sleep(1_000)
        assert len(asked) == 1


def test_memory_is_bounded() -> None:
    """U30: above the limit the oldest are left to the broker."""
    ask = OpenRequests(most_repeated=3)
    for entry in range(5):
        ask.repeat(MessageId(1, entry), 0)
    assert len(ask.repeat_at) == 3
    assert [one.entry for one in ask.pop_due(0, 2)] == [2, 3]
    assert [one.entry for one in ask.pop_due(0, 2)] == [4]
    assert (ask.next_at(), len(ask.repeat_at)) == (None, 0)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_each_round_comes_at_its_time(late_ms: int) -> None:
    """U23: one tick before a pause ends nothing is due; a message that is added again replaces the earlier entry."""
    ask = OpenRequests()
    for turn, pause_ms in enumerate(PAUSES_MS):
        ask.repeat(ID, 1_000, turn)
        ask.repeat(ID, 1_000 + late_ms, turn)
        assert ask.next_at() == 1_000 + late_ms + pause_ms
        assert ask.pop_due(999 + late_ms + pause_ms, 9) == {}
        assert ask.pop_due(1_000 + late_ms + pause_ms, 9) == {ID: turn}
    ask.repeat(ID, 0, len(PAUSES_MS))
    assert len(ask.repeat_at) == 0


def test_cumulative_acknowledgement_and_seek_forget_what_was_asked_for() -> None:
    """U35: messages requested in vain and then acknowledged or left behind are not requested."""
    table = MessageTable()
    records: list[MessageState] = []
    for entry in range(3):
        table.deliver(MessageId(1, entry), 0, 0)
        records.append(table.hold(MessageId(1, entry)))
    for record in records:
        table.request(record, 0)
    table.expire(REQUEST_MEMORY_MS)
    assert table.requests.next_at() == REQUEST_MEMORY_MS
    table.settle_through(MessageId(1, 1), REQUEST_MEMORY_MS)
    assert [one.entry for one in table.requests.pop_due(REQUEST_MEMORY_MS, 9)] == [2]
    table.requests.repeat(MessageId(1, 2), 0)
    table.clear()
    assert table.requests.next_at() is None


def test_all_that_a_seek_left_behind_is_asked_for() -> None:
    """Each of any number of held messages is requested, and again if nothing comes."""
    table, count = MessageTable(), 25_000
    table.ask_for({MessageId(1, entry): 1 for entry in range(count)}, 0)
    due = table.requests.pop_due(0, count)
    assert len(due) == count
    assert all(one in table.requests.counts and table.get(one) is None for one in due)
    for one, turn in due.items():
        table.requests.repeat(one, 0, turn + 1)
    assert len(table.requests.repeat_at) == count


@virtual_time
async def test_a_request_and_an_acknowledgement_that_both_fail() -> None:
    """U22: a nacked message is requested, and acknowledged before the answer; both fail: it is requested again."""
    port = FakePort()
    port.topic.publish(b"x")
    async with Consumer(port, config=EXACT) as consumer:
        message = await consumer.receive()
        port._add_fault("redeliver", Fault(delay=1, error=BrokerError("lost")), 1)
        port._add_fault("acknowledge", Fault(delay=2, error=BrokerError("lost")), 1)
        await message.nack(0)
        await asyncio.sleep(0.5)
        with pytest.raises(BrokerError, match="lost"):
            await message.ack()
        assert (await consumer.receive(timeout=10)).attempt == 2
