"""A cursor on append-only logs: mark-delete position and properties, every change a record.

The log ``<name>-<generation>`` holds the present generation. When it has grown far beyond what the state needs, the
state is written to a log of a new generation, and then the old one is ended by a record that names the new one: that
record is the commit point. It stands in the same log as the changes do, so that after a failed append it is settled
like any other: the next append that works says that it does not count. Only then is the new log rubbish; and no other
generation is begun while there is rubbish, so that the lowest generation is where reading begins, always, and what it
does not lead to is rubbish.

The cursor takes its name of the store, and its logs are those of that part. So on object storage nobody makes, opens or
deletes one but the last owner, and what that one finds beside the present log is rubbish for ever.

Changes are written by one task, which takes all that have gathered meanwhile; they change the state when they are
durable, in the order of their calls. Cancelling a call gives up a change that is not being written yet.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Self

from ..._delays import Delay, delay_seconds
from ..._lifetime import LoopBound
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
from ...ledger._taking import Part, given_back, take, within
from .._arguments import INT64_MAX, check_int
from ._chores import Chores
from ._log_changes import HEAD, Change, Mark, Next, Put, Remove, State, check_head, decode, encode
from ._log_snapshot import groups

CURSOR: Final = "cursor"
CLOSE_TIMEOUT_S: Final = 10.0
_APPEND: Final = 1 << 22
_MOST_TEXT: Final = 1 << 19
_TRIES: Final = 20
_GROWTH: Final = 4


class _Waiting(NamedTuple):
    change: Change
    done: asyncio.Future[None]


class LogDelayedCursor(LoopBound):
    """A :class:`~pulsar_nack.DelayedCursor` on a store of logs; one at a time has it open.

    Made by :meth:`open`, ended by :meth:`aclose` before its store is closed, or use it with ``async with``.
    """

    def __init__(self, store: Part, name: str, compact_at: int, close_timeout_s: float) -> None:
        self._store = store
        self._close_timeout_s = close_timeout_s
        self._name = name
        self._least = compact_at
        self._compact_at = compact_at
        self._generation = 0
        self._log: Log
        self._state = State()
        self._rubbish: set[str] = set()
        self._line: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._chores = Chores()
        self._broken: BaseException | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls, store: LogStore, name: str = CURSOR, *, compact_at: int = 1 << 16, close_timeout: Delay = CLOSE_TIMEOUT_S
    ) -> Self:
        """Read what is there, or begin a new cursor, with nothing acknowledged.

        :param store: where its logs are, called ``<name>-<number>``; other logs in it are left alone
        :param compact_at: from this size (bytes) on the log is written anew when it is four times what it has to be
        :param close_timeout: how long closing waits for what was begun, in seconds or as a timedelta
        :raises InvalidArgumentError: an argument was refused, or a :class:`~pulsar_nack.Cursor` has this name
        :raises LogLockedError: somebody else has it open, in a folder; on object storage it is taken over from them
        :raises LogFencedError: somebody else opened it at the same time, a moment later, on object storage
        :raises LogCorruptedError: a log is damaged; nothing was changed
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        """
        _check_text("name", name)
        check_int("compact_at", compact_at, 0, INT64_MAX)
        close_timeout_s = delay_seconds(close_timeout, "close_timeout")
        await check_name_is_free(store, name)
        part = await take(store, name)
        self = cls(part, name, compact_at, close_timeout_s)
        async with given_back([part]):
            for _ in range(_TRIES):
                with suppress(LogNotFoundError, LogExistsError):  # its owner rewrites or creates it at this moment
                    await self._find()
                    return self
            raise LogLockedError(name)

    @property
    def mark_delete_position(self) -> Position:
        """Return the last position before which, itself included, everything is acknowledged; entry -1: none of it."""
        return self._state.mark_delete_position

    def properties(self) -> Mapping[str, str]:
        """Return the properties as they are now; a view that changes with them."""
        return MappingProxyType(self._state.properties)

    async def mark_delete(self, position: Position) -> None:
        """Set the mark-delete position; durable when it returns. It does not go back: an earlier one changes nothing.

        :raises InvalidArgumentError: this is no position
        :raises LogStorageError: it could not be written; nothing has changed
        """
        try:
            ledger, entry = position
        except (TypeError, ValueError):
            raise InvalidArgumentError("position", position, "a Position") from None
        check_int("ledger", ledger, 0, INT64_MAX)
        check_int("entry", entry, -1, INT64_MAX)
        self._ensure_open()
        if (ledger, entry) > self._state.mark_delete_position:
            await self._change(Mark(Position(ledger, entry)))

    async def put_property(self, key: str, value: str) -> None:
        """Set a property; durable when it returns.

        :raises InvalidArgumentError: no text, or more than 524,288 characters
        :raises LogStorageError: it could not be written; nothing has changed
        """
        _check_text("key", key)
        _check_text("value", value)
        await self._change(Put(key, value))

    async def remove_property(self, key: str) -> None:
        """Remove a property, if it is there; durable when it returns."""
        _check_text("key", key)
        await self._change(Remove(key))

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a snapshot; it may be deleted when this returns.

        So it is ours to delete: whoever took the cursor over in the meantime has it refused here, and who takes it over
        later does not find the snapshot named.

        :raises LogFencedError: somebody else has taken the cursor over
        :raises LogStorageError: it could not be written; nothing has changed
        """
        check_int("snapshot_id", snapshot_id, 0, INT64_MAX)
        value = str(snapshot_id)
        named = [
            key for key, held in self._state.properties.items() if held == value and key.startswith(DELAYED_PREFIX)
        ]
        for key in named:
            await self._change(Remove(key))
        if not named:
            await self._change(Mark(self.mark_delete_position))

    async def aclose(self) -> None:
        """Let what was begun be carried out, and give the cursor up. Takes ``close_timeout`` at most. Idempotent.

        :raises TimeoutError: storage did not answer in time; it is given up as soon as it does
        """
        if not self._is_closed:
            self._check_loop("the cursor")
        self._is_closed = True
        try:
            async with within(self._close_timeout_s, f"the cursor {self._name}"):
                await self._chores.done()
                await self._store.aclose()
        finally:
            self._store.close_soon()

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError("LogDelayedCursor")
        self._check_loop("the cursor")
        if self._broken is not None:
            raise _own(self._broken)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _change(self, change: Change) -> None:
        self._ensure_open()
        done = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(change, done))
        if self._writing is None or self._writing.done():
            self._writing = self._chores.start(self._write_all())
        await done

    async def _write_all(self) -> None:
        """Write until nothing waits; no await lies between the last look at the line and the end."""
        while self._line:
            line, self._line = self._line, []
            wanted = [waiting for waiting in line if not waiting.done.done()]
            try:
                if wanted:
                    await self._write(wanted)
            except BaseException as error:
                self._broken = error  # the log may go on in another one, or not
                for waiting in (*wanted, *self._line):
                    _refuse(waiting.done, error)
                self._line.clear()
                raise

    async def _write(self, line: list[_Waiting]) -> None:
        changes = iter(line)
        for records in groups((encode(waiting.change) for waiting in line), _APPEND):
            group = [next(changes) for _ in records]
            try:
                await self._log.append_many(records)
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                for waiting in (*group, *changes):
                    _refuse(waiting.done, error)
                return
            for waiting in group:
                self._state.apply(waiting.change)
                if not waiting.done.done():
                    waiting.done.set_result(None)
        if self._log.size >= self._compact_at:
            await self._compact()

    # -- going on in a new log ---------------------------------------------------------------------------------------

    async def _compact(self) -> None:
        """Write the log anew if that is worth it; what fails is tried again when it has grown further."""
        needed = _GROWTH * sum(len(encode(change)) + 4 for change in self._state.changes())
        if needed > self._log.size:
            self._compact_at = needed
            return
        self._compact_at = 2 * self._log.size
        await self._clean()
        if self._rubbish:
            return
        generation = self._generation + 1
        try:
            new = await self._store.create(self._log_name(generation))
        except LogStorageError:
            self._rubbish.add(self._log_name(generation))  # the log may exist despite the error
            return
        except LogFencedError:
            raise
        except LedgerError:
            return
        self._rubbish.add(new.name)
        try:
            await self._write_state(new)
            await self._log.append(encode(Next(generation)))
        except LogStorageError:
            await new.aclose()
            return
        old, self._log, self._generation, self._rubbish = self._log, new, generation, {self._log.name}
        self._compact_at = max(self._least, _GROWTH * new.size)
        await old.aclose()
        await self._clean()

    async def _write_state(self, log: Log) -> None:
        await log.append(HEAD)
        for records in groups(map(encode, self._state.changes()), _APPEND):
            await log.append_many(records)

    async def _clean(self) -> None:
        """Delete rubbish; what storage does not delete now is tried again by the next compaction, or opening.

        :raises LogFencedError: it is not ours any more
        """
        for name in sorted(self._rubbish):
            try:
                await self._store.delete(name)
            except LogFencedError:
                raise
            except LogNotFoundError:
                pass
            except LedgerError:
                continue
            self._rubbish.discard(name)

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _find(self) -> None:
        """Open the present log, and delete what is not it."""
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
                await self._log.append(HEAD)
        except LogNotFoundError:
            await self._log.aclose()
            raise
        self._rubbish = {match[0] for match in matches} - {self._log.name}
        await self._clean()

    async def _read(self) -> Next | None:
        """Read the state from the log; return where that goes on, if it does."""
        log, self._state = self._log, State()
        following: Next | None = None
        async for record in log.records():
            if following is not None:
                raise LogCorruptedError(log.name, f"record {record.number}", 0, "the log had ended before")
            if not record.number:
                check_head(record.data, log.name)
                continue
            change = decode(record.data, log.name, record.number)
            if isinstance(change, Next):
                following = change
            else:
                self._state.apply(change)
        return following

    async def _follow(self, following: Next) -> None:
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
    """Raise if a :class:`~pulsar_nack.Cursor` has this name in the store; called before anything is taken over.

    Its logs have ten-digit numbers.

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
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise InvalidArgumentError(field, value, f"text, at most {_MOST_TEXT:,} characters")


def _refuse(done: asyncio.Future[None], error: BaseException) -> None:
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(_own(error))


def _own(error: BaseException) -> BaseException:
    """Return an error for one of several callers, who must not share a traceback."""
    return copy(error) if isinstance(error, LedgerError) else error
