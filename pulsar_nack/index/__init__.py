"""Positions and time: the only place that knows pyroaring and sortedcontainers."""

from ._buckets import TimeBuckets
from ._due import DueIds
from ._entries import as_entries
from ._entry_sets import MAX_ENTRY, EntrySets, portable
from ._front import NEVER, Front
from ._ordered import OrderedPositions
from ._pieces import Piece, add_entries, add_runs, add_words, pieces_of, varint_bytes, whole_piece
from ._position_ranges import PositionRange, PositionRanges
from ._ranges import EntryRanges
from ._slots import Slot

__all__ = [
    "MAX_ENTRY",
    "NEVER",
    "DueIds",
    "EntryRanges",
    "EntrySets",
    "Front",
    "OrderedPositions",
    "Piece",
    "PositionRange",
    "PositionRanges",
    "Slot",
    "TimeBuckets",
    "add_entries",
    "add_runs",
    "add_words",
    "as_entries",
    "pieces_of",
    "portable",
    "varint_bytes",
    "whole_piece",
]
