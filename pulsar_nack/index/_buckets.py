"""Time bucket -> positions: which ids are pending, and which of them come due next.

``Positions.pending`` is the only truth about what is pending, ``BucketStore`` says when. The fast path of
:meth:`TimeBuckets.add` is taken while ids follow each other in one slot and one bucket: one insertion into the bitmap
and one append. Everything else goes through ``_add``.

``_guard`` is at least the largest number that is covered by a window or may have a stale copy: a larger number needs no
further look. An open array is only appended to by way of ``_append`` while ``_start`` names its bucket, so ``_start``
is forgotten whenever the array may be emptied, dropped or has to be looked after (``_front``).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ..ids import MessageId, _check_stored, _TopicId
from ._due import DueIds
from ._front import Front
from ._positions import Positions, Run, slot_bounds
from ._slots import SLOT_SIZE, Slot, slot_key
from ._store import FOLD, BucketStore

_SPAN: Final = 8192
_SEAL_FROM: Final = 64
_SWEEP_AT: Final = 1024
_STEPS: Final = 4
_BASE_BYTES: Final = 4096
_NO_LEDGER: Final = -2
_FEW_SLOTS: Final = 64
_FEW_EACH: Final = 4


class TimeBuckets:
    """Pending ids in buckets of time; a start is any integer of ms.

    An id is pending once: added again, it fires with the earliest of its starts. Adding, cancelling and looking up are
    O(1), popping is O(due), all counts are kept. ``front.earliest`` is the start of the first bucket with something in
    it; ``front`` is the same object at all times.
    """

    def __init__(self) -> None:
        self.front = self._front = Front()
        self.clear()

    def clear(self) -> int:
        """Drop everything; return how many were pending."""
        count = getattr(self, "_count", 0)
        self._use(Positions())
        return count

    def _use(self, positions: Positions) -> None:
        self._positions = positions
        self._store = BucketStore(positions)
        self._front.use(self._store)
        self._count = 0
        self._gone = 0
        self._sweep: Iterator[None] | None = None
        self._guard = -1
        self._release_at = _FEW_SLOTS
        self._bind()

    def _bind(self) -> None:
        """Keep what the fast paths call at hand."""
        positions, store = self._positions, self._store
        self._insert: Callable[[int], None] = positions.pending.add_checked
        self._slots_by_key = positions.slots.by_key
        self._open = store.open
        self._covered = store.windows.covered
        self._stale = store.copies.stale
        self._leave_fast_path()

    def _leave_fast_path(self) -> None:
        self._start: int | None = None
        self._append: Callable[[int], None] | None = None
        self._first = self._span = self._base = 0
        self._ledger = self._partition = _NO_LEDGER
        self._kind: type[MessageId] = MessageId

    # -- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __contains__(self, message_id: MessageId) -> bool:
        return self._positions.number_if_pending(*message_id) is not None

    @property
    def earliest(self) -> int:
        """Return the start of the first bucket with something in it, ``NEVER`` without one. O(1)."""
        return self._front.earliest

    @property
    def bucket_count(self) -> int:
        """Return about how many buckets there are (one with both sealed and open parts may count as two). O(1)."""
        return self._store.bucket_count()

    @property
    def bytes(self) -> int:
        """Return about how many bytes are held. O(1)."""
        unsealed = max(self._count + self._gone - self._store.folded, 0)
        width = 9 if self._positions.is_wide else 4.5
        return _BASE_BYTES + self._positions.memory(self._count) + self._store.memory() + int(width * unsealed)

    # -- adding ------------------------------------------------------------------------------------------------------

    def add(self, message_id: MessageId, start: int) -> bool:
        """Make an id pending in a bucket; return whether it was not pending. Amortized O(1)."""
        if type(message_id) is self._kind:
            ledger, entry, partition, batch_index = message_id
            low = entry - self._first
            if (
                start == self._start
                and 0 <= low < self._span
                and ledger == self._ledger
                and partition == self._partition
                and batch_index < 0
            ):
                number = self._base + low
                if number > self._guard:
                    try:
                        self._insert(number)
                    except KeyError:
                        return self._add_again(number, start)
                    self._append(number)  # type: ignore[misc]
                    self._count += 1
                    return True
        return self._add_elsewhere(message_id, start)

    def _add_elsewhere(self, message_id: MessageId, start: int) -> bool:
        """Take the second fast path: another slot or bucket than the last time, both known already."""
        kind = type(message_id)
        if kind is MessageId or kind is _TopicId:
            ledger, entry, partition, batch_index = message_id
            slot = self._slots_by_key.get((ledger, entry >> 16, partition, 0, 0)) if batch_index < 0 else None
            numbers = self._open.get(start)
            if (
                slot is not None
                and (slot.topic is not None or kind is MessageId)
                and numbers is not None
                and len(numbers) < FOLD
                and start > self._front.earliest
            ):
                number = slot.base - slot.first_entry + entry
                if number > self._guard or not (number in self._covered or number in self._stale):
                    try:
                        self._insert(number)
                    except KeyError:
                        return self._add_again(number, start)
                    numbers.append(number)
                    self._count += 1
                    self._start = start
                    self._append = numbers.append
                    if slot is not self._positions.slot or number - slot.base >= self._span:
                        self._use_slot(slot, number)
                    return True
        return self._add(message_id, start)

    def _add(self, message_id: MessageId, start: int) -> bool:
        number = self._number(message_id)
        if number in self._positions.pending:
            return self._add_again(number, start)
        if number <= self._guard:
            self._make_way(number, start)
        self._insert(number)
        if message_id.is_chunked:
            self._positions.originals[number] = message_id
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
        numbers = self._store.growing(start)
        numbers.append(number)
        self._raise_guard()
        self._front.added(start, (number,))
        self._start = None if self._front.is_kept(start) else start
        self._append = numbers.append

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

    def _use_slot(self, slot: Slot, number: int) -> None:
        self._positions.slot = slot
        if slot.bits:
            self._span = 0
            return
        self._first, self._base = slot.first_entry, slot.base
        self._ledger, self._partition = slot.ledger, slot.partition
        self._kind = MessageId if slot.topic is None else _TopicId
        self._span = min(SLOT_SIZE, number - slot.base + _SPAN)

    def _slot_of(self, key: tuple[int, int, int, int, int], topic: str | None = None) -> Slot:
        if len(self._positions.slots) >= self._release_at:
            self._release(self._positions.slots)
            self._release_at = 2 * len(self._positions.slots) + _FEW_SLOTS
        if not self._positions.has_slot_for(key):
            self._sweep_everything()
            if not self._positions.has_slot_for(key):
                self._widen()
        return self._positions.slot_of(key, topic)

    # -- adding many -------------------------------------------------------------------------------------------------

    def add_entries(self, ledger: int, entries: Any, start: int) -> int:
        """Make many entries of one ledger pending; ``entries`` is a bitmap of theirs. Return how many were not.

        About 10 ns an entry in order: they go into sealed parts at once.
        """
        added = 0
        for at, end, low in slot_bounds(flat := entries.to_array()):
            slot = self._slot_of((ledger, low >> 16, -1, 0, 0))
            part = entries & type(entries)(range(low, flat[end - 1] + 1))
            added += self._add_numbers(self._shifted(part, slot.base - slot.first_entry, flat[at:end]), start)
        self._leave_fast_path()
        return added

    def _shifted(self, entries: Any, offset: int, flat: array[int]) -> Any:
        if type(entries) is self._positions.bitmap:
            return entries.shift(offset)
        return self._positions.bitmap(array(self._positions.typecode, [entry + offset for entry in flat]))

    def _add_numbers(self, numbers: Any, start: int) -> int:
        store, pending = self._store, self._positions.pending
        known = numbers & pending
        numbers -= known
        while conflicts := numbers & store.windows.covered:
            store.dissolve(conflicts.min())
        for number in numbers & store.copies.stale:
            store.copies.added(number, start)
        pending |= numbers
        self._count += len(numbers)
        if len(numbers) < _SEAL_FROM:
            for number in numbers:
                self._put(number, start)
        else:
            self._seal(numbers, start)
        for number in known:
            self._add_again(number, start)
        return len(numbers)

    def _seal(self, numbers: Any, start: int) -> None:
        self._store.folded += len(numbers)
        self._front.added(start, numbers)
        self._store.seal(start, numbers)
        self._raise_guard()

    # -- cancelling --------------------------------------------------------------------------------------------------

    def discard(self, message_id: MessageId) -> bool:
        """Take an id out; return whether it was pending. Amortized O(1)."""
        positions, store = self._positions, self._store
        number = positions.number_if_pending(*message_id)
        if number is None:
            return False
        positions.pending.discard(number)
        positions.originals.pop(number, None)
        self._count -= 1
        self._gone += 1
        if not self._count:
            self.clear()
            return True
        if number not in store.windows.covered or number in store.copies.doubled:
            store.copies.cancelled(number)
            self._guard = max(self._guard, number)
        self._start = None
        self._front.cancelled(number)
        self._sweep_when_worth_it()
        return True

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
        self._start = None
        for _ in islice(self._sweep, steps):
            pass
        if self._store.copies.sweep is None:
            self._sweep = None
            self._positions.slot = None
            self._leave_fast_path()
            self._release(self._positions.slots)
            self._raise_guard()
            self._front.swept()

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

    # -- popping -----------------------------------------------------------------------------------------------------

    def pop(self, now: int, limit: int | None = None) -> DueIds:
        """Take out what is due at ``now`` (start <= now), earliest bucket first and ordered inside it; O(taken)."""
        due = DueIds()
        front = self._front
        while self._count and front.earliest <= now and (limit is None or len(due) < limit):
            self._pop_from(front.earliest, limit, due)
            self._after_pop()
        return due

    def pop_all(self) -> DueIds:
        """Take out everything, ordered by position; O(slots) until the ids are read."""
        due = DueIds()
        for run in self._positions.runs(self._positions.pending):
            due.append(run)
        due.replace(self._positions.originals)
        self.clear()
        return due

    def pop_parts(self, now: int) -> list[tuple[Slot, Any]]:
        """Take out all that is due at once; return a bitmap of numbers for each slot."""
        if self._front.earliest > now:
            return []
        numbers = self._store.take_until(now)
        self._start = None
        if not numbers:
            self._after_pop()
            return []
        parts = self._positions.parts(numbers)
        self._fire(numbers)
        self._release([slot for slot, _ in parts])
        self._after_pop()
        return parts

    def _pop_from(self, start: int, limit: int | None, due: DueIds) -> None:
        self._start = None
        store = self._store
        rest = store.rests.get(start)
        if rest is None:
            living = store.take(start)
            if limit is None or len(living) <= limit - len(due):
                runs = self._positions.runs(living)
                originals = self._fire(living)
                for run in runs:
                    due.append(run)
                due.replace(originals)
                if len(living) > _FEW_EACH * len(runs):  # else looking would cost more than the ids; see _slot_of
                    self._release([slot for slot, _ in runs])
                return
            rest = store.keep_rest(start, living)
        self._pop_rest(start, rest, limit, due)

    def _pop_rest(self, start: int, rest: deque[Run], limit: int | None, due: DueIds) -> None:
        positions, copies = self._positions, self._store.copies
        while rest and (limit is None or len(due) < limit):
            slot, numbers = rest.popleft()
            room = len(numbers) if limit is None else min(limit - len(due), len(numbers))
            if room < len(numbers):
                rest.appendleft((slot, numbers[room:]))
                numbers = numbers[:room]
            living = copies.living(positions.bitmap(numbers), positions.pending, start)
            if living:
                due.append((slot, living.to_array()))
                due.replace(self._fire(living))
            self._release([slot])
        if not rest:
            self._store.drop_rest(start)

    def _fire(self, numbers: Any) -> dict[int, MessageId]:
        self._count -= len(numbers)
        self._gone += len(numbers)
        if self._store.copies:
            self._store.copies.fired(numbers)
            self._raise_guard()
        return self._positions.remove(numbers)

    def _release(self, slots: Iterable[Slot]) -> None:
        self._positions.release_unused(slots, self._store.copies.stale)

    def _after_pop(self) -> None:
        if self._count:
            self._front.find()
        else:
            self.clear()
