"""The schemas of what the pipeline reads; nothing is ever inferred. Needs the extra ``spark``.

:data:`TRACE` is a line of the trace writer, version :data:`TRACE_VERSION`: JSON lines or Parquet, one event each. A
message is known by the columns :data:`IDENTITY`. Times that end in ``_ms`` are epoch milliseconds.

:data:`METADATA` is what a topic's messages tell without their payload, and :data:`HOLES` what cursors tell: ranges of
acknowledged entries, first and last included, and what is needed beside them.
"""

from __future__ import annotations

from typing import Final

from ..errors import MissingExtraError

try:
    from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType
except ModuleNotFoundError as error:
    raise MissingExtraError("the pipeline", str(error.name), "spark") from error

__all__ = [
    "ASKED_AGAIN",
    "EVENTS",
    "HOLES",
    "IDENTITY",
    "MAX_TIME_MS",
    "METADATA",
    "QUARANTINE",
    "TRACE",
    "TRACE_VERSION",
]

TRACE_VERSION: Final = 1
"""The version that is read; lines of any other go to quarantine."""

EVENTS: Final = ("nack", "redeliver", "arrive", "ack", "cancel", "hold", "error")
"""The kinds of events."""

ASKED_AGAIN: Final = "asked again"
"""The reason of a ``redeliver`` for which there was one before: that failed, or brought nothing."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: a later time is a mistake, as is a negative one."""

IDENTITY: Final = ("topic", "partition", "subscription", "ledger", "entry", "batch_index")
"""The columns that tell messages of subscriptions apart."""


def _struct(*columns: tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind, nullable in columns])


_STRING, _INT, _LONG = StringType(), IntegerType(), LongType()

TRACE: Final = _struct(
    ("v", _INT, False),
    ("event", _STRING, False),
    ("time_ms", _LONG, False),
    ("mono_ns", _LONG, False),
    ("topic", _STRING, False),
    ("partition", _INT, False),
    ("subscription", _STRING, False),
    ("consumer", _STRING, False),
    ("ledger", _LONG, True),
    ("entry", _LONG, True),
    ("batch_index", _INT, False),
    ("attempt", _INT, True),
    ("delay_ms", _LONG, True),
    ("deadline_ms", _LONG, True),
    ("actual_ms", _LONG, True),
    ("reason", _STRING, True),
)

TIMES: Final = ("time_ms", "deadline_ms", "actual_ms")
"""The columns of :data:`TRACE` that are epoch times."""

REQUIRED: Final = tuple(field.name for field in TRACE.fields if not field.nullable)
"""The columns of :data:`TRACE` that every line has."""

MAX_LINE_BYTES: Final = 4 * 2**20
"""The longest line that is read."""

BROKEN: Final = "not a JSON object of this schema"
"""Why a line is refused that is no event at all."""

NOT_UNICODE: Final = "not Unicode text"
"""Why a line is refused that is not UTF-8, or has half of a surrogate pair in a string."""

TOO_LONG: Final = f"longer than {MAX_LINE_BYTES} bytes"
"""Why a line is refused without being parsed."""

METADATA: Final = _struct(
    ("topic", _STRING, True),
    ("partition", _INT, True),
    ("ledger_id", _LONG, False),
    ("entry_id", _LONG, False),
    ("batch_index", _INT, True),
    ("publish_time", _LONG, True),
    ("deliver_at", _LONG, False),
    ("key_hash", _INT, True),
)

HOLES: Final = _struct(
    ("topic", _STRING, True),
    ("subscription", _STRING, True),
    ("at_ms", _LONG, True),
    ("kind", _STRING, True),
    ("ledger", _LONG, True),
    ("first", _LONG, True),
    ("last", _LONG, True),
    ("bytes", _LONG, True),
)
"""Acknowledgement state of subscriptions, as it was at some time. What a row says, by its ``kind``:

- ``acked``: entries ``first`` to ``last`` of the ledger are acknowledged, beyond the mark-delete position
- ``batch``: of entry ``first`` (and ``last``) some messages are acknowledged
- ``cursor``: the mark-delete position is entry ``last`` of the ledger; ``bytes``: what its marker takes on storage
- ``state``: the acknowledgement state of the ledger takes ``bytes`` on storage
- ``ledger``: the ledger has entries ``first`` (0) to ``last`` (-1: none), ``bytes`` in size

``at_ms`` is when that was so, epoch ms; rows of one subscription and time belong together. ``bytes`` is null where
nobody told it.
"""

QUARANTINE: Final = _struct(("file", _STRING, True), ("line", _STRING, True), ("reason", _STRING, False))
"""What could not be read: where it is, what it says, and why it was refused."""

READ: Final = StructType(
    [StructField(field.name, field.dataType) for field in TRACE.fields]
    + [StructField(name, _STRING) for name in ("file", "line", "fault")]
)
"""Rows of readers: for an accepted event the last three columns are null, for a refused line all others."""
