"""Makes the tracker that the configuration asks for, and keeps dispatch going when storage fails.

A factory owns the storage. Snapshots of earlier runs that this configuration does not use are deleted in the
background. The dispatcher reads their messages again, since no tracker holds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from .._check import check_callable, check_clock, check_has, check_text, config_of
from .._lifetime import LoopBound
from .._tasks import TaskOwner
from ..clock import Clock, WallClock
from ..config import BucketConfig
from ..errors import ClosedError, InvalidArgumentError, NotOpenError, SnapshotError
from ._factory_parts import OpenTracker, OwnedStorage, SharedIndexRegistry, TrackerRegistry
from ._in_memory import InMemoryDelayedDeliveryTracker
from ._protocol import DelayedDeliveryTracker, DisabledDelayedDeliveryTracker, check_on_due
from .bucket import BucketDelayedDeliveryTracker, SharedDelayedIndex, delete_bucket_snapshots
from .format import snapshot_protobuf
from .storage import BucketSnapshotStorage, DelayedCursor

_MAX_RETRY_S: Final = 5.0
"""How long to continue with a storage of which every read fails, if ``recovery_timeout`` is not shorter."""
_log = logging.getLogger("pulsar_nack.delayed")


@dataclass(frozen=True, slots=True)
class TrackerFallback:
    """A tracker is in memory although buckets are configured."""

    topic_name: str
    """The topic of the tracker."""
    cursor_name: str
    """The subscription of the tracker."""
    error: Exception
    """The reason: the error of the storage, or :class:`TimeoutError`."""


@dataclass(frozen=True, slots=True)
class DelayedFactoryStatistics:
    """A snapshot of a factory's figures."""

    trackers: int
    """Now: open trackers."""
    fallbacks: int
    """Total: trackers that were made in memory although buckets are configured."""
    cleaning: int
    """Now: cursors whose unused snapshots are still to be deleted."""
    cleaned: int
    """Total: unused snapshots that were deleted."""
    last_error: Exception | None
    """The last error of the storage."""


@dataclass(frozen=True, slots=True)
class _Request:
    topic_name: str
    cursor_name: str
    cursor: DelayedCursor | None
    topic_cursor: DelayedCursor | None
    on_due: Callable[[], object] | None


class DelayedDeliveryTrackerFactory(LoopBound):
    """Makes trackers in memory, trackers in buckets, or disabled ones, as ``config`` says.

    A bucket tracker is replaced by one in memory if its storage does not start, or if its recovery fails or exceeds
    ``recovery_timeout``. The dispatcher then reads and adds the messages again, and nothing is deleted. The fallback
    is logged as a warning to ``pulsar_nack.delayed``, counted in :meth:`statistics`, and passed to ``on_fallback``.

    Without buckets, ``storage`` is only used to clean up: the snapshots that an earlier run of a cursor left are
    deleted, with retries. Without ``storage`` they stay.

    Use it with ``async with``, or call :meth:`start` and :meth:`aclose`. It starts and closes the storage.

    :param config: see :class:`~pulsar_nack.BucketConfig`, whose first three settings choose the kind of tracker
    :param storage: required for buckets
    :param clock: epoch ms, of all trackers; by default the wall clock
    :param on_fallback: a plain function that is called soon after a fallback, with a :class:`TrackerFallback`
    :raises InvalidArgumentError: buckets are configured and there is no storage
    """

    _what = "DelayedDeliveryTrackerFactory"

    def __init__(
        self,
        config: BucketConfig | None = None,
        storage: BucketSnapshotStorage | None = None,
        *,
        clock: Clock | None = None,
        on_fallback: Callable[[TrackerFallback], object] | None = None,
    ) -> None:
        self._config = config = config_of(config, BucketConfig)
        check_clock(clock)
        if storage is not None:
            check_has("storage", storage, ("create_bucket_snapshot",), "a BucketSnapshotStorage or None")
        if on_fallback is not None:
            check_callable("on_fallback", on_fallback, "a callable that takes a TrackerFallback, or None")
        if storage is None and config.tracker_kind == "bucket":
            raise InvalidArgumentError("storage", storage, "a BucketSnapshotStorage, since buckets are configured")
        self._clock = clock = WallClock() if clock is None else clock
        self._on_fallback = on_fallback
        self._recovery_timeout = config.recovery_timeout.total_seconds()
        self._storage = None if storage is None else OwnedStorage(storage, self._recovery_timeout)
        self._registry = TrackerRegistry()
        self._shared = SharedIndexRegistry()
        self._tasks = TaskOwner(clock)
        self._cleaning = TaskOwner(clock)
        self._unclean: set[tuple[str, str]] = set()
        self._cleaned = 0
        self._is_started = False
        self._closing: asyncio.Task[None] | None = None
        self._fallbacks = 0
        self._last_error: Exception | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Start the storage if buckets are configured; if that fails, each new tracker tries again.

        :raises MissingExtraError: protobuf is not installed, and buckets are configured
        :raises ClosedError: after :meth:`aclose`
        """
        self._ensure_open()
        if self._config.tracker_kind == "bucket" and self._storage is not None:
            snapshot_protobuf()
            try:
                await self._storage.get()
            except Exception as error:  # noqa: BLE001 - kept; until it starts, trackers are made in memory
                self._note(error)
        self._is_started = True

    async def new_tracker(
        self,
        cursor: DelayedCursor | None = None,
        *,
        topic_name: str = "",
        cursor_name: str = "",
        topic_cursor: DelayedCursor | None = None,
        on_due: Callable[[], object] | None = None,
    ) -> DelayedDeliveryTracker:
        """Return the tracker of one subscription; close it when the subscription ends, or with the factory.

        :param cursor: the subscription's cursor; required by trackers in buckets, others use it to clean up
        :param topic_name: identifies the snapshots and the metrics, together with ``cursor_name``
        :param cursor_name: the subscription's name
        :param topic_cursor: keeps the names of the snapshots of an index that subscriptions share; its mark-delete
            position counts while there is no subscription
        :param on_due: as with any tracker
        :raises InvalidArgumentError: an argument was refused; a subscription has one tracker at a time
        :raises NotOpenError: before :meth:`start`
        :raises ClosedError: after :meth:`aclose`
        """
        request = _Request(topic_name, cursor_name, cursor, topic_cursor, on_due)
        self._check(request)
        self._registry.reserve(topic_name, cursor_name)
        tracker = None
        try:
            tracker = await self._make(request)
            if self._is_closed:
                await tracker.aclose()
                raise ClosedError(self._what)
        finally:
            self._registry.settle(topic_name, cursor_name, tracker)
        return tracker

    def trackers(self) -> list[OpenTracker]:
        """Return the open trackers. Any thread may call it."""
        return self._registry.all()

    def statistics(self) -> DelayedFactoryStatistics:
        """Return the current figures."""
        return DelayedFactoryStatistics(
            trackers=len(self._registry.all()),
            fallbacks=self._fallbacks,
            cleaning=len(self._unclean),
            cleaned=self._cleaned,
            last_error=self._last_error,
        )

    async def wait_until_clean(self) -> None:
        """Wait until the unused snapshots of every cursor are deleted, or their deletion waits for its next attempt."""
        self._check_loop()
        await self._cleaning.wait_until_idle()

    async def _stop_cleaning(self, topic_name: str, cursor_name: str) -> None:
        """Keep what is left of a cursor's snapshots: a tracker of another configuration is about to use the cursor."""
        self._unclean.discard((topic_name, cursor_name))
        await self._cleaning.wait_until_idle()

    async def aclose(self) -> None:
        """Close all trackers, stop cleaning, close the storage. Idempotent; closing continues if this is cancelled."""
        if self._closing is None:
            self._check_loop()
            self._is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for each in self._registry.all():
                await each.tracker.aclose()
            await self._shared.aclose()
        finally:
            await self._cleaning.aclose()  # the next run finds the snapshots that remain
            await self._tasks.aclose()
            if self._storage is not None:
                await self._storage.aclose()

    # -- making ------------------------------------------------------------------------------------------------------

    def _check(self, request: _Request) -> None:
        self._ensure_open()
        if not self._is_started:
            raise NotOpenError(self._what)
        check_on_due(request.on_due)
        check_text("topic_name", request.topic_name)
        check_text("cursor_name", request.cursor_name)
        for field, cursor in (("cursor", request.cursor), ("topic_cursor", request.topic_cursor)):
            if cursor is not None:
                check_has(field, cursor, ("properties", "put_property"), "a DelayedCursor or None")
        if self._config.tracker_kind != "bucket":
            return
        if request.cursor is None:
            raise InvalidArgumentError("cursor", None, "a DelayedCursor, since buckets are configured")
        if not self._config.delayed_delivery_shared_index_enabled:
            return
        if request.topic_cursor is None:
            raise InvalidArgumentError("topic_cursor", None, "a DelayedCursor for the index that subscriptions share")
        if not request.cursor_name:
            raise InvalidArgumentError("cursor_name", "", "a name, since subscriptions share an index")

    async def _make(self, request: _Request) -> DelayedDeliveryTracker:
        self._clean_for(request)
        kind = self._config.tracker_kind
        if kind == "none":
            return DisabledDelayedDeliveryTracker()
        if kind == "bucket":
            try:
                return await self._make_in_buckets(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, dispatch continues with a tracker in memory
                self._fall_back(request, error)
        return InMemoryDelayedDeliveryTracker(self._config, clock=self._clock, on_due=request.on_due)

    async def _make_in_buckets(self, request: _Request) -> DelayedDeliveryTracker:
        cursor, until = request.cursor, asyncio.get_running_loop().time() + self._recovery_timeout
        assert self._storage is not None
        assert cursor is not None
        storage = await self._storage.get()
        if self._config.delayed_delivery_shared_index_enabled:
            index = await self._shared.get(request.topic_name, lambda: self._open_shared(storage, request, until))
            return index.subscribe(request.cursor_name, lambda: cursor.mark_delete_position, on_due=request.on_due)
        tracker = await BucketDelayedDeliveryTracker.open(
            storage,
            cursor,
            self._config,
            clock=self._clock,
            on_due=request.on_due,
            topic_name=request.topic_name,
            cursor_name=request.cursor_name,
        )
        await self._ensure_recovered(tracker, until)
        return tracker

    async def _open_shared(self, storage: BucketSnapshotStorage, request: _Request, until: float) -> SharedDelayedIndex:
        assert request.topic_cursor is not None
        index = await SharedDelayedIndex.open(
            storage,
            request.topic_cursor,
            self._config,
            clock=self._clock,
            topic_name=request.topic_name,
            closes_with_last=True,
        )
        await self._ensure_recovered(index.tracker, until)
        return index

    async def _ensure_recovered(self, tracker: BucketDelayedDeliveryTracker, until: float) -> None:
        """Wait until a tracker has recovered, or has recovered something; close it otherwise."""
        try:
            await _recover(tracker, until)
        except BaseException:
            self._tasks.start(tracker.aclose())  # not awaited: the storage may hang
            raise

    def _fall_back(self, request: _Request, error: Exception) -> None:
        self._fallbacks += 1
        self._note(error)
        _log.warning(
            "delayed messages of %r, subscription %r, are held in memory: %r",
            request.topic_name,
            request.cursor_name,
            error,
        )
        if self._on_fallback is not None:
            record = TrackerFallback(request.topic_name, request.cursor_name, error)
            asyncio.get_running_loop().call_soon(self._on_fallback, record)

    def _note(self, error: Exception) -> None:
        self._last_error = error

    # -- cleaning ----------------------------------------------------------------------------------------------------

    def _clean_for(self, request: _Request) -> None:
        """Delete the snapshots that the cursors name and no tracker of this configuration uses."""
        used = None
        if self._config.tracker_kind == "bucket":
            is_shared = self._config.delayed_delivery_shared_index_enabled
            used = request.topic_cursor if is_shared else request.cursor
        if request.cursor is not None and request.cursor is not used:
            self._start_cleaning(request.cursor, request.topic_name, request.cursor_name)
        if request.topic_cursor is not None and request.topic_cursor is not used:
            self._start_cleaning(request.topic_cursor, request.topic_name, "")

    def _start_cleaning(self, cursor: DelayedCursor, topic_name: str, cursor_name: str) -> None:
        """Delete all snapshots of a cursor, with retries, unless a task already does."""
        if self._storage is not None and (topic_name, cursor_name) not in self._unclean:
            self._unclean.add((topic_name, cursor_name))
            self._cleaning.start(self._clean(self._storage, cursor, topic_name, cursor_name))

    async def _clean(self, storage: OwnedStorage, cursor: DelayedCursor, topic_name: str, cursor_name: str) -> None:
        key = topic_name, cursor_name

        async def attempt() -> bool:
            if key not in self._unclean:
                return True
            try:
                started = await storage.get()
                deleted = await delete_bucket_snapshots(started, cursor, topic_name=topic_name, cursor_name=cursor_name)
            except Exception as error:  # noqa: BLE001 - kept, and retried
                self._note(error)
                return False
            self._cleaned += deleted
            return True

        try:
            await self._cleaning.retry(attempt)
        finally:
            self._unclean.discard(key)


async def _recover(tracker: BucketDelayedDeliveryTracker, until: float) -> None:
    """Wait until a tracker has recovered, or has recovered something and continues in the background.

    :param until: the latest loop time
    :raises TimeoutError: some snapshots were not tried by then
    :raises SnapshotError: all snapshots were tried for some seconds, and none could be read
    """
    try:
        async with asyncio.timeout_at(until):
            await tracker.wait_until_recovered(once=True)
    except TimeoutError:
        raise TimeoutError("the recovery of delayed messages was not done in time") from None
    if _has_nothing(tracker):
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + _MAX_RETRY_S)):
                await tracker.wait_until_recovered()
    if _has_nothing(tracker):
        raise SnapshotError("no snapshot of delayed messages could be read") from tracker.statistics().last_error


def _has_nothing(tracker: BucketDelayedDeliveryTracker) -> bool:
    statistics = tracker.statistics()
    return statistics.is_recovering and not statistics.buckets
