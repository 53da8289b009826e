"""Readers on a scripted broker: where they begin and end, several partitions, lost connections, seeks, closing."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, InvalidArgumentError, MessageId
from pulsar_nack.consumer import ReceivedMessage
from pulsar_nack.errors import TopicNotFoundError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client, Reader
from pulsar_nack.wire._consumer._entry_reader import UnreadEntry
from pulsar_nack.wire._consumer._positions import is_after, start_of, starts_of
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.for_each import for_each
from tests.tiers import seeds, size
from tests.wire.fake_broker import Call, FakeBroker, as_usual, cut, in_turn, later, refuse, silence
from tests.wire.fake_topics import FakeTopic, metadata_of
from tests.wire.frames import message_rest

TOPIC = "persistent://public/default/t"


@asynccontextmanager
async def cluster(**settings: Any) -> AsyncIterator[tuple[FakeBroker, FakeTopic, Client]]:
    """Yield a broker, a topic and a client; at the end no task is left."""
    before = asyncio.all_tasks()
    broker = FakeBroker()
    async with Client(broker.url, dial=broker.dial, **settings) as client:
        yield broker, broker.topic(TOPIC), client
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def texts(reader: Reader, most: int = 1_000_000) -> list[str]:
    """Read to the end; return the payloads as text."""
    found: list[str] = []
    async for message in reader.read_to_end():
        found.append(message.data.decode())
        if len(found) == most:
            break
    return found


def publish(topic: FakeTopic, numbers: range, *, batch: int = 1, **fields: Any) -> None:
    """Publish numbers, as single messages or in batches."""
    for first in range(numbers.start, numbers.stop, batch):
        members = [b"%d" % number for number in range(first, min(first + batch, numbers.stop))]
        topic.publish(members[0], **fields) if batch == 1 else topic.publish_batch(members, **fields)


def numbered(*numbers: int) -> list[str]:
    """Return payloads as text."""
    return [str(number) for number in numbers]


# --- U47 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 5])
@virtual_time
async def test_read_to_end_while_more_are_published(batch: int) -> None:
    """U47: reading to the end gives exactly ten messages, though ten more are published meanwhile, in batches too."""
    async with cluster() as (_, topic, client):
        publish(topic, range(10), batch=batch)
        async with client.reader("t", start="earliest", inclusive=True) as reader:
            found: list[bytes] = []
            async for message in reader.read_to_end():
                found.append(message.data)
                publish(topic, range(10 + len(found), 11 + len(found)))
            assert found == [b"%d" % number for number in range(10)]
            assert await reader.has_message_available()
            assert await texts(reader) == numbered(*range(11, 21))
            assert await texts(reader) == []


@pytest.mark.parametrize("batch", [1, 3])
@virtual_time
async def test_has_message_available_around_the_end(batch: int) -> None:
    """U47: it is right before, at and after the end, for batches too."""
    async with cluster() as (_, topic, client), client.reader("t") as reader:
        assert not await reader.has_message_available()
        publish(topic, range(6), batch=batch)
        for _ in range(6):
            assert await reader.has_message_available()
            await reader.read()
        assert not await reader.has_message_available()
        publish(topic, range(6, 9), batch=batch)
        for number in range(6, 9):
            assert await reader.has_message_available()
            assert await reader.has_message_available()
            assert (await reader.read()).data == b"%d" % number
        assert not await reader.has_message_available()


# --- beginning --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_where_it_begins() -> None:
    """At both ends, at a message or after it, in a batch too, and at a time."""
    async with cluster() as (_, topic, client):
        for number in range(3):
            publish(topic, range(number * 3, number * 3 + 3), batch=3, publish_time=1_790_000_000_000 + number)
        publish(topic, range(9, 11), publish_time=1_790_000_000_003)
        place = topic.entries[1].place
        starts: list[tuple[Any, bool, int]] = [
            ("earliest", False, 0),
            ("earliest", True, 0),
            ("latest", False, 11),
            ("latest", True, 10),
            (MessageId(-1, -1), False, 0),
            (MessageId(2**63 - 1, 2**63 - 1), True, 10),
            (MessageId(*place, -1, 1, batch_size=3), False, 5),
            (MessageId(*place, -1, 1, batch_size=3), True, 4),
            (MessageId(*place, -1, 1), True, 4),
            (MessageId(*place, -1, 2, batch_size=3), False, 6),
            (MessageId(*place, -1, 0, batch_size=3), True, 3),
            (MessageId(*place), False, 6),
            (MessageId(*place), True, 3),
            (MessageId(*topic.entries[3].place), False, 10),
            ([MessageId(*topic.entries[3].place, topic=TOPIC)], True, 9),
            ([], False, 0),
            (1_790_000_000_001, False, 3),
            (datetime.fromtimestamp(1_790_000_000, UTC), False, 0),
            (0, False, 0),
        ]
        for start, inclusive, first in starts:
            async with client.reader("t", start, inclusive=inclusive) as reader:
                assert await reader.has_message_available() is (first < 11), start
                assert await texts(reader) == numbered(*range(first, 11)), (start, inclusive)
                assert not await reader.has_message_available()
                publish(topic, range(1))
                assert (await reader.read(timeout=1)).data == b"0", start
                topic.entries.pop()


@virtual_time
async def test_latest_inclusive_in_a_batch() -> None:
    """Only the last message of the last batch comes."""
    async with cluster() as (_, topic, client):
        publish(topic, range(6), batch=3)
        async with client.reader("t", "latest", inclusive=True) as reader:
            assert await reader.has_message_available()
            assert await texts(reader) == ["5"]
            assert not await reader.has_message_available()


@for_each("start", [None, "first", 1.5, True, -1, 1_790_000_000, b"x", ["x"], [MessageId(-1, -1)], [1_790_000_000_000]])
def test_what_is_no_start(start: Any) -> None:
    """Invalid starts are refused by name, before anything is sent."""
    with pytest.raises(InvalidArgumentError, match="start"):
        start_of(start)


def test_ids_and_their_topics() -> None:
    """An id names its topic or partition, unless there is only one."""
    parts = {f"{TOPIC}-partition-{number}": number for number in range(2)}
    one = MessageId(1, 5, 1)
    assert starts_of([one], parts, "t", inclusive=False) == {f"{TOPIC}-partition-1": one}
    assert starts_of([one], parts, "t", inclusive=True) == {f"{TOPIC}-partition-1": MessageId(1, 4, 1)}
    assert starts_of([MessageId(1, 5, 1, topic=TOPIC)], parts, "t", inclusive=False) == {f"{TOPIC}-partition-1": one}
    only = {f"{TOPIC}-partition-1": 1}
    assert starts_of([MessageId(1, 5)], only, "t", inclusive=False) == {f"{TOPIC}-partition-1": MessageId(1, 5)}
    chunked = MessageId(1, 5, first_chunk=MessageId(1, 3))
    assert starts_of([chunked], {TOPIC: -1}, "t", inclusive=True) == {TOPIC: MessageId(1, 2)}
    assert starts_of([chunked], {TOPIC: -1}, "t", inclusive=False) == {TOPIC: chunked}
    for wrong in (MessageId(1, 5), MessageId(1, 5, 2), MessageId(1, 5, 0, topic="persistent://public/default/u")):
        with pytest.raises(InvalidArgumentError, match="start"):
            starts_of([wrong], parts, "t", inclusive=False)


def test_order_of_ids() -> None:
    """Batch indexes count; an id without one stands for the entry."""
    ordered = [MessageId(1, 9), MessageId(2, 0), MessageId(2, 1, -1, 0), MessageId(2, 1, -1, 1), MessageId(2, 2)]
    for index, one in enumerate(ordered):
        assert [is_after(one, other) for other in ordered] == [index > at for at in range(5)]
    assert not is_after(MessageId(2, 1, -1, 1), MessageId(2, 1))
    assert not is_after(MessageId(2, 1), MessageId(2, 1, -1, 1))


@virtual_time
async def test_wrong_settings_and_ids() -> None:
    """They are refused by name."""
    async with cluster() as (broker, topic, client):
        broker.partitions[f"{TOPIC}2"] = 2
        publish(topic, range(1))
        for settings in (
            {"inclusive": 1},
            {"discovery_interval": 0},
            {"reader_name": ""},
            {"subscription": 3},
            {"receiver_queue_size": -1},
            {"recevier_queue_size": 1},
            {"consumer_type": "shared"},
            {"batch_index_ack": True},
        ):
            with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
                client.reader("t", **settings)
        with pytest.raises(InvalidArgumentError, match="start"):
            await client.reader("t2", MessageId(1, 1))
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            await client.reader("t2", receiver_queue_size=0)
        assert broker.commands("SUBSCRIBE") == []
        async with client.reader("t", subscription="mine", reader_name="me", receiver_queue_size=0) as reader:
            assert repr(reader) == f"<Reader of {TOPIC!r} as 'me'>"
            assert (await reader.read()).data == b"0"
        subscribed = broker.commands("SUBSCRIBE")[0]
        assert (subscribed.subscription, subscribed.consumer_name, subscribed.durable) == ("mine", "me", False)
        assert subscribed.subType == subscribed.Exclusive


# --- partitions -------------------------------------------------------------------------------------------------------


@virtual_time
async def test_partitions_each_to_its_end() -> None:
    """U47: each partition is in order; one at its end waits while the others are read, and prefetches only its queue.

    Later all messages come, once and in order.
    """
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 2
        fast, slow = (broker.topic(f"{TOPIC}-partition-{number}") for number in range(2))
        publish(fast, range(2))
        publish(slow, range(100, 110))
        async with client.reader("t", receiver_queue_size=5) as reader:
            found: list[str] = []
            async for message in reader.read_to_end():
                found.append(message.data.decode())
                publish(fast, range(len(found) * 10, len(found) * 10 + 10), batch=1)
                await asyncio.sleep(0.1)
            assert sorted(found) == sorted(numbered(0, 1, *range(100, 110)))
            assert [each for each in found if len(each) == 3] == numbered(*range(100, 110))
            assert await reader.has_message_available()
            assert await texts(reader) == numbered(*range(10, 130))
            assert not await reader.has_message_available()


@virtual_time
async def test_what_is_kept_is_bounded() -> None:
    """While one partition has not reached its end, the other prefetches only its queue; a seek continues too."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 2
        fast, slow = (broker.topic(f"{TOPIC}-partition-{number}") for number in range(2))
        publish(fast, range(1))
        publish(slow, range(100, 110))
        async with client.reader("t", receiver_queue_size=5) as reader:
            subscription = next(iter(slow.subscriptions.values()))
            subscription.is_paused = True
            reading = asyncio.create_task(texts(reader))
            await asyncio.sleep(0.5)
            for number in range(1, 50):
                publish(fast, range(number, number + 1))
                await asyncio.sleep(0.1)
            assert 2 <= len(reader._kept[fast.name]) <= 10
            assert not reading.done()
            subscription.is_paused = False
            publish(slow, range(110, 111))
            assert sorted(await reading) == numbered(0, *range(100, 110))
            assert len(reader._kept) == 1
            await reader.seek(MessageId(*fast.entries[20].place, 0))
            assert sorted(map(int, await texts(reader))) == [*range(20, 50), 110]


@virtual_time
async def test_positions_to_go_on_from() -> None:
    """The next reader continues at ``positions``, in each partition, also where nothing was read."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 3
        topics = [broker.topic(f"{TOPIC}-partition-{number}") for number in range(3)]
        publish(topics[0], range(4), batch=2)
        publish(topics[1], range(10, 12))
        async with client.reader("t", "latest") as reader:
            publish(topics[0], range(4, 8), batch=4)
            assert (await reader.read(timeout=1)).data == b"4"
            assert await reader.has_message_available()
            positions = reader.positions()
            assert [(each.partition, *each[:2], each.batch_index) for each in positions[:2]] == [
                (0, 7, 2, 0),
                (1, 7, 1, -1),
            ]
        publish(topics[1], range(12, 13))
        publish(topics[2], range(20, 21))
        kept = [MessageId.from_bytes(each.to_bytes(), topic=each.topic) for each in positions]
        async with client.reader("t", kept) as reader:
            assert sorted(await texts(reader)) == numbered(12, 20, 5, 6, 7)
            assert len(await reader.last_message_ids()) == 3


@virtual_time
async def test_a_new_partition_is_read_from_its_beginning() -> None:
    """It is found at the interval, and not begun at another partition's position."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 1
        publish(broker.topic(f"{TOPIC}-partition-0"), range(3))
        async with client.reader("t", MessageId(7, 1, 0), discovery_interval=1) as reader:
            assert await texts(reader) == ["2"]
            broker.partitions[TOPIC] = 2
            publish(broker.topic(f"{TOPIC}-partition-1"), range(10, 12))
            assert [(await reader.read(timeout=5)).data for _ in range(2)] == [b"10", b"11"]


# --- lost connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["cut", "unload"])
@pytest.mark.parametrize("batch", [1, 4])
@virtual_time
async def test_no_message_is_missed_or_comes_twice(event: str, batch: int) -> None:
    """U47: after a lost connection and an unload it continues after the last message, in a batch too."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(40), batch=batch)
        async with client.reader("t", receiver_queue_size=10) as reader:
            found: list[str] = []
            for number in range(40):
                if number % 7 == 3:
                    if number % 2:
                        assert await reader.has_message_available()
                    broker.cut() if event == "cut" else broker.unload(TOPIC)
                    await asyncio.sleep(number % 3)
                found.append((await reader.read(timeout=60)).data.decode())
            assert found == numbered(*range(40))
            assert not await reader.has_message_available()
            assert reader.duplicates == 0


@virtual_time
async def test_a_message_that_was_found_before_the_connection_broke() -> None:
    """U47: it stays unread, though the broker begins after it."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(2))
        async with client.reader("t") as reader:
            assert (await reader.read()).data == b"0"
            assert await reader.has_message_available()
            broker.unload(TOPIC)
            await asyncio.sleep(1)
            assert await reader.has_message_available()
            assert await texts(reader) == ["1"]
            assert not await reader.has_message_available()


@pytest.mark.parametrize("start", ["latest", 1_790_000_000_000])
@virtual_time
async def test_a_quiet_topic_keeps_its_place(start: Any) -> None:
    """Without a message read, a lost connection moves the position neither back nor forward."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(3), publish_time=1_780_000_000_000)
        async with client.reader("t", start) as reader:
            broker.unload(TOPIC)
            publish(topic, range(3, 4), publish_time=1_790_000_000_001)
            await asyncio.sleep(1)
            broker.cut()
            await asyncio.sleep(1)
            assert (await reader.read(timeout=9)).data == b"3"
            assert not await reader.has_message_available()


@pytest.mark.parametrize("seed", seeds(range(20), fast=2))
@virtual_time
async def test_at_random(seed: int) -> None:
    """Reading, peeking, reading to the end, unloads and cuts, with publishing in between: all is read, in order.

    Every other run seeks; the others have chunked messages, which a seek to a position between their chunks misses.
    """
    choose = random.Random(seed)
    extra = "seek" if seed % 2 else "chunk"
    async with cluster() as (broker, _, client):
        count = choose.choice([1, 3])
        broker.partitions[TOPIC] = count if count > 1 else 0
        names = [f"{TOPIC}-partition-{number}" for number in range(count)] if count > 1 else [TOPIC]
        topics = list(map(broker.topic, names))
        sent: dict[str, list[bytes]] = {topic.name: [] for topic in topics}
        seen: dict[str, list[bytes]] = {topic.name: [] for topic in topics}
        ids: dict[str, list[MessageId]] = {topic.name: [] for topic in topics}
        halves: dict[str, bytes] = {}
        chunked = 0

        def note(message: ReceivedMessage) -> None:
            seen[message.topic].append(message.data)
            ids[message.topic].append(message.id)

        async with client.reader("t", receiver_queue_size=choose.choice([1, 3, 100])) as reader:
            for _ in range(size(400, fast=150)):
                unread = sum(map(len, sent.values())) - sum(map(len, seen.values()))
                action = choose.choice(
                    ["publish", "publish", extra, "read", "read", "look", "end", "cut", "unload", "wait"]
                )
                if action == "publish":
                    topic = choose.choice(topics)
                    made = [b"%d" % (len(sent[topic.name]) + more) for more in range(choose.choice([1, 1, 2, 5]))]
                    sent[topic.name] += made
                    topic.publish(made[0]) if len(made) == 1 else topic.publish_batch(made)
                elif action == "chunk":
                    topic = choose.choice(topics)
                    whole = halves.pop(topic.name, None)
                    chunked += whole is None
                    payload = whole or b"c%07d" % chunked
                    chunk_of(topic, payload.decode(), int(whole is not None), payload[4:] if whole else payload[:4])
                    if whole is None:
                        halves[topic.name] = payload
                    else:
                        sent[topic.name].append(whole)
                elif action == "seek":
                    broker.next("SEEK", choose.choice([as_usual, as_usual, in_turn(as_usual, cut), cut]))
                    name, known = choose.choice(list(ids.items()))
                    if known and choose.random() < 0.8:
                        index = choose.randrange(len(known))
                        await reader.seek(known[index])
                        del seen[name][index:], known[index:]
                    else:
                        await reader.seek("earliest")
                        seen, ids = {each: [] for each in seen}, {each: [] for each in seen}
                    broker.normally("SEEK")
                elif action == "read" and unread:
                    note(await reader.read(timeout=60))
                elif action == "look":
                    assert await reader.has_message_available() in {unread > 0, unread > 0 or bool(halves)}
                elif action == "end":
                    most = choose.choice([1, 3, 1000])
                    wanted = {name: list(each) for name, each in sent.items()}
                    async for message in reader.read_to_end():
                        note(message)
                        topic = choose.choice(topics)
                        topic.publish(b"%d" % len(sent[topic.name]))
                        sent[topic.name].append(b"%d" % len(sent[topic.name]))
                        most -= 1
                        if not most:
                            break
                    else:
                        assert seen == wanted
                elif action in {"cut", "unload"}:
                    broker.cut() if action == "cut" else broker.unload(choose.choice(topics).name)
                await asyncio.sleep(choose.choice([0, 0, 0.5, 2]))
                for name, each in seen.items():
                    assert each == sent[name][: len(each)]
            async for message in reader.read_to_end():
                seen[message.topic].append(message.data)
            assert seen == sent
            assert not await reader.has_message_available()


@virtual_time
async def test_one_of_two_topics_is_deleted() -> None:
    """The other topic is read to its end, asked for more, and moved; without any topic the calls raise."""
    async with cluster() as (broker, topic, client):
        other = broker.topic(f"{TOPIC}2")
        publish(topic, range(5))
        publish(other, range(5, 10))
        async with client.reader(["t", "t2"], receiver_queue_size=2) as reader:
            broker.creates_topics = False
            found: list[bytes] = []
            async with asyncio.timeout(100):
                async for message in reader.read_to_end():
                    found.append(message.data)
                    if len(found) == 1:
                        broker.delete(TOPIC)
                        await asyncio.sleep(1)
            assert found[-5:] == [b"%d" % number for number in range(5, 10)]
            assert not await reader.has_message_available()
            publish(other, range(10, 12))
            assert await reader.has_message_available()
            assert await texts(reader) == numbered(10, 11)
            await reader.seek("earliest")
            assert await texts(reader) == numbered(*range(5, 12))
            broker.delete(other.name)
            await asyncio.sleep(1)
            for call in (reader.has_message_available, reader.read, partial(reader.seek, "latest")):
                with pytest.raises(TopicNotFoundError):
                    await call()


# --- ends that never arrive -------------------------------------------------------------------------------------------


@virtual_time
async def test_a_last_entry_that_is_no_message() -> None:
    """U47: the broker's marker at the end, which it skips, does not block ``read_to_end``."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(3))

        def answer(call: Call) -> None:
            subscription = next(iter(topic.subscriptions.values()))
            ledger, entry = subscription.mark_delete_position
            end = {"ledgerId": 7, "entryId": 3}
            mark = end if entry == 2 else {"ledgerId": ledger, "entryId": entry % 2**64}
            call.reply("GET_LAST_MESSAGE_ID_RESPONSE", last_message_id=end, consumer_mark_delete_position=mark)

        broker.always("GET_LAST_MESSAGE_ID", answer)
        async with client.reader("t") as reader:
            assert await asyncio.wait_for(texts(reader), 10) == numbered(0, 1, 2)
            assert not await reader.has_message_available()


@virtual_time
async def test_an_end_that_was_compacted_away() -> None:
    """U47: the last messages are compacted away during the read, and more follow: it ends, and those come next."""
    async with cluster() as (_, topic, client):
        publish(topic, range(6))
        async with client.reader("t", receiver_queue_size=1, read_compacted=True) as reader:
            reading = reader.read_to_end()
            assert [(await anext(reading)).data for _ in range(3)] == [b"0", b"1", b"2"]
            del topic.entries[4:]
            rest = asyncio.create_task(texts_of(reading))
            assert await asyncio.wait_for(rest, 10) in (["3"], ["3", "4"])  # one may have been prefetched
            publish(topic, range(6, 7))
            topic.entries[-1].entry = 9
            assert (await reader.read(timeout=10)).data == b"6"


async def texts_of(reading: AsyncIterator[Any]) -> list[str]:
    """Return the payloads of the remaining messages as text."""
    return [message.data.decode() async for message in reading]


@virtual_time
async def test_chunks_without_the_rest_of_their_message() -> None:
    """U47: a topic that ends with incomplete chunks is read to its end."""
    async with cluster() as (_, topic, client):
        publish(topic, range(2))
        chunk = metadata_of(uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=8)
        topic.append(message_rest(chunk, b"half"))
        async with client.reader("t") as reader:
            assert await asyncio.wait_for(texts(reader), 10) == numbered(0, 1)
            assert not await reader.has_message_available()
            publish(topic, range(2, 3))
            assert (await reader.read(timeout=10)).data == b"2"


def ends_at(entry: int, mark: int) -> Callable[[Call], None]:
    """Answer with a last message and a mark-delete position."""

    def answer(call: Call) -> None:
        last, marked = ({"ledgerId": 7, "entryId": each} for each in (entry, mark))
        call.reply("GET_LAST_MESSAGE_ID_RESPONSE", last_message_id=last, consumer_mark_delete_position=marked)

    return answer


@virtual_time
async def test_a_mark_ahead_of_a_compacted_topic() -> None:
    """Retention has deleted the ledgers, and their last messages are in the compacted topic: they are read."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(3))
        broker.always("GET_LAST_MESSAGE_ID", ends_at(2, 9))
        async with client.reader("t", read_compacted=True) as reader:
            assert await reader.has_message_available()
            assert await texts(reader) == numbered(0, 1, 2)
        async with client.reader("t") as reader:
            assert await texts(reader) == []


@virtual_time
async def test_what_was_received_stays_in_order() -> None:
    """Received and unread messages come before later ones, also if the last one was compacted away."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(5))
        del topic.entries[1]
        async with client.reader("t") as reader:
            for _ in range(3):
                reader._keep(await reader._next(1, ()))
            broker.always("GET_LAST_MESSAGE_ID", ends_at(1, 0))
            assert await texts(reader) == ["0"]
            assert [(await reader.read(timeout=1)).data for _ in range(3)] == [b"2", b"3", b"4"]


def chunk_of(topic: FakeTopic, uuid: str, index: int, payload: bytes) -> None:
    """Publish one of two chunks of a message of eight bytes."""
    topic.append(
        message_rest(metadata_of(uuid=uuid, num_chunks_from_msg=2, chunk_id=index, total_chunk_msg_size=8), payload)
    )


@virtual_time
async def test_chunks_between_other_messages(caplog: pytest.LogCaptureFixture) -> None:
    """U47: later messages do not acknowledge the first chunk, so that it comes again after a lost connection.

    One that stays alone for twice the timeout is given up.
    """
    async with cluster() as (broker, topic, client):
        chunk_of(topic, "u", 0, b"half")
        publish(topic, range(3))
        async with client.reader("t") as reader:
            assert await texts(reader) == numbered(0, 1, 2)
            await asyncio.sleep(2)
            assert broker.commands("ACK") == []
            broker.cut()
            await asyncio.sleep(2)
            chunk_of(topic, "u", 1, b"full")
            assert [(await reader.read(timeout=5)).data] == [b"halffull"]
            assert reader.duplicates == 3
            await asyncio.sleep(2)
            assert broker.commands("ACK")[-1].message_id[0].entryId == 4
            chunk_of(topic, "v", 0, b"half")
            for number in range(20):
                publish(topic, range(number, number + 1))
                assert (await reader.read(timeout=5)).data == b"%d" % number
                await asyncio.sleep(10)
            assert caplog.text.count("gave up the chunked message at") == 1
            assert broker.commands("ACK")[-1].message_id[0].entryId == topic.entries[-1].entry
            assert await texts(reader) == []


@pytest.mark.parametrize("queue", [1, 100])
@virtual_time
async def test_while_the_broker_is_away(queue: int) -> None:
    """U47: it waits for messages that it knows of, and for no others; without an answer at first it raises."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(4))
        async with client.reader("t", receiver_queue_size=queue) as reader:
            reading = reader.read_to_end()
            assert (await anext(reading)).data == b"0"
            broker.nodes[broker.url].kill()
            rest = asyncio.create_task(texts_of(reading))
            await asyncio.sleep(300)
            assert not rest.done()
            broker.nodes[broker.url].start()
            topic.subscriptions.clear()
            broker.next("FLOW", later(60, as_usual), later(60, as_usual))
            publish(topic, range(4, 6))
            assert await asyncio.wait_for(rest, 300) == numbered(1, 2, 3)
            assert await texts(reader) == numbered(4, 5)
            broker.always("GET_LAST_MESSAGE_ID", refuse("MetadataError"))
            with pytest.raises(BrokerError):
                await texts(reader)
            with pytest.raises(BrokerError):
                await reader.has_message_available()


@virtual_time
async def test_a_payload_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """U47: a message that has arrived and is still being decompressed is read too."""
    async with cluster() as (_, topic, client):
        publish(topic, range(4), batch=2)
        async with client.reader("t") as reader:
            is_done = False
            monkeypatch.setattr(UnreadEntry, "is_decompressing", lambda *_: not is_done)
            reading = asyncio.create_task(texts(reader))
            await asyncio.sleep(5)
            is_done = True
            reader._port._inbox.wake_all()
            assert await reading == numbered(0, 1, 2, 3)


# --- seeking ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_seek() -> None:
    """To a message, a time and both ends; kept messages are forgotten."""
    async with cluster() as (_, topic, client):
        for number in range(6):
            publish(topic, range(number, number + 1), publish_time=1_790_000_000_000 + number)
        async with client.reader("t") as reader:
            assert await texts(reader) == numbered(*range(6))
            for place, first in [
                (MessageId(*topic.entries[2].place), 2),
                (1_790_000_000_004, 4),
                (datetime.fromtimestamp(1_790_000_000, UTC), 0),
                ("latest", 6),
                ("earliest", 0),
                (MessageId(*topic.entries[5].place), 5),
            ]:
                await reader.seek(place)  # type: ignore[arg-type]
                assert await reader.has_message_available() is (first < 6)
                assert await reader.has_message_available() is (first < 6)
                await reader.seek(place)  # type: ignore[arg-type]
                assert await texts(reader) == numbered(*range(first, 6)), place
            for wrong in ("start", None, 1.5, 1_790_000_000):
                with pytest.raises(InvalidArgumentError, match="position"):
                    await reader.seek(wrong)  # type: ignore[arg-type]
            with pytest.raises(BrokerError, match="of no topic"):
                await reader.seek(MessageId(1, 1, topic="persistent://public/default/u"))


@pytest.mark.parametrize("answer", [refuse("MetadataError"), silence])
@virtual_time
async def test_a_seek_that_fails_loses_nothing(answer: Any) -> None:
    """Found and unread messages still come, once."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(6), batch=2)
        async with client.reader("t") as reader:
            assert (await reader.read()).data == b"0"
            assert await reader.has_message_available()
            broker.next("SEEK", answer)
            before = reader.positions()
            with pytest.raises((BrokerError, TimeoutError)):
                await asyncio.wait_for(reader.seek("earliest"), 2)
            assert reader.positions() == before
            assert await texts(reader) == numbered(1, 2, 3, 4, 5)


@pytest.mark.parametrize("answer", [refuse("MetadataError"), silence])
@virtual_time
async def test_a_seek_that_fails_loses_no_chunk(answer: Any) -> None:
    """A message whose first chunk came before read messages comes when its other chunk does."""
    async with cluster() as (broker, topic, client):
        chunk_of(topic, "u", 0, b"half")
        publish(topic, range(2))
        async with client.reader("t") as reader:
            assert await texts(reader) == numbered(0, 1)
            broker.next("SEEK", answer)
            with pytest.raises((BrokerError, TimeoutError)):
                await asyncio.wait_for(reader.seek("earliest"), 2)
            await asyncio.sleep(2)
            chunk_of(topic, "u", 1, b"full")
            publish(topic, range(2, 3))
            assert await texts(reader) == ["halffull", "2"]


@virtual_time
async def test_what_was_read_is_not_acknowledged_during_a_seek() -> None:
    """An acknowledgement of the old position that reaches the broker after the seek would skip new messages."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(6))
        async with client.reader("t", receiver_queue_size=1) as reader:
            for _ in range(4):
                await reader.read()
            broker.next("SEEK", later(2))
            broker.next("ACK", silence)
            await reader.seek("earliest")
            assert await texts(reader) == numbered(*range(6))


@virtual_time
async def test_a_seek_in_one_partition() -> None:
    """The other partitions continue where they were, with their found messages."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 2
        for number in range(2):
            publish(broker.topic(f"{TOPIC}-partition-{number}"), range(number * 10, number * 10 + 3))
        async with client.reader("t") as reader:
            found = [await reader.read() for _ in range(4)]
            assert await reader.has_message_available()
            first = next(each.id for each in found if each.id.partition == 1)
            await reader.seek(first)
            assert sorted(await texts(reader)) == sorted(
                [*numbered(10, 11, 12), *({"0", "1", "2"} - {each.data.decode() for each in found})]
            )


@pytest.mark.parametrize("is_refused", [False, True])
@virtual_time
async def test_all_comes_of_a_partition_that_has_moved_when_the_seek_ends_early(*, is_refused: bool) -> None:
    """A moved partition comes from its new position, though the call is cancelled or another partition refuses."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 2
        first, second = (f"{TOPIC}-partition-{number}" for number in range(2))
        publish(broker.topic(first), range(8))
        async with client.reader("t") as reader:
            assert await texts(reader) == numbered(*range(8))
            publish(broker.topic(first), range(8, 11))
            assert await reader.has_message_available()
            refused = refuse("MetadataError") if is_refused else as_usual
            broker.always("SEEK", lambda call: (later(1, refused) if _is_of(call, second) else as_usual)(call))
            broker.always("SUBSCRIBE", later(3))
            with pytest.raises((TimeoutError, BrokerError)):
                await asyncio.wait_for(reader.seek("earliest"), 2)
            broker.normally("SUBSCRIBE")
            assert await texts(reader) == numbered(*range(11))
            assert reader.duplicates == 0


def _is_of(call: Call, topic: str) -> bool:
    subscribed = [each.body for each in call.broker.calls if each.kind == "SUBSCRIBE" and each.link is call.link]
    return any((each.consumer_id, each.topic) == (call.body.consumer_id, topic) for each in subscribed)


@virtual_time
async def test_a_seek_while_another_task_reads() -> None:
    """Each of 34 partitions moves in its turn; all its messages come again, whatever was read before."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 34
        topics = [broker.topic(f"{TOPIC}-partition-{number}") for number in range(34)]
        async with client.reader("t") as reader:
            for number in range(8):
                for topic in topics:
                    publish(topic, range(number, number + 1))
                await asyncio.sleep(0.01)
            found: list[ReceivedMessage] = []

            async def read() -> None:
                async for message in reader:
                    found.append(message)
                    await asyncio.sleep(0.0001)

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.011)
            before = len(found)
            assert 34 < before < 34 * 8 - 10  # several messages of each partition are left
            await reader.seek("earliest")
            await asyncio.sleep(1)
            for number in range(34):
                of_partition = [message.data.decode() for message in found[before:] if message.id.partition == number]
                assert of_partition[-8:] == numbered(*range(8)), number
            assert reader.duplicates == 0
        await reading


# --- waiting, cancelling, closing -------------------------------------------------------------------------------------


@virtual_time
async def test_cancelled_and_timed_out_calls_lose_nothing() -> None:
    """U47: a hundred messages and many calls that end at any moment."""
    async with cluster() as (_, topic, client), client.reader("t", receiver_queue_size=3) as reader:
        found: list[str] = []
        with pytest.raises(TimeoutError):
            await reader.read(timeout=0.5)

        async def read() -> None:
            found.append((await reader.read()).data.decode())

        for number in range(100):
            reading = asyncio.create_task(read())
            for _ in range(number % 7):
                await asyncio.sleep(0)
            publish(topic, range(number, number + 1))
            await asyncio.sleep(0.0005 * (number % 6))
            reading.cancel()
            await asyncio.wait([reading])
        found += await texts(reader)
        assert found == numbered(*range(100))


@virtual_time
async def test_several_tasks() -> None:
    """Each message goes to one of the tasks."""
    async with cluster() as (_, topic, client), client.reader("t") as reader:
        tasks = [asyncio.create_task(reader.read()) for _ in range(10)]
        ending = asyncio.create_task(texts(reader))
        await asyncio.sleep(1)
        publish(topic, range(10))
        found = await asyncio.gather(*tasks)
        assert sorted(each.data for each in found) == sorted(b"%d" % number for number in range(10))
        assert await ending == []


@virtual_time
async def test_closing_ends_calls() -> None:
    """Waiting calls raise, iteration ends; later calls raise; the client closes its readers."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(1))
        reader = await client.reader("t")
        assert [message.data async for message in reader.read_to_end()] == [b"0"]
        waiting = asyncio.create_task(reader.read())
        iterating = asyncio.create_task(texts_of(reader))
        await asyncio.sleep(1)
        await reader.aclose()
        await reader.close()
        with pytest.raises(ClosedError):
            await waiting
        assert await iterating == []
        for call in (reader.read, reader.has_message_available, reader.last_message_ids, lambda: texts(reader)):
            with pytest.raises(ClosedError):
                await call()
        with pytest.raises(ClosedError):
            await reader.seek("earliest")
        assert repr(reader) == f"<Reader of {TOPIC!r}, closed>"
        other = await client.reader("t")
        assert other.is_connected
        assert (await other.read()).data == b"0"
        opening = client.reader("t")
        with pytest.raises(AttributeError, match="async with"):
            opening.read  # noqa: B018
    with pytest.raises(ClosedError):
        await other.read()
    with pytest.raises(ClosedError):
        client.reader("t")
    assert broker.links == []


@virtual_time
async def test_a_dropped_reader_closes_itself() -> None:
    """It warns, and the broker no longer has its consumer."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(2))
        with pytest.warns(ResourceWarning, match="Reader of"):
            await (await client.reader("t")).read()
        await asyncio.sleep(2)
        assert len(broker.commands("CLOSE_CONSUMER")) == 1


@virtual_time
async def test_what_was_read_is_acknowledged() -> None:
    """Once a second, all up to the last message read; in a partly read batch, the messages before it."""
    async with cluster() as (broker, topic, client):
        publish(topic, range(6), batch=3)
        publish(topic, range(6, 60))
        async with client.reader("t") as reader:
            for _ in range(5):
                await reader.read()
            await asyncio.sleep(1.1)
            for _ in range(40):
                await reader.read()
            await asyncio.sleep(1.1)
            await asyncio.sleep(100)
            acks = broker.commands("ACK")
            assert [each.ack_type for each in acks] == [acks[0].Cumulative] * 2
            assert [each.message_id[0].entryId for each in acks] == [0, 40]
        other = broker.topic(f"{TOPIC}2")
        publish(other, range(1))
        async with client.reader(["t2", "t"], "latest", inclusive=True) as reader:
            await reader.read()
            await asyncio.sleep(1.1)
            await reader.read()
            await asyncio.sleep(1.1)
            assert len(broker.commands("ACK")) == 4


@virtual_time
async def test_an_unreadable_message_does_not_stop_others() -> None:
    """Its ``data`` raises; its other fields are there, and it cannot be settled."""
    async with cluster() as (_, topic, client):
        topic.publish(b"x", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
        topic.publish(b"y", properties={"a": "b"}, partition_key="k", event_time=5, ordering_key=b"o")
        async with client.reader("t") as reader:
            first, second = [message async for message in reader.read_to_end()]
            with pytest.raises(BrokerError, match="encrypted"):
                _ = first.data
            assert repr(first) == f"<ReceivedMessage {first.id!r}, {len(first._delivery.data)} bytes, cannot be read>"
            assert (second.data, second.key, second.properties) == (b"y", "k", {"a": "b"})
            assert (second.event_time_ms, second.ordering_key, second.topic) == (5, "o", TOPIC)
            assert second.value() == b"y"
            assert not hasattr(second, "ack")


@virtual_time
async def test_deleted_topics_are_forgotten() -> None:
    """A pattern whose topics come and go uses no more memory, and a topic that is created again is read."""
    async with cluster() as (broker, _, client), client.reader(re.compile("x.*"), discovery_interval=1) as reader:
        for number in range(5):
            name = f"persistent://public/default/x{number % 2}"
            publish(broker.topic(name), range(number, number + 1))
            assert (await reader.read(timeout=9)).data == b"%d" % number
            await asyncio.sleep(number)
            broker.delete(name)
            await asyncio.sleep(3)
        publish(broker.topic("persistent://public/default/x9"), range(9, 10))
        assert (await reader.read(timeout=9)).data == b"9"
        await asyncio.sleep(3)
        assert list(reader._read) == ["persistent://public/default/x9"]
        assert list(reader._acked) == ["persistent://public/default/x9"]
        assert len(reader.positions()) == 1
