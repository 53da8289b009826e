"""A subscription's acknowledgement state, durable: the async shell of :mod:`._acks` over :mod:`.logs`.

The state in memory is the truth; storage is behind it by what is dirty. An operation whose ledgers are in memory runs
at once, between two awaits, unless others wait: then it is queued (:mod:`._operations`). Queued operations load ledgers
first (:mod:`._cache`). Writes (:mod:`._writer`) run beside them, one at a time.
"""

from __future__ import annotations

import asyncio
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Self, TypeVar

from .._check import check_text, config_of
from .._lifetime import NO_THREAD, LoopBound, loop_thread_of
from .._tasks import retrieve_error
from ..config import DELAYED_PREFIX, CursorConfig
from ..errors import InvalidArgumentError, LogFencedError, WouldBlockError
from ..ids import Position
from ..index import EntryRanges
from ..ledger import LocalLogStore, LogStore
from ..ledger.ownership import close_on_error
from ._acks import AckState
from ._cache import LedgerCache, Range
from ._opening import LedgersInput, check_ledgers, open_state
from ._operations import CursorOperations
from ._properties import MAX_TEXT, Properties
from ._requests import BatchSets, as_list, check_number, check_position
from ._statistics import CursorStatistics, cursor_statistics
from ._writer import CursorWriter
from .format import BatchSet, LedgersNotLoaded, log_names
from .logs import CursorLog

_T = TypeVar("_T")


class Cursor(LoopBound):
    """What a subscription has acknowledged, kept in bounded memory and on a store of logs.

    Open it with :meth:`open` or :meth:`open_local`; close it with :meth:`aclose` or ``async with``. Acknowledgements
    are written ``flush_interval`` later, or by :meth:`flush`, which returns when they are durable. A position
    is a (ledger, entry) pair; a batch set is what is *not* acknowledged of an entry's batch.

    It is also a :class:`~pulsar_nack.delayed.DelayedCursor`.
    """

    _what = "Cursor"
    _owned: LocalLogStore | None = None
    _closing: asyncio.Task[None] | None = None
    _is_closed = True

    def __init__(self, state: AckState, log: CursorLog, properties: Properties, config: CursorConfig) -> None:
        self._state, self._log, self._properties = state, log, properties
        self._config = config
        limit = config.max_individual_ack_cache_bytes_per_cursor if config.enable_lru_cache_max_unacked_ranges else None
        self._cache = LedgerCache(state, log, limit)
        self._writer = CursorWriter(state, log, properties, config)
        flush_interval_s = config.flush_interval.total_seconds()
        self._operations = CursorOperations(self._cache, self._writer, flush_interval_s, self._ensure_open)
        self._executor, self._flusher = self._operations.executor, self._operations.flusher
        self._is_closed, self._home = False, loop_thread_of(self._loop)
        self._apply = self._state.acknowledge

    @classmethod
    async def open(
        cls,
        store: LogStore,
        ledgers: LedgersInput,
        config: CursorConfig | None = None,
        *,
        name: str = "cursor",
        start: tuple[int, int] | None = None,
    ) -> Self:
        """Open a cursor, or begin a new one.

        :param store: holds its logs, called ``<name>-<number>``; other logs are left alone. Close it after the cursor
        :param ledgers: ``{ledger: entries}``, which may change while in use, or an object with ``entries``; None: a
            remote topic, whose ledgers are not known
        :param start: the mark-delete position of a new cursor; by default nothing is acknowledged
        :raises LogLockedError: the cursor is open already, in a folder; on object storage it is taken over
        :raises LogFencedError: another process opened it a moment later, on object storage
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        :raises MissingExtraError: protobuf is not installed
        """
        if not isinstance(store, LogStore):
            raise InvalidArgumentError("store", store, "a LogStore such as LocalLogStore")
        config = config_of(config, CursorConfig)
        self = cls(*await open_state(store, log_names(name), ledgers, config, start), config)
        self._cache.use_all(sorted(self._state.table.states))
        if self._state.cut_entries:
            async with close_on_error([self]):
                await self.flush()  # before new entries get the positions of lost ones
        return self

    @classmethod
    async def open_local(
        cls,
        path: str | PathLike[str],
        ledgers: LedgersInput,
        config: CursorConfig | None = None,
        *,
        name: str = "cursor",
        start: tuple[int, int] | None = None,
    ) -> Self:
        """Open a cursor in a folder, which is created if it is missing; otherwise as :meth:`open`."""
        config = config_of(config, CursorConfig)
        log_names(name)
        check_ledgers(ledgers, start)
        store = await LocalLogStore.open(path, threads=2)
        async with close_on_error([store]):
            self = await cls.open(store, ledgers, config, name=name, start=start)
        self._owned = store
        return self

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not self._is_closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Cursor {'closed' if self._is_closed else 'open'}, after {tuple(self._state.mark_delete_position)}>"

    @property
    def is_closed(self) -> bool:
        """Return whether the cursor was closed."""
        return self._is_closed

    async def aclose(self) -> None:
        """Finish the calls that wait, write, and release the cursor. Takes ``close_timeout`` at most. Idempotent.

        :raises LedgerError: the last write failed, and its changes are lost
        :raises TimeoutError: storage did not answer in time
        """
        if not self._is_closed:
            self._check_loop()
        if self._closing is None:
            self._is_closed, self._home = True, NO_THREAD
            finish = self._operations.finish(self._config.close_timeout.total_seconds(), self._release)
            self._closing = asyncio.get_running_loop().create_task(finish, name="pulsar_nack.Cursor close")
            self._closing.add_done_callback(retrieve_error)
        await asyncio.shield(self._closing)

    async def _release(self) -> None:
        await self._log.aclose()
        if self._owned is not None:
            await self._owned.aclose()

    def _ensure_open(self) -> None:
        super()._ensure_open()
        if self._flusher.broken is not None:
            raise LogFencedError(self._flusher.broken.log)

    # --- reading without waiting: nothing is loaded ------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Return the mark-delete position: everything up to it is acknowledged. Entry -1 is before the first entry."""
        return self._state.mark_delete_position

    @property
    def highest_acked(self) -> Position:
        """Return the highest position that is acknowledged as a whole."""
        return self._state.highest_acked

    @property
    def next_position(self) -> Position | None:
        """Return the lowest entry that is not acknowledged as a whole, None if there is no such entry yet."""
        return self._state.next_position

    @property
    def backlog(self) -> int | None:
        """Return how many entries are not acknowledged as a whole; None for a remote topic. O(ledgers)."""
        return self._state.backlog

    @property
    def range_count(self) -> int:
        """Return how many acknowledged ranges there are beyond the mark-delete position."""
        return self._state.table.range_count

    @property
    def metadata_size_bytes(self) -> int:
        """Return what writing the whole live state would take now: all ledgers, the properties, and the marker."""
        return self._writer.metadata_size_bytes

    def adds_range(self, position: tuple[int, int]) -> bool:
        """Return whether acknowledging this entry as a whole would add a range; True if its ledger is not in memory."""
        return self._state.adds_range(position)

    def acked_entries(self, ledger: int) -> EntryRanges | None:
        """Return the acknowledged entries of a ledger, not to be changed; None if there are none or it is evicted."""
        acks = self._state.table.states.get(ledger)
        return None if acks is None else acks.ranges

    def properties(self) -> Mapping[str, str]:
        """Return the properties as they are on storage: a view that changes with them."""
        return self._properties.view

    def statistics(self) -> CursorStatistics:
        """Return a snapshot of the cursor's figures."""
        return cursor_statistics(self._state, self._log, self._cache, self._writer, self._flusher)

    # --- reading; this may load ledgers ------------------------------------------------------------------------------

    async def is_acked(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """Return whether an entry is acknowledged as a whole, or at least this index of its batch. May load.

        Indexes beyond the end of a batch count as acknowledged, because its size is not always known.
        """
        where = check_position(position, lowest=-1)
        index = None if batch_index is None else check_number("batch_index", batch_index, lowest=-1)
        return await self._operations.run(lambda: self._state.is_acked(where, index))

    async def batch_set(self, position: tuple[int, int]) -> BatchSet | None:
        """Return what is left of a batch that is acknowledged in part, else None. May load."""
        where = check_position(position, lowest=-1)
        return await self._operations.run(lambda: self._state.batch_set(where))

    async def unacked(self, ledger: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the unacknowledged ranges between two entries, ends included, whether they exist or not. May load."""
        in_ledger = check_number("ledger", ledger)
        begin, end = check_number("first", first), check_number("last", last, lowest=-1)
        return await self._operations.run(lambda: list(self._state.unacked(in_ledger, begin, end)))

    async def individually_deleted(self) -> list[Range]:
        """Return the acknowledged ranges beyond the mark-delete position, in order. May load."""
        return [each for ranges in await self.build_individual_deleted_message_ranges() for each in ranges]

    async def build_individual_deleted_message_ranges(self) -> list[list[Range]]:
        """Return the acknowledged ranges beyond the mark-delete position, by ledger (PIP-81). May load."""
        self._ensure_open()
        return await self._executor.run(self._cache.read_ranges)

    async def lru_switch(self, ledger_id: int) -> None:
        """Load a ledger if it is evicted, and make it the one that was used last (PIP-81)."""
        ledger = check_number("ledger_id", ledger_id)
        await self._operations.run(lambda: self._cache.switch(ledger))

    # --- acknowledging -----------------------------------------------------------------------------------------------

    async def acknowledge(self, positions: Sequence[tuple[int, int]], *, batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries; of those that have a batch set, only what that set leaves out.

        In memory when it returns, durable after the next :meth:`flush`. Acknowledging an entry again is accepted.

        :param batch_sets: by position
        :raises InvalidArgumentError: a position does not exist; nothing of the call was applied
        :raises LedgerError: storage refused, and memory is full or lacks a ledger; nothing of the call was applied
        :raises ClosedError: after :meth:`aclose`
        """
        if positions.__class__ is not list:
            positions = as_list("positions", positions)
        flusher = self._flusher
        is_here = get_ident() == self._home._thread_id
        if self._executor.is_busy or self._cache.is_crowded or not is_here or flusher.broken is not None:
            await self._acknowledge_in_turn(positions, batch_sets)
            return
        try:
            self._apply(positions, batch_sets)
        except LedgersNotLoaded:
            await self._acknowledge_in_turn(positions, batch_sets)
            return
        if positions and positions[-1][0] != self._cache.last_used:
            self._cache.use_positions(positions)
        if not flusher.is_armed:
            flusher.arm()
        operations = self._operations
        operations.countdown -= 1
        if operations.countdown <= 0:
            operations.check_memory()
            await asyncio.sleep(0)

    async def acknowledge_entries(self, ledger: int, entries: Iterable[int]) -> None:
        """Acknowledge entries of one ledger: the fast way for many; otherwise as :meth:`acknowledge`."""
        wanted = as_list("entries", entries)
        checked = check_number("ledger", ledger)
        await self._operations.change((checked, 0), lambda: self._state.acknowledge_entries(ledger, wanted))

    def acknowledge_nowait(self, positions: Sequence[tuple[int, int]], *, batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries as :meth:`acknowledge` does, or raise if that would have to wait.

        :raises WouldBlockError: other calls wait, or a ledger is not in memory; nothing was applied
        """
        self._ensure_open()
        positions = as_list("positions", positions)
        if self._executor.is_busy or self._cache.is_crowded:
            raise WouldBlockError("Cursor (other calls wait for storage)", wanted=len(positions), room=0)
        try:
            self._acknowledge(positions, batch_sets)
        except LedgersNotLoaded:
            raise WouldBlockError("Cursor (a ledger is not in memory)", wanted=len(positions), room=0) from None

    async def acknowledge_cumulative(self, position: tuple[int, int], *, batch_set: BatchSet | None = None) -> None:
        """Acknowledge everything up to and including a position; of a batch, everything that ``batch_set`` leaves out.

        :raises InvalidArgumentError: it does not exist, or is older than the mark-delete position; nothing has changed
        """
        await self._operations.change(position, lambda: self._state.acknowledge_cumulative(position, batch_set))

    async def reset(self, position: tuple[int, int]) -> None:
        """Make this position the next message: everything before it counts as acknowledged, nothing from it on.

        It takes effect in the order of the calls, and is durable after the next :meth:`flush`.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        await self._operations.change_when_encoded(position, lambda: self._state.reset(position))

    def settle(self) -> None:
        """Move the mark-delete position over ledgers that were deleted from the topic."""
        self._state.mark_delete.advance()
        self._flusher.arm()

    async def put_property(self, key: str, value: str) -> None:
        """Set a property; durable when it returns.

        :raises InvalidArgumentError: no text, more than 524,288 characters, or more than a record of all properties
            can hold, 16 MiB (without PIP-81 ``max_entry_bytes``); nothing has changed
        :raises LedgerError: it could not be written; nothing has changed
        """
        check_text("key", key, MAX_TEXT)
        check_text("value", value, MAX_TEXT)
        self._ensure_open()
        await self._properties.change(key, value, self._flusher.flush)

    async def remove_property(self, key: str) -> None:
        """Remove a property if it exists; durable when it returns.

        :raises LedgerError: it could not be written; nothing has changed
        """
        check_text("key", key, MAX_TEXT)
        self._ensure_open()
        await self._properties.change(key, None, self._flusher.flush)

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a bucket's snapshot; the snapshot may be deleted when this returns.

        This fails if another process owns the cursor by now: then the snapshot is not ours to delete.

        :raises LogFencedError: another process has taken the cursor over
        :raises LedgerError: the change could not be written; nothing has changed
        """
        check_number("snapshot_id", snapshot_id)
        self._ensure_open()
        value = str(snapshot_id)
        named = [key for key, held in self.properties().items() if held == value and key.startswith(DELAYED_PREFIX)]
        for key in named:
            await self._properties.change(key, None, self._flusher.flush)
        if not named:
            self._state.put_back_dirty((), mark_delete=True)
            await self._flusher.flush()

    async def flush(self) -> None:
        """Return when everything that was acknowledged, reset or changed before the call is durable.

        Calls share writes; cancelling one stops no write.

        :raises LedgerError: it could not be written; it is tried again, also without another call
        """
        self._ensure_open()
        await self._executor.wait_for_queued()
        await self._flusher.flush()

    async def _acknowledge_in_turn(self, positions: Sequence[tuple[int, int]], batch_sets: BatchSets | None) -> None:
        """Acknowledge after the operations that wait, with copies of the arguments, which the caller may change."""
        wanted = list(positions)
        sets = batch_sets.copy() if isinstance(batch_sets, dict) else batch_sets
        await self._operations.run_in_turn(lambda: self._acknowledge(wanted, sets))

    def _acknowledge(self, positions: Sequence[tuple[int, int]], batch_sets: BatchSets | None) -> None:
        self._apply(positions, batch_sets)
        self._operations.note_changes(positions)
