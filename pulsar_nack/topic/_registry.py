"""The subscriptions of a topic: opening, creating and deleting them one at a time, with their cursors and trackers.

A subscription exists if there are logs of its cursor, in the topic's own store. Ledgers that no subscription needs any
more are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from .._check import check_text
from .._tasks import TaskOwner
from ..clock import Clock
from ..config import BucketConfig
from ..consumer.transport import InitialPosition
from ..cursor import Cursor
from ..cursor.format import CURSOR_LOG_NAME, cursors_in, subscription_cursor, subscription_of
from ..delayed import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory
from ..delayed.bucket import LogDelayedCursor, LogSnapshotStorage
from ..errors import BrokerError, ClosedError, InvalidArgumentError, LedgerError
from ..ids import Position
from ..ledger import LogStore
from ..ledger.ownership import close_on_error
from ._arguments import Joining, TopicSettings
from ._ledgers import TopicLedgers
from ._port import LocalPort
from ._subscription import Subscription

_T = TypeVar("_T")
_log: Final = logging.getLogger("pulsar_nack.topic")


class SubscriptionRegistry:
    """Holds the subscriptions of one topic, with their cursors and trackers.

    :param check_open: raises an error when the topic is closed
    """

    def __init__(
        self,
        topic: str,
        store: LogStore,
        ledgers: TopicLedgers,
        settings: TopicSettings,
        check_open: Callable[[], None],
    ) -> None:
        self.cursors: dict[str, Cursor] = {}
        """The cursors of all subscriptions, also of those that were not used since the topic was opened. Read only."""
        self.used: dict[str, Subscription] = {}
        """The subscriptions that were used since the topic was opened, by name. Read only."""
        self._delayed: dict[str, BucketConfig] = {}
        """How each subscription keeps delayed messages, also after it could not be used with other settings."""
        self._topic = topic
        self._store = store
        self._ledgers = ledgers
        self._settings = settings
        self._trackers = Trackers(topic, store, settings.clock)
        self._trimming: asyncio.Task[None] | None = None
        self._is_closing = False
        self._changing = asyncio.Lock()
        self._check_open = check_open
        self._tasks = TaskOwner()
        self._ports: weakref.WeakSet[LocalPort] = weakref.WeakSet()
        self._ports_made = 0

    async def open(self) -> None:
        """Open the cursors of all subscriptions; if entries were lost, continue behind them.

        :raises LedgerError: one cannot be read; nothing is open then
        """
        opened: list[Cursor] = []
        async with close_on_error(opened):
            for cursor in sorted(cursors_in(await self._store.names())):
                if (name := subscription_of(cursor)) is not None:
                    self.cursors[name] = await self._open_cursor(name, None)
                    opened.append(self.cursors[name])
        lost = self._highest_lost
        if self._ledgers.is_torn or lost is not None:
            await self._ledgers.continue_after(lost or 0)

    @property
    def _highest_lost(self) -> int | None:
        """Return the highest ledger of which a cursor has acknowledged lost entries, None if no entries are lost."""
        last, cursors = self._ledgers.ids[-1], self.cursors.values()
        lost = [last for each in cursors if each.statistics().cut_entries]
        reached = (max(each.highest_acked, each.mark_delete_position).ledger for each in cursors)
        return max([*lost, *(ledger for ledger in reached if ledger > last)], default=None)

    def wake(self) -> None:
        """Look for entries to deliver to each subscription."""
        for subscription in self.used.values():
            subscription.wake()

    def cursor(self, name: str) -> Cursor:
        """Return the cursor of a subscription.

        :raises InvalidArgumentError: there is no such subscription
        """
        check_text("subscription", name)
        cursor = self.cursors.get(name)
        if cursor is None:
            raise InvalidArgumentError("subscription", name, f"one of {sorted(self.cursors)}")
        return cursor

    async def get(self, name: str) -> Subscription:
        """Return a subscription.

        :raises InvalidArgumentError: there is no such subscription
        """
        self._check_open()
        self.cursor(name)

        async def work() -> Subscription:
            self.cursor(name)
            return await self._get_or_create(name)

        return await self._alone(work)

    async def create(self, name: str, initial: InitialPosition) -> None:
        """Create a subscription, durable when this returns; an existing one stays as it is."""
        await self._alone(lambda: self._get_or_create_cursor(name, initial))

    async def join(self, joining: Joining, port: LocalPort | None = None) -> LocalPort:
        """Return the port of a new consumer of a subscription, which is created if it does not exist.

        :param port: one that reads another topic, and from now on this one too; None: a new one
        :raises BrokerError: the present consumers exclude this one
        """
        is_wanted = True

        async def work() -> LocalPort:
            subscription = await self._get_or_create(joining.name, joining.initial, joining.delayed)
            if not is_wanted:
                raise asyncio.CancelledError
            if port is not None:
                port.read_too(subscription, self.delete)
                self._ports.add(port)
                return port
            self._ports_made += 1
            name = joining.consumer_name or f"{self._ports_made:09}"
            made = LocalPort(subscription, joining._replace(consumer_name=name), self.delete)
            self._ports.add(made)
            return made

        try:
            return await self._alone(work)
        finally:
            is_wanted = False

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription.

        :param force: also if it has consumers, whose ports are closed
        :raises InvalidArgumentError: there is no such subscription
        :raises BrokerError: it has a consumer
        :raises LedgerError: not all of it could be deleted; try again
        """
        await self._alone(lambda: self._delete(name, force=force))

    async def _delete(self, name: str, *, force: bool) -> None:
        self.cursor(name)
        subscription = await self._get_or_create(name)
        for port in [each for each in self._ports if force and each.names[1] == name]:
            await port.close()
        if subscription.consumers:
            raise BrokerError(f"subscription {name!r} has a consumer")
        if subscription.tracker is not None:
            await self._trackers.delete(subscription.tracker, subscription.delayed)
        del self.used[name], self._delayed[name]
        with suppress(LedgerError, TimeoutError):  # what could not be written is deleted
            await subscription.aclose()
        for log in await self._store.names():
            if (match := CURSOR_LOG_NAME.fullmatch(log)) and match[1] == subscription_cursor(name):
                await self._store.delete(log)
        self.cursors.pop(name, None)
        self.trim()

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a change of subscriptions to its end, after other changes, if the topic is still open then."""

        async def run() -> _T:
            async with self._changing:
                self._check_open()
                return await work()

        return await asyncio.shield(self._tasks.begin(run()))

    async def flush(self) -> None:
        """Return when everything that was acknowledged before the call is durable."""
        await asyncio.gather(*map(self._flush, list(self.cursors.values())))

    async def _flush(self, cursor: Cursor) -> None:
        try:
            await cursor.flush()
        except ClosedError:
            self._check_open()  # otherwise its subscription was deleted

    def begin_close(self, *others: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin to close all ports, subscriptions and trackers, and then ``others``; the first error is raised."""
        return self._tasks.begin(self._close(*others))

    async def _close(self, *others: Callable[[], Awaitable[None]]) -> None:
        async with self._changing:
            for port in list(self._ports):
                await port.close()
        self._is_closing = True
        if self._trimming is not None:
            await asyncio.wait([self._trimming])
        closers: list[Callable[[], Awaitable[None]]] = [each.aclose for each in self.used.values()]
        closers += [each.aclose for name, each in self.cursors.items() if name not in self.used]
        errors: list[Exception] = []
        for close in [*closers, self._trackers.aclose, *others]:
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - the others are closed first
                errors.append(error)
        if errors:
            raise errors[0]

    async def _get_or_create(
        self, name: str, initial: InitialPosition = "latest", delayed: BucketConfig | None = None
    ) -> Subscription:
        known = self.used.get(name)
        if known is not None and (delayed is None or delayed == known.delayed):
            return known
        if known is not None:
            if known.consumers:
                raise BrokerError(f"subscription {name!r} has a consumer, and keeps delayed messages in another way")
            del self.used[name]
            await known.end()
        cursor = await self._get_or_create_cursor(name, initial)
        made = Subscription(
            name,
            self._topic,
            self._ledgers,
            cursor,
            self._settings._replace(delayed=delayed or self._delayed.get(name, self._settings.delayed)),
            on_trimmable=self.trim,
        )
        try:
            made.begin(await self._trackers.make(name, cursor, made.delayed, made.wake))
        except BaseException:
            await made.end()
            raise
        self.used[name] = made
        self._delayed[name] = made.delayed
        return made

    async def _get_or_create_cursor(self, name: str, initial: InitialPosition) -> Cursor:
        """Return a cursor; a new one begins at the end or with the first entry, and is durable when this returns."""
        known = self.cursors.get(name)
        if known is not None and not known.is_closed:
            return known
        cursor = await self._open_cursor(name, self._ledgers.last_position if initial == "latest" else None)
        try:
            ledger, entry = cursor.mark_delete_position
            await cursor.reset((ledger, entry + 1))
            await cursor.flush()
        except BaseException:
            await cursor.aclose()
            raise
        self.cursors[name] = cursor
        return cursor

    async def _open_cursor(self, name: str, start: Position | None) -> Cursor:
        config = self._settings.config.cursor
        return await Cursor.open(self._store, self._ledgers, config, name=subscription_cursor(name), start=start)

    # -- deleting ledgers ----------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Delete the ledgers that every subscription has acknowledged durably; without a subscription, none."""
        if self._trimming is None and not self._is_closing and self._can_trim():
            self._trimming = asyncio.get_running_loop().create_task(self._trim(), name="pulsar_nack.LocalTopic trim")

    def _first_needed(self) -> int | None:
        """Return the lowest ledger that has to stay, None if all have to. The last one always stays."""
        nexts = [cursor.next_position for cursor in self.cursors.values()]
        return min((self._ledgers.ids[-1] if each is None else each.ledger for each in nexts), default=None)

    def _can_trim(self) -> bool:
        first = self._first_needed()
        return first is not None and self._ledgers.ids[0] < first

    async def _trim(self) -> None:
        try:
            while self._can_trim() and not self._is_closing:
                for cursor in list(self.cursors.values()):
                    if not cursor.is_closed:
                        await cursor.flush()
                first = self._first_needed()
                if first is not None:
                    await self._ledgers.trim(first)
        except (LedgerError, ClosedError) as error:
            _log.warning("ledgers that are not needed could not be deleted and stay for now: %s", error)
        finally:
            self._trimming = None


class Trackers:
    """Creates the tracker of delayed messages of each subscription.

    Subscriptions with the same settings share a factory, and with it a shared index.
    """

    def __init__(self, topic: str, store: LogStore, clock: Clock) -> None:
        self._topic = topic
        self._store = store
        self._clock = clock
        self._factories: dict[BucketConfig, DelayedDeliveryTrackerFactory] = {}
        self._topic_cursor: LogDelayedCursor | None = None

    async def make(
        self, name: str, cursor: Cursor, config: BucketConfig, on_due: Callable[[], object]
    ) -> DelayedDeliveryTracker:
        """Return the tracker of a subscription.

        :raises InvalidArgumentError: the topic already has a shared index with other settings
        """
        factory = await self._factory(config)
        for other in self._factories.values():
            if other is not factory:
                await other._stop_cleaning(self._topic, name)
        if _is_shared(config) and self._topic_cursor is None:
            self._topic_cursor = await LogDelayedCursor.open(self._store, name="delayed-index")
        return await factory.new_tracker(
            topic_name=self._topic,
            cursor_name=name,
            cursor=cursor,
            topic_cursor=self._topic_cursor if _is_shared(config) else None,
            on_due=on_due,
        )

    async def delete(self, tracker: DelayedDeliveryTracker, config: BucketConfig) -> None:
        """Delete what a tracker, or an earlier one of its subscription, has on storage."""
        await tracker.clear()
        await self._factories[config].wait_until_clean()

    async def _factory(self, config: BucketConfig) -> DelayedDeliveryTrackerFactory:
        factory = self._factories.get(config)
        if factory is not None:
            return factory
        if _is_shared(config) and any(map(_is_shared, self._factories)):
            raise InvalidArgumentError("delayed", config, "the settings of the index that the subscriptions share")
        storage = LogSnapshotStorage(self._store, clock=self._clock)
        factory = DelayedDeliveryTrackerFactory(config, storage, clock=self._clock)
        await factory.start()
        self._factories[config] = factory
        return factory

    async def aclose(self) -> None:
        """Close all trackers and their storage."""
        try:
            for factory in self._factories.values():
                await factory.aclose()
        finally:
            if self._topic_cursor is not None:
                await self._topic_cursor.aclose()


def _is_shared(config: BucketConfig) -> bool:
    return config.tracker_kind == "bucket" and config.delayed_delivery_shared_index_enabled
