"""Positions and time: the only package that uses pyroaring and sortedcontainers."""

from ._buckets import TimeBuckets
from ._entries import (
    Section,
    add_entries,
    add_runs,
    add_words,
    as_entries,
    count_entries,
    sections_of,
    varint_bytes,
    whole_section,
)
from ._id_blocks import DueIds, IdBlock
from ._position_sets import (
    MAX_ENTRY,
    OrderedPositions,
    PositionRanges,
    PositionSet,
    portable_bitmap,
)
from ._ranges import EntryRanges
from ._store import NEVER

__all__ = [
    "MAX_ENTRY",
    "NEVER",
    "DueIds",
    "EntryRanges",
    "IdBlock",
    "OrderedPositions",
    "PositionRanges",
    "PositionSet",
    "Section",
    "TimeBuckets",
    "add_entries",
    "add_runs",
    "add_words",
    "as_entries",
    "count_entries",
    "portable_bitmap",
    "sections_of",
    "varint_bytes",
    "whole_section",
]
