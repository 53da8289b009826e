"""Finding entries: the first that was published at a time, the n-th that is not acknowledged, the last of all."""

from __future__ import annotations

from ..cursor import Cursor
from ..errors import LogNotFoundError
from ..ids import Position
from ._ledgers import TopicLedgers


async def first_published(ledgers: TopicLedgers, since_ms: int) -> Position:
    """Return the first entry that was published then or later, or where the next one will be.

    Publish times do not fall from one entry to the next. O(ledgers + log entries) reads.
    """
    while True:
        first = ledgers.ids[0]
        try:
            return await _first_published(ledgers, since_ms)
        except LogNotFoundError:
            if ledgers.ids[0] == first:
                raise  # else a ledger was deleted meanwhile


async def _first_published(ledgers: TopicLedgers, since_ms: int) -> Position:
    for ledger in list(ledgers.ids):
        low, high = 0, ledgers.entries(ledger) or 0
        if not high or await _publish_time(ledgers, ledger, high - 1) < since_ms:
            continue
        while low < high:
            middle = (low + high) // 2
            if await _publish_time(ledgers, ledger, middle) < since_ms:
                low = middle + 1
            else:
                high = middle
        return Position(ledger, low)
    last = ledgers.last_position
    return Position(last.ledger, last.entry + 1)


async def _publish_time(ledgers: TopicLedgers, ledger: int, entry: int) -> int:
    return (await ledgers.read(ledger, entry, entry))[0].publish_time_ms


async def nth_unacked(cursor: Cursor, ledgers: TopicLedgers, count: int) -> tuple[Position | None, int]:
    """Return the last of the next ``count`` entries that are not acknowledged, and how many there are of them."""
    last, passed = None, 0
    ledger: int | None = cursor.mark_delete_position.ledger
    while ledger is not None and passed < count:
        for first, end in await cursor.unacked(ledger, 0, (ledgers.entries(ledger) or 0) - 1):
            many = min(end - first + 1, count - passed)
            last, passed = Position(ledger, first + many - 1), passed + many
            if passed >= count:
                break
        ledger = ledgers.next_ledger(ledger)
    return last, passed


def last_entry(ledgers: TopicLedgers) -> Position | None:
    """Return the last entry that exists, None where there is none."""
    ledger: int | None = ledgers.ids[-1]
    while ledger is not None:
        if entries := ledgers.entries(ledger):
            return Position(ledger, entries - 1)
        ledger = ledgers.previous_ledger(ledger)
    return None
