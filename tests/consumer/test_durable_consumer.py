"""Durable consumers: deadlines, attempts and acknowledgements over restarts, on virtual time."""

from __future__ import annotations

import asyncio
import errno
import math
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import AlreadySettledError, Consumer, InvalidArgumentError, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.errors import LogCorruptedError, LogFencedError, LogLockedError, LogStorageError, NotDurableError
from pulsar_nack.ledger import LocalLogStore, ObjectLogStore
from pulsar_nack.testing import FakePort, ManualClock, virtual_time
from tests.consumer.consuming import is_quiet, now, take
from tests.consumer.durable import EXACT, Machine
from tests.consumer.ports import Ports
from tests.for_each import for_each

pytestmark = pytest.mark.not_on("nowait", reason="durable consumers use no calls that need no task")

KILLED_OR_NOT = pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])


async def killed_after_a_nack(ports: Ports, delay: float) -> Machine:
    """A machine whose consumer has nacked the only message ``x``, and was killed."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming(killed=True) as consumer:
        await (await consumer.receive()).nack(delay)
    return machine


# --- deadlines -------------------------------------------------------------------------------------------------------


@KILLED_OR_NOT
@pytest.mark.parametrize("subscription_type", ["shared", "exclusive", "failover"])
@pytest.mark.parametrize("redelivery", ["auto", "local"])
@virtual_time
async def test_a_deadline_outlives_the_consumer(
    ports: Ports, subscription_type: Any, redelivery: Any, *, killed: bool
) -> None:
    """U9: nacked for 60 s, closed or killed, the message comes back at once and is delivered at its old deadline."""
    machine = Machine(ports, subscription_type=subscription_type, latency=0.01).publish(b"later")
    async with machine.consuming(killed=killed, redelivery=redelivery) as consumer:
        await (await consumer.receive()).nack(delay=60)
        due_at = now() + 60
    await asyncio.sleep(20)
    machine.topic.publish(b"new")
    async with machine.consuming(redelivery=redelivery) as consumer:
        new = await consumer.receive()
        assert (new.data, new.attempt) == (b"new", 1)
        await new.ack()
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        statistics = consumer.statistics()
        assert (statistics.durable_restored, statistics.held, statistics.durable_entries) == (1, 1, 1)
        message = await receiving
        assert now() == pytest.approx(due_at)
        assert (message.data, message.attempt) == (b"later", 2)
        await message.ack()
        assert consumer.statistics().durable_entries == 0
        assert await is_quiet(consumer, 30)
    assert machine.topic.subscription("fake").backlog == 0


@virtual_time
async def test_messages_due_meanwhile_are_delivered_at_once(ports: Ports) -> None:
    """U9: the deadline passed while no consumer ran: the message is delivered at once, with its next attempt."""
    machine = await killed_after_a_nack(ports, 60)
    await asyncio.sleep(3600)
    async with machine.consuming() as consumer:
        message = await consumer.receive(timeout=0.5)
        assert message.attempt == 2
        assert consumer.statistics().durable_restored == 0


@virtual_time
async def test_the_broker_way_after_a_restart(ports: Ports) -> None:
    """U9: a message held after a restart is requested from the broker if so configured, once and at its deadline."""
    machine = await killed_after_a_nack(ports, 10)
    port = machine.port()
    async with machine.consuming(port=port, redelivery="broker") as consumer:
        message = await consumer.receive()
        assert (now(), message.attempt) == (10, 2)
        assert port.requests("redeliver") == [(message.id,)]
        assert consumer.statistics().redelivered_broker == 1


@pytest.mark.each_kind
@virtual_time
async def test_a_second_restart_keeps_the_deadline(ports: Ports) -> None:
    """U9: a message that was held after a restart is held again after the next one."""
    machine = await killed_after_a_nack(ports, 100)
    for _ in range(3):
        await asyncio.sleep(10)
        async with machine.consuming(killed=True) as consumer:
            assert await is_quiet(consumer, 15)
            assert consumer.statistics().held == 1
    async with machine.consuming() as consumer:
        assert (await consumer.receive()).attempt == 2
        assert now() == 100


@virtual_time
async def test_the_earlier_deadline_is_the_durable_one(ports: Ports) -> None:
    """U9: nacked twice before its deadline, the earlier deadline counts after a restart too."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming(killed=True) as consumer:
        message = await consumer.receive()
        await message.nack(delay=50)
        await message.nack(delay=20)
        await message.nack(delay=80)
    async with machine.consuming() as consumer:
        await consumer.receive()
        assert now() == 20


@virtual_time
async def test_the_wall_clock_is_set_back_between_runs(ports: Ports) -> None:
    """U9: with the wall clock set back by a year, no delay becomes longer than it was."""
    machine, wall = Machine(ports), ManualClock(10**12)
    machine.topic.publish(b"x")
    async with machine.consuming(killed=True, wall_clock=wall) as consumer:
        await (await consumer.receive()).nack(delay=60)
    wall = ManualClock(10**12 - 365 * 86_400_000)
    async with machine.consuming(wall_clock=wall) as consumer:
        await consumer.receive()
        assert now() == 60


@virtual_time
async def test_another_consumer_is_not_bound(ports: Ports) -> None:
    """U34: a hold after a restart binds this process; another consumer delivers what the broker gives it."""
    machine = await killed_after_a_nack(ports, 60)
    async with Consumer(machine.port(), config=EXACT) as other:
        shown = await other.receive(timeout=1)
        assert shown.data == b"x"
        async with machine.consuming() as consumer:
            assert await is_quiet(consumer, 100)
            await shown.ack()
            assert await is_quiet(other, 30)


@pytest.mark.not_on("wire", "local", reason="it is another consumer's turn there")
@virtual_time
async def test_held_messages_are_not_delivered_early(ports: Ports) -> None:
    """U34: beside a second consumer, messages of this one wait here; its close gives them to the other at once."""
    machine = await killed_after_a_nack(ports, 60)
    async with machine.consuming() as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        async with Consumer(machine.port(), config=EXACT) as other:
            machine.topic.publish(b"y")
            assert await is_quiet(other, 40) or not receiving.done()
            assert consumer.statistics().held == 1
            message = await receiving
            if message.data == b"y":
                message = await consumer.receive()
            assert (message.data, now()) == (b"x", 60)
            await message.nack(delay=60)
            await consumer.aclose()
            assert b"x" in {given.data for given in await take(other, 1)}


# --- attempts --------------------------------------------------------------------------------------------------------


@KILLED_OR_NOT
@virtual_time
async def test_attempts_that_ended_the_process_count(ports: Ports, *, killed: bool) -> None:
    """U8: the process ends inside the handler three times: the next one sees the fourth attempt."""
    machine = Machine(ports).publish(b"poison")
    for attempt in (1, 2, 3, 4):
        async with machine.consuming(killed=killed) as consumer:
            message = await consumer.receive(timeout=1)
            assert message.attempt == attempt


@pytest.mark.not_on("local", reason="a local topic that is restarted closes its ports")
@KILLED_OR_NOT
@virtual_time
async def test_attempts_go_on_counting(ports: Ports, *, killed: bool) -> None:
    """U27: the last consumer leaves and returns, and the broker restarts: attempts continue, with nacks or without."""
    machine = Machine(ports).publish(b"x")
    attempts = []
    for _ in range(3):
        async with machine.consuming(killed=killed) as consumer:
            for _ in range(2):
                message = await consumer.receive()
                attempts.append(message.attempt)
                await message.nack(delay=5)
        machine.topic.subscription("fake").restart()
    assert attempts == [1, 2, 3, 4, 5, 6]


@virtual_time
async def test_the_brokers_count_counts_where_it_is_higher(ports: Ports) -> None:
    """U27: redeliveries to another consumer count too."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming(killed=True) as consumer:
        await consumer.receive()
    keeper = machine.port()
    delivery = await keeper.receive()
    for _ in range(5):
        await keeper.redeliver([delivery.id])
        delivery = await keeper.receive()
    async with machine.consuming() as consumer:
        await keeper.close()
        assert (await consumer.receive()).redelivery_count >= delivery.redelivery_count == 5


@pytest.mark.parametrize("redelivery", ["broker", "local"])
@virtual_time
async def test_what_was_held_back_is_no_attempt(ports: Ports, redelivery: Any) -> None:
    """U27: the broker counts each time that it sends a held message; undelivered ones do not count here."""
    machine = await killed_after_a_nack(ports, 60)
    keeper = machine.port()
    delivery = await keeper.receive()
    for _ in range(5):
        await keeper.redeliver([delivery.id])
        delivery = await keeper.receive()
    assert delivery.redelivery_count == 5
    async with machine.consuming(redelivery=redelivery) as consumer:
        await keeper.close()
        message = await consumer.receive()
        assert (message.attempt, now()) == (2, 60)


@virtual_time
async def test_what_was_not_received_is_no_attempt(ports: Ports) -> None:
    """U8: messages that were ready, or whose receive was cancelled, come as first attempts."""
    machine = Machine(ports).publish(*(bytes([number]) for number in range(3)))
    async with machine.consuming(killed=True) as consumer:
        assert (await consumer.receive()).data == b"\0"
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        receiving.cancel()
    async with machine.consuming() as consumer:
        assert sorted([(m.data, m.attempt) for m in await take(consumer, 3)])[1:] == [(b"\1", 1), (b"\2", 1)]


@virtual_time
async def test_a_cancelled_receive_loses_nothing(ports: Ports) -> None:
    """U2: a receive that is cancelled while an attempt is recorded gives the message to the next one."""
    machine = Machine(ports).publish(*(bytes([number]) for number in range(100)))
    seen = []
    async with machine.consuming() as consumer:
        for turn in range(1000):
            receiving = asyncio.create_task(consumer.receive())
            for _ in range(turn % 13):
                await asyncio.sleep(0)
            if not receiving.done():
                receiving.cancel()
            try:
                seen.append((await receiving).data)
            except asyncio.CancelledError:
                continue
        seen += [message.data for message in await take(consumer, 100 - len(seen))]
    assert sorted(seen) == [bytes([number]) for number in range(100)]


# --- acknowledgements ------------------------------------------------------------------------------------------------


@virtual_time
async def test_an_ack_that_the_broker_did_not_get_is_given_again(ports: Ports) -> None:
    """U10: acked, killed before the client sent it: after the restart it is acked again, not delivered."""
    machine = Machine(ports).publish(b"done", b"nacked and done")
    port = ports.forgetful(machine.topic)
    async with machine.consuming(killed=True, port=port) as consumer:
        for message in await take(consumer, 2):
            if message.data.startswith(b"nacked"):
                await message.nack(delay=100)
            await message.ack()
    assert (port.lost, machine.topic.subscription("fake").backlog) == (2, 2)
    await asyncio.sleep(3600)
    async with machine.consuming(killed=True) as consumer:
        pass  # ended before anything came
    await asyncio.sleep(3600)
    async with machine.consuming() as consumer:
        assert await is_quiet(consumer, 30)
        assert consumer.statistics().acked_again == 2
    assert machine.topic.subscription("fake").backlog == 0


@virtual_time
async def test_acked_members_of_a_batch_are_not_delivered_again(ports: Ports) -> None:
    """U3: of a batch of 4 with 2 acked, a restart delivers the others; then the broker has the whole batch."""
    machine = Machine(ports)
    machine.topic.publish_batch([b"a", b"b", b"c", b"d"])
    async with machine.consuming(killed=True) as consumer:
        a, b, c, _ = await take(consumer, 4)
        await a.ack()
        await b.nack(delay=50)
        await c.ack()
    async with machine.consuming() as consumer:
        d = await consumer.receive(timeout=1)
        assert (d.data, d.attempt) == (b"d", 2)
        await d.ack()
        b = await consumer.receive(timeout=100)
        assert (b.data, b.attempt, now()) == (b"b", 2, 50)
        await b.ack()
        assert await is_quiet(consumer, 30)
    assert machine.topic.subscription("fake").backlog == 0


@pytest.mark.not_on("local", reason="a local topic is moved by a call that waits")
@virtual_time
async def test_a_message_that_is_replayed_later_is_delivered(ports: Ports) -> None:
    """U32: reset long after the acks and over a restart, every message is delivered; at once, after a seek."""
    machine = Machine(ports, subscription_type="exclusive")
    ids = [machine.topic.publish(bytes([number])) for number in range(3)]
    async with machine.consuming() as consumer:
        for message in await take(consumer, 3):
            await message.ack()
    async with machine.consuming() as consumer:
        await asyncio.sleep(120)
        consumer.port.subscription.reset(ids[0])
        assert len(await take(consumer, 3)) == 3
        for message_id in ids:
            await consumer.acknowledge(message_id)
        await consumer.seek(ids[1])
    async with machine.consuming() as consumer:
        assert [message.data for message in await take(consumer, 2)] == [b"\1", b"\2"]


@virtual_time
async def test_cumulative_acks_are_remembered(ports: Ports) -> None:
    """U35: acked up to a held message, killed before the broker got it: no message is redelivered."""
    machine = Machine(ports, subscription_type="exclusive").publish(*(bytes([number]) for number in range(4)))
    port = ports.forgetful(machine.topic, subscription_type="exclusive")
    async with machine.consuming(killed=True, port=port) as consumer:
        messages = await take(consumer, 4)
        await messages[1].nack(delay=100)
        await consumer.acknowledge_cumulative(messages[2])
        assert consumer.statistics().durable_entries == 1
    async with machine.consuming() as consumer:
        message = await consumer.receive(timeout=1)
        assert (message.data, message.attempt) == (b"\3", 2)
        assert await is_quiet(consumer, 200)


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.not_on("wire", "local", reason="their topics have no partitions")
@virtual_time
async def test_ids_of_partitions_and_chunks(ports: Ports) -> None:
    """N13, N13a, U9: equal numbers in two partitions, batch members and chunks keep their deadlines over a restart."""
    machine = Machine(ports, ports.topic(partitions=2))
    machine.topic.publish(b"p0", partition=0)
    machine.topic.publish(b"p1", partition=1)
    machine.topic.publish_batch([b"b0", b"b1"], partition=0)
    machine.topic.publish_chunked([b"chun", b"ked"], key="k")
    delays = {b"p0": 50.0, b"p1": 10.0, b"b0": 40.0, b"b1": 20.0, b"chunked": 30.0}
    async with machine.consuming(killed=True) as consumer:
        for message in await take(consumer, 5):
            await message.nack(delays[message.data])
    async with machine.consuming() as consumer:
        for payload in sorted(delays, key=lambda each: delays[each]):
            message = await consumer.receive()
            assert (message.data, message.attempt, now()) == (payload, 2, delays[payload])
            await message.ack()
    assert machine.topic.subscription("fake").backlog == 0


@virtual_time
async def test_nacks_by_id_are_durable(ports: Ports) -> None:
    """U9: a nack by id alone is as durable as one by message."""
    machine = Machine(ports)
    message_id = machine.topic.publish(b"x")
    async with machine.consuming(killed=True) as consumer:
        await consumer.receive()
        await consumer.negative_acknowledge(MessageId(*message_id), 25)
    async with machine.consuming() as consumer:
        await consumer.receive()
        assert now() == 25


# --- failures --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_full_disk(ports: Ports) -> None:
    """U22: a nack that cannot be made durable says so and holds in memory; all else continues, and is written later."""
    machine = Machine(ports).publish(*(bytes([number]) for number in range(3)))
    async with machine.consuming(killed=True) as consumer:
        first, second = await take(consumer, 2)
        machine.files.fail(errno.ENOSPC, "write", times=math.inf)
        with pytest.raises(NotDurableError, match=r"comes back in time .* No space left on device") as caught:
            await first.nack(delay=5)
        assert isinstance(caught.value.__cause__, LogStorageError)
        third = await consumer.receive(timeout=1)
        await third.ack()
        again = await consumer.receive()
        assert (again.data, now()) == (first.data, 5)
        with pytest.raises(NotDurableError):
            await again.nack(delay=60)
        with pytest.raises(NotDurableError, match="was not moved"):
            await consumer.seek(second.id)
        assert consumer.statistics().durable_failures == 6
        machine.files.heal()
        await asyncio.sleep(2)
        await second.nack(delay=100)
        for _ in range(20):
            await asyncio.sleep(0.01)
    async with machine.consuming() as consumer:
        message = await consumer.receive()
        assert (message.data, message.attempt, now()) == (first.data, 3, 65)


@virtual_time
async def test_a_failed_nack_can_be_settled_or_nacked_again(ports: Ports) -> None:
    """U20: after a nack that is not durable, an ack cancels it, and another nack tries again."""
    machine = Machine(ports).publish(b"a", b"b")
    async with machine.consuming() as consumer:
        a, b = await take(consumer, 2)
        machine.files.fail(errno.EIO, "sync", times=2)
        for message in (a, b):
            with pytest.raises(NotDurableError):
                await message.nack(delay=60)
        await a.ack()
        await b.nack(delay=60)
    async with machine.consuming() as consumer:
        message = await consumer.receive()
        assert (message.data, now()) == (b"b", 60)


@virtual_time
async def test_a_cancelled_nack_is_in_effect_and_durable(ports: Ports) -> None:
    """N23: a nack that is cancelled while it is written is carried out, in memory and on storage."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming() as consumer:
        message = await consumer.receive()
        nacking = asyncio.create_task(message.nack(delay=30))
        await asyncio.sleep(0)
        nacking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await nacking
        assert consumer.statistics().held == 1
    async with machine.consuming() as consumer:
        again = await consumer.receive()
        assert (again.attempt, now()) == (2, 30)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
@virtual_time
async def test_a_nack_that_is_in_effect_ends_its_attempt(ports: Ports, how: str) -> None:
    """U20: cancelled or failed while it was written, a nack ends its attempt: then its ack is refused."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming() as consumer:
        message = await consumer.receive()
        if how == "failed":
            machine.files.fail(errno.EIO, "sync")
        nacking = asyncio.create_task(message.nack(delay=5))
        await asyncio.sleep(0)
        if how == "cancelled":
            nacking.cancel()
        with pytest.raises((asyncio.CancelledError, NotDurableError)):
            await nacking
        again = await consumer.receive()
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await message.ack()
        await again.ack()


@virtual_time
async def test_closing_writes_what_was_called_for(ports: Ports) -> None:
    """U18: nacks and acks that were being written when the consumer closed are durable, and their calls say so."""
    machine = Machine(ports).publish(*(bytes([number]) for number in range(20)))
    async with machine.consuming() as consumer:
        messages = await take(consumer, 20)
        calls = [
            asyncio.create_task(message.nack(60) if message.data[0] % 2 else message.ack()) for message in messages
        ]
        await asyncio.sleep(0)
        await consumer.aclose()
        assert await asyncio.gather(*calls) == [None] * 20
    async with machine.consuming() as consumer:
        again = [await consumer.receive() for _ in range(10)]
        assert now() == 60
        assert sorted(message.data[0] for message in again) == list(range(1, 20, 2))


@virtual_time
async def test_ack_while_a_nack_is_written(ports: Ports) -> None:
    """U20: an ack from another task while a nack is being made durable raises."""
    machine = Machine(ports).publish(b"x")
    async with machine.consuming() as consumer:
        message = await consumer.receive()
        nacking = asyncio.create_task(message.nack(delay=30))
        await asyncio.sleep(0)
        with pytest.raises(AlreadySettledError):
            await message.ack()
        await nacking
        await message.ack()
        assert await is_quiet(consumer, 60)
        assert consumer.statistics().durable_entries == 0


async def test_a_second_consumer_is_refused(ports: Ports, tmp_path: Path) -> None:
    """U22: a second consumer on the same folder gets a clear error, and the first continues."""
    async with Consumer(ports.port(), durable=tmp_path) as consumer:
        other = ports.port()
        with pytest.raises(
            LogLockedError, match=r"/nacks-owner: another consumer uses this durable state; each consumer needs"
        ):
            await Consumer(other, durable=str(tmp_path)).open()
        assert other.is_closed
        assert consumer.statistics().durable_bytes > 0
    async with Consumer(ports.port(), durable=tmp_path):
        pass


@virtual_time
async def test_on_object_storage_the_newest_takes_over(ports: Ports) -> None:
    """U22: without locks a second consumer takes over; the first one's nacks say so; earlier writes are kept."""
    memory = pytest.importorskip("obstore").store.MemoryStore()
    topic = ports.topic()
    topic.publish(b"a")
    topic.publish(b"b")
    async with await ObjectLogStore.open(memory) as one, await ObjectLogStore.open(memory) as other:
        options: dict[str, Any] = {"config": EXACT, "wall_clock": LoopClock()}
        async with Consumer(ports.port(topic), durable=one, **options) as first:
            await (await first.receive()).nack(delay=60)
            async with Consumer(ports.port(topic), durable=other, **options) as second:
                with pytest.raises(NotDurableError, match="another writer opened it later") as caught:
                    await (await first.receive(timeout=1)).nack(delay=30)
                assert isinstance(caught.value.__cause__, LogFencedError)
                await first.aclose()
                assert (await second.receive(timeout=1)).data == b"b"
                assert (await second.receive()).data == b"a"
                assert now() == 60
                assert second.statistics().durable_failures == 0


async def test_damage_is_reported(ports: Ports, tmp_path: Path) -> None:
    """U22: opening raises an error that names a damaged log, and nothing is dropped."""
    port = ports.port()
    ids = [port.topic.publish(bytes(1)) for _ in range(3)]
    async with Consumer(port, durable=tmp_path) as consumer:
        for _ in ids:
            await (await consumer.receive()).nack(delay=60)
    (segment,) = tmp_path.glob("nacks-0000000001.log/*.segment")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(LogCorruptedError, match="nacks-0000000001"):
        await Consumer(ports.port(port.topic), durable=tmp_path).open()
    assert segment.read_bytes() == data


@for_each("durable", ["", "s3://bucket/nacks", b"path", 5, True, object()])
async def test_bad_places_are_refused(durable: Any) -> None:
    """U22: an object that is neither a path nor a store is refused when the consumer is created."""
    with pytest.raises(InvalidArgumentError, match=r"durable: expected (a path, or a LogStore|the path of a folder)"):
        Consumer(FakePort(), durable=durable)
    with pytest.raises(InvalidArgumentError, match="durable_ttl"):
        Consumer(FakePort(), durable_ttl=-1)


@virtual_time
async def test_a_store_of_the_users_own_stays_open() -> None:
    """U22: the consumer closes a store that it made from a path, and leaves one that it was given."""
    machine = Machine()
    async with await LocalLogStore.open("/x", files=machine.files) as store:
        async with Consumer(FakePort(), durable=store, wall_clock=LoopClock()):
            pass
        assert await store.names() == ["nacks-0000000001", "nacks-owner"]
