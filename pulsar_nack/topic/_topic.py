"""Local topics: a topic in this process, durable in a folder, for development, tests and programs of one process."""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Self, overload

from .._check import check_flag, clock_of, config_of
from .._delays import FIRST_PUBLISH_MS, seek_position
from .._lifetime import OfOneLoop
from ..clock import Clock
from ..config import BucketConfig, DelayedDeliveryConfig, TopicConfig
from ..consumer import Consumer, Subscribing
from ..cursor import Cursor
from ..errors import BrokerError, ClosedError, InvalidArgumentError, LedgerError
from ..ids import MessageId, Position
from ..ledger import LocalLogStore, LogStore
from ..ledger._taking import given_back, take, within
from ._arguments import (
    InitialPosition,
    SubscriptionTypeName,
    as_bucket_config,
    check_initial,
    check_most,
    check_subscription_name,
    check_text,
    deliver_at_ms,
    kind_of,
    message_of,
    payloads_of,
)
from ._cursors import Cursors
from ._dispatcher import SubscriptionType
from ._entry import Entry, messages
from ._jobs import Jobs
from ._ledgers import STATE, TopicLedgers
from ._port import LocalPort, NoPort
from ._publisher import LocalPublisher
from ._receiver import Receiver
from ._statistics import TopicStatistics
from ._subscription import Subscription
from ._trackers import Trackers
from ._trimming import Trimming


class LocalTopic(OfOneLoop):
    """A topic whose broker is this object: durable, ordered, with the four kinds of subscriptions.

    Made by :meth:`open`; close it with :meth:`aclose`, or use it with ``async with``. What :meth:`publish` returned for
    survives kill -9. One process at a time has a topic open.

    ::

        async with await LocalTopic.open("data/orders") as topic:
            await topic.publish(b"an order", key="customer-7")
            async with topic.consumer("billing") as consumer:
                message = await consumer.receive()
                await message.nack(delay=2.5)
    """

    _place: LogStore

    def __init__(self, name: str, store: LogStore, ledgers: TopicLedgers, settings: _Settings) -> None:
        self.name = name
        self._ledgers = ledgers
        self._settings = settings
        self._cursors = Cursors(store, ledgers, settings.config.cursor)
        self._trackers = Trackers(name, store, settings.clock)
        self._trimming = Trimming(ledgers, self._cursors)
        self._subscriptions: dict[str, Subscription] = {}
        self._ports: weakref.WeakSet[LocalPort] = weakref.WeakSet()
        self._joined = 0
        self._changing = asyncio.Lock()
        self._published_at = 0
        self._jobs = Jobs()
        self._is_closed = True  # until it is open
        self._closing: asyncio.Task[None] | None = None
        ledgers.on_growth = self._look

    # -- opening and closing -------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        home: str | PathLike[str] | LogStore,
        config: TopicConfig | None = None,
        *,
        name: str = "persistent://public/default/local",
        delayed: DelayedDeliveryConfig | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open a topic, or begin a new one.

        :param home: a folder, or a :class:`~pulsar_nack.ledger.LogStore`, of this topic alone
        :param name: what messages say their topic is
        :param delayed: how subscriptions keep delayed messages that do not say it themselves; a
            :class:`~pulsar_nack.BucketConfig` chooses buckets, and one index for all subscriptions. Its longest delay
            bounds what is published
        :param clock: epoch ms, for publish times and delays; by default the wall clock
        :raises InvalidArgumentError: names what was refused; nothing was made
        :raises LogLockedError: another process has it open
        :raises LedgerError: it cannot be read
        :raises MissingExtraError: protobuf is not installed
        """
        messages()
        settings = _Settings(config_of(config, TopicConfig), as_bucket_config(delayed), clock)
        check_text("name", name)
        owned = None if isinstance(home, LogStore) else await LocalLogStore.open(home)
        opened: list[LogStore] = [] if owned is None else [owned]
        async with given_back(opened):
            part = await take(home if isinstance(home, LogStore) else opened[0], STATE)
            opened.append(part)
            ledgers = await TopicLedgers.open(part, settings.config, settings.clock)
            self = cls(name, part, ledgers, settings)
            await self._cursors.open_all()
            if ledgers.is_torn or self._cursors.have_lost is not None:
                await ledgers.go_on_behind(self._cursors.have_lost or 0)
            self._published_at = await ledgers.last_publish_time()
        self._place = owned or part
        self._is_closed = False
        self._trimming.look()
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
        return f"<LocalTopic {self.name!r}, {'closed' if self._is_closed else f'up to {tuple(self.last_position)}'}>"

    async def aclose(self) -> None:
        """Close the consumers' ports, write what was acknowledged, and let go of the topic. Idempotent.

        Takes the ``close_timeout`` of the configuration's ``cursor`` at most.

        :raises LedgerError: something could not be written; what is durable is there
        :raises TimeoutError: storage did not answer in time; the topic is released once it does
        """
        if not self._is_closed:
            self._check_loop("the topic")
        if self._closing is None:
            self._is_closed = True
            self._closing = self._jobs.begin(self._close())
        async with within(self._settings.config.cursor.close_timeout.total_seconds(), f"LocalTopic {self.name!r}"):
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._changing:
            for port in list(self._ports):
                await port.close()
        await self._trimming.end()
        closing: list[Callable[[], Awaitable[None]]] = [each.aclose for each in self._subscriptions.values()]
        closing += [each.aclose for name, each in self._cursors.all.items() if name not in self._subscriptions]
        closing += [self._trackers.aclose, self._ledgers.aclose, self._place.aclose]
        errors: list[Exception] = []
        for close in closing:
            try:
                await close()
            except Exception as error:  # noqa: BLE001 - the others are closed first
                errors.append(error)
        if errors:
            raise errors[0]

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError("LocalTopic")
        self._check_loop("the topic")

    # -- what it knows -------------------------------------------------------------------------------------------------

    @property
    def last_position(self) -> Position:
        """Return the last entry, (ledger, -1) where nothing is in the last ledger yet."""
        return self._ledgers.last_position

    @property
    def ledgers(self) -> Mapping[int, int]:
        """Return how many entries each ledger has that was not trimmed."""
        return {ledger: self._ledgers.entries(ledger) or 0 for ledger in self._ledgers.ids}

    @property
    def subscriptions(self) -> Sequence[str]:
        """Return the names of all subscriptions, of those without a consumer too."""
        return sorted(self._cursors.all)

    def cursor(self, subscription: str) -> Cursor:
        """Return what a subscription has acknowledged; to be read, not to be changed.

        :raises InvalidArgumentError: there is no such subscription
        """
        cursor = self._cursors.all.get(subscription)
        if cursor is None:
            raise InvalidArgumentError("subscription", subscription, f"one of {self.subscriptions}")
        return cursor

    def backlog(self, subscription: str) -> int:
        """Return how many entries a subscription has not acknowledged as a whole."""
        return self.cursor(subscription).backlog or 0

    def statistics(self) -> TopicStatistics:
        """Return a snapshot."""
        ledgers = self._ledgers
        return TopicStatistics(
            ledgers=len(ledgers.ids),
            entries=sum(ledgers.entries(ledger) or 0 for ledger in ledgers.ids),
            bytes=ledgers.size,
            kept_bytes=ledgers.cache.bytes,
            entries_read=ledgers.reads,
            subscriptions={name: each.statistics() for name, each in sorted(self._subscriptions.items())},
        )

    # -- publishing ----------------------------------------------------------------------------------------------------

    @overload
    async def publish(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | timedelta | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
    ) -> MessageId: ...

    @overload
    async def publish(
        self,
        payload: Sequence[bytes | None],
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | timedelta | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
        batch: bool = False,
    ) -> list[MessageId]: ...

    async def publish(
        self,
        payload: bytes | Sequence[bytes | None] | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | timedelta | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
        batch: bool = False,
    ) -> MessageId | list[MessageId]:
        """Add a message, or several; durable when it returns.

        :param payload: bytes, or None for a message without a value; or a sequence of them: messages of their own, or
            with ``batch`` one entry of them all
        :param key: who has the same key gets them in order, on Key_Shared subscriptions
        :param deliver_at: when Shared and Key_Shared subscriptions get it: epoch ms, a datetime with a time zone, or a
            timedelta from now
        :param deliver_after: the same, as seconds or a timedelta from now
        :raises InvalidArgumentError: names what was refused; nothing was added
        :raises LedgerError: it could not be written; nothing, or not all of several entries, was added
        """
        self._ensure_open()
        is_one = payload is None or isinstance(payload, bytes | bytearray | memoryview)
        if batch and is_one:
            raise InvalidArgumentError("batch", batch, "False for a single payload")
        now = max(self._settings.clock.now_ms(), self._published_at)
        at = self._deliver_at(deliver_at, deliver_after, now)
        made = [message_of(each, key, properties, event_time_ms) for each in payloads_of(payload)]
        entries = [Entry(now, tuple(made), at, is_batch=True)] if batch else [Entry(now, (one,), at) for one in made]
        encoded = [self._ledgers.encoded(entry) for entry in entries]
        self._published_at = now
        positions = await asyncio.gather(*map(self._ledgers.append, entries, encoded))
        if batch:
            size = len(made)
            return [MessageId(*positions[0], batch_index=at, batch_size=size, topic=self.name) for at in range(size)]
        ids = [MessageId(*position, topic=self.name) for position in positions]
        return ids[0] if is_one else ids

    def _deliver_at(self, at: object, after: object, now: int) -> int | None:
        deliver_at = deliver_at_ms(at, after, now)
        if deliver_at is not None and self._settings.delayed.exceeds_max_delay(deliver_at, now):
            longest = self._settings.delayed.delayed_delivery_max_delay_in_millis
            given = ("deliver_at", at) if after is None else ("deliver_after", after)
            raise InvalidArgumentError(
                *given, f"at most {longest:,} ms from now (delayed_delivery_max_delay_in_millis)"
            )
        return deliver_at

    def _look(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.look()

    def publisher(self) -> LocalPublisher:
        """Return what publishes into this topic for another one's consumer: ``DeadLetterPolicy(publisher=...)``."""
        return LocalPublisher(self)

    # -- subscribing ---------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        type: SubscriptionTypeName | SubscriptionType = "shared",  # noqa: A002 - the field's word
        *,
        consumer_name: str = "",
        initial_position: InitialPosition = "latest",
        delayed: DelayedDeliveryConfig | None = None,
        receiver_queue_size: int = 1_000,
        unacked_limit: int | None = 50_000,
        batch_index_ack: bool = True,
    ) -> LocalPort:
        """Subscribe; a new subscription begins at the end, or with the first message that is still there.

        :param type: ``"shared"``, ``"key_shared"``, ``"exclusive"`` or ``"failover"``
        :param consumer_name: the first by name gets the messages of a Failover subscription
        :param delayed: how delayed messages are kept, with a tick and a precision of the subscription's own; it may
            change while nobody consumes
        :param receiver_queue_size: messages that are handed over before they are asked for; 0: none
        :param unacked_limit: a consumer with so many unacknowledged messages gets no more; None: no limit
        :param batch_index_ack: single messages of a batch are acknowledged in the topic; False: a batch when all are
        :raises InvalidArgumentError: names what was refused
        :raises BrokerError: the consumers that are there exclude this one
        """
        self._ensure_open()
        kind = kind_of(type)
        check_subscription_name(name)
        check_initial(initial_position)
        check_text("consumer_name", consumer_name)
        check_most("receiver_queue_size", receiver_queue_size, least=0)
        check_flag("batch_index_ack", batch_index_ack)
        if unacked_limit is not None:
            check_most("unacked_limit", unacked_limit)
        settings = as_bucket_config(delayed)
        is_wanted = True

        async def work() -> LocalPort:
            async with self._changing:
                self._ensure_open()
                subscription = await self._subscription(name, initial_position, settings)
                if not is_wanted:
                    raise asyncio.CancelledError
                return self._join(
                    subscription,
                    consumer_name,
                    kind,
                    room=receiver_queue_size,
                    unacked_limit=unacked_limit,
                    batch_index_ack=batch_index_ack,
                )

        try:
            return await self._jobs.to_the_end(work())
        finally:
            is_wanted = False

    def _join(
        self,
        subscription: Subscription,
        name: str,
        kind: SubscriptionType,
        *,
        room: int,
        unacked_limit: int | None,
        batch_index_ack: bool,
    ) -> LocalPort:
        self._joined += 1
        label = name or f"{self._joined:09}"

        def join(receiver: Receiver) -> int:
            return subscription.join(receiver, label, room=room, unacked_limit=unacked_limit, kind=kind)

        port = LocalPort(
            self.name,
            subscription,
            join,
            self.unsubscribe,
            name=label,
            is_shared=kind.is_shared,
            receiver_queue_size=room,
            batch_index_ack=batch_index_ack,
        )
        self._ports.add(port)
        return port

    async def create_subscription(self, name: str, *, initial_position: InitialPosition = "latest") -> None:
        """Make a subscription that nobody consumes yet, durable when this returns; one that is there stays as it is.

        :raises InvalidArgumentError: names what was refused
        """
        self._ensure_open()
        check_subscription_name(name)
        check_initial(initial_position)
        await self._jobs.to_the_end(self._create(name, initial_position))

    async def _create(self, name: str, initial_position: InitialPosition) -> None:
        async with self._changing:
            self._ensure_open()
            await self._cursor(name, initial_position)

    def consumer(
        self,
        name: str,
        type: SubscriptionTypeName | SubscriptionType = "shared",  # noqa: A002 - as above
        *,
        consumer_name: str = "",
        initial_position: InitialPosition = "earliest",
        delayed: DelayedDeliveryConfig | None = None,
        receiver_queue_size: int = 1_000,
        **options: Any,
    ) -> Subscribing:
        """Subscribe with a :class:`~pulsar_nack.Consumer`; ``async with`` it, or await it and close it yourself.

        :param options: those of :class:`~pulsar_nack.Consumer`; the rest is as in :meth:`subscribe`, but a new
            subscription begins with the first message
        :raises InvalidArgumentError: names what was refused, at once; the rest is told when it is entered or awaited
        """
        kind_of(type)
        check_subscription_name(name)
        check_initial(initial_position)
        check_text("consumer_name", consumer_name)
        check_most("receiver_queue_size", receiver_queue_size, least=0)
        as_bucket_config(delayed)
        Consumer(NoPort(self.name, name), **options)  # its arguments are checked here, nothing is begun

        async def make() -> Consumer:
            port = await self.subscribe(
                name,
                type,
                consumer_name=consumer_name,
                initial_position=initial_position,
                delayed=delayed,
                receiver_queue_size=receiver_queue_size,
            )
            try:
                return Consumer(port, **options)
            except BaseException:
                await port.close()
                raise

        return Subscribing(make)

    async def unsubscribe(self, name: str) -> None:
        """Forget a subscription and what it has acknowledged.

        :raises InvalidArgumentError: there is no such subscription
        :raises BrokerError: somebody consumes it
        :raises LedgerError: not all of it could be deleted; try again
        """
        await self._jobs.to_the_end(self._unsubscribe(name))

    async def _unsubscribe(self, name: str) -> None:
        async with self._changing:
            self._ensure_open()
            self.cursor(name)
            subscription = await self._subscription(name, "latest", None)
            if not subscription.is_idle:
                raise BrokerError(f"subscription {name!r} has a consumer")
            if subscription.tracker is not None:
                await self._trackers.forget(subscription.tracker, subscription.delayed)
            del self._subscriptions[name]
            with suppress(LedgerError, TimeoutError):  # what could not be written is deleted
                await subscription.aclose()
            await self._cursors.delete(name)
            self._trimming.look()

    async def skip(self, subscription: str, count: int) -> int:
        """Acknowledge a subscription's next ``count`` entries that are not; return how many that were."""
        if type(count) is not int or count < 0:
            raise InvalidArgumentError("count", count, "an integer of at least 0")
        return await (await self._get(subscription)).skip(count)

    async def clear_backlog(self, subscription: str) -> None:
        """Acknowledge everything that a subscription has not."""
        await (await self._get(subscription)).clear_backlog()

    async def seek(self, subscription: str, position: MessageId | int | datetime) -> None:
        """Make this message, or the first that was published at or after this time, a subscription's next.

        :param position: a time is epoch ms, or a datetime (local time if it names no zone); 0 is before all
        :raises InvalidArgumentError: it lies beyond the end, or is in seconds; nothing has changed
        """
        is_later = self._settings.clock.now_ms() >= FIRST_PUBLISH_MS  # not so by a clock of tests
        target = seek_position(position, earliest_ms=FIRST_PUBLISH_MS if is_later else 0)
        await (await self._get(subscription)).seek_to(target)

    async def flush(self) -> None:
        """Return when everything that was acknowledged before the call is durable."""
        self._ensure_open()
        await asyncio.gather(*map(self._flush, list(self._cursors.all.values())))

    async def _flush(self, cursor: Cursor) -> None:
        try:
            await cursor.flush()
        except ClosedError:
            self._ensure_open()  # else its subscription is gone

    async def _get(self, name: str) -> Subscription:
        self._ensure_open()
        self.cursor(name)
        return await self._jobs.to_the_end(self._existing(name))

    async def _existing(self, name: str) -> Subscription:
        async with self._changing:
            self._ensure_open()
            self.cursor(name)
            return await self._subscription(name, "latest", None)

    async def _subscription(self, name: str, initial: InitialPosition, delayed: BucketConfig | None) -> Subscription:
        known = self._subscriptions.get(name)
        if known is not None and (delayed is None or delayed == known.delayed):
            return known
        if known is not None:
            if not known.is_idle:
                raise BrokerError(f"subscription {name!r} has a consumer, and keeps delayed messages in another way")
            del self._subscriptions[name]
            await known.end()
        cursor = await self._cursor(name, initial)
        made = Subscription(
            name,
            self.name,
            self._ledgers,
            cursor,
            self._settings.clock,
            config=self._settings.config,
            trimmed=self._trimming.look,
            delayed=delayed or self._settings.delayed,
        )
        try:
            made.use(await self._trackers.make(name, cursor, made.delayed, made.look))
        except BaseException:
            await made.end()
            raise
        self._subscriptions[name] = made
        return made

    async def _cursor(self, name: str, initial: InitialPosition) -> Cursor:
        known = self._cursors.all.get(name)
        if known is not None and not known.is_closed:
            return known
        return await self._cursors.make(name, self._ledgers.last_position if initial == "latest" else None)


class _Settings:
    __slots__ = ("clock", "config", "delayed")

    def __init__(self, config: TopicConfig, delayed: BucketConfig | None, clock: Clock | None) -> None:
        self.config = config
        self.delayed = delayed or BucketConfig(delayed_delivery_tracker_factory_class_name="memory")
        self.clock = clock_of(clock)
