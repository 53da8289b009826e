"""Frames: how bytes are cut into commands, in pieces of any size, and which are refused."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.errors import ProtocolError
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import (
    PING,
    PONG,
    Frame,
    FrameDecoder,
    encode_command,
    encode_frame,
    encode_headers_and_payload,
)


def message(entry: int, payload: bytes = b"hello") -> bytes:
    """Return the frame of a message as a broker sends it."""
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = 12
    command.message.message_id.entryId = entry
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    return encode_frame(command, encode_headers_and_payload(metadata, payload))


def success(request_id: int) -> bytes:
    """Return the frame of an answer."""
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))


def framed(command: bytes, rest: bytes = b"") -> bytes:
    """Return the frame of a command that is given as bytes."""
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest


STREAM = success(1) + message(5) + PING + message(6, b"") + message(7, bytes(5_000)) + PONG + success(2)


def kinds(decoder: FrameDecoder, *pieces: bytes) -> list[tuple[int, bytes]]:
    """Feed pieces; return the kind of each frame and its headers and payload."""
    return [kind_of(frame) for piece in pieces for frame in decoder.feed(piece)]


def kind_of(frame: Frame) -> tuple[int, bytes]:
    """Return the kind of a frame and its headers and payload."""
    command, headers_and_payload = frame
    return command.type if isinstance(command, pb.BaseCommand) else pb.BaseCommand.MESSAGE, headers_and_payload


EXPECTED = kinds(FrameDecoder(), STREAM)


def test_a_stream_in_one_piece_gives_each_command_with_what_follows_it() -> None:
    """Seven frames are decoded in order; only messages have bytes after their command."""
    assert [kind for kind, _ in EXPECTED] == [
        pb.BaseCommand.SUCCESS,
        pb.BaseCommand.MESSAGE,
        pb.BaseCommand.PING,
        pb.BaseCommand.MESSAGE,
        pb.BaseCommand.MESSAGE,
        pb.BaseCommand.PONG,
        pb.BaseCommand.SUCCESS,
    ]
    assert [bool(rest) for _, rest in EXPECTED] == [False, True, False, True, True, False, False]
    assert EXPECTED[4][1].endswith(bytes(5_000))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 13, 100, 4_096])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    """The same frames are decoded however the stream is cut, and nothing is kept in the end."""
    decoder = FrameDecoder()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert kinds(decoder, *pieces) == EXPECTED
    assert decoder.kept_bytes == 0


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_anywhere_give_the_same(cuts: list[int]) -> None:
    """Cut at random places, empty pieces included."""
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:stop] for start, stop in pairwise(places)]
    assert kinds(FrameDecoder(), *pieces) == EXPECTED


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_kinds_of_bytes_are_taken_and_copied(kind: type) -> None:
    """A buffer that its owner reuses does not change decoded frames."""
    buffer = bytearray(STREAM)
    frames = FrameDecoder().feed(kind(buffer))
    buffer[:] = bytes(len(buffer))
    assert [kind_of(frame) for frame in frames] == EXPECTED
    assert all(type(frame[1]) is bytes for frame in frames)


def test_a_frame_that_claims_too_much_is_refused_before_it_is_here() -> None:
    """Eight bytes suffice, and no memory was reserved; the error names place and sizes."""
    decoder = FrameDecoder(1_000)
    decoder.feed(PING)
    with pytest.raises(ProtocolError, match=rf"frame at byte {len(PING)}: 1001 bytes with a command of 5, .* 1000"):
        decoder.feed(struct.pack(">II", 1_001, 5))


def test_an_answer_of_http_is_called_so() -> None:
    """The error names a connection to the HTTP port."""
    with pytest.raises(ProtocolError, match="an HTTP response"):
        FrameDecoder().feed(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_frame_of_just_the_limit_is_taken() -> None:
    """The limit is for the bytes after the first four."""
    frame = message(1)
    assert len(FrameDecoder(len(frame) - 4).feed(frame)) == 1
    with pytest.raises(ProtocolError):
        FrameDecoder(len(frame) - 5).feed(frame)


@pytest.mark.parametrize(
    ("total", "size"), [(0, 0), (3, 0), (4, 1), (10, 7), (10, 0xFFFFFFFF), (0xFFFFFFFF, 4)], ids=str
)
def test_sizes_that_contradict_one_another_are_refused(total: int, size: int) -> None:
    """A command has to fit into its frame."""
    with pytest.raises(ProtocolError, match=f"frame at byte 0: {total} bytes with a command of {size}"):
        FrameDecoder().feed(struct.pack(">II", total, size) + bytes(20))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (b"", "without a type"),
        (b"\x12\x00", "without a type"),
        (b"\x08", "no command in 1 bytes"),
        (b"\xff" * 20, "no command in 20 bytes"),
        (b"\x08\x09", "MESSAGE without its part message"),
        (b"\x08\x09\x4a\x00", "MESSAGE: .*consumer_id"),
        (b"\x08\x0d", "SUCCESS without its part success"),
        (b"\x08\x0d\x6a\x00", "SUCCESS: .*request_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.hex(),
)
def test_a_command_that_is_none_is_refused(command: bytes, problem: str) -> None:
    """The error names the frame and what is missing, whatever protobuf itself accepts."""
    with pytest.raises(ProtocolError, match=f"frame at byte {len(PING)}: .*{problem}"):
        FrameDecoder().feed(PING + framed(command))


def test_a_command_of_a_later_version_is_passed_over() -> None:
    """An unknown kind is skipped."""
    assert kinds(FrameDecoder(), PING + framed(b"\x08\x7f\xaa\x06\x02hi", b"rest") + PING) == kinds(
        FrameDecoder(), PING * 2
    )


def test_an_error_of_a_later_version_is_an_error() -> None:
    """An unknown error code is reported by its number."""
    ((command, _),) = FrameDecoder().feed(framed(b"\x08\x0e\x72\x08\x08\x01\x10\x63\x1a\x02hi"))
    assert isinstance(command, pb.BaseCommand)
    assert (command.error.error, command.error.message) == (99, "hi")


def test_a_message_begins_with_magic_checksum_and_metadata() -> None:
    """The bytes are those of the protocol's description, the checksum is CRC-32C."""
    rest = encode_headers_and_payload(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), b"hello")
    assert rest.hex() == "0e01" + rest[2:6].hex() + "00000007" + "0a017010011802" + b"hello".hex()
    assert google_crc32c.value(b"123456789") == 0xE3069283
    assert int.from_bytes(rest[2:6]) == google_crc32c.value(rest[6:])


def test_ping_and_pong_are_as_every_client_sends_them() -> None:
    """The whole frame, byte for byte."""
    assert PING.hex() == "00000009" + "00000005" + "0812920100"
    assert PONG.hex() == "00000009" + "00000005" + "08139a0100"


def test_many_bytes_cost_two_copies_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of 2 MB in 20 000 pieces is decoded in two steps: its header, and all of it when it is complete."""
    frame = message(1, bytes(2_000_000))
    decoder = FrameDecoder()
    looks = 0
    cut = decoder._cut

    def counted(*arguments: Any) -> int:
        nonlocal looks
        looks += 1
        return cut(*arguments)

    monkeypatch.setattr(decoder, "_cut", counted)
    found = kinds(decoder, *(frame[at : at + 100] for at in range(0, len(frame), 100)))
    assert len(found) == 1
    assert looks == 2
