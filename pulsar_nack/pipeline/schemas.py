"""The schemas of the pipeline's input; nothing is ever inferred. Needs the extra ``spark``.

:data:`TRACE` is a line of the trace writer, version :data:`TRACE_VERSION`: JSON lines or Parquet, one event each. The
columns :data:`IDENTITY` identify a message. Times that end in ``_ms`` are epoch milliseconds.

:data:`METADATA` describes a topic's messages without their payload, and :data:`HOLES` the state of cursors: ranges of
acknowledged entries, first and last included, with sizes.
"""

from __future__ import annotations

from typing import Final

from ..errors import MissingExtraError

try:
    from pyspark.sql.types import (
        BooleanType,
        DataType,
        DoubleType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
    )
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
"""The version that is read; lines of other versions go to the quarantine."""

EVENTS: Final = ("nack", "redeliver", "arrive", "ack", "cancel", "hold", "error")
"""The kinds of events."""

ASKED_AGAIN: Final = "asked again"
"""The reason of a repeated ``redeliver``: the one before failed, or brought nothing."""

MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: later times are invalid, as are negative ones."""

IDENTITY: Final = ("topic", "partition", "subscription", "ledger", "entry", "batch_index")
"""The columns that identify a message of a subscription."""

_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
}


def _schema_of(columns: str) -> StructType:
    """Return the schema of columns in the words of Spark's DDL: ``ledger long, topic string not null``."""
    fields = [column.split(maxsplit=2) for column in columns.split(", ")]
    return StructType([StructField(name, _TYPES[kind], not is_needed) for name, kind, *is_needed in fields])


TRACE: Final = _schema_of(
    "v int not null, event string not null, time_ms long not null, mono_ns long not null, topic string not null, "
    "partition int not null, subscription string not null, consumer string not null, ledger long, entry long, "
    "batch_index int not null, attempt int, delay_ms long, deadline_ms long, actual_ms long, reason string"
)

TIMES: Final = ("time_ms", "deadline_ms", "actual_ms")
"""The columns of :data:`TRACE` that are epoch times."""

REQUIRED: Final = tuple(field.name for field in TRACE.fields if not field.nullable)
"""The columns of :data:`TRACE` that every line has."""

MAX_LINE_BYTES: Final = 4 * 2**20
"""The longest line that is read."""

BROKEN: Final = "not a JSON object of this schema"
"""The reason for a line that is not an event."""

NOT_UNICODE: Final = "not Unicode text"
"""The reason for a line that is not UTF-8, or has half of a surrogate pair in a string."""

TOO_LONG: Final = f"longer than {MAX_LINE_BYTES} bytes"
"""The reason for a line that is not parsed."""

METADATA: Final = _schema_of(
    "topic string, partition int, ledger_id long not null, entry_id long not null, batch_index int, publish_time long, "
    "deliver_at long not null, key_hash int"
)

HOLES: Final = _schema_of(
    "topic string, subscription string, at_ms long, kind string, ledger long, first long, last long, bytes long"
)
"""Acknowledgement state of subscriptions at some time. The meaning of a row depends on its ``kind``:

- ``acked``: entries ``first`` to ``last`` of the ledger are acknowledged, beyond the mark-delete position
- ``batch``: some messages of the batch in entry ``first`` (equal to ``last``) are acknowledged
- ``cursor``: the mark-delete position is entry ``last`` of the ledger; its marker takes ``bytes`` on storage
- ``state``: the acknowledgement state of the ledger takes ``bytes`` on storage
- ``ledger``: the ledger has entries ``first`` (0) to ``last`` (-1: none), ``bytes`` in size

``at_ms`` is the time of the state, epoch ms; rows of one subscription and time belong together. ``bytes`` is null if it
is unknown.
"""

HOLES_SHOWN: Final = (
    *("topic", "subscription", "risk", "limit_share", "bytes", "bytes_per_s", "ranges", "holes", "unacked_below"),
    *("backlog", "oldest_ledger", "oldest_entry", "pinned_ledgers", "pinned_bytes", "ranges_lost"),
)
"""The columns of the job ``holes`` that tables for people have."""

QUARANTINE: Final = _schema_of("file string, line string, reason string not null")
"""Lines that could not be read: the file, the line, and why it was refused."""

READ: Final = StructType(
    [
        *(StructField(field.name, field.dataType) for field in TRACE.fields),
        *_schema_of("file string, line string, fault string").fields,
    ]
)
"""Rows of readers: for an accepted event the last three columns are null, for a refused line all others."""
