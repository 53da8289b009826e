"""A cursor's log: the states of the ledgers that changed, then one marker, which alone makes them count.

It also serves cursors that have a position and properties only, which open it by :func:`open_without_acks`.

Records
    *Ledgers' states*, one or several records for each ledger that was dirty, and *markers*: the mark-delete position,
    the properties, and for each ledger the numbers of the records that hold its state. A marker is full, or a delta
    that says what is different from the one before; a full one is written when reading the chain of deltas would cost
    more. In the legacy format one record is state and marker.

Commit point
    The last record of a marker. Records without a marker after them do not count after a crash. States and marker go
    into one append if they fit, hence one sync; nothing depends on that, because markers come last and name record
    numbers, and the numbers of a log have no gaps.

Which log counts
    Each marker has a sequence number, a new one for each attempt. The usable marker with the highest one counts, in
    whatever log it is: so a rollover that failed half way, even one whose marker may or may not be there, is superseded
    by the next commit to the old log. Each opening begins a higher range of numbers.

Rollover
    Create a new log and a snapshot beside it; copy exactly the records that count; write a full marker; seal the old
    log; then the pending commit, and only then delete the old log. On object storage another process may take the
    cursor over meanwhile: then the seal fails, and so does every creation, opening or deletion of a log. After a seal
    that failed, the old log may be sealed: then the next commit has to roll over. In the legacy format nothing is
    copied, because the pending commit is complete. A damaged log is neither sealed nor deleted: it stays locked until
    the cursor is closed, and is left as it is.

After a failed append the log is unchanged, and the next commit tries everything again under a new sequence number.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Final

from ..config import CursorConfig
from ..errors import (
    ClosedError,
    InvalidArgumentError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogSealedError,
)
from ..ledger import Log, LogStore
from ..ledger.format import body_size, group_records
from ..ledger.ownership import OwnableStore, close_on_error, take_ownership
from ._generations import MAX_SNAPSHOTS, Generation, RecoveredLog, recover
from ._records import APPEND, StoredRecords, append_all, assign_numbers, copy_states, read_numbers
from .format import LogNames, Marker, MarkerContents, encode_marker
from .format._marker import changed_properties, estimated_marker_size
from .format._record import messages

__all__ = ["CursorLog", "open_without_acks"]

EPOCH: Final = 32
GROUP: Final = 1 << 18
"""Bytes of states that are appended together."""
_GROWTH: Final = 4
_MAX_DELTAS: Final = 64
_SNAPSHOT_EVERY: Final = 1_000
_TRIES: Final = 20

LedgerRecords = tuple[int, Sequence[bytes]]
"""A ledger and the records of its state; without records, nothing of the ledger is acknowledged."""


class CursorLog:
    """The log of one cursor, open for writing. There is one commit at a time, and it is never cancelled."""

    def __init__(self, store: OwnableStore, names: LogNames, config: CursorConfig, found: RecoveredLog) -> None:
        self.index: dict[int, StoredRecords] = {}
        """Where the ledgers' states lie, as the last marker says. Read only."""
        self.commits = 0
        self.rollovers = 0
        self.bytes_written = 0
        self._store = store
        self._names = names
        self._config = config
        self._log = found.log
        self._next_generation = found.next_generation
        self._sequence = ((found.sequence >> EPOCH) + 1) << EPOCH
        self._committed = found.state.contents
        self._is_legacy = found.state.is_legacy
        self._must_roll = found.must_roll
        self._obsolete = found.obsolete
        self._is_damaged = found.is_damaged
        self._kept = found.kept
        self._has_snapshots = found.has_snapshots
        self._owes_commit = False
        self._generation = Generation(store, names, found.generation, found.log)
        self._last_marker: int | None = None
        self._deltas = self._delta_bytes = 0
        self._roll_floor = 0
        self._live_size = 0
        self._live_records = 0
        self._update(found.state.index, ())

    @property
    def committed(self) -> MarkerContents | None:
        """Return what the last marker says, None before the first one."""
        return self._committed

    async def prepare(self, contents: MarkerContents) -> None:
        """Prepare a commit: continue in a new log if that is due; write a snapshot if the position moves back.

        :param contents: what is to be committed, as of now; until the commit the position may only move forward
        :raises LedgerError: the preparation failed; the last marker counts
        """
        if self._must_roll:
            await self._roll_over()
        elif self._is_due():
            await self._try_to_roll_over()
        last = self._committed
        if last is not None and contents.mark_delete < last.mark_delete:
            await self._generation.write_snapshot(Marker(self.next_sequence(), contents))

    async def commit(self, states: AsyncGenerator[LedgerRecords], contents: Callable[[], MarkerContents]) -> None:
        """Write ledgers' states and a marker; all of it counts when this returns, and nothing when it fails.

        States are written while further ones are being encoded, about :data:`GROUP` bytes at a time, so that not all of
        them are in memory at once.

        :param states: the records of each ledger that changed
        :param contents: returns what the marker is to say; called after the last state was taken
        :raises LedgerError: the commit could not be written; the last marker counts
        """
        changes: dict[int, StoredRecords] = {}
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
                    size += body_size(records)
                elif ledger in self.index:
                    dropped.append(ledger)
        final = contents()  # nothing else has run since the last state was taken
        before = {} if self._committed is None else self._committed.cursor_properties
        changed = changed_properties(before, final.cursor_properties)
        full = self._wants_full(len(changes) + len(waiting) + len(dropped), final, changed)
        if size > 2 * APPEND:
            changes.update(await self._append_states(waiting))
            waiting = {}
        last = [record for parts in waiting.values() for record in parts]
        predicted = range(self._log.length, self._log.length + len(last))
        changes.update(assign_numbers(waiting, predicted))
        marker = self._marker(changes, dropped, final, None if full else changed)
        numbers = await self._append([*last, *marker])
        self._check_numbers(numbers[: len(last)], predicted)
        self._link(numbers[-1], body_size(marker), is_full=full)
        self._update(changes, dropped)
        await self._note_commit(final, is_legacy=False)

    async def _append_states(self, states: Mapping[int, Sequence[bytes]]) -> dict[int, StoredRecords]:
        """Append ledgers' states without a marker; return where they lie."""
        numbers: list[int] = []
        for group in group_records((record for parts in states.values() for record in parts), APPEND):
            numbers += await self._append(group)
        return assign_numbers(states, numbers)

    async def write(self, contents: MarkerContents) -> None:
        """Write a marker with these contents, and leave the ledgers' states as they are.

        :raises LedgerError: it could not be written; the last marker counts
        """

        async def no_states() -> AsyncGenerator[LedgerRecords]:
            for each in nothing:
                yield each

        nothing: tuple[LedgerRecords, ...] = ()
        await self.prepare(contents)
        await self.commit(no_states(), lambda: contents)

    async def commit_legacy(self, record: bytes, contents: MarkerContents) -> None:
        """Write the whole state in the legacy format: one record, which counts when this returns.

        :raises LedgerError: it could not be written; the last marker counts
        """
        await self._append([record])
        self._last_marker = None
        self._update({}, list(self.index))
        await self._note_commit(contents, is_legacy=True)

    def next_sequence(self) -> int:
        """Return a new sequence number, for the next marker."""
        self._sequence += 1
        return self._sequence

    async def read(self, ledger: int) -> list[bytes]:
        """Read a ledger's records; none if the mark-delete position has passed it.

        :raises LogCorruptedError: one is damaged
        :raises LogStorageError: the store refused
        """
        while True:
            log, stored = self._log, self.index.get(ledger)
            try:
                return [] if stored is None else await read_numbers(log, stored.numbers)
            except (ClosedError, LedgerError):
                if log is self._log:
                    raise  # otherwise the cursor has continued in a new log

    async def aclose(self) -> None:
        """Write a snapshot and close the log, without another commit. Idempotent."""
        if self._committed is not None and self.commits:
            await self._advance_snapshots(self._committed)
        if not self._owes_commit:
            await self.clean()
        await self._store.aclose()

    def close_soon(self) -> None:
        """Begin to close the log, which continues without a caller."""
        self._store.close_soon()

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _append(self, records: Sequence[bytes]) -> list[int]:
        """Append records, a bounded part at a time; return their numbers."""
        try:
            numbers = await append_all(self._log, records)
        except LogSealedError:
            self._must_roll = True
            raise
        self.bytes_written += body_size(records)
        return numbers

    def _marker(
        self,
        changes: Mapping[int, StoredRecords],
        dropped: Collection[int],
        contents: MarkerContents,
        changed: Mapping[str, str | None] | None,
    ) -> list[bytes]:
        """Return the records of a marker: a delta with these changed properties, or a full one if they are None."""
        sequence = self.next_sequence()
        if changed is not None:
            contents = contents._replace(cursor_properties={})
            marker = Marker(sequence, contents, _references(changes), self._last_marker, tuple(dropped), changed)
        else:
            references = _references({**self.index, **changes})
            for ledger in dropped:
                references.pop(ledger, None)
            marker = Marker(sequence, contents, references)
        return encode_marker(marker, limit=self._config.max_entry_bytes)

    def _wants_full(self, changes: int, contents: MarkerContents, changed: Mapping[str, str | None]) -> bool:
        if self._last_marker is None or self._committed is None or self._deltas >= _MAX_DELTAS:
            return True
        full = estimated_marker_size(len(self.index), contents.cursor_properties)
        empty, delta = estimated_marker_size(0, {}), estimated_marker_size(changes, changed)
        return self._delta_bytes >= full or 2 * (delta - empty) >= full - empty

    def _link(self, number: int, size: int, *, is_full: bool) -> None:
        """Note the last marker, and how many deltas there are since the last full one."""
        self._last_marker = number
        self._deltas, self._delta_bytes = (0, 0) if is_full else (self._deltas + 1, self._delta_bytes + size)

    def _check_numbers(self, numbers: Sequence[int], predicted: Sequence[int]) -> None:
        if list(numbers) != list(predicted):
            raise LogCorruptedError(self._log.name, f"record {numbers[0]}", 0, "another process appends to this log")

    def _update(self, changes: Mapping[int, StoredRecords], dropped: Iterable[int]) -> None:
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

    async def _note_commit(self, contents: MarkerContents, *, is_legacy: bool) -> None:
        """Note a commit; only now may the old log be deleted after a rollover."""
        self._committed, self._is_legacy = contents, is_legacy
        self.commits += 1
        if self.commits % _SNAPSHOT_EVERY == 1:
            await self._advance_snapshots(contents)
        if self._owes_commit or self.commits == 1:
            self._owes_commit = False
            await self.clean()

    async def _advance_snapshots(self, contents: MarkerContents) -> None:
        if self._has_snapshots:
            with suppress(LedgerError):
                await self._generation.advance_snapshot(Marker(self.next_sequence(), contents))

    # --- continuing in a new log -------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        log, config = self._log, self._config
        if log.size < self._roll_floor:
            return False
        if log.size >= config.rollover_bytes:
            strings = {} if self._committed is None else self._committed.cursor_properties
            live = self._live_size + estimated_marker_size(len(self.index), strings)
            if log.size >= _GROWTH * live:
                return True
        limit = max(config.managed_ledger_cursor_max_entries_per_ledger, _GROWTH * (self._live_records + 1))
        return log.length >= limit or self._generation.snapshot_count >= MAX_SNAPSHOTS

    async def _try_to_roll_over(self) -> None:
        """Continue in a new log; if that fails, keep the old one, if it is not sealed, until it has grown further."""
        try:
            await self._roll_over()
        except LogFencedError:
            raise
        except LedgerError:
            if self._must_roll:
                raise
            self._roll_floor = 2 * self._log.size

    async def _roll_over(self) -> None:
        new, generation = await self._create()
        old = self._log
        try:
            index, last = await self._copy(new, generation)
            if not self._is_damaged:
                self._must_roll = True  # even if this fails
                await old.seal()
        except Exception:
            await generation.delete()
            raise
        if self._is_damaged:
            self._kept.append(old)
            await self._generation.close_snapshots()
        else:
            self._obsolete.append(self._generation)
        self._is_damaged = False
        self._log, self._generation = new, generation
        self._last_marker, self._deltas, self._delta_bytes = last, 0, 0
        self._must_roll, self._roll_floor, self._owes_commit = False, 0, True
        self._update(index, ())
        self.rollovers += 1

    async def _create(self) -> tuple[Log, Generation]:
        for _ in range(_TRIES):
            number = self._next_generation
            self._next_generation += 1
            with suppress(LogExistsError):
                log = await self._store.create(self._names.log(number))
                return log, Generation(self._store, self._names, number, log)
        raise LogExistsError(self._names.log(self._next_generation - 1))

    async def _copy(self, new: Log, generation: Generation) -> tuple[dict[int, StoredRecords], int | None]:
        """Copy the records that count to a new log; return where they lie there, and the number of the marker."""
        if self._committed is None or self._is_legacy:
            return {}, None  # the pending commit is complete
        if self._has_snapshots:
            await generation.write_snapshot(Marker(self.next_sequence(), self._committed))
        copied, size = await copy_states(self._log, self.index, new)
        marker = Marker(self.next_sequence(), self._committed, _references(copied))
        records = encode_marker(marker, limit=self._config.max_entry_bytes)
        numbers = await append_all(new, records)
        self.bytes_written += size + body_size(records)
        return copied, numbers[-1]

    async def clean(self) -> None:
        """Delete obsolete logs; those that cannot be deleted are left to the next opening."""
        while self._obsolete:
            await self._obsolete.pop().delete()


async def open_without_acks(store: LogStore, names: LogNames, config: CursorConfig) -> CursorLog:
    """Open the log of a cursor that has a position and properties, and acknowledges nothing beyond the position.

    :raises InvalidArgumentError: a cursor with acknowledgements has this name
    :raises LogCorruptedError: the log is damaged, or is not that of a cursor; nothing was changed
    :raises LedgerError: it cannot be opened
    :raises MissingExtraError: protobuf is not installed
    """
    messages()
    part = await take_ownership(store, names.cursor)
    async with close_on_error([part]):
        found = await recover(part, names, None, None, salvage=False)
        if found.state.states:
            raise InvalidArgumentError("name", names.cursor, "a name that no Cursor with acknowledgements has")
        if found.snapshot is not None:
            raise LogCorruptedError(found.log.name, "its last record", 0, "it is missing: there is a snapshot of it")
        log = CursorLog(part, names, config, found)
        await log.clean()
        return log


def _references(index: Mapping[int, StoredRecords]) -> dict[int, tuple[int, ...]]:
    return {ledger: stored.numbers for ledger, stored in index.items()}
