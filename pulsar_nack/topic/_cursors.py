"""The cursors of a topic's subscriptions, in the topic's own store, and deleting ledgers that none of them needs.

A subscription exists if there are logs of its cursor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from ..config import CursorConfig
from ..cursor import Cursor
from ..cursor.format import CURSOR_LOG_NAME, cursors_in, subscription_cursor, subscription_of
from ..errors import ClosedError, LedgerError
from ..ids import Position
from ..ledger import LogStore
from ..ledger.ownership import close_on_error
from ._ledgers import TopicLedgers

_log: Final = logging.getLogger("pulsar_nack.topic")


class Cursors:
    """Opens, creates and deletes the cursors of a topic."""

    def __init__(self, store: LogStore, ledgers: TopicLedgers, config: CursorConfig) -> None:
        self._store = store
        self._ledgers = ledgers
        self._config = config
        self._open: dict[str, Cursor] = {}

    @property
    def all(self) -> Mapping[str, Cursor]:
        """Return the cursors by the names of their subscriptions."""
        return self._open

    async def open_all(self) -> None:
        """Open the cursors of all subscriptions.

        :raises LedgerError: one cannot be read; nothing is open then
        """
        opened: list[Cursor] = []
        async with close_on_error(opened):
            for cursor in sorted(cursors_in(await self._store.names())):
                if (name := subscription_of(cursor)) is not None:
                    self._open[name] = await self._open_one(name, None)
                    opened.append(self._open[name])

    @property
    def highest_lost(self) -> int | None:
        """Return the highest ledger of which a cursor has acknowledged lost entries, None if no entries are lost."""
        last = self._ledgers.ids[-1]
        lost = [last for each in self._open.values() if each.statistics().cut_entries]
        reached = (max(each.highest_acked, each.mark_delete_position).ledger for each in self._open.values())
        return max([*lost, *(ledger for ledger in reached if ledger > last)], default=None)

    async def create(self, name: str, start: Position | None) -> Cursor:
        """Create a cursor that begins after a position, or with the first entry; durable when this returns."""
        cursor = await self._open_one(name, start)
        try:
            ledger, entry = cursor.mark_delete_position
            await cursor.reset((ledger, entry + 1))
            await cursor.flush()
        except BaseException:
            await cursor.aclose()
            raise
        self._open[name] = cursor
        return cursor

    async def delete(self, name: str) -> None:
        """Delete a cursor that was closed."""
        for each in await self._store.names():
            if (match := CURSOR_LOG_NAME.fullmatch(each)) and match[1] == subscription_cursor(name):
                await self._store.delete(each)
        self._open.pop(name, None)

    async def _open_one(self, name: str, start: Position | None) -> Cursor:
        return await Cursor.open(self._store, self._ledgers, self._config, name=subscription_cursor(name), start=start)


class LedgerTrimmer:
    """Deletes the ledgers that every subscription has acknowledged durably; without a subscription, none."""

    def __init__(self, ledgers: TopicLedgers, cursors: Cursors) -> None:
        self._ledgers = ledgers
        self._cursors = cursors
        self._is_ended = False
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Look for ledgers to delete: a subscription needs fewer than before."""
        if self._task is None and not self._is_ended and self._is_useful():
            self._task = asyncio.get_running_loop().create_task(self._trim(), name="pulsar_nack.LocalTopic trim")

    def _first_needed(self) -> int | None:
        """Return the lowest ledger that has to stay, None if all have to. The last one always stays."""
        nexts = [cursor.next_position for cursor in self._cursors.all.values()]
        return min((self._ledgers.ids[-1] if each is None else each.ledger for each in nexts), default=None)

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
            _log.warning("ledgers that are not needed could not be deleted and stay for now: %s", error)
        finally:
            self._task = None

    async def end(self) -> None:
        """Begin no more deletions, and wait for the present one."""
        self._is_ended = True
        if self._task is not None:
            await asyncio.wait([self._task])
