"""The stored forms of delayed messages: snapshots, their logs, and the cursor properties and log that name them."""

from ._columns import Columns, Index
from ._cursor_log import (
    CURSOR_LOG_HEAD,
    CursorChange,
    CursorState,
    MarkDelete,
    NextGeneration,
    PutProperty,
    RemoveProperty,
    check_cursor_log_head,
    decode_cursor_change,
    encode_cursor_change,
)
from ._names import (
    SNAPSHOT_LOG_NAME,
    NamedSnapshot,
    bucket_key,
    free_key,
    named_snapshots,
    snapshot_log_name,
    subscription_digest,
)
from ._positions import BulkPositionSet
from ._snapshot import (
    STEP,
    SegmentRow,
    decode_metadata,
    decode_segment,
    encode_indexes,
    encode_metadata,
    read_metadata,
    snapshot_protobuf,
)
from ._snapshot_log import Footer, decode_footer, split_entries

__all__ = [
    "CURSOR_LOG_HEAD",
    "SNAPSHOT_LOG_NAME",
    "STEP",
    "BulkPositionSet",
    "Columns",
    "CursorChange",
    "CursorState",
    "Footer",
    "Index",
    "MarkDelete",
    "NamedSnapshot",
    "NextGeneration",
    "PutProperty",
    "RemoveProperty",
    "SegmentRow",
    "bucket_key",
    "check_cursor_log_head",
    "decode_cursor_change",
    "decode_footer",
    "decode_metadata",
    "decode_segment",
    "encode_cursor_change",
    "encode_indexes",
    "encode_metadata",
    "free_key",
    "named_snapshots",
    "read_metadata",
    "snapshot_log_name",
    "snapshot_protobuf",
    "split_entries",
    "subscription_digest",
]
