"""The queue of all indexes in memory: those of the mutable bucket and of all loaded segments.

It merges *runs*, which are columns in order of time, by a heap of their heads. The *tail* is a small heap of the newest
indexes; when it is full, it becomes a run. So an index takes 24 bytes, except in the tail, and taking one is
O(log runs). Each run, and the tail, has a bucket as its owner, whose ``loaded`` counts its indexes here.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count
from typing import Any, Final

from ...index import NEVER
from ..format import Columns, Index
from ._buckets import AnyBucket

TAIL: Final = 2_048
_MAX_RUN: Final = 8_192
"""Longest run of added indexes: its memory is released with its last index."""
_MIN_RUN: Final = 256
"""Shortest run of indexes that are added in bulk: each run takes some hundred bytes."""
_MAX_CHAINS: Final = 8
_IN_A_ROW: Final = 4
_TAIL_INDEX_BYTES: Final = 170


class Run:
    """Columns that are consumed from the front; ``at`` is the offset of the next index."""

    __slots__ = ("at", "columns", "number", "owner")

    def __init__(self, columns: Columns, owner: AnyBucket, number: int) -> None:
        self.columns = columns
        self.owner = owner
        self.number = number
        self.at = 0

    def head(self) -> tuple[int, int, int, int, Run]:
        """Return the next index with the run, as the key by which runs are ordered."""
        columns, at = self.columns, self.at
        return columns.times[at], columns.ledgers[at], columns.entries[at], self.number, self

    def rest(self) -> Iterator[Index]:
        """Return the remaining indexes; taking from the run meanwhile does not change them."""
        return self.columns.rest(self.at)


def in_order(runs: Iterable[Run]) -> Iterator[Index]:
    """Return the remaining indexes of some runs, merged. Runs that follow each other cost nothing to merge."""
    chains: list[list[Run]] = []
    for run in sorted(runs, key=Run.head):
        first = run.columns[run.at]
        after = next((each for each in chains[:_MAX_CHAINS] if each[-1].columns[-1] <= first), None)
        if after is None:
            chains.append([run])
        else:
            after.append(run)
    rests = [chain.from_iterable([run.rest() for run in each]) for each in chains]
    return rests[0] if len(rests) == 1 else heapq.merge(*rests)


class DueQueue:
    """A priority queue of indexes; see the head of the module."""

    __slots__ = ("_heads", "_numbers", "_run_bytes", "_tail", "_tail_owner")

    def __init__(self, tail_owner: AnyBucket) -> None:
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
        """Add an index of the tail's owner. O(log tail), plus a sort whenever the tail is full."""
        heapq.heappush(self._tail, index)
        self._tail_owner.loaded += 1
        if len(self._tail) >= TAIL:
            self._fold()

    def push_many(self, columns: Columns) -> None:
        """Add indexes of the tail's owner, given in order. O(n)."""
        if len(columns) < _MIN_RUN:
            for index in columns:
                self.push(index)
            return
        self._tail_owner.loaded += len(columns)
        for at in range(0, len(columns), _MAX_RUN):
            self._add_run(columns.part(at, at + _MAX_RUN), self._tail_owner)

    def change_tail_owner(self, owner: AnyBucket) -> None:
        """Give the indexes that are pushed from now on another owner."""
        self._fold()
        self._tail_owner = owner

    def add(self, columns: Columns, owner: AnyBucket) -> None:
        """Add indexes of an owner, given in order. O(log runs)."""
        owner.loaded += len(columns)
        self._add_run(columns, owner)

    def first(self) -> Index | None:
        """Return the next index. O(1)."""
        tail, heads = self._tail, self._heads
        if tail and (not heads or tail[0] <= heads[0][:3]):
            return tail[0]
        return heads[0][:3] if heads else None

    @property
    def earliest(self) -> int:
        """Return the time of the next index, NEVER if the queue is empty. O(1)."""
        at = self._heads[0][0] if self._heads else NEVER
        return min(at, self._tail[0][0]) if self._tail else at

    def pop(self) -> AnyBucket:
        """Remove the next index; return its owner. O(log runs)."""
        tail, heads = self._tail, self._heads
        if tail and (not heads or tail[0] <= heads[0][:3]):
            heapq.heappop(tail)
            self._tail_owner.loaded -= 1
            return self._tail_owner
        run = heads[0][4]
        self._advance(run, 1)
        return run.owner

    def take(self, until: int, most: int) -> tuple[list[tuple[Any, ...]], set[AnyBucket]]:
        """Remove at most ``most`` indexes up to a time; return them and their owners.

        Each returned tuple begins with the index. O(log runs) each, less if consecutive ones are of one run.
        """
        heads, tail = self._heads, self._tail
        taken: list[tuple[Any, ...]] = []
        owners: set[AnyBucket] = set()
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
                taken += self._take_from_first(run, until, most - len(taken))
            else:
                taken.append(heads[0])
                self._advance(run, 1)
        return taken, owners

    def _take_from_first(self, run: Run, until: int, most: int) -> Iterator[Index]:
        """Remove the next indexes from the first run while no other source comes before, at least one."""
        columns, at = run.columns, run.at
        before = min([head[0] for head in self._heads[1:3]] + [index[0] for index in self._tail[:1]], default=NEVER)
        end = bisect_left(columns.times, min(before, until + 1), at + 1, min(at + most, len(columns)))
        part = columns.part(at, end)
        self._advance(run, end - at)
        return iter(part)

    def runs(self, owners: Collection[AnyBucket]) -> list[Run]:
        """Return the runs of some owners, the tail excluded. O(runs)."""
        return [head[4] for head in self._heads if head[4].owner in owners]

    def drop(self, owners: Collection[AnyBucket]) -> None:
        """Remove the runs of some owners, which must not own the tail. O(runs)."""
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
        """Remove everything; the tail keeps its owner."""
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

    def _add_run(self, columns: Columns, owner: AnyBucket) -> None:
        if columns:
            self._run_bytes += columns.bytes
            heapq.heappush(self._heads, Run(columns, owner, next(self._numbers)).head())

    def _advance(self, run: Run, count: int) -> None:
        """Consume ``count`` indexes of the first run."""
        run.at += count
        run.owner.loaded -= count
        if run.at < len(run.columns):
            heapq.heapreplace(self._heads, run.head())
        else:
            heapq.heappop(self._heads)
            self._run_bytes -= run.columns.bytes
