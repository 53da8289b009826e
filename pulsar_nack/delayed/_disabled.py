"""The tracker for subscriptions without delayed delivery."""

from __future__ import annotations

from typing import Final, Self

from .._check import INT64_MAX, check_integer
from .._lifetime import ClosesOnExit
from ..errors import ClosedError
from ..ids import Position
from ._arguments import check_message, check_tick

_NAME: Final = "DisabledDelayedDeliveryTracker"


class DisabledDelayedDeliveryTracker(ClosesOnExit):
    """Holds no message back: each is dispatched when it is read, whatever its time. Always empty."""

    __slots__ = ("__weakref__", "_is_closed")

    def __init__(self) -> None:
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._ensure_open()
        return self

    @property
    def number_of_delayed_messages(self) -> int:
        """Return 0."""
        return 0

    @property
    def buffer_memory_usage(self) -> int:
        """Return 0."""
        return 0

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Return False: the message has to be dispatched now.

        :raises InvalidArgumentError: an argument was refused
        :raises ClosedError: after :meth:`aclose`
        """
        check_message(ledger_id, entry_id, deliver_at)
        self._ensure_open()
        return False

    def has_message_available(self) -> bool:
        """Return False."""
        self._ensure_open()
        return False

    def get_scheduled_messages(self, max_messages: int) -> list[Position]:
        """Return an empty list."""
        check_integer("max_messages", max_messages, 0, INT64_MAX)
        self._ensure_open()
        return []

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Return False."""
        check_message(ledger_id, entry_id)
        self._ensure_open()
        return False

    def should_pause_all_deliveries(self) -> bool:
        """Return False."""
        self._ensure_open()
        return False

    def reset_tick_time(self, tick_ms: int) -> None:
        """Check the tick; it has no effect."""
        check_tick(tick_ms)
        self._ensure_open()

    async def clear(self) -> None:
        """Do nothing: the tracker is empty."""
        self._ensure_open()

    async def aclose(self) -> None:
        """Close the tracker. Idempotent."""
        self._is_closed = True

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError(_NAME)
