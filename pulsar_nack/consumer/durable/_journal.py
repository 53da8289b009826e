"""Reads a consumer's logs when it opens, then writes changes, many at a time, and keeps the log short.

One task writes. Changes that arrive during a write share the next one. A caller that waits for its change may be
cancelled; the change is written anyway. A change is applied to the state after its write, even if the write failed: the
next snapshot brings storage up to date. So after a failure a snapshot is written as soon as storage works again.

A compaction runs beside the writer: it begins the next log, writes a snapshot of the state, seals it, and deletes the
older logs. Writing pauses only while the old log is sealed.

On object storage another consumer may take over. From then on every write fails, and so does every create, seal and
delete of a compaction, because the handle of the log or the part of the store is not ours any more. So the logs of the
other consumer are left alone, even one with a name that a failed attempt of ours may have used.

Logs that a cancelled task leaves open are closed with the part of the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...clock import Clock
from ...errors import ClosedError, LogExistsError, LogFencedError
from ...ledger import Log, LogStore
from ._generations import MAX_STEP_S, base_name, delete_all, log_name, numbers_of, open_base, open_logs, replay
from ._records import NO_ID, Change, RecordKind
from ._state import DurableState

COMPACT_BYTES: Final = 4 << 20
_MAX_CHANGES: Final = 2_000
_GROUP_BYTES: Final = 1 << 20
_MIN_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
_CHECK_TIME_EACH: Final = 32
_LARGE: Final = 1 << 10
_log = logging.getLogger("pulsar_nack.consumer")

Outcome = Exception | None
_Waiting = tuple[Change, bytes, asyncio.Future[Outcome]]
"""A change that is to be written, its bytes, and the future of the call that waits for it."""


class Journal:
    """The writer of one consumer's state; :meth:`open` it first.

    :param clock: epoch ms; it may be set back
    :param compact_bytes: compact when this much was written since the last base, and at least its size
    """

    _log: Log  # the one to append to
    _number: int  # of that log

    def __init__(
        self, store: LogStore, state: DurableState, clock: Clock, *, compact_bytes: int = COMPACT_BYTES
    ) -> None:
        self.compactions = 0
        self.failures = 0
        self._store = store
        self._state = state
        self._clock = clock
        self._clock_shift_ms = 0
        self._last_ms = 0
        self._others: dict[str, int] = {}  # the sizes of the current logs before that one, and of undeleted ones
        self._base: str | None = None
        self._sealed_bytes = 0
        self._compact_bytes = compact_bytes
        self._unfinished: set[str] = set()
        self._queue: deque[_Waiting] = deque()
        self._writing: list[_Waiting] = []
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._next: tuple[Log, asyncio.Future[Outcome]] | None = None
        self._is_compacting = False
        self._must_compact = False
        self._compact_at = 0.0
        self._pause_s = _MIN_PAUSE_S
        self._is_ended = self._is_fenced = False
        self.on_written: Callable[[], None] = lambda: None
        """Called after changes were applied to the state."""
        self._has_warned = False

    async def open(self) -> None:
        """Read the current logs into the empty state, delete the obsolete ones, and note the opening in the log.

        If this fails, the logs that it opened stay open; the caller closes its part of the store.

        :raises LogCorruptedError: a log is damaged or missing
        :raises LogVersionError: a later release wrote it
        """
        bases, logs = numbers_of(await self._store.names())
        opened: list[Log] = []
        base = await open_base(self._store, bases, opened)
        self._number = await open_logs(self._store, [number for number in logs if number > base], base, opened)
        for log in opened:
            await replay(log, self._state)
        obsolete = {*map(base_name, bases), *map(log_name, logs)} - {log.name for log in opened}
        self._unfinished.update(await delete_all(self._store, sorted(obsolete)))
        if self._number == base or opened[-1].is_sealed:
            self._number += 1
            self._log = await self._store.create(log_name(self._number))
        else:
            self._log = opened.pop()
        for log in opened:
            await log.aclose()
        self._others = {log.name: log.size for log in opened}
        self._base = base_name(base) if base else None
        self._sealed_bytes = sum(size for name, size in self._others.items() if name != self._base)
        self._last_ms = max(self._last_ms, self._state.last_at_ms)
        now_ms = self.now_ms()
        opening = Change(RecordKind.OPENED, NO_ID, now_ms, now_ms)
        await self._log.append(opening.encode())
        self._state.apply(opening)

    def now_ms(self) -> int:
        """Return the time in epoch ms, which continues from the newest record and from the last call.

        So no deadline moves away if the wall clock is set back: what remains of a delay is at most the delay.
        """
        now_ms = self._clock.now_ms() + self._clock_shift_ms
        if now_ms < self._last_ms:
            self._clock_shift_ms += self._last_ms - now_ms
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    @property
    def bytes(self) -> int:
        """Return about how many bytes of storage are used."""
        return self._log.size + sum(self._others.values())

    @property
    def waiting(self) -> int:
        """Return the number of changes whose write has not ended."""
        return len(self._queue) + len(self._writing)

    def write(self, change: Change) -> asyncio.Future[Outcome]:
        """Write a change, in the order of the calls; the future's result is the error, or None when it is durable."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._is_ended:
            done.set_result(ClosedError("the consumer"))
            return done
        self._queue.append((change, change.encode(), done))
        self._is_idle.clear()
        self._has_work.set()
        return done

    async def run(self) -> None:
        """Write changes until cancelled; the futures of unwritten ones get :class:`ClosedError`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._has_work.wait()
                    await asyncio.sleep(0)  # callers that were answered just now may add changes to this write
                    await self._write_some()
                    if self._wants_compaction():
                        self._is_compacting = True
                        tasks.create_task(self._compact())
        finally:
            self._is_ended = True
            self._answer(self._queue, ClosedError("the consumer"))
            self._is_idle.set()

    async def finish(self) -> None:
        """Wait until all changes are written."""
        await self._is_idle.wait()

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _write_some(self) -> None:
        self._writing = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_CHANGES))]
        if self._writing:
            await self._write(self._writing)
            self._writing = []
        if self._next is not None:
            await self._switch(*self._next)
        if not self._queue:
            self._has_work.clear()
            self._is_idle.set()

    async def _write(self, some: list[_Waiting]) -> None:
        error: Outcome = None
        try:
            await self._log.append_many([data for _, data, _ in some])
        except Exception as failure:  # noqa: BLE001 - passed to the callers, and counted
            error = failure
            self._note_failure(len(some), failure)
        except BaseException:
            self._answer(some, ClosedError("the consumer"))
            raise
        for change, _, _ in some:
            if error is None or change.kind is not RecordKind.CLEARED:
                self._state.apply(change)
        self._answer(some, error)
        self.on_written()

    def _note_failure(self, count: int, error: Exception) -> None:
        self.failures += count
        self._is_fenced |= isinstance(error, LogFencedError)
        self._must_compact = True
        self._compact_at = asyncio.get_running_loop().time() + self._pause_s
        if not self._has_warned:
            self._has_warned = True
            _log.warning("durable state could not be written, and is tried again with each change: %s", error)

    @staticmethod
    def _answer(some: list[_Waiting] | deque[_Waiting], error: Outcome) -> None:
        for _, _, done in some:
            if not done.done():
                done.set_result(error)

    async def _switch(self, log: Log, done: asyncio.Future[Outcome]) -> None:
        """Seal the log and continue with the next one."""
        self._next = None
        try:
            await self._log.seal()
        except Exception as error:  # noqa: BLE001 - passed to the compaction
            done.set_result(error)
            return
        old, self._log = self._log, log
        self._others[old.name] = old.size
        self._sealed_bytes += old.size
        self._number += 1
        done.set_result(None)
        await old.aclose()

    # --- compaction ------------------------------------------------------------------------------------------------

    def _wants_compaction(self) -> bool:
        if self._is_compacting or self._is_fenced or asyncio.get_running_loop().time() < self._compact_at:
            return False
        base = self._others.get(self._base or "", 0)
        return self._must_compact or self._log.size + self._sealed_bytes > max(self._compact_bytes, base)

    async def _compact(self) -> None:
        self._must_compact = False
        try:
            await self._begin_log()
            await self._replace_older(await self._write_base())
        except Exception as error:  # noqa: BLE001 - counted, and retried after a pause
            self._note_failure(1, error)
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        else:
            self.compactions += 1
            self._pause_s = _MIN_PAUSE_S
            self._has_warned = self._must_compact
        finally:
            self._is_compacting = False

    async def _begin_log(self) -> None:
        """Make the writer continue with a new log."""
        log = await self._create(log_name(self._number + 1))
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._next = (log, done)
        self._has_work.set()
        if (error := await done) is not None:
            await log.aclose()
            await self._delete([log.name])
            raise error
        self._unfinished.discard(log.name)

    async def _write_base(self) -> Log:
        """Write the snapshot of everything before the current log; return its log, sealed and closed."""
        base = await self._create(base_name(self._number - 1))
        try:
            await self._write_snapshot(base)
            await base.seal()
        except Exception:
            await base.aclose()  # so that it can be deleted
            raise
        await base.aclose()
        self._unfinished.discard(base.name)
        return base

    async def _create(self, name: str) -> Log:
        """Create a log; replace one that a failed attempt of this state left, but never one of another consumer."""
        if name in self._unfinished:
            await self._delete([name])
        try:
            log = await self._store.create(name)
        except LogExistsError:
            raise
        except BaseException:
            self._unfinished.add(name)  # it may exist despite the error
            raise
        self._unfinished.add(name)
        return log

    async def _write_snapshot(self, base: Log) -> None:
        group: list[bytes] = []
        size = 0
        paused_at = time.monotonic()
        for step, data in enumerate(self._state.snapshot(self.now_ms())):
            if data is not None:
                group.append(data)
                size += len(data)
            if size >= _GROUP_BYTES:
                await base.append_many(group)
                group, size = [], 0
            elif (step % _CHECK_TIME_EACH == 0 or _is_large(data)) and time.monotonic() - paused_at > MAX_STEP_S:
                await asyncio.sleep(0)
            else:
                continue
            paused_at = time.monotonic()
        await base.append_many(group)

    async def _replace_older(self, base: Log) -> None:
        older = {name for name in self._others if name != base.name} | self._unfinished
        self._others[base.name] = base.size
        self._base = base.name
        self._sealed_bytes = 0
        await self._delete(sorted(older))

    async def _delete(self, names: list[str]) -> None:
        """Delete logs; those that cannot be deleted are tried again by the next compaction."""
        undeleted = await delete_all(self._store, names)
        for name in set(names) - set(undeleted):
            self._others.pop(name, None)
            self._unfinished.discard(name)


def _is_large(data: bytes | None) -> bool:
    return data is not None and len(data) > _LARGE
