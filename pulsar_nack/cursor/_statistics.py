"""The statistics of a cursor."""

from __future__ import annotations

from dataclasses import dataclass

from ._acks import AckState
from ._cache import LedgerCache
from ._writer import CursorWriter, Flusher
from .logs import CursorLog


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """A snapshot of a cursor.

    :param ledgers_in_memory: ledgers whose state is in memory
    :param ledgers_on_storage: ledgers whose state is on storage only
    :param memory_bytes: about how many bytes the states in memory take
    :param metadata_size_bytes: what writing the whole live state would take
    :param dirty_ledgers: ledgers that differ from what is on storage
    :param flushes: writes that succeeded
    :param failed_flushes: writes that failed
    :param rollovers: how often the cursor continued in a new log
    :param bytes_written: bytes of all records that were written
    :param loads: ledgers that were read back from storage
    :param evictions: ledgers that were evicted from memory
    :param dropped_ranges: ranges that the last write in the legacy format left out
    :param dropped_batches: batch sets that it left out
    :param cut_entries: acknowledgements that were dropped at opening because their ledger has lost the entries
    """

    ledgers_in_memory: int
    ledgers_on_storage: int
    memory_bytes: int
    metadata_size_bytes: int
    dirty_ledgers: int
    flushes: int
    failed_flushes: int
    rollovers: int
    bytes_written: int
    loads: int
    evictions: int
    dropped_ranges: int
    dropped_batches: int
    cut_entries: int


def cursor_statistics(
    state: AckState, log: CursorLog, cache: LedgerCache, writer: CursorWriter, flusher: Flusher
) -> CursorStatistics:
    """Return a snapshot of a cursor that consists of these parts."""
    table = state.table
    return CursorStatistics(
        ledgers_in_memory=len(table.states),
        ledgers_on_storage=len(table.evicted),
        memory_bytes=table.memory_bytes,
        metadata_size_bytes=writer.metadata_size_bytes,
        dirty_ledgers=len(table.dirty),
        flushes=log.commits,
        failed_flushes=flusher.failures,
        rollovers=log.rollovers,
        bytes_written=log.bytes_written,
        loads=cache.loads,
        evictions=cache.evictions,
        dropped_ranges=writer.dropped_ranges,
        dropped_batches=writer.dropped_batches,
        cut_entries=state.cut_entries,
    )
