"""The verbs for a consumer's subscription as a whole; the user's :class:`Consumer` delegates to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from .._delays import seek_position
from .._lifetime import ClosesOnExit
from ..errors import NotDurableError
from ..ids import MessageId, _is_message_id
from ._batches import is_same_topic
from ._engine import ConsumerEngine
from ._message_table import UNDELIVERED
from ._port import SupportsSeek, SupportsUnsubscribe

_log = logging.getLogger("pulsar_nack.consumer")


class SubscriptionVerbs:
    """What one consumer does with its subscription; each verb raises as the :class:`Consumer`'s own."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._settler = engine.settler
        self._port = engine.port
        self._unsubscribing: asyncio.Task[None] | None = None

    async def seek(self, position: MessageId | int | datetime) -> None:
        """Move the subscription, and forget what was known about its messages."""
        settler, table = self._settler, self._engine.table
        settler.check_open()
        port = self._port
        if not isinstance(port, SupportsSeek):
            raise NotImplementedError(f"{type(port).__name__} cannot seek")
        position = seek_position(position)
        cleared = None if settler.durable is None else settler.durable.cleared()  # before anything else is noted
        receiver = self._engine.receiver
        waiting: Sequence[Any] = [*table.select(UNDELIVERED), *receiver.inbox.ready]
        left = {each.id: each.redelivery_count for each in waiting}
        receiver.clear()
        settler.clear("seek", "forgotten by a seek")
        try:
            if cleared is not None and (error := await cleared) is not None:
                what = "the subscription was not moved, because that could not be made durable"
                raise NotDurableError(what, error) from error
            await port.seek(position)
            left = {each: count for each, count in left.items() if not _is_moved(each, position)}
            table.acked.clear()
        finally:
            self._engine.queue.ask_for(left)
            self._engine.limiter.changed()

    async def unsubscribe(self, consumer: ClosesOnExit) -> None:
        """Delete the subscription, then close the consumer; goes on when the call is cancelled."""
        self._settler.check_open()
        port = self._port
        if not isinstance(port, SupportsUnsubscribe):
            raise NotImplementedError(f"{type(port).__name__} cannot unsubscribe")
        if self._unsubscribing is None:
            unsubscribing = self._unsubscribe(port, consumer)
            task = asyncio.create_task(unsubscribing, name="pulsar_nack.Consumer unsubscribing")
            self._unsubscribing = task
            task.add_done_callback(partial(self._on_unsubscribed, consumer))
        await asyncio.shield(self._unsubscribing)

    def _on_unsubscribed(self, consumer: ClosesOnExit, task: asyncio.Task[None]) -> None:
        self._unsubscribing = None  # where it failed it can be tried again
        if not task.cancelled() and task.exception() is not None:
            _log.info("%r could not be unsubscribed: %r", consumer, task.exception())

    async def _unsubscribe(self, port: SupportsUnsubscribe, consumer: ClosesOnExit) -> None:
        await port.unsubscribe()
        durable = self._settler.durable
        cleared = None if durable is None else durable.cleared()
        self._settler.clear("unsubscribe", "gone with its subscription")
        error = None if cleared is None else await cleared
        await consumer.aclose()
        if error is not None:
            raise NotDurableError("the subscription is gone, but its durable state is still there", error) from error


def _is_moved(message_id: MessageId, position: MessageId | int) -> bool:
    """Return whether a seek moves a message's partition: a time, and the ends of a topic, move everything."""
    return not _is_message_id(position) or is_same_topic(message_id, position)
