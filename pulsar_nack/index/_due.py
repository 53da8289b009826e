"""Ids that are due, each made when it is read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, starmap
from typing import Final, overload

from ..ids import MessageId, Position
from ._id_blocks import IdBlock

_make = tuple.__new__
_AT_A_TIME: Final = 256


class DueIds(Sequence[MessageId]):
    """Ids in the order in which they are due: 4 bytes an id until it is read, 12 where few share an id block.

    Equal to a list of the same ids. Ids of chunked messages cannot be made from a number and are kept as they are.

    :param block: with ``numbers``: begin with some numbers of one block
    """

    __slots__ = ("_ends", "_originals", "_runs")

    def __init__(self, block: IdBlock | None = None, numbers: array[int] | None = None) -> None:
        self._runs: list[tuple[IdBlock | list[IdBlock], array[int]]] = []
        self._ends: list[int] = []
        if block is not None and numbers is not None:
            self._runs.append((block, numbers))
            self._ends.append(len(numbers))
        self._originals: dict[int, MessageId] = {}

    def append(self, blocks: IdBlock | list[IdBlock], numbers: array[int]) -> None:
        """Add numbers of one block, or with a list of blocks the number of each."""
        self._runs.append((blocks, numbers))
        self._ends.append(len(numbers) + (self._ends[-1] if self._ends else 0))

    def replace(self, originals: Mapping[int, MessageId]) -> None:
        """Use these ids of chunked messages, by number."""
        self._originals.update(originals)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[MessageId]:
        if len(self._runs) == 1 and not self._originals:
            block, numbers = self._runs[0]
            if not isinstance(block, list):
                return block.message_ids(numbers)
        return chain.from_iterable(starmap(self._ids, self._runs))

    def _ids(self, blocks: IdBlock | list[IdBlock], numbers: array[int]) -> Iterable[MessageId]:
        ids = _mixed_ids(blocks, numbers) if isinstance(blocks, list) else blocks.message_ids(numbers)
        return map(self._originals.get, numbers, ids) if self._originals else ids

    def positions(self) -> list[Position]:
        """Return the positions instead of the ids."""
        found: list[Position] = []
        for blocks, numbers in self._runs:
            if isinstance(blocks, list):
                found += (_make(Position, message_id[:2]) for message_id in _mixed_ids(blocks, numbers))
            else:
                found += blocks.positions(numbers)
        return found

    @overload
    def __getitem__(self, index: int) -> MessageId: ...

    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...

    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        run = bisect_right(self._ends, place)
        blocks, numbers = self._runs[run]
        at = place - self._ends[run]  # negative: from the end of the run
        number = numbers[at]
        original = self._originals.get(number)
        if original is not None:
            return original
        block = blocks[at] if isinstance(blocks, list) else blocks
        return next(block.message_ids((number,)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"DueIds([{shown}{', ...' if len(self) > 5 else ''}], {len(self)} ids)"


def _mixed_ids(blocks: list[IdBlock], numbers: array[int]) -> Iterator[MessageId]:
    """Make an id of each number and its block, some hundred at a time."""
    places = range(0, len(numbers), _AT_A_TIME)
    return chain.from_iterable(_some_ids(blocks[at : at + _AT_A_TIME], numbers[at : at + _AT_A_TIME]) for at in places)


def _some_ids(blocks: list[IdBlock], numbers: array[int]) -> list[MessageId]:
    return [
        next(block.message_ids((number,)))
        if block.bits or block.topic
        else _make(MessageId, (block.ledger, number + block.offset, block.partition, -1))
        for block, number in zip(blocks, numbers, strict=True)
    ]
