"""Local topics: a topic in this process, durable in a folder, for development, tests and programs of one process."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from typing import Any, Self, overload

from .._check import check_integer, check_text
from .._delays import FIRST_PUBLISH_MS, seek_position
from .._lifetime import LoopBound, Opening
from ..clock import Clock
from ..config import DelayedDeliveryConfig, TopicConfig
from ..consumer import Consumer, PortTraits, Subscribing
from ..consumer.transport import AnyPosition, AnyType
from ..consumer.transport import initial_position as as_initial_position
from ..cursor import Cursor
from ..ids import MessageId, Position
from ..ledger import LocalLogStore, LogStore
from ..ledger.ownership import close_on_error, storage_timeout, take_ownership
from ._arguments import TopicSettings, check_options, check_subscribe, check_subscription_name, check_topic
from ._entry import entries_of, entry_class, is_one_payload
from ._ledgers import STATE, TopicLedgers
from ._letters import LocalPublisher, RetryTopics
from ._port import LocalPort
from ._registry import SubscriptionRegistry
from ._statistics import TopicStatistics


class LocalTopic(LoopBound):
    """A topic without a broker: durable, ordered, with the four subscription types.

    Open it with :meth:`open`, and close it with :meth:`aclose` or ``async with``. A message survives kill -9 once
    :meth:`publish` has returned. One process at a time has a topic open.

    ::

        async with await LocalTopic.open("data/orders") as topic:
            await topic.publish(b"an order", key="customer-7")
            async with topic.consumer("billing") as consumer:
                message = await consumer.receive()
                await message.nack(delay=2.5)
    """

    _what = "LocalTopic"
    _place: LogStore

    def __init__(self, name: str, store: LogStore, ledgers: TopicLedgers, settings: TopicSettings) -> None:
        self.name = name
        self._ledgers = ledgers
        self._settings = settings
        self._subscriptions = SubscriptionRegistry(name, store, ledgers, settings, self._ensure_open)
        self.retry_topics = RetryTopics()
        """The retry topics of its subscriptions."""
        self._is_closed = True  # until it is open
        self._closing: asyncio.Task[None] | None = None
        ledgers.on_growth = self._subscriptions.wake

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
        first_ledger: int = 1,
    ) -> Self:
        """Open a topic, or begin a new one.

        :param home: a folder, or a :class:`~pulsar_nack.ledger.LogStore`, for this topic alone
        :param name: the topic of its messages
        :param delayed: how subscriptions keep delayed messages by default; a :class:`~pulsar_nack.BucketConfig` chooses
            buckets, and one index for all subscriptions. Its longest delay also bounds that of published messages
        :param clock: epoch ms, for publish times and delays; by default the wall clock
        :param first_ledger: the id of a new topic's first ledger
        :raises InvalidArgumentError: an argument is invalid; nothing was created
        :raises LogLockedError: the topic is open already, here or in another process
        :raises LedgerError: the topic cannot be read
        :raises MissingExtraError: protobuf is not installed
        """
        entry_class()
        settings = check_topic(config, delayed, clock)
        check_text("name", name)
        check_integer("first_ledger", first_ledger, 0)
        owned = None if isinstance(home, LogStore) else await LocalLogStore.open(home)
        opened: list[LogStore] = [] if owned is None else [owned]
        async with close_on_error(opened):
            part = await take_ownership(home if isinstance(home, LogStore) else opened[0], STATE)
            opened.append(part)
            ledgers = await TopicLedgers.open(part, settings.config, settings.clock, first_ledger)
            self = cls(name, part, ledgers, settings)
            await self._subscriptions.open()
        if owned is not None:
            opening = partial(cls.open, config=config, delayed=delayed, clock=clock)
            self.retry_topics.open_in_folders(home, opening)
        self._place = owned or part
        self._is_closed = False
        self._subscriptions.trim()
        return self

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not self._is_closed:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<LocalTopic {self.name!r}, {'closed' if self._is_closed else f'up to {tuple(self.last_position)}'}>"

    async def aclose(self) -> None:
        """Close the consumers' ports, write acknowledgements, and release the topic. Idempotent.

        Takes the ``close_timeout`` of the configuration's ``cursor`` at most.

        :raises LedgerError: something could not be written; everything durable stays so
        :raises TimeoutError: storage did not answer in time; the topic is released once it does
        """
        if not self._is_closed:
            self._check_loop()
        if self._closing is None:
            self._is_closed = True
            self._closing = self._subscriptions.begin_close(
                self.retry_topics.aclose, self._ledgers.aclose, self._place.aclose
            )
        async with storage_timeout(
            self._settings.config.cursor.close_timeout.total_seconds(), f"LocalTopic {self.name!r}"
        ):
            await asyncio.shield(self._closing)

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def last_position(self) -> Position:
        """Return the last position; entry -1 if the last ledger is empty."""
        return self._ledgers.last_position

    @property
    def ledgers(self) -> Mapping[int, int]:
        """Return the ledgers, and how many entries each has."""
        return {ledger: self._ledgers.entries(ledger) or 0 for ledger in self._ledgers.ids}

    @property
    def subscriptions(self) -> Sequence[str]:
        """Return the names of all subscriptions, with or without a consumer."""
        return sorted(self._subscriptions.cursors)

    def cursor(self, subscription: str) -> Cursor:
        """Return the cursor of a subscription, to be read and not to be changed.

        :raises InvalidArgumentError: there is no such subscription
        """
        return self._subscriptions.cursor(subscription)

    def backlog(self, subscription: str) -> int:
        """Return how many entries a subscription has not acknowledged as a whole."""
        return self.cursor(subscription).backlog or 0

    def statistics(self) -> TopicStatistics:
        """Return a snapshot of the topic's figures."""
        ledgers = self._ledgers
        return TopicStatistics(
            ledgers=len(ledgers.ids),
            entries=sum(ledgers.entries(ledger) or 0 for ledger in ledgers.ids),
            bytes=ledgers.size,
            kept_bytes=ledgers.cache.bytes,
            entries_read=ledgers.reads,
            subscriptions={name: each.statistics() for name, each in sorted(self._subscriptions.used.items())},
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

        :param payload: bytes, or None for a message without a value; or a sequence of them: separate messages, or with
            ``batch`` one entry with all of them
        :param key: messages with the same key are delivered in order, on Key_Shared subscriptions
        :param deliver_at: when Shared and Key_Shared subscriptions deliver it: epoch ms, a datetime with a time zone,
            or a timedelta from now
        :param deliver_after: when they deliver it, as seconds or a timedelta from now
        :raises InvalidArgumentError: an argument is invalid; nothing was added
        :raises LedgerError: it could not be written; nothing, or not all of several entries, was added
        """
        self._ensure_open()
        entries = entries_of(
            payload,
            self._ledgers.publish_time(),
            self._settings.delayed,
            key=key,
            properties=properties,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            event_time_ms=event_time_ms,
            batch=batch,
        )
        positions = await self._ledgers.append(entries)
        if batch:
            (position,), size = positions, entries[0].batch_size
            return [MessageId(*position, batch_index=at, batch_size=size, topic=self.name) for at in range(size)]
        ids = [MessageId(*position, topic=self.name) for position in positions]
        return ids[0] if is_one_payload(payload) else ids

    def publisher(self) -> LocalPublisher:
        """Return a publisher of dead letters into this topic: ``DeadLetterPolicy(publisher=...)``."""
        return LocalPublisher(self.publish)

    # -- subscribing ---------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        type: AnyType = "shared",  # noqa: A002 - the field's word
        *,
        consumer_name: str | None = None,
        initial_position: AnyPosition = "latest",
        delayed: DelayedDeliveryConfig | None = None,
        receiver_queue_size: int = 1_000,
        unacked_limit: int | None = 50_000,
        batch_index_ack: bool = True,
    ) -> LocalPort:
        """Subscribe; a new subscription begins at the end, or with the first message that is still there.

        :param type: ``"shared"``, ``"key_shared"``, ``"exclusive"`` or ``"failover"``
        :param consumer_name: the first consumer by name gets the messages of a Failover subscription
        :param delayed: how this subscription keeps delayed messages; it may change while there is no consumer
        :param receiver_queue_size: messages that are prefetched; 0: none
        :param unacked_limit: number of unacknowledged messages at which the consumer gets no more; None: no limit
        :param batch_index_ack: acknowledge single messages of a batch in the topic; False: a batch when all are
        :raises InvalidArgumentError: an argument is invalid
        :raises BrokerError: the present consumers exclude this one
        """
        self._ensure_open()
        joining = check_subscribe(
            name,
            type,
            initial_position,
            consumer_name=consumer_name,
            receiver_queue_size=receiver_queue_size,
            delayed=delayed,
            batch_index_ack=batch_index_ack,
            unacked_limit=unacked_limit,
        )
        return await self._subscriptions.join(joining)

    async def create_subscription(self, name: str, *, initial_position: AnyPosition = "latest") -> None:
        """Create a subscription without a consumer, durable when this returns; an existing one stays as it is.

        :raises InvalidArgumentError: an argument is invalid
        """
        self._ensure_open()
        check_subscription_name(name)
        await self._subscriptions.create(name, as_initial_position(initial_position))

    def consumer(
        self,
        name: str,
        type: AnyType = "shared",  # noqa: A002 - as above
        *,
        consumer_name: str | None = None,
        initial_position: AnyPosition = "earliest",
        delayed: DelayedDeliveryConfig | None = None,
        receiver_queue_size: int = 1_000,
        **options: Any,
    ) -> Subscribing:
        """Subscribe with a :class:`~pulsar_nack.Consumer`; ``async with`` it, or await it and close it yourself.

        :param options: those of :class:`~pulsar_nack.Consumer`, ``batch_index_ack``, and ``consumer_type`` for
            ``type``; the others are as in :meth:`subscribe`, except that a new subscription begins with the first
            message
        :raises InvalidArgumentError: an argument is invalid; other errors are raised when it is entered or awaited
        """
        kind, settings = check_options(type, options)
        joining = check_subscribe(
            name,
            kind,
            initial_position,
            consumer_name=consumer_name,
            receiver_queue_size=receiver_queue_size,
            delayed=delayed,
            batch_index_ack=settings.pop("batch_index_ack", True),
        )
        traits = PortTraits(honours_ids=joining.kind.is_shared, receiver_queue_size=receiver_queue_size)
        self.retry_topics.check(settings, traits, self.name, name)

        async def make() -> Consumer:
            self._ensure_open()
            port = await self._subscriptions.join(joining)
            return await self.retry_topics.consumer(port, settings, self._settings.clock)

        return Subscribing(make, "consumer")

    async def unsubscribe(self, name: str) -> None:
        """Delete a subscription and its acknowledgements.

        :raises InvalidArgumentError: there is no such subscription
        :raises BrokerError: it has a consumer
        :raises LedgerError: not all of it could be deleted; try again
        """
        await self._subscriptions.delete(name)

    async def skip(self, subscription: str, count: int) -> int:
        """Acknowledge a subscription's next ``count`` unacknowledged entries; return how many they were."""
        check_integer("count", count, 0)
        return await (await self._subscriptions.get(subscription)).moves.skip(count)

    async def clear_backlog(self, subscription: str) -> None:
        """Acknowledge all entries for a subscription."""
        await (await self._subscriptions.get(subscription)).moves.clear_backlog()

    async def seek(self, subscription: str, position: MessageId | int | datetime) -> None:
        """Make this message, or the first that was published at or after this time, a subscription's next.

        :param position: a time is epoch ms, or a datetime (local time if it names no zone); 0 is the beginning
        :raises InvalidArgumentError: it lies beyond the end, or is in seconds; nothing has changed
        """
        is_later = self._settings.clock.now_ms() >= FIRST_PUBLISH_MS  # a test's clock may be earlier
        target = seek_position(position, earliest_ms=FIRST_PUBLISH_MS if is_later else 0)
        await (await self._subscriptions.get(subscription)).moves.seek_to(target)

    async def flush(self) -> None:
        """Return when everything that was acknowledged before the call is durable."""
        self._ensure_open()
        await self._subscriptions.flush()


OpeningTopic = Opening[LocalTopic]
"""What :func:`open_local` returns: ``async with`` it, or ``await`` it and close the topic yourself."""


def open_local(
    home: str | PathLike[str] | LogStore,
    config: TopicConfig | None = None,
    *,
    name: str = "persistent://public/default/local",
    delayed: DelayedDeliveryConfig | None = None,
    clock: Clock | None = None,
) -> OpeningTopic:
    """Open a local topic; the parameters and errors are those of :meth:`~pulsar_nack.LocalTopic.open`.

    ::

        async with pulsar_nack.open_local("data/orders") as topic:
            await topic.publish(b"an order")
    """
    return OpeningTopic(lambda: LocalTopic.open(home, config, name=name, delayed=delayed, clock=clock), "topic")
