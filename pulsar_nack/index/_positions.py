"""The set of pending messages: ledger -> bitmap, as one bitmap over small dense numbers.

:class:`Positions` gives a message its number (see ``_slots``), knows in O(1) whether it is pending, and cuts numbers
into runs of one slot each again. It is open while written; the parts that are no longer written to are run-optimized
as slots appear.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final

from pyroaring import BitMap, BitMap64

from ..ids import MessageId, _fuller
from ._slots import SLOT_SIZE, Slot, SlotKey, SlotTable, slot_key

Run = tuple[Slot | None, "array[int]"]
"""Ascending numbers of one slot; or, with None, of many slots that are in order of their positions too."""

_SLOT_BYTES: Final = 420
_BITSET_BYTES: Final = 8_192
_WIDE_LIMIT: Final = 1 << 40
_FEW: Final = 4_096
_FEW_EACH: Final = 8


class Positions:
    """Numbers for messages, and the bitmap of those that are pending.

    Numbers have 32 bits until :meth:`widen` is called, which is needed for more than 65 536 slots at once.
    """

    __slots__ = (
        "_measured",
        "_measured_count",
        "_new_slots",
        "bitmap",
        "originals",
        "pending",
        "slot",
        "slots",
        "typecode",
    )

    def __init__(self) -> None:
        self.bitmap: type[Any] = BitMap
        self.typecode = "I"
        self.slots = SlotTable(SLOT_SIZE)
        self.slot: Slot | None = None
        self.pending: Any = self.bitmap()
        self.originals: dict[int, MessageId] = {}
        self._new_slots = self._measured = self._measured_count = 0

    @property
    def is_wide(self) -> bool:
        """Return whether numbers have 64 bits."""
        return self.bitmap is BitMap64

    def widen(self) -> None:
        """Go over to numbers of 64 bits."""
        self.bitmap, self.typecode = BitMap64, "Q"
        self.slots.limit = _WIDE_LIMIT
        self.pending = widened(self.pending)

    def has_slot_for(self, key: SlotKey) -> bool:
        """Return whether :meth:`slot_of` would need no further slot, or has room for one."""
        return not self.slots.is_full or self.slots.find(key) is not None

    def slot_of(self, key: SlotKey, topic: str | None = None) -> Slot:
        """Return the slot of a key, which is made when needed; the current one is found fastest."""
        slot = self.slot
        if slot is None or slot.key != key or (topic is not None and slot.topic is None):
            known = len(self.slots)
            slot = self.slots.get(key, topic)
            if len(self.slots) > known:
                self._slot_was_made()
        return slot

    def number_if_pending(self, ledger: int, entry: int, partition: int, batch_index: int) -> int | None:
        """Return the number of a pending message, None when it is not pending."""
        slot = self.slots.find(slot_key(ledger, entry, partition, batch_index))
        if slot is None:
            return None
        number = slot.number(entry, batch_index)
        return number if number in self.pending else None

    # -- from numbers back to messages -------------------------------------------------------------------------------

    def runs(self, numbers: Any) -> list[Run]:
        """Cut a bitmap of numbers into slots, ordered by ledger and entry; few numbers of many slots stay one run."""
        flat = numbers.to_array()
        if flat and len(flat) < _FEW_EACH * ((flat[-1] >> 16) - (flat[0] >> 16)) and self.slots.are_in_order:
            return [(None, flat)]
        runs = [(self.slots[low >> 16], flat[at:end]) for at, end, low in slot_bounds(flat)]
        if len(runs) > 1 and not self.slots.are_in_order:
            runs.sort(key=_place)
        return list[Run](runs)

    def parts(self, numbers: Any) -> list[tuple[Slot, Any]]:
        """Cut a bitmap of numbers into a bitmap for each slot, ordered by ledger and entry."""
        first, last = numbers.min() >> 16, numbers.max() >> 16
        if first == last:
            return [(self.slots[first], numbers)]
        parts = []
        while numbers:
            base = numbers.min() & ~(SLOT_SIZE - 1)
            part = numbers & self.bitmap(range(base, base + SLOT_SIZE))
            numbers = numbers - part
            parts.append((self.slots[base >> 16], part))
        parts.sort(key=_place)
        return parts

    def keep(self, number: int, message_id: MessageId) -> None:
        """Keep the id of a chunked message, merged with the id that is kept already."""
        known = self.originals.get(number)
        self.originals[number] = message_id if known is None else _fuller(message_id, known)

    def remove(self, numbers: Any) -> dict[int, MessageId]:
        """Take numbers out of what is pending; return the ids of chunked messages among them by number."""
        self._subtract(numbers)
        return self.take_originals(numbers)

    def take_originals(self, numbers: Any) -> dict[int, MessageId]:
        """Remove the ids of chunked messages among ``numbers``; return them by number, with their topics."""
        originals = self.originals
        if not originals:
            return {}
        few, many = (numbers, originals) if len(numbers) < len(originals) else (list(originals), numbers)
        taken = {number: originals.pop(number) for number in few if number in many}
        for number, message_id in taken.items():
            topic = self.slots[number >> 16].topic
            if topic is not None and message_id.topic is None:
                taken[number] = message_id._replace(topic=topic)
        return taken

    def _subtract(self, numbers: Any) -> None:
        """Subtracting 64-bit bitmaps builds all of the first anew: 4 ms with 60 000 slots, as long as 8 000 numbers."""
        if self.is_wide and len(numbers) < _FEW:
            self.remove_few(numbers)
        else:
            self.pending -= numbers

    def remove_few(self, numbers: Iterable[int]) -> None:
        """Take numbers of no chunked messages out of what is pending, one by one."""
        discard = self.pending.discard
        for number in numbers:
            discard(number)

    # -- slots and memory --------------------------------------------------------------------------------------------

    def release_unused(self, slots: Iterable[Slot], in_use: Any) -> None:
        """Give slots back that hold neither a pending message nor a number of ``in_use``; the current one stays."""
        for slot in slots:
            end = slot.base + SLOT_SIZE
            if slot is self.slot or self.pending.range_cardinality(slot.base, end):
                continue
            if not in_use or not in_use.range_cardinality(slot.base, end):
                self.slots.release(slot)

    def _slot_was_made(self) -> None:
        self._new_slots += 1
        if self._new_slots > len(self.slots) >> 4:
            self.pending.run_optimize()
            self._new_slots = 0
            statistics = self.pending.get_statistics()
            kinds = ("array", "run", "bitset")
            stored: int = sum(statistics[f"n_bytes_{kind}_containers"] for kind in kinds)
            self._measured = stored + 48 * int(statistics["n_containers"])
            self._measured_count = int(statistics["cardinality"])

    def memory(self, count: int) -> int:
        """Return about how many bytes are held for ``count`` pending messages. O(1)."""
        grown = min(2 * max(count - self._measured_count, 0), _BITSET_BYTES * (self._new_slots + 1))
        return self._measured + grown + _SLOT_BYTES * len(self.slots)


def widened(numbers: Any) -> Any:
    """Return a bitmap of 32-bit numbers as one of 64-bit numbers."""
    return BitMap64(array("Q", numbers.to_array()))


def slot_bounds(flat: array[int]) -> list[tuple[int, int, int]]:
    """Cut ascending numbers where the slot changes: first place, end, first number of each part."""
    bounds = []
    at = 0
    while at < len(flat):
        end = slot_end(flat, at)
        bounds.append((at, end, flat[at]))
        at = end
    return bounds


def slot_end(flat: array[int], at: int) -> int:
    """Return where the slot ends that the number at a place belongs to."""
    if flat[-1] >> 16 == flat[at] >> 16:
        return len(flat)
    return bisect_left(flat, (flat[at] | (SLOT_SIZE - 1)) + 1, at)


def _place(run: tuple[Slot, Any]) -> tuple[int, int, int, int]:
    return run[0].place
