"""The structure before time buckets: a heap of (time, ledger, entry) in flat arrays, as in old brokers."""

from __future__ import annotations

from array import array


class TripleHeap:
    """A binary heap of triples of 64-bit numbers, ordered by all three; 24 bytes per entry."""

    __slots__ = ("_entries", "_ledgers", "_times")

    def __init__(self) -> None:
        self._times: array[int] = array("q")
        self._ledgers: array[int] = array("q")
        self._entries: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def push(self, time: int, ledger: int, entry: int) -> None:
        """Add a triple. O(log n)."""
        times, ledgers, entries = self._times, self._ledgers, self._entries
        place = len(times)
        times.append(time)
        ledgers.append(ledger)
        entries.append(entry)
        while place:
            parent = (place - 1) >> 1
            above = times[parent]
            if time > above or (time == above and (ledger, entry) >= (ledgers[parent], entries[parent])):
                break
            times[place], ledgers[place], entries[place] = above, ledgers[parent], entries[parent]
            place = parent
        times[place], ledgers[place], entries[place] = time, ledger, entry

    def pop(self) -> tuple[int, int, int]:
        """Remove and return the smallest triple. O(log n)."""
        times, ledgers, entries = self._times, self._ledgers, self._entries
        least = times[0], ledgers[0], entries[0]
        last = times.pop(), ledgers.pop(), entries.pop()
        size = len(times)
        if not size:
            return least
        time, ledger, entry = last
        place, child = 0, 1
        while child < size:
            other = child + 1
            if other < size and (times[other], ledgers[other], entries[other]) < (
                times[child],
                ledgers[child],
                entries[child],
            ):
                child = other
            if last <= (times[child], ledgers[child], entries[child]):
                break
            times[place], ledgers[place], entries[place] = times[child], ledgers[child], entries[child]
            place, child = child, 2 * child + 1
        times[place], ledgers[place], entries[place] = time, ledger, entry
        return least
