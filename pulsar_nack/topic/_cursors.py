"""The cursors of a topic's subscriptions: one each, in the topic's own store, by the names of their logs.

A subscription exists when there are logs of its cursor. Their name is ``subscription.`` and its own, with %-escapes of
which the % is written as #.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from ..config import CursorConfig
from ..cursor import Cursor
from ..ids import Position
from ..ledger import LogStore
from ..ledger.ownership import close_on_error
from ._ledgers import TopicLedgers

_PREFIX: Final = "subscription."
_LOG: Final = re.compile(r"subscription\.([A-Za-z0-9_.#-]+)-\d{10}(-snapshot)?")


class Cursors:
    """Opens, makes and deletes the cursors of a topic."""

    def __init__(self, store: LogStore, ledgers: TopicLedgers, config: CursorConfig) -> None:
        self._store = store
        self._ledgers = ledgers
        self._config = config
        self._open: dict[str, Cursor] = {}

    @property
    def all(self) -> Mapping[str, Cursor]:
        """Return the cursors by the names of the subscriptions."""
        return self._open

    async def open_all(self) -> None:
        """Open the cursors that there are.

        :raises LedgerError: one cannot be read; nothing is open then
        """
        found = {match[1] for each in await self._store.names() if (match := _LOG.fullmatch(each))}
        opened: list[Cursor] = []
        async with close_on_error(opened):
            for quoted in sorted(found):
                name = unquote(quoted.replace("#", "%"))
                self._open[name] = await self._open_one(name, None)
                opened.append(self._open[name])

    @property
    def have_lost(self) -> int | None:
        """Return the highest ledger of which a cursor has acknowledged lost entries; None if there is none."""
        last = self._ledgers.ids[-1]
        lost = [last for each in self._open.values() if each.statistics().cut_entries]
        reached = (max(each.highest_acked, each.mark_delete_position).ledger for each in self._open.values())
        return max([*lost, *(ledger for ledger in reached if ledger > last)], default=None)

    async def make(self, name: str, start: Position | None) -> Cursor:
        """Make a cursor that begins after a position, or with the first entry; durable when this returns."""
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
        pattern = re.compile(re.escape(_cursor_name(name)) + r"-\d{10}(-snapshot)?")
        for each in await self._store.names():
            if pattern.fullmatch(each):
                await self._store.delete(each)
        self._open.pop(name, None)

    async def _open_one(self, name: str, start: Position | None) -> Cursor:
        return await Cursor.open(self._store, self._ledgers, self._config, name=_cursor_name(name), start=start)


def _cursor_name(subscription: str) -> str:
    return _PREFIX + quote(subscription, safe="").replace("~", "%7E").replace("%", "#")
