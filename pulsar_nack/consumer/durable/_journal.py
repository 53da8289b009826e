"""Writes changes to a consumer's log, many at a time, and keeps the log short.

One task writes. While a write is under way, the changes that come meanwhile gather for the next one; a call that waits
for its change may be cancelled, the change is written all the same. A change counts in memory once its write is over,
also when it failed: the next picture then brings storage to where memory is. So after a failure a picture is drawn as
soon as storage takes something again.

Compaction runs beside the writer: begin the next log, draw the picture of what is remembered, seal it, delete what is
older. Writing stops for the seal of the old log only.

On object storage another consumer may take over. Then every write fails from then on, and so does everything that a
compaction makes, seals or deletes, by the handle of a log or by the part of the store that is ours no more: what the
other one has made is left alone, also under a name that a failed attempt of ours may have used.

Logs that a cancelled task leaves open are closed with the part.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ...errors import ClosedError, LogExistsError, LogFencedError
from ...ledger import Log, LogStore
from ._epoch import Epoch
from ._generations import SLICE_S, Chain, base_name, delete_all, log_name
from ._memory import Memory
from ._records import Change, Kind, encode_change

COMPACT_BYTES: Final = 4 << 20
_MOST_AT_ONCE: Final = 2_000
_GROUP_BYTES: Final = 1 << 20
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_LOOK_AT_CLOCK: Final = 32
_LARGE: Final = 1 << 10
_log = logging.getLogger("pulsar_nack.consumer")

Outcome = Exception | None


class _Waiting(NamedTuple):
    change: Change
    data: bytes
    done: asyncio.Future[Outcome]


class Journal:
    """The writer of one consumer's state.

    :param compact_bytes: compaction begins when so much was written since the last one, and as much as it wrote
    """

    def __init__(
        self, store: LogStore, chain: Chain, memory: Memory, epoch: Epoch, *, compact_bytes: int = COMPACT_BYTES
    ) -> None:
        self.compactions = 0
        self.failures = 0
        self._store = store
        self._memory = memory
        self._epoch = epoch
        self._log = chain.log
        self._number = chain.number
        self._others = chain.others
        self._base = chain.base
        self._behind = sum(size for name, size in chain.others.items() if name != chain.base)
        self._compact_bytes = compact_bytes
        self._left: set[str] = set()
        self._queue: deque[_Waiting] = deque()
        self._writing: list[_Waiting] = []
        self._wanted = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._next: tuple[Log, asyncio.Future[Outcome]] | None = None
        self._is_compacting = False
        self._must_compact = False
        self._compact_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._is_ended = self._is_fenced = False
        self.on_written: Callable[[], None] = lambda: None
        """Called when changes count in memory."""
        self._has_warned = False

    @property
    def bytes(self) -> int:
        """Return about how much storage is used."""
        return self._log.size + sum(self._others.values())

    @property
    def waiting(self) -> int:
        """Return how many changes are neither written nor refused."""
        return len(self._queue) + len(self._writing)

    def write(self, change: Change) -> asyncio.Future[Outcome]:
        """Have a change written, in the order of the calls; the future tells the error, None when it is durable."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._is_ended:
            done.set_result(ClosedError("the consumer"))
            return done
        self._queue.append(_Waiting(change, encode_change(change), done))
        self._is_idle.clear()
        self._wanted.set()
        return done

    async def run(self) -> None:
        """Write, until cancelled; what is not written then is answered with :class:`ClosedError`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._wanted.wait()
                    await asyncio.sleep(0)  # who was answered just now, and goes on, gets into this write
                    await self._write_some()
                    if self._wants_compaction():
                        self._is_compacting = True
                        tasks.create_task(self._compact())
        finally:
            self._is_ended = True
            self._answer(self._queue, ClosedError("the consumer"))
            self._is_idle.set()

    async def finish(self) -> None:
        """Wait until everything that was called for is written."""
        await self._is_idle.wait()

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _write_some(self) -> None:
        self._writing = [self._queue.popleft() for _ in range(min(len(self._queue), _MOST_AT_ONCE))]
        if self._writing:
            await self._write(self._writing)
            self._writing = []
        if self._next is not None:
            await self._switch(*self._next)
        if not self._queue:
            self._wanted.clear()
            self._is_idle.set()

    async def _write(self, some: list[_Waiting]) -> None:
        error: Outcome = None
        try:
            await self._log.append_many([waiting.data for waiting in some])
        except Exception as failure:  # noqa: BLE001 - handed to whoever waits, and counted
            error = failure
            self._note_failure(len(some), failure)
        except BaseException:
            self._answer(some, ClosedError("the consumer"))
            raise
        for waiting in some:
            if error is None or waiting.change.kind is not Kind.CLEARED:
                self._memory.apply(waiting.change)
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
        for waiting in some:
            if not waiting.done.done():
                waiting.done.set_result(error)

    async def _switch(self, log: Log, done: asyncio.Future[Outcome]) -> None:
        """Seal the log, and go on with the next one."""
        self._next = None
        try:
            await self._log.seal()
        except Exception as error:  # noqa: BLE001 - handed to the compaction
            done.set_result(error)
            return
        old, self._log = self._log, log
        self._others[old.name] = old.size
        self._behind += old.size
        self._number += 1
        done.set_result(None)
        await old.aclose()

    # --- compaction ------------------------------------------------------------------------------------------------

    def _wants_compaction(self) -> bool:
        if self._is_compacting or self._is_fenced or asyncio.get_running_loop().time() < self._compact_at:
            return False
        base = self._others.get(self._base or "", 0)
        return self._must_compact or self._log.size + self._behind > max(self._compact_bytes, base)

    async def _compact(self) -> None:
        self._must_compact = False
        try:
            await self._begin_log()
            await self._replace_older(await self._draw())
        except Exception as error:  # noqa: BLE001 - counted, and tried again after a pause
            self._note_failure(1, error)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        else:
            self.compactions += 1
            self._pause_s = _FIRST_PAUSE_S
            self._has_warned = self._must_compact
        finally:
            self._is_compacting = False

    async def _begin_log(self) -> None:
        """Let the writer go on with a new log."""
        log = await self._create(log_name(self._number + 1))
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._next = (log, done)
        self._wanted.set()
        if (error := await done) is not None:
            await log.aclose()
            await self._delete([log.name])
            raise error
        self._left.discard(log.name)

    async def _draw(self) -> Log:
        """Write the picture of everything before the present log; return it, sealed and closed."""
        base = await self._create(base_name(self._number - 1))
        try:
            await self._draw_into(base)
            await base.seal()
        except Exception:
            await base.aclose()  # so that it can be deleted
            raise
        await base.aclose()
        self._left.discard(base.name)
        return base

    async def _create(self, name: str) -> Log:
        """Make a log, in place of what a failed attempt of ours left, but never of what somebody else made."""
        if name in self._left:
            await self._delete([name])
        try:
            log = await self._store.create(name)
        except LogExistsError:
            raise
        except BaseException:
            self._left.add(name)  # it may be there all the same
            raise
        self._left.add(name)
        return log

    async def _draw_into(self, base: Log) -> None:
        group: list[bytes] = []
        size = 0
        paused_at = time.monotonic()
        for step, data in enumerate(self._memory.picture(self._epoch.now_ms())):
            if data is not None:
                group.append(data)
                size += len(data)
            if size >= _GROUP_BYTES:
                await base.append_many(group)
                group, size = [], 0
            elif (step % _LOOK_AT_CLOCK == 0 or _is_large(data)) and time.monotonic() - paused_at > SLICE_S:
                await asyncio.sleep(0)
            else:
                continue
            paused_at = time.monotonic()
        await base.append_many(group)

    async def _replace_older(self, base: Log) -> None:
        older = {name for name in self._others if name != base.name} | self._left
        self._others[base.name] = base.size
        self._base = base.name
        self._behind = 0
        await self._delete(sorted(older))

    async def _delete(self, names: list[str]) -> None:
        """Delete logs of ours; those that cannot be are tried again by the next compaction."""
        left = await delete_all(self._store, names)
        for name in set(names) - set(left):
            self._others.pop(name, None)
            self._left.discard(name)


def _is_large(data: bytes | None) -> bool:
    return data is not None and len(data) > _LARGE
