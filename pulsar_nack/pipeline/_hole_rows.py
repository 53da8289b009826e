"""The plain records that readers of acknowledgement state make on the executors; nothing here needs PySpark."""

from __future__ import annotations

from typing import Final, NamedTuple

ACKED: Final = "acked"
BATCH: Final = "batch"
CURSOR: Final = "cursor"
LEDGER: Final = "ledger"
STATE: Final = "state"


class HoleRow(NamedTuple):
    """A row of ``schemas.HOLES``."""

    topic: str
    subscription: str
    at_ms: int | None
    kind: str
    ledger: int
    first: int | None
    last: int | None
    bytes: int | None = None


class RefusedRow(NamedTuple):
    """What could not be read, and why."""

    path: str
    reason: str
