"""The interface between a dispatcher and a delayed delivery tracker."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..ids import Position


@runtime_checkable
class DelayedDeliveryTracker(Protocol):
    """Holds back the messages of one subscription until they may be dispatched. The rules are Pulsar's.

    Only :meth:`clear` and :meth:`aclose` wait. After :meth:`aclose`, every call raises
    :class:`~pulsar_nack.ClosedError`, except the two properties and :meth:`aclose` itself.
    """

    @property
    def number_of_delayed_messages(self) -> int:
        """Return the number of messages that are held back. O(1)."""
        ...

    @property
    def buffer_memory_usage(self) -> int:
        """Return about how many bytes of memory are in use. O(1)."""
        ...

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Hold a message back until ``deliver_at`` (epoch ms; negative: it is not delayed).

        Return False if the message has to be dispatched now; it is not held then.
        """
        ...

    def has_message_available(self) -> bool:
        """Return whether a message may be dispatched now."""
        ...

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Remove and return the messages that may be dispatched now, at most ``max_messages``, earliest first."""
        ...

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether a message is held back."""
        ...

    def should_pause_all_deliveries(self) -> bool:
        """Return whether the dispatcher should stop reading: the messages that follow have to wait as well."""
        ...

    def reset_tick_time(self, tick_ms: int) -> None:
        """Change the tick (ms) for messages that are added from now on."""
        ...

    async def clear(self) -> None:
        """Drop all messages."""
        ...

    async def aclose(self) -> None:
        """Close the tracker; it wakes nobody up any more. Idempotent."""
        ...
