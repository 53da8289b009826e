"""Local topics: a topic in this process, durable in a folder, for development, tests and programs of one process."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, cast, overload
from urllib.parse import quote, unquote

from .._delays import delay_ms
from ..clock import Clock, WallClock
from ..config import BucketConfig, DelayedDeliveryConfig, TopicConfig
from ..consumer import Consumer, Subscribing
from ..consumer._local import LocalPort
from ..cursor import Cursor
from ..delayed import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory
from ..delayed.bucket import LogDelayedCursor, LogSnapshotStorage
from ..errors import BrokerError, ClosedError, InvalidArgumentError
from ..ids import MessageId, Position
from ..ledger import LocalLogStore, LogStore
from ._dispatcher import SubscriptionType
from ._entry import Entry, EntryMessage, messages
from ._ledgers import TopicLedgers
from ._receiver import Receiver
from ._subscription import Subscription

InitialPosition = Literal["latest", "earliest"]
SubscriptionTypeName = Literal["shared", "key_shared", "exclusive", "failover"]

_CURSOR: Final = "subscription."
_CURSOR_LOG: Final = re.compile(r"subscription\.([A-Za-z0-9_.#-]+)-\d{10}(-snapshot)?")
_MOST_NAME: Final = 100
_INT64_MAX: Final = 2**63 - 1


class LocalTopic:
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

    _owned: LogStore | None = None

    def __init__(
        self, name: str, store: LogStore, ledgers: TopicLedgers, cursors: dict[str, Cursor], settings: _Settings
    ) -> None:
        self.name = name
        self._store = store
        self._ledgers = ledgers
        self._cursors = cursors
        self._settings = settings
        self._subscriptions: dict[str, Subscription] = {}
        self._ports: weakref.WeakSet[LocalPort] = weakref.WeakSet()
        self._joined = 0
        self._factories: dict[BucketConfig, DelayedDeliveryTrackerFactory] = {}
        self._topic_cursor: LogDelayedCursor | None = None
        self._opening = asyncio.Lock()
        self._trimming: asyncio.Task[None] | None = None
        self._is_closed = False
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
            :class:`~pulsar_nack.BucketConfig` chooses buckets, and one index for all subscriptions
        :param clock: epoch ms, for publish times and delays; by default the wall clock
        :raises LogLockedError: another process has it open
        :raises LedgerError: it cannot be read
        :raises MissingExtraError: protobuf is not installed
        """
        messages()
        config = _checked("config", config, TopicConfig)
        settings = _Settings(config, _as_bucket_config(delayed), WallClock() if clock is None else clock)
        _check_text("name", name)
        owned = None if isinstance(home, LogStore) else await LocalLogStore.open(home)
        store = home if isinstance(home, LogStore) else owned
        assert store is not None
        ledgers, cursors = None, dict[str, Cursor]()
        try:
            ledgers = await TopicLedgers.open(store, config, settings.clock)
            found = {match[1] for each in await store.names() if (match := _CURSOR_LOG.fullmatch(each))}
            for quoted in sorted(found):
                subscription = unquote(quoted.replace("#", "%"))
                cursors[subscription] = await _open_cursor(store, ledgers, subscription, config, None)
        except BaseException:
            for cursor in cursors.values():
                await cursor.aclose()
            if ledgers is not None:
                await ledgers.aclose()
            if owned is not None:
                await owned.aclose()
            raise
        self = cls(name, store, ledgers, cursors, settings)
        self._owned = owned
        return self

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<LocalTopic {self.name!r}, {'closed' if self._is_closed else f'up to {tuple(self.last_position)}'}>"

    async def aclose(self) -> None:
        """Close the consumers' ports, write what was acknowledged, and let go of the topic. Idempotent.

        :raises LedgerError: something could not be written; what is durable is there
        """
        if self._closing is None:
            self._is_closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="pulsar_nack.LocalTopic close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._opening:
            for port in list(self._ports):
                await port.close()
        if self._trimming is not None:
            await asyncio.gather(self._trimming, return_exceptions=True)
        closing: list[Callable[[], Any]] = [each.aclose for each in self._subscriptions.values()]
        closing += [cursor.aclose for name, cursor in self._cursors.items() if name not in self._subscriptions]
        closing += [factory.aclose for factory in self._factories.values()]
        closing += [each.aclose for each in (self._topic_cursor, self._ledgers, self._owned) if each is not None]
        errors = []
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
        return sorted(self._cursors)

    def cursor(self, subscription: str) -> Cursor:
        """Return what a subscription has acknowledged; to be read, not to be changed.

        :raises InvalidArgumentError: there is no such subscription
        """
        cursor = self._cursors.get(subscription)
        if cursor is None:
            raise InvalidArgumentError("subscription", subscription, f"one of {self.subscriptions}")
        return cursor

    def backlog(self, subscription: str) -> int:
        """Return how many entries a subscription has not acknowledged as a whole."""
        return self.cursor(subscription).backlog or 0

    # -- publishing ----------------------------------------------------------------------------------------------------

    @overload
    async def publish(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
    ) -> MessageId: ...

    @overload
    async def publish(
        self,
        payload: Sequence[bytes],
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
        batch: bool = False,
    ) -> list[MessageId]: ...

    async def publish(
        self,
        payload: bytes | Sequence[bytes],
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at: int | datetime | None = None,
        deliver_after: float | timedelta | None = None,
        event_time_ms: int = 0,
        batch: bool = False,
    ) -> MessageId | list[MessageId]:
        """Add a message, or several; durable when it returns.

        :param payload: bytes, or a sequence of bytes: messages of their own, or with ``batch`` one entry of them all
        :param key: who has the same key gets them in order, on Key_Shared subscriptions
        :param deliver_at: when Shared and Key_Shared subscriptions get it: epoch ms, or a datetime with a time zone
        :param deliver_after: the same, as seconds or a timedelta from now
        :raises InvalidArgumentError: names what was refused; nothing was added
        :raises LedgerError: it could not be written; nothing, or not all of several entries, was added
        """
        self._ensure_open()
        is_one = isinstance(payload, bytes | bytearray | memoryview)
        payloads = _payloads(payload)
        now = self._settings.clock.now_ms()
        at = _deliver_at(deliver_at, deliver_after, now)
        made = [_message(each, key, properties, event_time_ms) for each in payloads]
        is_batch = bool(batch) and not is_one
        entries = [Entry(now, tuple(made), at, is_batch=True)] if is_batch else [Entry(now, (one,), at) for one in made]
        encoded = [self._ledgers.encoded(entry) for entry in entries]
        positions = await asyncio.gather(*map(self._ledgers.append, entries, encoded))
        if not is_batch:
            ids = [MessageId(*position, topic=self.name) for position in positions]
        else:
            size = len(made)
            ids = [MessageId(*positions[0], -1, at, batch_size=size, topic=self.name) for at in range(size)]
        return ids[0] if is_one else ids

    def _look(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.look()

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
        :param receiver_queue_size: messages that are handed over before they are asked for
        :param unacked_limit: a consumer with so many unacknowledged messages gets no more; None: no limit
        :param batch_index_ack: single messages of a batch are acknowledged in the topic; False: a batch when all are
        :raises InvalidArgumentError: names what was refused
        :raises BrokerError: the consumers that are there exclude this one
        """
        self._ensure_open()
        kind = _kind(type)
        _check_subscription_name(name)
        _check_initial(initial_position)
        _check_text("consumer_name", consumer_name)
        _check_most("receiver_queue_size", receiver_queue_size)
        if not isinstance(batch_index_ack, bool):
            raise InvalidArgumentError("batch_index_ack", batch_index_ack, "True or False")
        if unacked_limit is not None:
            _check_most("unacked_limit", unacked_limit)
        async with self._opening:
            self._ensure_open()
            subscription = await self._subscription(name, initial_position, _as_bucket_config(delayed))
            self._joined += 1
            label = consumer_name or f"{self._joined:09}"

            def join(receiver: Receiver) -> int:
                return subscription.join(
                    receiver, label, room=receiver_queue_size, unacked_limit=unacked_limit, kind=kind
                )

            port = LocalPort(
                self.name,
                subscription,
                join,
                name=label,
                is_shared=kind.is_shared,
                receiver_queue_size=receiver_queue_size,
                batch_index_ack=batch_index_ack,
            )
            self._ports.add(port)
            return port

    async def create_subscription(self, name: str, *, initial_position: InitialPosition = "latest") -> None:
        """Make a subscription that nobody consumes yet, durable when this returns; one that is there stays as it is.

        :raises InvalidArgumentError: names what was refused
        """
        self._ensure_open()
        _check_subscription_name(name)
        _check_initial(initial_position)
        async with self._opening:
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
        **options: Any,
    ) -> Subscribing:
        """Subscribe with a :class:`~pulsar_nack.Consumer`; ``async with`` it, or await it and close it yourself.

        :param options: those of :class:`~pulsar_nack.Consumer`; the rest is as in :meth:`subscribe`, but a new
            subscription begins with the first message
        """

        async def make() -> Consumer:
            port = await self.subscribe(
                name, type, consumer_name=consumer_name, initial_position=initial_position, delayed=delayed
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
        """
        async with self._opening:
            self._ensure_open()
            cursor = self.cursor(name)
            subscription = self._subscriptions.get(name)
            if subscription is not None and not subscription.is_idle:
                raise BrokerError(f"subscription {name!r} has a consumer")
            self._subscriptions.pop(name, None)
            del self._cursors[name]
            if subscription is not None and subscription.tracker is not None:
                await subscription.tracker.clear()
            await (cursor if subscription is None else subscription).aclose()
            prefix = _cursor_name(name)
            for each in await self._store.names():
                if re.fullmatch(re.escape(prefix) + r"-\d{10}(-snapshot)?", each):
                    await self._store.delete(each)
            self._trim_soon()

    async def skip(self, subscription: str, count: int) -> int:
        """Acknowledge a subscription's next ``count`` entries that are not; return how many that were."""
        if type(count) is not int or count < 0:
            raise InvalidArgumentError("count", count, "an integer of at least 0")
        return await (await self._get(subscription)).skip(count)

    async def clear_backlog(self, subscription: str) -> None:
        """Acknowledge everything that a subscription has not."""
        await (await self._get(subscription)).clear_backlog()

    async def seek(self, subscription: str, position: MessageId | int) -> None:
        """Make this message, or the first that was published at or after this time (epoch ms), a subscription's next.

        :raises InvalidArgumentError: it lies beyond the end; nothing has changed
        """
        await (await self._get(subscription)).seek_to(position)

    async def flush(self) -> None:
        """Return when everything that was acknowledged before the call is durable."""
        self._ensure_open()
        await asyncio.gather(*(cursor.flush() for cursor in self._cursors.values()))

    async def _get(self, name: str) -> Subscription:
        self._ensure_open()
        self.cursor(name)
        async with self._opening:
            self._ensure_open()
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
        wanted = delayed or self._settings.delayed
        made = Subscription(
            name,
            self.name,
            self._ledgers,
            cursor,
            self._settings.clock,
            limit=self._settings.config.cursor.max_per_cursor_metadata_size_in_bytes,
            trimmed=self._trim_soon,
            delayed=wanted,
        )
        try:
            made.use(await self._tracker(name, cursor, wanted, made.look))
        except BaseException:
            await made.end()
            raise
        self._subscriptions[name] = made
        return made

    async def _cursor(self, name: str, initial: InitialPosition) -> Cursor:
        cursor = self._cursors.get(name)
        if cursor is None:
            start = self._ledgers.last_position if initial == "latest" else None
            cursor = await _open_cursor(self._store, self._ledgers, name, self._settings.config, start)
            try:
                await _keep_start(cursor)
            except BaseException:
                await cursor.aclose()
                raise
            self._cursors[name] = cursor
        return cursor

    async def _tracker(
        self, name: str, cursor: Cursor, config: BucketConfig, on_due: Callable[[], object]
    ) -> DelayedDeliveryTracker:
        factory = self._factories.get(config)
        if factory is None:
            storage = LogSnapshotStorage(self._store, clock=self._settings.clock)
            factory = DelayedDeliveryTrackerFactory(config, storage, clock=self._settings.clock)
            await factory.start()
            self._factories[config] = factory
        if config.delayed_delivery_shared_index_enabled and self._topic_cursor is None:
            self._topic_cursor = await LogDelayedCursor.open(self._store, name="delayed-index")
        return await factory.new_tracker(
            topic_name=self.name,
            cursor_name=name,
            cursor=cursor,
            topic_cursor=self._topic_cursor,
            on_due=on_due,
        )

    # -- trimming ------------------------------------------------------------------------------------------------------

    def _trim_soon(self) -> None:
        if self._trimming is None and not self._is_closed:
            self._trimming = asyncio.get_running_loop().create_task(self._trim(), name="pulsar_nack.LocalTopic trim")
            self._trimming.add_done_callback(self._trimmed)

    async def _trim(self) -> None:
        """Delete the ledgers that no subscription needs, once that they do not is durable."""
        await self.flush()
        marks = [cursor.mark_delete_position.ledger for cursor in self._cursors.values()]
        if marks:
            await self._ledgers.trim(min(marks))

    def _trimmed(self, task: asyncio.Task[None]) -> None:
        self._trimming = None
        if not task.cancelled():
            task.exception()


class _Settings:
    __slots__ = ("clock", "config", "delayed")

    def __init__(self, config: TopicConfig, delayed: BucketConfig | None, clock: Clock) -> None:
        self.config = config
        self.delayed = delayed or BucketConfig(delayed_delivery_tracker_factory_class_name="memory")
        self.clock = clock


def _checked(field: str, config: Any, kind: type[Any]) -> Any:
    if not isinstance(config, kind | None):
        raise InvalidArgumentError(field, config, f"a {kind.__name__}")
    return kind() if config is None else config


def _as_bucket_config(config: DelayedDeliveryConfig | None) -> BucketConfig | None:
    if config is None or isinstance(config, BucketConfig):
        return config
    if not isinstance(config, DelayedDeliveryConfig):
        raise InvalidArgumentError("delayed", config, "a DelayedDeliveryConfig or a BucketConfig")
    return BucketConfig(delayed_delivery_tracker_factory_class_name="memory", **config.model_dump())


async def _open_cursor(
    store: LogStore, ledgers: TopicLedgers, subscription: str, config: TopicConfig, start: Position | None
) -> Cursor:
    return await Cursor.open(store, ledgers, config.cursor, name=_cursor_name(subscription), start=start)


async def _keep_start(cursor: Cursor) -> None:
    """Make durable where a new subscription begins; it would begin with the first entry after a crash."""
    ledger, entry = cursor.mark_delete_position
    await cursor.reset((ledger, entry + 1))
    await cursor.flush()


def _cursor_name(subscription: str) -> str:
    return _CURSOR + quote(subscription, safe="").replace("~", "%7E").replace("%", "#")


def _check_subscription_name(name: object) -> None:
    _check_text("name", name)
    if not isinstance(name, str) or not 0 < len(quote(name, safe="")) <= _MOST_NAME:
        raise InvalidArgumentError("name", name, f"a subscription's name of 1 to {_MOST_NAME} characters")


def _check_initial(position: object) -> None:
    if position not in {"latest", "earliest"}:
        raise InvalidArgumentError("initial_position", position, "'latest' or 'earliest'")


def _kind(value: object) -> SubscriptionType:
    if isinstance(value, SubscriptionType):
        return value
    try:
        return SubscriptionType(value)
    except ValueError:
        names = ", ".join(repr(kind.value) for kind in SubscriptionType)
        raise InvalidArgumentError("type", value, f"one of {names}") from None


def _deliver_at(at: object, after: Any, now_ms: int) -> int | None:
    if after is not None:
        if at is not None:
            raise InvalidArgumentError("deliver_after", after, "nothing beside deliver_at")
        return now_ms + delay_ms(after, "deliver_after")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgumentError("deliver_at", at, "a datetime with a time zone, or epoch ms")
        return max(round(at.timestamp() * 1000), 0)
    if at is None:
        return None
    if type(at) is not int or not 0 <= at <= _INT64_MAX:
        raise InvalidArgumentError("deliver_at", at, "epoch ms, or a datetime with a time zone")
    return at


def _payloads(payload: object) -> Sequence[object]:
    if isinstance(payload, bytes | bytearray | memoryview):
        return [payload]
    if isinstance(payload, str) or not isinstance(payload, Sequence) or not payload:
        raise InvalidArgumentError("payload", payload, "bytes, or a sequence of them with at least one")
    return payload


def _message(payload: object, key: object, properties: object, event_ms: object) -> EntryMessage:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgumentError("payload", payload, "bytes")
    if key is not None:
        _check_text("key", key)
    if type(event_ms) is not int or not 0 <= event_ms <= _INT64_MAX:
        raise InvalidArgumentError("event_time_ms", event_ms, "epoch ms")
    given = {} if properties is None else properties
    if not isinstance(given, Mapping):
        raise InvalidArgumentError("properties", properties, "a mapping of strings to strings")
    for name, value in given.items():
        _check_text("properties", name)
        _check_text("properties", value)
    return EntryMessage(bytes(payload), cast("str | None", key), dict(given), event_ms)


def _check_text(field: str, value: object) -> None:
    """Check that this is text that can be written as UTF-8."""
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidArgumentError(field, value, "a string without lone surrogates")


def _check_most(field: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InvalidArgumentError(field, value, "an integer of at least 1")
