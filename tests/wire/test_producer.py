"""Producers on a scripted broker and virtual time: what is stored, in which order, and how failures end."""

from __future__ import annotations

import asyncio
import enum
import random
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, InvalidArgumentError, MessageId, WouldBlockError
from pulsar_nack.errors import BrokerRefusedError, RequestTimeoutError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._producer._producer import Producer
from pulsar_nack.wire._protocol._entries import unpack
from tests.for_each import for_each
from tests.wire.consuming import TOPIC
from tests.wire.fake_broker import Call, as_usual, carried_out_then_cut, cut, found_at, later, refuse, silence
from tests.wire.frames import decode_entry, messages_of
from tests.wire.producing import Made, producing

NUMBERS = [b"%d" % number for number in range(20)]


async def sent(producer: Producer, payloads: list[bytes], **about: Any) -> list[MessageId]:
    """Send all messages at once, and return their ids."""
    return await asyncio.gather(*(producer.send(payload, **about) for payload in payloads))


@virtual_time
async def test_a_message_is_stored_with_all_that_it_has() -> None:
    """The broker has payload, properties, keys and times as they were given; the id is the entry's."""
    async with producing() as made:
        producer = await made.open()
        id_ = await producer.send(
            b"data",
            properties={"a": "1", "ü": "ß"},
            key="k",
            ordering_key=b"\xff",
            event_time_ms=17,
            deliver_at_ms=123,
            replicate_to=["west"],
        )
        assert (id_, id_.topic) == (MessageId(7, 0), TOPIC)
        entry = decode_entry(made.rests()[0])
        (message,) = messages_of(entry)
        assert (message.payload, message.properties, message.key) == (b"data", {"a": "1", "ü": "ß"}, "k")
        metadata = entry.metadata
        assert (metadata.ordering_key, metadata.event_time, metadata.deliver_at_time) == (b"\xff", 17, 123)
        assert list(metadata.replicate_to) == ["west"]
        assert metadata.producer_name == producer.name


class Name(str, enum.Enum):  # noqa: UP042 - whose str() is not its text
    """Names of an application."""

    TRACE = "trace-id"


@virtual_time
async def test_texts_of_a_subclass_of_str() -> None:
    """A str enum is sent as its text: in properties, keys and clusters."""
    async with producing() as made:
        producer = await made.open()
        await producer.send(b"", properties={Name.TRACE: Name.TRACE}, key=Name.TRACE, replicate_to=[Name.TRACE])
        entry = decode_entry(made.rests()[0])
        (message,) = messages_of(entry)
        assert (message.properties, message.key) == ({"trace-id": "trace-id"}, "trace-id")
        assert list(entry.metadata.replicate_to) == ["trace-id"]


@virtual_time
async def test_keys_of_bytes_and_messages_without_a_value() -> None:
    """A key of bytes is sent as base64 with a flag; a message without a value has a flag too."""
    async with producing() as made:
        producer = await made.open()
        await producer.send(None, key=b"\x00\xff")
        metadata = made.metadata()[0]
        assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("AP8=", True)
        assert metadata.null_value


@virtual_time
async def test_messages_are_stored_in_the_order_of_sending() -> None:
    """Messages sent at once are stored in order, with rising sequence ids."""
    async with producing() as made:
        producer = await made.open()
        ids = await sent(producer, NUMBERS)
        assert made.stored() == NUMBERS
        assert ids == [MessageId(7, entry) for entry in range(20)]
        assert [metadata.sequence_id for metadata in made.metadata()] == list(range(20))
        assert producer.last_sequence_id == 19
        assert producer.pending == 0


@virtual_time
async def test_a_batch_is_full_by_number() -> None:
    """Full batches are sent at once, the rest after the delay; ids have the index and the size of their batch."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_max_messages=8, batch_delay=5)
        began = made.context.loop.time()
        ids = await sent(producer, NUMBERS)
        assert made.context.loop.time() - began == pytest.approx(5, abs=0.1)
        assert made.stored() == NUMBERS
        assert [metadata.num_messages_in_batch for metadata in made.metadata()] == [8, 8, 4]
        assert [(metadata.sequence_id, metadata.highest_sequence_id) for metadata in made.metadata()] == [
            (0, 7),
            (8, 15),
            (16, 19),
        ]
        assert ids == [MessageId(7, number // 8, -1, number % 8) for number in range(20)]
        assert [id_.batch_size for id_ in ids] == [8] * 16 + [4] * 4


@virtual_time
async def test_a_batch_is_full_by_bytes_and_one_message_is_none() -> None:
    """A message that does not fit goes into the next batch; a batch of one is sent as a plain message."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_max_bytes=1_000)
        ids = await sent(producer, [b"a" * 300, b"b" * 300, b"c" * 500, b"d" * 5_000])
        assert [(id_.entry, id_.batch_index) for id_ in ids] == [(0, 0), (0, 1), (1, -1), (2, -1)]


@virtual_time
async def test_a_batch_is_never_too_large_for_the_broker() -> None:
    """Batches end at the broker's limit, whatever the settings are, with many properties and large keys too."""
    async with producing() as made:
        made.broker.max_message_bytes = 4_096
        producer = await made.open(batching=True, batch_max_bytes=1 << 20)
        properties = {str(number): "" for number in range(50)}
        await sent(producer, [b"x" * 100] * 100)
        await sent(producer, [b""] * 100, properties=properties)
        await sent(producer, [b""] * 100, key="☃" * 300, ordering_key="o" * 300)
        assert len(made.stored()) == 300
        assert all(len(rest) < 4_096 + 2_000 for rest in made.rests())


@virtual_time
async def test_flush_sends_batches_and_waits() -> None:
    """After a flush earlier messages are stored, long before the batch delay."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_delay=60)
        futures = [producer.send_nowait(payload) for payload in NUMBERS]
        await producer.flush()
        assert all(future.done() for future in futures)
        assert made.stored() == NUMBERS
        assert made.context.loop.time() < 1


@virtual_time
async def test_batches_by_key() -> None:
    """Each batch has the messages of one key, in order, and the entry has the key too."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_by_key=True)
        await asyncio.gather(*(producer.send(payload, key=f"k{number % 3}") for number, payload in enumerate(NUMBERS)))
        entries = [decode_entry(rest) for rest in made.rests()]
        assert [entry.metadata.partition_key for entry in entries] == ["k0", "k1", "k2"]
        for number, entry in enumerate(entries):
            messages = list(messages_of(entry))
            assert [message.payload for message in messages] == NUMBERS[number::3]
            assert {message.key for message in messages} == {f"k{number}"}
        ranges = [(entry.metadata.sequence_id, entry.metadata.highest_sequence_id) for entry in entries]
        assert ranges == [(0, 6), (7, 13), (14, 19)]


@virtual_time
async def test_a_delayed_message_goes_alone_and_keeps_its_place() -> None:
    """A message that cannot be batched is sent as one entry, after the open batch."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_delay=60)
        before = [producer.send_nowait(payload) for payload in (b"a", b"b")]
        await producer.send(b"c", deliver_after=5)
        await asyncio.gather(*before)
        assert made.stored() == [b"a", b"b", b"c"]
        delayed = made.metadata()[1]
        assert delayed.deliver_at_time - delayed.publish_time == pytest.approx(5_000, abs=1_000)


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
@virtual_time
async def test_compression(compression: str) -> None:
    """Single messages, batches and empty ones are equal when read, with each codec."""
    async with producing() as made:
        producer = await made.open(compression=compression, batching=True)
        await sent(producer, [b"x" * 10_000, b"", b"y"])
        await producer.send(b"z" * 10_000, deliver_at_ms=1)
        await producer.send(b"", deliver_at_ms=1)
        assert made.stored() == [b"x" * 10_000, b"", b"y", b"z" * 10_000, b""]
        assert (len(made.rests()[1]) < 1_000) == (compression != "none")


@pytest.mark.parametrize("compression", ["none", "zlib"])
@virtual_time
async def test_chunks(compression: str) -> None:
    """A message that is too large is sent in chunks that are not; the id knows all of them."""
    payload = random.Random(1).randbytes(10_000)
    async with producing() as made:
        made.broker.max_message_bytes = 4_096
        producer = await made.open(chunking=True, compression=compression)
        small = await producer.send(b"small")
        id_ = await producer.send(payload, properties={"a": "b"})
        assert small.parts == ((7, 0),)
        assert id_.parts == ((7, 1), (7, 2), (7, 3))
        assert id_.first_chunk == MessageId(7, 1)
        metadata = made.metadata()[1:]
        assert [(each.chunk_id, each.num_chunks_from_msg) for each in metadata] == [(0, 3), (1, 3), (2, 3)]
        assert len({each.uuid for each in metadata}) == 1
        assert all(len(rest) <= 4_096 + 10 for rest in made.rests())
        whole = b"".join(decode_entry(rest).payload for rest in made.rests()[1:])
        assert len(whole) == metadata[0].total_chunk_msg_size
        assert unpack(metadata[0], whole, 1 << 20) == payload


@virtual_time
async def test_a_message_that_is_too_large_is_refused() -> None:
    """Without chunking it is refused before anything is sent, in a batch too, and other messages are stored."""
    async with producing() as made:
        made.broker.max_message_bytes = 4_096
        for batching in (False, True):
            producer = await made.open(batching=batching)
            with pytest.raises(InvalidArgumentError, match="data: expected at most 4096 bytes"):
                await producer.send(b"x" * 5_000)
            with pytest.raises(InvalidArgumentError, match="properties"):
                await producer.send(b"", properties={"a": "x" * 50_000})
            await producer.send(b"x")
            assert producer.pending == 0
        assert made.stored() == [b"x", b"x"]


@virtual_time
async def test_what_was_not_confirmed_is_sent_again() -> None:
    """After a lost connection all unconfirmed messages are sent again in order; deduplication drops stored ones."""
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(batching=True, batch_max_messages=3)
        await sent(producer, [b"first"])
        made.broker.next("SEND", carried_out_then_cut)
        ids = await sent(producer, NUMBERS)
        assert made.stored() == [b"first", *NUMBERS]
        assert ids[:3] == [MessageId(-1, -1, -1, index) for index in range(3)]
        assert ids[3:] == [MessageId(7, 1 + number // 3, -1, number % 3) for number in range(3, 20)]
        assert len({command.producer_name for command in made.broker.commands("PRODUCER")[1:]}) == 1
        assert [command.epoch for command in made.broker.commands("PRODUCER")] == [0, 1]


@virtual_time
async def test_parts_of_a_message_survive_a_lost_connection() -> None:
    """Unconfirmed chunks are sent again after the confirmed ones; the message arrives whole."""
    payload = random.Random(1).randbytes(20_000)
    async with producing() as made:
        made.broker.max_message_bytes = 4_096
        producer = await made.open(chunking=True)
        made.broker.next("SEND", as_usual, as_usual, cut)
        id_ = await producer.send(payload)
        entries = [decode_entry(rest) for rest in made.rests()]
        parts = {entry.metadata.chunk_id: entry.payload for entry in entries}
        assert b"".join(parts[number] for number in sorted(parts)) == payload
        assert len(id_.parts) == len(parts)
        assert id_.entry == len(entries) - 1


@virtual_time
async def test_connections_that_break_at_any_time_lose_nothing() -> None:
    """Whatever breaks, before or after it is carried out, all is stored in order, once with deduplication."""
    for seed in range(30):
        chance = random.Random(seed)
        async with producing(backoff_minimum=0.01, backoff_maximum=0.1) as made:
            made.broker.deduplicates = True
            producer = await made.open(batching=chance.random() < 0.5, batch_max_messages=3)
            made.broker.next(
                "SEND",
                *chance.choices([as_usual, cut, carried_out_then_cut], [4, 1, 1], k=12),
            )
            made.broker.next("PRODUCER", *chance.choices([as_usual, cut, refuse("ServiceNotReady")], k=2))
            tasks = []
            for payload in NUMBERS:
                tasks.append(asyncio.ensure_future(producer.send(payload)))
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.01)))
            await asyncio.gather(*tasks)
            assert made.stored() == NUMBERS
            assert producer.pending == 0


@virtual_time
async def test_a_topic_that_moves() -> None:
    """A producer follows its topic to another broker, at once if the broker names it."""
    async with producing() as made:
        producer = await made.open()
        await producer.send(b"a")
        for number, is_told in enumerate((False, True)):
            made.broker.move(TOPIC, f"pulsar://other{number}:6650", tell_where=is_told)
            began = made.context.loop.time()
            await producer.send(b"b")
            assert (made.context.loop.time() - began < 0.02) == is_told
        assert made.stored() == [b"a", b"b", b"b"]


@virtual_time
async def test_a_topic_that_moves_behind_a_proxy() -> None:
    """The broker's own address cannot be reached from outside: the lookup goes through the proxy."""
    async with producing() as made:
        inside = "pulsar://inside:6650"
        made.broker.node(inside).hangs = True
        made.broker.always("LOOKUP", found_at(inside, through_proxy=True))
        producer = await made.open()
        for link in made.broker.links:
            link.close_users_of(made.topic, inside)
        await producer.send(b"a")
        assert made.context.loop.time() < 1
        assert set(made.broker.dialled) == {made.broker.url}


@virtual_time
async def test_a_refused_message_fails_alone() -> None:
    """A message that the broker refuses for good raises the broker's error; the messages around it are stored."""
    async with producing() as made:
        producer = await made.open()
        made.broker.next("SEND", as_usual, refuse("NotAllowedError", "no such thing"))
        results = await asyncio.gather(*(producer.send(payload) for payload in NUMBERS), return_exceptions=True)
        assert isinstance(results[1], BrokerRefusedError)
        assert (results[1].code, results[1].text) == ("NotAllowedError", "no such thing")
        assert made.stored() == [NUMBERS[0], *NUMBERS[2:]]
        assert producer.pending == 0


@pytest.mark.parametrize("code", ["PersistenceError", "ChecksumError", "ServiceNotReady"])
@virtual_time
async def test_a_message_is_sent_again_where_that_may_help(code: str) -> None:
    """Transient errors are not raised: the message is sent again, with the same name and sequence id."""
    async with producing() as made:
        producer = await made.open()
        made.broker.next("SEND", refuse(code), refuse(code))
        await producer.send(b"a", sequence_id=17)
        assert made.stored() == [b"a"]
        assert [command.sequence_id for command in made.broker.commands("SEND")] == [17] * 3


@pytest.mark.parametrize("chunking", [False, True])
@virtual_time
async def test_a_damaged_message_that_is_dropped_as_a_duplicate(chunking: bool) -> None:
    """If later ones were stored, a deduplicating broker drops it when it is sent again: that is no success."""
    async with producing() as made:
        made.broker.deduplicates = True
        producer = await made.open(name="p", chunking=chunking, chunk_max_bytes=1_024)
        payloads = [b"0", b"1" * (3_000 if chunking else 1), b"2"]
        made.broker.next("SEND", as_usual, *[as_usual] * chunking, refuse("ChecksumError"))
        results = await asyncio.gather(*(producer.send(payload) for payload in payloads), return_exceptions=True)
        assert isinstance(results[1], BrokerError)
        assert "does not say whether message 1 is stored" in str(results[1])
        assert all(isinstance(result, MessageId) for result in results[::2])
        made.broker.next("SEND", refuse("ChecksumError"))
        assert (await producer.send(b"3")).ledger == 7  # nothing came after it


@virtual_time
async def test_a_terminated_topic_ends_a_producer() -> None:
    """All unconfirmed messages fail, and later ones at once."""
    async with producing() as made:
        producer = await made.open()
        made.broker.next("SEND", refuse("TopicTerminatedError", "over"))
        results = await asyncio.gather(*(producer.send(payload) for payload in NUMBERS[:3]), return_exceptions=True)
        assert [getattr(result, "code", None) for result in results] == ["TopicTerminatedError"] * 3
        with pytest.raises(BrokerRefusedError, match="over"):
            await producer.send(b"later")


@virtual_time
async def test_a_broker_that_is_silent() -> None:
    """A message that is not confirmed fails after the timeout, and its late receipt has no effect."""
    async with producing() as made:
        producer = await made.open(send_timeout=10)
        made.broker.next("SEND", later(12))
        with pytest.raises(RequestTimeoutError, match="not confirmed within 10 s"):
            await producer.send(b"late")
        assert made.context.loop.time() == pytest.approx(10, abs=0.1)
        await producer.send(b"next")
        await asyncio.sleep(5)
        await producer.send(b"last")
        assert sorted(made.stored()) == [b"last", b"late", b"next"]
        assert len(made.broker.commands("PRODUCER")) == 1


@virtual_time
async def test_a_broker_that_is_gone_for_too_long() -> None:
    """The timeout applies without a connection too, and its error names the reason; later messages are stored."""
    async with producing(backoff_maximum=1) as made:
        producer = await made.open(send_timeout=10)
        node = made.broker.node(made.broker.url)
        node.kill()
        with pytest.raises(RequestTimeoutError, match="nobody listens"):
            await producer.send(b"lost")
        node.start()
        await producer.send(b"kept")
        assert made.stored() == [b"kept"]


@virtual_time
async def test_room_for_unconfirmed_messages() -> None:
    """Calls wait while there is no room, in order; the message of a cancelled one is not sent."""
    async with producing() as made:
        made.broker.latency = 0.5
        producer = await made.open(max_pending_messages=2)
        tasks = [asyncio.ensure_future(producer.send(payload)) for payload in NUMBERS[:6]]
        await asyncio.sleep(0.1)
        assert producer.pending == 2
        with pytest.raises(WouldBlockError):
            producer.send_nowait(b"more")
        tasks[3].cancel()
        await asyncio.wait(tasks)
        assert made.stored() == [NUMBERS[number] for number in (0, 1, 2, 4, 5)]
        assert producer.pending == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
@virtual_time
async def test_no_later_call_overtakes_one_that_gets_room(is_cancelled: bool) -> None:
    """A receipt makes room for a waiting call, and more: a call that comes before that one continues is second."""
    async with producing() as made:
        producer = await made.open(max_pending_messages=2, batching=True)
        first, _ = [producer.send_nowait(payload) for payload in NUMBERS[:2]]
        waiting = asyncio.create_task(producer.send(NUMBERS[2], sequence_id=2))
        await asyncio.sleep(0)
        await first
        if is_cancelled:
            waiting.cancel()
        with pytest.raises(WouldBlockError):
            producer.send_nowait(NUMBERS[3], sequence_id=3)
        await producer.send(NUMBERS[3], sequence_id=3)
        await asyncio.wait([waiting])
        assert made.stored() == [NUMBERS[number] for number in (0, 1, 2, 3) if number != 2 or not is_cancelled]
        assert await producer.send_nowait(b"later") == MessageId(7, 2)


@virtual_time
async def test_room_in_bytes_lets_a_large_message_in_alone() -> None:
    """A message larger than the whole limit waits until it is the only one."""
    async with producing() as made:
        producer = await made.open(max_pending_bytes=1_000)
        made.broker.always("SEND", later(1))
        tasks = [asyncio.ensure_future(producer.send(b"x" * size)) for size in (500, 5_000, 500)]
        await asyncio.sleep(0.5)
        assert [len(call.rest) // 500 for call in made.broker.calls if call.kind == "SEND"] == [1]
        await asyncio.gather(*tasks)
        assert [len(payload) for payload in made.stored()] == [500, 5_000, 500]


@virtual_time
async def test_a_producer_waits_its_turn() -> None:
    """With "wait_for_exclusive" it opens when the other one closes, even an hour later; a silent broker is given up."""

    def let_wait(call: Call) -> None:
        call.reply("PRODUCER_SUCCESS", producer_name="p", producer_ready=False)
        later(3_600)(call)

    async with producing() as made:
        made.broker.next("PRODUCER", refuse("ServiceNotReady"), let_wait)
        producer = await made.open(access_mode="wait_for_exclusive")
        assert made.context.loop.time() == pytest.approx(3_600, abs=1)
        assert await producer.send(b"") == MessageId(7, 0)
        made.broker.always("PRODUCER", silence)
        with pytest.raises(RequestTimeoutError):
            await made.open(access_mode="wait_for_exclusive")
        assert made.context.loop.time() == pytest.approx(3_630, abs=1)


@virtual_time
async def test_a_producer_that_is_closed_while_it_waits_its_turn() -> None:
    """A broker that unloads the topic while a producer waits sends no answer: the producer tries again."""

    def let_wait_and_close(call: Call) -> None:
        call.reply("PRODUCER_SUCCESS", producer_name="p", producer_ready=False)
        call.reply("CLOSE_PRODUCER", producer_id=call.body.producer_id, request_id=0)

    async with producing() as made:
        producer = await made.open(access_mode="wait_for_exclusive")
        made.broker.next("PRODUCER", let_wait_and_close, let_wait_and_close)
        made.broker.unload(TOPIC)
        assert await producer.send(b"") == MessageId(7, 0)
        made.broker.next("PRODUCER", let_wait_and_close)
        await made.open(access_mode="wait_for_exclusive")


@virtual_time
async def test_closing_sends_what_there_is() -> None:
    """Messages in an open batch are stored before the producer closes; later calls are refused."""
    async with producing() as made:
        producer = await made.open(batching=True, batch_delay=60)
        futures = [producer.send_nowait(payload) for payload in NUMBERS]
        await producer.aclose()
        assert [await future for future in futures] == [MessageId(7, 0, -1, index) for index in range(20)]
        with pytest.raises(ClosedError):
            await producer.send(b"")
        await producer.aclose()
        assert len(made.broker.commands("CLOSE_PRODUCER")) == 1


@virtual_time
async def test_closing_on_a_silent_broker_ends() -> None:
    """Messages that are not confirmed within a few seconds fail with the producer."""
    async with producing() as made:
        producer = await made.open()
        made.broker.always("SEND", silence)
        made.broker.always("CLOSE_PRODUCER", silence)
        future = producer.send_nowait(b"")
        await producer.aclose()
        assert made.context.loop.time() < 6
        with pytest.raises(ClosedError):
            await future


@virtual_time
async def test_a_slow_broker_is_not_flooded() -> None:
    """While the broker does not read, no more than the buffer's limit and one message are written."""
    async with producing(write_buffer_bytes=64 << 10) as made:
        producer = await made.open()
        (link,) = made.broker.links
        link.transport.stall()
        futures = [producer.send_nowait(b"x" * 10_000) for _ in range(100)]
        await asyncio.sleep(1)
        assert link.transport.get_write_buffer_size() < 90_000
        link.transport.go_on()
        await asyncio.gather(*futures)
        assert len(made.stored()) == 100


@virtual_time
async def test_opening_is_tried_again() -> None:
    """Transient errors are retried; others are raised with the broker's text."""
    async with producing() as made:
        made.broker.next("PRODUCER", refuse("ServiceNotReady"), cut)
        await made.open()
        made.broker.next("PRODUCER", refuse("AuthorizationError", "not you"))
        with pytest.raises(BrokerRefusedError, match="AuthorizationError: not you"):
            await made.open()


@virtual_time
async def test_sequence_ids_go_on_after_those_of_an_earlier_producer() -> None:
    """A producer continues after the last sequence id of its name; an old sequence id is not stored again."""
    async with producing() as made:
        made.broker.deduplicates = True
        first = await made.open(name="p")
        await sent(first, NUMBERS[:3])
        await first.aclose()
        second = await made.open(name="p")
        assert second.last_sequence_id == 2
        assert await second.send(b"again", sequence_id=1) == MessageId(-1, -1)
        await second.send(b"next")
        assert made.stored() == [*NUMBERS[:3], b"next"]


async def _partitioned(made: Made, count: int) -> None:
    made.broker.partitions[TOPIC] = count


def _by_partition(made: Made, count: int) -> list[list[bytes]]:
    return [made.stored(f"{TOPIC}-partition-{number}") for number in range(count)]


@virtual_time
async def test_partitions_in_turn_and_by_key() -> None:
    """Messages without a key go to all partitions in turn, those of a key to one, as with every other client."""
    async with producing() as made:
        await _partitioned(made, 3)
        producer = await made.open()
        ids = await sent(producer, NUMBERS[:9])
        assert [len(stored) for stored in _by_partition(made, 3)] == [3, 3, 3]
        assert {id_.partition for id_ in ids} == {0, 1, 2}
        keyed = await sent(producer, NUMBERS[:4], key="order-17")
        assert {(id_.partition, id_.topic) for id_ in keyed} == {(2, f"{TOPIC}-partition-2")}


@virtual_time
async def test_partitions_are_filled_batch_by_batch() -> None:
    """With batching a partition keeps getting messages until its batch is sent."""
    async with producing() as made:
        await _partitioned(made, 2)
        producer = await made.open(batching=True, batch_max_messages=5)
        await sent(producer, NUMBERS)
        assert sorted(map(len, _by_partition(made, 2))) == [10, 10]
        assert sum(len(made.rests(f"{TOPIC}-partition-{number}")) for number in range(2)) == 4


@virtual_time
async def test_partitions_that_are_added_are_used() -> None:
    """A topic that gets more partitions gets messages in them after a while."""
    async with producing() as made:
        await _partitioned(made, 1)
        producer = await made.open()
        await producer.send(b"a")
        await _partitioned(made, 2)
        await asyncio.sleep(61)
        await sent(producer, [b"b", b"c"])
        assert sorted(map(len, _by_partition(made, 2))) == [1, 2]


@virtual_time
async def test_a_partition_that_cannot_be_opened_closes_the_others() -> None:
    """The broker's error for one partition is raised, and nothing stays open."""
    async with producing() as made:
        await _partitioned(made, 3)
        made.broker.next("PRODUCER", as_usual, refuse("AuthorizationError", "not there"), as_usual)
        with pytest.raises(BrokerRefusedError, match="not there"):
            await made.open()
        await asyncio.sleep(1)
        assert all(not link.producers for link in made.broker.links)


@for_each(
    ("about", "named"),
    [
        ({"properties": {"a": 1}}, "properties"),
        ({"properties": [("a", "b")]}, "properties"),
        ({"properties": {"a": "\ud800"}}, "properties"),
        ({"key": 1}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"ordering_key": 1}, "ordering_key"),
        ({"ordering_key": "\ud800"}, "ordering_key"),
        ({"event_time_ms": -1}, "event_time_ms"),
        ({"deliver_at_ms": 1.5}, "deliver_at_ms"),
        ({"deliver_at_ms": 1_764_570_000}, "deliver_at_ms"),  # seconds
        ({"deliver_after": -1}, "deliver_after"),
        ({"deliver_after": 1, "deliver_at_ms": 1}, "deliver_after"),
        ({"sequence_id": -1}, "sequence_id"),
        ({"replicate_to": "west"}, "replicate_to"),
        ({"replicate_to": ["\ud800"]}, "replicate_to"),
    ],
)
@virtual_time
async def test_wrong_arguments_are_named(about: dict[str, Any], named: str) -> None:
    """A message with an invalid argument is refused by name, and takes no room."""
    async with producing() as made:
        producer = await made.open()
        with pytest.raises(InvalidArgumentError) as caught:
            await producer.send(b"", **about)
        assert caught.value.field == named
        assert producer.pending == 0


@virtual_time
async def test_only_bytes_are_sent() -> None:
    """A str is refused, because its encoding is unknown; other bytes-like objects are copied."""
    async with producing() as made:
        producer = await made.open()
        with pytest.raises(InvalidArgumentError, match="data"):
            await producer.send("text")  # type: ignore[arg-type]
        data = bytearray(b"abc")
        sending = asyncio.ensure_future(producer.send(data))
        await asyncio.sleep(0)
        data[:] = b"xyz"
        await sending
        await producer.send(memoryview(b"def"))
        assert made.stored() == [b"abc", b"def"]


@pytest.mark.parametrize("kind", ["PARTITIONED_METADATA", "LOOKUP", "PRODUCER"])
@virtual_time
async def test_what_cannot_be_opened_names_the_topic(kind: str) -> None:
    """Any failure says what was attempted, and is the broker's own error with its code."""
    async with producing() as made:
        made.broker.always(kind, refuse("AuthorizationError"))
        with pytest.raises(BrokerRefusedError, match=f"^producing to {TOPIC}: AuthorizationError") as caught:
            await made.open()
        assert caught.value.code == "AuthorizationError"
        made.broker.node(made.broker.url).kill()
        with pytest.raises(BrokerError, match=f"^producing to {TOPIC}: "):
            await made.open()


@virtual_time
async def test_a_name_that_is_taken_is_tried_for_a_moment() -> None:
    """A predecessor's name is taken once it is free, if its connection just broke; else the refusal is raised soon."""
    loop = asyncio.get_running_loop()
    async with producing() as made:
        made.broker.next("PRODUCER", refuse("ProducerBusy"), refuse("ProducerBusy"))
        producer = await made.open(name="me")
        assert producer.is_connected
        before = loop.time()
        with pytest.raises(BrokerRefusedError, match="ProducerBusy"):
            await made.open(name="me")
        assert 0.3 < loop.time() - before <= 1.1
