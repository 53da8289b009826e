"""Ledgers that are read back from storage when an operation needs them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import CursorFormatError, LogCorruptedError
from ..ids import Position
from ._acks import AckState
from ._cache import LedgerCache
from ._ledger_acks import LedgerAcks, LedgersNotLoaded
from ._line import IsWanted
from ._log import CursorLog
from ._recovery import decode_off_loop

_T = TypeVar("_T")

Range = tuple[Position, Position]
"""Acknowledged entries: open below, closed above."""

_SLICE_S: Final = 0.004
_log = logging.getLogger("pulsar_nack.cursor")


class Loading:
    """Brings ledgers into memory; one operation at a time, from the cursor's line."""

    def __init__(self, state: AckState, log: CursorLog, cache: LedgerCache) -> None:
        self.loads = 0
        self.pinned: frozenset[int] = frozenset()
        """What the operation under way has loaded, and which stays in memory for as long."""
        self._state = state
        self._log = log
        self._cache = cache

    async def run(self, attempt: Callable[[], _T], is_wanted: IsWanted) -> _T:
        """Do this once all ledgers are in memory that it needs.

        :raises LogStorageError: one could not be read; nothing has changed
        """
        try:
            while is_wanted():
                try:
                    return attempt()
                except LedgersNotLoaded as missing:
                    self.pinned |= missing.ledgers
                    for ledger in sorted(missing.ledgers):
                        await self._load(ledger)
            raise asyncio.CancelledError
        finally:
            self.pinned = frozenset()

    async def read_ranges(self, is_wanted: IsWanted) -> list[list[Range]]:
        """Go through all ledgers; nothing changes meanwhile, for it stands in line before whoever comes."""
        state = self._state
        found: list[list[Range]] = []
        paused_at = time.monotonic()
        for ledger in sorted({*state.ledger_states, *state.evicted}):
            if not is_wanted():
                break
            acks = state.ledger_states.get(ledger)
            if acks is None:
                acks = await self._read(ledger)
                if ledger == state.mark_delete_position.ledger:
                    acks.trim(state.mark_delete_position.entry)
            found.append(as_positions(ledger, acks))
            if time.monotonic() - paused_at > _SLICE_S:
                await asyncio.sleep(0)
                paused_at = time.monotonic()
        return [ranges for ranges in found if ranges]

    async def _load(self, ledger: int) -> None:
        acks = await self._read(ledger)
        self.loads += 1
        if self._state.restore(ledger, acks):
            self._cache.use(ledger)

    async def _read(self, ledger: int) -> LedgerAcks:
        """Read a ledger's state; one that cannot be decoded counts as one with nothing acknowledged (K34)."""
        try:
            return await decode_off_loop(ledger, await self._log.read(ledger))
        except (CursorFormatError, LogCorruptedError) as error:
            _log.warning(
                "what was acknowledged in ledger %d after the mark-delete position %s cannot be read, and is delivered"
                " again: %s",
                ledger,
                tuple(self._state.mark_delete_position),
                error,
            )
            return LedgerAcks()


def as_positions(ledger: int, acks: LedgerAcks) -> list[Range]:
    """Return a ledger's ranges, each open below and closed above."""
    return [(Position(ledger, first - 1), Position(ledger, last)) for first, last in acks.ranges.ranges()]
