"""What a tracker's events are in a trace."""

from __future__ import annotations

from typing import Final

from ..consumer import TraceNote
from ..ids import MessageId
from ..nack import Cancelled, Cleared, Closed, Nacked, NackEvent, NackHook, Redelivered, RedeliveryFailed

_MOST_DEADLINES: Final = 100_000


def tracker_hook(note: TraceNote) -> NackHook:
    """Return a hook that notes each id of an event; it knows the deadlines of the first 100,000 pending ids."""
    deadlines: dict[MessageId, int] = {}

    def due_in(message_id: MessageId, at_ms: int) -> int | None:
        deadline = deadlines.get(message_id)
        return None if deadline is None else deadline - at_ms

    def hook(event: NackEvent) -> None:
        match event:
            case Nacked(ids=ids, delay_ms=delay_ms, deadline_ms=deadline_ms):
                for each in ids:
                    if each in deadlines or len(deadlines) < _MOST_DEADLINES:
                        deadlines[each] = min(deadline_ms, deadlines.get(each, deadline_ms))
                    note("nack", each, delay_ms=delay_ms, due_in_ms=delay_ms)
            case Redelivered(ids=ids, at_ms=at_ms):
                for each in ids:
                    note("redeliver", each, due_in_ms=due_in(each, at_ms))
                    deadlines.pop(each, None)
            case RedeliveryFailed(ids=ids, error=error):
                for each in ids:
                    note("error", each, reason=f"redeliver: {error!r}")
            case Cancelled(id=message_id):
                note("cancel", message_id, reason="ack")
                deadlines.pop(message_id, None)
            case Cleared() | Closed():
                deadlines.clear()

    return hook
