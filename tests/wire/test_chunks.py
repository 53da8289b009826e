"""Assembling chunked messages: order, duplicates, limits; pure, and by a topic's consumer on a scripted broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.ids import Position
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._chunks import AbandonedMessage, ChunkAssembler, ChunkedMessage
from pulsar_nack.wire._protocol._compression import compress
from tests.wire.consuming import Consuming, Ended, consuming
from tests.wire.fake_topics import FakeEntry, metadata_of
from tests.wire.frames import message_rest

Part = tuple[pb.MessageMetadata, Position, bytes]


def part(index: int, entry: int, payload: bytes = b"x", *, uuid: str = "u", count: int = 3, total: int = 3) -> Part:
    """Return a chunk."""
    metadata = pb.MessageMetadata(
        uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=total, sequence_id=0
    )
    return metadata, Position(1, entry), payload


def content(message: ChunkedMessage | None) -> tuple[tuple[Position, ...], bytes | None]:
    """Return the positions and the payload of a complete message."""
    assert message is not None
    return tuple(message.positions()), message.payload()


def chunks(most: int = 10, max_bytes: int = 1_000, timeout_ms: int = 1_000) -> ChunkAssembler:
    """Return an assembler for chunked messages."""
    return ChunkAssembler(most, max_bytes, timeout_ms)


def back(there: ChunkAssembler, now_ms: int) -> list[Position]:
    """Return the entries that go back now."""
    return [position for each in there.take_abandoned(now_ms) for position in each.positions]


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=3))
def test_any_order_and_copies(order: list[int], copies: list[int]) -> None:
    """In any order of chunks, and with any duplicates, the last missing chunk completes the message."""
    there = chunks()
    arriving = [*order[:3], *(each for each in copies if each in order[:3]), order[3]]
    wholes = [there.add(*part(index, index, b"%d" % index, count=4, total=4), 0) for index in arriving]
    assert wholes[:-1] == [None] * (len(wholes) - 1)
    assert content(wholes[-1]) == (tuple(Position(1, index) for index in range(4)), b"0123")
    assert (len(there), there.bytes, there.next_at()) == (0, 0, None)


def test_messages_mixed() -> None:
    """Chunks of several messages may be interleaved."""
    there = chunks()
    assert there.add(*part(0, 0, b"a", uuid="a", count=2, total=2), 0) is None
    assert there.add(*part(0, 1, b"b", uuid="b", count=2, total=2), 0) is None
    assert content(there.add(*part(1, 2, b"A", uuid="a", count=2, total=2), 0)) == (
        (Position(1, 0), Position(1, 2)),
        b"aA",
    )
    assert content(there.add(*part(1, 3, b"B", uuid="b", count=2, total=2), 0)) == (
        (Position(1, 1), Position(1, 3)),
        b"bB",
    )


def test_a_message_that_was_sent_twice() -> None:
    """Chunks that were sent again replace the first ones, whose entries belong to the message too."""
    there = chunks()
    there.add(*part(0, 0, b"a"), 0)
    there.add(*part(1, 1, b"b"), 0)
    there.add(*part(0, 5, b"A"), 0)
    there.add(*part(0, 0, b"a"), 0)
    there.add(*part(1, 6, b"B"), 0)
    whole = there.add(*part(2, 7, b"C"), 0)
    assert content(whole) == (tuple(Position(1, entry) for entry in (0, 1, 5, 6, 7)), b"ABC")
    assert there.bytes == 0


def test_too_many_messages() -> None:
    """The oldest message is abandoned for a new one; its chunks go back, those of the others stay."""
    there = chunks(most=2)
    for entry, uuid in enumerate("abc"):
        there.add(*part(0, entry, uuid=uuid), 0)
    assert (len(there), there.bytes, there.next_at()) == (2, 2, 1_000)
    assert back(there, 999) == []
    assert back(there, 1_000) == [Position(1, entry) for entry in (0, 1, 2)]  # the others expire then


def test_too_many_bytes() -> None:
    """When chunks exceed the memory limit the oldest messages are abandoned."""
    there = chunks(max_bytes=100)
    there.add(*part(0, 0, bytes(60), uuid="a", count=2, total=100), 0)
    there.add(*part(0, 1, bytes(60), uuid="b", count=2, total=100), 0)
    assert back(there, 999) == []
    assert there.bytes == 60
    there.add(*part(0, 2, bytes(101), uuid="c", count=2, total=100), 0)  # a liar
    assert there.bytes <= 100


def test_too_large_for_all_the_room() -> None:
    """The chunks of a message larger than the limit are counted, not kept: it can be reported and acknowledged."""
    there = chunks(max_bytes=100)
    assert there.add(*part(0, 0, bytes(60), count=2, total=120), 0) is None
    assert there.bytes == 0
    assert content(there.add(*part(1, 1, bytes(60), count=2, total=120), 0)) == ((Position(1, 0), Position(1, 1)), None)


def test_parts_that_take_too_long() -> None:
    """A message that is incomplete at its timeout is abandoned then, and not before."""
    there = chunks(timeout_ms=1_000)
    there.add(*part(0, 0, uuid="a"), 0)
    there.add(*part(1, 1, uuid="a"), 900)
    there.add(*part(0, 2, uuid="b"), 500)
    assert there.next_at() == 1_000
    assert there.take_abandoned(999) == []
    assert there.take_abandoned(1_000) == [AbandonedMessage("a", [Position(1, 0), Position(1, 1)], 2, 3, 1)]
    assert there.next_at() == 1_500
    there.clear()
    assert (there.next_at(), there.bytes) == (None, 0)


def test_the_same_name_for_another_message() -> None:
    """Chunks with another size or count belong to another message: the first message is abandoned."""
    there = chunks()
    there.add(*part(0, 0, b"a"), 0)
    assert there.add(*part(0, 1, b"b", count=2, total=2), 0) is None
    assert content(there.add(*part(1, 2, b"c", count=2, total=2), 0)) == ((Position(1, 1), Position(1, 2)), b"bc")
    assert back(there, 1_000) == [Position(1, 0)]


def test_each_time_it_is_given_up_a_message_gets_more_time() -> None:
    """The timeout doubles, up to 64 times, and completion resets it; the number of remembered messages is bounded."""
    there, now_ms = chunks(timeout_ms=1_000), 0
    for doublings in [0, 1, 2, 3, 4, 5, 6, 6]:
        there.add(*part(0, 0), now_ms)
        there.add(*part(0, 1, uuid="other", count=1, total=1), now_ms)
        assert there.next_at() == now_ms + (1_000 << doublings)
        now_ms += 1_000 << doublings
        assert back(there, now_ms) == [Position(1, 0)]
    for index in range(3):
        there.add(*part(index, index), now_ms)
    there.add(*part(0, 5), now_ms)
    assert there.next_at() == now_ms + 1_000
    for number in range(3_000):
        there.add(*part(0, number, uuid=f"{number}"), now_ms)
    assert len(there._times_abandoned) == 1_000


def test_what_there_is_no_room_for_goes_back_later_and_later() -> None:
    """Abandoned chunks go back together after a second, then two, four, and so on, never later than the timeout."""
    there, now_ms = chunks(most=1, timeout_ms=5_000), 0
    for pause_ms in (1_000, 2_000, 4_000, 5_000, 5_000, 1_000):
        if now_ms > 15_000:
            there.add(*part(0, 9, uuid="whole", count=1, total=1), now_ms)
        there.add(*part(0, 0, uuid="a"), now_ms)
        there.add(*part(0, 1, uuid=f"{now_ms}"), now_ms)
        assert there.next_at() == now_ms + pause_ms
        there.add(*part(0, 2, uuid=f"{now_ms}-2"), now_ms + 10)
        assert there.next_at() == now_ms + pause_ms
        assert set(there.positions()) == {Position(1, entry) for entry in (0, 1, 2)}
        now_ms += pause_ms
        assert back(there, now_ms)[:2] == [Position(1, 0), Position(1, 1)]
        there.clear()


# --- through a consumer ---


def publish(made: Consuming, payload: bytes, size: int, *, uuid: str = "u", skip: int = -1, **fields: Any) -> None:
    """Store a message in chunks of ``size`` bytes, all but one."""
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    for index, each in enumerate(parts):
        metadata = metadata_of(uuid=uuid, chunk_id=index, num_chunks_from_msg=len(parts), **fields)
        metadata.total_chunk_msg_size = len(payload)
        if index != skip:
            made.topic.append(message_rest(metadata, each))


@virtual_time
async def test_arrives_whole_and_is_done_whole() -> None:
    """A chunked message is delivered once, acknowledged with all its entries, redelivered whole; permits are right."""
    async with consuming() as made:
        made.topic.publish(b"before")
        publish(made, b"0123456789", 2, properties=None, partition_key="k")
        consumer = await made.open(receiver_queue_size=2)
        before, whole = await made.arrived.take(2)
        assert (whole.data, whole.key, len(whole.id.chunks)) == (b"0123456789", "k", 5)
        assert whole.id.position == made.topic.entries[-1].place
        consumer.redeliver_nowait([whole.id])
        (again,) = await made.arrived.take()
        assert (again.id, again.data, again.redelivery_count) == (whole.id, whole.data, 1)
        await consumer.acknowledge([whole.id])
        assert len(made.subscription.acked) == 5
        told = Ended()
        consumer.acknowledge_soon(before.id, "before", told)
        consumer.acknowledge_soon(whole.id, "whole", told)
        await asyncio.sleep(1)
        assert told == [("before", None), ("whole", None)]
        assert made.permits() in {1, 2}


@pytest.mark.parametrize("codec", [pb.ZLIB, pb.LZ4, pb.ZSTD, pb.SNAPPY])
@virtual_time
async def test_compressed_before_it_was_cut(codec: Any) -> None:
    """The chunks are decompressed together, not one by one."""
    async with consuming() as made:
        data = random.Random(1).randbytes(5_000)
        publish(made, compress(codec, data), 1_000, compression=codec, uncompressed_size=len(data))
        await made.open()
        (whole,) = await made.arrived.take()
        assert whole.data == data


@virtual_time
async def test_chunks_that_cannot_be_read() -> None:
    """Messages that are too large, or have wrong sizes or indexes, are unreadable and can be acknowledged."""
    async with consuming() as made:
        publish(made, bytes(100), 40)
        metadata = metadata_of(uuid="liar", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=5)
        for index in range(2):
            metadata.chunk_id = index
            made.topic.append(message_rest(metadata, b"x"))
        metadata.chunk_id, metadata.uuid = 2, "none"
        made.topic.append(message_rest(metadata, b"x"))
        consumer = await made.open(max_chunked_bytes=99)
        deliveries = await made.arrived.take(3)
        assert ["max_chunked_bytes" in str(each.error) for each in deliveries] == [True, False, False]
        assert str(deliveries[2].error) == "chunk: number 2 of 2"
        await consumer.acknowledge([each.id for each in deliveries])
        assert len(made.subscription.acked) == 6


@virtual_time
async def test_a_part_that_is_missing_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Chunks of a message that is never completed are redelivered, less and less often; one log line says so."""
    async with consuming() as made:
        publish(made, b"0123456789", 2, skip=2)
        consumer = await made.open(receiver_queue_size=2, chunk_timeout=10)
        for number in range(5):
            made.topic.publish(b"%d" % number)
        assert len(await made.arrived.take(5)) == 5
        began_at = asyncio.get_running_loop().time()
        await asyncio.sleep(10 * 2**9)
        told = [call for call in made.broker.calls if call.kind == "REDELIVER_UNACKNOWLEDGED_MESSAGES"]
        assert [len(call.body.message_ids) for call in told] == [4] * 13
        gaps = [round(call.at - began_at, -1) for call in told[:8]]
        assert gaps == [10, 30, 70, 150, 310, 630, 1_270, 1_910]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "4 of 5 chunks" in caplog.text
        assert made.subscription.acked == set()
        assert made.permits() in {1, 2}
        assert consumer.is_connected


@virtual_time
async def test_more_messages_mixed_than_there_is_room_for() -> None:
    """Messages that were abandoned for others are delivered whole later."""
    async with consuming() as made:
        entries: list[FakeEntry] = []
        for index in range(3):
            for number in range(6):
                metadata = metadata_of(uuid=f"u{number}", chunk_id=index, num_chunks_from_msg=3)
                metadata.total_chunk_msg_size = 3
                entries.append(made.topic.append(message_rest(metadata, b"%d" % number)))
        consumer = await made.open(max_pending_chunked=4)
        seen: set[bytes] = set()
        async with asyncio.timeout(600):
            while len(seen) < 6:
                (whole,) = await made.arrived.take()
                await consumer.acknowledge([whole.id])
                seen.add(whole.data)
        assert len(made.subscription.acked) == 18


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_what_goes_back_together_goes_in_one_command(kind: Any) -> None:
    """Three messages lack their last chunks; on Exclusive each command requests all messages again."""
    async with consuming() as made:
        for uuid in "abc":
            publish(made, b"0123456789", 2, uuid=uuid, skip=2)
        await made.open(type=kind, chunk_timeout=5)
        await asyncio.sleep(7)
        assert len(made.broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")) == 1
