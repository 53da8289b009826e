"""The logs of an index as :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local` has them, made at once. Pure.

What a snapshot's log and the cursor's log hold is what the tracker itself writes; only that nothing in it is random:
ids count from 1 in order of position (the tracker's own are times, which are more), and the salt of a segment file is
drawn from its name and content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final
from zlib import crc32

from ..delayed.format import (
    CURSOR_LOG_HEAD,
    Footer,
    PutProperty,
    encode_cursor_change,
    group_records,
    snapshot_log_name,
    split_entries,
)
from ..ledger.format import LOG, encode_frame, encode_segment_header, seed_of, segment_name
from ._build_encode import BucketSnapshot

_APPEND: Final = 1 << 18
"""What is written together is read together: as the tracker does it in a folder."""
SEGMENT_FILE: Final = segment_name(0)
CURSOR: Final = "cursor-1" + LOG


def snapshot_folder(snapshot_id: int) -> str:
    """Return the name of the folder of a snapshot's log."""
    return snapshot_log_name("", "", snapshot_id) + LOG


def snapshot_log(key: str, snapshot_id: int, snapshot: BucketSnapshot) -> bytes:
    """Return the one segment file of a snapshot's log, which is sealed."""
    records, parts = split_entries((snapshot.metadata, *snapshot.segments), _APPEND)
    records.append(Footer(key, "", "", len(snapshot.segments) + 1, parts).encode())
    salt = crc32(snapshot.metadata, crc32(key.encode()))
    return b"".join(_frames(snapshot_folder(snapshot_id), records, salt, is_sealed=True))


def cursor_log(named: Iterable[tuple[str, int]]) -> bytes:
    """Return the one segment file of the cursor's log: nothing is acknowledged, these snapshots are named."""
    records = [
        CURSOR_LOG_HEAD,
        *(encode_cursor_change(PutProperty(key, str(snapshot_id))) for key, snapshot_id in named),
    ]
    salt = int.from_bytes(sha256(b"".join(records)).digest()[:4])
    return b"".join(_frames(CURSOR, records, salt, is_sealed=False))


def _frames(folder: str, records: Sequence[bytes], salt: int, *, is_sealed: bool) -> Iterator[bytes]:
    log = folder.removesuffix(LOG)
    yield encode_segment_header(0, salt, log)
    first, seed = 0, seed_of(salt, log)
    for group in group_records(records, _APPEND):
        yield encode_frame(first, group, seed)
        first += len(group)
    if is_sealed:
        yield encode_frame(first, (), seed)
