"""What a subscription asks of the consumers that it serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..consumer import Delivery, SessionEvent
from ..ids import Position


class Receiver(Protocol):
    """The consumer's side of a subscription."""

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Take the messages of an entry."""

    def tell(self, event: SessionEvent) -> None:
        """Let the consumer know that the subscription was moved, or that another one is active now."""

    def fail(self, error: BaseException) -> None:
        """Let whoever receives know that nothing comes any more."""

    def give_back(self, positions: Iterable[Position]) -> int:
        """Drop what was taken of these entries and not received yet; return how many messages that is."""
