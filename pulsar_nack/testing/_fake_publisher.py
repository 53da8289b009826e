"""A publisher of dead letters, and of messages for a retry topic, without a broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from .._check import check_integer
from ..errors import BrokerError
from ..ids import MessageId
from ._call_faults import NO_FAULT, Fault, seconds


@dataclass(frozen=True, slots=True)
class FakeLetter:
    """A published message; the fields are the arguments of :meth:`pulsar_nack.consumer.Publisher.publish`."""

    topic: str
    data: bytes | None
    properties: Mapping[str, str]
    key: str | bytes | None
    ordering_key: str | None
    event_time_ms: int
    deliver_at_ms: int | None = None


class FakePublisher:
    """A :class:`~pulsar_nack.consumer.Publisher` that keeps what it publishes.

    Pass it as ``DeadLetterPolicy(3, publisher=FakePublisher())``, or to a ``RetryTopicPolicy``.

    :param latency: seconds that publishing takes
    """

    def __init__(self, latency: float = 0.0) -> None:
        self.letters: list[FakeLetter] = []
        """The published messages, in order."""
        self.attempts = 0
        """How often publishing was tried."""
        self._latency = seconds("latency", latency)
        self._faults: deque[Fault] = deque()
        self._may_go = asyncio.Event()
        self._may_go.set()

    def fail_next(self, times: int = 1, *, error: BaseException | None = None, carried_out: bool = False) -> None:
        """Let the next calls raise.

        :param error: by default a :class:`~pulsar_nack.BrokerError`
        :param carried_out: the letter is published, and only the answer is lost
        """
        fault = Fault(error=error or BrokerError("publish failed, as the test asked"), is_carried_out=carried_out)
        self._faults.extend([fault] * check_integer("times", times, 1))

    def hold(self) -> None:
        """Let no call return until :meth:`release`."""
        self._may_go.clear()

    def release(self) -> None:
        """Let waiting calls continue."""
        self._may_go.set()

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message."""
        self.attempts += 1
        if self._latency:
            await asyncio.sleep(self._latency)
        await self._may_go.wait()
        fault = self._faults.popleft() if self._faults else NO_FAULT
        if fault.error is None or fault.is_carried_out:
            about = dict(properties), key, ordering_key, event_time_ms, deliver_at_ms
            self.letters.append(FakeLetter(topic, data, *about))
        if fault.error is not None:
            raise fault.error
        return MessageId(0, len(self.letters) - 1)
