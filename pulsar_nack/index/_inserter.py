"""How ids get into the index, and what keeps that fast.

Ids mostly come in rising order. A number above the ``top`` of its id block has never been used, so nothing has to be
looked up for it: it is appended to its bucket and to the tail of the pending ids (see ``_pending``). There are four
paths, each of which falls back to the next:

1. :meth:`Inserter.put` while ids come from one *window* of entries of one block, into buckets with a known ``append``
2. :meth:`Inserter._put_behind`: as before, for a number below ``top`` that has no stale copy and lies in no id range
3. :meth:`Inserter._put_elsewhere`: another block, window or bucket, both known already, or the first number of all
4. :meth:`Inserter._add`: everything else

Open arrays are appended to without a look at their length, so the known ``append`` methods are forgotten whenever a
window is entered. A bucket whose live numbers are kept (see ``_store``) has no known ``append``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from ..ids import MessageId, _check_stored, _TopicId
from ._distant import GROUP_MS
from ._id_blocks import BLOCK_SIZE, UNUSED, BlockKey, IdBlock, block_key
from ._pending import PendingIds, by_block
from ._sealer import Sealer, Sweeper
from ._store import NEVER, BucketStore, EarliestBucket

_WINDOW: Final = 8192
_SEAL_FROM: Final = 64
_OUT_OF_ORDER: Final = 1 << 100
_MAX_APPENDS: Final = 512
_MANY_BLOCKS: Final = 512


class Inserter:
    """Adds ids to the buckets; the numbers of the window are from ``_low`` to below ``_end``."""

    __slots__ = (
        "_appends",
        "_blocks",
        "_earliest",
        "_end",
        "_groups",
        "_insert",
        "_kind",
        "_ledger",
        "_low",
        "_note",
        "_offset",
        "_open",
        "_partition",
        "_pending",
        "_ranges",
        "_sealer",
        "_stale",
        "_store",
        "_sweeper",
        "_top",
    )

    def __init__(
        self, pending: PendingIds, store: BucketStore, sealer: Sealer, earliest: EarliestBucket, sweeper: Sweeper
    ) -> None:
        self._pending = pending
        self._blocks = pending.blocks
        self._store = store
        self._open = store.open
        self._appends = store.appends
        self._groups = store.distant.by_base
        self._ranges = store.ranges
        self._stale = store.stale
        self._sealer = sealer
        self._earliest = earliest
        self._sweeper = sweeper
        self.reset()

    def reset(self) -> None:
        """Begin without a window, because the index was cleared or widened."""
        self._note: Callable[[int], None] = self._pending.tail.append
        self._insert: Callable[[int], None] = self._pending.numbers.add_checked
        self._top = _OUT_OF_ORDER
        self._low = self._end = self._offset = 0
        self._ledger = self._partition = -1
        self._kind: type[MessageId] = MessageId

    # -- one id ------------------------------------------------------------------------------------------------------

    def put(self, message_id: MessageId, start: int) -> bool:
        """Make an id pending in a bucket; return whether it was not pending. Amortized O(1)."""
        if type(message_id) is self._kind:
            ledger, entry, partition, batch_index = message_id
            number = entry + self._offset
            if number < self._end and ledger == self._ledger and partition == self._partition and batch_index < 0:
                append = self._appends.get(start)
                if append is not None:
                    if number > self._top:  # which is at least the number before the first of the block
                        self._top = number
                        append(number)
                        self._note(number)
                        return True
                    if number >= self._low and number not in self._ranges.covered and number not in self._stale.numbers:
                        return self._put_behind(number, start, append)
        return self._put_elsewhere(message_id, start)

    def _put_behind(self, number: int, start: int, append: Callable[[int], None]) -> bool:
        """Add a number that may be pending. While ids come out of order the tail is not used."""
        pending = self._pending
        if self._top < _OUT_OF_ORDER:
            pending.settle()
            self._keep_top()
        try:
            self._insert(number)
        except KeyError:
            return self._add_again(number, start)
        append(number)
        pending.count += 1
        block = pending.block
        if block is not None and block.top < number:
            block.top = number
        return True

    def _put_elsewhere(self, message_id: MessageId, start: int) -> bool:
        block = None
        kind, earliest = type(message_id), self._earliest.start
        if (kind is MessageId or kind is _TopicId) and (start > earliest or earliest == NEVER):
            ledger, entry, partition, batch_index = message_id
            block = self._blocks.get((ledger, entry >> 16, partition, 0, 0)) if batch_index < 0 else None
        if block is None or (block.topic is None and kind is _TopicId):
            return self._add(message_id, start)
        number = entry - block.offset
        if block is not self._pending.block or not self._low <= number < self._end:
            self._enter(block, number)
        if earliest == NEVER:
            return self._put_first(number, start, block)
        numbers = self._open.get(start)
        if numbers is not None:
            if len(numbers) < self._sealer.fold_at:
                append = self._keep_append(start, numbers)
                if number > self._top:
                    self._top = number
                    append(number)
                    self._note(number)
                    return True
                if number not in self._ranges.covered and number not in self._stale.numbers:
                    return self._put_behind(number, start, append)
        elif number > self._top:
            group = self._groups.get(start & -GROUP_MS)
            if group is not None and len(group) < group.room and self._store.is_distant(start, self._earliest.start):
                self._top = number
                group.add(number, start)
                self._store.distant.count += 1
                self._note(number)
                return True
        return self._add(message_id, start)

    def _put_first(self, number: int, start: int, block: IdBlock) -> bool:
        """Add a number of the current block while nothing is pending or stored, not even a stale copy: a usual load.

        Buckets are not distant from the earliest, which this one is.
        """
        if self._top >= _OUT_OF_ORDER:
            self._top = block.top
        if number > self._top:
            self._top = number
            self._note(number)
        else:
            self._insert(number)
            self._pending.count += 1
        numbers = self._sealer.open_first(start, number)
        self._appends.clear()
        self._appends[start] = numbers.append
        self._earliest.start = start
        return True

    def _add(self, message_id: MessageId, start: int) -> bool:
        _check_stored(message_id, "id")
        pending = self._pending
        pending.settle()
        ledger, entry, partition, batch_index = message_id
        block = self._block_of(block_key(ledger, entry, partition, batch_index), message_id.topic)
        number = block.number(entry, batch_index)
        self._enter(block, number)
        kind = type(message_id)
        if kind is not MessageId and kind is not _TopicId and message_id.is_chunked:
            pending.keep_original(number, message_id)
        if number in pending.numbers:
            return self._add_again(number, start)
        if number in self._ranges.covered:
            self._sealer.dissolve(number)
        self._stale.on_added(number, start)
        self._insert(number)
        pending.count += 1
        self._top = max(self._top, number)
        self._add_number(number, start)
        return True

    def _add_again(self, number: int, start: int) -> bool:
        if self._stale.on_added_again(number, start):
            self._add_number(number, start)
            self._sweeper.sweep_if_worth_it()
        return False

    def _add_number(self, number: int, start: int) -> None:
        """Add a pending number to a bucket."""
        if self._store.is_distant(start, self._earliest.start):
            self._sealer.add_distant(number, start)
            return
        numbers = self._sealer.open_array(start)
        numbers.append(number)
        self._earliest.on_added(start, (number,))
        if not self._earliest.is_kept(start):
            self._keep_append(start, numbers)

    def _keep_append(self, start: int, numbers: array[int]) -> Callable[[int], None]:
        """Keep the ``append`` of the open array of a bucket for the fast path."""
        if len(self._appends) >= _MAX_APPENDS:
            self._appends.clear()
        append = self._appends[start] = numbers.append
        return append

    # -- blocks and windows ------------------------------------------------------------------------------------------

    def _block_of(self, key: BlockKey, topic: str | None = None) -> IdBlock:
        pending = self._pending
        if not pending.has_room_for(key):
            self._sweeper.sweep()
            if not pending.has_room_for(key):
                self._widen()
        block = pending.block_of(key, topic, self._stale.numbers)
        if block.top == UNUSED:
            end = block.base + BLOCK_SIZE
            block.top = end - 1 if self._ranges.covered.range_cardinality(block.base, end) else block.base - 1
        return block

    def _widen(self) -> None:
        """Change to numbers of 64 bits, as there are more blocks than 32 bits can name; about 30 ns an id, once."""
        self._keep_top()
        self._pending.widen()
        self._store.widen()
        self._earliest.find()
        self.reset()

    def _enter(self, block: IdBlock, number: int) -> None:
        """Make ``block`` the current one, with a window that contains ``number``."""
        self._keep_top()
        pending = self._pending
        is_new = block is not pending.block
        pending.block = block
        self._top = block.top
        self._kind = MessageId if block.topic is None else _TopicId
        if not is_new and self._low <= number < self._end:
            return
        self._appends.clear()
        if len(pending.tail) >= _WINDOW:
            pending.settle()
        self._low = block.base
        if block.bits:
            self._end = block.base
            return
        self._offset = -block.offset
        self._end = min(block.base + BLOCK_SIZE, max(block.top, number) + _WINDOW)
        self._ledger, self._partition = block.ledger, block.partition

    def _keep_top(self) -> None:
        """Store the highest number of the current block in it; while ids come out of order it is there already."""
        block = self._pending.block
        if block is not None and block.top < self._top < _OUT_OF_ORDER:
            block.top = self._top
        self._top = _OUT_OF_ORDER

    # -- many entries ------------------------------------------------------------------------------------------------

    def put_entries(self, ledger: int, entries: Any, start: int) -> int:
        """Make the entries of a ledger pending that are in a bitmap; return how many were not.

        About 10 ns an entry in order: they go into sealed parts at once.
        """
        pending = self._pending
        pending.settle()
        self._keep_top()
        self._low = self._end = 0
        if not entries:
            return 0
        if entries.min() >> 16 == entries.max() >> 16:
            return self._add_entries(ledger, entries, start)
        return sum(self._add_entries(ledger, type(entries)(run), start) for run in by_block(entries.to_array()))

    def _add_entries(self, ledger: int, entries: Any, start: int) -> int:
        """Add the entries of one block; this may widen the numbers."""
        pending = self._pending
        block = self._block_of((ledger, entries.min() >> 16, -1, 0, 0))
        if type(entries) is pending.bitmap_type:
            return self._add_numbers(entries.shift(-block.offset), start, block)
        shifted = array(pending.typecode, [entry - block.offset for entry in entries])
        return self._add_numbers(pending.bitmap_type(shifted), start, block)

    def _add_numbers(self, numbers: Any, start: int, block: IdBlock) -> int:
        pending = self._pending
        low, high, count = numbers.min(), numbers.max(), len(numbers)
        is_new, block.top = low > block.top, max(block.top, high)
        known = () if is_new else self._take_known(numbers, start)
        if high - low + 1 == count:
            pending.numbers.add_range(low, high + 1)
        elif len(pending.blocks) < _MANY_BLOCKS:
            pending.numbers |= numbers
        else:  # in place it would go through all blocks before
            pending.numbers.update(numbers.to_array())
        added = len(numbers)
        pending.count += added
        if added < _SEAL_FROM:
            for number in numbers:
                self._add_number(number, start)
        else:
            self._earliest.on_added(start, numbers)
            self._sealer.seal(start, numbers)
        for number in known:
            self._add_again(number, start)
        return added

    def _take_known(self, numbers: Any, start: int) -> Any:
        """Take the pending ones out of ``numbers`` and return them; prepare for those that have been used."""
        known = numbers & self._pending.numbers
        numbers -= known
        while conflicts := numbers & self._ranges.covered:
            self._sealer.dissolve(conflicts.min())
        for number in numbers & self._stale.numbers:
            self._stale.on_added(number, start)
        return known
