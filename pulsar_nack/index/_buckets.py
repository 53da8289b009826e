"""Time buckets: pending ids and when they fire, with all that can be asked of them and taken out.

How ids get in, and what keeps that cheap, is in ``_intake``; what lies in a bucket is in ``_store``.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, Final

from ..ids import MessageId
from ._due import DueIds
from ._intake import Intake
from ._positions import Positions, Run
from ._rest import Rest
from ._slots import Slot

_BASE_BYTES: Final = 4096
_FEW_EACH: Final = 4


class TimeBuckets(Intake):
    """Pending ids in buckets of time; a start is any integer of ms.

    An id is pending once: added again, it fires with the earliest of its starts. Adding, cancelling and looking up are
    O(1), popping is O(due), all counts are kept. ``front.earliest`` is the start of the first bucket with something in
    it; ``front`` is the same object at all times.
    """

    __slots__ = ()

    def clear(self) -> int:
        """Drop everything; return how many were pending."""
        count = len(self)
        self._use(Positions())
        return count

    # -- reading -----------------------------------------------------------------------------------------------------

    def __contains__(self, message_id: object) -> bool:
        if not isinstance(message_id, MessageId):
            return False
        self._settle()
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
        count = len(self)
        unsealed = max(count + self._gone - self._store.folded, 0)
        width = 9 if self._positions.is_wide else 4.5
        return _BASE_BYTES + self._positions.memory(count) + self._store.memory() + int(width * unsealed)

    def learn(self, id: MessageId) -> bool:
        """Return whether an id is pending; if so, keep its topic and chunks."""
        self._settle()
        positions = self._positions
        number = positions.number_if_pending(*id)
        if number is None:
            return False
        positions.slots.get(positions.slots[number >> 16].key, id.topic)
        if id.is_chunked:
            positions.keep(number, id)
        return True

    # -- cancelling --------------------------------------------------------------------------------------------------

    def discard(self, id: MessageId) -> bool:
        """Take an id out; return whether it was pending. Amortized O(1)."""
        self._settle()
        positions, store = self._positions, self._store
        number = positions.number_if_pending(*id)
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
        self._front.cancelled(number)
        self._raise_guard()
        self._start = None
        self._appends.pop(self._front.earliest, None)
        self._sweep_when_worth_it()
        return True

    # -- popping -----------------------------------------------------------------------------------------------------

    def pop(self, now: int, limit: int | None = None) -> DueIds:
        """Take out what is due at ``now`` (start <= now), earliest bucket first and ordered inside it; O(taken)."""
        self._settle()
        due = DueIds()
        front = self._front
        thin: list[array[int]] = []
        while self._count and front.earliest <= now and (limit is None or len(due) < limit):
            self._pop_from(front.earliest, limit, due, thin)
            self._after_pop()
        if thin and self._count:
            self._positions.remove_few(chain.from_iterable(thin))
        return due

    def pop_all(self) -> DueIds:
        """Take out everything, ordered by position; O(slots) until the ids are read."""
        self._settle()
        due = DueIds()
        self._hand_out(self._positions.runs(self._positions.pending), due)
        due.replace(self._positions.take_originals(self._positions.pending))
        self.clear()
        return due

    def pop_parts(self, now: int) -> list[tuple[Slot, Any]]:
        """Take out all that is due at once; return a bitmap of numbers for each slot."""
        if self._front.earliest > now:
            return []
        self._settle()
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

    def _pop_from(self, start: int, limit: int | None, due: DueIds, thin: list[array[int]]) -> None:
        """Take out a bucket as far as the limit goes.

        Few numbers of many slots are put into ``thin``, to be taken out of what is pending one by one: to subtract a
        bitmap would go through all slots. Only while each number has one copy, which cannot be met again.
        """
        self._start = None
        store = self._store
        rest = store.rests.get(start)
        if rest is None and limit is not None and store.is_large(start):
            rest = store.take_bit_by_bit(start)
        if rest is None:
            living = store.take(start)
            if limit is None or len(living) <= limit - len(due):
                runs = self._positions.runs(living)
                if len(runs) == 1 and runs[0][0] is None and not store.copies and not self._positions.originals:
                    self._count -= len(living)
                    self._gone += len(living)
                    thin.append(runs[0][1])
                    self._hand_out(runs, due)
                    return
                originals = self._fire(living)
                self._hand_out(runs, due)
                due.replace(originals)
                return
            rest = store.keep_rest(start, living)
        self._pop_rest(start, rest, limit, due)

    def _hand_out(self, runs: list[Run], due: DueIds) -> None:
        """Put what was taken out of the bitmap into ``due``, and give back the slots that became empty."""
        by_index = self._positions.slots.by_index
        for slot, numbers in runs:
            if slot is None:
                due.append([by_index[number >> 16] for number in numbers], numbers)
            else:
                due.append(slot, numbers)
                if len(numbers) > _FEW_EACH:  # else looking would cost more than the ids; see _slot_of
                    self._release((slot,))

    def _pop_rest(self, start: int, rest: Rest, limit: int | None, due: DueIds) -> None:
        positions, copies = self._positions, self._store.copies
        while rest and (limit is None or len(due) < limit):
            numbers = rest.take(None if limit is None else limit - len(due))
            living = copies.living(numbers, positions.pending, start)
            if living:
                runs = positions.runs(living)
                originals = self._fire(living)
                self._hand_out(runs, due)
                due.replace(originals)
        if not rest:
            self._store.drop_rest(start)

    def _fire(self, numbers: Any) -> dict[int, MessageId]:
        self._count -= len(numbers)
        self._gone += len(numbers)
        if self._store.copies:
            self._store.copies.fired(numbers)
            self._raise_guard()
        return self._positions.remove(numbers)

    def _after_pop(self) -> None:
        if self._count:
            self._front.find()
            self._raise_guard()  # a block may have been split, and parts of it sealed
        else:
            self.clear()
