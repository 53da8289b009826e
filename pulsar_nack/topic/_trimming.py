"""Deleting the ledgers that every subscription has acknowledged; while there is no subscription, none is deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ..cursor import Cursor
from ..errors import ClosedError, LedgerError
from ._cursors import Cursors
from ._ledgers import TopicLedgers

_log: Final = logging.getLogger("pulsar_nack.topic")


def first_needed(cursors: Iterable[Cursor], last_ledger: int) -> int | None:
    """Return the lowest ledger that has to stay, None: all have to. The last one always stays."""
    needed = [last_ledger if (next_one := cursor.next_position) is None else next_one.ledger for cursor in cursors]
    return min(needed, default=None)


class Trimming:
    """Deletes ledgers, one job at a time, after it is durable that they are not needed."""

    def __init__(self, ledgers: TopicLedgers, cursors: Cursors) -> None:
        self._ledgers = ledgers
        self._cursors = cursors
        self._is_ended = False
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """A subscription needs less than before: there may be something to delete."""
        if self._task is None and not self._is_ended and self._is_useful():
            self._task = asyncio.get_running_loop().create_task(self._trim(), name="pulsar_nack.LocalTopic trim")

    def _first_needed(self) -> int | None:
        return first_needed(self._cursors.all.values(), self._ledgers.ids[-1])

    def _is_useful(self) -> bool:
        first = self._first_needed()
        return first is not None and self._ledgers.ids[0] < first

    async def _trim(self) -> None:
        try:
            while self._is_useful() and not self._is_ended:
                for cursor in list(self._cursors.all.values()):
                    if not cursor.is_closed:
                        await cursor.flush()
                first = self._first_needed()
                if first is not None:
                    await self._ledgers.trim(first)
        except (LedgerError, ClosedError) as error:
            _log.warning("ledgers that are not needed could not be deleted, and stay for now: %s", error)
        finally:
            self._task = None

    async def end(self) -> None:
        """Begin nothing any more, and wait for what is under way."""
        self._is_ended = True
        if self._task is not None:
            await asyncio.wait([self._task])
