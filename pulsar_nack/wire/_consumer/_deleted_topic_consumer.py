"""Settles the messages of a deleted topic: there is nothing left to acknowledge or to redeliver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from ...consumer import AcksDone
from ...errors import BrokerError
from ...ids import MessageId

T = TypeVar("T")
_LOG: Final = logging.getLogger("pulsar_nack.wire")


class DeletedTopicConsumer:
    """Replaces the consumer of a deleted topic or partition for calls that settle its messages.

    Acknowledgements succeed, and redelivery requests are dropped and reported. The first call is logged.

    :param on_request: called with topic and partition when messages are requested that will not come
    """

    def __init__(self, topic: str, partition: int, on_request: Callable[[str, int], None]) -> None:
        self._topic = topic
        self._partition = partition
        self._on_request = on_request
        self._is_logged = False

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:  # noqa: ARG002
        """Report that the acknowledgement succeeded."""
        self._log()
        asyncio.get_running_loop().call_soon(done, [token], None)

    async def acknowledge(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Return, as for acknowledged messages."""
        self._log()

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:  # noqa: ARG002
        """Return, as for acknowledged messages."""
        self._log()

    def redeliver_nowait(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Report that the messages will not come."""
        self._log()
        self._on_request(self._topic, self._partition)

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Do nothing: there is no broker to return the messages to."""

    async def seek(self, position: MessageId | int) -> None:  # noqa: ARG002
        """Fail.

        :raises BrokerError: always
        """
        raise BrokerError(f"{self._topic} was deleted")

    def _log(self) -> None:
        if not self._is_logged:
            self._is_logged = True
            _LOG.info("%s was deleted: acknowledgements and nacks of its messages have nothing to do", self._topic)
