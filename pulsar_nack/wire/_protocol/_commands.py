"""Commands, as bytes that are ready to be sent."""

from __future__ import annotations

from .. import _pulsar_pb2 as pb
from ._frames import encode_command

_PING = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
_PONG = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


def ping() -> bytes:
    """Return the question whether the other side is there."""
    return _PING


def pong() -> bytes:
    """Return the answer to a ping."""
    return _PONG
