"""Batch sets column by column: which entries, how large their batches are, and what of them is not acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from ..errors import CursorFormatError, InvalidArgumentError
from ..index import varint_bytes
from ._batch import BatchSet
from ._wire import INT64_MAX, deltas, messages

STEP: Final = 1_024
"""Batch sets that are written in one go."""
_WHAT: Final = "batch sets"


def encode_batches(batches: Mapping[int, BatchSet]) -> Iterator[bytes]:
    """Yield batch sets as parts of a LedgerBody: joined they are one. Some milliseconds each at most."""
    entries = sorted(batches)
    for at in range(0, len(entries), STEP):
        some = entries[at : at + STEP]
        body = messages().LedgerBody()
        columns = body.batches.add()
        columns.entries.extend(deltas(some))
        columns.sizes.extend(batches[entry].size for entry in some)
        widths = [_width(batches[entry]) for entry in some]
        columns.widths.extend(widths)
        columns.unacked = b"".join(
            batches[entry].unacked.to_bytes(width, "little") for entry, width in zip(some, widths, strict=True)
        )
        yield bytes(body.SerializeToString())


def batches_size(batches: Mapping[int, BatchSet]) -> int:
    """Return how many bytes :func:`encode_batches` yields. O(batch sets)."""
    if not batches:
        return 0
    entries = sorted(batches)
    total = 0
    for at in range(0, len(entries), STEP):
        some = entries[at : at + STEP]
        widths = [_width(batches[entry]) for entry in some]
        columns = (
            sum(map(varint_bytes, deltas(some))),
            sum(varint_bytes(batches[entry].size) for entry in some),
            sum(map(varint_bytes, widths)),
            sum(widths),
        )
        size = sum(1 + varint_bytes(column) + column for column in columns)
        total += 1 + varint_bytes(size) + size
    return total


def decode_batches(body: Any) -> dict[int, BatchSet]:
    """Return the batch sets of a LedgerBody.

    :raises CursorFormatError: they are not ascending, out of range, or no batch sets
    """
    found: dict[int, BatchSet] = {}
    last = -1
    for columns in body.batches:
        count = len(columns.entries)
        if not count or {len(columns.sizes), len(columns.widths)} != {count}:
            raise CursorFormatError(_WHAT, f"{count} entries, {len(columns.sizes)} sizes, {len(columns.widths)} widths")
        entries = list(accumulate(columns.entries))
        if entries[0] <= last or not all(columns.entries[1:]) or entries[-1] > INT64_MAX:
            raise CursorFormatError(_WHAT, f"entries {entries[0]} to {entries[-1]} after {last}, which do not ascend")
        last = entries[-1]
        _add(found, entries, columns.sizes, columns.widths, columns.unacked)
    return found


def _add(
    found: dict[int, BatchSet], entries: Sequence[int], sizes: Sequence[int], widths: Sequence[int], unacked: bytes
) -> None:
    if sum(widths) != len(unacked):
        raise CursorFormatError(_WHAT, f"{len(unacked)} bytes where {sum(widths)} have to be")
    at = 0
    for entry, size, width in zip(entries, sizes, widths, strict=True):
        bits = int.from_bytes(unacked[at : at + width], "little")
        at += width
        found[entry] = checked_batch(entry, size, bits)


def checked_batch(entry: int, size: int, unacked: int) -> BatchSet:
    """Return a batch set.

    :raises CursorFormatError: there is none like this
    """
    try:
        return BatchSet(size, unacked)
    except InvalidArgumentError as error:
        raise CursorFormatError(_WHAT, f"entry {entry}: {error}") from error


def _width(batch: BatchSet) -> int:
    return (batch.unacked.bit_length() + 7) // 8
