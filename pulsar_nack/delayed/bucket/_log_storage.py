"""Snapshots on a store of append-only logs: one sealed log for each.

A log is called ``snapshot-<digest>-<id>``; the digest, of topic and cursor, is what the snapshots of a cursor are found
by. An id is the time of its making (epoch ms) and 20 random bits, and more than all that are there, so it is not used
again after its snapshot was deleted, nor by another process.

What is begun is ended: creating goes on when its caller was cancelled, and then the snapshot is deleted again; what
could not be deleted after a failure is tried again before the next one is made. What a crash leaves, a log without a
seal or a snapshot that nothing names, is listed with the others, so that the tracker deletes it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Final, Self

from ..._check import check_clock, check_has, check_kind, check_list, check_text
from ..._delays import Delay, delay_seconds
from ..._lifetime import LoopBound
from ...clock import Clock, WallClock
from ...errors import (
    ClosedError,
    LedgerError,
    LogExistsError,
    LogNotFoundError,
    LogStorageError,
    SnapshotNotFoundError,
)
from ...ledger import LogStore
from ...ledger._taking import within
from .._arguments import INT64_MAX, INT64_MIN, check_int
from ._chores import Chores
from ._log_cursor import CLOSE_TIMEOUT_S
from ._log_handles import Handles
from ._log_snapshot import Footer, LogSnapshot, groups, readable, split

_NAME: Final = re.compile(r"snapshot-([0-9a-f]{32})-(\d{1,19})")
_RANDOM_BITS: Final = 20
_LATEST_MS: Final = 1 << 42
"""In the year 2109: a clock that is far off must not make ids of more digits than names have, and 64 bits."""
APPEND: Final = 1 << 23
_MOST_PER_APPEND: Final = 15 << 20


class LogSnapshotStorage(LoopBound):
    """A :class:`~pulsar_nack.BucketSnapshotStorage` on a store of logs, which is closed by its owner afterwards.

    A snapshot that is damaged, cut or something else raises :class:`~pulsar_nack.SnapshotFormatError`; one that a later
    release wrote :class:`~pulsar_nack.errors.LogVersionError`; what the store refuses its own errors.

    :param store: where the logs are; other logs in it are left alone
    :param max_open: how many snapshots are kept open for reading
    :param max_append: about how many bytes are written at a time; larger entries are split; at most 15 MiB
    :param clock: for ids; the wall clock by default
    :param close_timeout: how long closing waits for what was begun, in seconds or as a timedelta
    """

    def __init__(
        self,
        store: LogStore,
        *,
        max_open: int = 64,
        max_append: int = APPEND,
        clock: Clock | None = None,
        close_timeout: Delay = CLOSE_TIMEOUT_S,
    ) -> None:
        check_has("store", store, ("create", "open_log"), "a LogStore")
        check_clock(clock)
        check_int("max_open", max_open, 1, INT64_MAX)
        check_int("max_append", max_append, 1, _MOST_PER_APPEND)
        self._close_timeout_s = delay_seconds(close_timeout, "close_timeout")
        self._store = store
        self._max_append = max_append
        self._clock = WallClock() if clock is None else clock
        self._chores = Chores()
        self._handles = Handles(self._open, max_open, self._chores)
        self._names: dict[int, str] = {}
        self._unfinished: set[int] = set()
        self._failed: set[str] = set()
        self._last_id = 0
        self._is_closed = False

    async def start(self) -> None:
        """Look at what is there.

        :raises LogStorageError: the store cannot be read
        """
        await self._look()

    async def close(self) -> None:
        """End what was begun, and close what is open. Takes ``close_timeout`` at most. Idempotent.

        :raises TimeoutError: storage did not answer in time; what was begun ends as soon as it does
        """
        if not self._is_closed:
            self._check_loop("the snapshots")
        self._is_closed = True
        self._handles.drop_all()
        async with within(self._close_timeout_s, "the snapshots"):
            await self._chores.done()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create_bucket_snapshot(
        self, metadata: bytes, segments: Sequence[bytes], bucket_key: str, topic_name: str, cursor_name: str
    ) -> int:
        """Store a snapshot and return its new id; durable, and complete, when it returns.

        :raises LogStorageError: it could not be written; nothing of it is kept
        """
        check_kind("metadata", metadata, bytes, "bytes")
        check_list("segments", segments, "a list of bytes")
        for field, text in (("bucket_key", bucket_key), ("topic_name", topic_name), ("cursor_name", cursor_name)):
            check_text(field, text)
        self._ensure_open()
        records, parts = split((metadata, *segments), self._max_append)
        footer = Footer(bucket_key, topic_name, cursor_name, len(segments) + 1, parts)
        records.append(footer.encode())
        while True:
            snapshot_id = self._new_id()
            name = log_name(topic_name, cursor_name, snapshot_id)
            with suppress(LogExistsError):
                await self._create(snapshot_id, name, records)
                return snapshot_id

    async def get_bucket_snapshot_metadata(self, snapshot_id: int) -> bytes:
        """Return entry 0."""
        check_int("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        (metadata,) = await self.get_bucket_snapshot_segment(snapshot_id, 0, 0)
        return metadata

    async def get_bucket_snapshot_segment(self, snapshot_id: int, first: int, last: int) -> Sequence[bytes]:
        """Return the entries ``first..last``, both included; fewer where the snapshot ends before.

        :raises SnapshotNotFoundError: there is none of this id
        :raises SnapshotFormatError: it is damaged
        """
        check_int("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        check_int("first", first, 0, INT64_MAX)
        check_int("last", last, first, INT64_MAX)
        self._ensure_open()
        async with self._handles.use(snapshot_id) as snapshot:
            return await snapshot.entries(first, last)

    async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
        """Return how many bytes a snapshot takes on storage."""
        check_int("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        self._ensure_open()
        async with self._handles.use(snapshot_id) as snapshot:
            return snapshot.log.size

    async def delete_bucket_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot; gone for good when it returns. One that is damaged too.

        :raises SnapshotNotFoundError: there is none of this id
        :raises LogForeignFilesError: files that are not its own lie with it
        """
        check_int("snapshot_id", snapshot_id, INT64_MIN, INT64_MAX)
        self._ensure_open()
        name = await self._name(snapshot_id)
        self._handles.drop(snapshot_id)
        with readable(snapshot_id):
            await self._store.delete(name)
        self._names.pop(snapshot_id, None)

    async def list_bucket_snapshots(self, topic_name: str, cursor_name: str) -> Sequence[int]:
        """Return the ids of what was created for a cursor, unfinished ones of earlier runs too, in order."""
        check_text("topic_name", topic_name)
        check_text("cursor_name", cursor_name)
        self._ensure_open()
        await self._look()
        digest = _digest(topic_name, cursor_name)
        found = (snapshot_id for snapshot_id, name in self._names.items() if digest in name)
        return sorted(snapshot_id for snapshot_id in found if snapshot_id not in self._unfinished)

    # -- making ------------------------------------------------------------------------------------------------------

    async def _create(self, snapshot_id: int, name: str, records: list[bytes]) -> None:
        """Write in a task of its own; cancelled meanwhile, that ends by deleting the log."""
        self._unfinished.add(snapshot_id)
        writing = self._chores.start(self._write(name, records))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._chores.start(self._abandon(snapshot_id, name, writing))
            raise
        except BaseException:
            self._unfinished.discard(snapshot_id)
            raise
        self._names[snapshot_id] = name
        self._unfinished.discard(snapshot_id)

    async def _write(self, name: str, records: list[bytes]) -> None:
        await self._delete_failed()
        try:
            log = await self._store.create(name)
        except LogStorageError:
            self._failed.add(name)  # the log may exist despite the error
            raise
        try:
            for group in groups(records, self._max_append):
                await log.append_many(group)
            await log.seal()
        except Exception:
            self._failed.add(name)
            await log.aclose()
            await self._delete_failed()
            raise
        await log.aclose()

    async def _abandon(self, snapshot_id: int, name: str, writing: asyncio.Task[None]) -> None:
        with suppress(Exception):  # nobody listens any more
            await writing
            self._failed.add(name)
            await self._delete_failed()
        self._unfinished.discard(snapshot_id)

    async def _delete_failed(self) -> None:
        for name in list(self._failed):
            with suppress(LedgerError):
                with suppress(LogNotFoundError):
                    await self._store.delete(name)
                self._failed.discard(name)

    def _new_id(self) -> int:
        at = min(self._clock.now_ms(), _LATEST_MS) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        self._last_id = max(at, self._last_id + 1)
        return self._last_id

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Learn which snapshots there are; what this run deletes or makes meanwhile is told right all the same."""
        known = dict(self._names)
        matches = [match for name in await self._store.names() if (match := _NAME.fullmatch(name))]
        listed = {int(match[2]): match[0] for match in matches}
        gone = {each for each in known if each not in self._names}
        made = {each: name for each, name in self._names.items() if each not in known}
        self._names = {each: name for each, name in listed.items() if each not in gone} | made
        self._last_id = max(self._last_id, *listed, 0)

    async def _name(self, snapshot_id: int) -> str:
        if snapshot_id not in self._names:
            await self._look()
        if snapshot_id not in self._names:
            raise SnapshotNotFoundError(snapshot_id)
        return self._names[snapshot_id]

    async def _open(self, snapshot_id: int) -> LogSnapshot:
        name = await self._name(snapshot_id)
        try:
            with readable(snapshot_id):
                log = await self._store.open_log(name, read_only=True)
        except SnapshotNotFoundError:
            self._names.pop(snapshot_id, None)
            raise
        try:
            return await LogSnapshot.read(log, snapshot_id)
        except BaseException:
            await log.aclose()
            raise

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError("LogSnapshotStorage")
        self._check_loop("the snapshots")


def log_name(topic_name: str, cursor_name: str, snapshot_id: int) -> str:
    """Return what the log of a snapshot is called."""
    return f"snapshot-{_digest(topic_name, cursor_name)}-{snapshot_id}"


def _digest(topic_name: str, cursor_name: str) -> str:
    return sha256(json.dumps([topic_name, cursor_name]).encode()).hexdigest()[:32]
