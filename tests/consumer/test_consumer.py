"""The consumer over the fake port and over local topics, on virtual time: exact times, failures, races, closing."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    Consumer,
    InvalidArgumentError,
    Message,
    MessageId,
    NackConfig,
)
from pulsar_nack.errors import NotOpenError, WrongLoopError
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.consuming import (
    EXACT,
    all_that_comes,
    is_quiet,
    new_message,
    new_messages,
    now,
    numbered,
    publish,
    take,
)
from tests.consumer.ports import Ports
from tests.tiers import examples


@asynccontextmanager
async def consuming(port: FakePort, **options: Any) -> AsyncIterator[tuple[FakePort, Consumer]]:
    """A port and a consumer on it."""
    async with Consumer(port, **{"config": EXACT, **options}) as consumer:
        yield port, consumer


@pytest.mark.parametrize("subscription_type", ["shared", "exclusive", "failover"])
@pytest.mark.parametrize("redelivery", ["auto", "local"])
@virtual_time
async def test_comes_back_in_time(ports: Ports, subscription_type: Any, redelivery: Any) -> None:
    """U29: each nacked message is redelivered at its deadline, alone; a slow port gets the request earlier."""
    port = ports.port(subscription_type=subscription_type, latency=0.12, min_redelivery_delay=0.14)
    async with consuming(port, redelivery=redelivery) as (_, consumer):
        messages = await new_messages(port, consumer, *numbered(4))
        start = now()
        for message, delay in zip(messages, (3.0, 0.05, 1.5), strict=False):
            await message.nack(delay=delay)
        for number, delay in ((1, 0.05), (2, 1.5), (0, 3.0)):
            again = await consumer.receive()
            assert (again.data, again.attempt) == (bytes([number]), 2)
            assert now() - start == pytest.approx(delay)
            await again.ack()
        await messages[3].ack()
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0
        if subscription_type != "shared":
            assert port.requests("redeliver") == []  # it would bring back all that is unacknowledged


@virtual_time
async def test_auto_takes_the_broker_where_it_can(ports: Ports) -> None:
    """U30: on Shared subscriptions delays from the port's minimum on go to the broker, shorter ones stay here."""
    async with consuming(ports.port(latency=0.12, min_redelivery_delay=0.14)) as (port, consumer):
        short, long = await new_messages(port, consumer, b"short", b"long")
        await short.nack(delay=0.13)
        await long.nack(delay=0.14)
        await take(consumer, 2)
        assert port.requests("redeliver") == [(long.id,)]
        statistics = consumer.statistics()
        assert (statistics.redelivered_local, statistics.redelivered_broker) == (1, 1)


@pytest.mark.not_on("wire", reason="a consumer over the wire is there a few turns of the loop later")
@virtual_time
async def test_backoff_by_message_and_by_id(ports: Ports) -> None:
    """N30: a plain nack by message and one by id use the same count, the broker's if that is known."""
    counts: list[int] = []

    def backoff(count: int) -> float:
        counts.append(count)
        return 1.0

    topic = ports.topic()
    first = ports.port(topic)
    publish(topic, b"a", b"b")
    for _ in range(3):
        ids = [(await first.receive()).id for _ in range(2)]
        await first.redeliver(ids)
    async with consuming(ports.port(topic), backoff=backoff) as (_, consumer):
        await first.close()
        one, other = await take(consumer, 2)
        await one.nack()
        await consumer.negative_acknowledge(MessageId(*other.id))
        assert counts == [3, 3]


@pytest.mark.parametrize("subscription_type", ["shared", "exclusive"])
@virtual_time
async def test_backoff_in_turn(ports: Ports, subscription_type: Any) -> None:
    """N31: with a backoff of 0.2, 0.5, 1 four plain nacks are redelivered after 0.2, 0.5, 1 and 1 s."""
    async with consuming(ports.port(subscription_type=subscription_type), backoff=[0.2, 0.5, 1]) as (port, consumer):
        port.topic.publish(b"x")
        gaps = []
        message = await consumer.receive()
        for _ in range(4):
            await message.nack()
            start = now()
            message = await consumer.receive()
            gaps.append(round(now() - start, 3))
        assert gaps == [0.2, 0.5, 1, 1]


@virtual_time
async def test_forced_broker_way_collapses_where_the_broker_rewinds(ports: Ports) -> None:
    """N20: on Exclusive through the broker, nacks in four buckets go out in one request, at the first deadline."""
    async with consuming(ports.port(subscription_type="exclusive"), redelivery="broker") as (port, consumer):
        messages = await new_messages(port, consumer, *numbered(5))
        start = now()
        for number, message in enumerate(messages[:4]):
            await message.nack(delay=1 + 0.3 * number)
        again = await take_within(consumer, 4, 5)
        assert now() - start == pytest.approx(1)
        assert [message.data for message in again] == [message.data for message in messages[:4]]
        assert await is_quiet(consumer)
        assert len(port.requests("redeliver")) == 1


@virtual_time
async def test_a_rewind_names_no_more_ids_than_the_port_takes(ports: Ports) -> None:
    """N20: whatever the request names, everything is redelivered, in one request."""
    async with consuming(ports.port(subscription_type="exclusive", max_ids_per_request=3), redelivery="broker") as (
        port,
        consumer,
    ):
        publish(port.topic, *numbered(5))
        for message in await take(consumer, 5):
            await message.nack(delay=1)
        assert len(await take_within(consumer, 5, 5)) == 5
        assert [len(ids) for ids in port.requests("redeliver")] == [3]


@virtual_time
async def test_receive_is_cancel_safe(ports: Ports) -> None:
    """U1: a receive that timed out, or was cancelled as its message came, loses nothing."""
    async with consuming(ports.port()) as (port, consumer):
        assert await is_quiet(consumer, 1)
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        port.topic.publish(b"x")
        for _ in range(20):
            if receiving.done() or consumer.statistics().received:
                break
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        assert (await consumer.receive(timeout=1)).data == b"x"
        assert consumer.statistics().shown == 1


@given(moments=st.lists(st.integers(0, 12), min_size=20, max_size=20))
@examples(60)
def test_cancelled_receives_lose_nothing(ports: Ports, moments: list[int]) -> None:
    """U2: receives cancelled at any step of the loop lose no message and double none."""

    @virtual_time
    async def run() -> None:
        async with consuming(ports.port()) as (port, consumer):
            seen: list[bytes] = []

            async def one() -> None:
                seen.append((await consumer.receive()).data)

            for number, steps in enumerate(moments):
                port.topic.publish(bytes([number]))
                tasks = [asyncio.create_task(one()) for _ in range(2)]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            seen += [message.data async for message in all_that_comes(consumer, 1)]
            assert sorted(seen) == [bytes([number]) for number in range(20)]

    run()


@virtual_time
async def test_a_timeout_says_what_did_not_come(ports: Ports) -> None:
    """A receive that times out names the message and the time; the caller's own timeout stays as it is."""
    async with consuming(ports.port()) as (_, consumer):
        with pytest.raises(TimeoutError, match=r"no message within 0\.2 s"):
            await consumer.receive(timeout=0.2)
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.1):
                await consumer.receive(timeout=10)
        assert str(caught.value) == ""


@virtual_time
async def test_ack_and_nack_race(ports: Ports) -> None:
    """U20: of an ack and a nack from two tasks one wins and the other raises, whichever begins."""
    for first, second in (("ack", "nack"), ("nack", "ack")):
        async with consuming(ports.port()) as (port, consumer):
            message = await new_message(port, consumer)
            results = await asyncio.gather(
                getattr(message, first)(), getattr(message, second)(), return_exceptions=True
            )
            assert [type(result) for result in results] == [type(None), AlreadySettledError]
            assert await is_quiet(consumer) is (first == "ack")
            assert port.subscription.backlog == (first == "nack")


@pytest.mark.each_kind
@virtual_time
async def test_the_same_verb_twice(ports: Ports) -> None:
    """U20: a second ack does nothing; a second nack hurries but never postpones; an ack by id cancels the nack."""
    async with consuming(ports.port()) as (port, consumer):
        message = await new_message(port, consumer)
        await message.nack(delay=10)
        await message.nack(delay=50)
        await message.nack(delay=2)
        start = now()
        again = await consumer.receive()
        assert now() - start == pytest.approx(2)
        await asyncio.gather(again.ack(), again.ack())
        await again.ack()
        assert port.requests("acknowledge") == [(message.id,)]
        await message.ack()
        assert port.requests("acknowledge") == [(message.id,)]
        other = await new_message(port, consumer, b"y")
        await other.nack(delay=5)
        await consumer.acknowledge(MessageId(*other.id))
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0


@virtual_time
async def test_an_ack_cancels_a_nack_that_has_returned(ports: Ports) -> None:
    """U20: a message that was nacked and then acknowledged is not redelivered, whether held, requested or kept."""
    for redelivery in ("local", "broker", "auto"):
        async with consuming(ports.port(), redelivery=redelivery) as (port, consumer):
            message = await new_message(port, consumer)
            await message.nack(delay=5)
            await message.ack()
            assert consumer.statistics().held == 0
            assert await is_quiet(consumer)
            assert port.subscription.backlog == 0
            with pytest.raises(AlreadySettledError):
                await message.nack()


@virtual_time
async def test_a_failed_ack_after_a_nack_leaves_the_nack(ports: Ports) -> None:
    """U20: when the ack that would cancel a nack fails, the message is redelivered at its deadline."""
    async with consuming(ports.port(), redelivery="local") as (port, consumer):
        message = await new_message(port, consumer)
        start = now()
        await message.nack(delay=5)
        port.fail_next("acknowledge")
        with pytest.raises(BrokerError):
            await message.ack()
        again = await consumer.receive()
        assert now() - start == pytest.approx(5)
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await message.ack()
        await again.ack()
        assert port.subscription.backlog == 0


@pytest.mark.parametrize("subscription_type", ["exclusive", "failover"])
@virtual_time
async def test_many_waiting_nacks_never_make_the_broker_rewind(ports: Ports, subscription_type: str) -> None:
    """U30: ten nacks at once with room for three payloads: the others wait, and none goes through the broker."""
    port = ports.port(subscription_type=subscription_type)
    async with Consumer(port, max_local_bytes=30_000) as consumer:
        for number in range(10):
            port.topic.publish(bytes([number]) * 8_000)
        messages = [await consumer.receive() for _ in range(10)]
        nacking = [asyncio.create_task(message.nack(delay=1)) for message in messages]
        await asyncio.sleep(0.5)
        assert consumer.statistics().waiting_nacks == 7
        seen = []
        for _ in range(10):
            message = await consumer.receive(timeout=20)
            seen.append(message.data[0])
            await message.ack()
        await asyncio.gather(*nacking)
        assert sorted(seen) == list(range(10))
        assert port.requests("redeliver") == []
        assert port.subscription.backlog == 0


@virtual_time
async def test_a_handle_of_an_earlier_attempt_cannot_nack(ports: Ports) -> None:
    """U20: while a later attempt is being processed, a nack through an earlier one raises: it is too late."""
    async with consuming(ports.port()) as (port, consumer):
        early = await new_message(port, consumer)
        await consumer.negative_acknowledge(early.id, 1)
        late = await consumer.receive()
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await early.nack(delay=0)
        await late.ack()


@pytest.mark.parametrize("carried_out", [True, False])
@virtual_time
async def test_a_failed_ack_can_be_tried_again(ports: Ports, carried_out: bool) -> None:
    """U20: a failed ack leaves the message as it was: it can be acknowledged, or nacked."""
    async with consuming(ports.port()) as (port, consumer):
        port.topic.publish(b"x")
        port.fail_next("acknowledge", 2, carried_out=carried_out)
        message = await consumer.receive()
        results = await asyncio.gather(message.ack(), message.ack(), return_exceptions=True)
        assert [type(result) for result in results] == [BrokerError, BrokerError]
        with pytest.raises(BrokerError):
            await message.ack()
        await message.nack(delay=1)
        if not carried_out:
            await (await consumer.receive()).ack()
        assert port.subscription.backlog == 0


@virtual_time
async def test_a_failed_ack_of_a_held_message_holds_it_still(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """U20: the ack of a held message by id takes 3 s and fails after its deadline: it is delivered at once."""
    async with consuming(ports.port(), redelivery="local") as (port, consumer):
        message = await new_message(port, consumer)
        start = now()
        await message.nack(delay=1)

        async def slow_failure(_ids: Sequence[MessageId]) -> None:
            await asyncio.sleep(3)
            raise BrokerError("no")

        monkeypatch.setattr(port, "acknowledge", slow_failure)
        with pytest.raises(BrokerError):
            await consumer.acknowledge(message.id)
        again = await consumer.receive()
        assert again.attempt == 2
        assert now() - start == pytest.approx(3, abs=0.01)


@virtual_time
async def test_a_cancelled_ack_is_carried_out(ports: Ports) -> None:
    """U20: cancelling a call that waits for an ack does not stop the ack; a nack meanwhile raises."""
    async with consuming(ports.port()) as (port, consumer):
        port.topic.publish(b"x")
        port.delay_next("acknowledge", 2)
        message = await consumer.receive()
        acking = asyncio.create_task(message.ack())
        await asyncio.sleep(1)
        acking.cancel()
        await asyncio.gather(acking, return_exceptions=True)
        with pytest.raises(AlreadySettledError):
            await message.nack()
        await asyncio.sleep(2)
        assert port.subscription.backlog == 0


@pytest.mark.parametrize("second_count", [None, 0])
@virtual_time
async def test_double_deliveries_are_delivered_once(ports: Ports, second_count: int | None) -> None:
    """U23: redelivered twice within a millisecond (counts 1 and 1, or 1 and 0) it is delivered once, and counted."""
    async with consuming(ports.port()) as (port, consumer):
        port.topic.publish(b"x")
        port.duplicate_next(second_count=second_count)
        await (await consumer.receive()).nack(delay=1)
        message = await consumer.receive()
        assert await is_quiet(consumer)
        assert consumer.statistics().copies_dropped == 1
        await message.ack()
        assert port.subscription.backlog == 0


@pytest.mark.not_on("wire", "local", reason="only the fake port delivers what is acknowledged")
@virtual_time
async def test_acked_after_it_was_asked_for(ports: Ports) -> None:
    """U24: requested, then acknowledged before it arrives; if it arrives it is acknowledged again, not delivered."""
    async with consuming(ports.port(latency=0.5), redelivery="broker") as (port, consumer):
        port.redeliver_acked_next()
        message = await new_message(port, consumer)
        await message.nack(delay=0)
        await asyncio.sleep(0.1)
        assert consumer.statistics().requested == 1
        await consumer.acknowledge(message.id)
        assert await is_quiet(consumer)
        assert (consumer.statistics().acked_again, consumer.statistics().requested) == (1, 0)


@pytest.mark.parametrize("index_acks", [True, False])
@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
@virtual_time
async def test_other_batch_members_are_left_alone(ports: Ports, redelivery: Any, index_acks: bool) -> None:
    """U26: nack 0, ack 2, nothing yet on 1, 3, 4: only 0 is redelivered, and the entry completes in the end."""
    port = ports.port(batch_index_ack=index_acks)
    async with consuming(port, redelivery=redelivery) as (_, consumer):
        port.topic.publish_batch([b"0", b"1", b"2", b"3", b"4"])
        batch = await take(consumer, 5)
        start = now()
        await batch[0].nack(delay=2)
        await batch[2].ack()
        again = await consumer.receive()
        assert again.data == b"0"
        assert now() - start == pytest.approx(2)
        assert await is_quiet(consumer)
        for message in (again, batch[1], batch[3], batch[4]):
            await message.ack()
        await asyncio.sleep(1)
        assert port.subscription.backlog == 0


@virtual_time
async def test_a_poison_message_in_a_batch(ports: Ports) -> None:
    """U25: index acks on in the client and at the broker: the poison member's attempts count up, 1 to 4."""
    await poison_in_a_batch(ports.port(ports.topic(batch_index_ack=True), batch_index_ack=True))


@pytest.mark.not_on("wire", "local", reason="their topics acknowledge single messages of a batch when a consumer does")
@virtual_time
async def test_a_poison_message_in_a_batch_where_the_broker_has_no_index_acks(ports: Ports) -> None:
    """U25: index acks on in the client alone: the poison member's attempts count up, 1 to 4."""
    await poison_in_a_batch(ports.port(ports.topic(batch_index_ack=False), batch_index_ack=True))


async def poison_in_a_batch(port: FakePort) -> None:
    """Nack one member of a batch repeatedly, and acknowledge the others."""
    async with consuming(port) as (_, consumer):
        port.topic.publish_batch([b"a", b"poison", b"c"])
        attempts: list[int] = []
        while len(attempts) < 4:
            message = await consumer.receive()
            if message.data != b"poison":
                await message.ack()
                continue
            attempts.append(message.attempt)
            await message.nack(delay=1)
        assert attempts == [1, 2, 3, 4]


async def test_redeliveries_from_memory_are_not_early_where_the_broker_is_asked_earlier(ports: Ports) -> None:
    """On the real clock: a message of a batch that is being processed comes at most a bucket before its deadline."""
    port = ports.port(latency=0.0009)
    async with Consumer(port, config=EXACT) as consumer:
        port.topic.publish_batch([b"0", b"1"])
        message, _mate = await take(consumer, 2)
        for _ in range(50):
            began = time.monotonic()
            await message.nack(delay=0.005)
            message = await consumer.receive(timeout=5)
            assert time.monotonic() - began > 0.005 - 0.001
        assert consumer.statistics().redelivered_local == 50


@pytest.mark.parametrize("bits", [0, 3, 8])
@pytest.mark.parametrize("latency", [0.0005, 0.0009])
@virtual_time
async def test_redeliveries_from_memory_are_never_late(ports: Ports, bits: int, latency: float) -> None:
    """Such a message is not late either, however wide the bucket is."""
    loop = asyncio.get_running_loop()
    port = ports.port(latency=latency)
    async with Consumer(port, config=NackConfig(negative_ack_precision_bit_cnt=bits)) as consumer:
        port.topic.publish_batch([b"0", b"1"])
        message, _mate = await take(consumer, 2)
        for delay in (0.017, 0.04, 0.1, 0.333, 1.0, 2.0, 60.0):
            began = loop.time()
            await message.nack(delay=delay)
            message = await consumer.receive(timeout=99)
            away = 1000 * (loop.time() - began - delay)
            assert -(2**bits) < away < 0.001


@virtual_time
async def test_two_members_at_their_own_times(ports: Ports) -> None:
    """N12: two members of a batch nacked with 10 and 20 s are redelivered after 10 and 20 s, each alone."""
    async with consuming(ports.port()) as (port, consumer):
        port.topic.publish_batch([b"0", b"1"])
        for message, delay in zip(await take(consumer, 2), (10, 20), strict=True):
            await message.nack(delay=delay)
        start = now()
        for data, delay in ((b"0", 10), (b"1", 20)):
            message = await consumer.receive()
            assert message.data == data
            assert now() - start == pytest.approx(delay)
            await message.ack()
        assert await is_quiet(consumer)


@pytest.mark.not_on("wire", "local", reason="their topics have no partitions")
@virtual_time
async def test_partitions_do_not_mix(ports: Ports) -> None:
    """N13: messages of two partitions with the same ledger and entry are redelivered each at its own deadline."""
    port = ports.port(ports.topic(partitions=2))
    async with consuming(port) as (_, consumer):
        port.topic.publish(b"0", partition=0)
        port.topic.publish(b"1", partition=1)
        messages = sorted(await take(consumer, 2), key=lambda message: message.data)
        assert messages[0].id[:2] == messages[1].id[:2]
        for message, delay in zip(messages, (2, 1), strict=True):
            await consumer.negative_acknowledge(MessageId(*message.id), delay)
        assert [message.data for message in [await consumer.receive(), await consumer.receive()]] == [b"1", b"0"]


@pytest.mark.each_kind
@virtual_time
async def test_a_failed_request_is_tried_again(ports: Ports) -> None:
    """N16: a request that the port refuses is retried; kept messages are not delayed, nothing comes twice."""
    async with consuming(ports.port()) as (port, consumer):
        port.topic.publish(b"plain")
        port.topic.publish_batch([b"member", b"mate"])
        messages = await take(consumer, 3)
        port.fail_next("redeliver", 2)
        for message in messages[:2]:
            await message.nack(delay=1)
        start = now()
        first = await consumer.receive()
        assert first.data == b"member"
        assert now() - start == pytest.approx(1)
        second = await consumer.receive()
        assert second.data == b"plain"
        assert 1 < now() - start < 2
        assert await is_quiet(consumer)
        assert consumer.statistics().nack.retries == 2


@virtual_time
async def test_your_own_redelivery(ports: Ports) -> None:
    """U30: a user's callable gets the due ids, with all fields that were delivered with them."""
    asked: list[Sequence[MessageId]] = []
    port = ports.port()

    async def redeliver(ids: Sequence[MessageId]) -> None:
        asked.append(list(ids))
        await port.redeliver(ids)

    async with consuming(port, redelivery=redeliver) as (_, consumer):
        message = await new_message(port, consumer)
        await consumer.negative_acknowledge(MessageId(*message.id), 1)
        again = await consumer.receive()
        assert asked == [[message.id]]
        assert asked[0][0].topic == port.topic.name
        assert again.attempt == 2


@pytest.mark.each_kind
@virtual_time
async def test_close_gives_everything_back(ports: Ports) -> None:
    """U18, U21: on closing, held, kept and unsettled messages go to the other consumer, and waiting calls end."""
    topic = ports.topic()
    async with consuming(ports.port(topic), redelivery="local") as (_, first):
        publish(topic, *numbered(4))
        messages = await take(first, 4)
        await messages[0].nack(delay=5)
        await messages[1].nack(delay=0)
        await messages[2].ack()
        waiting = asyncio.create_task(first.receive())
        other = asyncio.create_task(first.receive())
        await asyncio.sleep(0)
        async with consuming(ports.port(topic)) as (_, second):
            await asyncio.sleep(1)
            await asyncio.gather(first.aclose(), first.close())
            assert (await waiting).data == bytes([1])
            with pytest.raises(ClosedError):
                await other
            again = await take(second, 3)
            assert [message.data for message in again] == [bytes([0]), bytes([1]), bytes([3])]
            assert await is_quiet(second)
        assert [message async for message in first] == []
        for call in (messages[3].ack(), messages[3].nack(), first.receive(), first.open()):
            with pytest.raises(ClosedError):
                await call


@pytest.mark.parametrize("takes_s", [2, 3600])
@virtual_time
async def test_close_finishes_acks_under_way(ports: Ports, takes_s: float) -> None:
    """U21: closing finishes an open acknowledgement; one that hangs is given up, and its call raises."""
    async with consuming(ports.port(), config=NackConfig(close_timeout=3)) as (port, consumer):
        port.topic.publish(b"x")
        port.delay_next("acknowledge", takes_s)
        acking = asyncio.create_task((await consumer.receive()).ack())
        await asyncio.sleep(0.1)
        start = now()
        await consumer.aclose()
        assert now() - start < 5
        with nullcontext() if takes_s == 2 else pytest.raises(ClosedError):
            await acking
        if takes_s == 2:
            assert port.subscription.backlog == 0


@virtual_time
async def test_local_payloads_are_bounded(ports: Ports) -> None:
    """U30: Shared: beyond max_local_bytes the broker is asked; Exclusive: nack waits for room; nothing is lost."""
    async with consuming(ports.port(), redelivery="local", max_local_bytes=5_000) as (port, consumer):
        for number in range(6):
            port.topic.publish(bytes([number]) * 1_000)
        for message in await take(consumer, 6):
            await message.nack(delay=1)
        assert consumer.statistics().kept == 2
        assert consumer.statistics().kept_bytes <= 5_000
        assert len({message.data for message in await take_within(consumer, 6, 5)}) == 6
        assert len(port.requests("redeliver")[0]) == 4
    async with consuming(ports.port(subscription_type="exclusive"), max_local_bytes=5_000) as (port, consumer):
        for number in range(3):
            port.topic.publish(bytes([number]) * 1_000)
        messages = await take(consumer, 3)
        start = now()
        for message in messages[:2]:
            await message.nack(delay=5)
        waiting = asyncio.create_task(messages[2].nack(delay=60))
        await asyncio.sleep(1)
        assert (consumer.statistics().waiting_nacks, waiting.done()) == (1, False)
        await consumer.acknowledge(messages[0].id)
        await waiting
        assert now() - start == pytest.approx(1, abs=0.01)
        assert port.requests("redeliver") == []


@virtual_time
async def test_a_single_worker_is_never_stuck(ports: Ports) -> None:
    """U17, U33: one worker that nacks everything continues at the limits: nacks never wait while a message is ready."""
    for options in ({"unacked_limit": 4}, {"max_local_bytes": 100}, {"unacked_limit": 10**400}):
        port = ports.port(subscription_type="exclusive", receiver_queue_size=1)
        async with consuming(port, **options) as (_, consumer):
            publish(port.topic, *numbered(6))
            rounds: collections.Counter[bytes] = collections.Counter()
            while not rounds or min(rounds.values()) < 3 or len(rounds) < 6:
                message = await consumer.receive(timeout=100)
                rounds[message.data] += 1
                await (message.ack() if message.attempt == 3 else message.nack(delay=1))
            assert port.subscription.backlog == 0


@virtual_time
async def test_held_ones_count_for_the_warning(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """U33: held messages are unacknowledged too: with one more delivered message they reach 80 % of the limit."""
    async with consuming(ports.port(receiver_queue_size=5), unacked_limit=15) as (port, consumer):
        publish(port.topic, *numbered(10))
        for message in await take(consumer, 6):
            await message.nack(delay=60)
        await take(consumer, 1)
        assert not caplog.records
        await take(consumer, 3)
        assert [record.name for record in caplog.records] == ["pulsar_nack.consumer"]


@virtual_time
async def test_unacked_messages_are_bounded(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """U17, U33: at 80 % of the limit one warning, at the limit a nack waits; cancelled, its message stays delivered."""
    async with consuming(ports.port(receiver_queue_size=5), unacked_limit=15) as (port, consumer):
        publish(port.topic, *numbered(10))
        messages = await take(consumer, 7)
        assert not caplog.records
        messages += await take(consumer, 1)  # the eighth of the ten that are left beside the five of the queue
        assert len(caplog.records) == 1
        assert consumer.statistics().is_near_unacked_limit
        messages += await take(consumer, 2)
        assert len(caplog.records) == 1
        waiting = asyncio.create_task(messages[0].nack(delay=60))
        await asyncio.sleep(1)
        assert consumer.statistics().waiting_nacks == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (consumer.statistics().waiting_nacks, consumer.statistics().held) == (0, 0)
        waiting = asyncio.create_task(messages[0].nack(delay=60))
        await messages[1].ack()
        await waiting
        assert consumer.statistics().held == 1


@virtual_time
async def test_the_delay_of_a_nack_that_waits_counts_from_the_call(ports: Ports) -> None:
    """U33: a nack waits at the limit for 9 s of its 10 s: its message is redelivered 10 s after the call."""
    async with consuming(ports.port(receiver_queue_size=5), unacked_limit=9) as (port, consumer):
        publish(port.topic, *numbered(4))
        for message in await take(consumer, 3):
            await message.nack(delay=9)
        (last,) = await take(consumer, 1)
        began_at = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(last.nack(delay=10))
        await asyncio.sleep(8)
        assert consumer.statistics().waiting_nacks == 1
        for _ in range(3):
            await (await consumer.receive(timeout=5)).ack()
        await waiting
        assert (await consumer.receive(timeout=60)).data == last.data
        assert abs(asyncio.get_running_loop().time() - began_at - 10) < 0.2


@virtual_time
async def test_nacks_of_all_there_is_do_not_wait_for_each_other_for_ever(ports: Ports) -> None:
    """U33: at the limit every handler nacks at once, and nothing is held: one after another they pass."""
    async with consuming(ports.port(receiver_queue_size=5), unacked_limit=8) as (port, consumer):
        publish(port.topic, *numbered(3))
        nacks = [asyncio.create_task(message.nack(delay=1)) for message in await take(consumer, 3)]
        _, waiting = await asyncio.wait(nacks, timeout=60)
        assert not waiting
        assert {(await consumer.receive(timeout=10)).data[0] for _ in range(3)} == {0, 1, 2}


@virtual_time
async def test_a_large_payload_that_waits_does_not_hold_up_a_small_one(ports: Ports) -> None:
    """U30: Exclusive: freed room is too little for the first nack in line but enough for the second."""
    async with consuming(ports.port(subscription_type="exclusive"), max_local_bytes=10_000) as (port, consumer):
        for size in (4_000, 2_000, 8_000, 1_000):
            port.topic.publish(b"x" * size)
        kept, freed, large, small = await take(consumer, 4)
        await kept.nack(delay=3600)
        await freed.nack(delay=3600)
        waiting = [asyncio.create_task(message.nack(delay=3600)) for message in (large, small)]
        await asyncio.sleep(1)
        assert consumer.statistics().waiting_nacks == 2
        await consumer.acknowledge(freed.id)
        await asyncio.sleep(1)
        assert [task.done() for task in waiting] == [False, True]
        await consumer.acknowledge(kept.id)
        await consumer.acknowledge(small.id)
        await asyncio.gather(*waiting)


@virtual_time
async def test_max_held(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """N22, U17: at max_held a nack waits for room, one warning says so, and nothing is dropped."""
    async with consuming(ports.port(), config=NackConfig(max_held=2)) as (port, consumer):
        *messages, last = await new_messages(port, consumer, *numbered(4))
        start = now()
        for message in messages[:2]:
            await message.nack(delay=5)
        assert not caplog.records
        await messages[2].nack(delay=5)
        assert now() - start > 4
        await last.ack()
        (warning,) = caplog.records
        assert warning.message.startswith("a call of nack waits for room, with 2 messages held: max_held or")
        assert len({message.data for message in await take_within(consumer, 3, 20)}) == 3


async def take_within(consumer: Consumer, count: int, seconds: float) -> list[Message]:
    """Receive messages that take a while."""
    return [await consumer.receive(timeout=seconds) for _ in range(count)]


@pytest.mark.not_on("local", reason="a local topic is moved by a call that waits")
@virtual_time
async def test_a_reset_is_delivered_and_counted(ports: Ports) -> None:
    """U32: the subscription is reset two minutes after the acks: all is delivered, and counted as replayed."""
    async with consuming(ports.port()) as (port, consumer):
        publish(port.topic, *numbered(3))
        for message in await take(consumer, 3):
            await message.ack()
        await asyncio.sleep(120)
        port.subscription.reset()
        assert len(await take(consumer, 3)) == 3
        assert consumer.statistics().replayed == 3


@virtual_time
async def test_a_port_that_fails_to_receive(ports: Ports) -> None:
    """U22: a receive that the port refuses raises, and the next one continues."""
    async with consuming(ports.port()) as (port, consumer):
        port.fail_next("receive")
        with pytest.raises(BrokerError):
            await consumer.receive()
        port.topic.publish(b"x")
        assert (await consumer.receive()).data == b"x"


@virtual_time
async def test_bad_input() -> None:
    """N24: invalid settings, delays and ids are refused by name, with nothing changed."""
    for name, value in (
        ("max_local_bytes", -1),
        ("max_local_bytes", True),
        ("unacked_limit", 1_000),
        ("redelivery", "remote"),
        ("ack_memory", float("nan")),
        ("backoff", "soon"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            Consumer(FakePort(), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Consumer\(\) got an unexpected keyword argument 'back_off'$"):
        Consumer(FakePort(), back_off=1)  # type: ignore[call-arg]
    with pytest.raises(NotOpenError):
        await Consumer(FakePort()).receive()
    async with consuming(FakePort()) as (port, consumer):
        message = await new_message(port, consumer)
        for delay in (-1, float("inf"), "1", True):
            with pytest.raises(InvalidArgumentError, match="delay"):
                await message.nack(delay)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="message"):
            await consumer.acknowledge(b"x")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="timeout"):
            await consumer.receive(timeout=-1)
        await message.ack()


@virtual_time
async def test_a_port_without_the_optional_calls() -> None:
    """U35: cumulative acks and seeks on a port without them are refused."""

    class Bare:
        traits = FakePort().traits
        receive = acknowledge = redeliver = None

        async def close(self) -> None:
            """Do nothing."""

    async with Consumer(Bare()) as consumer:  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            await consumer.seek(0)
        with pytest.raises(NotImplementedError):
            await consumer.acknowledge_cumulative(MessageId(1, 1))


@virtual_time
async def test_a_cumulative_ack_cancels_holds(ports: Ports) -> None:
    """U35: on an Exclusive subscription a cumulative ack past a held message cancels the hold."""
    async with consuming(ports.port(subscription_type="exclusive")) as (port, consumer):
        messages = await new_messages(port, consumer, *numbered(3))
        await messages[0].nack(delay=1)
        await messages[2].nack(delay=1)
        await consumer.acknowledge_cumulative(messages[1])
        assert (await consumer.receive()).data == bytes([2])
        assert await is_quiet(consumer)
        assert consumer.statistics().kept == 0


@given(data=st.data())
@examples(40)
def test_whatever_happens_nothing_is_lost_or_doubled(ports: Ports, data: st.DataObject) -> None:
    """U23: with duplicates, failures, batches and partitions each message is delivered once more than it was nacked."""
    redelivery = data.draw(st.sampled_from(["auto", "local", "broker"]))
    kind: Any = data.draw(st.sampled_from(["shared", "exclusive"]))
    index_acks = data.draw(st.booleans())
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    nacks = [data.draw(st.integers(0, 3)) for _ in range(sum(sizes))]
    delays = data.draw(st.lists(st.sampled_from([0, 0.01, 0.05, 0.3, 2.0]), min_size=1, max_size=7))
    faults = data.draw(st.lists(st.sampled_from(["redeliver", "acknowledge", "copy", "lost answer"]), max_size=5))

    @virtual_time
    async def run() -> None:
        port = ports.port(subscription_type=kind, batch_index_ack=index_acks, min_redelivery_delay=0.02)
        async with consuming(port, redelivery=redelivery, max_local_bytes=data.draw(st.sampled_from([0, 10**6]))) as (
            _,
            consumer,
        ):
            number = 0
            for size in sizes:
                port.topic.publish_batch([bytes([number + index]) for index in range(size)])
                number += size
            for fault in faults:
                inject(port, fault)
            shown: collections.Counter[int] = collections.Counter()
            step = 0
            async for message in all_that_comes(consumer, 300):
                which = message.data[0]
                shown[which] += 1
                assert message.attempt == shown[which]
                if shown[which] <= nacks[which]:
                    step += 1
                    await message.nack(delay=delays[step % len(delays)])
                else:
                    await ack_until_done(message)
            assert [shown[which] - 1 for which in range(number)] == nacks
            assert port.subscription.backlog == 0
            statistics = consumer.statistics()
            assert statistics.unacked == statistics.requested == statistics.kept == statistics.kept_bytes == 0
            consumer._engine.table._check()

    run()


def inject(port: FakePort, fault: str) -> None:
    """Inject one random fault."""
    if fault == "copy":
        port.duplicate_next(second_count=0)
    elif fault == "lost answer":
        port.fail_next("acknowledge", carried_out=True)
    else:
        port.fail_next(fault)  # type: ignore[arg-type]


async def ack_until_done(message: Message) -> None:
    """Acknowledge, again after a failure."""
    while True:
        try:
            await message.ack()
        except BrokerError:
            continue
        return


def test_a_consumer_of_another_loop_says_so(ports: Ports) -> None:
    """A consumer that is used in another event loop than its own raises at once; otherwise it would wait for ever."""
    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]

    async def make() -> Consumer:
        return await Consumer(ports.port()).open()

    try:
        consumer = loops[0].run_until_complete(make())
        with pytest.raises(WrongLoopError, match="another event loop"):
            loops[1].run_until_complete(consumer.receive(timeout=1))
        loops[0].run_until_complete(consumer.aclose())
    finally:
        for loop in loops:
            loop.close()


@pytest.mark.parametrize("how", ["ack", "cumulative"])
@virtual_time
async def test_a_ready_message_that_is_acknowledged_by_its_id_is_not_delivered(ports: Ports, how: str) -> None:
    """U20: a message that waits for a ``receive`` and is acknowledged by its id meanwhile is not delivered."""
    port = ports.port(subscription_type="exclusive")
    async with consuming(port) as (_, consumer):
        (message,) = await new_messages(port, consumer, b"x")
        await message.nack(delay=1)
        await asyncio.sleep(2)
        assert consumer.statistics().ready == 1
        await (consumer.acknowledge(message.id) if how == "ack" else consumer.acknowledge_cumulative(message.id))
        assert await is_quiet(consumer, 200)
        assert consumer.statistics().ready == 0
