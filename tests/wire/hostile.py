"""What a hostile broker sends, or a broker that hands on what a hostile publisher has sent.

Scripts for :class:`~tests.wire.fake_broker.FakeBroker`, and frames that claim more than anybody needs. As a program it
serves one of them on loopback, prints the port, and ends with its standard input::

    python -m tests.wire.hostile batch
"""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import google_crc32c

from pulsar_nack.wire import Client, ClientOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.patience import processor_slowness
from tests.wire.fake_broker import Answer, Call, FakeBroker, as_usual
from tests.wire.frames import command, frame, message_rest
from tests.wire.served import served

TOKEN: Final = "SECRET-TOKEN-123"
MADE: Final = 1_000_000
"""Messages in a batch."""


def about(**fields: Any) -> pb.MessageMetadata:
    """Return a message's metadata."""
    return pb.MessageMetadata(**{"producer_name": "evil", "sequence_id": 1, "publish_time": 1, **fields})


def message(consumer_id: int, entry: int, rest: bytes, *, ledger: int = 1, ack_set: Sequence[int] = ()) -> bytes:
    """Return the frame of a message for a consumer."""
    made = command("MESSAGE")
    made.message.consumer_id = consumer_id
    made.message.message_id.ledgerId, made.message.message_id.entryId = ledger, entry
    made.message.ack_set.extend(ack_set)
    return frame(made, rest)


def bomb(count: int = MADE) -> bytes:
    """Return a batch of ``count`` empty messages, nine bytes for a thousand of them."""
    payload = b"\0\0\0\x02\x18\0" * count
    of_batch = about(num_messages_in_batch=count, compression=pb.ZLIB, uncompressed_size=len(payload))
    return message_rest(of_batch, zlib.compress(payload, 9))


def swollen(size: int) -> bytes:
    """Return a message of ``size`` zeros, compressed to a thousandth."""
    packing = zlib.compressobj(1)
    payload = b"".join(packing.compress(bytes(min(1 << 20, size - at))) for at in range(0, size, 1 << 20))
    return message_rest(about(compression=pb.ZLIB, uncompressed_size=size), payload + packing.flush())


def shattered(blocks: int) -> bytes:
    """Return a message of one byte after many empty blocks of three bytes each in a zstd frame."""
    payload = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(3 * blocks) + b"\x09\x00\x00x"
    return message_rest(about(compression=pb.ZSTD, uncompressed_size=1), payload)


def with_properties(count: int) -> bytes:
    """Return a message with ``count`` properties."""
    return with_metadata(about().SerializeToString() + b"\x22\x06\x0a\x01a\x12\x01b" * count)


def with_empty_properties(count: int) -> bytes:
    """Return a message with ``count`` properties without name and value, in two bytes each."""
    return with_metadata(about().SerializeToString() + b"\x22\x00" * count)


def batch_with_properties(count: int, each: int) -> bytes:
    """Return a batch of messages with ``count`` properties each."""
    single = b"\x0a\x06\x0a\x01a\x12\x01b" * each + b"\x18\x00"
    return message_rest(about(num_messages_in_batch=count), (struct.pack(">I", len(single)) + single) * count)


def chunk(uuid: str, index: int = 0, count: int = 2, payload: bytes = b"xx") -> bytes:
    """Return the first chunk of a message that is never completed."""
    of_chunk = about(uuid=uuid, chunk_id=index, num_chunks_from_msg=count, total_chunk_msg_size=4)
    return message_rest(of_chunk, payload)


def with_metadata(metadata: bytes, payload: bytes = b"x") -> bytes:
    """Return a message with these bytes as its metadata."""
    checked = struct.pack(">I", len(metadata)) + metadata + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(checked)) + checked


def sends(*frames: Callable[[int], bytes]) -> Answer:
    """Answer the first permits of each consumer with these frames, made for its id, and later ones not at all.

    A consumer of a topic named ``warm`` gets nothing.
    """
    seen: set[tuple[int, int]] = set()

    def answer(call: Call) -> None:
        consumer_id = call.body.consumer_id
        subscription, _ = call.link.consumers.get(consumer_id, (None, None))
        is_warm = subscription is not None and subscription.topic.name.endswith("/warm")
        if not is_warm and (id(call.link), consumer_id) not in seen:
            seen.add((id(call.link), consumer_id))
            for make in frames:
                call.link.transport.deliver(make(consumer_id))

    return answer


def entries(*rests: bytes) -> Answer:
    """Answer the first permits of each consumer with these entries."""
    return sends(
        *(lambda consumer_id, at=at, rest=rest: message(consumer_id, at, rest) for at, rest in enumerate(rests))
    )


def answers(kind: str, **fields: Any) -> Answer:
    """Answer with a command of a kind."""
    return lambda call: call.reply(kind, **fields)


def then(*later: Callable[[Call], None]) -> Answer:
    """Do what a broker does, and then this."""

    def answer(call: Call) -> None:
        as_usual(call)
        for each in later:
            each(call)

    return answer


class Blocked:
    """The longest callback of the loop, in ms of the thread's processor time."""

    longest_ms = 0.0

    def check(self) -> None:
        """Check that no callback took much more than 20 ms, the benchmark's limit."""
        assert self.longest_ms < 50 * processor_slowness()


@contextmanager
def blocked() -> Iterator[Blocked]:
    """Measure, without the collector, which would also walk pytest's objects."""
    found, ran = Blocked(), asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time_ns()
        ran(handle)
        found.longest_ms = max(found.longest_ms, (time.thread_time_ns() - began) / 1e6)

    asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
    gc.disable()
    try:
        yield found
    finally:
        gc.enable()
        asyncio.Handle._run = ran  # type: ignore[method-assign]


def client_of(broker: FakeBroker, **options: Any) -> Client:
    """Return a client; for a broker with TLS one that has a token."""
    return Client(broker.url, ClientOptions(request_timeout=3, **options), dial=broker.dial)


def assert_fit(text: str) -> None:
    """Assert that a text may be shown on a terminal and in a log."""
    assert text.isprintable()
    assert len(text) < 700


SCRIPTS: Final[dict[str, Callable[[], Iterable[tuple[str, Answer]]]]] = {
    "batch": lambda: [("FLOW", entries(bomb()))],
    "many batches": lambda: [("FLOW", entries(*[bomb(1_000)] * 500))],
    "swollen": lambda: [("FLOW", entries(swollen(128 << 20)))],
    "properties": lambda: [("FLOW", entries(with_properties(500_000)))],
    "batch of properties": lambda: [("FLOW", entries(batch_with_properties(500, 1_000)))],
    "ack set": lambda: [("FLOW", sends(lambda consumer_id: message(consumer_id, 0, bomb(10), ack_set=[-1] * 400_000)))],
    "uuids": lambda: [("FLOW", entries(*(chunk(f"{at:08}" + "u" * 1_000_000) for at in range(200))))],
}


async def serve(name: str) -> None:
    """Serve a script until standard input ends."""
    async with served() as there:
        script(there.broker, name)
        print(there.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def script(broker: FakeBroker, name: str) -> None:
    """Make a broker follow a script."""
    broker.max_message_bytes = 5 << 20
    for kind, answer in SCRIPTS[name]():
        broker.always(kind, answer)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
