"""Makes the tracker that the configuration asks for, and keeps dispatch going when storage does not.

A factory owns the storage. What earlier runs stored and this configuration does not use is deleted beside everything
else, for as long as it takes; the dispatcher reads those messages again, since no tracker holds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from .._check import check_callable, check_clock, check_has, config_of
from .._lifetime import LoopBound
from ..clock import Clock, WallClock
from ..config import BucketConfig
from ..errors import ClosedError, InvalidArgumentError, NotOpenError
from ._arguments import check_on_due
from ._disabled import DisabledDelayedDeliveryTracker
from ._factory_cleaning import Cleaning
from ._factory_open import OpenTrackers
from ._factory_records import DelayedFactoryStatistics, OpenTracker, TrackerFallback
from ._factory_recovery import ensure_recovered
from ._factory_shared import SharedIndexes
from ._factory_storage import OwnedStorage
from ._in_memory import InMemoryDelayedDeliveryTracker
from ._protocol import DelayedDeliveryTracker
from .bucket import BucketDelayedDeliveryTracker, SharedDelayedIndex
from .bucket._jobs import Jobs
from .bucket._wire import messages
from .storage import BucketSnapshotStorage, DelayedCursor

_NAME: Final = "DelayedDeliveryTrackerFactory"
_log = logging.getLogger("pulsar_nack.delayed")


@dataclass(frozen=True, slots=True)
class _Request:
    topic_name: str
    cursor_name: str
    cursor: DelayedCursor | None
    topic_cursor: DelayedCursor | None
    on_due: Callable[[], object] | None


class DelayedDeliveryTrackerFactory(LoopBound):
    """Makes trackers: in memory, in buckets, or such that hold nothing back; ``config`` says which.

    In buckets, a tracker whose storage does not start, or whose recovery fails or is not done within
    ``recovery_timeout``, is made in memory instead: the messages are read and added anew, and nothing is deleted.
    That is logged as a warning to ``pulsar_nack.delayed``, counted in :meth:`statistics`, and told to ``on_fallback``.

    Otherwise, a ``storage`` is for cleaning up: snapshots that an earlier run of a cursor left are deleted, after their
    messages could be read anew, and tried again for as long as that fails. Without it they stay.

    Use it with ``async with``, or call :meth:`start` and :meth:`aclose`. The storage is started and closed by it.

    :param config: see :class:`~pulsar_nack.BucketConfig`, whose first three settings choose
    :param storage: needed for buckets
    :param clock: epoch ms, of all trackers; by default the wall clock
    :param on_fallback: a plain function that is called soon after with a :class:`TrackerFallback`
    :raises InvalidArgumentError: buckets were asked for without a storage
    """

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
        self._patience = config.recovery_timeout.total_seconds()
        self._storage = None if storage is None else OwnedStorage(storage, self._patience)
        self._cleaning = None if self._storage is None else Cleaning(self._storage, clock, self._note)
        self._open = OpenTrackers()
        self._shared = SharedIndexes()
        self._jobs = Jobs(clock)
        self._is_started = False
        self._closing: asyncio.Task[None] | None = None
        self._fallbacks = 0
        self._last_error: Exception | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Start the storage where buckets are configured; one that does not start is tried again by each new tracker.

        :raises MissingExtraError: protobuf is not installed, and buckets are configured
        :raises ClosedError: after :meth:`aclose`
        """
        if self._closing is not None:
            raise ClosedError(_NAME)
        self._check_loop(_NAME)
        if self._config.tracker_kind == "bucket" and self._storage is not None:
            messages()
            try:
                await self._storage.get()
            except Exception as error:  # noqa: BLE001 - kept; whatever it is, trackers are made in memory meanwhile
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

        :param cursor: the subscription's; only trackers in buckets need it. Others use it to clean up
        :param topic_name: with ``cursor_name`` it says whose the snapshots are, and whose the metrics
        :param cursor_name: the subscription's name
        :param topic_cursor: keeps the names of an index that subscriptions share; its mark-delete position counts while
            nobody subscribes
        :param on_due: as with any tracker
        :raises InvalidArgumentError: names what was refused; a subscription has one tracker at a time
        :raises NotOpenError: before :meth:`start`
        :raises ClosedError: after :meth:`aclose`
        """
        request = _Request(topic_name, cursor_name, cursor, topic_cursor, on_due)
        self._check(request)
        self._open.reserve(topic_name, cursor_name)
        tracker = None
        try:
            tracker = await self._make(request)
            if self._closing is not None:
                await tracker.aclose()
                raise ClosedError(_NAME)
        finally:
            self._open.settle(topic_name, cursor_name, tracker)
        return tracker

    def trackers(self) -> list[OpenTracker]:
        """Return the trackers that are open. Any thread may call it."""
        return self._open.all()

    def statistics(self) -> DelayedFactoryStatistics:
        """Return the figures of this moment."""
        return DelayedFactoryStatistics(
            trackers=len(self._open.all()),
            fallbacks=self._fallbacks,
            cleaning=0 if self._cleaning is None else self._cleaning.going_on,
            cleaned=0 if self._cleaning is None else self._cleaning.cleaned,
            last_error=self._last_error,
        )

    async def wait_until_clean(self) -> None:
        """Wait until what is not wanted any more is deleted; what waits for its next attempt aside."""
        self._check_loop(_NAME)
        if self._cleaning is not None:
            await self._cleaning.idle()

    async def aclose(self) -> None:
        """Close all trackers, give up cleaning, close the storage. Idempotent; cancelled, it goes on."""
        if self._closing is None:
            self._check_loop(_NAME)
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for each in self._open.all():
                await each.tracker.aclose()
            await self._shared.aclose()
        finally:
            if self._cleaning is not None:
                await self._cleaning.aclose()
            await self._jobs.aclose()
            if self._storage is not None:
                await self._storage.aclose()

    # -- making ------------------------------------------------------------------------------------------------------

    def _check(self, request: _Request) -> None:
        if self._closing is not None:
            raise ClosedError(_NAME)
        self._check_loop(_NAME)
        if not self._is_started:
            raise NotOpenError(_NAME)
        check_on_due(request.on_due)
        for field, name in (("topic_name", request.topic_name), ("cursor_name", request.cursor_name)):
            if not isinstance(name, str):
                raise InvalidArgumentError(field, name, "a string")
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
            except Exception as error:  # noqa: BLE001 - whatever it is, dispatch goes on with a tracker in memory
                self._fall_back(request, error)
        return InMemoryDelayedDeliveryTracker(self._config, clock=self._clock, on_due=request.on_due)

    async def _make_in_buckets(self, request: _Request) -> DelayedDeliveryTracker:
        cursor, until = request.cursor, asyncio.get_running_loop().time() + self._patience
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
        try:
            await ensure_recovered(tracker, until)
        except BaseException:
            self._jobs.start(tracker.aclose())  # not waited for: the storage that it ends calls of may hang
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

    # -- cleaning ----------------------------------------------------------------------------------------------------

    def _clean_for(self, request: _Request) -> None:
        """Delete what the cursors name and no tracker of this configuration uses."""
        if self._cleaning is None:
            return
        used = None
        if self._config.tracker_kind == "bucket":
            is_shared = self._config.delayed_delivery_shared_index_enabled
            used = request.topic_cursor if is_shared else request.cursor
        if request.cursor is not None and request.cursor is not used:
            self._cleaning.start(request.cursor, request.topic_name, request.cursor_name)
        if request.topic_cursor is not None and request.topic_cursor is not used:
            self._cleaning.start(request.topic_cursor, request.topic_name, "")

    def _note(self, error: Exception) -> None:
        self._last_error = error
