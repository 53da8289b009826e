"""What a cursor knows without waiting: nothing here loads anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import CursorConfig
from ..ids import Position
from ..index import EntryRanges
from ._cache import LedgerCache
from ._flusher import Flusher
from ._loading import Loading
from ._marker_size import MarkerSize
from ._opening import Opened
from ._writing import Writing


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """A snapshot of a cursor.

    :param ledgers_in_memory: ledgers whose state is in memory, beyond the mark-delete position
    :param ledgers_on_storage: ledgers whose state is on storage only
    :param memory_bytes: about what the states in memory take
    :param metadata_size_bytes: what writing the whole live state would take
    :param dirty_ledgers: ledgers that differ from what is on storage
    :param flushes: writes that were made
    :param failed_flushes: writes that failed
    :param rollovers: how often it went on in a new log
    :param bytes_written: bytes of all records that were written
    :param loads: ledgers that were read back from storage
    :param evictions: ledgers that were put out of memory
    :param dropped_ranges: ranges that the last write in the old form left out
    :param dropped_batches: sets of partly acknowledged batches that it left out
    :param cut_entries: acknowledgements that were dropped at opening, because their ledger has lost the entries
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


class CursorFigures:
    """The part of a cursor that only looks."""

    _flusher: Flusher

    def __init__(self, opened: Opened, config: CursorConfig) -> None:
        self._state, self._log, self._properties = opened
        self._config = config
        self._writing = Writing(*opened, config)
        is_bounded = config.enable_lru_cache_max_unacked_ranges
        self._cache = LedgerCache(self._state, config.max_individual_ack_cache_bytes_per_cursor if is_bounded else None)
        self._loading = Loading(self._state, self._log, self._cache)
        self._marker_size = MarkerSize(self._state)

    @property
    def mark_delete_position(self) -> Position:
        """Return the last position such that it and everything before it is acknowledged; entry -1: none of it."""
        return self._state.mark_delete_position

    @property
    def highest_acked(self) -> Position:
        """Return the highest position that is acknowledged as a whole."""
        return self._state.highest_acked

    @property
    def next_position(self) -> Position | None:
        """Return the lowest entry that is not acknowledged as a whole, None when there is none by now."""
        return self._state.next_position

    @property
    def backlog(self) -> int | None:
        """Return how many entries are not acknowledged as a whole; None for a remote topic. O(ledgers)."""
        return self._state.backlog

    @property
    def range_count(self) -> int:
        """Return how many ranges there are beyond the mark-delete position."""
        return self._state.range_count

    @property
    def metadata_size_bytes(self) -> int:
        """Return what writing the whole live state would take now: all ledgers, the properties, and the marker."""
        return self._state.size_bytes + self._properties.size + self._marker_size.now()

    def adds_range(self, position: tuple[int, int]) -> bool:
        """Return whether acknowledging this entry as a whole would make one range more; on storage only: taken so."""
        return self._state.adds_range(position)

    def acked_entries(self, ledger: int) -> EntryRanges | None:
        """Return the entries of a ledger that are acknowledged beyond the mark-delete position; not to be changed.

        None: there are none, or they are not in memory.
        """
        acks = self._state.ledger_states.get(ledger)
        return None if acks is None else acks.ranges

    def properties(self) -> Mapping[str, str]:
        """Return the properties as they are on storage; a view that changes with them."""
        return self._properties.view

    def statistics(self) -> CursorStatistics:
        """Return a snapshot."""
        state, log = self._state, self._log
        return CursorStatistics(
            ledgers_in_memory=len(state.ledger_states),
            ledgers_on_storage=len(state.evicted),
            memory_bytes=state.memory_bytes,
            metadata_size_bytes=self.metadata_size_bytes,
            dirty_ledgers=len(state.dirty),
            flushes=log.commits,
            failed_flushes=self._flusher.failures,
            rollovers=log.rollovers,
            bytes_written=log.bytes_written,
            loads=self._loading.loads,
            evictions=self._cache.evictions,
            dropped_ranges=self._writing.dropped_ranges,
            dropped_batches=self._writing.dropped_batches,
            cut_entries=state.cut_entries,
        )
