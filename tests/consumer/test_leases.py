"""Leases: how long a message may be handled, on every kind of broker and on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from pulsar_nack import AlreadySettledError, BrokerError, Consumer, DeadLetterPolicy, InvalidArgumentError, Message
from pulsar_nack.errors import ClosedError, LeaseExpiredError, MissingExtraError
from pulsar_nack.testing import FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import (
    EXACT,
    all_that_comes,
    digits,
    is_quiet,
    new_message,
    new_messages,
    now,
    publish,
    take,
)
from tests.consumer.durable import Machine
from tests.consumer.ports import Ports
from tests.consumer.test_consumer import consuming
from tests.for_each import for_each
from tests.tiers import seeds

BOTH_WAYS = pytest.mark.parametrize("redelivery", ["auto", "broker"])
KINDS = pytest.mark.parametrize("kind", ["shared", "exclusive", "failover"])


async def end(consumer: Consumer, message: Message) -> Message:
    """Let the lease of the only message end; return the message as it is redelivered."""
    again = await consumer.receive()
    assert (again.id, again.attempt) == (message.id, message.attempt + 1)
    return again


# --- what U11 and U44 say ---------------------------------------------------------------------------------------------


@pytest.mark.each_kind
@KINDS
@virtual_time
async def test_an_extended_lease_does_not_end_and_another_does(ports: Ports, kind: Any) -> None:
    """U44: lease 1 s: a handler of 3 s that extends each 0.5 s keeps its message; one that does not loses it."""
    async with consuming(ports.port(subscription_type=kind), lease=1, backoff=0.25) as (port, consumer):
        extended, hung = await new_messages(port, consumer, b"extended", b"hung")
        began = now()

        async def handle() -> None:
            for _ in range(6):
                await asyncio.sleep(0.5)
                await extended.in_progress(1)
            await extended.ack()

        handling = asyncio.create_task(handle())
        again = await consumer.receive()
        assert (again.data, again.attempt) == (b"hung", 2)
        assert now() - began == pytest.approx(1.25, abs=0.005)
        with pytest.raises(LeaseExpiredError, match="past its lease"):
            await hung.ack()
        await again.ack()
        await handling
        assert await is_quiet(consumer)
        figures = consumer.statistics()
        assert (figures.leases_expired, figures.nacked, figures.acked, figures.nack.pending) == (1, 0, 2, 0)
        assert port.subscription.backlog == 0


@BOTH_WAYS
@pytest.mark.parametrize(("backoff", "is_shown"), [(5.0, False), (0.1, True)])
@virtual_time
async def test_a_late_nack_counts_no_other_attempt(
    ports: Ports, redelivery: Any, backoff: float, is_shown: bool
) -> None:
    """U11: a lease of 1 s, a handler of 1.2 s that then nacks: one redelivery, at the earlier of both times."""
    async with consuming(ports.port(), lease=1, backoff=backoff, redelivery=redelivery) as (port, consumer):
        message = await new_message(port, consumer)
        began = now()
        receiving = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(1.2)
        if is_shown:
            with pytest.raises(LeaseExpiredError):
                await message.nack()
        else:
            await message.nack()
            await message.nack(delay=60)
        again = await receiving
        assert again.attempt == 2
        assert now() - began == pytest.approx(1.2 if is_shown else 6.0, abs=0.005)
        await again.ack()
        assert await is_quiet(consumer)
        assert consumer.statistics().shown == 2


@virtual_time
async def test_the_lease_begins_when_the_message_is_received(ports: Ports) -> None:
    """U44: the time that a message waits to be received does not count."""
    async with consuming(ports.port(), lease=2, backoff=0) as (port, consumer):
        publish(port.topic, b"a", b"b")
        await (await consumer.receive()).ack()
        await asyncio.sleep(10)
        message = await consumer.receive()
        began = now()
        await end(consumer, message)
        assert now() - began == pytest.approx(2, abs=0.005)


@pytest.mark.parametrize("lease", [0.001, 0.3, 30.0, timedelta(hours=2)])
@virtual_time
async def test_no_lease_ends_before_its_time(ports: Ports, lease: Any) -> None:
    """U44: with the usual precision, which lets nacks be 0.25 s early, a lease ends within 2 ms after its time."""
    async with consuming(ports.port(), lease=lease, backoff=0, config=None) as (port, consumer):
        message = await new_message(port, consumer)
        began = now()
        await end(consumer, message)
        seconds = lease.total_seconds() if isinstance(lease, timedelta) else lease
        assert seconds <= now() - began + 0.001 <= seconds + 0.006


@virtual_time
async def test_nacked_by_id_while_receive_lets_others_run(ports: Ports) -> None:
    """U44: a message that is nacked in the turn in which it is received has no lease, and comes at its deadline."""
    async with consuming(ports.port(), lease=1) as (port, consumer):
        (message,) = await new_messages(port, consumer, b"x")
        await message.nack(0)
        message = await consumer.receive()
        await message.nack(0)
        nacking = asyncio.ensure_future(nack_soon(consumer, message))
        await asyncio.sleep(0.001)
        consumer._state.yielded_at_ms -= 10
        await consumer.receive()
        await nacking
        began = now()
        assert (await consumer.receive()).attempt == 4
        assert now() - began == pytest.approx(5, abs=0.01)


async def nack_soon(consumer: Consumer, message: Message) -> None:
    """Nack a message by its id as soon as a call of receive has it."""
    await asyncio.sleep(0.001)
    while consumer.statistics().shown < 3:
        await asyncio.sleep(0)
    await consumer.negative_acknowledge(message.id, 5)


# --- late calls -------------------------------------------------------------------------------------------------------


@pytest.mark.each_kind
@KINDS
@virtual_time
async def test_a_late_ack_cancels_the_redelivery(ports: Ports, kind: Any) -> None:
    """U44: an ack after the lease, while the message is held, settles it, as an ack after a nack does."""
    async with consuming(ports.port(subscription_type=kind), lease=1, backoff=5) as (port, consumer):
        message = await new_message(port, consumer)
        await asyncio.sleep(1.5)
        assert consumer.statistics().held == 1
        await message.ack()
        await message.ack()
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0
        assert consumer.statistics().kept == 0


@pytest.mark.not_on("wire", "local", reason="their deliveries have no latency")
@virtual_time
async def test_a_late_ack_while_the_message_is_requested(ports: Ports) -> None:
    """U24, U44: acked between the request and the arrival, a message is acknowledged again and not delivered."""
    port = ports.port(latency=0.5)
    async with consuming(port, lease=1, backoff=5) as (_, consumer):
        message = await new_message(port, consumer)
        port.redeliver_acked_next()
        await asyncio.sleep(5.75)
        assert consumer.statistics().requested == 1
        await message.ack()
        assert await is_quiet(consumer)
        assert consumer.statistics().acked_again == 1


@pytest.mark.not_on("wire", "local", reason="their deliveries have no latency")
@for_each("call", ["ack", "nack", "dead_letter"])
@virtual_time
async def test_after_one_refused_call_all_are_refused(ports: Ports, call: str) -> None:
    """U44: a handler that noticed the redelivery and returns acknowledges nothing, though it still could have."""
    dead = DeadLetterPolicy(9, "dead", publisher=FakePublisher())
    port = ports.port(latency=0.5)
    async with consuming(port, lease=1, backoff=5, dead_letter=dead) as (_, consumer):
        message = await new_message(port, consumer)
        await asyncio.sleep(5.75)
        assert consumer.statistics().requested == 1
        with pytest.raises(LeaseExpiredError):
            await message.in_progress()
        with pytest.raises(LeaseExpiredError):
            await getattr(message, call)()
        again = await consumer.receive()
        assert again.attempt == 2
        await again.ack()
        assert await is_quiet(consumer)


@pytest.mark.each_kind
@virtual_time
async def test_all_late_calls_raise_once_the_message_was_redelivered(ports: Ports) -> None:
    """U44: all verbs raise, also a cumulative ack, and the present handler is not disturbed."""
    dead = DeadLetterPolicy(9, "dead", publisher=FakePublisher())
    async with consuming(ports.port(), lease=1, backoff=0, dead_letter=dead) as (port, consumer):
        late = await new_message(port, consumer)
        again = await end(consumer, late)
        cumulative = consumer.acknowledge_cumulative(late)
        for call in (late.ack(), late.nack(), late.dead_letter("late"), late.in_progress(), cumulative):
            with pytest.raises(LeaseExpiredError):
                await call
        with pytest.raises(AlreadySettledError):  # what programs without leases catch
            late.ack_soon()
        assert (consumer.statistics().in_work, consumer.statistics().held) == (1, 0)
        await again.ack()
        with pytest.raises(LeaseExpiredError):
            await late.ack()
        assert await is_quiet(consumer)


@pytest.mark.each_kind
@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@pytest.mark.parametrize("is_durable", [False, True])
@virtual_time
async def test_a_late_cumulative_ack_is_refused_as_an_ack_is(ports: Ports, kind: Any, *, is_durable: bool) -> None:
    """U44: while the message is held it cancels the redelivery; after that it raises, and the next attempt may."""
    machine = Machine(ports, subscription_type=kind)
    port = machine.port()
    options: dict[str, Any] = {"port": port, "lease": 1, "backoff": 0.5} | ({} if is_durable else {"durable": None})
    async with machine.consuming(**options) as consumer:
        publish(machine.topic, b"0", b"1", b"2")
        held, *late = await take(consumer, 3)
        await asyncio.sleep(1.25)
        await consumer.acknowledge_cumulative(held)
        again = await take(consumer, 2)
        assert [message.attempt for message in again] == [2, 2]
        for message in late:
            with pytest.raises(LeaseExpiredError, match="past its lease"):
                await consumer.acknowledge_cumulative(message)
            assert not message.is_settled
        assert (consumer.statistics().in_work, port.subscription.backlog) == (2, 2)
        await again[0].nack(5)
        await consumer.acknowledge_cumulative(again[1])
        assert (again[1].is_settled, again[1].settled_by) == (True, "acknowledge")
        assert port.subscription.backlog == 0
        await again[1].ack()
        assert await is_quiet(consumer)


@virtual_time
async def test_a_late_dead_letter_of_a_held_message(ports: Ports) -> None:
    """U44: dead_letter after the lease, while the message is held, dead-letters it."""
    letters = FakePublisher()
    async with consuming(
        ports.port(), lease=1, backoff=5, dead_letter=DeadLetterPolicy(9, "dead", publisher=letters)
    ) as (port, consumer):
        message = await new_message(port, consumer)
        await asyncio.sleep(2)
        await message.dead_letter("bad")
        assert [letter.data for letter in letters.letters] == [b"x"]
        assert await is_quiet(consumer)


# --- extending --------------------------------------------------------------------------------------------------------


@BOTH_WAYS
@KINDS
@virtual_time
async def test_a_held_message_is_taken_back(ports: Ports, kind: Any, redelivery: Any) -> None:
    """U11: in_progress after the lease, while the message is held, continues the same attempt."""
    async with consuming(ports.port(subscription_type=kind), lease=1, backoff=5, redelivery=redelivery) as (
        port,
        consumer,
    ):
        message = await new_message(port, consumer)
        await asyncio.sleep(2)
        await message.in_progress(10)
        figures = consumer.statistics()
        assert (figures.in_work, figures.held, figures.kept, figures.leases_expired) == (1, 0, 0, 1)
        assert await is_quiet(consumer, 9.9)
        began = now()
        again = await end(consumer, message)
        assert now() - began == pytest.approx(5.1, abs=0.005)  # the rest of the lease, and the backoff
        await again.ack()
        assert await is_quiet(consumer)


@virtual_time
async def test_extending_sets_no_timer_and_shortening_does(ports: Ports) -> None:
    """U11: the lease ends the given time from now, sooner or later than before; many extensions cost no wake-ups."""
    async with consuming(ports.port(), lease=10, backoff=0) as (port, consumer):
        message = await new_message(port, consumer)
        for _ in range(1_000):
            await asyncio.sleep(0.1)
            await message.in_progress()
        assert consumer.statistics().nack.wakeups <= 13
        assert consumer.statistics().nack.pending == 1
        await asyncio.sleep(1)  # the timer is set for 9 s from now
        await message.in_progress(timedelta(seconds=0.5))
        began = now()
        await end(consumer, message)
        assert now() - began == pytest.approx(0.5, abs=0.005)


@virtual_time
async def test_in_progress_of_a_settled_message_raises(ports: Ports) -> None:
    """U11: after ack, nack, an ack by id, and a nack by id, in_progress raises; after a seek too."""
    async with consuming(ports.port(), lease=10) as (port, consumer):
        publish(port.topic, *digits(5))
        messages = await take(consumer, 5)
        await messages[0].ack()
        await messages[1].nack(60)
        await consumer.acknowledge(messages[2].id)
        await consumer.negative_acknowledge(messages[3].id, 60)
        for message in messages[:4]:
            with pytest.raises(AlreadySettledError) as raised:
                await message.in_progress()
            assert not isinstance(raised.value, LeaseExpiredError)
        await consumer.seek(messages[0].id)
        with pytest.raises(AlreadySettledError, match="seek"):
            await messages[4].in_progress()


@virtual_time
async def test_without_leases_in_progress_does_nothing(ports: Ports) -> None:
    """U11: a consumer without leases; invalid delays are still refused."""
    async with consuming(ports.port()) as (port, consumer):
        message = await new_message(port, consumer)
        await message.in_progress()
        await message.in_progress(0.1)
        with pytest.raises(InvalidArgumentError, match="delay"):
            await message.in_progress(0)
        assert await is_quiet(consumer)
        assert consumer.statistics().leases_expired == consumer.statistics().nack.pending == 0
        await message.ack()
    with pytest.raises(ClosedError):
        await message.in_progress()


@for_each("lease", [0, -1, 0.0, timedelta(0), timedelta(seconds=-1), True, "30", float("nan"), 30_000_000_000])
def test_a_wrong_lease_is_refused(lease: Any) -> None:
    """U44: 0, negative values, and invalid delays are refused before anything is opened."""
    with pytest.raises(InvalidArgumentError, match="lease"):
        Consumer(Ports("fake").port(), lease=lease)


# --- beside nacks, batches, chunks ------------------------------------------------------------------------------------


@KINDS
@BOTH_WAYS
@virtual_time
async def test_a_nack_is_not_brought_forward_by_the_lease(ports: Ports, kind: Any, redelivery: Any) -> None:
    """N1, U44: nacked for 5 s with a lease of 1 s: back after 5 s, though the lease of another one ends before."""
    async with consuming(ports.port(subscription_type=kind), lease=1, redelivery=redelivery, backoff=20) as (
        port,
        consumer,
    ):
        nacked, _ = await new_messages(port, consumer, b"nacked", b"hung")
        began = now()
        await nacked.nack(5)
        again = await consumer.receive()
        assert again.data == b"nacked"
        assert now() - began == pytest.approx(5, abs=0.005)


@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
@pytest.mark.parametrize("batch_index_ack", [False, True])
@virtual_time
async def test_the_lease_of_one_member_does_not_touch_the_others(
    ports: Ports, redelivery: Any, batch_index_ack: bool
) -> None:
    """U26, U44: of a batch of four, one is acked, one extended, one hangs, one was not received: one is redelivered."""
    topic = ports.topic(batch_index_ack=batch_index_ack)
    async with consuming(
        ports.port(topic, batch_index_ack=batch_index_ack), lease=1, backoff=0.5, redelivery=redelivery
    ) as (port, consumer):
        topic.publish_batch([b"acked", b"extended", b"hung", b"ready"])
        acked, extended, _ = await take(consumer, 3)
        await acked.ack()
        await extended.in_progress(60)
        await asyncio.sleep(1.1)
        ready, again = await take(consumer, 2)
        assert [(each.data, each.attempt) for each in (ready, again)] == [(b"ready", 1), (b"hung", 2)]
        await again.ack()
        await ready.ack()
        await extended.ack()
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0


@pytest.mark.not_on("local", "wire", reason="these topics have no chunks")
@BOTH_WAYS
@virtual_time
async def test_a_chunked_message(ports: Ports, redelivery: Any) -> None:
    """U19, U44: a message of three chunks whose lease ends is redelivered whole."""
    async with consuming(ports.port(), lease=1, backoff=0, redelivery=redelivery) as (port, consumer):
        port.topic.publish_chunked([b"a", b"b", b"c"])
        message = await consumer.receive()
        again = await end(consumer, message)
        assert again.data == b"abc"
        await again.ack()
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0


# --- attempts and dead letters ----------------------------------------------------------------------------------------


@KINDS
@virtual_time
async def test_each_end_is_an_attempt_and_the_last_one_a_dead_letter(ports: Ports, kind: Any) -> None:
    """U6, U44: three leases end, with the backoff of each attempt; then the message is dead-lettered with a reason."""
    letters = FakePublisher()
    async with consuming(
        ports.port(subscription_type=kind),
        lease=1,
        backoff=[0.5, 2],
        dead_letter=DeadLetterPolicy(2, "dead", publisher=letters),
    ) as (port, consumer):
        message = await new_message(port, consumer)
        times = [now()]
        for _ in range(2):
            message = await end(consumer, message)
            times.append(now())
        assert [after - before for before, after in itertools.pairwise(times)] == [
            pytest.approx(1.5, abs=0.005),
            pytest.approx(3, abs=0.005),
        ]
        assert await is_quiet(consumer)
        (letter,) = letters.letters
        assert (letter.data, letter.properties["PULSAR_NACK_REASON"]) == (b"x", "lease expired")
        assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "3"
        for call in (message.ack(), message.nack(), message.in_progress(), message.dead_letter()):
            with pytest.raises(LeaseExpiredError):
                await call
        assert consumer.statistics().leases_expired == 3
        assert port.subscription.backlog == 0


@virtual_time
async def test_late_calls_while_the_dead_letter_is_under_way(ports: Ports) -> None:
    """U44: an ack and a nack raise, and a call of dead_letter waits for the same dead letter."""
    letters = FakePublisher(latency=5)
    dead = DeadLetterPolicy(1, "dead", publisher=letters)
    async with consuming(ports.port(), lease=1, backoff=0, dead_letter=dead) as (port, consumer):
        port.topic.publish(b"x")
        message = await end(consumer, await consumer.receive())
        await asyncio.sleep(2)
        for call in (message.ack(), message.nack(), message.in_progress()):
            with pytest.raises(LeaseExpiredError):
                await call
        await message.dead_letter()
        assert len(letters.letters) == 1
        assert await is_quiet(consumer)


@virtual_time
async def test_a_backoff_that_raises(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """U44: a backoff that fails is logged; the message comes after the default delay, others are not affected."""

    def backoff(count: int) -> float:
        raise ZeroDivisionError(count)

    async with consuming(ports.port(), lease=1, backoff=backoff) as (port, consumer):
        one, other = await new_messages(port, consumer, b"x", b"y")
        await asyncio.sleep(1.1)
        assert consumer.statistics().held == 2
        assert "ZeroDivisionError" in caplog.text
        began = now()
        again = await consumer.receive()
        assert now() - began == pytest.approx(60 - 0.1, abs=0.005)
        assert {again.id, (await consumer.receive()).id} == {one.id, other.id}


@virtual_time
async def test_ends_are_logged_together(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """U44: 100 leases that end at once are one warning, with their number."""
    with caplog.at_level(logging.WARNING, "pulsar_nack.consumer"):
        async with consuming(ports.port(), lease=1) as (port, consumer):
            publish(port.topic, *digits(100))
            await take(consumer, 100)
            await asyncio.sleep(1.1)
            assert consumer.statistics().leases_expired == 100
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("leases that ended: 100, ")


# --- settled, paused, sought, closed ----------------------------------------------------------------------------------


@virtual_time
async def test_settled_messages_leave_no_deadline(ports: Ports) -> None:
    """U44: acks by message and by id, ack_soon, a dead letter and a cumulative ack leave nothing pending."""
    dead = DeadLetterPolicy(9, "dead", publisher=FakePublisher())
    port: Any = ports.port(subscription_type="exclusive")
    async with consuming(port, lease=5, dead_letter=dead) as (_, consumer):
        publish(port.topic, *digits(6))
        messages = await take(consumer, 6)
        assert consumer.statistics().nack.pending == 6
        await messages[2].ack()
        await consumer.acknowledge(messages[3].id)
        messages[4].ack_soon()
        await messages[5].dead_letter()
        await consumer.acknowledge_cumulative(messages[1])
        await asyncio.sleep(0.01)
        figures = consumer.statistics()
        assert (figures.nack.pending, figures.leases_expired, figures.in_work) == (0, 0, 0)
        assert consumer._state.recent.delivered == {}
        assert await is_quiet(consumer)


@pytest.mark.not_on("wire", "local", reason="their calls are not delayed one by one")
@pytest.mark.parametrize("is_failing", [False, True])
@virtual_time
async def test_a_lease_that_ends_while_the_ack_is_under_way(ports: Ports, is_failing: bool) -> None:
    """U20, U44: if the ack succeeds the lease is over; if it fails, the message counts as nacked then."""
    port = ports.port()
    async with consuming(port, lease=1, backoff=0.5) as (_, consumer):
        message = await new_message(port, consumer)
        await asyncio.sleep(0.8)
        error = BrokerError("as the test asked") if is_failing else None
        port._add_fault("acknowledge", Fault(delay=1, error=error), 1)
        if is_failing:
            with pytest.raises(BrokerError):
                await message.ack()
            began = now()
            again = await end(consumer, message)
            assert now() - began == pytest.approx(0.5, abs=0.005)
            await again.ack()
        else:
            await message.ack()
        assert await is_quiet(consumer)
        assert consumer.statistics().leases_expired == is_failing


@pytest.mark.each_kind
@virtual_time
async def test_a_lease_ends_during_a_pause(ports: Ports) -> None:
    """U41, U44: the message is delivered after the resume; late calls work until then."""
    async with consuming(ports.port(), lease=1, backoff=0.5) as (port, consumer):
        message = await new_message(port, consumer)
        consumer.pause()
        assert await is_quiet(consumer, 5)
        assert consumer.statistics().leases_expired == 1
        consumer.resume()
        again = await end(consumer, message)
        with pytest.raises(LeaseExpiredError):
            await message.ack()
        await again.ack()


@KINDS
@virtual_time
async def test_a_seek_ends_leases(ports: Ports, kind: Any) -> None:
    """U32, U44: after a seek the messages are new ones, with their own leases; the old leases end nothing."""
    async with consuming(ports.port(subscription_type=kind), lease=5, backoff=0) as (port, consumer):
        publish(port.topic, *digits(3))
        messages = await take(consumer, 3)
        await asyncio.sleep(3)
        await consumer.seek(messages[0].id)
        again = await take(consumer, 3)
        await asyncio.sleep(4.9)  # past the old leases
        assert consumer.statistics().leases_expired == 0
        for message in again:
            await message.ack()
        assert await is_quiet(consumer)


@KINDS
@BOTH_WAYS
@virtual_time
async def test_redelivering_all_ends_leases(ports: Ports, kind: Any, redelivery: Any) -> None:
    """U44: redeliver_unacknowledged_messages redelivers all with new leases; a nack keeps its deadline."""
    async with consuming(ports.port(subscription_type=kind), lease=5, redelivery=redelivery) as (port, consumer):
        publish(port.topic, b"x", b"y")
        await take(consumer, 2)
        await asyncio.sleep(3)
        await consumer.redeliver_unacknowledged_messages()
        again = await take(consumer, 2)
        began = now()
        await again[0].nack(30)
        assert await is_quiet(consumer, 4.9)
        assert consumer.statistics().leases_expired == 0
        await again[1].ack()
        assert (await consumer.receive()).id == again[0].id
        assert now() - began == pytest.approx(30, abs=0.01)


@pytest.mark.each_kind
@virtual_time
async def test_close_gives_messages_with_leases_back(ports: Ports) -> None:
    """U31, U44: another consumer gets handled and held messages when this one is closed."""
    topic = ports.topic()
    async with consuming(ports.port(topic), lease=1, backoff=60) as (_, consumer):
        publish(topic, b"held", b"handled")
        _, handled = await take(consumer, 2)
        await handled.in_progress(100)
        await asyncio.sleep(2)
    with pytest.raises(ClosedError):
        await handled.ack()
    async with consuming(ports.port(topic)) as (_, other):
        assert {message.data for message in await take(other, 2)} == {b"held", b"handled"}


@virtual_time
async def test_no_lease_ends_while_the_consumer_closes(ports: Ports) -> None:
    """U44: the message is given back, and does not count as nacked, though closing takes longer than the lease."""
    dead = DeadLetterPolicy(9, "dead", publisher=FakePublisher(latency=3))
    topic = ports.topic()
    async with consuming(ports.port(topic), lease=1, dead_letter=dead) as (_, consumer):
        publish(topic, b"dead letter", b"handled")
        messages = await take(consumer, 2)
        giving_up = asyncio.ensure_future(messages[0].dead_letter())
        await asyncio.sleep(0.1)
    await giving_up
    assert consumer.statistics().leases_expired == 0
    async with consuming(ports.port(topic)) as (_, other):
        assert [message.data for message in await take(other, 1)] == [b"handled"]


@pytest.mark.not_on("wire", "local", reason="their calls do not fail one by one")
@virtual_time
async def test_a_hung_handler_does_not_keep_a_consumer_open_that_cannot_go_on(ports: Ports) -> None:
    """U44: after a message that this process cannot read, the consumer closes once the last lease has ended."""
    topic = ports.topic()
    async with consuming(ports.port(topic), lease=1) as (port, consumer):
        topic.publish(b"x")
        await consumer.receive()
        port.fail_next("receive", error=MissingExtraError("this codec", "cramjam", "compression"))
        with pytest.raises(MissingExtraError):
            await consumer.receive()
        async with consuming(ports.port(topic)) as (_, other):
            assert await is_quiet(other, 0.9)
            assert (await other.receive(timeout=0.2)).data == b"x"


# --- durable ----------------------------------------------------------------------------------------------------------


@pytest.mark.not_on("local", reason="the broker ends with the process")
@virtual_time
async def test_a_hung_handler_is_killed(ports: Ports) -> None:
    """U8, U44: killed while the lease runs, the message is attempt 2; killed after its end, it keeps its deadline."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming(killed=True, lease=5, backoff=10) as consumer:
        message = await consumer.receive()
    async with machine.consuming(killed=True, lease=5, backoff=10) as consumer:
        message = await consumer.receive(timeout=1)
        assert message.attempt == 2
        await asyncio.sleep(6)
        assert consumer.statistics().held == 1
        ends_at = now() - 1 + 10
    async with machine.consuming(lease=5) as consumer:
        message = await consumer.receive(timeout=20)
        assert message.attempt == 3
        assert now() == pytest.approx(ends_at, abs=0.05)
        await message.ack()
    async with machine.consuming(lease=5) as consumer:
        assert await is_quiet(consumer)


@pytest.mark.not_on("local", reason="the broker ends with the process")
@virtual_time
async def test_taken_back_and_killed(ports: Ports) -> None:
    """U8, U44: a message that was taken back is being handled: it is attempt 2 at once after a kill."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming(killed=True, lease=5, backoff=1_000) as consumer:
        message = await consumer.receive()
        await asyncio.sleep(6)
        await message.in_progress()
        await asyncio.sleep(1)
    async with machine.consuming() as consumer:
        assert (await consumer.receive(timeout=1)).attempt == 2


# --- the trace --------------------------------------------------------------------------------------------------------


class Notes:
    """A trace in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None]] = []

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> Any:
        """Return the recorder."""

        def note(event: str, message_id: object, attempt: object = None, *, reason: Any = None, **_: object) -> None:
            self.events.append((event, reason))

        return note


@virtual_time
async def test_the_trace_says_why(ports: Ports) -> None:
    """S1, U44: the end of a lease is a nack with its reason, and taking a message back cancels it."""
    notes = Notes()
    async with consuming(ports.port(), lease=1, backoff=5, trace=notes) as (port, consumer):
        message = await new_message(port, consumer)
        await asyncio.sleep(2)
        await message.in_progress()
        again = await end(consumer, message)
        await again.ack()
    assert notes.events == [
        ("arrive", None),
        ("nack", "lease expired"),
        ("cancel", "lease extended"),
        ("nack", "lease expired"),
        ("redeliver", None),
        ("arrive", None),
        ("ack", "ack"),
    ]


# --- many -------------------------------------------------------------------------------------------------------------


@virtual_time
async def test_nacked_while_a_long_call_redelivers(ports: Ports) -> None:
    """U44: of 3 000 leases due at once, a message that is nacked meanwhile comes at its nack's deadline."""
    due: list[Any] = []

    async def redeliver(ids: Any) -> None:
        due.extend(ids)

    async with Consumer(
        ports.port(receiver_queue_size=5_000, max_ids_per_request=5_000),
        lease=1,
        backoff=0,
        redelivery=redeliver,
        config=EXACT.model_copy(update={"max_batch": 5_000}),
    ) as consumer:
        port: Any = consumer.port
        publish(port.topic, *[b"x"] * 3_000)
        messages = [await consumer.receive(timeout=1) for _ in range(3_000)]
        await asyncio.sleep(1)
        while not consumer.statistics().leases_expired:
            await asyncio.sleep(0)
        assert consumer.statistics().leases_expired < 3_000
        last = messages[-1]
        await last.nack(60)
        await asyncio.sleep(30)
        assert last.id not in due
        assert len(set(due)) == 2_999
        await asyncio.sleep(40)
        assert last.id in due


class Scenario:
    """Handlers that do one of seven things at random, and when each message has to be delivered next."""

    def __init__(self, consumer: Consumer, seed: int) -> None:
        self.due_at: dict[bytes, float | None] = {}
        """When each message is delivered next, None: never again."""
        self.refused = 0
        self._consumer = consumer
        self._random = Random(seed)

    async def run(self) -> None:
        """Handle each message in its own task, until nothing comes for a long time."""
        async with asyncio.TaskGroup() as tasks:
            async for message in all_that_comes(self._consumer, 20):
                due_at = self.due_at.pop(message.data, now())
                assert due_at is not None, f"{message!r} is settled"
                if message.attempt > 1:
                    assert now() == pytest.approx(due_at, abs=0.004)
                tasks.create_task(self._handle(message))

    async def _handle(self, message: Message) -> None:
        """A lease of 1 s and a backoff of 0.5 s: left alone, the message is redelivered after 1.5 s."""
        rng, began, data = self._random, now(), message.data
        self.due_at[data] = began + 1.5
        what = rng.choice(["ack", "extend", "nack", "late ack", "late nack", "back", "hang"])
        if what == "hang":
            await asyncio.sleep(rng.uniform(1.6, 4))
            with pytest.raises(LeaseExpiredError):
                await rng.choice([message.ack, message.nack, message.in_progress])()
            self.refused += 1
            return
        if what == "extend":
            for _ in range(rng.randrange(1, 4)):
                await asyncio.sleep(rng.uniform(0.1, 0.9))
                await message.in_progress(1)
                self.due_at[data] = now() + 1.5
        is_late = what in {"late ack", "late nack", "back"}
        await asyncio.sleep(rng.uniform(1.02, 1.45) if is_late else rng.uniform(0, 0.95))
        if what == "back":
            await message.in_progress(2)
            self.due_at[data] = now() + 2.5
            await asyncio.sleep(rng.uniform(0, 1.9))
        if what in {"nack", "late nack"}:
            delay = rng.uniform(0.05, 3)
            await message.nack(delay)
            self.due_at[data] = min(now() + delay, began + 1.5) if is_late else now() + delay
        else:
            self.due_at[data] = None
            await message.ack()


@pytest.mark.parametrize("seed", seeds(range(8)))
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_random_runs(ports: Ports, kind: Any, seed: int) -> None:
    """U11, U44: whatever handlers do, each message is delivered exactly at its time, until it is acknowledged."""
    async with consuming(ports.port(subscription_type=kind), lease=1, backoff=0.5) as (port, consumer):
        for number in range(20):
            port.topic.publish(b"%d" % number)
            port.topic.publish_batch([b"%d %d" % (number, index) for index in range(3)])
        scenario = Scenario(consumer, seed)
        await scenario.run()
        assert set(scenario.due_at.values()) == {None}
        assert port.subscription.backlog == 0
        figures = consumer.statistics()
        assert (figures.acked, figures.in_work, figures.held, figures.nack.pending) == (80, 0, 0, 0)
        assert figures.leases_expired >= scenario.refused > 0


# --- run and batch_receive --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_s", [1.2, 1.8])
@virtual_time
async def test_a_handler_of_run_that_is_late(ports: Ports, takes_s: float) -> None:
    """U44: its message is acknowledged while it is held, for 0.5 s, and handled again after that."""
    async with consuming(ports.port(), lease=1, backoff=0.5) as (port, consumer):
        port.topic.publish(b"x")
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            attempts.append(message.attempt)
            await asyncio.sleep(takes_s if message.attempt == 1 else 0.1)

        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await asyncio.sleep(10)
        assert attempts == ([1] if takes_s < 1.5 else [1, 2])
        figures = consumer.statistics()
        assert (figures.acked, figures.leases_expired, figures.in_work) == (1, 1, 0)
        assert port.subscription.backlog == 0
        await consumer.drain()
        await running


@for_each("call", ["ack", "nack", "in_progress", "dead_letter"])
@virtual_time
async def test_late_calls_raise_after_the_next_attempt_was_deferred(ports: Ports, call: str) -> None:
    """U44: a deferred attempt counts none, but it is a later one: the previous handler has lost the message."""
    dead = DeadLetterPolicy(9, "dead", publisher=FakePublisher())
    async with consuming(ports.port(), lease=1, backoff=0.25, dead_letter=dead) as (port, consumer):
        late = await new_message(port, consumer)
        again = await end(consumer, late)
        await again.defer(5)
        with pytest.raises(LeaseExpiredError):
            await getattr(late, call)()
        third = await consumer.receive()
        assert third.attempt == 2
        await third.ack()
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0


@pytest.mark.not_on("wire", "local", reason="their deliveries have no latency")
@virtual_time
async def test_a_handler_of_run_that_gives_up(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """U44: a handler that returns after a refused extension has not handled the message: the next attempt does."""
    port = ports.port(latency=0.5)
    async with consuming(port, lease=1, backoff=0.5, redelivery="broker") as (_, consumer):
        port.topic.publish(b"x")
        attempts: list[int] = []

        async def handle(message: Message) -> None:
            attempts.append(message.attempt)
            if message.attempt == 1:
                await asyncio.sleep(1.25)  # the lease has ended, and the message is requested
                with pytest.raises(LeaseExpiredError):
                    await message.in_progress()

        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await asyncio.sleep(10)
        assert attempts == [1, 2]
        assert port.subscription.backlog == 0
        assert caplog.text.count("was handled, but is not acknowledged") == 1
        await consumer.drain()
        await running


@virtual_time
async def test_a_hung_handler_does_not_let_its_key_overtake(ports: Ports) -> None:
    """U16, U44: key order and a lease that ends: the key's next message waits for the end of the retry."""
    async with consuming(ports.port(), lease=1, backoff=0.5) as (port, consumer):
        publish(port.topic, *digits(3), key="k")
        done: list[tuple[bytes, int]] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(4 if (message.data, message.attempt) == (b"0", 1) else 0.1)
            done.append((message.data, message.attempt))

        running = asyncio.create_task(consumer.run(handle, concurrency=4, key_ordered=True))
        await asyncio.sleep(20)
        order = [data for data, attempt in done if (data, attempt) != (b"0", 1)]
        assert order == [b"0", b"1", b"2"]
        assert consumer.statistics().acked == 3
        await consumer.drain()
        await running


@virtual_time
async def test_messages_of_a_cancelled_batch_have_no_lease(ports: Ports) -> None:
    """U43, U44: a cancelled batch_receive gives its messages back to this consumer, where no lease runs."""
    async with consuming(ports.port(), lease=1) as (port, consumer):
        publish(port.topic, *digits(3))
        batch = asyncio.create_task(consumer.batch_receive(10, timeout=None))
        await asyncio.sleep(0.5)
        batch.cancel()
        await asyncio.sleep(5)
        assert [(message.data, message.attempt) for message in await take(consumer, 3)] == [
            (b"0", 1),
            (b"1", 1),
            (b"2", 1),
        ]
        assert consumer.statistics().leases_expired == 0
