"""The shared queue: everything that is in memory, of the bucket that is being filled and of all loaded segments.

It merges *runs*, columns in order of time, each with an owner, by a heap of their heads; and it has a small heap, the
*tail*, for what was added last. A full tail becomes a run. So an index takes 24 bytes but for the last few, and taking
one out is O(log runs).

An owner counts, in ``loaded``, how many of its indexes are here.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count
from typing import Any, Final, Protocol

from ...index import NEVER
from ._columns import Columns, Index

TAIL: Final = 2_048
_LONGEST: Final = 8_192
"""Longest run of what was added: its memory is free when the last of it is out."""
_SHORTEST: Final = 256
"""Shortest run that is made of what is added in bulk: each takes some hundred bytes."""
_CHAINS: Final = 8
_IN_A_ROW: Final = 4
_TAIL_INDEX_BYTES: Final = 170


class Owner(Protocol):
    """Whose indexes they are."""

    loaded: int


class Run:
    """Columns that are taken from the front; ``at`` is the place of the next one."""

    __slots__ = ("at", "columns", "number", "owner")

    def __init__(self, columns: Columns, owner: Owner, number: int) -> None:
        self.columns = columns
        self.owner = owner
        self.number = number
        self.at = 0

    def head(self) -> tuple[int, int, int, int, Run]:
        """Return the next one, so that runs can be ordered."""
        columns, at = self.columns, self.at
        return columns.times[at], columns.ledgers[at], columns.entries[at], self.number, self

    def rest(self) -> Iterator[Index]:
        """Return what is left now; taking from the run does not change it."""
        return self.columns.rest(self.at)


def in_order(runs: Iterable[Run]) -> Iterator[Index]:
    """Return what is left now of some runs, merged. Runs that follow each other cost nothing to merge."""
    chains: list[list[Run]] = []
    for run in sorted(runs, key=Run.head):
        first = run.columns[run.at]
        after = next((each for each in chains[:_CHAINS] if each[-1].columns[-1] <= first), None)
        if after is None:
            chains.append([run])
        else:
            after.append(run)
    rests = [chain.from_iterable([run.rest() for run in each]) for each in chains]
    return rests[0] if len(rests) == 1 else heapq.merge(*rests)


class DueQueue:
    """A priority queue of indexes; ``bytes`` is about what it takes in memory."""

    __slots__ = ("_heads", "_numbers", "_run_bytes", "_tail", "_tail_owner")

    def __init__(self, tail_owner: Owner) -> None:
        self._heads: list[tuple[int, int, int, int, Run]] = []
        self._tail: list[Index] = []
        self._tail_owner = tail_owner
        self._numbers = count()
        self._run_bytes = 0

    @property
    def bytes(self) -> int:
        """Return about how much memory it takes. O(1)."""
        return self._run_bytes + _TAIL_INDEX_BYTES * len(self._tail)

    def push(self, index: Index) -> None:
        """Add one of the tail's owner. O(log tail), now and then a sort of a full tail."""
        heapq.heappush(self._tail, index)
        self._tail_owner.loaded += 1
        if len(self._tail) >= TAIL:
            self._fold()

    def push_many(self, columns: Columns) -> None:
        """Add many, in order, of the tail's owner. O(n)."""
        if len(columns) < _SHORTEST:
            for index in columns:
                self.push(index)
            return
        self._tail_owner.loaded += len(columns)
        for at in range(0, len(columns), _LONGEST):
            self._add_run(columns.part(at, at + _LONGEST), self._tail_owner)

    def turn(self, owner: Owner) -> None:
        """Let what is pushed from now on belong to another owner."""
        self._fold()
        self._tail_owner = owner

    def add(self, columns: Columns, owner: Owner) -> None:
        """Add many, in order, of an owner. O(log runs)."""
        owner.loaded += len(columns)
        self._add_run(columns, owner)

    def first(self) -> Index | None:
        """Return the one that is next. O(1)."""
        tail, heads = self._tail, self._heads
        if tail and (not heads or tail[0] <= heads[0][:3]):
            return tail[0]
        return heads[0][:3] if heads else None

    @property
    def earliest(self) -> int:
        """Return the time of the one that is next, NEVER without one. O(1)."""
        at = self._heads[0][0] if self._heads else NEVER
        return min(at, self._tail[0][0]) if self._tail else at

    def pop(self) -> Owner:
        """Take the one out that is next; return whose it was. O(log runs)."""
        tail, heads = self._tail, self._heads
        if tail and (not heads or tail[0] <= heads[0][:3]):
            heapq.heappop(tail)
            self._tail_owner.loaded -= 1
            return self._tail_owner
        run = heads[0][4]
        self._advance(run, 1)
        return run.owner

    def take(self, until: int, most: int) -> tuple[list[tuple[Any, ...]], set[Owner]]:
        """Take out the next ones up to a time; return them, each beginning as an index, and whose they were.

        O(log runs) each, less where many of a run are next.
        """
        heads, tail = self._heads, self._tail
        taken: list[tuple[Any, ...]] = []
        owners: set[Owner] = set()
        last, in_a_row = None, 0
        while len(taken) < most:
            if tail and (not heads or tail[0] < heads[0]):
                if tail[0][0] > until:
                    break
                taken.append(heapq.heappop(tail))
                self._tail_owner.loaded -= 1
                owners.add(self._tail_owner)
                continue
            if not heads or heads[0][0] > until:
                break
            run = heads[0][4]
            if run is not last:
                last, in_a_row = run, 0
                owners.add(run.owner)
            in_a_row += 1
            if in_a_row > _IN_A_ROW:
                in_a_row = 0
                taken += self._take_of_first(run, until, most - len(taken))
            else:
                taken.append(heads[0])
                self._advance(run, 1)
        return taken, owners

    def _take_of_first(self, run: Run, until: int, most: int) -> Iterator[Index]:
        """Take as many as are next out of the run that is first, at least one."""
        columns, at = run.columns, run.at
        before = min([head[0] for head in self._heads[1:3]] + [index[0] for index in self._tail[:1]], default=NEVER)
        end = bisect_left(columns.times, min(before, until + 1), at + 1, min(at + most, len(columns)))
        part = columns.part(at, end)
        self._advance(run, end - at)
        return iter(part)

    def runs(self, owners: Collection[Owner]) -> list[Run]:
        """Return the runs of some owners; that of the tail has to be turned first. O(runs)."""
        return [head[4] for head in self._heads if head[4].owner in owners]

    def drop(self, owners: Collection[Owner]) -> None:
        """Take everything of some owners out; that of the tail has to be turned first. O(runs)."""
        kept = []
        for head in self._heads:
            if head[4].owner in owners:
                self._run_bytes -= head[4].columns.bytes
            else:
                kept.append(head)
        heapq.heapify(kept)
        self._heads = kept
        for owner in owners:
            owner.loaded = 0

    def clear(self) -> None:
        """Take everything out; what is pushed from now on still belongs to the same owner."""
        for head in self._heads:
            head[4].owner.loaded = 0
        self._tail_owner.loaded = 0
        self._heads.clear()
        self._tail.clear()
        self._run_bytes = 0

    def _fold(self) -> None:
        self._tail.sort()
        columns = Columns()
        columns.extend(self._tail)
        self._add_run(columns, self._tail_owner)
        self._tail.clear()

    def _add_run(self, columns: Columns, owner: Owner) -> None:
        if columns:
            self._run_bytes += columns.bytes
            heapq.heappush(self._heads, Run(columns, owner, next(self._numbers)).head())

    def _advance(self, run: Run, count: int) -> None:
        """Go on in the run that is first."""
        run.at += count
        run.owner.loaded -= count
        if run.at < len(run.columns):
            heapq.heapreplace(self._heads, run.head())
        else:
            heapq.heappop(self._heads)
            self._run_bytes -= run.columns.bytes
