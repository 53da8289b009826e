"""The recorded frames of ``data/frames.jsonl``, which ``record.py`` makes."""

from __future__ import annotations

import base64
import json
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import FrameDecoder

DATA = Path(__file__).parent / "data" / "frames.jsonl"


class Recorded(NamedTuple):
    """A frame and its sender; ``client`` is the client of the connection."""

    sender: str
    client: str
    frame: bytes
    command: pb.BaseCommand
    rest: bytes

    @property
    def kind(self) -> str:
        """Return the name of the command's kind."""
        return pb.BaseCommand.Type.Name(self.command.type)


@cache
def recorded() -> tuple[Recorded, ...]:
    """Return all recorded frames."""
    found = []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        data = base64.b64decode(told["frame"])
        assert len(FrameDecoder().feed(data)) == 1
        _, size = struct.unpack_from(">II", data)
        command = pb.BaseCommand.FromString(data[8 : 8 + size])
        found.append(Recorded(told["from"], told["client"], data, command, data[8 + size :]))
    return tuple(found)


def of_kind(kind: str, sender: str | None = None) -> list[Recorded]:
    """Return the frames of a kind, from one sender or all."""
    return [one for one in recorded() if one.kind == kind and sender in (None, one.sender)]
