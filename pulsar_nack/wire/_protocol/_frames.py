"""Frames: cuts the bytes of a connection into commands with their headers and payload, and encodes them. No I/O.

A frame is its size in 4 bytes, the size of its command in 4, the command, and, for messages, headers and payload, which
``_entries.py`` reads::

    total (4) | size (4) | command (size) | headers and payload (total - 4 - size)

The decoder keeps at most the beginning of one frame, and knows how many bytes it needs before it looks again, so a
frame that arrives in many pieces is copied twice, however many they are. It returns bytes, not views: a queued message
keeps nothing else in memory, and for the usual small message that is faster too.

Commands are parsed by protobuf's C parser. It checks neither that required fields are there nor that text is UTF-8;
both are checked here. MESSAGE commands are the hot path: nearly all have the same few fields in the same order, and are
read without protobuf, in a third of the time. All others are parsed; of their required fields only the message id is
checked, and they have no text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..._foreign import shown
from ...errors import ProtocolError
from ...ids import Position
from . import _pulsar_pb2 as pb

DEFAULT_MAX_COMMAND_BYTES: Final = 256 << 10
DEFAULT_MAX_TOPICS: Final = 100_000
DEFAULT_MAX_FRAME_BYTES: Final = 5 * 1024 * 1024 + 10 * 1024
MAGIC_CHECKSUM: Final = b"\x0e\x01"

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_HTTP: Final = int.from_bytes(b"HTTP")
_MESSAGE: Final = pb.BaseCommand.MESSAGE
_ACK_RESPONSE: Final = pb.BaseCommand.ACK_RESPONSE
_TYPE: Final = pb.BaseCommand.TYPE_FIELD_NUMBER
_NAMES: Final = {number: name for name, number in pb.BaseCommand.Type.items()}
_BODIES: Final = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and field.message_type.fields
}
"""The field that holds the body of a command, by kind: the protocol numbers both alike."""

_LARGEST: Final = 2**64 - 1
_make = tuple.__new__
_NUMBER: Final = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_USUAL: Final = re.compile(
    rb"\x08\x09\x4a([\x00-\x7f])"  # the kind, and the size of the body
    rb"\x08" + _NUMBER + rb"\x12([\x00-\x7f])"  # consumer id, and the size of the message id
    rb"\x08" + _NUMBER + rb"\x10" + _NUMBER + rb"(\x18\xff{9}\x01|\x18[\x00-\x7f]|)"  # ledger, entry, partition
    rb"(?:\x18" + _NUMBER + rb")?"  # redelivery count
).fullmatch


def _has_text(kind: Any) -> bool:
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type not in {None, kind} and _has_text(field.message_type))
        for field in kind.fields
    )


_WITH_TEXT: Final = {
    field.number
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and _has_text(field.message_type)
}
"""The kinds of commands that may have text."""

_LISTS_OF_TOPICS: Final = {
    bytes((0x08, kind))
    for kind in (
        pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
        pb.BaseCommand.WATCH_TOPIC_UPDATE,
    )
}
"""The first bytes of commands that list topics."""


class MessageCommand(NamedTuple):
    """The fields of a MESSAGE command.

    :param ack_set: the bitmap of unacknowledged messages in a batch, lowest word first; empty: all are unacknowledged
    :param epoch: the consumer's epoch when the broker sent the entry; None if the broker does not send it
    """

    consumer_id: int
    ledger: int
    entry: int
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()
    epoch: int | None = None


def to_message_command(command: pb.CommandMessage) -> MessageCommand:
    """Return the fields of a parsed command."""
    return MessageCommand(
        command.consumer_id,
        command.message_id.ledgerId,
        command.message_id.entryId,
        command.redelivery_count,
        tuple(command.ack_set),
        command.consumer_epoch if command.HasField("consumer_epoch") else None,
    )


class MessageCommandReader:
    """Reads MESSAGE commands without protobuf. Consecutive ones mostly differ in the entry id only, the fast case."""

    def __init__(self) -> None:
        self._size = -1
        self._before = self._after = b""
        self._entry_at = self._entry_bytes = 0
        self._shared = (0, 0, 0)

    def read(self, data: bytes, start: int, end: int) -> MessageCommand | None:
        """Return the command in ``data[start:end]``, or None if it needs the parser."""
        if (
            end - start != self._size
            or not data.startswith(self._before, start)
            or not data.endswith(self._after, start, end)
        ):
            return self._read(data, start, end)
        at = start + self._entry_at
        length = self._entry_bytes
        last = data[at + length - 1]
        if length == 2 and last < 0x80 <= data[at]:
            entry = data[at] + (last << 7) - 0x80
        elif length == 3 and last < 0x80 <= data[at] and data[at + 1] >= 0x80:
            entry = data[at] + (data[at + 1] << 7) + (last << 14) - 0x4080
        else:
            return self._read(data, start, end)
        consumer_id, ledger, count = self._shared
        return _make(MessageCommand, (consumer_id, ledger, entry, count, (), None))

    def _read(self, data: bytes, start: int, end: int) -> MessageCommand | None:
        found = _USUAL(data, start, end)
        if found is None:
            return None
        size, consumer, id_size, ledger, entry, partition, count = found.groups()
        if size[0] != end - start - 4 or id_size[0] != len(ledger) + len(entry) + len(partition) + 2:
            return None
        command = MessageCommand(number_of(consumer), number_of(ledger), number_of(entry), number_of(count or b"\0"))
        self._size, self._shared = end - start, (command.consumer_id, command.ledger, command.redelivery_count)
        self._before, self._after = data[start : found.start(5)], data[found.end(5) : end]
        self._entry_at, self._entry_bytes = found.start(5) - start, len(entry)
        return command


Frame = tuple[pb.BaseCommand | MessageCommand, bytes]
"""A command, and the headers and payload that follow it, empty if there are none; MESSAGE as a MessageCommand."""


class FrameDecoder:
    """Cuts bytes that arrive in pieces of any size into frames.

    :param max_frame_bytes: a frame that claims to be larger is refused before memory is allocated for it
    :param max_command_bytes: a larger command is refused, except lists of topics, which ``max_topics`` limits
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
        self._read_message = MessageCommandReader().read
        self._kept = bytearray()  # the beginning of a frame
        self._needed = 0  # how many bytes must be there before it is worth looking again
        self._offset = 0  # position of the kept bytes in the whole stream
        self.frames = 0
        """How many complete frames were read."""

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes of an incomplete frame are kept."""
        return len(self._kept)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that ``data`` completes.

        :raises ProtocolError: the bytes are not the protocol; names the frame. The decoder cannot be used any more
        """
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed:
                return []
            data = bytes(self._kept)
            self._kept = bytearray()
        elif type(data) is not bytes:
            data = bytes(data)
        frames: list[Frame] = []
        at = self._cut(data, frames)
        if at < len(data):
            self._kept += memoryview(data)[at:]
        self._offset += at
        self.frames += len(frames)
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> int:
        """Append the frames in ``data`` and return where the next one begins. All of it inlined: the hot path."""
        at, end = 0, len(data)
        limit, sizes, read_message = self.max_frame_bytes, _SIZES.unpack_from, self._read_message
        self._needed = 8
        while end - at >= 8:
            total, size = sizes(data, at)
            if total > limit or size > total - 4:
                what = f"{total} bytes with a command of {size}, where at most {limit} are allowed"
                raise self._wrong(
                    at, "an HTTP response: this is not the port of the binary protocol" if total == _HTTP else what
                )
            stop = at + 4 + total
            if stop > end:
                self._needed = 4 + total
                break
            middle = at + 8 + size
            if (
                size > 1
                and data[at + 9] == _MESSAGE  # the kind, which comes first
                and (message := read_message(data, at + 8, middle)) is not None
            ):
                frames.append((message, data[middle:stop]))
            elif (command := self._parse(data[at + 8 : middle], at)) is None:
                pass
            elif command.type == _MESSAGE:
                frames.append((to_message_command(command.message), data[middle:stop]))
            else:
                frames.append((command, data[middle:stop]))
            at = stop
        return at

    def _parse(self, data: bytes, at: int) -> pb.BaseCommand | None:
        """Return a command, or None if its kind is unknown.

        :raises ProtocolError: it cannot be parsed, is too large, a required field is missing, or a text is not UTF-8
        """
        if len(data) > self._max_command_bytes:
            self._check_size(data, at)
        try:
            command = pb.BaseCommand.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise self._wrong(at, f"no command in {len(data)} bytes: {shown(str(error))}") from error
        kind = command.type
        if kind == _MESSAGE and command.message.HasField("message_id"):
            return command
        if kind == _ACK_RESPONSE:  # mostly without a text: often
            receipt = command.ackResponse
            if receipt.HasField("consumer_id") and not receipt.HasField("message"):
                return command
        if not command.HasField("type"):
            unknown = UnknownFieldSet(command)
            if any(unknown[number].field_number == _TYPE for number in range(len(unknown))):
                return None
            raise self._wrong(at, "a command without a type")
        body = _BODIES.get(kind)
        if body is not None and not command.HasField(body):
            raise self._wrong(at, f"a command {_NAMES[kind]} without its part {body}")
        if not command.IsInitialized():
            missing = ", ".join(command.FindInitializationErrors())  # type: ignore[attr-defined]
            raise self._wrong(at, f"a command {_NAMES[kind]}: missing required fields: {shown(missing)}")
        if kind in _WITH_TEXT and not data.isascii() and (problem := wrong_text(command)):
            raise self._wrong(at, f"a command {_NAMES[kind]}: {problem}")
        return command

    def _check_size(self, data: bytes, at: int) -> None:
        """Refuse a large command, unless it is a list of at most ``max_topics`` topics.

        Topics are counted by the tag byte before each. The size byte after it may have the same value, hence the 2.
        """
        if data[:2] not in _LISTS_OF_TOPICS:
            problem = (
                f"a command of {len(data)} bytes, at most {self._max_command_bytes} are allowed (max_command_bytes)"
            )
            raise self._wrong(at, problem)
        if data.count(b"\x12") + data.count(b"\x1a") > 2 * self._max_topics:
            raise self._wrong(at, f"more topics than the {self._max_topics} that are allowed (max_topics)")

    def _wrong(self, at: int, problem: str) -> ProtocolError:
        return ProtocolError(f"frame at byte {self._offset + at}: {problem}")


def wrong_text(message: Message) -> str:
    """Return which text of a parsed message is not UTF-8, empty if all are: protobuf gives such a text as bytes.

    The text is not quoted, because a secret may be in it.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = [value] if isinstance(value, Message) else value
            problem = next(filter(None, map(wrong_text, parts)), "")
            if problem:
                return f"{field.name}.{problem}"
        elif field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
            texts = [value] if isinstance(value, bytes) else value
            if bytes in set(map(type, texts)):
                return f"{field.name} {_encoding_error(texts)}"
    return ""


def _encoding_error(texts: Iterable[str | bytes]) -> str:
    wrong = next(text for text in texts if isinstance(text, bytes))
    try:
        wrong.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8: byte {wrong[error.start]:#04x} at {error.start} of {len(wrong)}"
    return "is not text"


def encode_command(command: pb.BaseCommand) -> bytes:
    """Return the frame of a command without a payload."""
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def encode_frame(command: pb.BaseCommand, headers_and_payload: bytes) -> bytes:
    """Return the frame of a command with headers and payload."""
    body = command.SerializeToString()
    sizes = _SIZES.pack(4 + len(body) + len(headers_and_payload), len(body))
    return b"".join((sizes, body, headers_and_payload))


def encode_headers_and_payload(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return what follows the command in a message's frame: magic, CRC-32C, size of the metadata, metadata, payload."""
    header = metadata.SerializeToString()
    checked = b"".join((_SIZE.pack(len(header)), header, payload))
    return b"".join((MAGIC_CHECKSUM, _SIZE.pack(google_crc32c.value(checked)), checked))


def position_of(data: pb.MessageIdData) -> Position:
    """Return the position in an answer; the largest numbers of the protocol become negative ones."""
    numbers = data.ledgerId, data.entryId
    return Position(*(number - _LARGEST - 1 if number > _LARGEST // 2 else number for number in numbers))


def number_of(varint: bytes) -> int:
    """Return the value of a varint; bits above 64 are cut off, as protobuf does."""
    number = 0
    for shift, byte in enumerate(varint):
        number |= (byte & 0x7F) << 7 * shift
    return number & _LARGEST


PING: Final = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
PONG: Final = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
