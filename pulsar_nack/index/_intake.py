"""Time bucket -> positions: which ids are pending, and which of them come due next.

``Positions.pending`` is the only truth about what is pending, ``BucketStore`` says when. Ids mostly come in rising
order. A number above its slot's ``top`` was never used, so nothing has to be looked up for it: it is appended to its
bucket and to the *tail*, a list of numbers that are pending and not yet in the bitmap. Everybody who reads the bitmap
*settles* the tail first. The fast path of :meth:`TimeBuckets.put` is taken while ids follow each other in one slot and
one bucket; everything else goes step by step to slower ones, down to ``_add``.

``_guard`` is at least the largest number that is covered by a window or may have a stale copy: a larger number needs no
further look. An open array is only appended to by way of ``_append`` while ``_start`` names its bucket, so ``_start``
is forgotten whenever the array may be emptied, dropped or has to be looked after (``_front``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ..ids import MessageId, _check_stored, _TopicId
from ._blocks import BLOCK_MS
from ._front import Front
from ._positions import Positions, slot_bounds
from ._slots import SLOT_SIZE, UNUSED, Slot, slot_key
from ._store import BucketStore

_SPAN: Final = 8192
_SEAL_FROM: Final = 64
_SWEEP_AT: Final = 1024
_STEPS: Final = 4
_BASE_BYTES: Final = 4096
_NO_LEDGER: Final = -2
_FEW_SLOTS: Final = 64
_FEW_EACH: Final = 4
_FEW: Final = 4
_OUT_OF_ORDER: Final = 1 << 100
_MOST_APPENDS: Final = 512
_MANY_SLOTS: Final = 512


class Intake:
    """What is pending and in which bucket, and all the ways into it; the base of :class:`~._buckets.TimeBuckets`."""

    __slots__ = (
        "_append",
        "_appends",
        "_blocks",
        "_count",
        "_covered",
        "_end",
        "_front",
        "_gone",
        "_guard",
        "_insert",
        "_kind",
        "_ledger",
        "_look_at",
        "_low",
        "_note",
        "_offset",
        "_open",
        "_partition",
        "_positions",
        "_release_at",
        "_slots_by_key",
        "_start",
        "_store",
        "_sweep",
        "_tail",
        "_top",
        "front",
    )

    def __init__(self) -> None:
        self.front = self._front = Front()
        self._use(Positions())

    def _use(self, positions: Positions) -> None:
        self._positions = positions
        self._store = BucketStore(positions)
        self._front.use(self._store)
        self._count = 0
        self._gone = 0
        self._sweep: Iterator[None] | None = None
        self._guard = -1
        self._release_at = _FEW_SLOTS
        self._top = -1
        self._look_at = _SPAN
        self._bind()

    def _bind(self) -> None:
        """Keep what the fast paths call at hand; the tail is empty."""
        positions, store = self._positions, self._store
        self._tail = array(positions.typecode)
        self._note: Callable[[int], None] = self._tail.append
        self._start: int | None = None
        self._append: Callable[[int], None] = self._note
        self._insert: Callable[[int], None] = positions.pending.add_checked
        self._slots_by_key = positions.slots.by_key
        self._open = store.open
        self._appends = store.appends
        self._blocks = store.blocks.by_base
        self._covered = store.windows.covered
        self._leave_fast_path()

    def _leave_fast_path(self) -> None:
        self._leave_slot()
        self._leave_buckets()
        self._low = self._end = self._offset = 0
        self._ledger = self._partition = _NO_LEDGER
        self._kind: type[MessageId] = MessageId

    def _leave_slot(self) -> None:
        """Tell the current slot what its highest number is; it is not known here while ids come out of order."""
        slot = self._positions.slot
        if slot is not None and slot.top < self._top < _OUT_OF_ORDER:
            slot.top = self._top
        self._top = _OUT_OF_ORDER

    def _settle(self) -> None:
        """Put the numbers of the tail into the bitmap."""
        tail = self._tail
        if not tail:
            return
        self._count += len(tail)
        if len(tail) <= _FEW:
            for number in tail:
                self._positions.pending.add(number)
        else:
            self._positions.pending.update(tail)
        del tail[:]

    def __len__(self) -> int:
        return self._count + len(self._tail)

    # -- adding ------------------------------------------------------------------------------------------------------

    def put(self, message_id: MessageId, start: int) -> bool:
        """Make an id pending in a bucket; return whether it was not pending. Amortized O(1)."""
        if type(message_id) is self._kind:
            ledger, entry, partition, batch_index = message_id
            number = entry + self._offset
            if (
                self._low <= number < self._end
                and ledger == self._ledger
                and partition == self._partition
                and batch_index < 0
            ):
                append = self._append if start == self._start else self._appends.get(start)
                if append is not None:
                    if number > self._top:
                        self._top = number
                        append(number)
                        self._note(number)
                        return True
                    if number > self._guard:
                        return self._put_behind(number, start, append)
        return self._put_elsewhere(message_id, start)

    def _put_behind(self, number: int, start: int, append: Callable[[int], None]) -> bool:
        """Add a number that may be pending; while numbers come out of order the tail would be in the way."""
        if self._top < _OUT_OF_ORDER:
            self._settle()
            self._leave_slot()
        try:
            self._insert(number)
        except KeyError:
            return self._add_again(number, start)
        append(number)
        self._count += 1
        slot = self._positions.slot
        if slot is not None and slot.top < number:
            slot.top = number
        return True

    def _put_elsewhere(self, message_id: MessageId, start: int) -> bool:
        """Take the second fast path: another slot or bucket than the last time, both known already."""
        kind = type(message_id)
        if kind is not MessageId and kind is not _TopicId:
            return self._add(message_id, start)
        ledger, entry, partition, batch_index = message_id
        slot = self._slots_by_key.get((ledger, entry >> 16, partition, 0, 0)) if batch_index < 0 else None
        if slot is None or start <= self._front.earliest or (slot.topic is None and kind is _TopicId):
            return self._add(message_id, start)
        number = entry - slot.offset
        if slot is not self._positions.slot or not self._low <= number < self._end:
            self._use_slot(slot, number)
        numbers = self._open.get(start)
        if numbers is not None:
            if len(numbers) < self._store.fold_at:
                append = self._use_bucket(start, numbers)
                if number > self._top:
                    self._top = number
                    append(number)
                    self._note(number)
                    return True
                if number > self._guard:
                    return self._put_behind(number, start, append)
        elif number > self._top:
            block = self._blocks.get(start & -BLOCK_MS)
            if block is not None and len(block) < block.room and self._store.is_for_block(start, self._front.earliest):
                self._top = number
                block.add(number, start)
                self._store.blocks.count += 1
                self._note(number)
                return True
        return self._add(message_id, start)

    def _add(self, message_id: MessageId, start: int) -> bool:
        self._settle()
        number = self._number(message_id)
        kind = type(message_id)
        if kind is not MessageId and kind is not _TopicId and message_id.is_chunked:
            self._positions.keep(number, message_id)
        if number in self._positions.pending:
            return self._add_again(number, start)
        if number <= self._guard:
            self._make_way(number, start)
        self._insert(number)
        self._top = max(self._top, number)
        self._put(number, start)
        self._count += 1
        return True

    def _add_again(self, number: int, start: int) -> bool:
        if self._store.copies.added_again(number, start):
            self._gone += 1
            self._put(number, start)
            self._sweep_when_worth_it()
        return False

    def _make_way(self, number: int, start: int) -> None:
        """Prepare for a number that lies in a window, or may have left copies behind."""
        if number in self._store.windows.covered:
            self._store.dissolve(number)
        self._store.copies.added(number, start)

    def _put(self, number: int, start: int) -> None:
        if self._store.is_for_block(start, self._front.earliest):
            self._store.put_in_block(number, start)
            self._raise_guard()
            return
        numbers = self._store.growing(start)
        numbers.append(number)
        self._raise_guard()
        self._front.added(start, (number,))
        if self._front.is_kept(start):
            self._leave_buckets()
        else:
            self._use_bucket(start, numbers)

    def _raise_guard(self) -> None:
        self._guard = max(self._store.windows.top, self._store.copies.top)

    def _number(self, message_id: MessageId) -> int:
        """Return the number of an id, whose slot is made when needed and becomes the current one."""
        _check_stored(message_id, "id")
        ledger, entry, partition, batch_index = message_id
        slot = self._slot_of(slot_key(ledger, entry, partition, batch_index), message_id.topic)
        number = slot.number(entry, batch_index)
        self._use_slot(slot, number)
        return number

    def _use_bucket(self, start: int, numbers: array[int]) -> Callable[[int], None]:
        """Remember the open array of a bucket for a while, so that the fast path appends to it."""
        append = numbers.append
        if len(self._appends) < _MOST_APPENDS:
            self._appends[start] = append
        self._start, self._append = start, append
        return append

    def _leave_buckets(self) -> None:
        """Forget all open arrays, so that each is looked at again before it grows on."""
        self._start = None
        self._append = self._note
        self._appends.clear()

    def _use_slot(self, slot: Slot, number: int) -> None:
        """Make a slot the current one, for a number of it."""
        self._leave_slot()
        added = len(self) + self._gone
        if added >= self._look_at:
            self._look_at = added + _SPAN
            self._settle()
            self._leave_buckets()
        self._positions.slot = slot
        self._top = slot.top
        self._low = slot.base
        if slot.bits:
            self._end = slot.base
            return
        self._offset = -slot.offset
        self._end = min(slot.base + SLOT_SIZE, max(slot.top, number) + _SPAN)
        self._ledger, self._partition = slot.ledger, slot.partition
        self._kind = MessageId if slot.topic is None else _TopicId

    def _slot_of(self, key: tuple[int, int, int, int, int], topic: str | None = None) -> Slot:
        if len(self._positions.slots) >= self._release_at:
            self._release(self._positions.slots)
            self._release_at = 2 * len(self._positions.slots) + _FEW_SLOTS
        if not self._positions.has_slot_for(key):
            self._sweep_everything()
            if not self._positions.has_slot_for(key):
                self._widen()
        slot = self._positions.slot_of(key, topic)
        if slot.top == UNUSED:
            end = slot.base + SLOT_SIZE
            slot.top = end - 1 if self._covered.range_cardinality(slot.base, end) else slot.base - 1
        return slot

    # -- adding many -------------------------------------------------------------------------------------------------

    def put_entries(self, ledger: int, entries: Any, start: int) -> int:
        """Make many entries of one ledger pending; ``entries`` is a bitmap of theirs. Return how many were not.

        About 10 ns an entry in order: they go into sealed parts at once.
        """
        self._settle()
        self._leave_fast_path()
        if type(entries) is self._positions.bitmap and entries and (low := entries.min()) >> 16 == entries.max() >> 16:
            slot = self._slot_of((ledger, low >> 16, -1, 0, 0))
            return self._add_numbers(entries.shift(-slot.offset), start, slot)
        added = 0
        for at, end, low in slot_bounds(flat := entries.to_array()):
            slot = self._slot_of((ledger, low >> 16, -1, 0, 0))
            part = entries & type(entries)(range(low, flat[end - 1] + 1))
            added += self._add_numbers(self._shifted(part, -slot.offset, flat[at:end]), start, slot)
        return added

    def _shifted(self, entries: Any, offset: int, flat: array[int]) -> Any:
        if type(entries) is self._positions.bitmap:
            return entries.shift(offset)
        return self._positions.bitmap(array(self._positions.typecode, [entry + offset for entry in flat]))

    def _add_numbers(self, numbers: Any, start: int, slot: Slot) -> int:
        low, high, count = numbers.min(), numbers.max(), len(numbers)
        is_new, slot.top = low > slot.top, max(slot.top, high)
        known = () if is_new else self._add_considering(numbers, start)
        pending = self._positions.pending
        if high - low + 1 == count:
            pending.add_range(low, high + 1)
        elif len(self._positions.slots) < _MANY_SLOTS:
            pending |= numbers
        else:  # in place it would go through all slots before
            pending.update(numbers.to_array())
        added = len(numbers)
        self._count += added
        if added < _SEAL_FROM:
            for number in numbers:
                self._put(number, start)
        else:
            self._seal(numbers, start)
        for number in known:
            self._add_again(number, start)
        return added

    def _add_considering(self, numbers: Any, start: int) -> Any:
        """Make way for numbers that may have been used; take out and return those that are pending."""
        store = self._store
        known = numbers & self._positions.pending
        numbers -= known
        while conflicts := numbers & store.windows.covered:
            store.dissolve(conflicts.min())
        for number in numbers & store.copies.stale:
            store.copies.added(number, start)
        return known

    def _seal(self, numbers: Any, start: int) -> None:
        self._store.folded += len(numbers)
        self._front.added(start, numbers)
        self._store.seal(start, numbers)
        self._raise_guard()

    # -- upkeep ------------------------------------------------------------------------------------------------------

    def _sweep_when_worth_it(self) -> None:
        """Begin to drop extra copies when they outnumber the living, or go on with it, a few parts a call."""
        if self._sweep is None:
            if self._store.copies.extra <= max(_SWEEP_AT, self._count):
                return
            self._sweep = self._store.sweep()
        self._go_on_sweeping(_STEPS)

    def _go_on_sweeping(self, steps: int | None) -> None:
        """Take some steps of the sweep, or with None all of them. An open array may have been emptied or dropped."""
        assert self._sweep is not None
        self._settle()
        self._start = None
        for _ in islice(self._sweep, steps):
            pass
        if self._store.copies.sweep is None:
            self._sweep = None
            self._leave_fast_path()
            self._positions.slot = None
            self._release(self._positions.slots)
            self._front.swept()
        self._raise_guard()

    def _sweep_everything(self) -> None:
        if self._sweep is None:
            self._sweep = self._store.sweep()
        self._go_on_sweeping(None)

    def _widen(self) -> None:
        """Go over to numbers of 64 bits, since there are more slots than 32 bits can name; about 30 ns an id, once."""
        self._positions.widen()
        self._store.widen()
        self._front.find()
        self._bind()
        self._raise_guard()

    def _release(self, slots: Iterable[Slot]) -> None:
        self._positions.release_unused(slots, self._store.copies.stale)
