"""The ledgers of a local topic: logs with the entries, written one after the other.

A ledger is a log called ``ledger-<number>``; numbers rise. The last one grows until it is full or old; then it is
sealed, and only after that the next one is created. So nothing is ever added after the end of an earlier ledger, and
readers and cursors may skip that end for good.

One task writes entries, in the order of the calls; calls that arrive during a write share the next one. Cancelling a
call withdraws an entry that is not being written yet; one that is being written is added. A group is written as a whole
or not at all; an error is raised in all of its callers, and the next group is tried again.

A last ledger that has lost its tail gets no more entries: cursors, trackers of delayed messages and consumers may know
the positions of the lost entries, and would take new entries for them.

Cursors use it as their ``Ledgers``: only durable entries count.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from .._tasks import set_error
from ..clock import Clock
from ..config import TopicConfig
from ..cursor.format import cursors_in, delayed_cursor_of
from ..errors import (
    ClosedError,
    InvalidArgumentError,
    LedgerError,
    LogExistsError,
    LogLockedError,
    LogNotFoundError,
    TopicFormatError,
)
from ..ids import Position
from ..ledger import Log, LogStore
from ._entry import Entry, EntryCache, decode_entry, encode_entry

STATE: Final = "topic"
"""The part of its store that a topic takes."""
_NAME: Final = re.compile(r"ledger-(\d{20})")
_FIRST: Final = 1
_IN_USE: Final = "this topic is open already, here or in another process; one process at a time has it open"
_DURABLE: Final = re.compile(r"nacks-(owner|\d{10}(-base)?)")
_SHOWN: Final = 3
_GROUP: Final = 1 << 22
_HEAD: Final = 4
_log = logging.getLogger("pulsar_nack.topic")


def _name(ledger: int) -> str:
    return f"ledger-{ledger:020}"


class QueuedEntry(NamedTuple):
    """An entry to be written, and its bytes on storage."""

    data: bytes
    entry: Entry
    done: asyncio.Future[Position]


class TopicLedgers:
    """All entries of a topic; made by :meth:`open`."""

    def __init__(self, store: LogStore, logs: dict[int, Log], config: TopicConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._logs = logs
        self._ids = sorted(logs)
        self._queue: deque[QueuedEntry] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._published_at = 0
        self._begin(logs[self._ids[-1]])
        self.on_growth: Callable[[], None] = lambda: None
        """Called after entries were added."""
        self.cache = EntryCache(config.cache_bytes)
        self.reads = 0
        """How many entries were read from storage."""

    @classmethod
    async def open(cls, store: LogStore, config: TopicConfig, clock: Clock, first: int = _FIRST) -> Self:
        """Open all ledgers, or create the first one; if this fails, the caller closes the store and with it the logs.

        :param first: the id of the first ledger of a new topic
        :raises InvalidArgumentError: there are logs here, but none of a topic
        :raises LogLockedError: another process, or another object here, has the topic open
        """
        names = await store.names()
        ids = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        if names and not ids:
            raise InvalidArgumentError("home", *_other_logs(names))
        logs: dict[int, Log] = {}
        try:
            for ledger in ids[:-1]:
                logs[ledger] = await store.open_log(_name(ledger), read_only=True)
            if ids:
                logs[ids[-1]] = await store.open_log(_name(ids[-1]))
            last = logs[ids[-1]] if ids else None
            if last is None or last.is_sealed:
                following = ids[-1] + 1 if ids else first
                logs[following] = await store.create(_name(following))
        except LogLockedError as error:
            raise error.because(_IN_USE) from error
        self = cls(store, logs, config, clock)
        self._published_at = await self._last_publish_time()
        return self

    def _begin(self, log: Log) -> None:
        self._current = log
        self._began_at = self._clock.now_ms()

    # -- positions -----------------------------------------------------------------------------------------------------

    def entries(self, ledger: int) -> int | None:
        """Return how many entries a ledger has, None if there is no such ledger."""
        log = self._logs.get(ledger)
        return None if log is None else log.length

    def next_ledger(self, ledger: int) -> int | None:
        """Return the lowest ledger above this number."""
        at = bisect_right(self._ids, ledger)
        return self._ids[at] if at < len(self._ids) else None

    def previous_ledger(self, ledger: int) -> int | None:
        """Return the highest ledger below this number."""
        at = bisect_left(self._ids, ledger)
        return self._ids[at - 1] if at else None

    @property
    def ids(self) -> Sequence[int]:
        """Return the ledgers, in order."""
        return self._ids

    @property
    def last_position(self) -> Position:
        """Return the last position; entry -1 if the last ledger is empty."""
        return Position(self._ids[-1], self._logs[self._ids[-1]].length - 1)

    def last_entry(self) -> Position | None:
        """Return the position of the last entry, None if the topic is empty."""
        for ledger in reversed(self._ids):
            if entries := self.entries(ledger):
                return Position(ledger, entries - 1)
        return None

    @property
    def size(self) -> int:
        """Return about how many bytes all ledgers take."""
        return sum(log.size for log in self._logs.values())

    # -- appending and reading -----------------------------------------------------------------------------------------

    def publish_time(self) -> int:
        """Return the publish time of the next entry (epoch ms): that of an entry is never below those before it."""
        return max(self._clock.now_ms(), self._published_at)

    async def append(self, entries: Sequence[Entry]) -> list[Position]:
        """Add entries durably, after those of earlier calls; return their positions.

        :raises InvalidArgumentError: one of them is too large; none was added
        :raises LedgerError: one could not be written; none, or not all of them, was added
        """
        encoded = [self._encoded(entry) for entry in entries]
        self._published_at = entries[-1].publish_time_ms
        return await asyncio.gather(*map(self._append, entries, encoded))

    def _encoded(self, entry: Entry) -> bytes:
        data = encode_entry(entry)
        if len(data) > self._config.max_entry_bytes:
            limit = f"at most {self._config.max_entry_bytes:,} bytes (max_entry_bytes)"
            raise InvalidArgumentError("payload", f"{len(data):,} bytes as an entry", limit)
        return data

    async def _append(self, entry: Entry, data: bytes) -> Position:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Position] = loop.create_future()
        self._queue.append(QueuedEntry(data, entry, done))
        if self._writing is None:
            self._writing = loop.create_task(self._write_all(), name="pulsar_nack.LocalTopic write")
        return await done

    async def _write_all(self) -> None:
        try:
            await asyncio.sleep(0)  # calls in this turn of the loop share the write
            while self._queue:
                await self._write_some()
        finally:
            self._writing = None
            for waiting in self._queue:
                waiting.done.cancel()

    async def _write_some(self) -> None:
        """Write as many queued entries as fit into the ledger, and not too many at a time."""
        group: list[QueuedEntry] = []
        try:
            if self._is_full():
                await self._roll()
            ledger, log = self._ids[-1], self._current
            group = self._take(self._config.max_entries_per_ledger - log.length)
            first = await log.append_many([waiting.data for waiting in group]) if group else 0
        except BaseException as error:
            for waiting in group or self._take(len(self._queue)):
                set_error(waiting.done, error)
            if not isinstance(error, Exception):
                raise
            return
        for number, waiting in enumerate(group, first):
            self.cache.put(Position(ledger, number), waiting.entry, len(waiting.data))
        self.on_growth()
        for number, waiting in enumerate(group, first):
            if not waiting.done.done():
                waiting.done.set_result(Position(ledger, number))

    def _take(self, limit: int) -> list[QueuedEntry]:
        """Take entries from the queue, without those that were withdrawn."""
        group: list[QueuedEntry] = []
        size = 0
        while self._queue and len(group) < limit:
            size += len(self._queue[0].data) + _HEAD
            if group and size > _GROUP:
                break
            waiting = self._queue.popleft()
            if not waiting.done.done():
                group.append(waiting)
        return group

    def _is_full(self) -> bool:
        config, log = self._config, self._current
        if log.is_sealed:
            return True
        if not log.length:
            return False
        age = self._clock.now_ms() - self._began_at
        return (
            log.length >= config.max_entries_per_ledger
            or log.size >= config.max_ledger_bytes
            or age >= config.max_ledger_age.total_seconds() * 1000
        )

    @property
    def is_torn(self) -> bool:
        """Return whether the last ledger ended within an entry when it was opened; that entry is dropped."""
        return bool(getattr(self._current, "cut", 0))

    async def continue_after(self, ledger: int) -> None:
        """Continue in a new ledger, above the last one and above ``ledger``, because entries were lost.

        :raises LedgerError: storage refused; nothing was published since
        """
        _log.warning(
            "the topic's last ledger, %d, ends within an entry, or has lost entries that a cursor acknowledged: it"
            " keeps %d entries, and new messages go into ledger %d",
            self._ids[-1],
            self._current.length,
            max(ledger, self._ids[-1]) + 1,
        )
        await self._roll(above=ledger)

    async def _roll(self, *, above: int = 0) -> None:
        """Continue in a new ledger; if that fails, the next call of ``append`` tries again."""
        await self._current.seal()
        ledger = max(self._ids[-1], above) + 1
        log = await self._create(ledger)
        self._logs[ledger] = log
        self._ids.append(ledger)
        self._begin(log)

    async def _create(self, ledger: int) -> Log:
        try:
            return await self._store.create(_name(ledger))
        except LogExistsError:  # left behind by a failed attempt
            log = await self._store.open_log(_name(ledger))
        if log.length or log.is_sealed:
            await log.aclose()
            raise LogExistsError(_name(ledger))
        return log

    async def read(self, ledger: int, first: int, last: int) -> list[Entry]:
        """Return entries of a ledger, both ends included; those that are not in memory are read from storage.

        :raises LedgerError: they could not be read
        :raises TopicFormatError: one of them is no entry of a topic
        """
        found: list[Entry] = []
        number = first
        while number <= last:
            kept = self.cache.get(Position(ledger, number))
            if kept is not None:
                found.append(kept)
                number += 1
                continue
            end = number
            while end < last and self.cache.get(Position(ledger, end + 1)) is None:
                end += 1
            found += map(decode_entry, await self._read(ledger, number, end))
            number = end + 1
        return found

    async def _read(self, ledger: int, first: int, last: int) -> list[bytes]:
        log = self._logs.get(ledger)
        if log is None:
            raise LogNotFoundError(_name(ledger))
        try:
            records = await log.read(first, last)
        except (ClosedError, LedgerError):
            if self._logs.get(ledger) is log:
                raise
            raise LogNotFoundError(_name(ledger)) from None  # it was deleted meanwhile
        self.reads += len(records)
        return records

    async def _last_publish_time(self) -> int:
        """Return when the last entry was published (epoch ms), 0 if it cannot be read or the topic is empty."""
        last = self.last_entry()
        if last is None:
            return 0
        try:
            return await self._publish_time(*last)
        except (LedgerError, TopicFormatError):
            return 0  # reading fails again where it matters

    async def first_published(self, since_ms: int) -> Position:
        """Return the first entry that was published then or later, or the position of the next one.

        Publish times never decrease. O(ledgers + log entries) reads.
        """
        while True:
            first = self._ids[0]
            try:
                return await self._first_published(since_ms)
            except LogNotFoundError:
                if self._ids[0] == first:
                    raise  # otherwise a ledger was deleted meanwhile

    async def _first_published(self, since_ms: int) -> Position:
        for ledger in list(self._ids):
            low, high = 0, self.entries(ledger) or 0
            if not high or await self._publish_time(ledger, high - 1) < since_ms:
                continue
            while low < high:
                middle = (low + high) // 2
                if await self._publish_time(ledger, middle) < since_ms:
                    low = middle + 1
                else:
                    high = middle
            return Position(ledger, low)
        last = self.last_position
        return Position(last.ledger, last.entry + 1)

    async def _publish_time(self, ledger: int, entry: int) -> int:
        return (await self.read(ledger, entry, entry))[0].publish_time_ms

    async def trim(self, before: int) -> None:
        """Delete the ledgers below this number, except the last one of all; they disappear before they are deleted."""
        trimmed = [ledger for ledger in self._ids[:-1] if ledger < before]
        del self._ids[: len(trimmed)]
        logs = [self._logs.pop(ledger) for ledger in trimmed]
        self.cache.drop_below(before)
        for ledger, log in zip(trimmed, logs, strict=True):
            await log.aclose()
            await self._store.delete(_name(ledger))

    async def aclose(self) -> None:
        """Write the entries that wait, and close all logs."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        for log in self._logs.values():
            await log.aclose()


def _other_logs(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names of logs that are not a topic's, and what was expected, for an error."""
    if any(map(_DURABLE.fullmatch, names)):
        whose = "there is the durable state of a consumer"
    elif any(delayed_cursor_of(each) is None for each in cursors_in(names)):
        whose = "there are logs of a cursor"
    else:
        whose = "there are other logs"
    return list(names[:_SHOWN]), f"a folder or a store of this topic alone; {whose}"
