"""The cost of the native client's codec, without a broker: bytes to frames, entries and deliveries; commands to bytes.

Run ``python benchmarks/wire_codec.py``; ``--quick`` measures only briefly, ``--save`` stores the table as
``results/wire_codec.md``. Figures are us of work per message, the best of many short rounds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from _report import Report
from _targets import Targets
from _timing import best, thread_ns

from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._consumer._ack_groups import AckGroup
from pulsar_nack.wire._consumer._acknowledger import AckSets
from pulsar_nack.wire._consumer._consumer_session import ack_command, redeliver_command
from pulsar_nack.wire._consumer._deliveries import DeliveryFactory
from pulsar_nack.wire._consumer._entry_reader import READ_AT_ONCE, EntryReader, UnreadEntry
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import encode_batch
from pulsar_nack.wire._protocol._chunks import ChunkAssembler
from pulsar_nack.wire._protocol._compression import compress
from pulsar_nack.wire._protocol._entries import split_entry, unpack
from pulsar_nack.wire._protocol._frames import FrameDecoder, encode_frame, encode_headers_and_payload

FRAMES = 200
BATCH = 1_000
IDS = [(12_345, 70_000 + number) for number in range(1_000)]
COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")
KINDS = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}


def main() -> None:
    """Measure, print, and store the tables on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--save", action="store_true", help="store the figures")
    options = parser.parse_args()
    report, targets = Report("The codec of the native client"), Targets()
    rounds = 5 if options.quick else 300
    single(report, rounds)
    batches(report, targets, rounds)
    commands(report, rounds)
    report.note(targets.summary())
    if options.save:
        report.save("wire_codec")


def each(work: Callable[[], object], count: int, rounds: int) -> float:
    """Return us per message of ``count``."""

    def measure() -> float:
        begun = thread_ns()
        work()
        return (thread_ns() - begun) / count / 1_000

    return best(measure, rounds)


def metadata(**fields: Any) -> pb.MessageMetadata:
    """Return metadata as producers send it."""
    common: dict[str, Any] = {
        "producer_name": "standalone-0-12",
        "sequence_id": 88_888,
        "publish_time": 1_800_000_000_000,
    }
    return pb.MessageMetadata(**common, **fields)


def frame(of_entry: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return a message as the broker sends it."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = 12_345
    command.message.message_id.entryId = 77_777
    command.message.message_id.partition = -1
    return encode_frame(command, encode_headers_and_payload(of_entry, payload))


def reader() -> EntryReader:
    """Return a reader of one topic."""
    topic = "persistent://public/default/orders"
    factory = DeliveryFactory(topic, -1, AckSets(), options=ClientOptions(), threads=None)
    return EntryReader(factory, ChunkAssembler(10, 1 << 20, 1_000), lambda: 0)


def read_all(frames: list[Any], read: EntryReader) -> None:
    """Create deliveries of all frames."""
    for head, rest in frames:
        if (plain := read.plain(head, rest)) is not None:
            read.factory.delivery_of(plain)
            continue
        _, found = read.read_other(head, rest)
        while isinstance(found, UnreadEntry) and found.messages:
            found.take(READ_AT_ONCE)


def read_bytes(data: bytes, read: EntryReader) -> None:
    """Create deliveries from the bytes of a socket."""
    read_all(FrameDecoder().feed(data), read)


def decode_all(frames: list[Any]) -> None:
    """Read all entries."""
    for _, rest in frames:
        entry = split_entry(rest, 256 << 10, 1_000_000)
        unpack(entry.metadata, entry.payload, 128 << 20)


def single(report: Report, rounds: int) -> None:
    """Measure entries of one message of 32 bytes, with only a payload, and with a property and a key."""
    with_more = metadata(properties=[pb.KeyValue(key="a", value="1")], partition_key="k")
    rows = []
    for name, of_entry in (("only a payload", metadata()), ("a property and a key", with_more)):
        data = frame(of_entry, os.urandom(32)) * FRAMES
        frames = FrameDecoder().feed(data)
        rows.append(
            [
                name,
                each(partial(FrameDecoder().feed, data), FRAMES, rounds),
                each(partial(decode_all, frames), FRAMES, rounds),
                each(partial(read_all, frames, reader()), FRAMES, rounds),
            ]
        )
    columns = ("a message with", "us to a frame", "us from there to an entry", "us from there to a delivery")
    report.table("messages of 32 bytes, one in an entry", columns, rows)


def batches(report: Report, targets: Targets, rounds: int) -> None:
    """Measure batches, from bytes to deliveries, with each compression."""
    text = b"32 bytes that compress somewhat."
    payload = encode_batch((pb.SingleMessageMetadata(sequence_id=number), text) for number in range(BATCH))
    rows = []
    for name in COMPRESSIONS:
        packed = compress(KINDS[name], payload)
        of_entry = metadata(num_messages_in_batch=BATCH, compression=KINDS[name], uncompressed_size=len(payload))
        data, read = frame(of_entry, packed), reader()
        cost = each(partial(read_bytes, data, read), BATCH, rounds // 5 + 1)
        targets.check(f"batches, {name}: us for each message", cost, 10.0)
        rows.append([name, cost, round(1e6 / cost)])
    columns = ("compression", "us from bytes to a delivery", "messages a second")
    report.table("messages of 32 bytes, 1 000 in an entry (target: 100,000 a second)", columns, rows)


def commands(report: Report, rounds: int) -> None:
    """Measure commands that are sent."""
    group = AckGroup()
    group.entries.update(dict.fromkeys(IDS, 0))
    some = rounds // 5 + 1
    of_message, payload = metadata(), os.urandom(32)
    report.table(
        "commands",
        ("command", "us for each"),
        [
            ["id of an acknowledgement of 1 000", each(lambda: ack_command(1, group, 5), len(IDS), some)],
            ["id of a redelivery of 1 000", each(lambda: redeliver_command(1, IDS), len(IDS), some)],
            [
                "message of 32 bytes",
                each(lambda: [encode_headers_and_payload(of_message, payload) for _ in IDS], len(IDS), some),
            ],
        ],
    )


if __name__ == "__main__":
    main()
