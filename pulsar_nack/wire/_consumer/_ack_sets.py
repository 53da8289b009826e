"""Which messages of an entry are not acknowledged yet, as bits, and as the protocol has them. Pure.

On the wire an ack set is words of 64 bits, signed, the lowest first; a bit that is set is a message that is NOT
acknowledged. Here it is one int. The broker keeps what is in every set that it got, so a set may tell again what an
earlier one told.

A set here knows what was acknowledged through this consumer while it was subscribed, nothing from before: the
subscription may have been moved back meanwhile, and then a set that is too small would acknowledge too much.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from ...errors import BrokerError
from ...ids import MessageId

_WORD_BITS: Final = 64
_MOST_ENTRIES: Final = 50_000


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
    """Return the set of a batch of which nothing is acknowledged."""
    return (1 << size) - 1


class AckSets:
    """Entries of which some messages are acknowledged, at most 50 000: the oldest are forgotten first.

    Forgetting is harmless: such an entry is not acknowledged as a whole here, and comes again.
    """

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        self.generation = 0
        """Grows whenever something is forgotten."""
        self._most = most
        self._sets: dict[tuple[int, int], int] = {}
        self.sets: Mapping[tuple[int, int], int] = self._sets
        """What remains of each entry."""

    def __len__(self) -> int:
        return len(self._sets)

    def acked(self, message_id: MessageId) -> int:
        """Note one acknowledged message; return what remains of its entry, 0: nothing.

        :raises BrokerError: the id does not tell how many messages there are in its batch
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        if index < 0 or size == 1:
            if self._sets:
                self._sets.pop(position, None)
            return 0
        _check_size(message_id)
        return self.narrow(position, ((1 << size) - 1) & ~(1 << index))

    def failed(self, message_id: MessageId, generation: int) -> None:
        """Note that a message is not acknowledged after all: its entry is not to be done without it.

        :param generation: the one of these sets when it was noted as acknowledged; of an earlier one nothing is left
        """
        if generation == self.generation and message_id.batch_index >= 0:
            position = (message_id.ledger, message_id.entry)
            self._sets[position] = self._sets.get(position, 0) | 1 << message_id.batch_index

    def acked_through(self, message_id: MessageId) -> int:
        """Note that all up to a message are acknowledged, in its entry too; return what remains of that. O(entries).

        :raises BrokerError: as :meth:`acked`
        """
        index, size = message_id.batch_index, message_id.batch_size
        position = (message_id.ledger, message_id.entry)
        if index >= 0:
            _check_size(message_id)
        for known in [known for known in self._sets if known < position]:
            del self._sets[known]
        remaining = 0 if index < 0 else all_of(size) & ~all_of(index + 1)
        if not remaining:
            self._sets.pop(position, None)
            return 0
        return self.narrow(position, remaining)

    def narrow(self, position: tuple[int, int], remaining: int) -> int:
        """Note that no other messages of an entry than these remain; return what remains by all that is known."""
        known = self._sets.pop(position, None)
        if known is not None:
            remaining &= known
        if remaining:
            self._sets[position] = remaining
            if len(self._sets) > self._most:
                del self._sets[next(iter(self._sets))]
                self.generation += 1
        return remaining

    def forget(self) -> None:
        """Forget all: from now on the broker may know less."""
        self._sets.clear()
        self.generation += 1


def _check_size(message_id: MessageId) -> None:
    if message_id.batch_index >= message_id.batch_size:
        raise BrokerError(
            f"{message_id!r} cannot be acknowledged: it does not tell how many messages its batch has (batch_size)"
        )
