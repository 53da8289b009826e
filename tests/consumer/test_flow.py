"""Calls for many messages at once, and for the end of a topic, on each kind of port."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BrokerError,
    ClosedError,
    Consumer,
    DeadLetterPolicy,
    InvalidArgumentError,
    MessageId,
)
from pulsar_nack.errors import AcknowledgeError, AlreadySettledError, NotOpenError
from pulsar_nack.testing import FakePort, FakePublisher, FakeTopic, FaultyPort, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, all_that_comes, digits, publish, take

from .ports import Ports


async def rest(consumer: Consumer, seconds: float = 1.0) -> list[tuple[bytes, int]]:
    """Receive and acknowledge until nothing comes for a while; return payloads and attempts."""
    found = []
    async for message in all_that_comes(consumer, seconds):
        found.append((message.data, message.attempt))
        await message.ack()
    return found


# --- acknowledging several -------------------------------------------------------------------------------------------


@pytest.mark.each_kind
@virtual_time
async def test_a_list_is_acknowledged(ports: Ports) -> None:
    """Messages and ids, some twice, single ones and members of a batch, and any iterable of them, are accepted."""
    port = ports.port()
    publish(port.topic, *digits(4))
    port.topic.publish_batch([b"x", b"y"])
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 6)
        await messages[3].nack(delay=60)
        await consumer.acknowledge([messages[0], messages[1].id, messages[0], messages[0].id])
        await consumer.acknowledge(message for message in messages[2:])
        await consumer.acknowledge([])
        await consumer.acknowledge(messages)
        assert (consumer.statistics().acked, consumer.statistics().unacked) == (6, 0)
        for message in messages:
            with pytest.raises(AlreadySettledError):
                await message.nack()
    assert port.subscription.backlog == 0


@pytest.mark.not_on("wire")
@pytest.mark.each_kind
@virtual_time
async def test_some_of_a_list_fail(ports: Ports) -> None:
    """The error names those that failed, the others are acknowledged, and a later call can settle the rest."""
    port = ports.port()
    publish(port.topic, *digits(5))
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 5)
        port.fail_next("acknowledge", error=BrokerError("no"))
        with pytest.raises(AcknowledgeError, match="1 of 4 messages were not acknowledged") as caught:
            await consumer.acknowledge([*messages[:3], messages[3].id])
        assert caught.value.failed == (messages[0].id,)
        assert isinstance(caught.value.__cause__, BrokerError)
        assert (consumer.statistics().acked, consumer.statistics().unacked) == (3, 2)
        await messages[4].nack(delay=0)
        again = await consumer.receive(timeout=5)
        with pytest.raises(AcknowledgeError) as caught:
            await consumer.acknowledge([messages[4], messages[0]])
        assert caught.value.failed == (messages[4].id,)
        assert isinstance(caught.value.__cause__, AlreadySettledError)
        await consumer.acknowledge([again])
        assert consumer.statistics().unacked == 0
    assert port.subscription.backlog == 0


@virtual_time
async def test_a_message_of_a_list_that_failed_can_be_nacked(ports: Ports) -> None:
    """An unacknowledged message is as before."""
    port = ports.port()
    publish(port.topic, *digits(2))
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 2)
        port.fail_next("acknowledge", times=2)
        with pytest.raises(AcknowledgeError) as caught:
            await consumer.acknowledge(messages)
        assert caught.value.failed == (messages[0].id, messages[1].id)
        await messages[0].nack(delay=1)
        await messages[1].ack()
        assert await rest(consumer, 2) == [(b"0", 2)]


@virtual_time
async def test_what_is_no_list_of_messages() -> None:
    """It is refused before anything is acknowledged; so is a list for a consumer that is closed or not open."""
    port = FakePort()
    publish(port.topic, *digits(2))
    consumer = Consumer(port)
    with pytest.raises(NotOpenError):
        await consumer.acknowledge([MessageId(1, 2)])
    async with consumer:
        messages = await take(consumer, 2)
        several: list[Any] = [[messages[0], b"x"], "ab", [None], [messages], 5, None]
        for wrong in several:
            with pytest.raises(InvalidArgumentError, match=r"^message: expected a Message"):
                await consumer.acknowledge(wrong)
        assert consumer.statistics().unacked == 2
    with pytest.raises(ClosedError):
        await consumer.acknowledge(messages)


@pytest.mark.not_on("wire")
@pytest.mark.each_kind
@pytest.mark.parametrize("fails", ["never", "before", "after"])
@virtual_time
async def test_a_cancelled_list_goes_on(ports: Ports, fails: str) -> None:
    """Cancelling the call does not stop the acknowledgements; those that fail then are redelivered."""
    port = ports.port()
    publish(port.topic, *digits(3))
    async with Consumer(port, config=EXACT, backoff=[1]) as consumer:
        messages = await take(consumer, 3)
        if fails == "before":
            port.fail_next("acknowledge")
        elif fails == "after":
            port._add_fault("acknowledge", Fault(delay=0.5, error=BrokerError("no")), 1)
        port.delay_next("acknowledge", 0.5, times=3)
        call = asyncio.create_task(consumer.acknowledge(messages))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await rest(consumer, 3) == ([] if fails == "never" else [(b"0", 2)])
        assert consumer.statistics().unacked == 0


# --- redelivering everything -----------------------------------------------------------------------------------------


@pytest.mark.each_kind
@virtual_time
async def test_everything_unsettled_comes_again(ports: Ports) -> None:
    """Shared: received and unsettled messages come again as attempt 2; nacks keep their deadlines."""
    port = ports.port()
    publish(port.topic, *digits(7))
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 5)
        await messages[0].ack()
        await messages[1].nack(delay=5)
        await consumer.redeliver_unacknowledged_messages()
        assert sorted(await rest(consumer)) == [(b"2", 2), (b"3", 2), (b"4", 2), (b"5", 1), (b"6", 1)]
        assert await rest(consumer, 6) == [(b"1", 2)]
        await consumer.redeliver_unacknowledged_messages()
        assert await rest(consumer, 6) == []
    assert port.subscription.backlog == 0


@pytest.mark.each_kind
@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
@virtual_time
async def test_order_where_one_consumer_gets_everything(ports: Ports, redelivery: Any) -> None:
    """Exclusive: all comes again in order, before later messages; unreceived messages are at their first attempt."""
    port = ports.port(subscription_type="exclusive")
    publish(port.topic, *digits(8))
    async with Consumer(port, config=EXACT, redelivery=redelivery) as consumer:
        messages = await take(consumer, 5)
        await messages[0].ack()
        if redelivery != "broker":  # which rewinds for each nack
            await messages[3].nack(delay=5)
        await consumer.redeliver_unacknowledged_messages()
        again = [(b"%d" % number, 2) for number in (1, 2, 3, 4) if redelivery == "broker" or number != 3]
        assert await rest(consumer) == [*again, (b"5", 1), (b"6", 1), (b"7", 1)]
        assert await rest(consumer, 6) == ([] if redelivery == "broker" else [(b"3", 2)])
    assert port.subscription.backlog == 0


@pytest.mark.each_kind
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_members_of_a_batch_come_again(ports: Ports, kind: str) -> None:
    """Settled and held members do not come with the others."""
    port = ports.port(subscription_type=kind)
    port.topic.publish_batch([b"0", b"1", b"2", b"3"])
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 4)
        await messages[1].ack()
        await messages[2].nack(delay=5)
        await consumer.redeliver_unacknowledged_messages()
        assert await rest(consumer) == [(b"0", 2), (b"3", 2)]
        assert await rest(consumer, 6) == [(b"2", 2)]
    assert port.subscription.backlog == 0


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_what_waits_for_a_call_stays_at_its_attempt(ports: Ports, kind: str) -> None:
    """A due message that was not received yet is not redelivered once more."""
    port = ports.port(subscription_type=kind)
    publish(port.topic, *digits(3))
    async with Consumer(port, config=EXACT, redelivery="local") as consumer:
        first, second = await take(consumer, 2)
        await second.nack(delay=1)
        await asyncio.sleep(2)
        assert consumer.statistics().ready == 1
        await consumer.redeliver_unacknowledged_messages()
        found = await rest(consumer)
        assert (found if kind == "exclusive" else sorted(found)) == [(b"0", 2), (b"1", 2), (b"2", 1)]
        await first.ack()
    assert port.subscription.backlog == 0


@virtual_time
async def test_a_rewind_names_one_message() -> None:
    """Exclusive: for any number of unsettled messages, the request is within the port's limit."""
    port = FakePort(subscription_type="exclusive", max_ids_per_request=2)
    publish(port.topic, *digits(5))
    async with Consumer(port, config=EXACT) as consumer:
        await take(consumer, 4)
        await consumer.redeliver_unacknowledged_messages()
        assert [len(call.ids) for call in port.calls if call.name == "redeliver"] == [1]
        assert await rest(consumer) == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 2), (b"4", 1)]


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_leases_end_with_their_attempt(ports: Ports, kind: str) -> None:
    """A lease of the previous attempt has no effect any more, and the new attempt has its own lease."""
    port = ports.port(subscription_type=kind)
    publish(port.topic, *digits(2))
    async with Consumer(port, config=EXACT, lease=2.0, backoff=[1]) as consumer:
        first = await take(consumer, 2)
        await asyncio.sleep(1)
        await consumer.redeliver_unacknowledged_messages()
        again = await take(consumer, 2)
        await asyncio.sleep(1.5)  # the first leases would have ended
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.3)
        await consumer.acknowledge(again[:1])
        assert await rest(consumer, 3) == [(again[1].data, 3)]
        assert [message.attempt for message in (*first, *again)] == [1, 1, 2, 2]
    assert port.subscription.backlog == 0


@virtual_time
async def test_attempts_outlive_the_consumer(ports: Ports, tmp_path: Path) -> None:
    """A durable consumer counts these redeliveries as attempts after a restart, too."""
    port = ports.port()
    publish(port.topic, *digits(2))
    async with Consumer(port, config=EXACT, durable=tmp_path) as consumer:
        await take(consumer, 2)
        await consumer.redeliver_unacknowledged_messages()
        again = await take(consumer, 2)
        assert [message.attempt for message in again] == [2, 2]
        await consumer.acknowledge(again[:1])
    async with Consumer(ports.port(port.topic), config=EXACT, durable=tmp_path) as consumer:
        message = await consumer.receive(timeout=5)
        assert (message.data, message.attempt) == (again[1].data, 3)
        await consumer.acknowledge([message])
        assert await rest(consumer) == []


@virtual_time
async def test_an_earlier_attempt_still_counts(ports: Ports) -> None:
    """A message that was requested may still be settled by its handler; then it does not come."""
    port = ports.port()
    publish(port.topic, *digits(2))
    async with Consumer(port, config=EXACT) as consumer:
        first, second = await take(consumer, 2)
        await consumer.redeliver_unacknowledged_messages()
        await first.ack()
        assert await rest(consumer) == [(b"1", 2)]
        await second.ack()
        assert consumer.statistics().unacked == 0
    assert port.subscription.backlog == 0


@virtual_time
async def test_redeliveries_count_as_attempts(ports: Ports) -> None:
    """The last attempt that a dead-letter policy allows is followed by the dead letter."""
    publisher = FakePublisher()
    port = ports.port()
    publish(port.topic, *digits(1))
    async with Consumer(
        port, config=EXACT, dead_letter=DeadLetterPolicy(2, topic="dead", publisher=publisher)
    ) as consumer:
        for attempt in (1, 2, 3):
            assert (await consumer.receive(timeout=5)).attempt == attempt
            await consumer.redeliver_unacknowledged_messages()
        assert await rest(consumer) == []
        assert consumer.statistics().dead_lettered == 1


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_a_request_that_fails_is_made_again(ports: Ports, kind: str) -> None:
    """Nothing is lost when the broker refuses the request, or the call is cancelled."""
    port = ports.port(subscription_type=kind)
    publish(port.topic, *digits(6))
    async with Consumer(port, config=EXACT, redelivery="broker") as consumer:
        await take(consumer, 4)
        port.fail_next("redeliver")
        await consumer.redeliver_unacknowledged_messages()
        assert sorted(data for data, _ in await rest(consumer, 40)) == [b"%d" % number for number in range(6)]
        publish(port.topic, *digits(6))
        await take(consumer, 4)
        port.delay_next("redeliver", 0.5)
        call = asyncio.create_task(consumer.redeliver_unacknowledged_messages())
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait([call])
        assert sorted(data for data, _ in await rest(consumer, 40)) == [b"%d" % number for number in range(6)]
    assert port.subscription.backlog == 0


@virtual_time
async def test_many_messages_do_not_block_the_loop(ports: Ports) -> None:
    """Thousands are requested in slices; other tasks run in between, and may settle some meanwhile."""
    port = ports.port()
    publish(port.topic, *digits(900))
    async with Consumer(port, config=EXACT) as consumer:
        messages = await take(consumer, 900)
        call = asyncio.create_task(consumer.redeliver_unacknowledged_messages())
        await asyncio.sleep(0)
        assert not call.done()
        await messages[-1].ack()
        await call
        assert sorted(await rest(consumer)) == sorted((b"%d" % number, 2) for number in range(899))


@virtual_time
async def test_redelivering_before_and_after(ports: Ports) -> None:
    """A consumer that is not open, or closed, says so."""
    consumer = Consumer(ports.port())
    with pytest.raises(NotOpenError):
        await consumer.redeliver_unacknowledged_messages()
    async with consumer:
        await consumer.redeliver_unacknowledged_messages()
    with pytest.raises(ClosedError):
        await consumer.redeliver_unacknowledged_messages()


# --- the end of a topic ----------------------------------------------------------------------------------------------


class EndlessPort(FakePort):
    """A port that cannot ask for the last message."""

    last_message_ids = None  # type: ignore[assignment]


@virtual_time
async def test_a_port_that_does_not_know_the_end() -> None:
    """The error names the port, also one inside a FaultyPort."""
    for port, name in ((EndlessPort(), "EndlessPort"), (FaultyPort(EndlessPort()), "EndlessPort")):
        async with Consumer(port) as consumer:
            for call in (consumer.last_message_ids, consumer.get_last_message_id, consumer.has_message_available):
                with pytest.raises(NotImplementedError, match=f"^{name} cannot ask for the last message"):
                    await call()


@virtual_time
async def test_the_end_of_a_fake_topic() -> None:
    """Availability is known before, at and after the end, in batches and without a connection too."""
    ports = [FakePort()]

    async def connect() -> FakePort:
        ports.append(FakePort(ports[0].topic))
        return ports[-1]

    port = FaultyPort(ports[0], connect)
    async with Consumer(port) as consumer:
        assert (await consumer.get_last_message_id()).entry == -1
        assert not await consumer.has_message_available()
        ports[0].topic.publish(b"a")
        last = ports[0].topic.publish_batch([b"b", b"c"])[-1]
        assert await consumer.last_message_ids() == [last]
        for _ in range(3):
            assert await consumer.has_message_available()
            await (await consumer.receive()).ack()
        assert not await consumer.has_message_available()
        await port.disconnect()
        with pytest.raises(BrokerError, match="there is no connection"):
            await consumer.has_message_available()
        await port.reconnect()
        assert not await consumer.has_message_available()


@virtual_time
async def test_the_ends_of_fake_partitions() -> None:
    """Each partition has its own last message; an empty one has none."""
    port = FakePort(FakeTopic("orders", partitions=3))
    sent = [port.topic.publish(b"%d" % number, partition=number % 2) for number in range(5)]
    async with Consumer(port) as consumer:
        assert await consumer.last_message_ids() == [
            sent[4],
            sent[3],
            MessageId(-1, -1, 2, topic="orders-partition-2"),
        ]
