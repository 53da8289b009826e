"""One consumer as the broker knows it: a consumer id on a connection, from subscribing until either of them ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError
from ...ids import MessageId
from .. import _pulsar_pb2 as pb
from .._connection._connection import Connection
from .._protocol._frames import encode_command
from .._protocol._heads import MessageHead
from . import _commands as commands
from ._ack_groups import AckGroup
from ._subscribe_options import SubscribeOptions

_FIRST_WITH_RECEIPTS: Final = 17
"""The version of the protocol from which on acknowledgements are answered."""


class SessionOwner(Protocol):
    """Whoever is told what happens to a session; each call names the session, which may be over already."""

    def on_message(self, head: MessageHead, rest: bytes) -> None:
        """Take an entry."""
        ...

    def on_session_over(self, session: Session, error: Exception, *, is_lost: bool) -> None:
        """Learn that the broker ended it, or that the connection was lost."""
        ...

    def on_active_changed(self, session: Session, is_active: bool) -> None:
        """Learn whether this is the consumer that gets the messages."""
        ...

    def on_end_of_topic(self) -> None:
        """Learn that there are no more messages, and never will be."""
        ...

    def on_topic_migrated(self, url: str | None) -> None:
        """Learn that the topic is in another cluster."""
        ...


class Session:
    """Made by :meth:`begin`; ends once, by :meth:`end`, by the broker, or with the connection."""

    def __init__(self, connection: Connection, owner: SessionOwner, topic: str) -> None:
        self.connection = connection
        self.consumer_id = connection.consumer_id()
        self.is_over = False
        self.on_message = owner.on_message  # without a step between: the hot path
        self._owner = owner
        self._topic = topic
        self._has_receipts = connection.protocol_version >= _FIRST_WITH_RECEIPTS

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
    ) -> Session:
        """Subscribe.

        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: no answer, or the connection broke
        """
        self = cls(connection, owner, topic)
        connection.add_consumer(self.consumer_id, self)
        request_id = connection.request_id()
        try:
            await connection.request(
                commands.subscribe(topic, self.consumer_id, request_id, options, start=start, epoch=epoch), request_id
            )
        except BaseException:
            self._abandon()
            raise
        if self.is_over:
            raise ConnectionLostError(f"{topic}: the broker closed the consumer at once")
        return self

    # --- what the broker is told ------------------------------------------------------------------------------------

    def permit(self, messages: int) -> None:
        """Let the broker send so many more messages; likewise below, on a connection that is lost nothing happens."""
        if not self.is_over:  # nor while it is being closed
            self._send(commands.flow(self.consumer_id, messages))

    def redeliver(self, positions: Sequence[tuple[int, int]]) -> None:
        """Have these entries sent again."""
        self._send(commands.redeliver(self.consumer_id, positions))

    def rewind(self, epoch: int) -> None:
        """Have all that is unacknowledged sent again."""
        self._send(commands.rewind(self.consumer_id, epoch))

    def send_acks(self, group: AckGroup) -> asyncio.Future[pb.BaseCommand] | None:
        """Send acknowledgements; return what will hold the receipt, None: this broker gives none."""
        if not self._has_receipts:
            self.connection.send(commands.acknowledge(self.consumer_id, group, None))
            return None
        request_id = self.connection.request_id()
        receipt = self.connection.expect(request_id, "ACK")
        try:
            self.connection.send(commands.acknowledge(self.consumer_id, group, request_id))
        except BaseException:
            receipt.cancel()
            raise
        return receipt

    async def ask(self, make: Callable[[int, int], pb.BaseCommand], *, timeout: float | None = None) -> pb.BaseCommand:
        """Send the command that ``make`` returns for this consumer's id and a request id, and return the answer.

        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: no answer, or the connection broke
        """
        request_id = self.connection.request_id()
        return await self.connection.request(make(self.consumer_id, request_id), request_id, timeout=timeout)

    async def end(self, timeout: float | None = None) -> None:
        """Close the consumer at the broker, which gives out what is unacknowledged; a broker that is gone did so."""
        if self.is_over:
            return
        self.is_over = True
        try:
            with contextlib.suppress(BrokerError):
                await self.ask(commands.close, timeout=timeout)
        finally:
            self.connection.remove_consumer(self.consumer_id)

    def drop(self) -> None:
        """Close the consumer at the broker without waiting."""
        if not self.is_over:
            self._abandon()

    def _abandon(self) -> None:
        self.is_over = True
        self.connection.remove_consumer(self.consumer_id)
        self._send(encode_command(commands.close(self.consumer_id, self.connection.request_id())))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionLostError):
            self.connection.send(data)

    # --- what the connection tells ----------------------------------------------------------------------------------

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """End: the topic moves, or the subscription was moved."""
        where = f", and assigned it to {shown(assigned_url)}" if assigned_url else ""
        self._over(ConnectionLostError(f"{self._topic}: the broker closed the consumer{where}"), is_lost=False)

    def on_connection_lost(self, error: Exception) -> None:
        """End with the connection."""
        self._over(error, is_lost=True)

    def _over(self, error: Exception, *, is_lost: bool) -> None:
        if not self.is_over:
            self.is_over = True
            self._owner.on_session_over(self, error, is_lost=is_lost)

    def on_active_changed(self, is_active: bool) -> None:
        """Hand it on."""
        self._owner.on_active_changed(self, is_active)

    def on_end_of_topic(self) -> None:
        """Hand it on."""
        self._owner.on_end_of_topic()

    def on_topic_migrated(self, url: str | None) -> None:
        """Hand it on."""
        self._owner.on_topic_migrated(url)
