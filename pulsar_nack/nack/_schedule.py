"""The pure schedule of negative acknowledgements: no clock, no await, integers in ms (PIP-393).

A deadline is rounded down to the start of its bucket, which is ``2 ** bits`` ms wide and never wider than
``precision_ratio`` of the delay. The id is due from the start of the bucket, so it is early by less than a bucket and
never late. Buckets of different widths can coexist, because only their starts matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .._check import INT64_MAX, check_integer, config_of
from .._delays import MAX_DELAY_MS
from ..config import NackConfig
from ..ids import MessageId
from ..index import NEVER, DueIds, IdBlock, TimeBuckets, as_entries

_UNSET: Final = object()


class DueRun(NamedTuple):
    """Due entries of one ledger, ascending, as ``array('I')``, or ``array('Q')`` from entry 2**32 on.

    Without topics and batch sizes. A chunked message appears as its last chunk only.
    """

    partition: int
    batch_index: int
    ledger: int
    entries: array[int]


class NackSchedule:
    """Pending ids and when they are due: :attr:`buckets`, whose starts follow from a time and a delay.

    Adding, cancelling, looking up and all counts are O(1); popping is O(popped). An id is pending once: added again,
    the earliest deadline wins.
    """

    __slots__ = ("_config", "_delay_ms", "_full_width_from", "_full_width_mask", "_mask", "_put", "buckets")

    def __init__(self, config: NackConfig | None = None) -> None:
        self._config = config_of(config, NackConfig)
        self.buckets = TimeBuckets()
        self._put = self.buckets.put
        bits = self._config.negative_ack_precision_bit_cnt
        ratio = self._config.precision_ratio
        self._full_width_mask = -1 << bits
        self._full_width_from = 0 if ratio is None else (1 << bits) / ratio
        self._delay_ms: object = _UNSET
        self._mask = -1

    def __len__(self) -> int:
        return len(self.buckets)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self.buckets

    def next_at(self) -> int | None:
        """Return when something is due next, None if nothing is pending. O(1)."""
        earliest = self.buckets.earliest
        return None if earliest == NEVER else earliest

    @property
    def bucket_count(self) -> int:
        """Return about how many buckets there are. O(1)."""
        return self.buckets.bucket_count

    @property
    def bytes(self) -> int:
        """Return about how many bytes are held. O(buckets that are not sealed)."""
        return self.buckets.bytes

    def bucket_start(self, now_ms: int, delay_ms: int) -> int:
        """Return the time from which an id is due that is nacked at ``now_ms``."""
        return (now_ms + delay_ms) & self.mask(delay_ms)

    def mask(self, delay_ms: int) -> int:
        """Return the mask that rounds a deadline down to the start of its bucket."""
        if delay_ms != self._delay_ms:
            self._use_delay(delay_ms)
        return self._mask

    def _use_delay(self, delay_ms: int) -> None:
        self._delay_ms = check_integer("delay_ms", delay_ms, 0, MAX_DELAY_MS)
        if delay_ms >= self._full_width_from:
            self._mask = self._full_width_mask
            return
        ratio = self._config.precision_ratio
        widest = int(delay_ms * (ratio or 1))
        self._mask = -1 << (max(widest, 1).bit_length() - 1)

    def add(self, id: MessageId, now_ms: int, delay_ms: int) -> bool:
        """Make an id pending; return whether it was not. For a pending id, the earliest deadline wins.

        :raises InvalidArgumentError: not a message's id, or a negative delay; nothing has changed
        """
        if delay_ms != self._delay_ms:
            if type(delay_ms) is int and self._full_width_from <= delay_ms <= MAX_DELAY_MS:  # without a call
                self._delay_ms, self._mask = delay_ms, self._full_width_mask
            else:
                self._use_delay(delay_ms)
        return self._put(id, (now_ms + delay_ms) & self._mask)

    def add_entries(self, ledger: int, entries: Any, now_ms: int, delay_ms: int) -> int:
        """Make entries of a ledger pending: a range, a sequence, an array or a numpy array. Return how many were not.

        :raises InvalidArgumentError: names the ledger or the entry; nothing has changed
        """
        check_integer("ledger", ledger, 0, INT64_MAX)
        start = self.bucket_start(now_ms, delay_ms)
        return self.buckets.put_entries(ledger, as_entries(entries), start)

    def add_many(self, ids: Iterable[MessageId], now_ms: int, delay_ms: int) -> int:
        """Make ids pending that have been checked; return how many were not."""
        start = self.bucket_start(now_ms, delay_ms)
        put = self._put
        added = 0
        for message_id in ids:
            added += put(message_id, start)
        return added

    def discard(self, id: MessageId) -> bool:
        """Remove an id; return whether it was pending. Amortized O(1)."""
        return self.buckets.discard(id)

    def clear(self) -> int:
        """Drop everything; return how many ids were pending."""
        return self.buckets.clear()

    def pop_due(self, now_ms: int, limit: int | None = None) -> DueIds:
        """Remove and return due ids, by bucket and by position within it; ids are made when they are read.

        An id has the topic and the chunks of all equal ids that were added, and no batch size.
        """
        return self.buckets.pop(now_ms, limit)

    def pop_due_runs(self, now_ms: int) -> list[DueRun]:
        """Remove all that is due at once; return arrays of entries, ordered by ledger and not by deadline.

        Topics and batch sizes are left out, and a chunked message appears as its last chunk only. To request chunked
        messages from a broker use :meth:`pop_due`, whose ids name every chunk.
        """
        runs: list[DueRun] = []
        for block, numbers in self.buckets.pop_parts(now_ms):
            for run in _due_runs(block, numbers):
                if runs and runs[-1][:3] == run[:3] and runs[-1].entries.typecode == run.entries.typecode:
                    runs[-1].entries.extend(run.entries)
                else:
                    runs.append(run)
        return runs


def _due_runs(block: IdBlock, numbers: Any) -> list[DueRun]:
    if not block.bits:
        return [DueRun(block.partition, -1, block.ledger, block.entries(numbers))]
    by_index: dict[int, array[int]] = {}
    for number in numbers:
        index = block.batch_index(number)
        entries = by_index.get(index)
        if entries is None:
            entries = by_index[index] = array("Q" if block.first_entry >> 32 else "I")
        entries.append(block.entry(number))
    return [DueRun(block.partition, index, block.ledger, by_index[index]) for index in sorted(by_index)]
