"""The command of a MESSAGE frame: which consumer it is for, where the entry is stored, how often it was sent. No I/O.

Nearly all such commands have the same few fields in the same order. They are read without protobuf, in a third of the
time; all others are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from . import _pulsar_pb2 as pb

_NUMBER: Final = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_USUAL: Final = re.compile(
    rb"\x08\x09\x4a([\x00-\x7f])"  # the kind, and the size of the body
    rb"\x08" + _NUMBER + rb"\x12([\x00-\x7f])"  # consumer id, and the size of the message id
    rb"\x08" + _NUMBER + rb"\x10" + _NUMBER + rb"(\x18\xff{9}\x01|\x18[\x00-\x7f]|)"  # ledger, entry, partition
    rb"(?:\x18" + _NUMBER + rb")?"  # redelivery count
).fullmatch


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
        self._shared = (0, 0, 0)

    def read(self, data: bytes, start: int, end: int) -> MessageCommand | None:
        """Return the command in ``data[start:end]``, or None if it needs the parser."""
        if (
            end - start != self._size
            or not data.startswith(self._before, start)
            or not data.endswith(self._after, start, end)
        ):
            return self._read(data, start, end)
        at = start + len(self._before)
        length = end - at - len(self._after)
        last = data[at + length - 1]
        if length == 2 and last < 0x80 <= data[at]:
            entry = data[at] + (last << 7) - 0x80
        elif length == 3 and last < 0x80 <= data[at] and data[at + 1] >= 0x80:
            entry = data[at] + (data[at + 1] << 7) + (last << 14) - 0x4080
        else:
            return self._read(data, start, end)
        consumer_id, ledger, count = self._shared
        return tuple.__new__(MessageCommand, (consumer_id, ledger, entry, count, (), None))

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
        return command


def number_of(varint: bytes) -> int:
    """Return the value of a varint; bits above 64 are cut off, as protobuf does."""
    number = 0
    for shift, byte in enumerate(varint):
        number |= (byte & 0x7F) << 7 * shift
    return number & 0xFFFF_FFFF_FFFF_FFFF
