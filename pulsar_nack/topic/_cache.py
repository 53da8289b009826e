"""The entries that were published last, so that consumers who keep up need no reading."""

from __future__ import annotations

from collections import OrderedDict

from ..ids import Position
from ._entry import Entry


class EntryCache:
    """Some of the last entries, within a bound; the oldest goes first.

    :param limit: bytes, as the entries take them on storage; 0: none is kept
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Position, tuple[Entry, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, position: Position, entry: Entry, size: int) -> None:
        """Keep an entry that takes so many bytes on storage."""
        if size > self._limit:
            return
        self._entries[position] = entry, size
        self.bytes += size
        while self.bytes > self._limit:
            _, (_, gone) = self._entries.popitem(last=False)
            self.bytes -= gone

    def get(self, position: Position) -> Entry | None:
        """Return an entry, if it is kept."""
        found = self._entries.get(position)
        return None if found is None else found[0]

    def drop_below(self, ledger: int) -> None:
        """Forget the entries of ledgers that were deleted; they are the oldest."""
        while self._entries and next(iter(self._entries)).ledger < ledger:
            _, (_, gone) = self._entries.popitem(last=False)
            self.bytes -= gone
