"""Time buckets: which ids are pending, and which of them are due next."""

from __future__ import annotations

from array import array
from typing import Any, Final

from ..ids import MessageId
from ._chunks import DrainingBucket
from ._id_blocks import DueIds, IdBlock
from ._inserter import Inserter
from ._pending import PendingIds
from ._sealer import Sealer, Sweeper
from ._store import BucketStore, EarliestBucket

_BASE_BYTES: Final = 4096
_FEW_EACH: Final = 4


class TimeBuckets:
    """Pending ids in buckets of time; the start of a bucket is any integer of ms.

    An id is pending once: added again, it fires with the earliest of its starts. Adding, cancelling and looking up are
    O(1), popping is O(due), counts are kept. ``put(id, start)`` makes an id pending and returns whether it was not, and
    ``put_entries(ledger, bitmap, start)`` many entries of a ledger, of which it returns how many were not pending.
    """

    __slots__ = ("_inserter", "_pending", "_sealer", "_store", "_sweeper", "first", "put", "put_entries")

    def __init__(self) -> None:
        self._pending = PendingIds()
        self._store = BucketStore(self._pending)
        self._sealer = Sealer(self._pending, self._store)
        self.first = EarliestBucket(self._store)
        """The earliest bucket; its ``start`` is :attr:`earliest`."""
        self._sweeper = Sweeper(self._pending, self._store, self.first)
        self._inserter = Inserter(self._pending, self._store, self._sealer, self.first, self._sweeper)
        self.put = self._inserter.put  # bound once: a method around it would cost a call for each id
        self.put_entries = self._inserter.put_entries

    def clear(self) -> int:
        """Drop everything; return how many ids were pending."""
        count = len(self)
        self._pending.clear()
        self._store.clear()
        self._sealer.clear()
        self.first.clear()
        self._sweeper.clear()
        self._inserter.reset()
        return count

    # -- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, message_id: object) -> bool:
        return isinstance(message_id, MessageId) and self._pending.number_if_pending(*message_id) is not None

    @property
    def earliest(self) -> int:
        """Return the start of the first bucket that has a pending id, ``NEVER`` without one. O(1)."""
        return self.first.start

    @property
    def bucket_count(self) -> int:
        """Return about how many buckets there are (one with both sealed and open parts may count as two). O(1)."""
        return self._store.bucket_count()

    @property
    def bytes(self) -> int:
        """Return about how many bytes are held. O(buckets that are not sealed)."""
        return _BASE_BYTES + self._pending.memory() + self._store.memory()

    def learn(self, id: MessageId) -> bool:
        """Return whether an id is pending; if so, keep its topic and chunks."""
        pending = self._pending
        number = pending.number_if_pending(*id)
        if number is None:
            return False
        pending.set_topic(pending.block_at[number >> 16], id.topic)
        if id.is_chunked:
            pending.keep_original(number, id)
        return True

    # -- cancelling --------------------------------------------------------------------------------------------------

    def discard(self, id: MessageId) -> bool:
        """Remove an id; return whether it was pending. Amortized O(1)."""
        pending, store = self._pending, self._store
        number = pending.number_if_pending(*id)
        if number is None:
            return False
        pending.discard(number)
        if not pending.count:
            store.drop(self.first.start)
            self._became_empty()
            return True
        if number not in store.ranges.covered or number in store.stale.doubled:
            store.stale.on_cancelled(number)
        self.first.on_cancelled(number)
        self._sweeper.sweep_if_worth_it()
        return True

    # -- popping -----------------------------------------------------------------------------------------------------

    def pop(self, now: int, limit: int | None = None) -> DueIds:
        """Remove and return what is due at ``now`` (start <= now), by bucket and position; O(returned)."""
        due = self._pop_few(now, limit)
        if due is not None:
            return due
        due = DueIds()
        pending, earliest = self._pending, self.first
        pending.settle()
        while pending.count and earliest.start <= now and (limit is None or len(due) < limit):
            self._pop_from(earliest.start, limit, due)
            self._after_pop()
        return due

    def pop_all(self) -> DueIds:
        """Remove and return everything, ordered by position; O(id blocks) until the ids are read."""
        pending = self._pending
        pending.settle()
        due = DueIds()
        for blocks, numbers in pending.runs(pending.numbers):
            due.append(blocks, numbers)
        due.replace(pending.take_originals(pending.numbers))
        self.clear()
        return due

    def pop_parts(self, now: int) -> list[tuple[IdBlock, Any]]:
        """Remove all that is due at once; return a bitmap of numbers for each id block."""
        if self.first.start > now:
            return []
        pending = self._pending
        pending.settle()
        numbers = self._store.take_until(now)
        parts = pending.parts(numbers) if numbers else []
        self._fire(numbers)
        self._release([block for block, _ in parts])
        self._after_pop()
        return parts

    def _pop_few(self, now: int, limit: int | None) -> DueIds | None:
        """Remove and return what is due if it is everything, and few ids of one block in one open array; else None.

        This is a usual load.
        """
        pending, store, start = self._pending, self._store, self.first.start
        numbers = store.open.get(start)
        few = _FEW_EACH if limit is None else min(limit, _FEW_EACH)
        if numbers is None or start > now or not 0 < len(numbers) <= few:
            return None
        if len(numbers) != pending.count + len(pending.tail):
            return None
        if len(numbers) > 1:
            numbers = array(numbers.typecode, sorted(numbers))
        if store.stale.extra or pending.originals or numbers[0] >> 16 != numbers[-1] >> 16:
            return None
        block = pending.block_at[numbers[0] >> 16]
        del pending.tail[:], store.open[start]
        pending.count = 0
        store.appends.clear()
        store.starts.clear()
        self._became_empty()
        return DueIds(block, numbers)

    def _pop_from(self, start: int, limit: int | None, due: DueIds) -> None:
        """Remove a bucket as far as the limit allows."""
        store = self._store
        remainder = store.draining.get(start)
        if remainder is None and limit is not None and store.is_large(start):
            remainder = store.drain(start)
        if remainder is None:
            live = store.take(start)
            if limit is None or len(live) <= limit - len(due):
                self._hand_out(live, due)
                return
            remainder = store.drain_numbers(start, live)
        self._pop_remainder(start, remainder, limit, due)

    def _pop_remainder(self, start: int, remainder: DrainingBucket, limit: int | None, due: DueIds) -> None:
        pending, stale = self._pending, self._store.stale
        while remainder and (limit is None or len(due) < limit):
            numbers = remainder.take(None if limit is None else limit - len(due))
            live = stale.live_copies(numbers, pending.numbers, start)
            if live:
                self._hand_out(live, due)
        if not remainder:
            self._store.end_draining(start)

    def _hand_out(self, live: Any, due: DueIds) -> None:
        """Move live numbers from what is pending to ``due``; release the blocks that became empty."""
        runs = self._pending.runs(live)
        originals = self._fire(live)
        for blocks, numbers in runs:
            due.append(blocks, numbers)
            if len(numbers) > _FEW_EACH and isinstance(blocks, IdBlock):  # else it costs more; see PendingIds.block_of
                self._release((blocks,))
        due.replace(originals)

    def _fire(self, numbers: Any) -> dict[int, MessageId]:
        self._store.stale.on_fired(numbers)
        return self._pending.remove(numbers)

    def _release(self, blocks: tuple[IdBlock, ...] | list[IdBlock]) -> None:
        self._pending.release_unused(blocks, self._store.stale.numbers)

    def _after_pop(self) -> None:
        if self._pending.count:
            self.first.find()
        else:
            self._became_empty()

    def _became_empty(self) -> None:
        """Clear what is left when nothing is pending; usually nothing is, and the next id finds its block again."""
        self.first.clear()
        if not (self._store.is_empty and self._pending.keep_few_blocks()):
            self.clear()
