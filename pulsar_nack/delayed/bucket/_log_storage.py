"""Snapshots on a store of append-only logs: one sealed log for each.

The digest in a log's name identifies topic and cursor, so that the snapshots of a cursor can be listed. An id consists
of its creation time (epoch ms) and 20 random bits, and is greater than all existing ids. So neither this process nor
another one reuses it after its snapshot was deleted.

Creation continues if its caller is cancelled; then the snapshot is deleted. A log that could not be deleted after a
failure is deleted before the next one is created. What a crash leaves, a log without a seal or a snapshot that no
property names, is listed with the others, so that the tracker deletes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from ..._check import INT64_MAX, INT64_MIN, check_clock, check_has, check_integer, check_kind, check_list, check_text
from ..._delays import Delay, delay_seconds
from ..._lifetime import LoopBound
from ..._tasks import TaskOwner
from ...clock import Clock, WallClock
from ...config import BucketConfig
from ...errors import (
    LedgerError,
    LogExistsError,
    LogNotFoundError,
    LogStorageError,
    SnapshotNotFoundError,
)
from ...ledger import LocalLogStore, Log, LogStore
from ...ledger.format import group_records
from ...ledger.ownership import OwnableStore, storage_timeout, take_ownership
from ..format import (
    SNAPSHOT_LOG_NAME,
    Footer,
    snapshot_log_name,
    split_entries,
    subscription_digest,
)
from ._log_cursor import CLOSE_TIMEOUT_S, CURSOR, LogDelayedCursor, names_of
from ._open_snapshots import SnapshotCache, snapshot_errors

_RANDOM_BITS: Final = 20
_LATEST_MS: Final = 1 << 42
"""In the year 2109. Ids have at most 64 bits and the digits that names allow, even if the clock is far off."""
_MAX_APPEND: Final = 1 << 23
_MAX_LOCAL_APPEND: Final = 1 << 18
"""Records of one append are read together. Reads of files are cheap, so there it is a few segments of a snapshot."""
_HIGHEST_APPEND: Final = 15 << 20


class LogSnapshotStorage(LoopBound):
    """A :class:`~pulsar_nack.BucketSnapshotStorage` on a store of logs, which its owner closes afterwards.

    A damaged or truncated snapshot raises :class:`~pulsar_nack.errors.SnapshotFormatError`, one that a later release
    wrote :class:`~pulsar_nack.errors.LogVersionError`. The errors of the store are passed on.

    :param store: has the logs; other logs in it are left alone
    :param max_open: the number of snapshots that stay open for reading
    :param max_append: about how many bytes are written at a time, at most 15 MiB; larger entries are split
    :param clock: for ids; the wall clock by default
    :param close_timeout: how long closing waits for unfinished writes, in seconds or as a timedelta
    """

    _what = "LogSnapshotStorage"

    def __init__(
        self,
        store: LogStore,
        *,
        max_open: int = 64,
        max_append: int = _MAX_APPEND,
        clock: Clock | None = None,
        close_timeout: Delay = CLOSE_TIMEOUT_S,
    ) -> None:
        check_has("store", store, ("create", "open_log"), "a LogStore")
        check_clock(clock)
        check_integer("max_open", max_open, 1, INT64_MAX)
        check_integer("max_append", max_append, 1, _HIGHEST_APPEND)
        self._close_timeout_s = delay_seconds(close_timeout, "close_timeout")
        self._store = store
        self._max_append = max_append
        self._clock = WallClock() if clock is None else clock
        self._tasks = TaskOwner()
        self._open_snapshots = SnapshotCache(self._open_log, max_open, self._tasks)
        self._names: dict[int, str] = {}
        self._unfinished: set[int] = set()
        self._undeleted: set[str] = set()
        self._last_id = 0

    async def start(self) -> None:
        """List the snapshots.

        :raises LogStorageError: the store cannot be read
        """
        await self._list()

    async def close(self) -> None:
        """Finish pending work, and close open snapshots. Takes at most ``close_timeout``. Idempotent.

        :raises TimeoutError: storage did not answer in time; unfinished work ends as soon as it does
        """
        if not self._is_closed:
            self._check_loop()
        self._is_closed = True
        self._open_snapshots.drop_all()
        async with storage_timeout(self._close_timeout_s, "the snapshots"):
            await self._tasks.wait_until_idle()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def aclose(self) -> None:
        """Close the storage, as :meth:`close`."""
        await self.close()

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its new id; it is durable and complete when this returns.

        :raises LogStorageError: it could not be written; nothing of it remains
        """
        check_kind("metadata", metadata, bytes, "bytes")
        check_list("segments", segments, "a list of bytes")
        for field, text in (("bucket_key", bucket_key), ("topic_name", topic_name), ("cursor_name", cursor_name)):
            check_text(field, text)
        self._ensure_open()
        records, parts = split_entries((metadata, *segments), self._max_append)
        footer = Footer(bucket_key, topic_name, cursor_name, len(segments) + 1, parts)
        records.append(footer.encode())
        while True:
            snapshot_id = self._new_id()
            name = snapshot_log_name(topic_name, cursor_name, snapshot_id)
            with suppress(LogExistsError):
                await self._create(snapshot_id, name, records)
                return snapshot_id

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        (metadata,) = await self.get_bucket_snapshot_segment(snapshot_id, 0, 0)
        return metadata

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``, both included, or those of them that exist.

        :raises SnapshotNotFoundError: no snapshot has this id
        :raises SnapshotFormatError: the snapshot is damaged
        """
        check_integer("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        check_integer("first", first, 0, INT64_MAX)
        check_integer("last", last, first, INT64_MAX)
        self._ensure_open()
        async with self._open_snapshots.use(snapshot_id) as snapshot:
            return await snapshot.entries(first, last)

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return the size of a snapshot on storage in bytes."""
        check_integer("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        self._ensure_open()
        async with self._open_snapshots.use(snapshot_id) as snapshot:
            return snapshot.log.size

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot durably, even a damaged one.

        :raises SnapshotNotFoundError: no snapshot has this id
        :raises LogForeignFilesError: its folder has files of something else
        """
        check_integer("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        self._ensure_open()
        name = await self._name_of(snapshot_id)
        self._open_snapshots.drop(snapshot_id)
        with snapshot_errors(snapshot_id):
            await self._store.delete(name)
        self._names.pop(snapshot_id, None)

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of a cursor's snapshots in order, including unfinished ones of earlier runs."""
        check_text("topic_name", topic_name)
        check_text("cursor_name", cursor_name)
        self._ensure_open()
        await self._list()
        digest = subscription_digest(topic_name, cursor_name)
        found = (snapshot_id for snapshot_id, name in self._names.items() if digest in name)
        return sorted(snapshot_id for snapshot_id in found if snapshot_id not in self._unfinished)

    # -- creating ----------------------------------------------------------------------------------------------------

    async def _create(self, snapshot_id: int, name: str, records: list[bytes]) -> None:
        """Write the log in a task; if the caller is cancelled meanwhile, the log is deleted afterwards."""
        self._unfinished.add(snapshot_id)
        writing = self._tasks.begin(self._write(name, records))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._tasks.begin(self._abandon(snapshot_id, name, writing))
            raise
        except BaseException:
            self._unfinished.discard(snapshot_id)
            raise
        self._names[snapshot_id] = name
        self._unfinished.discard(snapshot_id)

    async def _write(self, name: str, records: list[bytes]) -> None:
        await self._delete_leftovers()
        try:
            log = await self._store.create(name)
        except LogStorageError:
            self._undeleted.add(name)  # the log may exist despite the error
            raise
        try:
            for group in group_records(records, self._max_append):
                await log.append_many(group)
            await log.seal()
        except Exception:
            self._undeleted.add(name)
            await log.aclose()
            await self._delete_leftovers()
            raise
        await log.aclose()

    async def _abandon(self, snapshot_id: int, name: str, writing: asyncio.Task[None]) -> None:
        with suppress(Exception):  # the caller is gone
            await writing
            self._undeleted.add(name)
            await self._delete_leftovers()
        self._unfinished.discard(snapshot_id)

    async def _delete_leftovers(self) -> None:
        for name in list(self._undeleted):
            with suppress(LedgerError):
                with suppress(LogNotFoundError):
                    await self._store.delete(name)
                self._undeleted.discard(name)

    def _new_id(self) -> int:
        at = min(self._clock.now_ms(), _LATEST_MS) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        self._last_id = max(at, self._last_id + 1)
        return self._last_id

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """List the snapshots in the store; those that are created or deleted meanwhile are accounted for."""
        known = dict(self._names)
        matches = [match for name in await self._store.names() if (match := SNAPSHOT_LOG_NAME.fullmatch(name))]
        listed = {int(match[2]): match[0] for match in matches}
        gone = {each for each in known if each not in self._names}
        made = {each: name for each, name in self._names.items() if each not in known}
        self._names = {each: name for each, name in listed.items() if each not in gone} | made
        self._last_id = max(self._last_id, *listed, 0)

    async def _name_of(self, snapshot_id: int) -> str:
        if snapshot_id not in self._names:
            await self._list()
        if snapshot_id not in self._names:
            raise SnapshotNotFoundError(snapshot_id)
        return self._names[snapshot_id]

    async def _open_log(self, snapshot_id: int) -> Log:
        name = await self._name_of(snapshot_id)
        try:
            with snapshot_errors(snapshot_id):
                return await self._store.open_log(name, read_only=True)
        except SnapshotNotFoundError:
            self._names.pop(snapshot_id, None)
            raise


async def own_logs(store: LogStore) -> OwnableStore:
    """Become the owner of a tracker's cursor in a store, and so of its snapshots too."""
    return await take_ownership(store, (await names_of(store, CURSOR)).cursor)


async def open_logs(owned: LogStore, config: BucketConfig) -> tuple[LogDelayedCursor, LogSnapshotStorage]:
    """Open the cursor and the snapshots of a tracker."""
    timeout = config.close_timeout
    cursor = await LogDelayedCursor.open(owned, close_timeout=timeout)
    max_append = _MAX_LOCAL_APPEND if isinstance(owned, LocalLogStore) else _MAX_APPEND
    storage = LogSnapshotStorage(owned, max_append=max_append, close_timeout=timeout)
    await storage.start()
    return cursor, storage
