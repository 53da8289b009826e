"""A cursor on append-only logs: mark-delete position and properties, with a record for each change.

The log ``<name>-<generation>`` holds the current generation. When it is much larger than the state, the state is
written to the log of a new generation, and then a last record in the old log names the new one. This record is the
commit point. It is in the same log as the changes, so that a failed append of it is resolved like any other: the next
append that succeeds shows that it does not count. Then the new log is obsolete. No further generation begins while
there is an obsolete log. So reading always begins at the lowest generation, and every log that it does not lead to is
obsolete.

The cursor owns its name in the store, and the logs of that name. So on object storage only the last owner creates,
opens or deletes them, and what it finds beside the current log stays obsolete.

One task writes the changes, all that have gathered meanwhile at once. They change the state when they are durable, in
the order of the calls. Cancelling a call drops its change unless it is being written already.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from ..._check import INT64_MAX, check_integer
from ..._delays import Delay, delay_seconds
from ..._lifetime import ClosesOnExit, LoopBound
from ..._tasks import TaskOwner, own_copy, set_error
from ...config import DELAYED_PREFIX
from ...errors import (
    ClosedError,
    InvalidArgumentError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogLockedError,
    LogNotFoundError,
    LogStorageError,
)
from ...ids import Position
from ...ledger import Log, LogStore
from ...ledger.format import group_records
from ...ledger.ownership import OwnedStore, close_on_error, storage_timeout, take_ownership
from ..format import (
    CURSOR_LOG_HEAD,
    CursorChange,
    CursorState,
    MarkDelete,
    NextGeneration,
    PutProperty,
    RemoveProperty,
    check_cursor_log_head,
    decode_cursor_change,
    encode_cursor_change,
)

CURSOR: Final = "cursor"
CLOSE_TIMEOUT_S: Final = 10.0
_MAX_APPEND: Final = 1 << 22
_MAX_TEXT: Final = 1 << 19
_OPEN_ATTEMPTS: Final = 20
_GROWTH: Final = 4


class _Waiting(NamedTuple):
    change: CursorChange
    done: asyncio.Future[None]


class LogDelayedCursor(ClosesOnExit, LoopBound):
    """A :class:`~pulsar_nack.delayed.DelayedCursor` on a store of logs, with one owner at a time.

    Open it with :meth:`open`, and close it before its store, with :meth:`aclose` or ``async with``.
    """

    def __init__(self, store: OwnedStore, name: str, compact_at: int, close_timeout_s: float) -> None:
        self._store = store
        self._close_timeout_s = close_timeout_s
        self._name = name
        self._min_compact_at = compact_at
        self._compact_at = compact_at
        self._generation = 0
        self._log: Log
        self._state = CursorState()
        self._obsolete: set[str] = set()
        self._queue: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._tasks = TaskOwner()
        self._broken: BaseException | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls, store: LogStore, name: str = CURSOR, *, compact_at: int = 1 << 16, close_timeout: Delay = CLOSE_TIMEOUT_S
    ) -> Self:
        """Open the cursor, or create one with nothing acknowledged.

        :param store: has its logs, ``<name>-<number>``; other logs in it are left alone
        :param compact_at: a log of at least this size (bytes) is compacted when it is four times as large as the state
        :param close_timeout: how long closing waits for unfinished writes, in seconds or as a timedelta
        :raises InvalidArgumentError: an argument was refused, or a :class:`~pulsar_nack.Cursor` has this name
        :raises LogLockedError: in a folder, another owner has it open; on object storage it is taken over from them
        :raises LogFencedError: on object storage, another owner opened it at the same time, a moment later
        :raises LogCorruptedError: a log is damaged; nothing was changed
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        """
        _check_text("name", name)
        check_integer("compact_at", compact_at, 0, INT64_MAX)
        close_timeout_s = delay_seconds(close_timeout, "close_timeout")
        await check_name_is_free(store, name)
        part = await take_ownership(store, name)
        self = cls(part, name, compact_at, close_timeout_s)
        async with close_on_error([part]):
            for _ in range(_OPEN_ATTEMPTS):
                with suppress(LogNotFoundError, LogExistsError):  # its owner is creating or compacting it
                    await self._load()
                    return self
            raise LogLockedError(name)

    @property
    def mark_delete_position(self) -> Position:
        """Return the position up to which everything is acknowledged; entry -1: nothing of the ledger."""
        return self._state.mark_delete_position

    def properties(self) -> Mapping[str, str]:
        """Return a live view of the properties."""
        return MappingProxyType(self._state.properties)

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
        if (ledger, entry) > self._state.mark_delete_position:
            await self._change(MarkDelete(Position(ledger, entry)))

    async def put_property(self, key: str, value: str) -> None:
        """Set a property durably.

        :raises InvalidArgumentError: not text, or more than 524,288 characters
        :raises LogStorageError: it could not be written; nothing has changed
        """
        _check_text("key", key)
        _check_text("value", value)
        await self._change(PutProperty(key, value))

    async def remove_property(self, key: str) -> None:
        """Remove a property durably, if it exists."""
        _check_text("key", key)
        await self._change(RemoveProperty(key))

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot; the snapshot may be deleted when this returns.

        If another owner has taken the cursor over, this is refused. A later owner does not find the snapshot named.

        :raises LogFencedError: another owner has taken the cursor over
        :raises LogStorageError: it could not be written; nothing has changed
        """
        check_integer("snapshot_id", snapshot_id, 0, INT64_MAX)
        value = str(snapshot_id)
        named = [
            key for key, held in self._state.properties.items() if held == value and key.startswith(DELAYED_PREFIX)
        ]
        for key in named:
            await self._change(RemoveProperty(key))
        if not named:
            await self._change(MarkDelete(self.mark_delete_position))

    async def aclose(self) -> None:
        """Finish pending writes, and give up the cursor. Takes at most ``close_timeout``. Idempotent.

        :raises TimeoutError: storage did not answer in time; the cursor is given up as soon as it does
        """
        if not self._is_closed:
            self._check_loop("the cursor")
        self._is_closed = True
        try:
            async with storage_timeout(self._close_timeout_s, f"the cursor {self._name}"):
                await self._tasks.wait_until_idle()
                await self._store.aclose()
        finally:
            self._store.close_soon()

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError("LogDelayedCursor")
        self._check_loop("the cursor")
        if self._broken is not None:
            raise own_copy(self._broken)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _change(self, change: CursorChange) -> None:
        self._ensure_open()
        done = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(change, done))
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.begin(self._write_all())
        await done

    async def _write_all(self) -> None:
        """Write until the queue is empty; there is no await between the last check of the queue and the end."""
        while self._queue:
            queue, self._queue = self._queue, []
            wanted = [waiting for waiting in queue if not waiting.done.done()]
            try:
                if wanted:
                    await self._write(wanted)
            except BaseException as error:
                self._broken = error  # it is unknown whether the log continues in another one
                for waiting in (*wanted, *self._queue):
                    set_error(waiting.done, error)
                self._queue.clear()
                raise

    async def _write(self, some: list[_Waiting]) -> None:
        changes = iter(some)
        for records in group_records((encode_cursor_change(waiting.change) for waiting in some), _MAX_APPEND):
            group = [next(changes) for _ in records]
            try:
                await self._log.append_many(records)
            except Exception as error:  # noqa: BLE001 - passed to the callers
                for waiting in (*group, *changes):
                    set_error(waiting.done, error)
                return
            for waiting in group:
                self._state.apply(waiting.change)
                if not waiting.done.done():
                    waiting.done.set_result(None)
        if self._log.size >= self._compact_at:
            await self._compact()

    # -- compaction --------------------------------------------------------------------------------------------------

    async def _compact(self) -> None:
        """Begin a new generation if that saves enough; a failure is retried when the log has grown further."""
        needed = _GROWTH * sum(len(encode_cursor_change(change)) + 4 for change in self._state.changes())
        if needed > self._log.size:
            self._compact_at = needed
            return
        self._compact_at = 2 * self._log.size
        await self._delete_obsolete()
        if self._obsolete:
            return
        generation = self._generation + 1
        try:
            new = await self._store.create(self._log_name(generation))
        except LogStorageError:
            self._obsolete.add(self._log_name(generation))  # the log may exist despite the error
            return
        except LogFencedError:
            raise
        except LedgerError:
            return
        self._obsolete.add(new.name)
        try:
            await self._write_state(new)
            await self._log.append(encode_cursor_change(NextGeneration(generation)))
        except LogStorageError:
            await new.aclose()
            return
        old, self._log, self._generation, self._obsolete = self._log, new, generation, {self._log.name}
        self._compact_at = max(self._min_compact_at, _GROWTH * new.size)
        await old.aclose()
        await self._delete_obsolete()

    async def _write_state(self, log: Log) -> None:
        await log.append(CURSOR_LOG_HEAD)
        for records in group_records(map(encode_cursor_change, self._state.changes()), _MAX_APPEND):
            await log.append_many(records)

    async def _delete_obsolete(self) -> None:
        """Delete obsolete logs; those that cannot be deleted are tried again by the next compaction or opening.

        :raises LogFencedError: another owner has taken the cursor over
        """
        for name in sorted(self._obsolete):
            try:
                await self._store.delete(name)
            except LogFencedError:
                raise
            except LogNotFoundError:
                pass
            except LedgerError:
                continue
            self._obsolete.discard(name)

    # -- opening -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Open the current log, and delete the obsolete ones."""
        pattern = re.compile(re.escape(self._name) + r"-([1-9]\d{0,17})")
        matches = [match for name in await self._store.names() if (match := pattern.fullmatch(name))]
        first = min((int(match[1]) for match in matches), default=None)
        if first is None:
            log = await self._store.create(self._log_name(1))
        else:
            log = await self._store.open_log(self._log_name(first))
        self._log, self._generation = log, first or 1
        try:
            while (following := await self._read()) is not None:
                await self._follow(following)
            if not self._log.length:
                await self._log.append(CURSOR_LOG_HEAD)
        except LogNotFoundError:
            await self._log.aclose()
            raise
        self._obsolete = {match[0] for match in matches} - {self._log.name}
        await self._delete_obsolete()

    async def _read(self) -> NextGeneration | None:
        """Read the state from the log; return the record that names the next generation, if there is one."""
        log, self._state = self._log, CursorState()
        following: NextGeneration | None = None
        async for record in log.records():
            if following is not None:
                raise LogCorruptedError(log.name, f"record {record.number}", 0, "the log had ended before")
            if not record.number:
                check_cursor_log_head(record.data, log.name)
                continue
            change = decode_cursor_change(record.data, log.name, record.number)
            if isinstance(change, NextGeneration):
                following = change
            else:
                self._state.apply(change)
        return following

    async def _follow(self, following: NextGeneration) -> None:
        name = self._log_name(following.generation)
        if following.generation <= self._generation:
            raise LogCorruptedError(self._log.name, "its last record", 0, f"it names {name}, an older one")
        try:
            log = await self._store.open_log(name)
        except LogNotFoundError as error:
            raise LogCorruptedError(
                self._log.name, "its last record", 0, f"it names {name}, which is missing"
            ) from error
        old, self._log, self._generation = self._log, log, following.generation
        await old.aclose()

    def _log_name(self, generation: int) -> str:
        return f"{self._name}-{generation}"


async def check_name_is_free(store: LogStore, name: str) -> None:
    """Raise if a :class:`~pulsar_nack.Cursor` has this name in the store; its logs have ten-digit numbers.

    Call it before the name is taken over.

    :raises InvalidArgumentError: a Cursor has the name
    """
    logs = await store.names()
    pattern = re.compile(re.escape(name) + r"-0\d{9}")
    other = next(filter(pattern.fullmatch, logs), None)
    ours = re.compile(re.escape(name) + r"-[1-9]\d{0,17}")
    if other is not None and not any(map(ours.fullmatch, logs)):
        raise InvalidArgumentError(
            "name", name, f"a name, or a folder, that no Cursor has: {other} is the acknowledgement state of one"
        )


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:  # lone surrogates can be stored
        raise InvalidArgumentError(field, value, f"text, at most {_MAX_TEXT:,} characters")
