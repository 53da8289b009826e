"""The session of a consumer with the broker, and the commands that it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from .._connection._connection import Connection
from .._connection._session import Session
from .._protocol._frames import MessageCommand
from . import _commands as commands
from ._ack_groups import AckGroup, Answered

_FIRST_WITH_RECEIPTS: Final = 17
"""The protocol version from which on the broker answers acknowledgements."""


class ConsumerSession(Session):
    """The session of a consumer.

    :param on_message: takes the entries that arrive
    :param on_closed: called with the session and the error if the broker or a lost connection ends it
    :param on_active_changed: called with the session when this consumer of a Failover subscription becomes active or
        inactive
    :param on_topic_migrated: called with the URL when the topic moves to another cluster
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        on_message: Callable[[MessageCommand, bytes], None],
        on_closed: Callable[[Session, Exception], None],
        on_active_changed: Callable[[ConsumerSession, bool], None],
        on_topic_migrated: Callable[[str | None], None],
    ) -> None:
        super().__init__(
            connection, connection.consumers, topic, what="consumer", close=commands.close, on_closed=on_closed
        )
        self.is_active: bool | None = None
        """Whether this consumer of a Failover subscription gets the messages; None: the broker did not say."""
        self.has_ended = False
        """Whether the topic was terminated and all its messages were delivered."""
        self.reports_mark_delete = True
        """Whether the mark-delete position comes with the id of the last message, as far as known."""
        self.on_message = on_message  # called directly: the hot path
        self._on_active_changed = on_active_changed
        self.on_topic_migrated = on_topic_migrated
        self._has_receipts = connection.connected.protocol_version >= _FIRST_WITH_RECEIPTS

    # --- commands; on a lost connection those without an answer do nothing --------------------------------------------

    def permit(self, messages: int) -> None:
        """Let the broker send this many more messages."""
        if not self.is_closed:  # nor while it is being closed
            self.send(commands.flow(self.id, messages))

    def redeliver(self, positions: Sequence[tuple[int, int]]) -> None:
        """Request the redelivery of these entries."""
        self.send(commands.redeliver(self.id, positions))

    def rewind(self, epoch: int) -> None:
        """Request all unacknowledged messages again."""
        self.send(commands.rewind(self.id, epoch))

    def send_acks(self, group: AckGroup, answered: Answered) -> None:
        """Send acknowledgements; ``answered`` is called with the receipt, or soon if this broker gives none.

        :raises ConnectionLostError: the connection is closed
        """
        connection = self.connection
        if not self._has_receipts:
            connection.send(commands.acknowledge(self.id, group, None))
            asyncio.get_running_loop().call_soon(answered, None, None)
            return
        request_id = connection.begin_request("ACK", answered)
        try:
            connection.send(commands.acknowledge(self.id, group, request_id))
        except BaseException:
            connection.discard_request(request_id)
            raise

    # --- events of the connection -------------------------------------------------------------------------------------

    def on_active_changed(self, is_active: bool) -> None:
        """Note whether this consumer is active, and pass the event to the owner."""
        self.is_active = is_active
        self._on_active_changed(self, is_active)

    def on_end_of_topic(self) -> None:
        """Note that the topic was terminated and all its messages were delivered."""
        self.has_ended = True
