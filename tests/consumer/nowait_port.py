"""A fake port whose calls for each message need no task of the consumer's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from pulsar_nack import ClosedError, Delivery, MessageId
from pulsar_nack.consumer import AcksDone
from pulsar_nack.testing import FakePort, FakeTopic
from pulsar_nack.testing._call_faults import NO_FAULT

T = TypeVar("T")


class NowaitPort(FakePort):
    """Delivers messages without waiting, and acknowledges in a task."""

    def __init__(self, topic: FakeTopic | None = None, **options: Any) -> None:
        super().__init__(topic, **options)
        self._acknowledging: set[asyncio.Task[None]] = set()

    def receive_nowait(self) -> Delivery | None:
        """Return the next message, if it is there; a receive that should fail, or be late, has to wait."""
        self._check_open()
        if self._coming_faults["receive"] or not self._inbox._here:
            return None
        delivery = self._inbox._here.popleft()
        self._end("receive", (delivery.id,), NO_FAULT)
        self._subscription._dispatch()
        return delivery

    def acknowledge_soon(self, message_id: MessageId, token: T, done: AcksDone[T]) -> None:
        """Acknowledge as ``acknowledge`` does."""
        self._check_open()

        async def acknowledge() -> None:
            error: Exception | None = ClosedError("the port")
            try:
                await self.acknowledge([message_id])
                error = None
            except Exception as failure:  # noqa: BLE001 - handed to the call that waits
                error = failure
            finally:
                done([token], error)

        task = asyncio.create_task(acknowledge())
        self._acknowledging.add(task)
        task.add_done_callback(self._acknowledging.discard)

    def redeliver_nowait(self, ids: Sequence[MessageId]) -> None:
        """Request due messages, as ``redeliver`` does; a fault that waits does not."""
        self._check_open()
        coming = self._coming_faults["redeliver"]
        ids, fault = tuple(ids), coming.popleft() if coming else NO_FAULT
        if not fault.is_lost and (fault.error is None or fault.is_carried_out):
            self._carry_out_redelivery(ids)
        self._end("redeliver", ids, fault)

    async def close(self) -> None:
        """Close; open acknowledgements end with it."""
        for task in self._acknowledging:
            task.cancel()
        await asyncio.gather(*self._acknowledging, return_exceptions=True)
        await super().close()
