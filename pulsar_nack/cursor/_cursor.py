"""A subscription's acknowledgement state, durable: the async shell of :mod:`._acks` over :mod:`._log`.

States
    The state in memory is the truth; storage is behind it by what is dirty. An operation whose ledgers are in memory is
    carried out at once, between two awaits, unless others wait: then it goes to the end of :mod:`._line`. What waits
    there loads ledgers first. Writes (:mod:`._flusher`) run beside, one at a time.

Why a write is right though acknowledgements go on while it is prepared
    The dirty ledgers are encoded one after the other, and in between others run. What is acknowledged stays so, and the
    mark-delete position only moves forward; so each encoded ledger says what was true at its time, and is right
    together with the position as it is when the last one is encoded, which is what the marker gets. A reset is the
    exception, hence it waits until the encoding is over. What changed since its ledger was encoded is dirty again.

Memory
    A ledger may be put out of memory when it is clean and no write that takes it is under way. Where all are dirty a
    write begins. Where memory grows beyond twice the limit meanwhile, acknowledgements wait for it.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from os import PathLike
from types import TracebackType
from typing import Final, Self, TypeVar

from .._check import config_of
from .._lifetime import NO_THREAD, LoopBound, loop_thread_of
from ..config import DELAYED_PREFIX, CursorConfig
from ..errors import ClosedError, InvalidArgumentError, LogFencedError, WouldBlockError
from ..ledger import LocalLogStore, LogStore
from ..ledger._taking import given_back
from ._acks import BatchSets
from ._batch import BatchSet
from ._flusher import Flusher
from ._generations import names_of
from ._ledger_acks import LedgersNotLoaded
from ._line import IsWanted, Line, retrieve
from ._loading import Range, as_positions
from ._opening import Opened, Topic, check_topic, open_state
from ._properties import check_text
from ._requests import checked, checked_number
from ._statistics import CursorFigures

_T = TypeVar("_T")

_LOOK_EVERY: Final = 256
_FEW_RANGES: Final = 5_000


class Cursor(LoopBound, CursorFigures):
    """What a subscription has acknowledged, kept in memory within bounds, and on a store of logs.

    Made by :meth:`open` or :meth:`open_local`, ended by :meth:`aclose`, or use it with ``async with``. What is
    acknowledged is written ``flush_interval`` later, or when :meth:`flush` is called, which returns when it is durable.
    A position is a (ledger, entry) pair, a batch set what is *not* acknowledged of an entry's batch.

    It is also a :class:`~pulsar_nack.DelayedCursor`.
    """

    _owned: LocalLogStore | None = None
    _closing: asyncio.Task[None] | None = None
    _ending: asyncio.Task[None] | None = None
    _is_closed = True

    def __init__(self, opened: Opened, config: CursorConfig) -> None:
        super().__init__(opened, config)
        self._flusher = Flusher(self._write, lambda: self._writing.is_dirty, _seconds(config.flush_interval))
        self._line = Line()
        self._countdown = _LOOK_EVERY
        self._used: int | None = None
        limit = self._cache.limit
        self._crowd = math.inf if limit is None else limit // 16
        self._is_crowded = False
        self._is_closed, self._home = False, loop_thread_of(self._loop)
        self._apply = self._state.acknowledge

    # --- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        store: LogStore,
        ledgers: Topic,
        config: CursorConfig | None = None,
        *,
        name: str = "cursor",
        start: tuple[int, int] | None = None,
    ) -> Self:
        """Read what is there, or begin a new cursor.

        :param store: where its logs are, called ``<name>-<number>``; other logs in it are left alone. Its owner closes
            it, after the cursor
        :param ledgers: ``{ledger: entries}``, which may change while in use, or an object that answers as much; None: a
            remote topic, whose ledgers are not known
        :param start: the mark-delete position of a new cursor; by default nothing is acknowledged
        :raises LogLockedError: somebody else has it open, in a folder; on object storage it is taken over from them
        :raises LogFencedError: somebody else opened it at the same time, a moment later, on object storage
        :raises LogVersionError: a later release wrote it
        :raises LogStorageError: the store refused
        :raises MissingExtraError: protobuf is not installed
        """
        if not isinstance(store, LogStore):
            raise InvalidArgumentError("store", store, "a LogStore such as LocalLogStore")
        config = config_of(config, CursorConfig)
        self = cls(await open_state(store, names_of(name), ledgers, config, start), config)
        self._cache.use_all(sorted(self._state.ledger_states))
        if self._state.cut_entries:
            async with given_back([self]):
                await self.flush()  # before new entries get the positions of lost ones
        return self

    @classmethod
    async def open_local(
        cls,
        path: str | PathLike[str],
        ledgers: Topic,
        config: CursorConfig | None = None,
        *,
        name: str = "cursor",
        start: tuple[int, int] | None = None,
    ) -> Self:
        """Open the cursor in a folder, made where it is missing; the rest is as in :meth:`open`."""
        config = config_of(config, CursorConfig)
        names_of(name)
        check_topic(ledgers, start)
        store = await LocalLogStore.open(path, threads=2)
        async with given_back([store]):
            self = await cls.open(store, ledgers, config, name=name, start=start)
        self._owned = store
        return self

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not self._is_closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Cursor {'closed' if self._is_closed else 'open'}, after {tuple(self._state.mark_delete_position)}>"

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    async def aclose(self) -> None:
        """Carry out what waits, write, and give the cursor up. Takes ``close_timeout`` at most. Idempotent.

        :raises LedgerError: the last write failed; what it should have written is lost
        :raises TimeoutError: it did not end in time
        """
        if not self._is_closed:
            self._check_loop("the cursor")
        if self._closing is None:
            self._is_closed, self._home = True, NO_THREAD
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="pulsar_nack.Cursor close")
            self._closing.add_done_callback(retrieve)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _seconds(self._config.close_timeout)
        self._flusher.end()
        try:
            async with asyncio.timeout_at(deadline):
                await self._line.empty()
                if self._flusher.broken is None:
                    await self._flusher.flush()
                await self._flusher.idle()
        finally:
            self._line.cancel()
            self._ending = loop.create_task(self._end(), name="pulsar_nack.Cursor end")
            self._ending.add_done_callback(retrieve)
            await asyncio.wait([self._ending], timeout=max(deadline - loop.time(), 0))
            if self._ending.done():
                self._ending.result()

    async def _end(self) -> None:
        await self._flusher.idle()
        await self._log.aclose()
        if self._owned is not None:
            await self._owned.aclose()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError("Cursor")
        self._check_loop("the cursor")
        if self._flusher.broken is not None:
            raise LogFencedError(self._flusher.broken.log)

    # --- what it knows -----------------------------------------------------------------------------------------------

    async def is_acked(self, position: tuple[int, int], batch_index: int | None = None) -> bool:
        """Return whether an entry is acknowledged as a whole, or at least this index of its batch. May load.

        What an ack set of a batch does not name is acknowledged in it, so an index behind the batch's end is, too: sets
        do not always tell how large the batch is.
        """
        where = checked(position, lowest=-1)
        index = None if batch_index is None else checked_number("batch_index", batch_index, lowest=-1)
        return await self._do(lambda: self._state.is_acked(where, index))

    async def batch_set(self, position: tuple[int, int]) -> BatchSet | None:
        """Return what is left of a batch of which some messages are acknowledged, else None. May load."""
        where = checked(position, lowest=-1)
        return await self._do(lambda: self._state.batch_set(where))

    async def unacked(self, ledger: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges of entries between these two, both ends included, that are not acknowledged as a whole.

        May load. Whether they exist is not asked.
        """
        in_ledger = checked_number("ledger", ledger)
        begin, end = checked_number("first", first), checked_number("last", last, lowest=-1)
        return await self._do(lambda: list(self._state.unacked(in_ledger, begin, end)))

    async def individually_deleted(self) -> list[Range]:
        """Return the acknowledged ranges beyond the mark-delete position, in order. May load."""
        return [each for ranges in await self.build_individual_deleted_message_ranges() for each in ranges]

    async def build_individual_deleted_message_ranges(self) -> list[list[Range]]:
        """Return the acknowledged ranges beyond the mark-delete position, a list for each ledger, in order (PIP-81).

        Ledgers that are not in memory are read, one at a time, and are not kept.
        """
        self._ensure_open()
        if not self._state.evicted and not self._line.is_busy and self._state.range_count < _FEW_RANGES:
            states = self._state.ledger_states
            return [ranges for ledger in sorted(states) if (ranges := as_positions(ledger, states[ledger]))]
        return await self._line.put(self._loading.read_ranges)

    async def lru_switch(self, ledger_id: int) -> None:
        """Have a ledger in memory, and make it the one that was used last (PIP-81), if anything is known of it.

        :raises InvalidArgumentError: this is no number of a ledger
        """
        ledger = checked_number("ledger_id", ledger_id)

        def touch() -> None:
            if ledger in self._state.evicted:
                raise LedgersNotLoaded([ledger])
            if ledger in self._state.ledger_states:
                self._cache.use(ledger)
                self._used = ledger

        await self._do(touch)

    # --- acknowledging -----------------------------------------------------------------------------------------------

    async def acknowledge(self, positions: Sequence[tuple[int, int]], *, batch_sets: BatchSets | None = None) -> None:
        """Acknowledge entries; of those that have a batch set, only what that set leaves out.

        In memory when it returns, durable after the next :meth:`flush`. What is acknowledged already is accepted.

        :param batch_sets: by position
        :raises InvalidArgumentError: a position does not exist; nothing of the call was applied
        :raises LedgerError: memory is full or lacks a ledger, and storage refuses; nothing of the call was applied
        :raises ClosedError: after :meth:`aclose`
        """
        if positions.__class__ is not list:
            positions = _as_list("positions", positions)
        flusher = self._flusher
        if self._line.is_busy or self._is_crowded or get_ident() != self._home._thread_id or flusher.broken is not None:
            await self._acknowledge_in_line(positions, batch_sets)
            return
        try:
            self._apply(positions, batch_sets)
        except LedgersNotLoaded:
            await self._acknowledge_in_line(positions, batch_sets)
            return
        if positions and (ledger := positions[-1][0]) != self._used:
            self._switch(ledger, positions)
        if not flusher.is_armed:
            flusher.arm()
        self._countdown -= 1
        if self._countdown <= 0:
            self._look()
            await asyncio.sleep(0)

    async def acknowledge_entries(self, ledger: int, entries: Iterable[int]) -> None:
        """Acknowledge entries of one ledger: the fast way for many; the rest is as in :meth:`acknowledge`."""
        wanted = _as_list("entries", entries)
        checked_number("ledger", ledger)

        def apply() -> None:
            self._state.acknowledge_entries(ledger, wanted)
            self._changed([(ledger, 0)])

        await self._do(apply)

    def acknowledge_nowait(self, positions: Sequence[tuple[int, int]], *, batch_sets: BatchSets | None = None) -> None:
        """Do what :meth:`acknowledge` does, if it can be done at once.

        :raises WouldBlockError: other calls wait, or a ledger is not in memory; nothing was applied
        """
        self._ensure_open()
        positions = _as_list("positions", positions)
        if self._line.is_busy or self._is_crowded:
            raise WouldBlockError("Cursor (others wait for storage)", wanted=len(positions), room=0)
        try:
            self._acknowledge(positions, batch_sets)
        except LedgersNotLoaded:
            raise WouldBlockError("Cursor (a ledger is not in memory)", wanted=len(positions), room=0) from None

    async def acknowledge_cumulative(self, position: tuple[int, int], *, batch_set: BatchSet | None = None) -> None:
        """Acknowledge everything up to this position, itself included; with a batch set, as far as that leaves out.

        :raises InvalidArgumentError: it does not exist, or is older than the mark-delete position; nothing has changed
        """

        def apply() -> None:
            self._state.acknowledge_cumulative(position, batch_set)
            self._changed([position])

        await self._do(apply)

    async def reset(self, position: tuple[int, int]) -> None:
        """Make this position the next message: everything before it counts as acknowledged, nothing from it on.

        In the order of the calls with acknowledgements; durable after the next :meth:`flush`.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """

        def apply() -> None:
            self._state.reset(position)
            self._changed([position])

        self._ensure_open()
        if not self._line.is_busy and not self._writing.is_encoding:
            apply()
            return

        async def wait_and_apply(is_wanted: IsWanted) -> None:
            await self._writing.when_encoded()
            if is_wanted():
                apply()

        await self._line.put(wait_and_apply)

    def settle(self) -> None:
        """Move the mark-delete position on over ledgers that were deleted from the topic."""
        self._state.settle()
        self._flusher.arm()

    async def put_property(self, key: str, value: str) -> None:
        """Set a property; durable when it returns.

        :raises InvalidArgumentError: no text, or more than 524,288 characters
        :raises LedgerError: it could not be written; nothing has changed
        """
        check_text("key", key)
        check_text("value", value)
        await self._change_property(key, value)

    async def remove_property(self, key: str) -> None:
        """Remove a property, if it is there; durable when it returns.

        :raises LedgerError: it could not be written; nothing has changed
        """
        check_text("key", key)
        await self._change_property(key, None)

    async def forget(self, snapshot_id: int) -> None:
        """Remove the properties that name a bucket's snapshot; it may be deleted when this returns.

        So it is ours to delete: had somebody else taken the cursor over, this would have failed.

        :raises LogFencedError: somebody else has taken the cursor over
        :raises LedgerError: it could not be written; nothing has changed
        """
        checked_number("snapshot_id", snapshot_id)
        self._ensure_open()
        value = str(snapshot_id)
        named = [key for key, held in self.properties().items() if held == value and key.startswith(DELAYED_PREFIX)]
        for key in named:
            await self._change_property(key, None)
        if not named:
            self._state.put_back_dirty((), mark_delete=True)
            await self._flusher.flush()

    async def flush(self) -> None:
        """Return when everything that was acknowledged, reset or changed before the call is durable.

        Calls share writes. Cancelling one stops nothing.

        :raises LedgerError: it could not be written; it is tried again, also when nobody asks
        """
        self._ensure_open()
        if self._line.is_busy:
            await self._line.put(_nothing)
        await self._flusher.flush()

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _acknowledge(self, positions: Sequence[tuple[int, int]], batch_sets: BatchSets | None) -> None:
        self._apply(positions, batch_sets)
        self._changed(positions)

    async def _acknowledge_in_line(self, positions: Sequence[tuple[int, int]], batch_sets: BatchSets | None) -> None:
        """Acknowledge when it is this call's turn: what was given when it was called, whatever becomes of the list."""
        wanted = list(positions)
        sets = batch_sets.copy() if isinstance(batch_sets, dict) else batch_sets
        await self._do_in_line(lambda: self._acknowledge(wanted, sets))

    def _changed(self, positions: Sequence[tuple[int, int]]) -> None:
        if positions and positions[-1][0] != self._used:
            self._switch(positions[-1][0], positions)
        if not self._flusher.is_armed:
            self._flusher.arm()
        self._countdown -= 1
        if self._countdown <= 0:
            self._look()

    def _switch(self, ledger: int, positions: Sequence[tuple[int, int]]) -> None:
        """Note which ledgers were used; another one than before is the last."""
        if len(positions) > 1:
            self._cache.use_all({each for each, _ in positions})
        self._cache.use(ledger)
        self._used = ledger

    def _look(self) -> None:
        """Look whether memory has grown too large, every now and then."""
        self._countdown = _LOOK_EVERY
        if not self._make_room():
            self._flusher.begin()

    async def _write(self) -> None:
        await self._writing.write()
        self._make_room()

    def _make_room(self) -> bool:
        """Put ledgers out of memory where there are too many; return whether the rest fits."""
        is_writing = bool(self._writing.in_flight)
        fits = self._cache.excess <= 0 if is_writing else self._cache.evict(self._loading.pinned)
        self._is_crowded = not fits and self._cache.excess > self._crowd
        return fits

    async def _do(self, attempt: Callable[[], _T]) -> _T:
        """Do this at once, if nothing waits and nothing has to be loaded, else in line."""
        self._ensure_open()
        if not self._line.is_busy:
            try:
                return attempt()
            except LedgersNotLoaded:
                pass
        return await self._do_in_line(attempt)

    async def _do_in_line(self, attempt: Callable[[], _T]) -> _T:
        self._ensure_open()

        async def load_and_do(is_wanted: IsWanted) -> _T:
            if self._is_crowded:
                await self._flusher.flush()
            try:
                return await self._loading.run(attempt, is_wanted)
            finally:
                self._look()

        return await self._line.put(load_and_do)

    async def _change_property(self, key: str, value: str | None) -> None:
        self._ensure_open()
        if value is None and not self._properties.has(key):
            return
        done = self._properties.change(key, value)
        try:
            await self._flusher.flush()
            await done
        finally:
            if not done.cancel() and not done.cancelled():
                done.exception()  # whoever waits has been told


def _seconds(delay: timedelta) -> float:
    return delay.total_seconds()


def _as_list(field: str, values: Iterable[_T]) -> list[_T]:
    """Return a list of what was given.

    :raises InvalidArgumentError: it is nothing that could be listed
    """
    try:
        return list(values)
    except TypeError:
        raise InvalidArgumentError(field, values, "a sequence") from None


async def _nothing(is_wanted: IsWanted) -> None:
    """Be done when everything before it is."""
