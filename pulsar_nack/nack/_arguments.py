"""Checks of what is given to a tracker; each raises before anything has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from .._delays import delay_ms
from ..backoff import Backoff
from ..errors import InvalidArgumentError
from ..ids import MessageId, _check_stored

_MOST_AHEAD: Final = 0.001


def check_ahead(ahead: object) -> None:
    """Refuse a ms or more: that is the matter of the delays."""
    expected = "seconds from 0 to less than 0.001"
    if isinstance(ahead, bool) or not isinstance(ahead, float | int) or not 0 <= ahead < _MOST_AHEAD:
        raise InvalidArgumentError("ahead", ahead, expected)


def check_id(message_id: object, field: str = "id") -> None:
    """Refuse what is not the id of a stored message."""
    _check_stored(message_id, field)


def check_ids(ids: object) -> Sequence[MessageId]:
    """Return ids as a sequence, all of them good."""
    if isinstance(ids, MessageId):
        raise InvalidArgumentError("ids", ids, "several ids; nack() takes one")
    if not isinstance(ids, Iterable):
        raise InvalidArgumentError("ids", ids, "several ids")
    sequence = ids if isinstance(ids, list | tuple) else list(ids)
    for message_id in sequence:
        if type(message_id) is not MessageId or message_id[0] < 0 or message_id[1] < 0:
            check_id(message_id, "ids")
    return sequence


def count_entries(entries: Any) -> int:
    """Return how many entries are given, the same one as often as it is; also for a range longer than any list."""
    if isinstance(entries, range):
        return (entries[-1] - entries[0]) // entries.step + 1 if entries else 0
    try:
        return len(entries)
    except TypeError:
        raise InvalidArgumentError("entries", entries, "a range, a sequence, or an array of one dimension") from None


def check_count(count: object) -> None:
    """Refuse what is not a redelivery count."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InvalidArgumentError("redelivery_count", count, "an integer of at least 0")


def backoff_ms(backoff: Backoff, count: int) -> int:
    """Return the delay that a strategy gives.

    :raises InvalidArgumentError: it raised, or returned what is no delay; names ``backoff``
    """
    try:
        delay = backoff(count)
    except Exception as error:
        raise InvalidArgumentError(f"backoff({count})", error, "a delay from the strategy, and it raised") from error
    return delay_ms(delay, f"backoff({count})")
