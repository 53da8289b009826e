"""What a dispatcher needs of a delayed delivery tracker."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..ids import Position


@runtime_checkable
class DelayedDeliveryTracker(Protocol):
    """Holds back the messages of one subscription until they may be dispatched; Pulsar's contract.

    Everything but :meth:`clear` and :meth:`aclose` is plain and does not wait. After :meth:`aclose` every call raises
    :class:`~pulsar_nack.ClosedError`, but for the two properties and :meth:`aclose` itself.
    """

    @property
    def number_of_delayed_messages(self) -> int:
        """Return how many messages are held back. O(1)."""
        ...

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes are held in memory. O(1)."""
        ...

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed).

        Return False when it has to be dispatched now instead; then it is not held.
        """
        ...

    def has_message_available(self) -> bool:
        """Return whether something may be dispatched now."""
        ...

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Take out what may be dispatched now, at most ``max_messages``, earliest first."""
        ...

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back."""
        ...

    def should_pause_all_deliveries(self) -> bool:
        """Return whether reading on would only bring more messages that have to wait as long."""
        ...

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick (ms) for what is added from now on."""
        ...

    async def clear(self) -> None:
        """Drop everything that is held."""
        ...

    async def aclose(self) -> None:
        """Stop: no wake-up comes any more. Idempotent."""
        ...
