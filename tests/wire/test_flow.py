"""Prefetching is bounded in bytes too: permits alone, and consumers on a scripted broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError, connect
from pulsar_nack.consumer import Delivery
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._context import MemoryLimitController
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._consumer._flow_and_redelivery import Permits
from tests.wire.consuming import Arrived, consuming
from tests.wire.fake_broker import cut

BOUND = 10_000
SIZE = 1_000


@given(
    st.one_of(st.integers(1, 50), st.integers(900, 1_100)),
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "take", "hide"]),
            st.sampled_from([0, 0, 1, 5, 60]),
            st.sampled_from([1, 1, 3, 70]),
        ),
        max_size=200,
    ),
)
def test_permits_are_in_one_place_each_and_never_run_out(size: int, steps: list[tuple[str, int, int]]) -> None:
    """With any memory limit, permits and prefetched messages make the queue's size, and an empty queue is filled."""
    fits = 0
    permits = Permits(size, lambda: fits)
    free, queued = size, 0
    free -= permits.start()
    for step, now_fit, count in steps:
        fits = now_fit
        given, before = 0, permits.out
        if step == "take" and queued:
            queued -= 1
            free += 1
            given = permits.free(1)
        elif step != "take" and permits.out > 0:
            permits.used(count)
            before = permits.out
            if step == "arrive":
                queued += count
            else:
                free += count
                given = permits.free(count)
        assert 0 <= given <= max(fits, 1) - min(before, 0)
        free -= given
        assert permits.out + queued + free == size
        assert queued or permits.out > 0


@pytest.mark.parametrize(("size", "at_once"), [(1, 1), (10, 5), (100, 50), (400, 50), (1_000, 50), (4_000, 200)])
def test_without_a_bound_fifty_or_a_twentieth_are_given_back_at_a_time(size: int, at_once: int) -> None:
    """Small queues return permits when half of the queue was taken, as in other clients."""
    permits = Permits(size)
    assert permits.start() == size
    permits.used(size)
    assert [permits.free(1) for _ in range(size)] == [*[0] * (at_once - 1), at_once] * (size // at_once)


def test_free_memory_is_shared_out() -> None:
    """Each consumer may use as much of the remaining memory as the others."""
    prefetched = MemoryLimitController(BOUND)
    assert prefetched.fitting(100) == 100
    prefetched.consumers, prefetched.bytes = 4, 2_000
    assert prefetched.fitting(100) == 20
    prefetched.bytes = BOUND + 1
    assert prefetched.fitting(100) == 0


@pytest.mark.parametrize("value", [-1, "64 MiB", 0.5])
def test_a_bound_that_is_none_is_refused(value: object) -> None:
    """An invalid limit is refused with the setting's name."""
    with pytest.raises(ValueError, match="max_prefetched_bytes"):
        ClientOptions(max_prefetched_bytes=value)
    with pytest.raises(InvalidArgumentError, match="max_prefetched_bytes"):
        connect("pulsar://broker", max_prefetched_bytes=value)


@virtual_time
async def test_large_messages_stay_at_the_broker_until_there_is_memory() -> None:
    """While nothing is taken no more than the limit is prefetched; all arrive in the end, in order."""
    async with consuming(max_prefetched_bytes=BOUND) as made:
        made.broker.max_message_bytes = 2 * SIZE
        for number in range(200):
            made.topic.publish(bytes(SIZE - 1) + bytes([number]))
        await made.open()
        await asyncio.sleep(1)
        held = made.context.memory_limit
        assert BOUND - 2 * SIZE < held.bytes <= BOUND
        assert len(made.arrived) == held.bytes // SIZE
        taken: list[Delivery] = []
        while len(taken) < 200:
            taken += await made.arrived.take(1)
            assert held.bytes <= BOUND
        assert [delivery.data[-1] for delivery in taken] == list(range(200))
        assert held.bytes == 0
    assert held.consumers == 0


@virtual_time
async def test_small_messages_are_fetched_ahead_as_many_as_they_may() -> None:
    """The first messages show how small they are; then the queue is filled though none is taken."""
    async with consuming(max_prefetched_bytes=10 << 20) as made:
        for _ in range(3_000):
            made.topic.publish(b"small")
        await made.open(receiver_queue_size=1_000)
        await asyncio.sleep(1)
        assert len(made.arrived) == 1_000
        assert made.permits() == 0
        assert made.broker.commands("FLOW")[0].messagePermits == 2


@virtual_time
async def test_a_message_larger_than_all_memory_comes_all_the_same() -> None:
    """A consumer that holds nothing has one permit, so messages come one at a time."""
    async with consuming(max_prefetched_bytes=SIZE // 10) as made:
        for _ in range(5):
            made.topic.publish(bytes(SIZE))
        await made.open()
        for _ in range(5):
            await asyncio.sleep(1)
            assert made.context.memory_limit.bytes == SIZE
            await made.arrived.take(1)


@virtual_time
async def test_a_batch_counts_by_its_messages() -> None:
    """Its bytes are freed message by message."""
    async with consuming(max_prefetched_bytes=BOUND) as made:
        made.topic.publish_batch([bytes(SIZE)] * 4)
        await made.open()
        await asyncio.sleep(1)
        assert made.context.memory_limit.bytes >= 4 * SIZE
        for left in (3, 2, 1, 0):
            await made.arrived.take()
            assert made.context.memory_limit.bytes == left * SIZE


@virtual_time
async def test_a_batch_larger_than_what_was_permitted_may_be_dropped_at_once() -> None:
    """If all of it goes back together, as with a rewind, the broker may still send again."""
    async with consuming(max_prefetched_bytes=SIZE // 10) as made:
        for _ in range(2):
            made.topic.publish_batch([bytes(SIZE)] * 10)
        consumer = await made.open(type="exclusive")
        (first, *_) = await made.arrived.take(10)
        await asyncio.sleep(1)
        assert len(made.arrived) == 10
        consumer.redeliver_nowait([first.id])
        await asyncio.sleep(1)
        assert len(await made.arrived.take(20)) == 20


@virtual_time
async def test_consumers_share_the_memory_and_none_stands_still() -> None:
    """While an idle consumer has filled its share, another one continues, with at most twice the limit in all."""
    async with consuming(max_prefetched_bytes=BOUND) as made:
        made.broker.max_message_bytes = 2 * SIZE
        idle, busy = Arrived(), Arrived()
        await made.open(idle, consumer_name="idle")
        await made.open(busy, consumer_name="busy")
        for _ in range(100):
            made.topic.publish(bytes(SIZE))
        taken = 0
        while taken + len(idle) < 100:
            await busy.take(1)
            taken += 1
            assert made.context.memory_limit.bytes <= 2 * BOUND
            await asyncio.sleep(0.01)
        assert taken > 50


@virtual_time
async def test_what_a_lost_connection_drops_is_not_counted_any_more() -> None:
    """The queue is dropped with its bytes, and filled again."""
    async with consuming(max_prefetched_bytes=BOUND) as made:
        made.broker.max_message_bytes = 2 * SIZE
        for _ in range(50):
            made.topic.publish(bytes(SIZE))
        await made.open()
        await asyncio.sleep(1)
        before = made.context.memory_limit.bytes
        made.broker.next("SUBSCRIBE", cut)
        made.broker.cut()
        await asyncio.sleep(0.01)
        assert (made.context.memory_limit.bytes, made.context.memory_limit.consumers) == (0, 0)
        await asyncio.sleep(10)
        assert before - SIZE <= made.context.memory_limit.bytes <= BOUND
        assert len(await made.arrived.take(50)) == 50


@pytest.mark.parametrize("bound", [0, None])
@virtual_time
async def test_there_may_be_no_bound(bound: int | None) -> None:
    """Then the number of messages alone decides."""
    async with consuming(max_prefetched_bytes=bound) as made:
        for _ in range(100):
            made.topic.publish(bytes(SIZE))
        await made.open(receiver_queue_size=100)
        await asyncio.sleep(1)
        assert len(made.arrived) == 100
