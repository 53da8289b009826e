"""The records of a cursor's log: a ledger's state, markers, and the legacy format. Needs the extra ``cursor``.

Other packages read and size cursors by these names. The records are those of Apache Pulsar's managed ledgers and must
not change; see :mod:`._record` for how they are marked.
"""

from ._batch_set import BatchSet
from ._ledger import LedgerAcks, LedgersNotLoaded, LedgerSummary, decode_state, ledger_size
from ._legacy import MAX_RANGES, LegacyRecord, decode_legacy
from ._marker import (
    Marker,
    MarkerContents,
    change_properties,
    check_version,
    decode_marker,
    encode_marker,
    marker_size,
    read_marker,
)
from ._names import (
    CURSOR_LOG_NAME,
    LogNames,
    cursors_in,
    delayed_cursor,
    delayed_cursor_of,
    log_names,
    subscription_cursor,
    subscription_of,
)
from ._record import RecordKind, kind_of

__all__ = [
    "CURSOR_LOG_NAME",
    "MAX_RANGES",
    "BatchSet",
    "LedgerAcks",
    "LedgerSummary",
    "LedgersNotLoaded",
    "LegacyRecord",
    "LogNames",
    "Marker",
    "MarkerContents",
    "RecordKind",
    "change_properties",
    "check_version",
    "cursors_in",
    "decode_legacy",
    "decode_marker",
    "decode_state",
    "delayed_cursor",
    "delayed_cursor_of",
    "encode_marker",
    "kind_of",
    "ledger_size",
    "log_names",
    "marker_size",
    "read_marker",
    "subscription_cursor",
    "subscription_of",
]
