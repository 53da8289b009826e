"""What a connection tells the consumers and producers that use it. All calls come from the loop and must not block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from .. import _pulsar_pb2 as pb
from .._protocol._heads import MessageHead


class ConsumerEvents(Protocol):
    """One consumer on a connection, which the broker knows by its consumer id."""

    def on_message(self, head: MessageHead, rest: bytes) -> None:
        """Take an entry; ``rest`` is what follows the command in its frame: headers and payload."""
        ...

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """Learn that the broker closed the consumer: the topic moves, perhaps to ``assigned_url``."""
        ...

    def on_active_changed(self, is_active: bool) -> None:
        """Learn whether this is the one that gets messages, on a Failover subscription."""
        ...

    def on_end_of_topic(self) -> None:
        """Learn that the topic was terminated and that there are no more messages."""
        ...

    def on_topic_migrated(self, url: str | None) -> None:
        """Learn that the topic is in another cluster from now on, at ``url``."""
        ...

    def on_connection_lost(self, error: Exception) -> None:
        """Learn that the connection is gone; the last call from it."""
        ...


class WatcherEvents(Protocol):
    """Whoever watches the topics of a namespace, by a watcher id."""

    def on_topics_changed(self, names: Iterable[str]) -> None:
        """Learn that these topics were created or deleted."""
        ...

    def on_connection_lost(self, error: Exception) -> None:
        """Learn that the connection is gone; the last call from it."""
        ...


class ProducerEvents(Protocol):
    """One producer on a connection, which the broker knows by its producer id."""

    def on_receipt(self, command: pb.CommandSendReceipt) -> None:
        """Learn that a message is stored, and where."""
        ...

    def on_send_error(self, command: pb.CommandSendError) -> None:
        """Learn that a message was refused."""
        ...

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """Learn that the broker closed the producer: the topic moves, perhaps to ``assigned_url``."""
        ...

    def on_connection_lost(self, error: Exception) -> None:
        """Learn that the connection is gone; the last call from it."""
        ...
