"""One producer as the broker knows it: a producer id on a connection, from its making until either of them ends."""

from __future__ import annotations

import contextlib
from typing import Protocol

from ...errors import BrokerError, ConnectionLostError
from .. import _pulsar_pb2 as pb
from .._connection._connection import Connection
from .._protocol._frames import encode_command
from ._operations import Operation
from ._options import ProducerOptions


class SessionOwner(Protocol):
    """Whoever is told what happens to a session; each call names the session, which may be over already."""

    def on_receipt(self, session: ProducerSession, receipt: pb.CommandSendReceipt) -> None:
        """Learn that something is stored."""
        ...

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """Learn that something was refused."""
        ...

    def on_session_over(self, session: ProducerSession, error: Exception, assigned_url: str | None) -> None:
        """Learn that the broker or the connection ended it; the topic may be at another broker now."""
        ...


class ProducerSession:
    """Made by :meth:`begin`; ends once, by :meth:`end`, by the broker, or with the connection."""

    def __init__(self, connection: Connection, owner: SessionOwner, topic: str) -> None:
        self.connection = connection
        self.producer_id = connection.producer_id()
        self.is_over = False
        self.answer = pb.CommandProducerSuccess()
        self._owner = owner
        self._topic = topic

    @classmethod
    async def begin(
        cls,
        connection: Connection,
        owner: SessionOwner,
        topic: str,
        options: ProducerOptions,
        *,
        name: str | None,
        epoch: int,
        topic_epoch: int | None,
    ) -> ProducerSession:
        """Make the producer; waits for its turn where it wants to be the only one.

        :param name: what the broker called it before; None: not known yet
        :param epoch: how often it was made before
        :param topic_epoch: what the broker told of it before, where it is the only one
        :raises BrokerRefusedError: the broker said no
        :raises BrokerError: no answer, or the connection broke
        """
        self = cls(connection, owner, topic)
        connection.add_producer(self.producer_id, self)
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        what = command.producer
        what.topic = topic
        what.producer_id = self.producer_id
        what.request_id = request_id = connection.request_id()
        what.epoch = epoch
        what.user_provided_producer_name = options.name is not None
        what.producer_access_mode = options.access_mode_type
        if name is not None:
            what.producer_name = name
        if topic_epoch is not None:
            what.topic_epoch = topic_epoch
        if options.initial_subscription is not None:
            what.initial_subscription_name = options.initial_subscription
        if options.schema_info is not None:
            options.schema_info.fill(what.schema)
        for key, value in options.properties.items():
            what.metadata.add(key=key, value=value)
        try:
            answer = await connection.request(command, request_id)
        except BaseException:
            self.drop()
            raise
        self.answer.CopyFrom(answer.producer_success)
        if self.is_over:
            raise ConnectionLostError(f"{topic}: the broker closed the producer at once")
        return self

    def send(self, operation: Operation) -> None:
        """Send something; nothing happens on a connection that is lost."""
        with contextlib.suppress(ConnectionLostError):
            self.connection.send(operation.frame(self.producer_id))

    async def end(self) -> None:
        """Close the producer at the broker; one that is gone did so."""
        if self.is_over:
            return
        self.is_over = True
        connection = self.connection
        request_id = connection.request_id()
        try:
            with contextlib.suppress(BrokerError):
                await connection.request(self._closing(request_id), request_id)
        finally:
            connection.remove_producer(self.producer_id)

    def drop(self) -> None:
        """Close the producer at the broker without waiting."""
        if self.is_over:
            return
        self.is_over = True
        self.connection.remove_producer(self.producer_id)
        with contextlib.suppress(ConnectionLostError):
            self.connection.send(encode_command(self._closing(self.connection.request_id())))

    def _closing(self, request_id: int) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self.producer_id
        command.close_producer.request_id = request_id
        return command

    # --- what the connection tells ----------------------------------------------------------------------------------

    def on_receipt(self, command: pb.CommandSendReceipt) -> None:
        """Hand it on."""
        self._owner.on_receipt(self, command)

    def on_send_error(self, command: pb.CommandSendError) -> None:
        """Hand it on."""
        self._owner.on_send_error(self, command)

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """End: the topic moves."""
        self._over(ConnectionLostError(f"{self._topic}: the broker closed the producer"), assigned_url)

    def on_connection_lost(self, error: Exception) -> None:
        """End with the connection."""
        self._over(error, None)

    def _over(self, error: Exception, assigned_url: str | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._owner.on_session_over(self, error, assigned_url)
