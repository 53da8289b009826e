"""The memory formulas of the proposals for time buckets (PIP-393, and the in-memory delayed tracker's).

A bucket of ``2**y`` ms that x entries a ms fall into holds M = x * 2**y of them. Up to M = 4 096 a bitmap is a list of
2 bytes an entry, to which PIP-393 adds 2 for its maps; from there on it is 8 192 bits, that is 8 192 / M an entry. A
bucket over several ledgers has a bitmap for each: ceil(M / entries a ledger), which tends to 8 192 / 50 000 an entry.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from ._workload import Kind, Workload

_BITMAP_BYTES: Final = 8_192
_LIST_UP_TO: Final = 4_096
_LIST_BYTES: Final = {Kind.NACK: 4.0, Kind.DELAYED: 2.0}
_LIMIT_BYTES: Final = 0.163 * 50_000
"""A bitmap in the limit; the proposal rounds 8 192 / 50 000 to 0.163."""
_OLD_BYTES: Final = {Kind.NACK: (48.0, 213.0), Kind.DELAYED: (24.0, 24.0)}
"""An entry in the maps that were there before, smallest and largest; and in a heap of three longs."""


def proposal_bytes(workload: Workload, bits: int, *, limit: bool = False) -> float:
    """Return how many bytes the proposals' formula gives for all that wait.

    With ``limit`` a bucket over several ledgers counts as full bitmaps only, without as the next whole number of them.
    """
    in_bucket = workload.pending_entries / (workload.delay * 1000) * 2**bits
    return workload.pending_entries * _bytes_an_entry(workload, in_bucket, limit=limit)


def _bytes_an_entry(workload: Workload, in_bucket: float, *, limit: bool) -> float:
    as_list = _LIST_BYTES[workload.kind]
    if in_bucket < _LIST_UP_TO:
        return as_list
    in_ledger = workload.entries_per_ledger
    if in_bucket <= in_ledger:
        return _BITMAP_BYTES / in_bucket
    if limit:
        return min(as_list, _LIMIT_BYTES / in_ledger)
    return min(as_list, ceil(in_bucket / in_ledger) * _BITMAP_BYTES / in_bucket)


def old_bytes(workload: Workload) -> tuple[float, float]:
    """Return between how many bytes the structures take that were there before the proposals."""
    lowest, highest = _OLD_BYTES[workload.kind]
    return workload.pending_entries * lowest, workload.pending_entries * highest
