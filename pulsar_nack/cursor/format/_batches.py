"""Batch sets as columns of a ledger's record: entries, batch sizes, and unacknowledged indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...index import varint_bytes, whole_section
from ._batch_set import BatchSet, BatchSets
from ._protobuf import deltas, messages

_STEP: Final = 1_024
"""Batch sets in one set of columns."""
_WHAT: Final = "batch sets"


def encode_batches(batches: BatchSets) -> Iterator[bytes]:
    """Yield batch sets as pieces of a LedgerBody; each takes some milliseconds at most."""
    entries = sorted(batches)
    end = 0
    for at in range(0, len(entries), _STEP):
        some = entries[at : at + _STEP]
        body = messages().LedgerBody()
        columns = body.batches.add()
        columns.entries.extend([some[0] - end, *(gap - 1 for gap in deltas(some)[1:])])
        end = some[-1] + 1
        sets = [batches[entry] for entry in some]
        widths = [batch.width for batch in sets]
        columns.sizes.extend([batch.size for batch in sets])
        columns.widths.extend(widths)
        columns.unacked = b"".join(
            batch.unacked.to_bytes(width, "little") for batch, width in zip(sets, widths, strict=True)
        )
        yield bytes(body.SerializeToString())


def batches_size(batches: BatchSets) -> int:
    """Return how many bytes :func:`encode_batches` yields; for more than one piece a few bytes too many or too few.

    O(bytes of a bitmap of the entries).
    """
    if not batches or batches.entries is None:
        return 0
    piece = whole_section(batches.entries)
    entries = varint_bytes(piece.first) + piece.gap_bytes + piece.count - piece.range_count
    columns = entries, batches.size_bytes, batches.width_bytes, batches.unacked_bytes
    parts = -(-len(batches) // _STEP)
    heads = sum(1 + varint_bytes(column // parts) for column in columns)
    size = heads + sum(columns) // parts
    return sum(columns) + parts * (heads + 1 + varint_bytes(size))


def decode_batches(body: Any) -> dict[int, BatchSet]:
    """Return the batch sets of a LedgerBody.

    :raises CursorFormatError: the entries are out of range, or the columns do not fit together
    """
    found: dict[int, BatchSet] = {}
    end = 0
    for columns in body.batches:
        count = len(columns.entries)
        if not count or {len(columns.sizes), len(columns.widths)} != {count}:
            raise CursorFormatError(_WHAT, f"{count} entries, {len(columns.sizes)} sizes, {len(columns.widths)} widths")
        entries = [end + at + gaps for at, gaps in enumerate(accumulate(columns.entries))]
        end = entries[-1] + 1
        if end - 1 > INT64_MAX:
            raise CursorFormatError(_WHAT, f"there is no entry {end - 1}")
        _add(found, entries, columns.sizes, columns.widths, columns.unacked)
    return found


def _add(
    found: dict[int, BatchSet], entries: Sequence[int], sizes: Sequence[int], widths: Sequence[int], unacked: bytes
) -> None:
    if sum(widths) != len(unacked):
        raise CursorFormatError(_WHAT, f"{len(unacked)} bytes instead of {sum(widths)}")
    at = 0
    for entry, size, width in zip(entries, sizes, widths, strict=True):
        bits = int.from_bytes(unacked[at : at + width], "little")
        at += width
        found[entry] = checked_batch(entry, size, bits)


def checked_batch(entry: int, size: int, unacked: int) -> BatchSet:
    """Return the batch set of an entry.

    :raises CursorFormatError: the size and the bits do not fit together
    """
    try:
        return BatchSet(size, unacked)
    except InvalidArgumentError as error:
        raise CursorFormatError(_WHAT, f"entry {entry}: {error}") from error
