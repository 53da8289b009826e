"""What goes into ``holes`` and what comes out: schemas, and the plain record that readers make on the executors."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from .schemas import HOLES

ACKED: Final = "acked"
BATCH: Final = "batch"
CURSOR: Final = "cursor"
LEDGER: Final = "ledger"
STATE: Final = "state"

SUBSCRIPTIONS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("subscription", StringType()),
        StructField("at_ms", LongType()),
        StructField("mark_delete_ledger", LongType()),
        StructField("mark_delete_entry", LongType()),
        StructField("ledgers", LongType()),
        StructField("ranges", LongType()),
        StructField("holes", LongType()),
        StructField("acked", LongType()),
        StructField("unacked_below", LongType()),
        StructField("batches", LongType()),
        StructField("backlog", LongType()),
        StructField("bytes", LongType()),
        StructField("is_stored", BooleanType()),
        StructField("single_bytes", LongType()),
        StructField("ranges_lost", LongType()),
        StructField("oldest_ledger", LongType()),
        StructField("oldest_entry", LongType()),
        StructField("pinned_ledgers", LongType()),
        StructField("pinned_bytes", LongType()),
        StructField("pinned_done", LongType()),
        StructField("ignored_rows", LongType()),
    ]
)
"""What one snapshot of a subscription says; ``holes`` adds what takes several of them, and the gate."""

REFUSED: Final = StructType([StructField("path", StringType()), StructField("reason", StringType())])
"""What could not be read, and why."""

READ: Final = StructType([*HOLES.fields, *REFUSED.fields])
"""Both of them: ``reason`` is null in a row of holes."""


class HoleRow(NamedTuple):
    """A row of :data:`HOLES`."""

    topic: str
    subscription: str
    at_ms: int | None
    kind: str
    ledger: int
    first: int | None
    last: int | None
    bytes: int | None = None


class RefusedRow(NamedTuple):
    """A row of :data:`REFUSED`."""

    path: str
    reason: str
