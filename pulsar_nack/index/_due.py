"""What came due, as ids that are made only when somebody looks at them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from ..ids import MessageId, Position
from ._positions import Run


class DueIds(Sequence[MessageId]):
    """Ids in the order in which they came due; 4 bytes an id until they are looked at. Equal to a list of the same ids.

    ``originals`` holds the ids that cannot be made from a number alone: those of chunked messages.
    """

    __slots__ = ("_ends", "_originals", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._ends: list[int] = []
        self._originals: dict[int, MessageId] = {}

    def append(self, run: Run) -> None:
        """Add ascending numbers of one slot."""
        self._runs.append(run)
        self._ends.append(len(self) + len(run[1]))

    def replace(self, originals: Mapping[int, MessageId]) -> None:
        """Give back the chunked ids, by number."""
        self._originals.update(originals)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[MessageId]:
        if self._originals:
            for slot, numbers in self._runs:
                yield from map(self._originals.get, numbers, slot.message_ids(numbers))
            return
        for slot, numbers in self._runs:
            yield from slot.message_ids(numbers)

    def positions(self) -> list[Position]:
        """Return the positions instead of the ids."""
        return [position for slot, numbers in self._runs for position in slot.positions(numbers)]

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
        slot, numbers = self._runs[run]
        number = numbers[place - self._ends[run]]  # counted from the end of the run
        original = self._originals.get(number)
        return original if original is not None else next(slot.message_ids(array(numbers.typecode, [number])))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:5]))
        return f"DueIds([{shown}{', ...' if len(self) > 5 else ''}], {len(self)} ids)"
