"""The pure schedule of negative acknowledgements: no clock, no await, integers in ms (PIP-393).

A deadline is rounded down to the start of its bucket, which is ``2 ** bits`` ms wide and never wider than
``precision_ratio`` of the delay; the id is due from the start of the bucket on. So it is early by less than a bucket
and never late. Buckets of several widths live side by side: only their starts matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .._check import check_config
from .._delays import MAX_DELAY_MS
from ..config import NackConfig
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ..index import NEVER, DueIds, Slot, TimeBuckets, as_entries

_UNSET: Final = object()


class DueRun(NamedTuple):
    """Due entries of one ledger, ascending, as ``array('I')``, or ``array('Q')`` from entry 2**32 on.

    Topics and batch sizes are left out. A chunked message appears as its last chunk only.
    """

    partition: int
    batch_index: int
    ledger: int
    entries: array[int]


class NackSchedule(TimeBuckets):
    """Pending ids and when they are due: time buckets whose starts come from a time and a delay.

    Adding, cancelling, looking up and all counts are O(1); popping is O(popped). An id is pending once: added again,
    the earliest deadline wins. ``earliest`` is when something is due next, later than every time while nothing is
    pending.
    """

    __slots__ = ("_config", "_delay_ms", "_mask", "full_width_from", "full_width_mask")
    # ``full_width_*`` are read by the tracker, whose ordinary call cannot afford a call more.

    def __init__(self, config: NackConfig | None = None) -> None:
        check_config(config, NackConfig)
        super().__init__()
        self._config = NackConfig() if config is None else config
        bits = self._config.negative_ack_precision_bit_cnt
        ratio = self._config.precision_ratio
        self.full_width_mask = -1 << bits
        self.full_width_from = 0 if ratio is None else (1 << bits) / ratio
        self._delay_ms: object = _UNSET
        self._mask = -1

    def next_at(self) -> int | None:
        """Return when something is due next, None when nothing is pending. O(1)."""
        earliest = self.earliest
        return None if earliest == NEVER else earliest

    def bucket_start(self, now_ms: int, delay_ms: int) -> int:
        """Return from when on an id would be due that is nacked at ``now_ms``."""
        return (now_ms + delay_ms) & self.mask(delay_ms)

    def mask(self, delay_ms: int) -> int:
        """Return what a deadline is combined with by AND to get the start of its bucket."""
        if delay_ms != self._delay_ms:
            self._use_delay(delay_ms)
        return self._mask

    def _use_delay(self, delay_ms: int) -> None:
        if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
            raise InvalidArgumentError("delay_ms", delay_ms, f"an integer from 0 to {MAX_DELAY_MS}")
        self._delay_ms = delay_ms
        if delay_ms >= self.full_width_from:
            self._mask = self.full_width_mask
            return
        ratio = self._config.precision_ratio
        widest = int(delay_ms * (ratio or 1))
        self._mask = -1 << (max(widest, 1).bit_length() - 1)

    def add(self, id: MessageId, now_ms: int, delay_ms: int) -> bool:
        """Make an id pending; return whether it was not. Pending already: the earliest deadline wins.

        :raises InvalidArgumentError: not a message's id, or a negative delay; nothing has changed
        """
        if delay_ms != self._delay_ms:
            if type(delay_ms) is int and self.full_width_from <= delay_ms <= MAX_DELAY_MS:
                self._delay_ms, self._mask = delay_ms, self.full_width_mask
            else:
                self._use_delay(delay_ms)
        start = (now_ms + delay_ms) & self._mask
        if type(id) is self._kind:  # from here on what ``put`` does, without a call
            ledger, entry, partition, batch_index = id
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
        return self._put_elsewhere(id, start)

    def add_entries(self, ledger: int, entries: Any, now_ms: int, delay_ms: int) -> int:
        """Make entries of one ledger pending: a range, a sequence, an array or a numpy array. Return how many were not.

        :raises InvalidArgumentError: names the ledger or the entry; nothing has changed
        """
        if type(ledger) is not int or not 0 <= ledger < 1 << 63:
            raise InvalidArgumentError("ledger", ledger, "an integer from 0 to 2**63 - 1")
        start = self.bucket_start(now_ms, delay_ms)
        return self.put_entries(ledger, as_entries(entries), start)

    def add_many(self, ids: Iterable[MessageId], now_ms: int, delay_ms: int) -> int:
        """Make ids pending that have been checked; return how many were not."""
        start = self.bucket_start(now_ms, delay_ms)
        put = self.put
        added = 0
        for message_id in ids:
            added += put(message_id, start)
        return added

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueIds:
        """Take out what is due, earliest bucket first and by position inside it; ids are made when they are read.

        An id has the topic and the chunks of all equal ids that were added. Batch sizes are left out.
        """
        return self.pop(now_ms, limit)

    def pop_due_runs(self, now_ms: int) -> list[DueRun]:
        """Take out all that is due at once, as arrays of entries; ordered by ledger, not by deadline.

        Topics and batch sizes are left out, and a chunked message appears as its last chunk only. To request chunked
        messages from a broker use :meth:`pop_due`, whose ids name every chunk.
        """
        runs: list[DueRun] = []
        for slot, numbers in self.pop_parts(now_ms):
            for run in _due_runs(slot, numbers):
                if runs and runs[-1][:3] == run[:3] and runs[-1].entries.typecode == run.entries.typecode:
                    runs[-1].entries.extend(run.entries)
                else:
                    runs.append(run)
        return runs


def _due_runs(slot: Slot, numbers: Any) -> list[DueRun]:
    if not slot.bits:
        return [DueRun(slot.partition, -1, slot.ledger, slot.entries(numbers))]
    by_index: dict[int, array[int]] = {}
    for number in numbers:
        index = slot.batch_index(number)
        entries = by_index.get(index)
        if entries is None:
            entries = by_index[index] = array("Q" if slot.first_entry >> 32 else "I")
        entries.append(slot.entry(number))
    return [DueRun(slot.partition, index, slot.ledger, by_index[index]) for index in sorted(by_index)]
