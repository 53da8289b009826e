"""Several sequences of ids seen as one, without making the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from ..ids import MessageId


class JoinedIds(Sequence[MessageId]):
    """Ids of several sequences, one after the other; those that are made lazily stay so."""

    def __init__(self, parts: Sequence[Sequence[MessageId]]) -> None:
        self._parts = [part for part in parts if len(part)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[MessageId]:
        return chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | Sequence[MessageId]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        position = range(len(self))[index]
        for part in self._parts:
            if position < len(part):
                return part[position]
            position -= len(part)
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JoinedIds({list(self)!r})"


def join_ids(parts: Sequence[Sequence[MessageId]]) -> Sequence[MessageId]:
    """Return the ids of all parts as one sequence: the only part itself where there is but one."""
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    return JoinedIds(parts) if parts else []
