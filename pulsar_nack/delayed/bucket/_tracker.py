"""The bucket tracker: the calls of a dispatcher, opening and closing.

The state is in ``_index``, the work on storage in ``_worker``, and the calls to the dispatcher in ``_timer``.
"""

from __future__ import annotations

import asyncio
from _thread import get_ident
from array import array
from collections.abc import Callable
from os import PathLike
from typing import Any, Self

from ..._check import INT64_MAX, INT64_MIN, check_flag, check_integer, clock_of, config_of
from ..._lifetime import NO_THREAD, LoopBound, loop_thread_of
from ...clock import Clock
from ...config import BucketConfig
from ...ids import Position
from ...index import MAX_ENTRY
from ...ledger import LocalLogStore, LogStore
from ...ledger.ownership import OwnableStore, close_on_error, storage_timeout
from .._protocol import check_message, check_on_due, check_tick, entries_of, times_of
from ..format import snapshot_protobuf
from ..storage import BucketSnapshotStorage, DelayedCursor
from ..ticks import LATEST
from ._index import BucketIndex
from ._log_cursor import LogDelayedCursor
from ._log_storage import LogSnapshotStorage, open_logs, own_logs
from ._snapshots import Snapshots
from ._statistics import BucketStatistics
from ._timer import DispatchTimer
from ._worker import Worker


class BucketDelayedDeliveryTracker(LoopBound):
    """Holds back delayed messages of one subscription, with most of the index on storage, over restarts (PIP-195).

    Times are exact to the ms. If it is not strict, a message may be taken up to a tick before its time; if it is
    strict, never. Calls do not wait: the work on storage runs in the background, and is retried while it fails.
    Messages come out in order of time, except those that storage does not deliver in time.

    Open it with :meth:`open`, and close it with :meth:`aclose` or ``async with``. Messages that are not on storage by
    then are lost from the index, but not from the topic: the dispatcher reads and adds them again.
    """

    _what = "BucketDelayedDeliveryTracker"

    def __init__(
        self, snapshots: Snapshots, config: BucketConfig, clock: Clock, on_due: Callable[[], object] | None
    ) -> None:
        snapshot_protobuf()
        self._now_ms = clock.now_ms
        self._home = NO_THREAD  # where calls need no further check
        self._snapshots = snapshots
        self._index = BucketIndex(config)
        self._timer = timer = DispatchTimer(self._index, config, clock, on_due)
        self._worker = Worker(self._index, snapshots, config, clock, timer)
        timer.start_work = self._worker.start
        self._trimmed_to = -1

    @classmethod
    async def open(
        cls,
        storage: BucketSnapshotStorage,
        cursor: DelayedCursor,
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
        topic_name: str = "",
        cursor_name: str = "",
    ) -> Self:
        """Open a tracker, and recover what an earlier run stored.

        Snapshots that cannot be read now, or not within some seconds, are read later. Messages that are due already,
        and those of lost or damaged snapshots, are left to the dispatcher, which adds them again.

        :param storage: started; its owner closes it after the tracker
        :param cursor: has the mark-delete position, and keeps the names of the snapshots
        :param clock: epoch ms, by default the wall clock
        :param on_due: a plain function that is called when messages may be taken; see the in-memory tracker
        :param topic_name: passed to the storage with each snapshot
        :param cursor_name: passed to the storage with each snapshot. On a storage that lists its snapshots each cursor
            needs its own names: the tracker deletes listed snapshots that its cursor does not name
        :raises InvalidArgumentError: an argument was refused, such as a coroutine function as ``on_due``
        :raises MissingExtraError: protobuf is not installed
        """
        check_on_due(on_due)
        clock = clock_of(clock)
        snapshots = Snapshots(storage, cursor, topic_name, cursor_name, clock=clock)
        self = cls(snapshots, config_of(config, BucketConfig), clock, on_due)
        await self._recover()
        return self

    async def _recover(self) -> None:
        """Recover what an earlier run stored; the tracker is closed if this fails."""
        try:
            await self._worker.recovery.start()
        except BaseException:
            await self.aclose()
            raise

    @staticmethod
    async def open_local(
        path: str | PathLike[str],
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> LogBucketTracker:
        """Open a tracker with its snapshots and its cursor in a folder, which is created if it is missing.

        The cursor is ``tracker.cursor``: report acknowledgements with ``await tracker.cursor.mark_delete(position)``.
        The tracker closes what it opened. Only one tracker at a time can have the folder open.

        :raises InvalidArgumentError: an argument was refused, or a Cursor uses the folder; nothing was created
        :raises LogLockedError: another tracker, of this process or another, has the folder open
        :raises LogStorageError: the folder cannot be made, read or written
        :raises LogCorruptedError: the cursor's log is damaged; messages of damaged snapshots are left to the dispatcher
        :raises LogVersionError: a later release wrote the cursor's log
        """
        check_on_due(on_due)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        snapshot_protobuf()
        store = await LocalLogStore.open(path)
        async with close_on_error([store]):
            return await LogBucketTracker._open_in(await own_logs(store), store, config, clock, on_due)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<{self._what} {state}, {len(self._index.pending)} delayed, {len(self._index.buckets)} buckets>"

    # -- adding and taking -------------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed).

        Return False if the message has to be dispatched now: its time is past, or, if not strict, at most a tick away.
        Then it is not held, even if it was before. A position that is already held counts once, and keeps its time.

        :raises InvalidArgumentError: an argument was refused, such as an entry of 2**32 or more; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        if not (
            type(ledger_id) is type(entry_id) is type(deliver_at) is int
            and 0 <= ledger_id <= INT64_MAX
            and 0 <= entry_id <= MAX_ENTRY
            and INT64_MIN <= deliver_at <= INT64_MAX
        ):
            check_message(ledger_id, entry_id, deliver_at)
            check_integer("entry_id", entry_id, 0, MAX_ENTRY)
        if get_ident() != self._home._thread_id:
            self._check_home()
        now_ms = self._now_ms()
        timer = self._timer
        if deliver_at < 0 or deliver_at <= now_ms + timer.ticks.lead:
            if self._index.pending.discard(ledger_id, entry_id):
                timer.update(now_ms)
            return False
        deliver_at = min(deliver_at, LATEST)
        is_new = self._index.add(ledger_id, entry_id, deliver_at, now_ms)
        if is_new and (deliver_at < timer.call_at or self._has_to_seal()):
            timer.update(now_ms)
        return True

    def add_messages(self, ledger_id: int, entries: Any, deliver_at: int) -> bool:
        """Hold entries of a ledger back until one time; return False if all have to be dispatched now.

        ``entries`` is a range, a list, an array or a numpy array. About 0.2 us an entry.

        :raises InvalidArgumentError: an argument was refused; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_message(ledger_id, 0, deliver_at)
        numbers = entries_of(entries)
        if numbers:
            return not self._add_many(ledger_id, numbers, array("q", (deliver_at,)) * len(numbers))
        self._ensure_open()
        return deliver_at >= 0 and deliver_at > self._timer.cutoff()

    def add_entries(self, ledger_id: int, entries: Any, deliver_at: Any) -> list[int]:
        """Hold entries of a ledger back, each until its time; return those that have to be dispatched now.

        Both are a range, a list, an array or a numpy array, of equal length. About 0.2 us an entry if the times are in
        order, 0.5 us otherwise.

        :raises InvalidArgumentError: an argument was refused; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_message(ledger_id, 0)
        numbers = entries_of(entries)
        return self._add_many(ledger_id, numbers, times_of(deliver_at, len(numbers)))

    def _add_many(self, ledger_id: int, entries: array[int], times: array[int]) -> list[int]:
        self._ensure_open()
        if not entries:
            return []
        now_ms = self._now_ms()
        due = self._index.add_later(ledger_id, entries, times, max(now_ms + self._timer.ticks.lead, -1), now_ms)
        if due or min(times) < self._timer.call_at or self._has_to_seal():
            self._timer.update(now_ms)
        return due

    def _has_to_seal(self) -> bool:
        """Return whether a bucket waits to be sealed, or has become large enough to be sealed when it is old."""
        return self._worker.has_to_seal or self._index.seal_at < self._timer.seal_at

    def has_message_available(self) -> bool:
        """Return whether a message may be dispatched now, though it may have to be loaded from storage first."""
        self._ensure_open()
        cutoff = self._timer.cutoff()
        if self._index.ready_at <= cutoff or self._index.storage_at <= cutoff:
            return True
        self._timer.update()
        return False

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Remove and return messages that may be dispatched now, earliest first.

        This does not wait for messages that have to be loaded; ``on_due`` is called when they are in memory.

        :raises InvalidArgumentError: not an int, or negative; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_integer("max_messages", max_messages, 0, INT64_MAX)
        self._ensure_open()
        if self._snapshots.mark_delete_position.ledger != self._trimmed_to:
            self.trim()
        self._worker.start()
        positions = self._index.pop(self._timer.cutoff(), max_messages)
        self._timer.update()
        return positions

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back. O(1)."""
        check_message(ledger_id, entry_id)
        self._ensure_open()
        return entry_id <= MAX_ENTRY and (ledger_id, entry_id) in self._index.pending

    @property
    def number_of_delayed_messages(self) -> int:
        """Return the number of messages that are held back. O(1)."""
        return len(self._index.pending)

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes of memory are in use. O(1)."""
        return self._index.bytes

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher has to stop reading: too many messages are not on storage yet.

        ``on_due`` is called when it may go on.
        """
        self._ensure_open()
        return self._timer.should_pause()

    # -- changing ----------------------------------------------------------------------------------------------------

    def trim(self) -> int:
        """Drop the messages that the cursor has passed; return how many.

        Call it when the mark-delete position has moved; a move to another ledger is noticed when messages are taken.
        """
        self._ensure_open()
        position = self._snapshots.mark_delete_position
        self._trimmed_to = position.ledger
        dropped = self._index.trim(position)
        self._timer.update()
        return dropped

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick.

        :raises InvalidArgumentError: not an int from 0 to a century; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_tick(tick_ms)
        self._ensure_open()
        self._timer.change_tick(tick_ms)

    async def clear(self) -> None:
        """Drop all messages and delete all snapshots; those that cannot be deleted now are tried again later.

        The properties of the cursor are removed first, so that no message comes back if storage cannot delete one.

        :raises ClosedError: after :meth:`aclose`
        """
        self._ensure_open()
        self._index.clear()
        self._timer.update()
        await self._worker.delete_all()

    async def wait_until_recovered(self, *, once: bool = False) -> None:
        """Wait until all snapshots of an earlier run are read; ``once``: until each was tried once."""
        check_flag("once", once)
        self._check_loop()
        recovery = self._worker.recovery
        await (recovery.is_tried.wait() if once else recovery.ended())

    async def wait_until_idle(self) -> None:
        """Wait until nothing is being stored, loaded, merged or deleted, except what waits for its next attempt."""
        self._check_loop()
        await self._worker.tasks.wait_until_idle()

    def statistics(self) -> BucketStatistics:
        """Return the current figures."""
        return self._worker.statistics()

    async def aclose(self) -> None:
        """Close the tracker: unfinished work is dropped, snapshots stay, ``on_due`` is not called again. Idempotent."""
        if not self._is_closed:
            self._check_loop()
        self._is_closed, self._home = True, NO_THREAD
        self._timer.close()
        await self._worker.aclose()

    def _check_home(self) -> None:
        self._ensure_open()
        self._home = loop_thread_of(self._loop)


class LogBucketTracker(BucketDelayedDeliveryTracker):
    """A :class:`~pulsar_nack.BucketDelayedDeliveryTracker` with its cursor and its snapshots on one store of logs.

    Open it with :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local` or :meth:`open_store`. It closes what it
    opened.
    """

    cursor: LogDelayedCursor
    """The cursor: report acknowledgements with ``await tracker.cursor.mark_delete(position)``."""
    _storage: LogSnapshotStorage
    _close_timeout_s: float
    _place: OwnableStore | LocalLogStore | None = None
    """The store, or its owned part, that is closed at last; None until the tracker is open."""

    @classmethod
    async def open_store(
        cls,
        store: LogStore,
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> Self:
        """Open a tracker with its snapshots and its cursor on a store of logs; only one at a time can have it open.

        The arguments and errors are those of :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`.

        :param store: for this tracker alone; its owner closes it after the tracker
        """
        check_on_due(on_due)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        snapshot_protobuf()
        part = await own_logs(store)
        async with close_on_error([part]):
            return await cls._open_in(part, part, config, clock, on_due)

    @classmethod
    async def _open_in(
        cls,
        part: OwnableStore,
        place: OwnableStore | LocalLogStore,
        config: BucketConfig,
        clock: Clock,
        on_due: Callable[[], object] | None,
    ) -> Self:
        cursor, storage = await open_logs(part, config)
        self = await cls.open(storage, cursor, config, clock=clock, on_due=on_due)
        self.cursor, self._storage, self._place = cursor, storage, place
        self._close_timeout_s = config.close_timeout.total_seconds()
        return self

    async def aclose(self) -> None:
        """Close the tracker and its logs; snapshots stay. Takes at most ``close_timeout``. Idempotent.

        :raises TimeoutError: storage did not answer in time; the logs are closed as soon as it does
        """
        await super().aclose()
        if self._place is None:
            return
        try:
            async with storage_timeout(self._close_timeout_s, "the tracker"):
                await asyncio.gather(self.cursor.aclose(), self._storage.close())
                await self._place.aclose()
        finally:
            self._place.close_soon()
