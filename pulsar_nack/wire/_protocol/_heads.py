"""What the command of a message's frame tells: for whom it is, where it is stored, how often it was sent. No I/O.

Nearly all such commands have the same few fields in the same order, and are read in a third of the time that a parser
takes; for all others there is the parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from .. import _pulsar_pb2 as pb

_NUMBER: Final = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_USUAL: Final = re.compile(
    rb"\x08\x09\x4a([\x00-\x7f])"  # the kind, and the size of what follows
    rb"\x08" + _NUMBER + rb"\x12([\x00-\x7f])"  # consumer id, and the size of the message id
    rb"\x08" + _NUMBER + rb"\x10" + _NUMBER + rb"(\x18\xff{9}\x01|\x18[\x00-\x7f]|)"  # ledger, entry, partition
    rb"(?:\x18" + _NUMBER + rb")?"  # redelivery count
).fullmatch


class MessageHead(NamedTuple):
    """What is told of an entry beside it.

    :param ack_set: words of the messages of a batch that are not acknowledged, lowest first; empty: none is
    :param epoch: of the consumer when it was sent, None where the broker does not tell
    """

    consumer_id: int
    ledger: int
    entry: int
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()
    epoch: int | None = None


def head_of(command: pb.CommandMessage) -> MessageHead:
    """Return the head that a parsed command is."""
    return MessageHead(
        command.consumer_id,
        command.message_id.ledgerId,
        command.message_id.entryId,
        command.redelivery_count,
        tuple(command.ack_set),
        command.consumer_epoch if command.HasField("consumer_epoch") else None,
    )


class HeadReader:
    """Reads heads without a parser. One after the other they differ in the entry only, which is looked at first."""

    def __init__(self) -> None:
        self._size = -1
        self._before = self._after = b""
        self._shared = (0, 0, 0)

    def read(self, data: bytes, start: int, end: int) -> MessageHead | None:
        """Return the head in ``data[start:end]``, None where it is not a usual one."""
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
        return tuple.__new__(MessageHead, (consumer_id, ledger, entry, count, (), None))

    def _read(self, data: bytes, start: int, end: int) -> MessageHead | None:
        found = _USUAL(data, start, end)
        if found is None:
            return None
        size, consumer, id_size, ledger, entry, partition, count = found.groups()
        if size[0] != end - start - 4 or id_size[0] != len(ledger) + len(entry) + len(partition) + 2:
            return None
        head = MessageHead(number_of(consumer), number_of(ledger), number_of(entry), number_of(count or b"\0"))
        self._size, self._shared = end - start, (head.consumer_id, head.ledger, head.redelivery_count)
        self._before, self._after = data[start : found.start(5)], data[found.end(5) : end]
        return head


def number_of(varint: bytes) -> int:
    """Return the unsigned number of 64 bits that a varint is; what is above is cut off, as a parser does."""
    number = 0
    for shift, byte in enumerate(varint):
        number |= (byte & 0x7F) << 7 * shift
    return number & 0xFFFF_FFFF_FFFF_FFFF
