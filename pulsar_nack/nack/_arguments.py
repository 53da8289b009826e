"""Checks of the arguments of a tracker; each raises before anything has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from .._delays import delay_ms
from ..backoff import Backoff
from ..errors import InvalidArgumentError
from ..ids import MessageId, _check_stored

_MAX_LEAD_TIME: Final = 0.001


def check_lead_time(lead_time: object) -> None:
    """Raise unless ``lead_time`` is under 1 ms; longer lead times belong in the delay."""
    expected = "seconds from 0 to less than 0.001"
    if isinstance(lead_time, bool) or not isinstance(lead_time, float | int) or not 0 <= lead_time < _MAX_LEAD_TIME:
        raise InvalidArgumentError("lead_time", lead_time, expected)


def check_ids(ids: object) -> Sequence[MessageId]:
    """Return the ids as a sequence; raise unless all are ids of stored messages."""
    if isinstance(ids, MessageId):
        raise InvalidArgumentError("ids", ids, "several ids; nack() takes one")
    if not isinstance(ids, Iterable):
        raise InvalidArgumentError("ids", ids, "several ids")
    sequence = ids if isinstance(ids, list | tuple) else list(ids)
    for message_id in sequence:
        if type(message_id) is not MessageId or message_id[0] < 0 or message_id[1] < 0:
            _check_stored(message_id, "ids")
    return sequence


def count_entries(entries: Any) -> int:
    """Count the entries, duplicates included; works for ranges longer than ``sys.maxsize``."""
    if isinstance(entries, range):
        return (entries[-1] - entries[0]) // entries.step + 1 if entries else 0
    try:
        return len(entries)
    except TypeError:
        raise InvalidArgumentError("entries", entries, "a range, a sequence, or an array of one dimension") from None


def backoff_ms(backoff: Backoff, count: int) -> int:
    """Return the delay of a backoff in ms.

    :raises InvalidArgumentError: the backoff raised, or did not return a delay; the error names ``backoff``
    """
    try:
        delay = backoff(count)
    except Exception as error:
        raise InvalidArgumentError(f"backoff({count})", error, "a delay from the strategy, and it raised") from error
    return delay_ms(delay, f"backoff({count})")
