"""What a row may not be, said with the row that is."""

from __future__ import annotations

from typing import Final

from ..delayed.format import INT64_MAX
from ..delayed.ticks import LATEST
from ..errors import InvalidArgumentError
from ..index import MAX_ENTRY
from ._build_cut import Rows

BOUNDS: Final = {"ledger_id": INT64_MAX, "entry_id": MAX_ENTRY, "deliver_at": LATEST}
"""The highest value of each column; the lowest is 0."""
_EXPECTED: Final = {
    "ledger_id": "a ledger id from 0 to 2**63 - 1",
    "entry_id": "an entry id from 0 to 2**32 - 1",
    "deliver_at": "an epoch time in ms from 0 to 2**56 (leave out what is not delayed)",
}


def refused(ledger: int | None, entry: int | None, deliver_at: int | None) -> InvalidArgumentError:
    """Return the error for a row, naming its first column that is refused."""
    values = {"ledger_id": ledger, "entry_id": entry, "deliver_at": deliver_at}
    field = next(name for name, value in values.items() if value is None or not 0 <= value <= BOUNDS[name])
    where = ", ".join(f"{name} {value}" for name, value in values.items() if name != field)
    return InvalidArgumentError(field, values[field], f"{_EXPECTED[field]} in the row with {where}")


def duplicate(ledger: int, entry: int) -> InvalidArgumentError:
    """Return the error for a position that several rows have."""
    expected = "each position once (a batch is one entry, and its messages are not delayed)"
    return InvalidArgumentError("df", f"ledger_id {ledger}, entry_id {entry} more than once", expected)


def refuse_bad(rows: Rows) -> None:
    """Look at all rows.

    :raises InvalidArgumentError: one is not as it has to be
    """
    for column, highest in zip(rows, BOUNDS.values(), strict=True):
        bad = (column < 0) | (column > highest)
        if bad.any():
            at = int(bad.argmax())
            raise refused(int(rows.ledgers[at]), int(rows.entries[at]), int(rows.times[at]))
