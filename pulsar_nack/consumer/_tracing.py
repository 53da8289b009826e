"""The events that a consumer writes to a trace: one for each thing that happens to a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from ..clock import Clock
from ..ids import MessageId
from ._message_state import MessageState, State

DEAD_LETTER: Final = "dead-letter"
"""The reason of the acknowledgement of a dead letter."""
RETRY_TOPIC: Final = "retry-topic"
"""The reason of the acknowledgement of a message that was published to the retry topic."""
_REASONS: Final = {State.DEAD_LETTERING: DEAD_LETTER, State.RETRYING: RETRY_TOPIC}


class TraceNote(Protocol):
    """Notes one event; called on the loop, never blocks, never raises."""

    def __call__(
        self,
        event: str,
        message_id: MessageId,
        attempt: int | None = None,
        *,
        delay_ms: int | None = None,
        due_in_ms: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Note one event.

        :param event: nack, redeliver, arrive, ack, cancel, hold or error
        :param attempt: how often the message was delivered before
        :param due_in_ms: its deadline, from now; negative: past
        """
        ...


class ConsumerTrace(Protocol):
    """Where consumers note what happens; a :class:`~pulsar_nack.observe.TraceWriter` is one."""

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> TraceNote:
        """Return the callable that one consumer notes its events with."""
        ...


class MessageTrace:
    """The one hook for the events of a consumer's messages; without a trace its methods do nothing.

    :param note: takes the events; None: they are dropped
    """

    def __init__(self, note: TraceNote | None, clock: Clock) -> None:
        self.is_on = note is not None
        self._note = note
        self._clock = clock

    def arrive(self, record: MessageState, due_at_ms: int | None) -> None:
        """Note a delivery to the user; ``due_at_ms``: the deadline, if a redelivery was awaited."""
        if self._note is not None:
            self._note("arrive", record.id, record.redelivery_count, due_in_ms=self._due_in(due_at_ms))

    def nack(self, record: MessageState, delay_ms: int | None, reason: str | None) -> None:
        """Note a negative acknowledgement; ``delay_ms`` is None for a dead letter."""
        if self._note is not None:
            is_held = delay_ms is not None and record.is_held
            due_in_ms = max(record.due_at_ms - self._clock.now_ms(), 0) if is_held else None
            count = record.redelivery_count
            self._note("nack", record.id, count, delay_ms=delay_ms, due_in_ms=due_in_ms, reason=reason or None)

    def hold(self, message_id: MessageId, count: int, reason: str) -> None:
        """Note why a message, or its nack, has to wait."""
        if self._note is not None:
            self._note("hold", message_id, count, reason=reason)

    def redeliver(self, record: MessageState, reason: str | None = None) -> None:
        """Note that a message is due and redelivered, from memory or by the broker."""
        if self._note is not None:
            count, due_in_ms = record.redelivery_count, self._due_in(record.due_at_ms)
            self._note("redeliver", record.id, count, due_in_ms=due_in_ms, reason=reason)

    def request_again(self, counts: Iterable[tuple[MessageId, int | None]], reason: str) -> None:
        """Note repeated requests; without a deadline, for another consumer may have nacked since."""
        if self._note is not None:
            for message_id, count in counts:
                self._note("redeliver", message_id, count, reason=reason)

    def cancel(self, message_id: MessageId, count: int | None, reason: str) -> None:
        """Note that a hold, or a message that waited to be redelivered, is dropped."""
        if self._note is not None:
            self._note("cancel", message_id, count, reason=reason)

    def cancel_all(self, records: Iterable[MessageState], reason: str) -> None:
        """Note that messages that waited are dropped."""
        for record in records:
            self.cancel(record.id, record.redelivery_count, reason)

    def settled(self, records: Sequence[MessageState]) -> None:
        """Note confirmed acknowledgements, and the holds that they ended."""
        if self._note is not None:
            for record in records:
                if record.before_ack is State.HELD:
                    self._note("cancel", record.id, record.redelivery_count, reason="ack")
                reason = _REASONS.get(record.before_ack or State.DELIVERED, "ack")
                self._note("ack", record.id, record.redelivery_count, reason=reason)

    def settled_through(self, message_id: MessageId, *, was_held: bool) -> None:
        """Note a message that a cumulative acknowledgement covers."""
        if self._note is not None:
            if was_held:
                self._note("cancel", message_id, reason="ack")
            self._note("ack", message_id, reason="ack")

    def error(self, message_id: MessageId, count: int | None, what: str, error: BaseException) -> None:
        """Note that a request for a message failed."""
        if self._note is not None:
            self._note("error", message_id, count, reason=f"{what}: {error!r}")

    def _due_in(self, due_at_ms: int | None) -> int | None:
        return None if due_at_ms is None else due_at_ms - self._clock.now_ms()


def names_of(port: Any) -> tuple[str, str, str]:
    """Return topic, subscription and consumer name, each empty where the port does not name it."""
    names = getattr(port, "names", ("", "", ""))
    return (str(names[0]), str(names[1]), str(names[2]))
