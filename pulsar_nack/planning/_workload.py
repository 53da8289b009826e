"""A workload that a plan is made for, and the size of its index in memory: by the proposals' formulas, and of ours.

The formulas are those of PIP-393 and of the in-memory delayed tracker. A bucket of ``2**y`` ms at x entries a ms holds
M = x * 2**y of them. Up to M = 4 096 a bitmap is a list of 2 bytes an entry, to which PIP-393 adds 2 for its maps; from
there on it is 8 192 bits, that is 8 192 / M an entry. A bucket over several ledgers has a bitmap for each:
ceil(M / entries a ledger), which tends to 8 192 / 50 000 an entry.

Our index is predicted from its structure; a test compares the prediction with a real index.

- *Pending messages* are in one bitmap of id blocks: a block is 65 536 entries of a ledger, or fewer with batches. Its
  container is the smallest of a list, runs and bits, once the stream has moved on. On average, one block in 32 and the
  current one are not compressed yet.
- *Buckets* are id ranges while ids come in order with one delay: 20 bytes each, whatever their content. The messages of
  large batches are in two or three blocks at once: then each block has an id range for every 512 ids.
- The rest is the unsealed part of the newest buckets, and what an empty index takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp
from typing import Final, NamedTuple

from .._check import check_integer
from .._delays import delay_seconds
from ..errors import InvalidArgumentError

_MAX_RATE: Final = 1e9
_MAX_PENDING: Final = 1e12
_MAX_ENTRIES: Final = 2**40
_MAX_BATCH: Final = 65_536


class Kind(StrEnum):
    """Why messages wait: for redelivery after a nack, or for delayed delivery."""

    NACK = "nack"
    DELAYED = "delayed"


_BITMAP_BYTES: Final = 8_192
_LIST_UP_TO: Final = 4_096
_LIST_BYTES: Final = {Kind.NACK: 4.0, Kind.DELAYED: 2.0}
_LIMIT_BYTES: Final = 0.163 * 50_000
"""A bitmap in the limit; the proposal rounds 8 192 / 50 000 to 0.163."""
_OLD_BYTES: Final = {Kind.NACK: (48.0, 213.0), Kind.DELAYED: (24.0, 24.0)}
"""An entry in the maps before the proposal, smallest and largest; and in a heap of three longs."""
_BLOCK_BYTES: Final = 468
_RANGE_BYTES: Final = 20
_FOLD: Final = 512
_MAX_OPEN: Final = 8_192
_MIN_IN_RANGE: Final = 32
_EMPTY_BYTES: Final = 4_096
_OPEN_BYTES: Final = 2 * 240
_NUMBER_BYTES: Final = 4.5
_CHUNK_BYTES: Final = 145
"""A short run of a bucket that is not an id range, at every second change of block among messages of batches."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A steady stream of which a random share is nacked or delayed, in order and with one delay.

    :param kind: why messages wait
    :param rate: messages a second
    :param delay: seconds that a nacked or delayed message waits
    :param share: the share of messages that wait, above 0 and at most 1
    :param entries_per_ledger: entries in a ledger
    :param batch_size: messages in an entry; 1 for delayed messages, which Pulsar's producers do not batch
    :raises InvalidArgumentError: names the parameter
    """

    kind: Kind = Kind.NACK
    rate: float = 10_000
    delay: float = 60
    share: float = 1
    entries_per_ledger: int = 50_000
    batch_size: int = 1

    def __post_init__(self) -> None:
        if self.kind not in set(Kind):
            raise InvalidArgumentError("kind", self.kind, "nack or delayed")
        _check_number("rate", self.rate, _MAX_RATE)
        if not delay_seconds(self.delay) > 0:
            raise InvalidArgumentError("delay", self.delay, "more than 0 seconds")
        _check_number("share", self.share, 1)
        check_integer("entries_per_ledger", self.entries_per_ledger, 1, _MAX_ENTRIES)
        check_integer("batch_size", self.batch_size, 1, _MAX_BATCH)
        if self.kind == Kind.DELAYED and self.batch_size > 1:
            raise InvalidArgumentError("batch_size", self.batch_size, "1: delayed messages are not batched")
        if self.pending > _MAX_PENDING:
            raise InvalidArgumentError("rate", self.rate, "no more than a million million messages that wait at once")

    @property
    def pending(self) -> float:
        """Return the number of messages that wait at the same time."""
        return self.rate * self.share * self.delay

    @property
    def entries(self) -> float:
        """Return the number of entries that are published while a message waits."""
        return self.rate * self.delay / self.batch_size

    @property
    def pending_entries(self) -> float:
        """Return the number of entries with at least one message that waits."""
        return self.entries * (1 - (1 - self.share) ** self.batch_size)


def _check_number(field: str, value: object, maximum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= maximum:  # false for NaN too
        raise InvalidArgumentError(field, value, f"a number above 0 and at most {maximum:g}")


def proposal_bytes(workload: Workload, bits: int, *, limit: bool = False) -> float:
    """Return the bytes that the proposals' formula gives for all pending messages.

    With ``limit`` a bucket over several ledgers counts as full bitmaps only, otherwise as the next whole number.
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
    """Return the least and the most bytes that the structures before the proposals take."""
    lowest, highest = _OLD_BYTES[workload.kind]
    return workload.pending_entries * lowest, workload.pending_entries * highest


class _Blocks(NamedTuple):
    """Equal blocks: their number, the entries in each, the messages of each entry, and the bits of a batch index."""

    number: float
    entries: float
    members: int
    bits: int


def predicted_bytes(workload: Workload, bits: int) -> float:
    """Return about how many bytes our index takes for all pending messages, in buckets of ``2**bits`` ms."""
    blocks = list(_blocks(workload))
    count = sum(each.number for each in blocks)
    classes = len({each.bits for each in blocks})
    unoptimized = min(1, (1 + count / 32) / count)
    containers = sum(each.number * _container_bytes(each, workload.share, unoptimized) for each in blocks)
    chunks = count * _CHUNK_BYTES if classes > 1 else 0
    unsealed = min(workload.pending, workload.pending / _buckets(workload, bits), _MAX_OPEN)
    fixed = _EMPTY_BYTES + _OPEN_BYTES + _NUMBER_BYTES * unsealed
    return fixed + count * _BLOCK_BYTES + containers + chunks + _RANGE_BYTES * _id_ranges(workload, bits, classes)


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
    """Return how many messages of each batch share a kind of block, and the bits of their batch indexes."""
    if batch_size == 1:
        yield 1, 0
        return
    below = 0
    for bits, up_to in ((4, 16), (10, 1024), (16, 65_536)):
        if batch_size > below:
            yield min(batch_size, up_to) - below, bits
        below = up_to


def _container_bytes(blocks: _Blocks, share: float, unoptimized: float) -> float:
    """Return the average size of a container, over compressed and uncompressed ones."""
    _, entries, members, bits = blocks
    count = entries * members * share
    as_written = 2 * count if count <= _LIST_UP_TO else _BITMAP_BYTES
    gaps = 1 - share
    are_adjacent = members == 1 << bits
    runs = 1 + count * gaps if are_adjacent else entries * share * (1 + (members - 1) * gaps)
    compressed = min(as_written, 2 + 4 * runs)
    return unoptimized * as_written + (1 - unoptimized) * compressed


def _id_ranges(workload: Workload, bits: int, classes: int) -> float:
    """Return the number of id ranges: one for each bucket that is not empty, unless batches are large."""
    buckets = _buckets(workload, bits)
    in_bucket = workload.pending / buckets
    used = buckets * (1 - exp(-in_bucket)) if workload.share < 1 else min(buckets, workload.pending)
    if classes == 1:
        return used
    return min(used * classes * ceil(in_bucket / _FOLD), workload.pending / _MIN_IN_RANGE)


def _buckets(workload: Workload, bits: int) -> float:
    return max(workload.delay * 1000 / (1 << bits), 1)
