"""The consumers, producers and topic watchers on one connection, and the commands that each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import MessageCommand

_OF_CONSUMERS: Final = 1  # CommandTopicMigrated.ResourceType.Consumer


def _ignore(_event: object) -> None: ...


class Handler:
    """A consumer, a producer or a topic watcher on a connection; the broker knows it by its id.

    All calls come from the event loop and must not block. Each kind sets the functions for its own commands, below.
    Other events are ignored unless they are overridden.
    """

    on_message: Callable[[MessageCommand, bytes], None]
    """Handles an entry that arrived for a consumer: its command, and what follows that in the frame."""
    on_receipt: Callable[[pb.CommandSendReceipt], None] = staticmethod(_ignore)
    """Handles that a producer's message is stored, and where."""
    on_send_error: Callable[[pb.CommandSendError], None] = staticmethod(_ignore)
    """Handles that the broker refused a producer's message."""
    on_topic_migrated: Callable[[str | None], None] = staticmethod(_ignore)
    """Handles that the topic has moved to another cluster, with this service URL; ``on_closed_by_broker`` follows."""
    on_topics_changed: Callable[[Iterable[str]], None] = staticmethod(_ignore)
    """Handles that topics of a watched namespace were created or deleted."""

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """Handle that the broker closed the consumer or producer: the topic moves, perhaps to ``assigned_url``."""

    def on_active_changed(self, is_active: bool) -> None:
        """Handle whether this is the active consumer of a Failover subscription."""

    def on_end_of_topic(self) -> None:
        """Handle that the topic was terminated and the consumer got all its messages."""

    def on_connection_lost(self, error: Exception) -> None:
        """Handle the end of the connection; the last call."""


_NOBODY: Final = Handler()
"""Gets the commands for ids that no handler has, and ignores them."""


class HandlerRegistry:
    """All handlers of one connection, by kind and id.

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
        match command.type:
            case pb.BaseCommand.SEND_RECEIPT:
                receipt = command.send_receipt
                self.producers.get(receipt.producer_id, _NOBODY).on_receipt(receipt)
            case pb.BaseCommand.SEND_ERROR:
                refusal = command.send_error
                self.producers.get(refusal.producer_id, _NOBODY).on_send_error(refusal)
            case pb.BaseCommand.CLOSE_CONSUMER:
                self._close(self.consumers.pop(command.close_consumer.consumer_id, _NOBODY), command.close_consumer)
            case pb.BaseCommand.CLOSE_PRODUCER:
                self._close(self.producers.pop(command.close_producer.producer_id, _NOBODY), command.close_producer)
            case pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
                change = command.active_consumer_change
                self.consumers.get(change.consumer_id, _NOBODY).on_active_changed(change.is_active)
            case pb.BaseCommand.REACHED_END_OF_TOPIC:
                self.consumers.get(command.reachedEndOfTopic.consumer_id, _NOBODY).on_end_of_topic()
            case pb.BaseCommand.WATCH_TOPIC_UPDATE:
                update = command.watchTopicUpdate
                names = (*update.new_topics, *update.deleted_topics)
                self.watchers.get(update.watcher_id, _NOBODY).on_topics_changed(names)
            case pb.BaseCommand.TOPIC_MIGRATED:
                self._migrate(command.topicMigrated)

    def _close(self, handler: Handler, close: pb.CommandCloseConsumer | pb.CommandCloseProducer) -> None:
        url = close.assignedBrokerServiceUrlTls if self._is_secure else close.assignedBrokerServiceUrl
        handler.on_closed_by_broker(None if self.is_proxied else url or None)

    def _migrate(self, moved: pb.CommandTopicMigrated) -> None:
        url = (moved.brokerServiceUrlTls if self._is_secure else moved.brokerServiceUrl) or None
        handlers = self.consumers if moved.resource_type == _OF_CONSUMERS else self.producers
        handler = handlers.pop(moved.resource_id, _NOBODY)
        handler.on_topic_migrated(url)
        handler.on_closed_by_broker(None)

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
