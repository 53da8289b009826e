"""A cursor's log: the states of the ledgers that changed, then one marker, which alone makes them count.

What lies there
    *Entries*, one or several records for each ledger that was dirty, and *markers*: the mark-delete position, the
    properties, and for each ledger the numbers of the records that hold its state. A marker is whole, or says what is
    different from the one before it; a whole one comes when reading the chain back would cost more than it does.
    In the old form a record is entry and marker in one.

The commit point
    is the last record of a marker. What was appended before it without one does not exist after a crash. Entries and
    marker go into one append where they fit, hence one sync; nothing depends on that, for markers stand last and name
    numbers, and the numbers of a log have no gaps.

Which log counts
    Each marker has a sequence number, a new one for each try. The usable marker with the highest one counts, in
    whatever log it is: so a rollover that failed half way, even one whose marker may or may not be there, is overtaken
    by the next commit to the old log. Whoever opens the cursor begins a higher range of numbers.

Rollover
    A new log; a snapshot beside it; exactly the records that count, copied; a whole marker; the seal of the old log;
    then the pending commit, and only then the old log is deleted. On object storage somebody else may take the cursor
    over meanwhile: then the seal fails, and so does whatever would make, open or delete a log. In the old form nothing
    is copied, for the pending commit is whole. A log that is damaged is neither sealed nor deleted: it stays locked
    here, and then as it is.

After an append failed, the log is as it was, and the next commit tries everything again under a new sequence number.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..config import CursorConfig
from ..errors import (
    ClosedError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogSealedError,
)
from ..ledger import Log
from ..ledger.ownership import OwnedStore
from ._chain import Contents, Head, encode_delta, encode_whole, rough_size
from ._found import Found
from ._generations import Names
from ._leftovers import Leftover
from ._records import APPEND, Stored, allot, append_all, groups, read_numbers, size_of
from ._rollover import copy_states
from ._snapshot import MOST, Snapshots

EPOCH: Final = 32
GROUP: Final = 1 << 18
"""Bytes of states that are appended at a time."""
_GROWTH: Final = 4
_MOST_DELTAS: Final = 64
_SNAPSHOT_EVERY: Final = 1_000
_TRIES: Final = 20


class LedgerRecords(NamedTuple):
    """The records of a ledger's state; none: nothing is to be kept of it."""

    ledger: int
    records: Sequence[bytes]


@dataclass(slots=True)
class Chain:
    """The last marker's number, and how many, and how large, the deltas since the last whole one are."""

    last: int
    length: int = 0
    size: int = 0


class CursorLog:
    """The log of one cursor, open for writing. Commits are made one at a time, and are never cancelled."""

    def __init__(self, store: OwnedStore, names: Names, config: CursorConfig, found: Found) -> None:
        self.index: dict[int, Stored] = {}
        """Where each ledger's state lies that the last marker names. Read only."""
        self.commits = 0
        self.rollovers = 0
        self.bytes_written = 0
        self._store = store
        self._names = names
        self._config = config
        self._log = found.log
        self._generation = found.generation
        self._next_generation = found.next_generation
        self._sequence = ((found.sequence >> EPOCH) + 1) << EPOCH
        self._committed = found.contents
        self._is_single = found.is_single
        self._must_roll = found.must_roll
        self._leftovers = found.leftovers
        self._is_damaged = found.is_damaged
        self._kept = found.kept
        self._owes_commit = False
        self._snapshots = Snapshots(store, names.snapshot(found.generation))
        self._chain: Chain | None = None
        self._roll_floor = 0
        self._live_size = 0
        self._live_records = 0
        self._update(found.index, ())

    @property
    def size(self) -> int:
        """Return about how many bytes the log takes."""
        return self._log.size

    @property
    def name(self) -> str:
        """Return what the log in use is called."""
        return self._log.name

    @property
    def committed(self) -> Contents | None:
        """Return what the last marker says, beside where the ledgers are."""
        return self._committed

    async def prepare(self, contents: Contents) -> None:
        """Do what has to be done before each commit: go on in a new log, or say that the position goes back.

        :param contents: what is to be committed, but for what still changes; the position may only go forward
        :raises LedgerError: it could not be done; the last marker counts
        """
        if self._must_roll:
            await self._roll_over()
        elif self._is_due():
            await self._try_to_roll_over()
        last = self._committed
        if last is not None and contents.mark_delete < last.mark_delete:
            await self._snapshots.write(self.next_head(contents))

    async def commit(self, states: AsyncGenerator[LedgerRecords], contents: Callable[[], Contents]) -> None:
        """Write ledgers' states and a marker; all of it counts when this returns, and none when it fails.

        States are written while further ones are still being made, about :data:`GROUP` bytes at a time, so that not
        all of them are in memory at once.

        :param states: the records of each ledger that changed
        :param contents: what the marker is to say, asked for when the last state was taken
        :raises LedgerError: it could not be written; the last marker counts
        """
        changes: dict[int, Stored] = {}
        dropped: list[int] = []
        waiting: dict[int, Sequence[bytes]] = {}
        size = 0
        async with aclosing(states):
            async for ledger, records in states:
                if size > GROUP:
                    changes.update(await self._append_states(waiting))
                    waiting, size = {}, 0
                if records:
                    waiting[ledger] = records
                    size += size_of(records)
                elif ledger in self.index:
                    dropped.append(ledger)
        final = contents()  # nothing else has run since the last state was taken
        whole = self._wants_whole(len(changes) + len(waiting) + len(dropped))
        if size > 2 * APPEND:
            changes.update(await self._append_states(waiting))
            waiting = {}
        last = [record for parts in waiting.values() for record in parts]
        predicted = range(self._log.length, self._log.length + len(last))
        changes.update(allot(waiting, predicted))
        marker = self._marker(changes, dropped, final, is_whole=whole)
        numbers = await self._append([*last, *marker])
        self._check_numbers(numbers[: len(last)], predicted)
        self._link(numbers[-1], size_of(marker), is_whole=whole)
        self._update(changes, dropped)
        await self._note_commit(final, is_single=False)

    async def _append_states(self, states: Mapping[int, Sequence[bytes]]) -> dict[int, Stored]:
        """Append ledgers' records without a marker; return where they lie."""
        numbers: list[int] = []
        for group in groups(record for parts in states.values() for record in parts):
            numbers += await self._append(group)
        return allot(states, numbers)

    async def commit_single(self, record: bytes, contents: Contents) -> None:
        """Write the whole state in the old form: one record, which counts when this returns.

        :raises LedgerError: it could not be written; what was there counts
        """
        await self._append([record])
        self._chain = None
        self._update({}, list(self.index))
        await self._note_commit(contents, is_single=True)

    def next_head(self, contents: Contents) -> Head:
        """Return what a record that commits begins with, under a new sequence number."""
        self._sequence += 1
        return Head(self._sequence, contents)

    async def read(self, ledger: int) -> list[bytes]:
        """Read a ledger's records.

        :raises LogCorruptedError: one is damaged
        :raises LogStorageError: the store refused
        """
        while True:
            log = self._log
            try:
                return await read_numbers(log, self.index[ledger].numbers)
            except (ClosedError, LedgerError):
                if log is self._log:
                    raise  # else it goes on in a new log since

    async def aclose(self) -> None:
        """Leave a snapshot and close the log; what was not committed is not written. Idempotent."""
        if self._committed is not None and self.commits:
            with suppress(LedgerError):
                await self._snapshots.advance(self.next_head(self._committed))
        if not self._owes_commit:
            await self._clean()
        await self._store.aclose()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _append(self, records: Sequence[bytes]) -> list[int]:
        """Append records, about as many bytes at a time as one append takes; return their numbers."""
        try:
            numbers = await append_all(self._log, records)
        except LogSealedError:
            self._must_roll = True
            raise
        self.bytes_written += size_of(records)
        return numbers

    def _marker(
        self, changes: Mapping[int, Stored], dropped: Collection[int], contents: Contents, *, is_whole: bool
    ) -> list[bytes]:
        head = self.next_head(contents)
        limit = self._config.max_entry_bytes
        before = self._committed
        if not is_whole and self._chain is not None and before is not None:
            return encode_delta(head, changes, dropped, base=self._chain.last, before=before, limit=limit)
        index = {**self.index, **changes}
        for ledger in dropped:
            index.pop(ledger, None)
        return encode_whole(head, index, limit=limit)

    def _wants_whole(self, changes: int) -> bool:
        chain = self._chain
        if chain is None or chain.length >= _MOST_DELTAS or 2 * changes >= len(self.index):
            return True
        return chain.size >= rough_size(len(self.index))

    def _link(self, number: int, size: int, *, is_whole: bool) -> None:
        if is_whole or self._chain is None:
            self._chain = Chain(number)
        else:
            self._chain = Chain(number, self._chain.length + 1, self._chain.size + size)

    def _check_numbers(self, numbers: Sequence[int], predicted: Sequence[int]) -> None:
        if list(numbers) != list(predicted):
            raise LogCorruptedError(self._log.name, f"record {numbers[0]}", 0, "somebody else appends to this log")

    def _update(self, changes: Mapping[int, Stored], dropped: Iterable[int]) -> None:
        """Make the index what the last marker says."""
        for ledger in [*changes, *dropped]:
            before = self.index.pop(ledger, None)
            if before is not None:
                self._live_size -= before.size
                self._live_records -= len(before.numbers)
        for ledger, stored in changes.items():
            self.index[ledger] = stored
            self._live_size += stored.size
            self._live_records += len(stored.numbers)

    async def _note_commit(self, contents: Contents, *, is_single: bool) -> None:
        """Take over what was committed; only now may the log that was left be deleted."""
        self._committed, self._is_single = contents, is_single
        self.commits += 1
        if self.commits % _SNAPSHOT_EVERY == 1:
            with suppress(LedgerError):
                await self._snapshots.advance(self.next_head(contents))
        if self._owes_commit or self.commits == 1:
            self._owes_commit = False
            await self._clean()

    # --- going on in a new log ---------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        log, config = self._log, self._config
        if log.size < self._roll_floor:
            return False
        live = self._live_size + rough_size(len(self.index))
        if log.size >= max(config.rollover_bytes, _GROWTH * live):
            return True
        most = max(config.managed_ledger_cursor_max_entries_per_ledger, _GROWTH * (self._live_records + 1))
        return log.length >= most or self._snapshots.length >= MOST

    async def _try_to_roll_over(self) -> None:
        """Go on in a new log; where that fails, the old one will do, until it has grown further."""
        try:
            await self._roll_over()
        except LogFencedError:
            raise
        except LedgerError:
            self._roll_floor = 2 * self._log.size

    async def _roll_over(self) -> None:
        new, generation = await self._create()
        snapshots = Snapshots(self._store, self._names.snapshot(generation))
        old = self._log
        try:
            index, last = await self._copy(new, snapshots)
            if not self._is_damaged:
                await old.seal()
        except Exception:
            self._must_roll |= old.is_sealed
            await Leftover(new, snapshots).delete()
            raise
        if self._is_damaged:
            self._kept.append(old)
            await self._snapshots.aclose()
        else:
            self._leftovers.append(Leftover(old, self._snapshots))
        self._is_damaged = False
        self._log, self._generation, self._snapshots = new, generation, snapshots
        self._chain = None if last is None else Chain(last)
        self._must_roll, self._roll_floor, self._owes_commit = False, 0, True
        self._update(index, ())
        self.rollovers += 1

    async def _create(self) -> tuple[Log, int]:
        for _ in range(_TRIES):
            generation = self._next_generation
            self._next_generation += 1
            with suppress(LogExistsError):
                return await self._store.create(self._names.log(generation)), generation
        raise LogExistsError(self._names.log(self._next_generation - 1))

    async def _copy(self, new: Log, snapshots: Snapshots) -> tuple[dict[int, Stored], int | None]:
        """Copy what counts to a new log; return where it lies there, and the number of its marker."""
        if self._committed is None or self._is_single:
            return {}, None  # the pending commit is whole
        await snapshots.write(self.next_head(self._committed))
        copied = await copy_states(self._log, self.index, new)
        marker = encode_whole(self.next_head(self._committed), copied.where, limit=self._config.max_entry_bytes)
        numbers = await append_all(new, marker)
        self.bytes_written += copied.size + size_of(marker)
        return copied.where, numbers[-1]

    async def _clean(self) -> None:
        """Delete what does not count any more; what cannot be deleted is left to the next opening."""
        while self._leftovers:
            await self._leftovers.pop().delete()
