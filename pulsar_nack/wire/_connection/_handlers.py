"""The consumers, producers and topic watchers on one connection, and the commands that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import MessageCommand

_OF_CONSUMERS: Final = 1  # CommandTopicMigrated.ResourceType.Consumer


class Handler:
    """A consumer, a producer or a topic watcher on a connection; the broker knows it by its id.

    All calls come from the event loop and must not block. Each kind sets the functions for its own commands, below.
    Other events are ignored unless they are overridden.
    """

    on_message: Callable[[MessageCommand, bytes], None]
    """Handles an entry that arrived for a consumer: its command, and what follows that in the frame."""
    on_receipt: Callable[[pb.CommandSendReceipt], None]
    """Handles that a producer's message is stored, and where."""
    on_send_error: Callable[[pb.CommandSendError], None]
    """Handles that the broker refused a producer's message."""
    on_topic_migrated: Callable[[str | None], None]
    """Handles that the topic has moved to another cluster, with this service URL; ``on_closed_by_broker`` follows."""
    on_topics_changed: Callable[[Iterable[str]], None]
    """Handles that topics of a watched namespace were created or deleted."""

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """Handle that the broker closed the consumer or producer: the topic moves, perhaps to ``assigned_url``."""

    def on_active_changed(self, is_active: bool) -> None:
        """Handle whether this is the active consumer of a Failover subscription."""

    def on_end_of_topic(self) -> None:
        """Handle that the topic was terminated and the consumer got all its messages."""

    def on_connection_lost(self, error: Exception) -> None:
        """Handle the end of the connection; the last call."""


class HandlerRegistry:
    """All handlers of one connection, by kind and id. Commands for ids that are not here are dropped.

    :param is_secure: whether to take the TLS address where the broker names one with and one without
    """

    def __init__(self, *, is_secure: bool) -> None:
        self.consumers: dict[int, Handler] = {}
        self.producers: dict[int, Handler] = {}
        self.watchers: dict[int, Handler] = {}
        self.ids = count(1)
        """Ids that no other handler has had on the connection."""
        self.is_proxied = False
        """Whether a proxy is between here and the broker, which names addresses that only the proxy can reach."""
        self._is_secure = is_secure

    def dispatch(self, command: pb.BaseCommand) -> None:
        """Pass on a command that is no response; kinds from later versions of the protocol are ignored."""
        dispatch = _DISPATCH.get(command.type)
        if dispatch is not None:
            dispatch(self, command)

    def on_connection_lost(self, error: Exception, report: Callable[[Exception], None]) -> None:
        """Remove all handlers and call each one's ``on_connection_lost``; what one raises is reported."""
        handlers: list[Handler] = []
        for table in (self.consumers, self.producers, self.watchers):
            handlers += table.values()
            table.clear()
        for handler in handlers:
            try:
                handler.on_connection_lost(error)
            except Exception as fault:  # noqa: BLE001 - reported
                report(fault)

    def _receipt(self, command: pb.BaseCommand) -> None:
        producer = self.producers.get(command.send_receipt.producer_id)
        if producer is not None:
            producer.on_receipt(command.send_receipt)

    def _send_error(self, command: pb.BaseCommand) -> None:
        producer = self.producers.get(command.send_error.producer_id)
        if producer is not None:
            producer.on_send_error(command.send_error)

    def _close_consumer(self, command: pb.BaseCommand) -> None:
        self._close(self.consumers.pop(command.close_consumer.consumer_id, None), command.close_consumer)

    def _close_producer(self, command: pb.BaseCommand) -> None:
        self._close(self.producers.pop(command.close_producer.producer_id, None), command.close_producer)

    def _close(self, handler: Handler | None, close: pb.CommandCloseConsumer | pb.CommandCloseProducer) -> None:
        if handler is not None:
            url = close.assignedBrokerServiceUrlTls if self._is_secure else close.assignedBrokerServiceUrl
            handler.on_closed_by_broker(None if self.is_proxied else url or None)

    def _active_changed(self, command: pb.BaseCommand) -> None:
        consumer = self.consumers.get(command.active_consumer_change.consumer_id)
        if consumer is not None:
            consumer.on_active_changed(command.active_consumer_change.is_active)

    def _end_of_topic(self, command: pb.BaseCommand) -> None:
        consumer = self.consumers.get(command.reachedEndOfTopic.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _topics_changed(self, command: pb.BaseCommand) -> None:
        update = command.watchTopicUpdate
        watcher = self.watchers.get(update.watcher_id)
        if watcher is not None:
            watcher.on_topics_changed((*update.new_topics, *update.deleted_topics))

    def _migrated(self, command: pb.BaseCommand) -> None:
        moved = command.topicMigrated
        url = (moved.brokerServiceUrlTls if self._is_secure else moved.brokerServiceUrl) or None
        handlers = self.consumers if moved.resource_type == _OF_CONSUMERS else self.producers
        handler = handlers.pop(moved.resource_id, None)
        if handler is not None:
            handler.on_topic_migrated(url)
            handler.on_closed_by_broker(None)


_DISPATCH: Final[dict[int, Callable[[HandlerRegistry, pb.BaseCommand], None]]] = {
    pb.BaseCommand.SEND_RECEIPT: HandlerRegistry._receipt,
    pb.BaseCommand.SEND_ERROR: HandlerRegistry._send_error,
    pb.BaseCommand.CLOSE_CONSUMER: HandlerRegistry._close_consumer,
    pb.BaseCommand.CLOSE_PRODUCER: HandlerRegistry._close_producer,
    pb.BaseCommand.ACTIVE_CONSUMER_CHANGE: HandlerRegistry._active_changed,
    pb.BaseCommand.REACHED_END_OF_TOPIC: HandlerRegistry._end_of_topic,
    pb.BaseCommand.WATCH_TOPIC_UPDATE: HandlerRegistry._topics_changed,
    pb.BaseCommand.TOPIC_MIGRATED: HandlerRegistry._migrated,
}
