"""Lets acknowledgements grow old, while the consumer is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ._epoch import Epoch
from ._journal import Journal
from ._memory import Memory
from ._records import NO_ID, Change, Kind


class Ageing:
    """Drops what the broker has by now. One timer, set while something is kept for a time only.

    :param is_connected: whether the transport has its connection; time without one does not count
    :param dropped: called when something may have gone
    """

    def __init__(
        self,
        memory: Memory,
        journal: Journal,
        epoch: Epoch,
        *,
        is_connected: Callable[[], bool],
        dropped: Callable[[], None],
    ) -> None:
        self._memory = memory
        self._journal = journal
        self._epoch = epoch
        self._is_connected = is_connected
        self._dropped = dropped
        self._has_some = asyncio.Event()

    def note(self) -> None:
        """Begin, if there is something that is kept for a time."""
        if self._memory.settled.is_ageing:
            self._has_some.set()

    async def run(self) -> None:
        """Look on and on, until cancelled."""
        while True:
            await self._has_some.wait()
            began_ms, was_connected = self._epoch.now_ms(), self._is_connected()
            await asyncio.sleep(self._memory.settled.step_ms / 1000)
            now_ms = self._epoch.now_ms()
            if not (was_connected and self._is_connected()):
                await self._journal.write(Change(Kind.AWAY, NO_ID, now_ms, began_ms))
            self._memory.drop_old(now_ms)
            if not self._memory.settled.is_ageing:
                self._has_some.clear()
            self._dropped()
