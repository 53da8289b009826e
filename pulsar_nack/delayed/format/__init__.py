"""The stored forms of delayed messages: snapshots, their logs, and the cursor properties that name them."""

from ._snapshot import (
    STEP,
    Columns,
    Index,
    SegmentRow,
    decode_metadata,
    decode_segment,
    encode_indexes,
    encode_metadata,
    read_metadata,
    snapshot_protobuf,
)
from ._snapshot_log import (
    SNAPSHOT_LOG_NAME,
    Footer,
    NamedSnapshot,
    bucket_key,
    decode_footer,
    free_key,
    named_snapshots,
    snapshot_log_name,
    split_entries,
    subscription_digest,
)

__all__ = [
    "SNAPSHOT_LOG_NAME",
    "STEP",
    "Columns",
    "Footer",
    "Index",
    "NamedSnapshot",
    "SegmentRow",
    "bucket_key",
    "decode_footer",
    "decode_metadata",
    "decode_segment",
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
