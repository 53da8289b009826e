"""Frames: bytes of the protocol cut into commands and what follows them, and the other way round. No I/O.

A frame is its size in 4 bytes, the size of its command in 4, the command, and, for messages, headers and payload, which
``_entries.py`` reads::

    total (4) | size (4) | command (size) | rest (total - 4 - size)

The decoder keeps at most the beginning of one frame, and knows how many bytes it needs before looking at it again, so
that a frame in many pieces is copied twice, however many they are. What it returns are bytes of their own, no views: a
message that waits for its user keeps nothing else in memory, and for the usual small message it is faster as well.

Commands are parsed by protobuf's own C parser, but for those of messages, of which only the head is read. It does not
insist on required fields, which is checked here: all of them, but for MESSAGE, the one that counts, only that there is
an id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import google_crc32c
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ..._foreign import shown
from ...errors import ProtocolError
from .. import _pulsar_pb2 as pb
from ._heads import HeadReader, MessageHead, head_of

DEFAULT_MAX_COMMAND_BYTES: Final = 256 << 10
DEFAULT_MAX_TOPICS: Final = 100_000
DEFAULT_MAX_FRAME_BYTES: Final = 5 * 1024 * 1024 + 10 * 1024
MAGIC_CHECKSUM: Final = b"\x0e\x01"

_SIZES: Final = struct.Struct(">II")
_HEADERS: Final = struct.Struct(">2sII")  # magic, checksum, size of the metadata
_SIZE: Final = struct.Struct(">I")
_HTTP: Final = int.from_bytes(b"HTTP")
_MESSAGE: Final = pb.BaseCommand.MESSAGE
_TYPE: Final = pb.BaseCommand.TYPE_FIELD_NUMBER
_NAMES: Final = {number: name for name, number in pb.BaseCommand.Type.items()}
_PARTS: Final = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and field.message_type.fields
}
"""Which part a command has to have, by its kind: the protocol numbers both alike."""


_LISTS_OF_TOPICS: Final = {
    bytes((0x08, kind))
    for kind in (
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
        pb.BaseCommand.WATCH_TOPIC_UPDATE,
    )
}
"""The first bytes of commands that list topics."""


class Frame(NamedTuple):
    """A command, and the headers and payload that follow it, empty if there are none."""

    command: pb.BaseCommand
    rest: bytes


MessageFrame = tuple[MessageHead, bytes]
"""The head of a message, and its headers and payload."""
ReadHead = Callable[[bytes, int, int], MessageHead | None]


class FrameDecoder:
    """Cuts what comes in, in pieces of any size, into frames.

    :param max_frame_bytes: a frame that claims to be larger is refused before memory is taken for it
    :param max_command_bytes: a larger command is refused too, except lists of topics, which ``max_topics`` limits
    """

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        *,
        max_command_bytes: int = DEFAULT_MAX_COMMAND_BYTES,
        max_topics: int = DEFAULT_MAX_TOPICS,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._max_command_bytes = max_command_bytes
        self._max_topics = max_topics
        self._heads = HeadReader()
        self._kept = bytearray()  # the beginning of a frame
        self._needed = 0  # bytes that have to be there before a look at it can help
        self._offset = 0  # of what is kept, in all that ever came in
        self.frames = 0
        """How many complete frames were read."""

    @property
    def kept_bytes(self) -> int:
        """Return how much is kept of a frame that is not complete."""
        return len(self._kept)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that ``data`` completes.

        :raises ProtocolError: not the protocol; names the frame. The decoder is of no use any more
        """
        return cast("list[Frame]", self._feed(data, None))

    def feed_heads(self, data: bytes | bytearray | memoryview) -> list[Frame | MessageFrame]:
        """Return the same, but of messages only the heads, which takes a third of the time."""
        return self._feed(data, self._heads.read)

    def _feed(self, data: bytes | bytearray | memoryview, read_head: ReadHead | None) -> list[Frame | MessageFrame]:
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed:
                return []
            data = bytes(self._kept)
            self._kept = bytearray()
        elif type(data) is not bytes:
            data = bytes(data)
        frames: list[Frame | MessageFrame] = []
        at = self._cut(data, frames, read_head)
        if at < len(data):
            self._kept += memoryview(data)[at:]
        self._offset += at
        self.frames += len(frames)
        return frames

    def _cut(self, data: bytes, frames: list[Frame | MessageFrame], read_head: ReadHead | None) -> int:
        """Add the frames in ``data``, and return where the next one begins. Everything in line: the hot path."""
        at, end = 0, len(data)
        limit, sizes = self.max_frame_bytes, _SIZES.unpack_from
        self._needed = 8
        while end - at >= 8:
            total, size = sizes(data, at)
            if total > limit or size > total - 4:
                what = f"{total} bytes with a command of {size}, where at most {limit} are taken"
                raise self._wrong(at, "an answer of HTTP, from the port for that" if total == _HTTP else what)
            stop = at + 4 + total
            if stop > end:
                self._needed = 4 + total
                break
            middle = at + 8 + size
            if read_head is not None and (head := read_head(data, at + 8, middle)) is not None:
                frames.append((head, data[middle:stop]))
            elif (command := self._parse(data[at + 8 : middle], at)) is None:
                pass
            elif read_head is not None and command.type == _MESSAGE:
                frames.append((head_of(command.message), data[middle:stop]))
            else:
                frames.append(Frame(command, data[middle:stop]))
            at = stop
        return at

    def _parse(self, data: bytes, at: int) -> pb.BaseCommand | None:
        """Return a command, None if it is of a kind that is not known here."""
        if len(data) > self._max_command_bytes:
            self._check_size(data, at)
        try:
            command = pb.BaseCommand.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise self._wrong(at, f"no command in {len(data)} bytes: {shown(str(error))}") from error
        is_message = command.type == _MESSAGE and command.message.HasField("message_id")
        return command if is_message or self._is_known(command, at) else None

    def _check_size(self, data: bytes, at: int) -> None:
        """Refuse a large command, unless it is a list of at most ``max_topics`` topics.

        Topics are counted by the tag byte before each. The size byte that follows may look the same, hence the factor.
        """
        if data[:2] not in _LISTS_OF_TOPICS:
            problem = f"a command of {len(data)} bytes, at most {self._max_command_bytes} are taken (max_command_bytes)"
            raise self._wrong(at, problem)
        if data.count(b"\x12") + data.count(b"\x1a") > 2 * self._max_topics:
            raise self._wrong(at, f"more topics than the {self._max_topics} that are taken (max_topics)")

    def _is_known(self, command: pb.BaseCommand, at: int) -> bool:
        """Return whether it is a command of a kind that is known here; if so, all that it needs is in it."""
        if not command.HasField("type"):
            unknown = UnknownFieldSet(command)
            if any(unknown[number].field_number == _TYPE for number in range(len(unknown))):
                return False
            raise self._wrong(at, "a command without a type")
        kind = command.type
        part = _PARTS.get(kind)
        if part is not None and not command.HasField(part):
            raise self._wrong(at, f"a command {_NAMES[kind]} without its part {part}")
        try:
            command.SerializeToString()
        except EncodeError as error:
            raise self._wrong(at, f"a command {_NAMES[kind]}: {shown(str(error))}") from error
        return True

    def _wrong(self, at: int, problem: str) -> ProtocolError:
        return ProtocolError(f"frame at byte {self._offset + at}: {problem}")


def encode_command(command: pb.BaseCommand) -> bytes:
    """Return the frame of a command without a payload."""
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def encode_message(command: pb.BaseCommand, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return the frame of a command with a message: SEND, or MESSAGE where a broker is played."""
    return encode_command_with(command, encode_rest(metadata, payload))


def encode_command_with(command: pb.BaseCommand, rest: bytes) -> bytes:
    """Return the frame of a command and what follows it, as :func:`encode_rest` makes it."""
    body = command.SerializeToString()
    return b"".join((_SIZES.pack(4 + len(body) + len(rest), len(body)), body, rest))


def encode_rest(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return what follows the command in a message's frame: magic, CRC-32C, size of the metadata, it, the payload."""
    header = metadata.SerializeToString()
    checked = b"".join((_SIZE.pack(len(header)), header, payload))
    return b"".join((MAGIC_CHECKSUM, _SIZE.pack(google_crc32c.value(checked)), checked))
