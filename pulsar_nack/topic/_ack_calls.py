"""Acknowledgements as they are asked for, message by message, and as a cursor takes them: entries and batch sets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ..cursor import BatchSet
from ..ids import MessageId, Position

SizeOf = Callable[[MessageId], Awaitable[int]]


class AckCall(NamedTuple):
    """Entries, each once, and of those that are not acknowledged as a whole what is left."""

    positions: list[Position]
    batch_sets: dict[Position, BatchSet]


async def ack_call(ids: Sequence[MessageId], size_of: SizeOf) -> AckCall:
    """Gather the messages of each entry.

    :param size_of: returns the size of a message's batch, 0 for none; asked for ids with a batch index only
    :raises InvalidArgumentError: a batch index that the entry does not have
    """
    positions: dict[Position, None] = {}
    batch_sets: dict[Position, BatchSet] = {}
    whole: set[Position] = set()
    for message_id in ids:
        position = Position(*message_id[:2])
        positions[position] = None
        if message_id.batch_index < 0:
            whole.add(position)
            continue
        one = BatchSet.acked(await size_of(message_id), [message_id.batch_index])
        known = batch_sets.get(position)
        batch_sets[position] = one if known is None else known.merge(one)
    return AckCall(list(positions), {each: left for each, left in batch_sets.items() if each not in whole})
