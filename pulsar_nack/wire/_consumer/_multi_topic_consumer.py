"""The consumers of several topics and partitions, with one inbox: opened together, found by message id.

A topic or partition that appears later is consumed from its first message on: all its messages were published after
this consumer began.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeVar

from ..._tasks import MAX_AT_ONCE, gather_or_cancel, gather_settled
from ...consumer import SessionEvent
from ...errors import BrokerError, ClosedError, MissingExtraError, TopicNotFoundError
from ...ids import MessageId, _is_message_id
from .._connection._context import ClientContext
from .._connection._requests import as_text, with_text
from .._protocol._topics import split_partition
from ._inbox import WireInbox
from ._subscribe_options import SubscribeOptions, queue_required
from ._topic_consumer import AnyTopicConsumer, DeletedTopicConsumer, TopicConsumer
from ._topic_discovery import PatternSelection, Selection, TopicListWatcher, name_of

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_MAX_PREFETCHED: Final = 50_000
"""Most messages that are prefetched by all topics and partitions together, at least one by each."""
_MAX_DELETED: Final = 10_000
"""Most deleted topics that are remembered."""


class MultiTopicConsumer:
    """The consumers of all topics and partitions of a selection, with one inbox.

    :param context: that of the client
    :param options: those of the subscription; each consumer gets a copy with its own queue size and initial position
    """

    def __init__(self, context: ClientContext, selection: Selection, options: SubscribeOptions) -> None:
        self.inbox = WireInbox(self._check_receivable, self._before_wait)
        self.on_event: Callable[[SessionEvent, str, int], None] = lambda *_: None
        """Called with each session event, the topic and the partition."""
        self.is_closed = False
        """Whether calls that wait for a message get an error."""
        self._context = context
        self._selection = selection
        self._options = options
        self._starts: Mapping[str, MessageId] = {}
        self._discovery: asyncio.Task[None] | None = None
        self._consumers: dict[str, TopicConsumer] = {}
        self._deleted: dict[str, DeletedTopicConsumer] = {}
        self._opening: set[TopicConsumer] = set()  # of new topics; paused and resumed with the others
        self._closing: set[TopicConsumer] = set()
        self.by_topic: Mapping[str | None, TopicConsumer] = self._consumers  # type: ignore[assignment]
        """The consumers by their full names."""
        self._is_paused = False
        self._unreadable: MissingExtraError | None = None
        self._may_be_missing = False
        self._watcher = TopicListWatcher(context, selection) if isinstance(selection, PatternSelection) else None

    def __iter__(self) -> Iterator[TopicConsumer]:
        return iter(list(self._consumers.values()))

    def __len__(self) -> int:
        return len(self._consumers)

    # --- opening and closing ------------------------------------------------------------------------------------------

    async def open(self, discovery_interval: float, starts: Mapping[str, MessageId]) -> None:
        """Open all consumers, in the time of one request for each 32; if one fails, none is open.

        :param discovery_interval: how often to look for new topics and partitions, in seconds
        :param starts: the message before the first one, by full names; for a non-durable subscription
        :raises BrokerError: the first error
        :raises InvalidArgumentError: there are several, and no receiver queue
        """
        ends_at = self._context.deadline()
        wanted = await self._wanted(ends_at)
        if not self._options.receiver_queue_size and self._selection.only not in wanted:
            raise queue_required()
        self._starts = starts
        options = self._options_for(len(wanted))
        at_first = options if self._selection.retry_topic is None else replace(options, initial_position="earliest")
        made = {
            name: self._make_consumer(name, partition, at_first if self._is_retry_topic(name) else options)
            for name, partition in wanted.items()
        }
        try:
            more_s = self._context.options.request_timeout.total_seconds()
            await gather_or_cancel(
                self._open(name, consumer, ends_at + number // MAX_AT_ONCE * more_s)
                for number, (name, consumer) in enumerate(made.items())
            )
        except BaseException:
            await gather_settled(consumer.aclose() for consumer in made.values())
            raise
        self._consumers.update(made)
        if not made and isinstance(self._selection, PatternSelection):
            _LOG.warning(
                "no topic matches the pattern %r in namespace %s yet: this consumer waits for one",
                self._selection.label,
                self._selection.namespace,
            )
        if self._selection.may_grow(made):
            discovery = self._discover(discovery_interval)
            self._discovery = asyncio.create_task(discovery, name="pulsar_nack.wire discovery")

    def _is_retry_topic(self, name: str) -> bool:
        retry_topic = self._selection.retry_topic
        return retry_topic is not None and split_partition(name)[0] == retry_topic

    async def _wanted(self, ends_at: float) -> Mapping[str, int]:
        """Return the names of all topics and partitions to consume, with the numbers of partitions."""
        try:
            return await self._context.retry_transient(lambda: self._selection.members(self._context), ends_at=ends_at)
        except BrokerError as error:
            raise self._subscribing(self._selection.label, error) from error

    async def _open(self, name: str, consumer: TopicConsumer, ends_at: float) -> None:
        try:
            await consumer.open(ends_at)
        except BrokerError as error:
            raise self._subscribing(name, error) from error

    def _subscribing(self, name: str, error: BrokerError) -> BrokerError:
        return with_text(error, f"subscribing to {name} as {self._options.subscription!r}: {error}")

    def _options_for(self, count: int, **changes: Any) -> SubscribeOptions:
        """Return the options of one consumer of several."""
        size = min(self._options.receiver_queue_size, max(_MAX_PREFETCHED // max(count, 1), 1))
        if size != self._options.receiver_queue_size:
            changes["receiver_queue_size"] = size
        if isinstance(self._selection, PatternSelection):
            changes["create_topic"] = False  # subscribing must not create a deleted topic again
        return replace(self._options, **changes) if changes else self._options

    async def aclose(self) -> BaseException | None:
        """Close all consumers, also those that a cancelled call left half closed; return the first error."""
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait([self._discovery])
        if self._watcher is not None:
            self._watcher.close()
        return await gather_settled(consumer.aclose() for consumer in (*self._consumers.values(), *self._closing))

    # --- discovery ----------------------------------------------------------------------------------------------------

    async def _discover(self, interval: float) -> None:
        """Look for new and deleted topics, at this interval in seconds and when the broker reports a change."""
        last_error = ""
        while True:
            try:
                await (asyncio.sleep(interval) if self._watcher is None else self._watcher.changed(interval))
                await self.refresh()
                last_error = ""
            except Exception as error:  # noqa: BLE001 - also what an authentication of the user's raises
                if self._context.pool.is_closed:
                    return
                if last_error != (last_error := as_text(error)):
                    _LOG.warning("cannot look for new topics of %s: %s", self._selection.label, last_error)

    async def refresh(self) -> None:
        """Open consumers of new topics and close those of deleted ones; errors of one are logged, and it is retried.

        :raises BrokerError: the broker gave no answer
        """
        wanted = await self._selection.members(self._context)
        new = {name: partition for name, partition in wanted.items() if name not in self._consumers}
        await asyncio.gather(*(self._add(name, partition) for name, partition in new.items()))
        if self._selection.only is None:
            await self._remove([name for name in self._consumers if name not in wanted])

    async def _add(self, name: str, partition: int) -> None:
        options = self._options_for(len(self._consumers) + 1, initial_position="earliest")
        consumer = self._make_consumer(name, partition, options)
        self._opening.add(consumer)
        try:
            await consumer.open()
        except BaseException as error:
            await gather_settled([consumer.aclose()])
            if not isinstance(error, Exception):
                raise
            _LOG.warning("%s is new, and cannot be consumed yet: %s", name, error)  # the next refresh tries again
        else:
            _LOG.info("%s is new, and is consumed from now on", name)
            self._consumers[name] = consumer
            self._deleted.pop(name, None)
        finally:
            self._opening.discard(consumer)

    async def _remove(self, names: Iterable[str]) -> None:
        removed = {name: self._consumers.pop(name) for name in names}
        for name, consumer in removed.items():
            consumer.on_topic_deleted()
            self._deleted[name] = DeletedTopicConsumer(consumer.topic, consumer.partition, self._report_deleted)
            if len(self._deleted) > _MAX_DELETED:
                del self._deleted[next(iter(self._deleted))]
            self.inbox.drop(consumer.queue)
            self._report_deleted(consumer.topic, consumer.partition)
        self._closing.update(removed.values())
        await gather_settled(consumer.aclose() for consumer in removed.values())
        self._closing.difference_update(removed.values())

    # --- receiving ----------------------------------------------------------------------------------------------------

    def pause(self, *, is_idle: bool, is_last: bool = False) -> int:
        """Return prefetched and arriving messages to the broker until :meth:`resume`; see :class:`WirePort`."""
        self._is_paused = True
        return sum(self._pause(consumer, is_idle=is_idle, is_last=is_last) for consumer in (*self, *self._opening))

    def resume(self) -> None:
        """Fetch messages again."""
        self._is_paused = False
        if self._unreadable is None:
            for consumer in (*self, *self._opening):
                consumer.queue.resume()
            if self.inbox.is_awaited:
                self._before_wait()

    def _pause(self, consumer: TopicConsumer, *, is_idle: bool = False, is_last: bool = False) -> int:
        queued = [] if self._options.only_one_gets_messages else self.inbox.take_out(consumer.queue)
        return consumer.pause(queued, is_idle=is_idle, is_last=is_last)

    def _before_wait(self) -> None:
        if self._unreadable is not None:
            raise copy(self._unreadable)
        if not self._options.receiver_queue_size and not self._is_paused:
            for consumer in self:
                consumer.queue.fetch_one()

    def _check_receivable(self) -> None:
        """Raise if no message can come any more.

        :raises ClosedError: this, or one of the consumers, is closed
        :raises TopicNotFoundError: all topics are deleted, and may not be created again
        """
        if self.is_closed:
            raise ClosedError("the port")
        if not self._may_be_missing:
            return
        for consumer in self:
            consumer.check_open()
        missing = [consumer.missing for consumer in self]
        first = missing[0] if missing else None
        if first is not None and None not in missing:
            what = f"{self._selection.label} was deleted, and may not be created again"
            raise TopicNotFoundError(first.code, f"{what} (the broker says: {first.text})")

    # --- events of consumers ------------------------------------------------------------------------------------------

    def _make_consumer(self, name: str, partition: int, options: SubscribeOptions) -> TopicConsumer:
        options = replace(options, start_message_id=self._starts[name]) if name in self._starts else options
        made = TopicConsumer(
            self._context,
            name,
            options,
            self.inbox.put,
            partition=partition,
            on_event=self._report,
            on_unreadable=self._on_unreadable,
            on_missing=self._on_missing,
        )
        if self._is_paused or self._unreadable is not None:
            made.pause([])
        return made

    def _report(self, event: SessionEvent, topic: str, partition: int) -> None:
        self.on_event(event, topic, partition)

    def _report_deleted(self, topic: str, partition: int) -> None:
        """Let the owner forget the messages of a deleted topic that it holds or requested."""
        self.on_event(SessionEvent.INACTIVE, topic, partition)

    def _on_unreadable(self, error: MissingExtraError) -> None:
        """Stop, so that other consumers get the message that this process cannot read, and later messages."""
        if self._unreadable is None:
            self._unreadable = error
            label, subscription = self._selection.label, self._options.subscription
            _LOG.error("%s as %s: receiving stops, because a message cannot be read: %s", label, subscription, error)
            for consumer in (*self, *self._opening):
                self._pause(consumer)
            self.inbox.wake_all()

    def _on_missing(self, consumer: TopicConsumer) -> None:
        """Drop the messages of a missing topic, which may be created again; wake waiting calls if no topic is left."""
        self.inbox.drop(consumer.queue)
        self._report_deleted(consumer.topic, consumer.partition)
        if isinstance(self._selection, PatternSelection) and consumer.missing is not None:
            return
        self._may_be_missing = True
        if consumer.missing is not None and any(each.missing is None for each in self):
            _LOG.warning("%s was deleted, and may not be created again: the other topics continue", consumer.topic)
        else:  # all are, or this one has ended
            self.inbox.wake_all()

    # --- calls for all topics -----------------------------------------------------------------------------------------

    async def ask(
        self, call: Callable[[TopicConsumer], Awaitable[T]], topics: Container[str] | None = None
    ) -> dict[TopicConsumer, T]:
        """Return what a call returns for each topic or partition, or for some; the first error is raised.

        Topics that were deleted are left out, unless all were; if one is deleted meanwhile, the others are asked again.
        """
        while True:
            existing = [each for each in self if each.missing is None] or list(self)
            asked = [each for each in existing if topics is None or each.topic in topics]
            try:
                return dict(zip(asked, await gather_or_cancel(map(call, asked)), strict=True))
            except (TopicNotFoundError, ClosedError):
                left = {each for each in self if each.missing is None}
                if not left or left >= set(asked):
                    raise

    async def seek(self, position: MessageId | int, on_moved: Callable[[TopicConsumer], None] = lambda _: None) -> None:
        """Move the topic of a message; all, if it is a time or the id of the earliest or the latest message.

        :param on_moved: called with each consumer that is moved
        :raises BrokerError: the broker refused, or the message is of another topic
        """
        if _is_message_id(position):
            await self.of(position).seek(position, on_moved)
        else:
            await self.ask(lambda consumer: consumer.seek(position, on_moved))

    # --- by message id ------------------------------------------------------------------------------------------------

    def of(self, message_id: MessageId) -> AnyTopicConsumer:
        """Return the consumer of a message.

        :raises BrokerError: the message is of another topic, or its id lacks the topic
        """
        topic = message_id.topic
        if topic is None:
            topic = self._selection.only
            if topic is None:
                raise BrokerError(
                    f"{message_id!r} was not delivered to this consumer of several topics, and names none"
                )
        for consumers in (self._consumers, self._deleted):
            found: AnyTopicConsumer | None = consumers.get(topic) or consumers.get(name_of(topic, message_id.partition))
            if found is not None:
                return found
        raise BrokerError(f"{message_id!r} is of no topic of this consumer of {self._selection.label}")

    def grouped(
        self, ids: Iterable[MessageId], *, skip_unknown: bool = False
    ) -> Mapping[AnyTopicConsumer, list[MessageId]]:
        """Return messages by their consumers.

        :param skip_unknown: leave out messages of other topics instead of raising an error
        :raises BrokerError: see :meth:`of`
        """
        groups: dict[AnyTopicConsumer, list[MessageId]] = {}
        by_topic = self.by_topic
        for message_id in ids:
            try:
                consumer = by_topic.get(message_id.topic) or self.of(message_id)
            except BrokerError:
                if not skip_unknown:
                    raise
            else:
                groups.setdefault(consumer, []).append(message_id)
        return groups
