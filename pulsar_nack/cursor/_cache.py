"""Which ledgers of a cursor are in memory: those used last, within a bound, and those that an operation needs (PIP-81).

Ledgers are evicted in the order of their last use. A ledger must be on storage as it is in memory before it is evicted;
so one that is dirty, or being written, stays for now, and a write begins. The ledger used last always stays. If memory
grows far beyond the limit meanwhile, acknowledgements wait for the write.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from ..errors import CursorFormatError, LogCorruptedError
from ..ids import Position
from ._acks import AckState
from ._records import decode_off_loop
from .format import LedgerAcks, LedgersNotLoaded
from .logs import CursorLog

_T = TypeVar("_T")

IsWanted = Callable[[], bool]
"""Returns whether the caller of an operation still waits for it."""
Range = tuple[Position, Position]
"""Acknowledged entries: open below, closed above."""

_SPARE: Final = 64
_SLICE_S: Final = 0.004
_log = logging.getLogger("pulsar_nack.cursor")


class LedgerCache:
    """The ledgers of one cursor that are in memory, in the order of their last use.

    :param limit: bytes that they may take; None: no bound
    """

    def __init__(self, state: AckState, log: CursorLog, limit: int | None) -> None:
        self.evictions = 0
        self.loads = 0
        self.last_used: int | None = None
        self.is_crowded = False
        """Whether so much more than the limit is in memory that acknowledgements have to wait for a write."""
        self._limit = limit
        self._crowded_excess = math.inf if limit is None else limit // 16
        self._state = state
        self._log = log
        self._order: OrderedDict[int, None] = OrderedDict()
        self._pinned: frozenset[int] = frozenset()  # loaded by the present operation, and not to be evicted

    # -- use and eviction ----------------------------------------------------------------------------------------------

    @property
    def excess(self) -> int:
        """Return how many bytes above the limit are in memory, below 1 if they fit. One ledger always fits."""
        table = self._state.table
        if self._limit is None or len(table.states) < 2:
            return 0
        return table.memory_bytes - self._limit

    def use(self, ledger: int) -> None:
        """Note that a ledger is used. O(1)."""
        order = self._order
        if ledger in order:
            order.move_to_end(ledger)
        else:
            order[ledger] = None
            if len(order) > 2 * len(self._state.table.states) + _SPARE:
                self._oldest()

    def use_all(self, ledgers: Iterable[int]) -> None:
        """Note that ledgers are used, the last one last."""
        for ledger in ledgers:
            self.use(ledger)

    def use_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        """Note that the ledgers of these positions (at least one) are used."""
        ledger = positions[-1][0]
        if len(positions) > 1:
            self.use_all({each for each, _ in positions})
        self.use(ledger)
        self.last_used = ledger

    def make_room(self, *, is_writing: bool) -> bool:
        """Evict ledgers if they take too much memory; return whether the remaining ones fit.

        :param is_writing: whether a write has taken dirty ledgers: nothing is evicted then
        """
        fits = self.excess <= 0 if is_writing else self._evict()
        self.is_crowded = not fits and self.excess > self._crowded_excess
        return fits

    def _evict(self) -> bool:
        """Evict ledgers, least recently used first, until the remaining ones fit; return whether they do."""
        if self.excess <= 0:
            return True
        table = self._state.table
        for ledger in self._oldest():
            if ledger not in table.dirty and ledger not in self._pinned:
                table.evict(ledger)
                self._order.pop(ledger, None)
                self.evictions += 1
                if self.excess <= 0:
                    return True
        return False

    def _oldest(self) -> list[int]:
        """Return the ledgers in memory, least recently used first, without the last one; forget those that are gone."""
        states = self._state.table.states
        unknown = [ledger for ledger in states if ledger not in self._order]
        for ledger in unknown:
            self._order[ledger] = None
            self._order.move_to_end(ledger, last=False)
        for ledger in [ledger for ledger in self._order if ledger not in states]:
            del self._order[ledger]
        return list(self._order)[:-1]

    # -- loading, one operation at a time ------------------------------------------------------------------------------

    async def run_loaded(self, attempt: Callable[[], _T], is_wanted: IsWanted) -> _T:
        """Call ``attempt`` once all ledgers that it needs are in memory; return its result.

        :raises LogStorageError: a ledger could not be read; nothing has changed
        :raises asyncio.InvalidStateError: the caller was cancelled; nothing has changed
        """
        try:
            while is_wanted():
                try:
                    return attempt()
                except LedgersNotLoaded as missing:
                    self._pinned |= missing.ledgers
                    for ledger in sorted(missing.ledgers):
                        await self._load(ledger)
            raise asyncio.InvalidStateError  # a CancelledError would cancel the operations behind this one
        finally:
            self._pinned = frozenset()

    def switch(self, ledger: int) -> None:
        """Make a ledger the one that was used last, if anything of it is acknowledged.

        :raises LedgersNotLoaded: the ledger is evicted
        """
        if self._state.table.loaded(ledger) is not None:
            self.use_positions([(ledger, 0)])

    async def read_ranges(self, is_wanted: IsWanted) -> list[list[Range]]:
        """Return the ranges of each ledger; nothing changes meanwhile, because later operations wait for this one."""
        table, mark_delete = self._state.table, self._state.mark_delete
        found: list[list[Range]] = []
        paused_at = time.monotonic()
        for ledger in sorted({*table.states, *table.evicted}):
            if not is_wanted():
                break
            acks = table.states.get(ledger)
            if acks is None:
                acks = await self._read(ledger)
                if ledger == mark_delete.ledger:
                    acks.trim(mark_delete.entry)
            found.append(as_positions(ledger, acks))
            if time.monotonic() - paused_at > _SLICE_S:
                await asyncio.sleep(0)
                paused_at = time.monotonic()
        return [ranges for ranges in found if ranges]

    async def _load(self, ledger: int) -> None:
        acks = await self._read(ledger)
        self.loads += 1
        if self._state.restore(ledger, acks):
            self.use(ledger)

    async def _read(self, ledger: int) -> LedgerAcks:
        """Read a ledger's state; if it cannot be decoded, nothing of the ledger counts as acknowledged."""
        try:
            records = await self._log.read(ledger)
            return await decode_off_loop(ledger, records) if records else LedgerAcks()
        except (CursorFormatError, LogCorruptedError) as error:
            _log.warning(
                "what was acknowledged in ledger %d after the mark-delete position %s cannot be read and will be"
                " delivered again: %s",
                ledger,
                tuple(self._state.mark_delete_position),
                error,
            )
            return LedgerAcks()


def as_positions(ledger: int, acks: LedgerAcks) -> list[Range]:
    """Return a ledger's ranges, each open below and closed above."""
    return [(Position(ledger, first - 1), Position(ledger, last)) for first, last in acks.ranges.ranges()]
