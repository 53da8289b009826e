"""Checks what comes from outside, before anything changes."""

from __future__ import annotations

import inspect
from typing import Final

from .._delays import MAX_DELAY_MS
from ..errors import InvalidArgumentError

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)


def check_message(ledger_id: object, entry_id: object, deliver_at: object = 0) -> None:
    """Refuse what is no position or no time.

    :raises InvalidArgumentError: names the field
    """
    check_int("ledger_id", ledger_id, 0, INT64_MAX)
    check_int("entry_id", entry_id, 0, INT64_MAX)
    check_int("deliver_at", deliver_at, INT64_MIN, INT64_MAX)


def check_tick(tick_ms: object) -> None:
    """Refuse what is no tick."""
    check_int("tick_ms", tick_ms, 0, MAX_DELAY_MS)


def check_on_due(on_due: object) -> None:
    """Refuse what is no plain function, or None."""
    if on_due is not None and (not callable(on_due) or inspect.iscoroutinefunction(on_due)):
        raise InvalidArgumentError("on_due", on_due, "a plain function without arguments (set an event in it)")


def check_int(field: str, value: object, lowest: int, highest: int) -> None:
    """Refuse all but a plain int in a range."""
    if type(value) is not int:
        raise InvalidArgumentError(field, value, "a plain int")
    if not lowest <= value <= highest:
        raise InvalidArgumentError(field, value, f"an integer from {lowest} to {highest}")
