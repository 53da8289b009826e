"""The interface of delayed delivery trackers, the checks of its arguments, and a tracker that delays nothing.

Each check raises InvalidArgumentError, which names the field and the value.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, Self, runtime_checkable

from .._check import INT64_MAX, INT64_MIN, check_integer
from .._delays import MAX_DELAY_MS
from .._lifetime import ClosesOnExit
from ..errors import ClosedError, InvalidArgumentError
from ..ids import Position

_NAME: Final = "DisabledDelayedDeliveryTracker"
_ENTRIES: Final = "entry ids: integers from 0 to 2**32 - 1"
_TIMES: Final = "times: integers of 64 bits (epoch ms)"


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


class DisabledDelayedDeliveryTracker(ClosesOnExit):
    """Holds no message back: each is dispatched when it is read, whatever its time. Always empty.

    For subscriptions without delayed delivery.
    """

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


def check_message(ledger_id: object, entry_id: object, deliver_at: object = 0) -> None:
    """Raise unless this is a position and a time."""
    check_integer("ledger_id", ledger_id, 0, INT64_MAX)
    check_integer("entry_id", entry_id, 0, INT64_MAX)
    check_integer("deliver_at", deliver_at, INT64_MIN, INT64_MAX)


def check_tick(tick_ms: object) -> None:
    """Raise unless this is a tick: 0 ms to a century."""
    check_integer("tick_ms", tick_ms, 0, MAX_DELAY_MS)


def check_on_due(on_due: object) -> None:
    """Raise unless this is a plain function or None."""
    if on_due is not None and (not callable(on_due) or inspect.iscoroutinefunction(on_due)):
        raise InvalidArgumentError("on_due", on_due, "a plain function without arguments (set an event in it)")


def entries_of(entries: object) -> array[int]:
    """Return a range, list, tuple, array or numpy array of entry ids as an array of typecode ``I``."""
    return _array("I", "entries", entries, _ENTRIES)


def times_of(deliver_at: object, count: int) -> array[int]:
    """Return ``count`` times, given like entry ids, as an array of typecode ``q``."""
    times = _array("q", "deliver_at", deliver_at, _TIMES)
    if len(times) != count:
        raise InvalidArgumentError("deliver_at", len(times), f"as many times as entries ({count})")
    return times


def _array(typecode: str, field: str, values: object, expected: str) -> array[int]:
    try:
        return array(typecode, _items(values))
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # the last for an unknown kind of buffer
        raise InvalidArgumentError(field, values, expected) from None


def _items(values: object) -> Iterable[int]:
    if isinstance(values, array) or (isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray)):
        return values
    if isinstance(values, str | bytes | bytearray):
        raise TypeError
    view = memoryview(values)  # type: ignore[arg-type]
    if view.format == "?":  # a mask
        raise TypeError
    items: Iterable[int] = view.tolist()
    return items
