"""Frames as the protocol has them, written for tests apart from the codec under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import google_crc32c

from pulsar_nack.wire import _pulsar_pb2 as pb


def frame(command: pb.BaseCommand, rest: bytes = b"") -> bytes:
    """Return the bytes of a command and of what follows it."""
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(rest), len(body)) + body + rest


def message_rest(metadata: pb.MessageMetadata, payload: bytes, *, checksum: int | None = None) -> bytes:
    """Return the headers and the payload of a message; ``checksum`` is a wrong one on purpose."""
    header = metadata.SerializeToString()
    checked = struct.pack(">I", len(header)) + header + payload
    crc = google_crc32c.value(checked) if checksum is None else checksum
    return b"\x0e\x01" + struct.pack(">I", crc) + checked


def batch_payload(payloads: Sequence[bytes]) -> bytes:
    """Return the payload of a batch of plain messages."""
    parts = []
    for payload in payloads:
        single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(struct.pack(">I", len(single)) + single + payload)
    return b"".join(parts)


def read_message(rest: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """Return metadata and payload of what a producer sends."""
    if rest[:2] == b"\x0e\x01":
        assert google_crc32c.value(rest[6:]) == struct.unpack_from(">I", rest, 2)[0], "the checksum is wrong"
        rest = rest[6:]
    (size,) = struct.unpack_from(">I", rest)
    return pb.MessageMetadata.FromString(rest[4 : 4 + size]), rest[4 + size :]


def command(kind: str) -> pb.BaseCommand:
    """Return an empty command of a kind, such as ``"PING"``."""
    return pb.BaseCommand(type=kind)
