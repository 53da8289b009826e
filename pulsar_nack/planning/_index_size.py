"""What our index takes, from what it does; a test compares this with an index that is really built.

- *What waits* is one bitmap over slots (see ``index/_slots.py``): a slot is a block of 65 536 entries of a ledger, or
  of fewer with batches, and its container is the smallest of a list, runs and bits, once the stream has moved on. One
  slot in 32 and the current one are on average not compressed yet.
- *Buckets* are windows while ids come in order with one delay: 20 bytes each, whatever lies in them. The members of
  large batches lie in two or three slots at once: then each has a window for every 512 ids.
- The rest is the part of the newest buckets that is not sealed yet, and what an empty index takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, exp
from typing import Final, NamedTuple

from ._workload import Workload

_BITSET_BYTES: Final = 8_192
_LIST_UP_TO: Final = 4_096
_SLOT_BYTES: Final = 468
_WINDOW_BYTES: Final = 20
_FOLD: Final = 512
_MOST_OPEN: Final = 8_192
_LEAST_IN_WINDOW: Final = 32
_EMPTY_BYTES: Final = 4_096
_OPEN_BYTES: Final = 2 * 240
_NUMBER_BYTES: Final = 4.5
_CHUNK_BYTES: Final = 145
"""A short piece of a bucket that is no window, at every second change of slot among members of batches."""


class _Blocks(NamedTuple):
    """Slots that are alike: how many, entries in each, members of each entry, and bits for a member's index."""

    number: float
    entries: float
    members: int
    bits: int


def predicted_bytes(workload: Workload, bits: int) -> float:
    """Return about how many bytes our index takes for all that waits, in buckets of ``2**bits`` ms."""
    blocks = list(_blocks(workload))
    slots = sum(each.number for each in blocks)
    classes = len({each.bits for each in blocks})
    unoptimized = min(1, (1 + slots / 32) / slots)
    containers = sum(each.number * _container_bytes(each, workload.share, unoptimized) for each in blocks)
    pieces = slots * _CHUNK_BYTES if classes > 1 else 0
    unsealed = min(workload.pending, workload.pending / _buckets(workload, bits), _MOST_OPEN)
    fixed = _EMPTY_BYTES + _OPEN_BYTES + _NUMBER_BYTES * unsealed
    return fixed + slots * _SLOT_BYTES + containers + pieces + _WINDOW_BYTES * _windows(workload, bits, classes)


def _blocks(workload: Workload) -> Iterator[_Blocks]:
    full_ledgers, rest = divmod(workload.entries, workload.entries_per_ledger)
    for members, bits in _classes(workload.batch_size):
        size = 1 << (16 - bits)
        for ledgers, entries in ((full_ledgers, workload.entries_per_ledger), (1, rest)):
            full, part = divmod(entries, size)
            if ledgers and full:
                yield _Blocks(ledgers * full, size, members, bits)
            if ledgers and part:
                yield _Blocks(ledgers, part, members, bits)


def _classes(batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield how many members of each batch share a kind of slot, and the bits for their indexes."""
    if batch_size == 1:
        yield 1, 0
        return
    below = 0
    for bits, up_to in ((4, 16), (10, 1024), (16, 65_536)):
        if batch_size > below:
            yield min(batch_size, up_to) - below, bits
        below = up_to


def _container_bytes(blocks: _Blocks, share: float, unoptimized: float) -> float:
    """Return the size of one container, averaged over those that are compressed and those that are not yet."""
    _, entries, members, bits = blocks
    count = entries * members * share
    as_written = 2 * count if count <= _LIST_UP_TO else _BITSET_BYTES
    gaps = 1 - share
    are_adjacent = members == 1 << bits
    runs = 1 + count * gaps if are_adjacent else entries * share * (1 + (members - 1) * gaps)
    compressed = min(as_written, 2 + 4 * runs)
    return unoptimized * as_written + (1 - unoptimized) * compressed


def _windows(workload: Workload, bits: int, classes: int) -> float:
    """Return how many windows there are: one for each bucket that is not empty, unless batches are large."""
    buckets = _buckets(workload, bits)
    in_bucket = workload.pending / buckets
    used = buckets * (1 - exp(-in_bucket)) if workload.share < 1 else min(buckets, workload.pending)
    if classes == 1:
        return used
    return min(used * classes * ceil(in_bucket / _FOLD), workload.pending / _LEAST_IN_WINDOW)


def _buckets(workload: Workload, bits: int) -> float:
    return max(workload.delay * 1000 / (1 << bits), 1)
