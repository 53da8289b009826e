"""What is logged about each event: a name, a level, and a few fields.

A bulk event is described by its count and its first id; the other ids are never made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..ids import MessageId
from ..nack import Cancelled, Cleared, Closed, Nacked, NackEvent, Redelivered, RedeliveryFailed

Fields = dict[str, Any]


def name_of(event: NackEvent) -> str:
    """Return the event's name in logs."""
    match event:
        case Nacked():
            return "pulsar_nack.nack"
        case Redelivered():
            return "pulsar_nack.redeliver"
        case RedeliveryFailed():
            return "pulsar_nack.error"
        case Cancelled():
            return "pulsar_nack.cancel"
        case Cleared():
            return "pulsar_nack.clear"
        case Closed():
            return "pulsar_nack.close"


def level_of(event: NackEvent) -> int:
    """Return a level of :mod:`logging`: what happens for each message is DEBUG, a failure WARNING, the rest INFO.

    A redelivery that succeeded after a failure is INFO, so that the end of a trouble is seen where its beginning was.
    """
    match event:
        case RedeliveryFailed():
            return logging.WARNING
        case Redelivered(attempt=attempt) if attempt > 1:
            return logging.INFO
        case Cleared() | Closed():
            return logging.INFO
    return logging.DEBUG


def fields_of(event: NackEvent) -> Fields:
    """Return the event's fields: ints and strings only."""
    match event:
        case Nacked(ids=ids, delay_ms=delay_ms, is_new=is_new):
            return {**_ids(ids), "delay_ms": delay_ms, **({} if is_new else {"is_new": False})}
        case Redelivered(ids=ids, attempt=attempt):
            return {**_ids(ids), "attempt": attempt}
        case RedeliveryFailed(ids=ids, attempt=attempt, error=error, retry_at_ms=retry_at_ms):
            return {**_ids(ids), "attempt": attempt, "error": repr(error), "retry_at_ms": retry_at_ms}
        case Cancelled(id=message_id):
            return _ids([message_id])
        case Cleared(count=count):
            return {"count": count}
        case Closed(pending=pending):
            return {"count": pending}


def _ids(ids: Sequence[MessageId]) -> Fields:
    return {"count": len(ids), "first_id": repr(ids[0])} if len(ids) else {"count": 0}
