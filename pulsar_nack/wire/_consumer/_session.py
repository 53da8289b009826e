"""One registration of a consumer with the broker: a consumer id on a connection, until one of them ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError
from ...ids import MessageId
from .._connection._connection import Connection
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import encode_command
from .._protocol._message_commands import MessageCommand
from . import _commands as commands
from ._ack_groups import AckGroup
from ._subscribe_options import SubscribeOptions

_FIRST_WITH_RECEIPTS: Final = 17
"""The protocol version from which on the broker answers acknowledgements."""


class SessionOwner(Protocol):
    """Gets the events of sessions. Each event names its session, which may not be the present one."""

    @property
    def on_message(self) -> Callable[[MessageCommand, bytes], None]:
        """Return what takes the entries that arrive."""
        ...

    def on_session_closed(self, session: ConsumerSession, error: Exception, *, is_lost: bool) -> None:
        """Handle that the broker closed the session, or that the connection was lost."""
        ...

    def on_active_changed(self, session: ConsumerSession, is_active: bool) -> None:
        """Handle that this consumer of a Failover subscription became active or inactive."""
        ...

    def on_topic_migrated(self, url: str | None) -> None:
        """Handle that the topic moved to another cluster."""
        ...


class ConsumerSession:
    """A session, made by :meth:`begin`; ended once, by :meth:`end`, :meth:`drop`, the broker or a lost connection."""

    def __init__(self, connection: Connection, owner: SessionOwner, topic: str) -> None:
        self.connection = connection
        self.consumer_id = connection.consumers.next_id()
        self.is_closed = False
        self.is_active: bool | None = None
        """Whether this consumer of a Failover subscription gets the messages; None: the broker did not say."""
        self.has_ended = False
        """Whether the topic was terminated and all its messages were delivered."""
        self.reports_mark_delete = True
        """Whether the mark-delete position comes with the id of the last message, as far as known."""
        self.on_message = owner.on_message  # called directly: the hot path
        self._owner = owner
        self._topic = topic
        self._has_receipts = connection.connected.protocol_version >= _FIRST_WITH_RECEIPTS

    @classmethod
    async def begin(
        cls,
        connection: Connection,
        owner: SessionOwner,
        topic: str,
        options: SubscribeOptions,
        *,
        start: MessageId | None,
        epoch: int,
    ) -> ConsumerSession:
        """Subscribe.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no answer, or the connection broke
        """
        self = cls(connection, owner, topic)
        connection.consumers.add(self.consumer_id, self)
        request_id = connection.request_id()
        try:
            await connection.request(
                commands.subscribe(topic, self.consumer_id, request_id, options, start=start, epoch=epoch), request_id
            )
        except BaseException:
            self._abandon()
            raise
        if self.is_closed:
            raise ConnectionLostError(f"{topic}: the broker closed the consumer at once")
        return self

    # --- commands; on a lost connection those without an answer do nothing --------------------------------------------

    def permit(self, messages: int) -> None:
        """Let the broker send this many more messages."""
        if not self.is_closed:  # nor while it is being closed
            with contextlib.suppress(ConnectionLostError):
                self.connection.send(commands.flow(self.consumer_id, messages))

    def redeliver(self, positions: Sequence[tuple[int, int]]) -> None:
        """Request the redelivery of these entries."""
        with contextlib.suppress(ConnectionLostError):
            self.connection.send(commands.redeliver(self.consumer_id, positions))

    def rewind(self, epoch: int) -> None:
        """Request all unacknowledged messages again."""
        self._send(commands.rewind(self.consumer_id, epoch))

    def send_acks(self, group: AckGroup) -> asyncio.Future[pb.BaseCommand] | None:
        """Send acknowledgements; return the future of the receipt, None if this broker gives none.

        :raises ConnectionLostError: the connection is closed
        """
        if not self._has_receipts:
            self.connection.send(commands.acknowledge(self.consumer_id, group, None))
            return None
        request_id, receipt = self.connection.begin_request("ACK")
        try:
            self.connection.send(commands.acknowledge(self.consumer_id, group, request_id))
        except BaseException:
            receipt.cancel()
            raise
        return receipt

    async def request(
        self, make: Callable[[int, int], pb.BaseCommand], *, timeout: float | None = None
    ) -> pb.BaseCommand:
        """Send the command that ``make`` returns for this consumer id and a request id; return the answer.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no answer, or the connection broke
        """
        request_id = self.connection.request_id()
        return await self.connection.request(make(self.consumer_id, request_id), request_id, timeout=timeout)

    async def end(self, timeout: float | None = None) -> None:
        """Close the consumer at the broker, which then redelivers its unacknowledged messages to others."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            with contextlib.suppress(BrokerError):  # without a connection the broker has closed it already
                await self.request(commands.close, timeout=timeout)
        finally:
            self.connection.consumers.remove(self.consumer_id)

    def drop(self) -> None:
        """Close the consumer at the broker without waiting for the answer."""
        if not self.is_closed:
            self._abandon()

    def _abandon(self) -> None:
        self.is_closed = True
        self.connection.consumers.remove(self.consumer_id)
        self._send(encode_command(commands.close(self.consumer_id, self.connection.request_id())))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionLostError):
            self.connection.send(data)

    # --- events of the connection -------------------------------------------------------------------------------------

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """End the session: the topic is unloaded, or the subscription was moved."""
        where = f", and assigned it to {shown(assigned_url)}" if assigned_url else ""
        self._on_closed(ConnectionLostError(f"{self._topic}: the broker closed the consumer{where}"), is_lost=False)

    def on_connection_lost(self, error: Exception) -> None:
        """End the session with its connection."""
        self._on_closed(error, is_lost=True)

    def _on_closed(self, error: Exception, *, is_lost: bool) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._owner.on_session_closed(self, error, is_lost=is_lost)

    def on_active_changed(self, is_active: bool) -> None:
        """Note whether this consumer is active, and pass the event to the owner."""
        self.is_active = is_active
        self._owner.on_active_changed(self, is_active)

    def on_end_of_topic(self) -> None:
        """Note that the topic was terminated and all its messages were delivered."""
        self.has_ended = True

    def on_topic_migrated(self, url: str | None) -> None:
        """Pass the event to the owner."""
        self._owner.on_topic_migrated(url)
