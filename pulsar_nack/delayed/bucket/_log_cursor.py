"""The cursor of a tracker on a store of logs: a mark-delete position and properties.

Its log is that of a :class:`~pulsar_nack.Cursor`. What differs is which comes first: a Cursor changes in memory and
writes later; here a change counts in memory once it is durable, and a change that could not be written has not
happened. One task writes the changes, all that have gathered meanwhile in one marker. They are applied in the order of
the calls. Cancelling a call drops its change unless it is being written already.

A damaged log is refused. A Cursor would continue with an older state, which may name snapshots that were deleted since.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from ..._check import INT64_MAX, check_integer
from ..._delays import Delay, delay_seconds
from ..._lifetime import LoopBound
from ..._tasks import TaskOwner, set_error
from ...config import DELAYED_PREFIX, CursorConfig
from ...cursor.format import LogNames, MarkerContents, change_properties, delayed_cursor, log_names
from ...cursor.logs import CursorLog, open_without_acks
from ...errors import InvalidArgumentError
from ...ids import Position
from ...ledger import LogStore
from ...ledger.ownership import storage_timeout

CURSOR: Final = "cursor"
CLOSE_TIMEOUT_S: Final = 10.0
_BEGIN: Final = Position(0, -1)
_MAX_TEXT: Final = 1 << 19
_UNSTORABLE: Final = re.compile("[\ud800-\udfff\0]")
_ESCAPED: Final = re.compile("\0([0-9a-f]{4})")


class _Change(NamedTuple):
    """A call that waits: a mark-delete position, and properties to set, or to remove (None). It may change nothing."""

    done: asyncio.Future[None]
    position: Position
    properties: Mapping[str, str | None]


class LogDelayedCursor(LoopBound):
    """A :class:`~pulsar_nack.delayed.DelayedCursor` on a store of logs, with one owner at a time.

    Open it with :meth:`open`, and close it before its store, with :meth:`aclose` or ``async with``.
    """

    _what = "LogDelayedCursor"

    def __init__(self, log: CursorLog, name: str, close_timeout_s: float) -> None:
        self._log = log
        self._name = name
        self._close_timeout_s = close_timeout_s
        self._stored = log.committed or MarkerContents(_BEGIN, {}, {})
        self._properties = {_unescape(key): _unescape(text) for key, text in self._stored.cursor_properties.items()}
        self._queue: list[_Change] = []
        self._writing: asyncio.Task[None] | None = None
        self._tasks = TaskOwner()

    @classmethod
    async def open(
        cls, store: LogStore, name: str = CURSOR, *, compact_at: int = 1 << 16, close_timeout: Delay = CLOSE_TIMEOUT_S
    ) -> Self:
        """Open the cursor, or create one with nothing acknowledged.

        :param store: has its logs, ``delayed.<name>-<number>``; other logs in it are left alone
        :param compact_at: a log of at least this size (bytes) is compacted when it is four times as large as the state
        :param close_timeout: how long closing waits for unfinished writes, in seconds or as a timedelta
        :raises InvalidArgumentError: an argument was refused, or a :class:`~pulsar_nack.Cursor` has this name
        :raises LogLockedError: in a folder, another owner has it open; on object storage it is taken over from them
        :raises LogFencedError: on object storage, another owner opened it at the same time, a moment later
        :raises LogCorruptedError: a log is damaged; nothing was changed
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        :raises MissingExtraError: protobuf is not installed
        """
        check_integer("compact_at", compact_at, 0, INT64_MAX)
        close_timeout_s = delay_seconds(close_timeout, "close_timeout")
        names = await names_of(store, name)
        log = await open_without_acks(store, names, CursorConfig(rollover_bytes=compact_at))
        return cls(log, name, close_timeout_s)

    @property
    def mark_delete_position(self) -> Position:
        """Return the position up to which everything is acknowledged; entry -1: nothing of the ledger."""
        return self._stored.mark_delete

    def properties(self) -> Mapping[str, str]:
        """Return a live view of the properties."""
        return MappingProxyType(self._properties)

    async def mark_delete(self, position: Position) -> None:
        """Set the mark-delete position durably. It does not go back: an earlier position changes nothing.

        :raises InvalidArgumentError: this is not a position
        :raises LogStorageError: it could not be written; nothing has changed
        """
        try:
            ledger, entry = position
        except (TypeError, ValueError):
            raise InvalidArgumentError("position", position, "a Position") from None
        check_integer("ledger", ledger, 0, INT64_MAX)
        check_integer("entry", entry, -1, INT64_MAX)
        self._ensure_open()
        if (ledger, entry) > self._stored.mark_delete:
            await self._change(Position(ledger, entry))

    async def put_property(self, key: str, value: str) -> None:
        """Set a property durably.

        :raises InvalidArgumentError: not text, or more than 524,288 characters
        :raises LogStorageError: it could not be written; nothing has changed
        """
        _check_text("key", key)
        _check_text("value", value)
        await self._change(properties={key: value})

    async def remove_property(self, key: str) -> None:
        """Remove a property durably, if it exists."""
        _check_text("key", key)
        await self._change(properties={key: None})

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot; the snapshot may be deleted when this returns.

        If another owner has taken the cursor over, this is refused. A later owner does not find the snapshot named.

        :raises LogFencedError: another owner has taken the cursor over
        :raises LogStorageError: it could not be written; nothing has changed
        """
        check_integer("snapshot_id", snapshot_id, 0, INT64_MAX)
        value = str(snapshot_id)
        named = [key for key, held in self._properties.items() if held == value and key.startswith(DELAYED_PREFIX)]
        await self._change(properties=dict.fromkeys(named))

    async def aclose(self) -> None:
        """Finish pending writes, and give up the cursor. Takes at most ``close_timeout``. Idempotent.

        :raises TimeoutError: storage did not answer in time; the cursor is given up as soon as it does
        """
        if not self._is_closed:
            self._check_loop()
        self._is_closed = True
        try:
            async with storage_timeout(self._close_timeout_s, f"the cursor {self._name}"):
                await self._tasks.wait_until_idle()
                await self._log.aclose()
        finally:
            self._log.close_soon()

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _change(
        self, position: Position = _BEGIN, properties: Mapping[str, str | None] = MappingProxyType({})
    ) -> None:
        self._ensure_open()
        done = asyncio.get_running_loop().create_future()
        self._queue.append(_Change(done, position, properties))
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.begin(self._write_all())
        await done

    async def _write_all(self) -> None:
        """Write until the queue is empty; there is no await between the last check of the queue and the end."""
        while self._queue:
            changes, self._queue = [each for each in self._queue if not each.done.done()], []
            try:
                if changes:
                    await self._write(changes)
            except Exception as error:  # noqa: BLE001 - passed to the callers
                _fail(changes, error)
            except BaseException as error:
                _fail([*changes, *self._queue], error)
                self._queue.clear()
                raise

    async def _write(self, changes: Sequence[_Change]) -> None:
        position, longs, texts = self._stored
        texts = dict(texts)
        for each in changes:
            position = max(position, each.position)
            escaped = {_escape(key): text if text is None else _escape(text) for key, text in each.properties.items()}
            change_properties(texts, escaped)
        contents = MarkerContents(position, longs, texts)
        await self._log.write(contents)
        self._stored = contents
        for each in changes:
            change_properties(self._properties, each.properties)
            if not each.done.done():
                each.done.set_result(None)


async def names_of(store: LogStore, name: str) -> LogNames:
    """Return the names of the logs of a delayed cursor. Call it before the name is taken over.

    :raises InvalidArgumentError: a cursor cannot have this name, or a :class:`~pulsar_nack.Cursor` has it in the store
    """
    others, ours = log_names(name), log_names(delayed_cursor(name))
    logs = await store.names()
    found = others.generations(logs)
    if found and not ours.generations(logs):
        raise InvalidArgumentError(
            "name",
            name,
            f"a name, or a folder, that no Cursor has: {others.log(found[0])} is the acknowledgement state of one",
        )
    return ours


def _fail(changes: Sequence[_Change], error: BaseException) -> None:
    for each in changes:
        set_error(each.done, error)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise InvalidArgumentError(field, value, f"text, at most {_MAX_TEXT:,} characters")


def _escape(text: str) -> str:
    """Return a text that UTF-8 can encode; lone surrogates are escaped."""
    return _UNSTORABLE.sub(lambda match: f"\0{ord(match[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
