"""The records of a cursor's log: a ledger's state, markers, and the legacy format. Needs the extra ``cursor``.

Other packages read and size cursors by these names. The records are those of Apache Pulsar's managed ledgers and must
not change; see :mod:`._protobuf` for how they are marked.
"""

from ._batch_set import BatchSet
from ._chain import (
    MarkerContents,
    MarkerHead,
    change_properties,
    check_version,
    decode_snapshot,
    encode_full_marker,
    is_legacy,
    is_marker,
    marker_size,
    needs_marker,
    read_marker,
)
from ._ledger_acks import LedgerAcks, LedgersNotLoaded, LedgerSummary
from ._ledger_record import decode_state, ledger_size
from ._legacy import MAX_RANGES, LegacyRecord, decode_legacy
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

__all__ = [
    "CURSOR_LOG_NAME",
    "MAX_RANGES",
    "BatchSet",
    "LedgerAcks",
    "LedgerSummary",
    "LedgersNotLoaded",
    "LegacyRecord",
    "LogNames",
    "MarkerContents",
    "MarkerHead",
    "change_properties",
    "check_version",
    "cursors_in",
    "decode_legacy",
    "decode_snapshot",
    "decode_state",
    "delayed_cursor",
    "delayed_cursor_of",
    "encode_full_marker",
    "is_legacy",
    "is_marker",
    "ledger_size",
    "log_names",
    "marker_size",
    "needs_marker",
    "read_marker",
    "subscription_cursor",
    "subscription_of",
]
