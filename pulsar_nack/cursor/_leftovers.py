"""Logs of a cursor that do not count any more, and how they are deleted without harm to who may have it by now.

On object storage another process may take the cursor over at any time, and may even have chosen a log that was to be
deleted here. So a log is deleted by the handle with which it was written, or was opened when nothing else did: that
fails once somebody else has opened it. The snapshots beside it go first, so that nobody gives their number to a new log
meanwhile. What could not be deleted is found by the next opening.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from ..errors import LedgerError
from ..ledger import Log
from ._snapshot import Snapshots


class Leftover(NamedTuple):
    """A log, open for writing, or none, and the snapshots beside it."""

    log: Log | None
    snapshots: Snapshots

    async def delete(self) -> None:
        """Delete both, as far as that can be done."""
        try:
            with suppress(LedgerError):
                await self.snapshots.delete()
                if self.log is not None:
                    await self.log.delete()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close both, and leave them where they are."""
        await self.snapshots.aclose()
        if self.log is not None:
            await self.log.aclose()
