"""What a consumer tells a trace: who it is, once, and then what happens to each message."""

from __future__ import annotations

from typing import Any, Protocol

from ..ids import MessageId


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
        """Note it.

        :param event: nack, redeliver, arrive, ack, cancel, hold or error
        :param attempt: how often the message was delivered before
        :param due_in_ms: its deadline, from now; negative: past
        """
        ...


class ConsumerTrace(Protocol):
    """Where consumers note what happens; a :class:`~pulsar_nack.observe.TraceWriter` is one."""

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> TraceNote:
        """Return what one consumer calls."""
        ...


def names_of(port: Any) -> tuple[str, str, str]:
    """Return topic, subscription and consumer name, each empty where the port does not tell."""
    names = getattr(port, "names", ("", "", ""))
    return (str(names[0]), str(names[1]), str(names[2]))
