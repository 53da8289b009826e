"""What is left of a topic that was deleted: nothing, so that whatever is to be done with its messages is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ...consumer import AcksDone, Delivery
from ...errors import BrokerError
from ...ids import MessageId
from ._delivery import Item
from ._inbox import Queued
from ._unread import Unread

T = TypeVar("T")
_LOG = logging.getLogger("pulsar_nack.wire")


class Departed:
    """Stands for the consumer of a topic or partition that was deleted.

    Acknowledgements succeed, and what is asked for again is forgotten: its consumer learns that as it did when the
    topic left. The first such call is logged.

    :param gone: called with this when messages are asked for that will not come
    """

    is_connected = False
    is_active: bool | None = None
    has_ended = True
    missing = None
    epoch = 0

    def __init__(self, topic: str, partition: int, gone: Callable[[Departed], None]) -> None:
        self.topic = topic
        self.partition = partition
        self._gone = gone
        self._is_told = False

    async def open(self, ends_at: float | None = None) -> None:  # noqa: ARG002
        """Fail.

        :raises BrokerError: always
        """
        raise self._error()

    def check_open(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

    def topic_deleted(self) -> None:
        """Do nothing."""

    async def unsubscribe(self) -> None:
        """Do nothing."""

    def opened(self, item: Item) -> Delivery:  # noqa: ARG002
        """Fail: a deleted topic has no messages to deliver."""
        raise self._error()

    taken = opened

    def note_read(self, unread: Unread, messages: int, size: int) -> None:
        """Do nothing."""

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:  # noqa: ARG002
        """Have it done."""
        self._tell()
        asyncio.get_running_loop().call_soon(done, [token], None)

    async def acknowledge(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Have it done."""
        self._tell()

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:  # noqa: ARG002
        """Have it done."""
        self._tell()

    def redeliver_nowait(self, ids: list[MessageId]) -> None:  # noqa: ARG002
        """Have it forgotten that anything is awaited."""
        self._tell()
        self._gone(self)

    def want(self) -> None:
        """Do nothing."""

    def pause(self, queued: Sequence[Queued], *, is_idle: bool) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def give_back(self, ids: Iterable[MessageId]) -> None:
        """Do nothing."""

    async def seek(self, position: MessageId | int) -> None:  # noqa: ARG002
        """Fail.

        :raises BrokerError: always
        """
        raise self._error()

    async def held_back(self) -> str | None:
        """Return nothing."""

    async def last_message_id(self) -> MessageId:
        """Fail.

        :raises BrokerError: always
        """
        raise self._error()

    async def mark_delete_position(self) -> None:
        """Tell nothing."""

    def _error(self) -> BrokerError:
        return BrokerError(f"{self.topic} was deleted")

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            _LOG.info("%s was deleted: acknowledgements and nacks of its messages have nothing to do", self.topic)
