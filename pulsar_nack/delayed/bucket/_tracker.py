"""The bucket tracker: the calls of a dispatcher, the one timer, and the way in and out.

What is known is in ``_index``, what is done on storage in ``_worker``. The timer is set for the earliest message that
can be handed out, or for the time to load the next segment, whichever is earlier. The dispatcher is called once for
what came due up to then; when storage brings more, it is called again.
"""

from __future__ import annotations

import asyncio
from _thread import get_ident
from array import array
from collections.abc import Callable
from os import PathLike
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..._check import check_flag, check_has, check_text, clock_of, config_of
from ..._lifetime import NO_THREAD, LoopBound, loop_thread_of
from ..._wake_up import WakeUp
from ...clock import Clock
from ...config import BucketConfig
from ...errors import ClosedError
from ...ids import Position
from ...index import MAX_ENTRY, NEVER
from .._arguments import INT64_MAX, INT64_MIN, check_int, check_message, check_on_due, check_tick
from .._ticks import LATEST, Ticks
from ..storage import BucketSnapshotStorage, DelayedCursor
from ._bulk import entries_of, times_of
from ._index import BucketIndex
from ._snapshots import Snapshots
from ._statistics import BucketStatistics
from ._wire import messages
from ._worker import Worker

if TYPE_CHECKING:
    from ._log_tracker import LogBucketTracker

_NAME: Final = "BucketDelayedDeliveryTracker"
_RECOVERY_PATIENCE: Final = 5.0


class BucketDelayedDeliveryTracker(LoopBound):
    """Holds back delayed messages of one subscription, most of the index on storage; it survives a restart (PIP-195).

    Times are exact to the ms. Not strict, a message may be taken out up to a tick before its time; strict, it never is.
    Calls do not wait; what storage is needed for goes on beside them, and is tried again for as long as it fails.
    Messages come out in order of time, but for those that storage does not give in time.

    Made by :meth:`open`, ended by :meth:`aclose`, or use it with ``async with``. What is not on storage when it ends is
    lost from the index, not from the topic: the dispatcher reads these messages again and adds them anew.
    """

    def __init__(
        self, snapshots: Snapshots, config: BucketConfig, clock: Clock, on_due: Callable[[], object] | None
    ) -> None:
        self._config = config
        self._now_ms = clock.now_ms
        self._home = NO_THREAD  # the thread whose calls need no further check
        self._on_due = on_due
        self._ticks = Ticks(
            config.delayed_delivery_tick_time_millis, is_strict=config.is_delayed_delivery_deliver_at_time_strict
        )
        self._snapshots = snapshots
        self._index = BucketIndex(config)
        self._worker = Worker(
            self._index, snapshots, config, clock, cutoff=self._cutoff, settle=self._settle, on_news=self._have_news
        )
        self._wake_up = WakeUp(clock, self._run)
        self._call_at = NEVER
        self._last_run_at: int | None = None
        self._trimmed_to = -1
        self._is_closed = False

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
        """Bring back what an earlier run stored, and return the tracker.

        Snapshots that cannot be read now, or not within some seconds, are read later. Messages that are due already,
        and those of lost or damaged snapshots, are left to the dispatcher, which adds them again.

        :param storage: started already, and closed by its owner after the tracker
        :param cursor: says what is acknowledged, and keeps the names of the snapshots
        :param clock: epoch ms, by default the wall clock
        :param on_due: a plain function, called when something may be taken out; see the in-memory tracker
        :param topic_name: passed to the storage with each snapshot
        :param cursor_name: passed to the storage with each snapshot
        :raises InvalidArgumentError: an argument was refused, such as a coroutine function as ``on_due``
        :raises MissingExtraError: protobuf is not installed
        """
        check_has("storage", storage, ("create_bucket_snapshot",), "a BucketSnapshotStorage")
        check_has("cursor", cursor, ("properties", "put_property"), "a DelayedCursor")
        check_on_due(on_due)
        check_text("topic_name", topic_name)
        check_text("cursor_name", cursor_name)
        config, clock = config_of(config, BucketConfig), clock_of(clock)
        messages()
        self = cls(Snapshots(storage, cursor, topic_name, cursor_name), config, clock, on_due)
        try:
            await self._recover()
        except BaseException:
            await self.aclose()
            raise
        return self

    @staticmethod
    async def open_local(
        path: str | PathLike[str],
        config: BucketConfig | None = None,
        *,
        clock: Clock | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> LogBucketTracker:
        """Open the tracker that has its snapshots and its cursor in a folder, made where it is missing.

        The cursor is ``tracker.cursor``; with ``await tracker.cursor.mark_delete(position)`` it learns what is
        acknowledged. The tracker closes what it opened. One at a time has the folder open.

        :raises InvalidArgumentError: an argument was refused, or a Cursor uses the folder; nothing was made
        :raises LogLockedError: another tracker, of this process or another, has the folder open
        :raises LogStorageError: the folder cannot be made, read or written
        :raises LogCorruptedError: the cursor's log is damaged; snapshots that are damaged are left to the dispatcher
        :raises LogVersionError: a later release wrote the cursor's log
        """
        from ._log_tracker import LogBucketTracker

        return await LogBucketTracker.open_local(path, config, clock=clock, on_due=on_due)

    async def _recover(self) -> None:
        self._worker.recovery.start()
        try:
            async with asyncio.timeout(min(self._config.recovery_timeout.total_seconds(), _RECOVERY_PATIENCE)):
                await self.wait_until_recovered(once=True)
        except TimeoutError:
            return  # it goes on beside the calls

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<{_NAME} {state}, {len(self._index.pending)} delayed, {len(self._index.buckets)} buckets>"

    # -- adding and taking out ---------------------------------------------------------------------------------------

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed).

        Return False when it has to be dispatched now: its time is past, or not strict at most a tick away; then it is
        not held, even if it was. A position that is held already counts once, with the time that it has.

        :raises InvalidArgumentError: names what was refused, an entry of 2**32 or more too; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        if not (
            type(ledger_id) is type(entry_id) is type(deliver_at) is int
            and 0 <= ledger_id <= INT64_MAX
            and 0 <= entry_id <= MAX_ENTRY
            and INT64_MIN <= deliver_at <= INT64_MAX
        ):
            check_message(ledger_id, entry_id, deliver_at)
            check_int("entry_id", entry_id, 0, MAX_ENTRY)
        if get_ident() != self._home._thread_id:
            self._check_home()
        now_ms = self._now_ms()
        if deliver_at < 0 or deliver_at <= now_ms + self._ticks.lead:
            if self._index.pending.discard(ledger_id, entry_id):
                self._settle(now_ms)
            return False
        deliver_at = min(deliver_at, LATEST)
        is_new = self._index.add(ledger_id, entry_id, deliver_at, now_ms)
        if is_new and (deliver_at < self._call_at or self._worker.has_to_seal):
            self._settle(now_ms)
        return True

    def add_messages(self, ledger_id: int, entries: Any, deliver_at: int) -> bool:
        """Hold many entries of a ledger back until one time; return False when all have to be dispatched now.

        ``entries`` is a range, a list, an array or a numpy array. About 0.2 us an entry.

        :raises InvalidArgumentError: names what was refused; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_message(ledger_id, 0, deliver_at)
        numbers = entries_of(entries)
        if numbers:
            return not self._add_many(ledger_id, numbers, array("q", (deliver_at,)) * len(numbers))
        self._ensure_open()
        return deliver_at >= 0 and deliver_at > self._cutoff()

    def add_entries(self, ledger_id: int, entries: Any, deliver_at: Any) -> list[int]:
        """Hold many entries of a ledger back, each until its own time; return those that have to be dispatched now.

        Both are a range, a list, an array or a numpy array, of the same length. About 0.2 us an entry where the times
        are in order, and 0.5 us otherwise.

        :raises InvalidArgumentError: names what was refused; nothing has changed
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
        cutoff = max(now_ms + self._ticks.lead, -1)
        due: list[int] = []
        if min(times) <= cutoff:
            due = [entry for at, entry in zip(times, entries, strict=True) if at <= cutoff]
            entries = array("I", (entry for at, entry in zip(times, entries, strict=True) if at > cutoff))
            times = array("q", (at for at in times if at > cutoff))
        if times and max(times) > LATEST:
            times = array("q", (min(at, LATEST) for at in times))
        self._index.add_many(ledger_id, entries, times, now_ms)
        if due:
            self._index.drop(ledger_id, due)
        if due or min(times) < self._call_at or self._worker.has_to_seal:
            self._settle(now_ms)
        return due

    def has_message_available(self) -> bool:
        """Return whether something may be dispatched now, though it may have to be loaded from storage first."""
        self._ensure_open()
        cutoff = self._cutoff()
        if self._index.ready_at <= cutoff or self._index.storage_at <= cutoff:
            return True
        self._settle()
        return False

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Take out what may be dispatched now, earliest first, at most so many.

        What has to be loaded first is not waited for: fewer or none may come; ``on_due`` is called when it is there.

        :raises InvalidArgumentError: not an int, or negative; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_int("max_messages", max_messages, 0, INT64_MAX)
        self._ensure_open()
        if self._snapshots.mark_delete_position.ledger != self._trimmed_to:
            self.trim()
        self._worker.start()
        positions = self._index.pop(self._cutoff(), max_messages)
        self._settle()
        return positions

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back. O(1)."""
        check_message(ledger_id, entry_id)
        self._ensure_open()
        return entry_id <= MAX_ENTRY and (ledger_id, entry_id) in self._index.pending

    @property
    def number_of_delayed_messages(self) -> int:
        """Return how many messages are held back. O(1)."""
        return len(self._index.pending)

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes are held in memory. O(1)."""
        return self._index.bytes

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher has to stop reading: too much is in memory that storage has not taken yet."""
        self._ensure_open()
        return self._index.unsealed > self._config.max_unsealed_indexes

    # -- changing ----------------------------------------------------------------------------------------------------

    def trim(self) -> int:
        """Let go of what the cursor has passed; return how many messages went.

        Called for a mark-delete position that moved; a move to another ledger is noticed when messages are taken out.
        """
        self._ensure_open()
        position = self._snapshots.mark_delete_position
        self._trimmed_to = position.ledger
        went = self._index.trim(position)
        self._settle()
        return went

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick.

        :raises InvalidArgumentError: not an int from 0 to a century; nothing has changed
        :raises ClosedError: after :meth:`aclose`
        """
        check_tick(tick_ms)
        self._ensure_open()
        if tick_ms != self._ticks.tick_ms:
            self._ticks = Ticks(tick_ms, is_strict=self._ticks.is_strict)
            self._settle()

    async def clear(self) -> None:
        """Drop everything and delete all snapshots; those that cannot be deleted now are tried again later.

        The cursor forgets the snapshots first, so that no message comes back if storage cannot delete them.

        :raises ClosedError: after :meth:`aclose`
        """
        self._ensure_open()
        self._index.clear()
        self._settle()
        await self._worker.delete_all()

    async def wait_until_recovered(self, *, once: bool = False) -> None:
        """Wait until no snapshot of an earlier run is left to be read; ``once``: until each was tried once."""
        check_flag("once", once)
        self._check_loop("the tracker")
        recovery = self._worker.recovery
        await (recovery.is_tried.wait() if once else recovery.ended())

    async def wait_until_idle(self) -> None:
        """Wait until nothing is being stored, loaded, merged or deleted; what waits for its next attempt aside."""
        self._check_loop("the tracker")
        await self._worker.jobs.idle()

    def statistics(self) -> BucketStatistics:
        """Return the figures of this moment."""
        index, operations = self._index, self._snapshots.operations
        unsealed = index.unsealed
        return BucketStatistics(
            messages=len(index.pending),
            buckets=len(index.buckets),
            loaded=unsealed + sum(bucket.loaded for bucket in index.buckets),
            unsealed=unsealed,
            bytes=index.bytes,
            snapshot_bytes=self._snapshots.bytes,
            is_recovering=self._worker.recovery.is_going_on,
            operations=MappingProxyType(dict(operations.counts)),
            latency=MappingProxyType(operations.latency()),
            damaged=operations.damaged,
            last_error=operations.last_error,
        )

    async def aclose(self) -> None:
        """Stop: snapshots stay, what is under way is given up, ``on_due`` is not called any more. Idempotent."""
        if not self._is_closed:
            self._check_loop("the tracker")
        self._is_closed, self._home = True, NO_THREAD
        self._wake_up.cancel()
        await self._worker.aclose()

    def _check_home(self) -> None:
        self._ensure_open()
        self._home = loop_thread_of(self._loop)

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError(_NAME)
        self._check_loop("the tracker")

    # -- waking up ---------------------------------------------------------------------------------------------------

    def _cutoff(self) -> int:
        return self._now_ms() + self._ticks.lead

    def _settle(self, now_ms: int | None = None) -> None:
        """Start what there is to do, and set the timer for what comes next."""
        if self._is_closed:
            return
        now_ms = self._now_ms() if now_ms is None else now_ms
        ready_at = self._index.ready_at
        self._worker.start()
        self._call_at = self._next_call(ready_at, now_ms)
        at_ms, load_at = self._call_at, self._index.load_at
        if load_at != NEVER:
            load_at -= self._ticks.lead + self._worker.prefetch_ms
            if load_at > now_ms:  # what is not loaded by now waits for messages to be taken out, or for other loads
                at_ms = min(at_ms, load_at)
        if at_ms == NEVER:
            self._wake_up.cancel()
        else:
            self._wake_up.set(at_ms, now_ms)

    def _next_call(self, ready_at: int, now_ms: int) -> int:
        """Return when to call the dispatcher for a message; no two calls are closer than a tick."""
        if ready_at == NEVER or self._last_run_at is None or self._on_due is None:
            return NEVER if self._on_due is None else ready_at
        if ready_at <= self._last_run_at and ready_at <= now_ms:
            return NEVER  # the dispatcher knows
        return max(ready_at, min(self._last_run_at, now_ms) + self._ticks.tick_ms)

    def _run(self, planned_at: int) -> None:
        now_ms = self._now_ms()
        is_call = self._call_at <= now_ms
        if is_call:
            self._last_run_at = planned_at if now_ms - planned_at < self._ticks.tick_ms else now_ms
        try:
            if is_call and self._on_due is not None and self._index.ready_at <= now_ms + self._ticks.lead:
                self._on_due()
        finally:
            self._settle()

    def _have_news(self) -> None:
        """Storage brought something, or is not waited for any more: the dispatcher has to look again."""
        self._last_run_at = None
        self._settle()
