"""The consumers, producers and watchers of one connection, and what the broker tells each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .. import _pulsar_pb2 as pb
from ._events import ConsumerEvents, ProducerEvents, WatcherEvents

_OF_CONSUMERS: Final = 1  # CommandTopicMigrated.ResourceType.Consumer


class Users:
    """Who is on a connection. What comes for somebody who is not there any more is dropped.

    :param is_secure: which of two addresses is ours where the broker names one for TLS and one without
    """

    def __init__(self, *, is_secure: bool) -> None:
        self.consumers: dict[int, ConsumerEvents] = {}
        self.producers: dict[int, ProducerEvents] = {}
        self.watchers: dict[int, WatcherEvents] = {}
        self._is_secure = is_secure

    def tell(self, command: pb.BaseCommand) -> None:
        """Hand on a command that is no answer to a request; unknown kinds are for later versions of the protocol."""
        tell = _TELL.get(command.type)
        if tell is not None:
            tell(self, command)

    def lost(self, error: Exception, report: Callable[[Exception], None]) -> None:
        """Tell all that the connection is gone; what one of them raises is reported, and the others are told."""
        users: list[ConsumerEvents | ProducerEvents | WatcherEvents] = [
            *self.consumers.values(),
            *self.producers.values(),
            *self.watchers.values(),
        ]
        self.consumers.clear()
        self.producers.clear()
        self.watchers.clear()
        for user in users:
            try:
                user.on_connection_lost(error)
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
        close = command.close_consumer
        consumer = self.consumers.pop(close.consumer_id, None)
        if consumer is not None:
            url = close.assignedBrokerServiceUrlTls if self._is_secure else close.assignedBrokerServiceUrl
            consumer.on_closed_by_broker(url or None)

    def _close_producer(self, command: pb.BaseCommand) -> None:
        close = command.close_producer
        producer = self.producers.pop(close.producer_id, None)
        if producer is not None:
            url = close.assignedBrokerServiceUrlTls if self._is_secure else close.assignedBrokerServiceUrl
            producer.on_closed_by_broker(url or None)

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
        if moved.resource_type == _OF_CONSUMERS:
            consumer = self.consumers.get(moved.resource_id)
            if consumer is not None:
                consumer.on_topic_migrated(url)
            return
        producer = self.producers.pop(moved.resource_id, None)
        if producer is not None:
            producer.on_closed_by_broker(url)


_TELL: Final[dict[int, Callable[[Users, pb.BaseCommand], None]]] = {
    pb.BaseCommand.SEND_RECEIPT: Users._receipt,
    pb.BaseCommand.SEND_ERROR: Users._send_error,
    pb.BaseCommand.CLOSE_CONSUMER: Users._close_consumer,
    pb.BaseCommand.CLOSE_PRODUCER: Users._close_producer,
    pb.BaseCommand.ACTIVE_CONSUMER_CHANGE: Users._active_changed,
    pb.BaseCommand.REACHED_END_OF_TOPIC: Users._end_of_topic,
    pb.BaseCommand.WATCH_TOPIC_UPDATE: Users._topics_changed,
    pb.BaseCommand.TOPIC_MIGRATED: Users._migrated,
}
