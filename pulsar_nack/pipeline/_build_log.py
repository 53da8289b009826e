"""Makes the logs of an index in the form of :meth:`~pulsar_nack.BucketDelayedDeliveryTracker.open_local`. Pure.

The logs of snapshots and of the cursor have the records that the tracker writes, but nothing is random: ids count from
1 in order of position (the tracker's ids are times, which are larger), and the salt of a segment file is computed from
its name and content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final
from zlib import crc32

from ..config import DELAYED_PREFIX
from ..delayed.bucket._log_changes import HEAD, Put, encode
from ..delayed.bucket._log_snapshot import Footer, groups, split
from ..delayed.bucket._log_storage import log_name
from ..ledger._names import LOG, segment_name
from ..ledger._record import encode_frame, encode_segment_header, seed_of
from ._build_encode import BucketSnapshot

_APPEND: Final = 1 << 18
"""Bytes that the tracker writes, and later reads, together in a folder."""
SEGMENT_FILE: Final = segment_name(0)
CURSOR: Final = "cursor-1" + LOG


def snapshot_folder(snapshot_id: int) -> str:
    """Return the name of the folder of a snapshot's log."""
    return log_name("", "", snapshot_id) + LOG


def bucket_key(start: int, end: int, number: int) -> str:
    """Return the property of a bucket; ``number`` counts the earlier buckets of the same ledgers."""
    return f"{DELAYED_PREFIX}part_{start}_{end}_{number}" if number else f"{DELAYED_PREFIX}bucket_{start}_{end}"


def snapshot_log(key: str, snapshot_id: int, snapshot: BucketSnapshot) -> bytes:
    """Return the only segment file of a snapshot's log, which is sealed."""
    records, parts = split((snapshot.metadata, *snapshot.segments), _APPEND)
    records.append(Footer(key, "", "", len(snapshot.segments) + 1, parts).encode())
    salt = crc32(snapshot.metadata, crc32(key.encode()))
    return b"".join(_frames(snapshot_folder(snapshot_id), records, salt, is_sealed=True))


def cursor_log(named: Iterable[tuple[str, int]]) -> bytes:
    """Return the only segment file of the cursor's log: it names these snapshots, and nothing is acknowledged."""
    records = [HEAD, *(encode(Put(key, str(snapshot_id))) for key, snapshot_id in named)]
    salt = int.from_bytes(sha256(b"".join(records)).digest()[:4])
    return b"".join(_frames(CURSOR, records, salt, is_sealed=False))


def _frames(folder: str, records: Sequence[bytes], salt: int, *, is_sealed: bool) -> Iterator[bytes]:
    log = folder.removesuffix(LOG)
    yield encode_segment_header(0, salt, log)
    first, seed = 0, seed_of(salt, log)
    for group in groups(records, _APPEND):
        yield encode_frame(first, group, seed)
        first += len(group)
    if is_sealed:
        yield encode_frame(first, (), seed)
