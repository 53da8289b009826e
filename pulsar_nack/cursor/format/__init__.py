"""The records of a cursor's log: a ledger's state, markers, and the legacy format. Needs the extra ``cursor``.

Other packages read and size cursors by these names. The records are those of Apache Pulsar's managed ledgers and must
not change; see :mod:`._protobuf` for how they are marked.
"""

from ._batch_set import BatchSet, BatchSets
from ._chain import (
    MarkerContents,
    MarkerHead,
    check_version,
    decode_snapshot,
    encode_delta_marker,
    encode_full_marker,
    encode_snapshot,
    estimated_marker_size,
    is_legacy,
    is_marker,
    marker_size,
    needs_marker,
    properties_size,
    read_marker,
)
from ._ledger_acks import LedgerAcks, LedgersNotLoaded, LedgerSummary
from ._ledger_record import decode_state, encode_ledger, ledger_size
from ._legacy import MAX_BATCHES, MAX_RANGES, EncodedLegacy, LegacyRecord, decode_legacy, encode_legacy
from ._protobuf import RecordKind, kind_of, messages
from ._records import (
    APPEND,
    StoredRecords,
    append_all,
    assign_numbers,
    copy_states,
    group_by_size,
    read_ledgers,
    read_numbers,
    stored_size,
)

__all__ = [
    "APPEND",
    "MAX_BATCHES",
    "MAX_RANGES",
    "BatchSet",
    "BatchSets",
    "EncodedLegacy",
    "LedgerAcks",
    "LedgerSummary",
    "LedgersNotLoaded",
    "LegacyRecord",
    "MarkerContents",
    "MarkerHead",
    "RecordKind",
    "StoredRecords",
    "append_all",
    "assign_numbers",
    "check_version",
    "copy_states",
    "decode_legacy",
    "decode_snapshot",
    "decode_state",
    "encode_delta_marker",
    "encode_full_marker",
    "encode_ledger",
    "encode_legacy",
    "encode_snapshot",
    "estimated_marker_size",
    "group_by_size",
    "is_legacy",
    "is_marker",
    "kind_of",
    "ledger_size",
    "marker_size",
    "messages",
    "needs_marker",
    "properties_size",
    "read_ledgers",
    "read_marker",
    "read_numbers",
    "stored_size",
]
