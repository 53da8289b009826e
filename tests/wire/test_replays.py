"""Replays, resets, clears and lost connections, on a scripted broker: which messages are hidden or forgotten."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    DeadLetterPolicy,
    Message,
    MessageId,
)
from pulsar_nack.testing import FakePublisher, virtual_time
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import FakeBroker, as_usual, later, refuse
from tests.wire.using import BASE, EARLIEST, LATEST, TOPIC, TYPES, received, subscribed, take, the


def publish(broker: FakeBroker, count: int, *, first: int = 0, in_batches_of: int = 1, topic: str = TOPIC) -> None:
    """Publish messages that hold their numbers."""
    data = [b"%d" % number for number in range(first, first + count)]
    if in_batches_of == 1:
        for each in data:
            broker.topic(topic).publish(each, partition_key=each.decode())
        return
    for at in range(0, count, in_batches_of):
        broker.topic(topic).publish_batch(data[at : at + in_batches_of], partition_key=str(at))


def asked(broker: FakeBroker) -> int:
    """Return how often the last message id was requested."""
    return len(broker.commands("GET_LAST_MESSAGE_ID"))


def numbers(count: int) -> list[bytes]:
    """Return the payloads of this many messages, sorted."""
    return sorted(b"%d" % number for number in range(count))


# --- replays ---


@pytest.mark.parametrize("in_batches_of", [1, 5])
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
@virtual_time
async def test_a_seek_by_one_worker_shows_all_again(kind: str, in_batches_of: int) -> None:
    """O1: two consumers have acknowledged 100 messages; one seeks back: the two receive all of them again."""
    broker = FakeBroker()
    settings: dict[str, Any] = {"consumer_type": kind, "receiver_queue_size": 5}
    async with subscribed(broker, **settings) as one, subscribed(broker, **settings) as two:
        publish(broker, 100, in_batches_of=in_batches_of)
        first = await asyncio.gather(received(one, seconds=1), received(two, seconds=1))
        assert sorted(first[0] + first[1]) == numbers(100)
        await one.seek(0)
        again = await asyncio.gather(received(one), received(two))
        assert sorted(again[0] + again[1]) == numbers(100)
        assert two.statistics().replayed > 0
        assert len(the(broker).acked) == 100 // in_batches_of


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_members_of_an_incomplete_batch_are_delivered_again_too(kind: str, is_first: bool) -> None:
    """O1: half of a batch is acknowledged when the subscription is reset to before it: all of it is delivered again.

    The batch comes first: its member is hidden until the single message that comes next proves the replay.
    """
    broker = FakeBroker()
    async with subscribed(broker, consumer_type=kind) as one:
        for is_batch in (is_first, not is_first):
            publish(broker, 2 if is_batch else 1, in_batches_of=2 if is_batch else 1)
        for message in await take(one, 3):
            if not message.data.startswith(b"1"):
                await message.ack()
        broker.reset(TOPIC)
        assert await received(one) == [b"0", b"0"]  # the other one is in flight here


@virtual_time
async def test_members_of_an_incomplete_batch_stay_acknowledged_over_an_unload() -> None:
    """U3: brokers lose acknowledgements of members at an unload; that looks like a seek to the batch."""
    broker = FakeBroker()
    async with subscribed(broker) as one:
        publish(broker, 2, in_batches_of=2)
        first, second = await take(one, 2)
        await first.ack()
        async with subscribed(broker) as two:
            await two.seek(0)
            await two.aclose()
        assert await received(one) == []
        await second.ack()
        assert len(the(broker).acked) == 1


@pytest.mark.parametrize("is_by_id", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_a_reset_shows_everything_at_once(kind: str, is_by_id: bool) -> None:
    """O2: ten messages are acknowledged, a second later an administrator resets the subscription: all are delivered."""
    broker = FakeBroker()
    async with subscribed(broker, consumer_type=kind) as consumer:
        publish(broker, 10)
        await received(consumer, seconds=1)
        broker.reset(TOPIC, start=4 if is_by_id else 0)
        assert sorted(await received(consumer)) == numbers(10)[4 if is_by_id else 0 :]
        assert consumer.statistics().acked_again == 0
        assert len(the(broker).acked) == 10


@virtual_time
async def test_a_cumulative_ack_hides_no_replay() -> None:
    """O2: the same after a cumulative acknowledgement."""
    broker = FakeBroker()
    async with subscribed(broker, consumer_type="exclusive") as consumer:
        publish(broker, 10)
        messages = await take(consumer, 10)
        await consumer.acknowledge_cumulative(messages[-1])
        broker.reset(TOPIC)
        assert sorted(await received(consumer)) == numbers(10)


@virtual_time
async def test_a_reset_in_one_partition() -> None:
    """O2: one of two partitions is reset: it is delivered again, the other is not; its duplicates stay hidden."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    one, two = (f"{TOPIC}-partition-{number}" for number in range(2))
    async with subscribed(broker) as consumer:
        publish(broker, 5, topic=one)
        publish(broker, 5, first=5, topic=two)
        await received(consumer, seconds=1)
        broker.reset(one)
        entry = broker.topic(two).entries[0]
        the(broker, two)._hand_out(entry, the(broker, two).consumers[0])  # a duplicate that was on its way
        assert sorted(await received(consumer)) == numbers(5)
        assert consumer.statistics().acked_again == 1


@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_an_unload_shows_nothing_again(kind: str) -> None:
    """O2: the topic moves to another broker right after the acknowledgements, which the broker has: nothing comes."""
    broker = FakeBroker()
    async with subscribed(broker, consumer_type=kind) as consumer:
        publish(broker, 10)
        await received(consumer, seconds=1)
        broker.unload(TOPIC)
        assert await received(consumer) == []


@virtual_time
async def test_a_receipt_that_came_just_before_the_end_counts() -> None:
    """O1: the broker confirms and closes the consumer at the same moment: nothing is acknowledged again."""
    broker = FakeBroker()

    def confirmed_then_reset(call: Any) -> None:
        broker.normally("ACK")
        broker.answer(call)
        broker.calls.pop()
        broker.reset(TOPIC)

    async with subscribed(broker) as consumer:
        publish(broker, 1)
        (message,) = await take(consumer, 1)
        broker.always("ACK", confirmed_then_reset)
        await message.ack()
        assert await received(consumer, ack=False) == [b"0"]
        assert len(broker.commands("ACK")) == 1


@virtual_time
async def test_a_seek_while_another_consumer_comes_back() -> None:
    """O1: a connection breaks, and another consumer seeks just while this one subscribes again: all is delivered."""
    broker = FakeBroker()

    def subscribed_and_closed(call: Any) -> None:
        as_usual(call)
        broker.reset(TOPIC)

    async with subscribed(broker) as consumer:
        publish(broker, 10)
        await received(consumer, seconds=1)
        broker.next("SUBSCRIBE", subscribed_and_closed)
        broker.cut()
        assert sorted(await received(consumer)) == numbers(10)


@pytest.mark.parametrize(("seconds", "is_hidden"), [(9.0, True), (11.0, False)])
@virtual_time
async def test_a_broker_that_was_killed(seconds: float, is_hidden: bool) -> None:
    """O5: a killed broker redelivers what it had confirmed in the 10 s before: hidden, however long it was away."""
    broker = FakeBroker()
    async with subscribed(broker) as consumer:
        publish(broker, 10)
        for message in await take(consumer, 10):
            await message.ack()
        await asyncio.sleep(seconds)
        broker.node(broker.url).is_down = True
        broker.cut()
        the(broker).rewind(0)
        await asyncio.sleep(100)
        broker.node(broker.url).is_down = False
        assert sorted(await received(consumer, seconds=60)) == ([] if is_hidden else numbers(10))
        assert len(the(broker).acked) == 10


@virtual_time
async def test_a_broker_that_is_killed_twice() -> None:
    """O5: messages acknowledged again after the first kill are hidden after the second."""
    broker = FakeBroker()
    async with subscribed(broker) as consumer:
        publish(broker, 10)
        await received(consumer, seconds=1)
        for _ in range(4):
            await asyncio.sleep(4)
            the(broker).rewind(0)
            broker.cut()
            assert await received(consumer, seconds=1) == []
            assert len(the(broker).acked) == 10


@virtual_time
async def test_what_is_not_confirmed_is_acknowledged_again_first() -> None:
    """O5: acknowledgements that were open when the connection broke are sent again, and their messages hidden."""
    broker = FakeBroker()
    async with subscribed(broker) as consumer:
        publish(broker, 10)
        messages = await take(consumer, 10)
        broker.always("ACK", lambda call: call.link.transport.cut())
        acks = [asyncio.ensure_future(message.ack()) for message in messages]
        await asyncio.sleep(0.01)
        broker.normally("ACK")
        assert await received(consumer) == []
        await asyncio.gather(*acks)
        assert len(the(broker).acked) == 10


# --- durable consumers ---


async def work_and_stop(
    broker: FakeBroker, folder: Path, *, is_killed: bool, topic: str = TOPIC, **settings: Any
) -> Path:
    """Acknowledge all with a durable consumer, and end it; return its folder."""
    left = folder.with_name("left")
    async with subscribed(broker, topic, durable=folder, **settings) as consumer:
        assert len(await received(consumer, seconds=1)) == 10
        if is_killed:
            shutil.copytree(folder, left)
    return left if is_killed else folder


@pytest.mark.parametrize("is_killed", [False, True])
@virtual_time
async def test_a_reset_while_a_durable_consumer_is_away(is_killed: bool, tmp_path: Path) -> None:
    """O3: a durable consumer is stopped, or killed, and the subscription reset 3 s later: all 10 are delivered."""
    broker = FakeBroker()
    publish(broker, 10)
    folder = await work_and_stop(broker, tmp_path / "state", is_killed=is_killed)
    await asyncio.sleep(3)
    the(broker).rewind(0)
    async with subscribed(broker, durable=folder) as consumer:
        assert sorted(await received(consumer)) == numbers(10)
        assert consumer.statistics().durable_acks == 0


@virtual_time
async def test_partitions_that_are_reset_while_a_durable_consumer_is_away(tmp_path: Path) -> None:
    """O3b: the same with two partitions."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for number in range(2):
        publish(broker, 5, first=5 * number, topic=f"{TOPIC}-partition-{number}")
    folder = await work_and_stop(broker, tmp_path / "state", is_killed=False)
    for number in range(2):
        the(broker, f"{TOPIC}-partition-{number}").rewind(0)
    async with subscribed(broker, durable=folder) as consumer:
        assert sorted(await received(consumer)) == numbers(10)


@virtual_time
async def test_a_new_subscription_on_the_folder_of_one_that_is_gone(tmp_path: Path) -> None:
    """O3b: a durable consumer unsubscribes; a new subscription with its folder delivers all as first attempts."""
    broker = FakeBroker()
    publish(broker, 5)
    async with subscribed(broker, durable=tmp_path) as consumer:
        first, second, *_ = await take(consumer, 5)
        await first.ack()
        await second.nack(3600)
        await consumer.unsubscribe()
    async with subscribed(broker, durable=tmp_path) as consumer:
        messages = await take(consumer, 5)
        assert sorted((message.data, message.attempt) for message in messages) == [(data, 1) for data in numbers(5)]


@virtual_time
async def test_a_refused_unsubscribe_changes_nothing(tmp_path: Path) -> None:
    """O3b: other consumers make the broker refuse: held messages stay held, and come in time."""
    broker = FakeBroker()
    publish(broker, 1)
    broker.always("UNSUBSCRIBE", refuse("MetadataError"))
    async with subscribed(broker, durable=tmp_path) as consumer:
        (message,) = await take(consumer, 1)
        await message.nack(2)
        with pytest.raises(Exception, match="because a test wants it"):
            await consumer.unsubscribe()
        (again,) = await take(consumer, 1)
        assert again.attempt == 2


@pytest.mark.parametrize("after_s", [0, 0.001, 0.0025])
@virtual_time
async def test_a_cancelled_unsubscribe_goes_on_to_its_end(after_s: float, tmp_path: Path) -> None:
    """O3b: the subscription is not deleted while its consumer stays open for ever; its state is deleted with it."""
    broker = FakeBroker()
    publish(broker, 3)
    async with subscribed(broker, durable=tmp_path) as consumer:
        first, second, _ = await take(consumer, 3)
        await first.ack()
        await second.nack(3600)
        call = asyncio.create_task(consumer.unsubscribe())
        await asyncio.sleep(after_s)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(ClosedError):
            await consumer.receive(timeout=100)
        await asyncio.sleep(1)
        assert broker.topic(TOPIC).subscriptions == {}
        with pytest.raises(ClosedError):
            await consumer.unsubscribe()
    async with subscribed(broker, durable=tmp_path) as consumer:
        assert sorted(message.data for message in await take(consumer, 3)) == numbers(3)


@virtual_time
async def test_a_handler_that_unsubscribes() -> None:
    """O3b: a running handler deletes the subscription and closes, without waiting for itself."""
    broker, handled = FakeBroker(), list[bytes]()
    publish(broker, 3)

    async def handler(message: Message) -> None:
        await message.ack()
        if message.data == b"1":
            await consumer.unsubscribe()
            assert broker.topic(TOPIC).subscriptions == {}
        handled.append(message.data)

    async with subscribed(broker) as consumer:
        report = await consumer.run(handler, concurrency=1, drain_timeout=60)
    assert (handled, report.cancelled) == (numbers(2), 0)


@pytest.mark.parametrize("after_s", [0, 0.0015, None])
@virtual_time
async def test_what_is_left_of_partitions_is_deleted_by_a_later_call(after_s: float | None) -> None:
    """O3b: the broker refuses for one partition; the others are deleted, and a second call deletes that one."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 3
    refusal = refuse("MetadataError")
    broker.next("UNSUBSCRIBE", as_usual, later(0 if after_s is None else after_s, refusal), later(0.003))
    async with subscribed(broker) as consumer:
        with pytest.raises(BrokerError, match="because a test wants it"):
            await consumer.unsubscribe()
        await consumer.unsubscribe()
        assert not any(broker.topic(f"{TOPIC}-partition-{number}").subscriptions for number in range(3))


@pytest.mark.parametrize("is_durable", [False, True])
@virtual_time
async def test_a_seek_while_acknowledgements_are_on_their_way(is_durable: bool, tmp_path: Path) -> None:
    """O49: 100 acks are being sent when their consumer seeks back: all are delivered, also after a restart."""
    broker = FakeBroker()
    settings: dict[str, Any] = {"durable": tmp_path / "state"} if is_durable else {}
    publish(broker, 100)
    async with subscribed(broker, **settings) as consumer:
        messages = await asyncio.gather(*(consumer.receive() for _ in range(100)))
        acks = [asyncio.ensure_future(message.ack()) for message in messages]
        await asyncio.sleep(0)
        await consumer.seek(EARLIEST)
        await asyncio.gather(*acks)
        again = await asyncio.gather(*(consumer.receive() for _ in range(100)))
        assert sorted(message.data for message in again) == numbers(100)
        await again[0].nack(1)
        if is_durable:
            shutil.copytree(tmp_path / "state", tmp_path / "left")
    if is_durable:
        async with subscribed(broker, durable=tmp_path / "left") as consumer:
            again = await asyncio.gather(*(consumer.receive() for _ in range(100)))
            assert sorted(message.data for message in again) == numbers(100)


# --- moving, and acknowledging by id ---


@pytest.mark.parametrize("topics", [TOPIC, [TOPIC, f"{BASE}u"]])
@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_seek_to_the_latest(kind: str, topics: Any) -> None:
    """O4: after a seek to the latest id nothing old comes, and a new message is delivered at once."""
    broker = FakeBroker()
    publish(broker, 3)
    async with subscribed(broker, topics, consumer_type=kind) as consumer:
        await take(consumer, 1)
        await consumer.seek(LATEST)
        assert await received(consumer) == []
        publish(broker, 1, first=9)
        assert [message.data for message in await take(consumer, 1)] == [b"9"]


@pytest.mark.parametrize("has_index_acks", [True, False])
@virtual_time
async def test_a_member_is_acknowledged_before_it_comes(has_index_acks: bool) -> None:
    """O6: members of a batch, acknowledged by ids from elsewhere before they were received, are not delivered."""
    broker = FakeBroker()
    publish(broker, 5, in_batches_of=5)
    async with subscribed(broker, batch_index_ack=has_index_acks) as consumer:
        for index in (1, 2):
            await consumer.acknowledge(MessageId(7, 0, batch_index=index, batch_size=5, topic=TOPIC))
        assert await received(consumer) == [b"0", b"3", b"4"]
        assert len(the(broker).acked) == 1


# --- removed messages ---


def poisoned(kind: str) -> dict[str, Any]:
    """Return the settings of a consumer by name: for a batch another member should be in flight."""
    return {"consumer_type": "shared" if kind == "batch" else kind}


@pytest.mark.parametrize("delay", [0.3, 5.0])
@pytest.mark.parametrize("kind", [*TYPES, "batch"])
@virtual_time
async def test_a_poison_message_that_was_cleared(kind: str, delay: float) -> None:
    """O8: a message is nacked repeatedly; the backlog is cleared: it is delivered once more at most, and forgotten."""
    broker, letters = FakeBroker(), FakePublisher()
    count = 2 if kind == "batch" else 1
    publish(broker, count, in_batches_of=count)
    dead = DeadLetterPolicy(6, "dead", publisher=letters)
    async with subscribed(broker, dead_letter=dead, **poisoned(kind)) as consumer:
        times = 0

        async def work() -> None:
            nonlocal times
            async for message in consumer:
                if message.data == b"0":
                    times += 1
                    await message.nack(delay)

        worker = asyncio.create_task(work())
        await asyncio.sleep(4 * delay)
        before = times
        the(broker).skip_all()
        await asyncio.sleep(10 * delay)
        assert times - before <= 1
        assert letters.letters == []
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.kept_bytes) == (0, 0, 0, 0)
        assert figures.dropped == 1
        worker.cancel()


@virtual_time
async def test_a_dead_letter_of_what_is_gone() -> None:
    """O8: a dead letter waits for its publisher; the backlog is cleared: it is dropped, and waiting calls fail."""
    broker, letters = FakeBroker(), FakePublisher()
    letters.fail_next(1_000)
    publish(broker, 1)
    async with subscribed(broker, dead_letter=DeadLetterPolicy(1, "dead", publisher=letters)) as consumer:
        (message,) = await take(consumer, 1)
        waiting = asyncio.ensure_future(message.dead_letter())
        await asyncio.sleep(5)
        assert not waiting.done()
        the(broker).skip_all()
        with pytest.raises(Exception, match="acknowledged at the broker"):
            await asyncio.wait_for(waiting, 2)
        figures = consumer.statistics()
        assert (figures.dead_letters_waiting, figures.in_work, figures.dropped) == (0, 0, 1)
    assert letters.letters == []


@pytest.mark.parametrize("kind", [*TYPES, "batch"])
@virtual_time
async def test_a_dead_letter_of_what_was_cleared_a_moment_ago(kind: str) -> None:
    """O8: a message is in flight when the backlog is cleared, and then dead-lettered: there is no dead letter."""
    broker, letters = FakeBroker(), FakePublisher()
    count = 2 if kind == "batch" else 1
    publish(broker, count, in_batches_of=count)
    dead = DeadLetterPolicy(1, "dead", publisher=letters)
    async with subscribed(broker, dead_letter=dead, **poisoned(kind)) as consumer:
        message, *_ = await take(consumer, count)
        the(broker).skip_all()
        with pytest.raises(AlreadySettledError):
            await message.dead_letter()
        assert letters.letters == []
        assert consumer.statistics().dropped == 1
        publish(broker, 1, first=9)
        await (await consumer.receive()).dead_letter()
        assert [letter.data for letter in letters.letters] == [b"9"]


@virtual_time
async def test_the_broker_is_asked_once_a_second_while_something_waits() -> None:
    """O8: without held messages there are no requests; one a second while a message is held, and none afterwards."""
    broker = FakeBroker()
    publish(broker, 100)
    async with subscribed(broker) as consumer:
        messages = await take(consumer, 100)
        await asyncio.sleep(10)
        assert asked(broker) == 0
        for message in messages:
            await message.nack(9.5)
        await asyncio.sleep(9.2)
        assert asked(broker) == 9
        assert len(await received(consumer, seconds=1)) == 100
        await asyncio.sleep(2)
        before = asked(broker)
        await asyncio.sleep(100)
        assert asked(broker) == before


@pytest.mark.parametrize("refuses", [False, True])
@virtual_time
async def test_a_broker_that_does_not_tell(refuses: bool) -> None:
    """O8: a broker that does not send the position, or refuses, is asked once a session, and nothing is dropped."""
    broker = FakeBroker()
    broker.tells_mark_delete = False
    if refuses:
        broker.always("GET_LAST_MESSAGE_ID", refuse("NotAllowedError"))
    publish(broker, 1)
    async with subscribed(broker, consumer_type="exclusive") as consumer:
        (message,) = await take(consumer, 1)
        await message.nack(20)
        await asyncio.sleep(10)
        assert asked(broker) == 1
        assert await received(consumer, seconds=15) == [b"0"]
        assert consumer.statistics().dropped == 0


@virtual_time
async def test_a_reader_keeps_what_it_holds() -> None:
    """O8: a non-durable subscription begins after the messages taken; held ones are still delivered."""
    broker = FakeBroker()
    publish(broker, 3)
    settings: dict[str, Any] = {"consumer_type": "exclusive", "durable_subscription": False}
    async with subscribed(broker, **settings) as consumer:
        for message in await take(consumer, 3):
            await message.nack(20)
        broker.cut()
        await asyncio.sleep(10)
        assert sorted(await received(consumer, seconds=15)) == numbers(3)
        assert asked(broker) == 0


# --- messages that other consumers settle, on Exclusive and Failover ---


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@virtual_time
async def test_what_another_consumer_settled_while_this_one_was_away(kind: str) -> None:
    """O52: a held message whose session ended, and which does not come in the next one, is dropped."""
    broker = FakeBroker()
    publish(broker, 4)
    async with subscribed(broker, consumer_type=kind, consumer_name="a") as one:
        messages = await take(one, 4)
        for message in messages[1:]:
            await message.nack(delay=30)  # the first one stays in flight, so that the position does not reveal it
        broker.always("SUBSCRIBE", refuse("ServiceNotReady"))
        broker.cut()
        await asyncio.sleep(1)
        the(broker).acknowledge(ids_of(broker, 1, 2), is_cumulative=False)  # by another consumer, which left again
        broker.normally("SUBSCRIBE")
        assert await received(one, seconds=60) == [b"3"]
        await asyncio.sleep(60)
        figures = one.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.dropped) == (0, 0, 0, 2)


def ids_of(broker: FakeBroker, *entries: int) -> Any:
    """Return ids of entries as the protocol has them."""
    return [pb.MessageIdData(ledgerId=broker.topic(TOPIC).ledger, entryId=entry) for entry in entries]


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@virtual_time
async def test_what_is_held_is_exact_after_a_session(kind: str, is_lost: bool) -> None:
    """O52: a held message that comes again in the next session stays held, and is delivered at its deadline."""
    broker = FakeBroker()
    publish(broker, 3)
    async with subscribed(broker, consumer_type=kind) as consumer:
        for message in await take(consumer, 3):
            await message.nack(delay=30)
        due_at = asyncio.get_running_loop().time() + 30
        receiving = asyncio.ensure_future(consumer.receive())
        if is_lost:
            broker.cut()
        else:
            broker.unload(TOPIC)
        again = [await receiving, *await take(consumer, 2)]
        assert abs(asyncio.get_running_loop().time() - due_at) < 0.01
        assert sorted((message.data, message.attempt) for message in again) == [(data, 2) for data in numbers(3)]
        assert broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []
        assert consumer.statistics().redelivered_local == 3


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@virtual_time
async def test_a_member_that_another_worker_got_too(is_held: bool, is_last: bool) -> None:
    """O52: a nacked member of a batch goes to another worker too, which acknowledges it: it is not delivered here."""
    broker, letters = FakeBroker(), FakePublisher()
    publish(broker, 2, in_batches_of=2)
    dead = DeadLetterPolicy(1, "dead", publisher=letters)
    async with subscribed(broker, dead_letter=dead) as one:
        messages = await take(one, 2)
        if is_last:
            await messages[0].nack(0.1)
            messages[0] = await one.receive()
        if is_held and not is_last:
            await messages[0].nack(5)
        the(broker).is_paused = True
        broker.unload(TOPIC)
        await asyncio.sleep(1)
        the(broker)._acknowledge_part(broker.topic(TOPIC).entries[0].place, [2])  # by the other one, which has it now
        if not is_held or is_last:
            await messages[0].nack(5)
        assert await received(one, seconds=20) == []
        assert letters.letters == []


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
@virtual_time
async def test_a_nack_of_what_another_consumer_settled_after_a_seek_in_another_topic(kind: str) -> None:
    """O52: a message in flight since an earlier session is unknown after the seek; a nack asks the broker for it."""
    broker = FakeBroker()
    other = f"{BASE}other"
    broker.topic(other).ledger = 70
    async with subscribed(broker, [TOPIC, other], consumer_type=kind, consumer_name="a") as one:
        publish(broker, 2)
        publish(broker, 1, topic=other)
        messages = {(message.topic, message.data): message for message in await take(one, 3)}
        the(broker).is_paused = True
        broker.unload(TOPIC)
        await asyncio.sleep(1)
        the(broker).acknowledge(ids_of(broker, 1), is_cumulative=False)  # by the other one, which had it meanwhile
        the(broker).is_paused = False
        await one.seek(messages[other, b"0"].id)
        await messages[TOPIC, b"1"].nack(0.1)
        assert await received(one, seconds=20, ack=False) == [b"0", b"0"]


@virtual_time
async def test_what_is_due_and_not_received_goes_with_the_rest() -> None:
    """O53: held messages are due and not received when another consumer takes over: only that one delivers them."""
    broker = FakeBroker()
    settings: dict[str, Any] = {"consumer_type": "failover"}
    async with subscribed(broker, consumer_name="b", **settings) as second:
        publish(broker, 3)
        for message in await take(second, 3):
            await message.nack(delay=1)
        await asyncio.sleep(2)
        assert second.statistics().ready == 3
        async with subscribed(broker, consumer_name="a", **settings) as first:
            assert [message.data for message in await take(first, 3)] == numbers(3)
            assert await received(second) == []
            figures = second.statistics()
            assert (figures.ready, figures.in_work, figures.dropped) == (0, 0, 3)
        again = await take(second, 3)
        assert [(message.data, message.attempt) for message in again] == [(data, 3) for data in numbers(3)]
