"""The acknowledgement state of each ledger, in memory or evicted, which of it is dirty, and how large it is.

A ledger is measured when it has changed and a sum is asked for. So asking after each acknowledgement measures one
ledger, and acknowledging a thousand times before asking measures each ledger once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ..errors import InvalidArgumentError
from .format import BatchSet, LedgerAcks, LedgersNotLoaded, LedgerSummary

_NOTHING: Final = 0, 0, 0


class LedgerTable:
    """The ledgers of one acknowledgement state, without the mark-delete position.

    :param ledger_size: returns the bytes that one ledger's state takes when written; None: sizes are 0
    """

    __slots__ = (
        "_known",
        "_ledger_size",
        "_memory",
        "_ranges",
        "_size",
        "_unsized",
        "changed",
        "dirty",
        "evicted",
        "states",
    )

    def __init__(self, ledger_size: Callable[[LedgerAcks], int] | None) -> None:
        self.states: dict[int, LedgerAcks] = {}
        """The ledgers in memory of which anything is acknowledged."""
        self.evicted: dict[int, LedgerSummary] = {}
        """The ledgers that are on storage only, with what is known of them."""
        self.dirty: set[int] = set()
        """Ledgers that differ from what was written; a dirty ledger in no other table has become empty."""
        self.changed: set[int] = set()
        """Ledgers that differ from what was measured. Every change of a state has to be added."""
        self._ledger_size = ledger_size
        self._known: dict[int, tuple[int, int, int]] = {}
        self._size = self._memory = self._ranges = 0
        self._unsized: set[int] = set()
        """Ledgers whose size is not measured yet: that takes much longer than the other figures."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def loaded(self, ledger: int) -> LedgerAcks | None:
        """Return the state of a ledger, None if nothing of it is acknowledged.

        :raises LedgersNotLoaded: the ledger is evicted
        """
        acks = self.states.get(ledger)
        if acks is None and ledger in self.evicted:
            raise LedgersNotLoaded([ledger])
        return acks

    def require(self, ledgers: Iterable[int]) -> None:
        """Raise :class:`LedgersNotLoaded` if any of these ledgers is evicted."""
        if self.evicted and (missing := self.evicted.keys() & set(ledgers)):
            raise LedgersNotLoaded(missing)

    def last_acked(self, ledger: int) -> int:
        """Return the highest entry of a ledger that is acknowledged as a whole, -1 if it has no such entry."""
        acks = self.states.get(ledger)
        if acks is not None:
            last = acks.ranges.last
            return -1 if last is None else last
        summary = self.evicted.get(ledger)
        return -1 if summary is None else summary.last

    def acked_entries(self, exists: Callable[[int], object]) -> int:
        """Return how many entries are acknowledged as a whole in the ledgers for which ``exists`` is true."""
        acked = sum(len(acks.ranges) for ledger, acks in self.states.items() if exists(ledger))
        return acked + sum(summary.acked for ledger, summary in self.evicted.items() if exists(ledger))

    def unacked(self, ledger: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the unacknowledged ranges of a ledger between two entries; it may change meanwhile.

        :raises LedgersNotLoaded: the ledger is evicted
        """
        entry = first
        while entry <= last:
            acks = self.loaded(ledger)
            if acks is None:
                yield entry, last
                return
            begin = acks.ranges.next_absent(entry)
            if begin > last:
                return
            present = acks.ranges.next_present(begin)
            end = last if present is None else min(last, present - 1)
            yield begin, end
            entry = end + 1

    # -- changing ------------------------------------------------------------------------------------------------------

    def acknowledge(self, ledger: int, entries: list[int]) -> bool:
        """Acknowledge whole entries of a ledger that is not evicted; return whether any of them was not before."""
        acks = self._get_or_add(ledger)
        if not acks.ranges.add_many(entries):
            return False
        if acks.batches:
            for entry in entries:
                acks.batches.pop(entry, None)
        self.touch(ledger)
        return True

    def narrow_batch(self, ledger: int, entry: int, remaining: BatchSet) -> None:
        """Set the batch set of an entry: what is not acknowledged of it."""
        acks = self.states.get(ledger)
        if remaining.is_untouched or (acks is not None and acks.batches.get(entry) == remaining):
            return
        self._get_or_add(ledger).batches[entry] = remaining
        self.touch(ledger)

    def touch(self, ledger: int) -> None:
        """Note that a ledger has changed."""
        self.dirty.add(ledger)
        self.changed.add(ledger)

    def drop(self, ledger: int) -> None:
        """Forget a ledger's state, in memory and on storage."""
        self.states.pop(ledger, None)
        self.evicted.pop(ledger, None)
        self.touch(ledger)

    def drop_below(self, ledger: int) -> None:
        """Forget the ledgers below this number. O(ledgers)."""
        for passed in [each for each in (*self.states, *self.evicted) if each < ledger]:
            self.drop(passed)

    def put(self, ledger: int, acks: LedgerAcks) -> None:
        """Take a ledger's state into memory as it was written; an empty one is dropped."""
        self.evicted.pop(ledger, None)
        self.states[ledger] = acks
        self.changed.add(ledger)
        if not acks:
            self.drop(ledger)

    def evict(self, ledger: int) -> LedgerAcks:
        """Take a ledger out of memory and return its state, which has to be on storage.

        :raises InvalidArgumentError: the ledger is not in memory, or is dirty
        """
        if ledger not in self.states or ledger in self.dirty:
            raise InvalidArgumentError("ledger", ledger, "a ledger that is in memory and was written")
        self._measure()
        if ledger in self._unsized:
            self._measure_size(ledger)
        acks = self.states.pop(ledger)
        self.add_evicted(ledger, acks.summary, self._known.get(ledger, _NOTHING)[0])
        return acks

    def add_evicted(self, ledger: int, summary: LedgerSummary, size: int) -> None:
        """Note a ledger that is on storage only, and its size when written."""
        self.evicted[ledger] = summary
        self.changed.discard(ledger)
        self._unsized.discard(ledger)
        self._set(ledger, size, 0, summary.ranges)

    def _get_or_add(self, ledger: int) -> LedgerAcks:
        acks = self.states.get(ledger)
        if acks is None:
            acks = self.states[ledger] = LedgerAcks()
        return acks

    # -- sums ----------------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all ledgers when written, evicted ones included; O(ledgers that changed)."""
        if self.changed:
            self._measure()
        while self._unsized:
            self._measure_size(self._unsized.pop())
        return self._size

    @property
    def memory_bytes(self) -> int:
        """Return about how many bytes the ledgers in memory take; O(ledgers that changed)."""
        if self.changed:
            self._measure()
        return self._memory

    @property
    def range_count(self) -> int:
        """Return how many ranges there are, those of evicted ledgers included, as far as they are known."""
        if self.changed:
            self._measure()
        return self._ranges

    def _measure(self) -> None:
        """Measure memory and ranges, which is quick."""
        while self.changed:
            ledger = self.changed.pop()
            acks = self.states.get(ledger)
            if acks is None:
                self._unsized.discard(ledger)
                self._set(ledger, 0, 0, 0)
            else:
                self._unsized.add(ledger)
                self._set(ledger, self._known.get(ledger, _NOTHING)[0], acks.memory_bytes, acks.ranges.range_count)

    def _measure_size(self, ledger: int) -> None:
        _, memory, ranges = self._known.get(ledger, _NOTHING)
        acks = self.states.get(ledger)
        size = 0 if acks is None or self._ledger_size is None else self._ledger_size(acks)
        self._unsized.discard(ledger)
        self._set(ledger, size, memory, ranges)

    def _set(self, ledger: int, size: int, memory: int, ranges: int) -> None:
        old_size, old_memory, old_ranges = self._known.get(ledger, _NOTHING)
        self._size += size - old_size
        self._memory += memory - old_memory
        self._ranges += ranges - old_ranges
        if size or memory or ranges:
            self._known[ledger] = size, memory, ranges
        else:
            self._known.pop(ledger, None)
