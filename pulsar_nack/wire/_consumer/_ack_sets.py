"""Ack sets: which members of a batch are not acknowledged yet, as an int and in the protocol's form. Pure.

On the wire an ack set is a list of signed 64-bit words, the lowest first; a set bit is a message that is NOT
acknowledged. Here it is one int. The broker intersects all the sets that it gets, so a set may repeat an earlier one.

A set here has what this consumer acknowledged in its present session, nothing from before: the subscription may have
been moved back since then, and a set that is too small would acknowledge too much.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ...errors import BrokerError
from ...ids import MessageId

_WORD_BITS: Final = 64
_MAX_ENTRIES: Final = 50_000


def words_of(remaining: int) -> list[int]:
    """Return an ack set as signed words."""
    count = -(-remaining.bit_length() // _WORD_BITS)
    return list(struct.unpack(f"<{count}q", remaining.to_bytes(8 * count, "little")))


def remaining_of(words: Sequence[int], size: int | None = None) -> int:
    """Return an ack set from the broker as bits.

    :param size: the batch size, beyond which bits are ignored, however many words there are; None: all bits count
    """
    if size is not None:
        words = words[: -(-size // _WORD_BITS)]
    remaining = int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    return remaining if size is None or remaining.bit_length() <= size else remaining & all_of(size)


def all_of(size: int) -> int:
    """Return the ack set of a batch of which no message is acknowledged."""
    return (1 << size) - 1


class AckSets:
    """The ack sets of partly acknowledged entries, at most 50 000; beyond that the oldest are forgotten.

    Forgetting one is harmless: the entry is never acknowledged as a whole, so the broker sends it again.
    """

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self.generation = 0
        """Grows whenever a set is forgotten."""
        self._max_entries = max_entries
        self.sets: OrderedDict[tuple[int, int], int] = OrderedDict()
        """The remaining members of each entry."""

    def __len__(self) -> int:
        return len(self.sets)

    def acked(self, message_id: MessageId) -> int:
        """Note an acknowledged message; return the remaining members of its entry, 0: none.

        :raises BrokerError: the id lacks the size of its batch
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        if index < 0 or size == 1:
            if self.sets:
                self.sets.pop(position, None)
            return 0
        check_size(message_id)
        return self.intersect(position, ((1 << size) - 1) & ~(1 << index))

    def failed(self, message_id: MessageId, generation: int) -> None:
        """Note that acknowledging a message failed: its entry is not complete without it.

        :param generation: that of these sets when the message was noted; one of an earlier generation is forgotten
        """
        if generation == self.generation and message_id.batch_index >= 0:
            position = (message_id.ledger, message_id.entry)
            self.sets[position] = self.sets.get(position, 0) | 1 << message_id.batch_index

    def acked_through(self, message_id: MessageId) -> int:
        """Note that all messages up to this one are acknowledged; return its entry's remaining members. O(entries).

        :raises BrokerError: the id lacks the size of its batch
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        check_size(message_id)
        for known in [known for known in self.sets if known < position]:
            del self.sets[known]
        remaining = 0 if index < 0 else all_of(size) & ~all_of(index + 1)
        if not remaining:
            self.sets.pop(position, None)
            return 0
        return self.intersect(position, remaining)

    def intersect(self, position: tuple[int, int], remaining: int) -> int:
        """Note that at most these members of an entry remain; return those that remain by all that is known."""
        known = self.sets.pop(position, None)
        if known is not None:
            remaining &= known
        if remaining:
            self.sets[position] = remaining
            if len(self.sets) > self._max_entries:
                self.sets.popitem(last=False)
                self.generation += 1
        return remaining

    def forget(self) -> None:
        """Forget all sets, because the broker may not have them any more."""
        self.sets.clear()
        self.generation += 1


def check_size(message_id: MessageId) -> None:
    """Raise BrokerError if the id of a batch's member lacks the size of the batch."""
    if message_id.batch_index >= message_id.batch_size:
        raise BrokerError(
            f"{message_id!r} cannot be acknowledged: its batch_size, the number of messages in its batch, is missing"
        )
