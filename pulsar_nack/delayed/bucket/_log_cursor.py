"""The cursor of a tracker on a store of logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final, Self

from ..._check import INT64_MAX, check_integer
from ..._delays import Delay, delay_seconds
from ..._lifetime import ClosesOnExit
from ...config import CursorConfig
from ...cursor import Cursor
from ...errors import InvalidArgumentError, LedgerError
from ...ids import Position
from ...ledger import LogStore

CURSOR: Final = "cursor"
CLOSE_TIMEOUT_S: Final = 10.0


class LogDelayedCursor(ClosesOnExit):
    """A :class:`~pulsar_nack.delayed.DelayedCursor` on a store of logs, with one owner at a time.

    It is a :class:`~pulsar_nack.Cursor` whose position is set, rather than derived from acknowledgements. Every change
    is durable when its call returns; a cancelled call either changes something or does not.

    Open it with :meth:`open`, and close it before its store, with :meth:`aclose` or ``async with``.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._durable = cursor.mark_delete_position

    @classmethod
    async def open(
        cls, store: LogStore, name: str = CURSOR, *, compact_at: int = 1 << 20, close_timeout: Delay = CLOSE_TIMEOUT_S
    ) -> Self:
        """Open the cursor, or create one with nothing acknowledged.

        :param store: has its logs, ``<name>-<number>``; other logs in it are left alone
        :param compact_at: a log of at least this size (bytes) is compacted when it is four times as large as the state
        :param close_timeout: how long closing waits for unfinished writes, in seconds or as a timedelta
        :raises InvalidArgumentError: an argument was refused
        :raises LogLockedError: in a folder, another owner has it open; on object storage it is taken over from them
        :raises LogFencedError: on object storage, another owner opened it at the same time, a moment later
        :raises LogCorruptedError: a log is damaged; nothing was changed
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        """
        check_integer("compact_at", compact_at, 0, INT64_MAX)
        timeout = timedelta(seconds=delay_seconds(close_timeout, "close_timeout"))
        config = CursorConfig(rollover_bytes=compact_at, close_timeout=timeout)
        return cls(await Cursor.open(store, None, config, name=name, start=(0, -1), salvage=False))

    @property
    def mark_delete_position(self) -> Position:
        """Return the position up to which everything is acknowledged; entry -1: nothing of the ledger."""
        return self._durable

    def properties(self) -> Mapping[str, str]:
        """Return a live view of the properties."""
        return self._cursor.properties()

    async def mark_delete(self, position: Position) -> None:
        """Set the mark-delete position durably. It does not go back: an earlier position changes nothing.

        :raises InvalidArgumentError: this is not a position
        :raises LedgerError: it could not be written; it is tried again with the next change
        """
        try:
            ledger, entry = position
        except (TypeError, ValueError):
            raise InvalidArgumentError("position", position, "a Position") from None
        check_integer("ledger", ledger, 0, INT64_MAX)
        check_integer("entry", entry, -1, INT64_MAX)
        if (ledger, entry) > self._cursor.mark_delete_position:
            if entry < 0:
                await self._cursor.reset((ledger, 0))
            else:
                await self._cursor.acknowledge_cumulative((ledger, entry))
        reached = self._cursor.mark_delete_position
        await self._cursor.flush()
        self._durable = max(self._durable, reached)

    async def put_property(self, key: str, value: str) -> None:
        """Set a property durably.

        :raises InvalidArgumentError: not text, or more than 524,288 characters
        :raises LedgerError: it could not be written; nothing has changed
        """
        await self._cursor.put_property(key, value)

    async def remove_property(self, key: str) -> None:
        """Remove a property durably, if it exists."""
        await self._cursor.remove_property(key)

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot; the snapshot may be deleted when this returns.

        If another owner has taken the cursor over, this is refused. A later owner does not find the snapshot named.

        :raises LogFencedError: another owner has taken the cursor over
        :raises LedgerError: it could not be written; nothing has changed
        """
        await self._cursor.forget(snapshot_id)

    async def aclose(self) -> None:
        """Finish pending writes, and give up the cursor. Takes at most ``close_timeout``. Idempotent.

        :raises TimeoutError: storage did not answer in time; the cursor is given up as soon as it does
        """
        with suppress(LedgerError):  # the caller of each change has its error already
            await self._cursor.aclose()

    async def __aenter__(self) -> Self:
        await self._cursor.__aenter__()
        return self
