"""Frames: bytes of the protocol cut into commands and what follows them, and the other way round. No I/O.

A frame is its size in 4 bytes, the size of its command in 4, the command, and, for messages, headers and payload:
magic 0x0e01, the CRC-32C of all that follows, the size of the metadata in 4 bytes, the metadata, the payload.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from ..errors import ProtocolError
from . import _pulsar_pb2 as pb

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_MAGIC: Final = b"\x0e\x01"
DEFAULT_MAX_FRAME_BYTES: Final = 5 * 1024 * 1024 + 10 * 1024


class Frame(NamedTuple):
    """A command, and the headers and payload that follow it, if any."""

    command: pb.BaseCommand
    rest: memoryview | bytes


class FrameDecoder:
    """Cuts what comes in, in pieces of any size, into frames.

    :param max_frame_bytes: a frame that claims to be larger is refused before memory is taken for it
    """

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._kept = bytearray()
        self._offset = 0  # of what is kept, in all that ever came in

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that ``data`` completes.

        :raises ProtocolError: not the protocol; the decoder is of no use any more
        """
        if self._kept:
            self._kept += data
            view = memoryview(bytes(self._kept)) if self._has_frame() else None
            if view is None:
                return []
            self._kept.clear()
        else:
            view = memoryview(data).toreadonly() if isinstance(data, bytes) else memoryview(bytes(data))
        frames, end = self._cut(view)
        self._kept += view[end:]
        self._offset += end
        return frames

    def _has_frame(self) -> bool:
        if len(self._kept) < 8:
            return False
        return len(self._kept) >= 4 + self._sizes(self._kept, 0)[0]

    def _cut(self, view: memoryview) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        at = 0
        while len(view) - at >= 8:
            total, size = self._sizes(view, at)
            if len(view) - at < 4 + total:
                break
            frames.append(Frame(self._command(view[at + 8 : at + 8 + size], at), view[at + 8 + size : at + 4 + total]))
            at += 4 + total
        return frames, at

    def _sizes(self, data: bytearray | memoryview, at: int) -> tuple[int, int]:
        total, size = _SIZES.unpack_from(data, at)
        if not 4 <= total <= self.max_frame_bytes or size > total - 4:
            raise ProtocolError(
                f"frame at byte {self._offset + at}: {total} bytes with a command of {size}, "
                f"at most {self.max_frame_bytes} are taken"
            )
        return total, size

    def _command(self, data: memoryview, at: int) -> pb.BaseCommand:
        try:
            return pb.BaseCommand.FromString(bytes(data))
        except DecodeError as error:
            raise ProtocolError(
                f"frame at byte {self._offset + at}: no command in {len(data)} bytes: {error}"
            ) from error


def encode_command(command: pb.BaseCommand) -> bytes:
    """Return the frame of a command without a payload."""
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def encode_message(command: pb.BaseCommand, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return the frame of a command with a message."""
    body = command.SerializeToString()
    header = metadata.SerializeToString()
    checked = _SIZE.pack(len(header)) + header + payload
    rest = _MAGIC + _SIZE.pack(google_crc32c.value(checked)) + checked
    return _SIZES.pack(4 + len(body) + len(rest), len(body)) + body + rest
