"""Operations on the state of a cursor: at once, or in turn if ledgers have to be loaded or memory is crowded.

Operations in turn run one after the other, in the order of their calls. Cancelling a call withdraws an operation that
has not begun. One that has begun asks whether it is still wanted when it is about to change anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from .._tasks import retrieve_error, set_error
from ._cache import IsWanted, LedgerCache
from ._writer import CursorWriter, Flusher
from .format import LedgersNotLoaded

_T = TypeVar("_T")
_CHECK_EVERY: Final = 256

Operation = Callable[[IsWanted], Awaitable[_T]]


class SerialExecutor:
    """Runs operations one at a time, in a task that exists while there are any."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Operation[Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False
        """Whether an operation waits or runs."""

    async def run(self, operation: Operation[_T]) -> _T:
        """Run an operation after those before it; return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        self._queue.append((operation, done))
        if self._task is None:
            self.is_busy = True
            self._task = loop.create_task(self._work(), name="pulsar_nack.Cursor operations")
            self._task.add_done_callback(retrieve_error)
        return await done

    async def wait_for_queued(self) -> None:
        """Wait for the operations that wait or run now."""
        if self.is_busy:
            await self.run(_nothing)

    async def wait_until_idle(self) -> None:
        """Wait until no operation waits or runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Withdraw all operations; their callers are cancelled."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._queue:
                operation, done = self._queue.popleft()
                if not done.done():
                    await _run(operation, done)
        finally:
            self._task, self.is_busy = None, False
            for _, done in self._queue:
                done.cancel()
            self._queue.clear()


class CursorOperations:
    """Runs operations, schedules writes of their changes, and bounds memory.

    :param flush_interval_s: how long after a change it is written
    :param check_open: raises an error when the cursor is closed or was taken over
    """

    def __init__(
        self, cache: LedgerCache, writer: CursorWriter, flush_interval_s: float, check_open: Callable[[], None]
    ) -> None:
        self.countdown = _CHECK_EVERY
        """Changes until memory is checked again."""
        self.executor = SerialExecutor()
        """Runs the operations that have to wait."""
        self.flusher = Flusher(self._write, lambda: writer.is_dirty, flush_interval_s)
        self._cache = cache
        self._writer = writer
        self._check_open = check_open
        self._releasing: asyncio.Task[None] | None = None

    async def run(self, attempt: Callable[[], _T]) -> _T:
        """Run an operation at once if no other one waits and all its ledgers are in memory, otherwise in turn.

        :param attempt: raises :class:`LedgersNotLoaded` before it changes anything; then it is called again
        """
        self._check_open()
        if not self.executor.is_busy:
            try:
                return attempt()
            except LedgersNotLoaded:
                pass
        return await self.run_in_turn(attempt)

    async def run_in_turn(self, attempt: Callable[[], _T]) -> _T:
        """Run an operation after those before it, once its ledgers are loaded."""
        self._check_open()

        async def load_and_run(is_wanted: IsWanted) -> _T:
            if self._cache.is_crowded:
                await self.flusher.flush()
            try:
                return await self._cache.run_loaded(attempt, is_wanted)
            finally:
                self.check_memory()

        return await self.executor.run(load_and_run)

    async def change(self, position: tuple[int, int], change: Callable[[], None]) -> None:
        """Change the state at a position, at once or in turn."""

        def change_and_note() -> None:
            change()
            self.note_changes([position])

        await self.run(change_and_note)

    async def change_when_encoded(self, position: tuple[int, int], change: Callable[[], None]) -> None:
        """Change the state at a position, at once or in turn, but not while ledgers are being encoded."""
        self._check_open()
        if not self.executor.is_busy and not self._writer.is_encoding:
            change()
            self.note_changes([position])
            return

        async def wait_and_change(is_wanted: IsWanted) -> None:
            await self._writer.when_encoded()
            if is_wanted():
                change()
                self.note_changes([position])

        await self.executor.run(wait_and_change)

    async def finish(self, timeout_s: float, release: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Finish all operations, write what is dirty, and call ``release``, within this time.

        After that, waiting operations are cancelled, and ``release`` is left to run when the last write ends.

        :raises LedgerError: the last write failed
        :raises TimeoutError: storage did not answer in time
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s

        async def release_when_idle() -> None:
            await self.flusher.wait_until_idle()
            await release()

        self.flusher.end()
        try:
            async with asyncio.timeout_at(deadline):
                await self.executor.wait_until_idle()
                if self.flusher.broken is None:
                    await self.flusher.flush()
                await self.flusher.wait_until_idle()
        finally:
            self.executor.cancel()
            releasing = self._releasing = loop.create_task(release_when_idle(), name="pulsar_nack.Cursor release")
            releasing.add_done_callback(retrieve_error)
            await asyncio.wait([releasing], timeout=max(deadline - loop.time(), 0))
            if releasing.done():
                releasing.result()

    def note_changes(self, positions: Sequence[tuple[int, int]]) -> None:
        """Note that these positions were changed: schedule a write, and check memory now and then."""
        if positions and positions[-1][0] != self._cache.last_used:
            self._cache.use_positions(positions)
        if not self.flusher.is_armed:
            self.flusher.arm()
        self.countdown -= 1
        if self.countdown <= 0:
            self.check_memory()

    def check_memory(self) -> None:
        """Evict ledgers if they take too much memory; begin a write if that is not enough."""
        self.countdown = _CHECK_EVERY
        if not self._make_room():
            self.flusher.begin()

    async def _write(self) -> None:
        await self._writer.write()
        self._make_room()

    def _make_room(self) -> bool:
        return self._cache.make_room(is_writing=bool(self._writer.in_flight))


async def _nothing(is_wanted: IsWanted) -> None:
    """Do nothing: it marks a place in the queue."""


async def _run(operation: Operation[Any], done: asyncio.Future[Any]) -> None:
    try:
        result = await operation(lambda: not done.done())
    except BaseException as error:
        set_error(done, error)
        if not isinstance(error, Exception):
            raise
    else:
        if not done.done():
            done.set_result(result)
