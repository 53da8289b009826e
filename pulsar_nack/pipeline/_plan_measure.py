"""Measures the index of the messages that wait at a moment, and recommends a width for its buckets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from .._delays import MAX_NUMBER_S
from ..config import NackConfig
from ..delayed.ticks import TickRounding
from ..ids import MessageId
from ..index import TimeBuckets
from ..nack import NackSchedule
from ..planning import Kind, PlanRow, Workload, make_plan, recommend

_MAX_ENTRIES: Final = 2**40
_MAX_RATE: Final = 1e9

Arrival = tuple[int, int, int, int, int, int]
"""Time (epoch ms), delay (ms), ledger, entry, partition, batch index; the last two may be -1."""


class Measured(NamedTuple):
    """An index with buckets of ``2**bits`` ms, and in the last four fields the messages in it."""

    bits: int
    pending: int
    buckets: int
    bytes: int
    early_ms: float
    delay_ms: float
    last_ms: int
    """How much longer the last message waits."""
    entries: int
    """The entries that the messages span, including entries that do not wait."""
    ledgers: int
    members: int
    """The messages of an entry."""


@dataclass(slots=True)
class IndexBuilder:
    """Builds the index of the messages that wait at ``at_ms``, in buckets of ``2**bits`` ms."""

    kind: Kind
    bits: int
    at_ms: int
    _waits: int = 0
    _delays: int = 0
    _early: int = 0
    _last_at: int = 0
    _members: int = 1
    _spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _buckets: TimeBuckets = field(init=False)
    _schedule: NackSchedule = field(init=False)
    _ticks: TickRounding = field(init=False)

    def __post_init__(self) -> None:
        self._ticks = TickRounding(1 << self.bits, is_strict=False)
        self._schedule = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=self.bits))
        self._buckets = self._schedule.buckets if self.kind == Kind.NACK else TimeBuckets()

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Add messages in order of time. About 1 us each."""
        for time, delay, ledger, entry, partition, batch_index in arrivals:
            due_at = time + delay
            start = self._put(MessageId(ledger, entry, partition, batch_index), time, delay)
            self._waits += 1
            self._delays += delay
            self._early += due_at - start
            self._last_at = max(self._last_at, due_at)
            self._members = max(self._members, batch_index + 1)
            key = partition, ledger
            first, last = self._spans.get(key, (entry, entry))
            if not first < entry < last:
                self._spans[key] = min(first, entry), max(last, entry)

    def _put(self, message_id: MessageId, time: int, delay: int) -> int:
        """Add a message; return when its bucket is due."""
        if self.kind == Kind.NACK:
            self._schedule.add(message_id, time, delay)
            return self._schedule.bucket_start(time, delay)
        bucket = self._ticks.bucket_of(time + delay)
        self._buckets.put(message_id, bucket)
        return self._ticks.wake_at(bucket)

    def finish(self) -> Measured:
        """Return the measured index."""
        return Measured(
            self.bits,
            len(self._buckets),
            self._buckets.bucket_count,
            self._buckets.bytes,
            self._early / self._waits,
            self._delays / self._waits,
            self._last_at - self.at_ms,
            sum(last - first + 1 for first, last in self._spans.values()),
            len(self._spans),
            self._members,
        )


class PlannedRow(NamedTuple):
    """A row of the plan: the measured index, the predicted size, and whether this width is recommended."""

    measured: Measured
    row: PlanRow
    predicted_bytes: float
    is_recommended: bool
    reason: str | None


def plan_rows(kind: Kind, measured: Sequence[Measured]) -> list[PlannedRow]:
    """Compare the measured indexes of a stream with the formulas, and recommend a width.

    :param measured: indexes with 0, 1, 2 and so on bits
    """
    workload = workload_of(kind, measured[0])
    predicted = make_plan(workload, len(measured) - 1).rows
    rows = tuple(_measured_row(row, each) for row, each in zip(predicted, measured, strict=False))
    best = recommend(workload, rows)
    return [
        PlannedRow(each, row, formula.bytes, row.bits == best.bits, best.reason if row.bits == best.bits else None)
        for each, row, formula in zip(measured, rows, predicted, strict=False)
    ]


def workload_of(kind: Kind, measured: Measured) -> Workload:
    """Return the steady stream in order that is most like the measured one."""
    delay = min(max(measured.delay_ms, 1) / 1000, MAX_NUMBER_S)  # the longest delay of a workload
    members = 1 if kind == Kind.DELAYED else min(measured.members, 65_536)
    share = min(measured.pending / (measured.entries * members), 1)
    return Workload(
        kind=kind,
        rate=min(measured.pending / share / delay, _MAX_RATE),
        delay=delay,
        share=share,
        entries_per_ledger=min(-(-measured.entries // measured.ledgers), _MAX_ENTRIES),
        batch_size=members,
    )


def _measured_row(row: PlanRow, measured: Measured) -> PlanRow:
    seconds = max(measured.last_ms, row.width_ms) / 1000
    return replace(
        row,
        buckets=measured.buckets,
        messages_per_bucket=measured.pending / max(measured.buckets, 1),
        wake_ups_per_second=measured.buckets / seconds,
        bytes=measured.bytes,
        bytes_per_message=measured.bytes / measured.pending,
    )
