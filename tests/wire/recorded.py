"""The recorded frames of ``data/frames.jsonl``, which ``record.py`` makes."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import FrameDecoder

DATA = Path(__file__).parent / "data" / "frames.jsonl"


class Recorded(NamedTuple):
    """A frame, and who sent it; ``client`` is the one that the connection belongs to."""

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
        (frame,) = FrameDecoder().feed(data)
        found.append(Recorded(told["from"], told["client"], data, frame.command, frame.headers_and_payload))
    return tuple(found)


def of_kind(kind: str, sender: str | None = None) -> list[Recorded]:
    """Return the frames of a kind, from one sender or all."""
    return [one for one in recorded() if one.kind == kind and sender in (None, one.sender)]
