"""Record the frames of official clients and a real broker into ``data/frames.jsonl``.

``python -m tests.wire.record CLASSPATH``, with the jars of Java's client on CLASSPATH. Each line is a frame: its
sender, the client of the connection, and its bytes in base64. No frame contains a secret or a property of one machine:
keys are new in each run, and the broker listens on the loopback.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import pulsar
from google.protobuf.message import Message

from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.broker.standalone import Standalone

DATA = Path(__file__).parent / "data" / "frames.jsonl"
JAVA = Path(__file__).parent / "Record.java"
WITH_BROKER_METADATA = {
    "brokerEntryMetadataInterceptors": "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
}
TEXT = b"some words, and then some words again. " * 4
COMPRESSIONS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


class Recorder:
    """A proxy between clients and one broker; it directs lookups to itself. Use it in a ``with`` block."""

    def __init__(self, url: str, name: str, lines: list[str]) -> None:
        self._port = int(url.rpartition(":")[2])
        self._name = name
        self._lines = lines
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, sender in ((client, broker, self._name), (broker, client, "broker")):
                threading.Thread(target=self._pass_on, args=(source, sink, sender), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, sender: str) -> None:
        with source, sink, source.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = size + stream.read(struct.unpack(">I", size)[0])
                self._lines.append(
                    json.dumps({"from": sender, "client": self._name, "frame": base64.b64encode(frame).decode()})
                )
                try:
                    sink.sendall(self._to_here(frame) if sender == "broker" else frame)
                except OSError:
                    return

    def _to_here(self, frame: bytes) -> bytes:
        (size,) = struct.unpack_from(">I", frame, 4)
        command = pb.BaseCommand.FromString(frame[8 : 8 + size])
        if command.type != pb.BaseCommand.LOOKUP_RESPONSE:
            return frame
        command.lookupTopicResponse.brokerServiceUrl = self.url
        body = command.SerializeToString()
        return struct.pack(">II", len(body) + 4, len(body)) + body


def python_side(url: str) -> None:
    """Let the Python client do all that it can, with a few messages each."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in COMPRESSIONS:
        kind = getattr(pulsar.CompressionType, name)
        for is_batched in (False, True):
            topic = f"persistent://public/default/python-{name.lower()}-{'batched' if is_batched else 'single'}"
            exchange(client, topic, compression_type=kind, batching_enabled=is_batched)
    client.close()


def exchange(client: Any, topic: str, **settings: Any) -> None:
    """Send three messages, receive them, one of them twice, and acknowledge them."""
    consumer = client.subscribe(topic, "all", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic, batching_max_publish_delay_ms=50, **settings)
    sent: list[Any] = []

    def told(result: Any, message_id: Any) -> None:
        sent.append((result, message_id))

    producer.send_async(TEXT, told, partition_key="key", properties={"a": "1", "ö": ""}, event_timestamp=1_234)
    producer.send_async(TEXT + b"2", told, ordering_key="order")
    producer.send_async(b"x", told)  # this client cannot read an empty payload that zlib compressed
    producer.flush()
    messages = [consumer.receive(5_000) for _ in sent]
    consumer.negative_acknowledge(messages[0])
    for message in messages[1:]:
        consumer.acknowledge(message)
    for _ in range(3 if settings["batching_enabled"] else 1):
        consumer.acknowledge(consumer.receive(5_000))
    time.sleep(0.2)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.get_last_message_id()
    consumer.receive(5_000)
    producer.close()
    consumer.unsubscribe()


def java_side(url: str, classpath: str, folder: Path) -> None:
    """Let Java's client do the rest, and the same again: chunks, encryption, transparent keys."""
    key = folder / "key.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    public = subprocess.run(["openssl", "rsa", "-in", str(key), "-pubout"], check=True, capture_output=True).stdout
    (folder / "public.pem").write_bytes(public)
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath, str(JAVA), url, str(folder / "public.pem")]
    subprocess.run(command, check=True, timeout=120)


def main(classpath: str) -> None:
    """Record on a broker that adds its own metadata to entries and on one that does not."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for settings in ({}, WITH_BROKER_METADATA):
            with Standalone(settings=settings) as broker:
                with Recorder(broker.service_url, "python", lines) as recorder:
                    python_side(recorder.url)
                with Recorder(broker.service_url, "java", lines) as recorder:
                    java_side(recorder.url, classpath, Path(folder))
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text("".join(f"{line}\n" for line in one_of_each(lines)), encoding="utf-8")


def one_of_each(lines: list[str]) -> list[str]:
    """Return the first of all frames with the same sender and the same fields."""
    found: dict[tuple[object, ...], str] = {}
    for line in lines:
        told = json.loads(line)
        frame = base64.b64decode(told["frame"])
        (size,) = struct.unpack_from(">I", frame, 4)
        command, rest = pb.BaseCommand.FromString(frame[8 : 8 + size]), frame[8 + size :]
        found.setdefault((told["from"], told["client"], *fields(command), rest[:2], *metadata_fields(rest)), line)
    return list(found.values())


def metadata_fields(rest: bytes) -> tuple[str, ...]:
    """Return the names of the fields of a message's metadata, and its compression."""
    if not rest:
        return ()
    if rest[:2] == b"\x0e\x02":
        rest = rest[6 + struct.unpack_from(">I", rest, 2)[0] :]
    metadata = pb.MessageMetadata.FromString(rest[10 : 10 + struct.unpack_from(">I", rest, 6)[0]])
    return (*fields(metadata), str(metadata.compression), str(metadata.num_messages_in_batch), str(metadata.chunk_id))


def fields(message: Message) -> tuple[str, ...]:
    """Return the names of all present fields, nested ones too."""
    names: list[str] = []
    for field, value in message.ListFields():
        names.append(field.name)
        if isinstance(value, Message):
            names += fields(value)
    return tuple(names)


if __name__ == "__main__":
    main(sys.argv[1])
