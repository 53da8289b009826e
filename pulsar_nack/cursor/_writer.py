"""Writing a cursor: when that is done, and how the dirty ledgers are encoded and committed.

When
    At once for callers of ``flush``, otherwise some time after a change. There is one write at a time. Callers that
    arrive meanwhile share the next write, or this one if nothing has changed since it began. A write that fails raises
    in its callers and is tried again after a pause, which doubles, also without callers. What no write can hold is
    tried again after the next change only. After another owner took over the log, nothing is written any more.

How
    The dirty ledgers are encoded one after the other and committed with one marker; if that fails, they are dirty
    again. A write is right although acknowledgements continue while it is prepared, in the tasks that run in between:
    an acknowledgement is never undone, and the mark-delete position only moves forward; so each encoded ledger says
    what was true when it was encoded, and is right together with the position when the last one is encoded, which goes
    into the marker. A reset is the exception, hence it waits until the encoding is over. A ledger that changes after
    its encoding is dirty again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final

from .._tasks import retrieve_error, set_error
from ..config import CursorConfig
from ..errors import InvalidArgumentError, LogFencedError
from ._acks import AckState
from ._properties import Properties
from .format import LedgerAcks, LegacyRecord, MarkerContents, marker_size
from .format._ledger import encode_ledger
from .format._legacy import MAX_BATCHES, EncodedLegacy, encode_legacy
from .logs import CursorLog, LedgerRecords

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_SLICE_S: Final = 0.004
_MANY_RANGES: Final = 10_000
"""Ranges that take some ms to encode; ten times as many if they lie close together."""
_DENSE: Final = 8
_FEW: Final = 500
_CLOSE: Final = 64
_log = logging.getLogger("pulsar_nack.cursor")


class Flusher:
    """Calls ``write`` when it is time.

    :param write: writes what has changed
    :param is_dirty: returns whether anything has changed since the last write began
    :param interval_s: how long after a change it is written
    """

    def __init__(self, write: Callable[[], Awaitable[None]], is_dirty: Callable[[], bool], interval_s: float) -> None:
        self.is_armed = False
        """Whether a write is scheduled for the last change."""
        self.failures = 0
        self.broken: LogFencedError | None = None
        self._write = write
        self._is_dirty = is_dirty
        self._interval_s = interval_s
        self._pause_s = 0.0
        self._is_ended = False
        self._is_another_wanted = False
        self._is_unwritable = False
        self._waiting: list[asyncio.Future[None]] = []
        self._current: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Schedule a write."""
        self.is_armed = True
        if self._task is None and self._timer is None and not self._is_ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause_s or self._interval_s, self.begin)

    def begin(self) -> None:
        """Begin a write, or another one after the present one."""
        if self._task is not None:
            self._is_another_wanted = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._work(), name="pulsar_nack.Cursor flush")
        self._task.add_done_callback(retrieve_error)

    async def flush(self) -> None:
        """Return when all changes before this call are written.

        :raises LedgerError: they could not be written; it is tried again
        """
        if self.broken is not None:
            raise LogFencedError(self.broken.log)
        is_dirty = self._is_dirty()
        if not is_dirty and self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting if is_dirty else self._current).append(done)
        self.begin()
        await done

    async def wait_until_idle(self) -> None:
        """Wait until no write runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def end(self) -> None:
        """Schedule no more writes."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # callers in this turn of the loop share the write
            await self._write_once()
            while self._waiting or self._is_another_wanted:
                await self._write_once()
        except BaseException as error:
            self._current, self._waiting = [*self._current, *self._waiting], []
            self._answer(error)
            raise
        finally:
            self._task, self.is_armed = None, False
        if self._is_dirty() and self.broken is None and not self._is_unwritable:
            self.arm()

    async def _write_once(self) -> None:
        self._current, self._waiting = [*self._current, *self._waiting], []
        self.is_armed = self._is_another_wanted = self._is_unwritable = False
        try:
            await self._write()
        except BaseException as error:
            self._answer(error)
            if not isinstance(error, Exception):
                raise
            self._note_failure(error)
        else:
            self._pause_s = 0.0
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        current, self._current = self._current, []
        for done in current:
            if error is not None:
                set_error(done, error)
            elif not done.done():
                done.set_result(None)

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, LogFencedError):
            self.broken = error
            _log.warning("a cursor was taken over by another owner and writes nothing any more: %s", error)
            return
        self._is_unwritable = isinstance(error, InvalidArgumentError)
        if not self._pause_s:
            when = "after the next change" if self._is_unwritable else "soon"
            _log.warning("a cursor's state could not be written; it is tried again %s: %s", when, error)
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)


class CursorWriter:
    """Writes one cursor's state to its log; one write at a time."""

    def __init__(self, state: AckState, log: CursorLog, properties: Properties, config: CursorConfig) -> None:
        self.in_flight: Collection[int] = ()
        """Ledgers that the present write has taken: not on storage yet, and clean if it succeeds."""
        self.dropped_ranges = 0
        """Ranges that the last write in the legacy format left out."""
        self.dropped_batches = 0
        """Batch sets that it left out."""
        self._state = state
        self._log = log
        self._properties = properties
        self._config = config
        self._encoded = asyncio.Event()
        self._encoded.set()
        self._has_warned = False
        self._measured = -1
        """How many ledgers there were when the bytes of a marker were measured."""
        self._marker_size = 0
        self.long_properties: dict[str, int] = dict(log.committed.properties) if log.committed else {}

    @property
    def metadata_size_bytes(self) -> int:
        """Return what writing the whole live state would take now: all ledgers, the properties, and the marker."""
        return self._state.table.size_bytes + self._properties.size + self._estimate_marker_size()

    @property
    def is_encoding(self) -> bool:
        """Return whether ledgers are being encoded, so that nothing may be reset."""
        return not self._encoded.is_set()

    @property
    def is_dirty(self) -> bool:
        """Return whether anything has changed since the last write began."""
        state = self._state
        return bool(state.table.dirty) or state.mark_delete.is_dirty or self._properties.is_dirty

    async def when_encoded(self) -> None:
        """Wait until no ledgers are being encoded; the caller continues before another write begins."""
        while self.is_encoding:
            await self._encoded.wait()

    async def write(self) -> None:
        """Write the dirty parts durably.

        :raises LedgerError: it could not be written; it is dirty again
        """
        if not self.is_dirty:
            return
        self._encoded.clear()
        try:
            await self._log.prepare(self._contents(self._properties.with_changes(())))
            await self._write_dirty()
        finally:
            self._encoded.set()

    async def _write_dirty(self) -> None:
        state, properties = self._state, self._properties
        taken, mark_delete = state.take_dirty()
        changes = properties.take()
        self.in_flight = taken
        try:
            after = properties.with_changes(changes)
            if self._config.enable_lru_cache_max_unacked_ranges:
                await self._log.commit(self._encode(sorted(taken)), partial(self._contents, after))
            else:
                self._encoded.set()  # copies are made before anything else runs
                await self._write_legacy(self._contents(after))
        except BaseException as error:
            # changes that may or may not be on storage are to be overwritten
            state.put_back_dirty(taken, mark_delete=mark_delete or bool(changes))
            properties.fail(changes, error)
            raise
        finally:
            self.in_flight = ()
        properties.commit(changes)

    def _contents(self, properties: dict[str, str]) -> MarkerContents:
        return MarkerContents(self._state.mark_delete_position, self.long_properties, properties)

    async def _encode(self, ledgers: Iterable[int]) -> AsyncGenerator[LedgerRecords]:
        """Encode ledgers, and let other tasks run in between: they may acknowledge in encoded and in other ledgers."""
        states = self._state.table.states
        encode = partial(encode_ledger, limit=self._config.max_entry_bytes)
        paused_at = time.monotonic()
        for ledger in ledgers:
            acks = states.get(ledger)
            if acks is None:
                yield ledger, ()
            elif _is_large(acks):
                loop = asyncio.get_running_loop()
                yield ledger, await loop.run_in_executor(None, encode, ledger, acks.copy())
            else:
                yield ledger, encode(ledger, acks)
            if time.monotonic() - paused_at > _SLICE_S:
                await asyncio.sleep(0)
                paused_at = time.monotonic()
        self._encoded.set()

    async def _write_legacy(self, contents: MarkerContents) -> None:
        written = await self._encode_legacy(contents)
        await self._log.commit_legacy(written.record, contents)
        self.dropped_ranges, self.dropped_batches = written.dropped_ranges, written.dropped_batches
        if (written.dropped_ranges or written.dropped_batches) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%d ranges of acknowledged messages and %d partly acknowledged batches are not written because one"
                " entry has no room for them; they will be delivered again after a restart"
                " (enable_lru_cache_max_unacked_ranges writes all of them)",
                written.dropped_ranges,
                written.dropped_batches,
            )

    async def _encode_legacy(self, contents: MarkerContents) -> EncodedLegacy:
        """Encode the lowest ledgers, as many as may be written, from copies; what takes long is done in a thread."""
        states, config = self._state.table.states, self._config
        limit = config.managed_ledger_max_unacked_ranges_to_persist
        chosen: dict[int, LedgerAcks] = {}
        ranges = batches = 0
        for ledger in sorted(states):
            if ranges >= limit and batches >= MAX_BATCHES:
                break
            chosen[ledger] = acks = states[ledger].copy()
            ranges, batches = ranges + acks.ranges.range_count, batches + len(acks.batches)
        beyond = [acks for ledger, acks in states.items() if ledger not in chosen]
        legacy = LegacyRecord(contents, chosen, self._log.next_sequence())
        encode = partial(encode_legacy, legacy, max_ranges=limit, limit=config.max_entry_bytes)
        if ranges + batches > _FEW:
            written = await asyncio.get_running_loop().run_in_executor(None, encode)
        else:
            written = encode()
        return EncodedLegacy(
            written.record,
            written.dropped_ranges + sum(acks.ranges.range_count for acks in beyond),
            written.dropped_batches + sum(len(acks.batches) for acks in beyond),
        )

    def _estimate_marker_size(self) -> int:
        """Return the bytes of a marker that names all ledgers, within a 64th of what they add; O(1) for most calls."""
        table = self._state.table
        count = len(table.states) + len(table.evicted)
        if _CLOSE * abs(count - self._measured) > self._measured:
            self._measured = count
            self._marker_size = marker_size(self._state.mark_delete_position, [*table.states, *table.evicted])
        return self._marker_size * (count + _CLOSE) // (self._measured + _CLOSE)


def _is_large(acks: LedgerAcks) -> bool:
    """Return whether a ledger takes so long to encode that a thread is worth the memory that it keeps."""
    ranges, count = acks.ranges, acks.ranges.range_count
    first, last = ranges.first, ranges.last
    if first is not None and last is not None and last - first < _DENSE * count:
        count //= 10
    return count + len(acks.batches) > _MANY_RANGES
