"""The batch sets of one ledger, with sums from which follows what they take when written.

The sums are kept with every change, because the size is asked for again and again (K47) and a ledger may have tens of
thousands of batch sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Self

from ..index import EntryRanges, varint_bytes
from ._batch import BatchSet


class BatchSets(MutableMapping[int, BatchSet]):
    """A mapping from entries to what is not acknowledged of their batches.

    A change is O(1) and takes about a microsecond.
    """

    __slots__ = ("_sets", "entries", "size_bytes", "unacked_bytes", "width_bytes")

    def __init__(self, sets: Mapping[int, BatchSet] | None = None) -> None:
        self._sets: dict[int, BatchSet] = dict(sets or {})
        self.entries: EntryRanges | None = None
        """The entries; None as long as there never was one. Read only, as the sums are."""
        self.size_bytes = 0
        """Bytes of all sizes as varints."""
        self.width_bytes = 0
        """Bytes of all widths as varints; a width is the number of bytes of what is not acknowledged."""
        self.unacked_bytes = 0
        """Bytes of all that is not acknowledged: the sum of the widths."""
        if self._sets:
            self.entries = EntryRanges()
            self.entries.add_many(self._sets)
            for batch in self._sets.values():
                self._count(batch, 1)

    def __getitem__(self, entry: int) -> BatchSet:
        return self._sets[entry]

    def __setitem__(self, entry: int, batch: BatchSet) -> None:
        before = self._sets.get(entry)
        if before is None:
            if self.entries is None:
                self.entries = EntryRanges()
            self.entries.add(entry)
        else:
            self._count(before, -1)
        self._sets[entry] = batch
        self._count(batch, 1)

    def __delitem__(self, entry: int) -> None:
        self._count(self._sets.pop(entry), -1)
        if self.entries is not None:
            self.entries.discard_range(entry, entry)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    def __contains__(self, entry: object) -> bool:
        return entry in self._sets

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._sets!r})"

    def copy(self) -> Self:
        """Return an independent copy."""
        made = type(self)()
        made._sets = self._sets.copy()
        made.entries = None if self.entries is None else self.entries.copy()
        made.size_bytes, made.width_bytes, made.unacked_bytes = self.size_bytes, self.width_bytes, self.unacked_bytes
        return made

    def _count(self, batch: BatchSet, by: int) -> None:
        width = batch.width
        self.size_bytes += by * varint_bytes(batch.size)
        self.width_bytes += by * varint_bytes(width)
        self.unacked_bytes += by * width
