"""One registration of a consumer, producer or topic watcher with the broker: an id on a connection, until one ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..._foreign import shown
from ...errors import BrokerError, BrokerRefusedError, ConnectionLostError
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import encode_command
from ._connection import Connection
from ._handlers import Handler

MakeCommand = Callable[[int, int], pb.BaseCommand]
"""Returns a command for the id of a session and a request id."""


class Session(Handler):
    """A session, which ends once: by :meth:`end`, :meth:`drop`, the broker or a lost connection.

    :param handlers: those of its kind on the connection
    :param topic: the topic, or the namespace that is watched; for errors
    :param what: what is registered; for errors
    :param close: returns the command that ends it
    :param on_closed: called with the session and the error if the broker or a lost connection ends it
    """

    def __init__(
        self,
        connection: Connection,
        handlers: dict[int, Handler],
        topic: str,
        *,
        what: str,
        close: MakeCommand,
        on_closed: Callable[[Session, Exception], None],
    ) -> None:
        self.connection = connection
        self.id = next(connection.handler_ids)
        self.is_closed = False
        self.is_lost = False
        """Whether it ended with its connection."""
        self.assigned_url: str | None = None
        """Where the topic moves to, if the broker has named a place when it closed the session."""
        self._handlers = handlers
        self._topic = topic
        self._what = what
        self._close_command = close
        self._on_closed = on_closed
        self._begun_by = 0
        """The id of the request that begins it."""

    async def register(self, make: MakeCommand) -> pb.BaseCommand:
        """Begin the session with the command that ``make`` returns; return the broker's answer.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no answer, or the connection broke
        """
        self._handlers[self.id] = self
        self._begun_by = self.connection.request_id()
        try:
            answer = await self.connection.request(make(self.id, self._begun_by), self._begun_by)
        except BrokerRefusedError:
            self._forget()  # nothing began, so there is nothing to end at the broker
            raise
        except BaseException:
            self._abandon()
            raise
        if self.is_closed:
            raise ConnectionLostError(f"{self._topic}: the broker closed the {self._what} at once")
        return answer

    async def request(self, make: MakeCommand, *, timeout: float | None = None) -> pb.BaseCommand:
        """Send the command that ``make`` returns; return the answer.

        :raises BrokerRefusedError: the broker refused
        :raises BrokerError: no answer, or the connection broke
        """
        request_id = self.connection.request_id()
        return await self.connection.request(make(self.id, request_id), request_id, timeout=timeout)

    async def end(self) -> None:
        """End the session at the broker. Errors are ignored: without a connection the broker has ended it already."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            with contextlib.suppress(BrokerError):
                await self.request(self._close_command)
        finally:
            self._handlers.pop(self.id, None)

    def drop(self) -> None:
        """End the session at the broker without waiting for the answer."""
        if not self.is_closed:
            self._abandon()

    def _abandon(self) -> None:
        self._forget()
        self.send(encode_command(self._close_command(self.id, self.connection.request_id())))

    def _forget(self) -> None:
        self.is_closed = True
        self._handlers.pop(self.id, None)

    def send(self, data: bytes) -> None:
        """Send a command that has no answer; on a lost connection do nothing."""
        try:  # noqa: SIM105 - without a context manager: often
            self.connection.send(data)
        except ConnectionLostError:
            pass

    # --- events of the connection -------------------------------------------------------------------------------------

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        """End the session: the topic is unloaded, or the subscription was moved."""
        self.assigned_url = assigned_url
        where = f", and assigned it to {shown(assigned_url)}" if assigned_url else ""
        self._end(ConnectionLostError(f"{self._topic}: the broker closed the {self._what}{where}"))

    def on_connection_lost(self, error: Exception) -> None:
        """End the session with its connection."""
        self.is_lost = True
        self._end(error)

    def _end(self, error: Exception) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.fail_request(self._begun_by, error)  # it may never be answered
            self._on_closed(self, error)
