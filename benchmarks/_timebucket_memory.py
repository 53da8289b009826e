"""The memory tables of ``timebucket.py``: the proposal's own table, and pending nacks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import _java
from _bounds import choice_bytes, entropy_bytes, late_bytes
from _memory import allocated_by, grown_by
from _report import Report
from _streams import ENTRIES_PER_LEDGER, STREAMS
from _targets import Targets, ratio

from pulsar_nack import (
    DelayedDeliveryConfig,
    InMemoryDelayedDeliveryTracker,
    MessageId,
    NackConfig,
    NackSchedule,
)
from pulsar_nack.testing import ManualClock

PLAIN = NackConfig(precision_ratio=None)
BITS = 8
MIB = 1 << 20
_HEAP_BYTES = 24
_FIRST_AT = 1_000_000


class Delayed(NamedTuple):
    """A row of the proposal's table: messages per ms, bits, and figures in MB."""

    per_ms: int
    bits: int
    proposed: float | None
    target: float | None


DELAYED = (
    Delayed(1, 10, 25.0, 1.5),
    Delayed(4, 10, 20.48, 0.8),
    Delayed(8, 10, 11.0, 0.6),
    Delayed(8, 15, 2.25, 0.5),
    Delayed(10, 8, None, None),
)

_DENSE = entropy_bytes(0.3)
NACKED: dict[str, tuple[float, float]] = {
    "in order": (0.3, 0.0),
    "random 30 %": (1.0, _DENSE),
    "out of order by 500 ms": (3.0, _DENSE + late_bytes(500, 1 << BITS)),
    "four delays": (3.0, _DENSE + choice_bytes([0.25] * 4)),
    "scattered over 60 s": (3.5, _DENSE + math.log2(60_000 / (1 << BITS)) / 8),
    "scattered over an hour": (9.0, _DENSE + math.log2(3_600_000 / (1 << BITS)) / 8),
}
"""Bytes per id: the target, and the lower bound."""


def build_delayed(count: int, per_ms: int, bits: int) -> tuple[Any, dict[str, Any]]:
    """Delay messages in order, ``per_ms`` of them for each ms."""
    config = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1 << bits)
    tracker = InMemoryDelayedDeliveryTracker(config, clock=ManualClock(0))
    add = tracker.add_message
    for sequence in range(count):
        add(1 + sequence // ENTRIES_PER_LEDGER, sequence % ENTRIES_PER_LEDGER, _FIRST_AT + sequence // per_ms)
    return tracker, {"bytes": tracker.buffer_memory_usage, "count": tracker.number_of_delayed_messages}


def build_nacks(count: int, stream: str) -> tuple[Any, dict[str, Any]]:
    """Fill a schedule."""
    schedule = NackSchedule(PLAIN)
    for ledger, entry, now_ms, delay_ms in STREAMS[stream](count):
        schedule.add(MessageId(ledger, entry), now_ms, delay_ms)
    return schedule, {"bytes": schedule.bytes, "count": len(schedule)}


def build_dict(count: int, stream: str) -> tuple[Any, dict[str, Any]]:
    """Fill a dict of deadlines, as in the old clients."""
    return {(nack[0], nack[1]): nack[2] + nack[3] for nack in STREAMS[stream](count)}, {}


def formula_bytes(per_ms: int, bits: int) -> float:
    """Return the bytes that the proposal predicts for a delayed message."""
    in_bucket = per_ms << bits
    if in_bucket <= 4_096:
        return 2.0
    return math.ceil(in_bucket / ENTRIES_PER_LEDGER) * 8_192 / in_bucket


def estimate_error(grown: int, estimate: int) -> str:
    """Return the error of our own estimate of resident growth: in % if that exceeds 20 MB, otherwise in MB."""
    if grown > 20 * 1_000_000:
        return f"{(estimate - grown) / grown:+.1%}"
    return f"{(estimate - grown) / MIB:+.2f} MB"


def _check_estimate(targets: Targets, name: str, grown: int, estimate: int) -> None:
    if grown > 20 * 1_000_000:
        targets.check(f"estimate of {name}, %", abs(estimate - grown) / grown * 100, 10)
    else:
        targets.check(f"estimate of {name}, MB", abs(estimate - grown) / 1_000_000, 2)


def delayed_table(report: Report, targets: Targets, count: int, processes: int) -> None:
    """Print the proposal's table; the targets are for its 10 million messages."""
    scale = count / 10_000_000
    rows = []
    for row in DELAYED:
        grown, figures = grown_by(build_delayed, count, row.per_ms, row.bits, processes=processes)
        assert figures["count"] == count
        allocated = allocated_by(build_delayed, count, row.per_ms, row.bits)
        name = f"{row.per_ms} per ms, {row.bits} bits"
        target = targets.check(f"delayed {name}, MB", grown / MIB, row.target) if scale >= 1 else None
        _check_estimate(targets, f"delayed {name}", grown, figures["bytes"])
        peer = [_java.figure(str(row.per_ms), count, row.bits, 0, which) for which in ("heap", "heap_optimized")]
        rows.append(
            [
                name,
                grown / MIB,
                _mib(allocated),
                figures["bytes"] / MIB,
                target,
                0.0,
                row.proposed and row.proposed * scale,
                formula_bytes(row.per_ms, row.bits) * count / MIB,
                *map(_mib, peer),
                ratio(grown, peer[0]),
                _HEAP_BYTES * count / MIB,
            ]
        )
    columns = ["MB", "resident", "allocated", "own estimate", "target", "limit", "proposal", "its formula"]
    columns += ["Java", "Java, run-optimized", "ratio to Java", "triple heap"]
    report.table(f"{count:,} delayed messages in order, {ENTRIES_PER_LEDGER:,} entries a ledger", columns, rows)


def nacks_table(report: Report, targets: Targets, count: int, processes: int) -> None:
    """Print bytes per pending nack, including what it takes to cancel it and to know that it is pending."""
    rows = []
    for stream, (target, bound) in NACKED.items():
        grown, figures = grown_by(build_nacks, count, stream, processes=processes)
        allocated = allocated_by(build_nacks, count, stream)
        dictionary, _ = grown_by(build_dict, count, stream)
        _check_estimate(targets, stream, grown, figures["bytes"])
        peer = [
            _java.figure(stream, count, BITS, _java.rounds(count), which)
            for which in ("heap", "heap_optimized", "serialized")
        ]
        shown = targets.check(f"{stream}, bytes an id", grown / count, target) if count >= 1_000_000 else None
        rows.append(
            [
                stream,
                grown / count,
                None if allocated is None else allocated / count,
                figures["bytes"] / count,
                estimate_error(grown, figures["bytes"]),
                shown,
                bound,
                *(None if value is None else value / count for value in peer),
                ratio(grown, peer[0]),
                dictionary / count,
            ]
        )
    columns = ["bytes an id", "resident", "allocated", "own estimate", "its error", "target", "bound"]
    columns += ["Java", "Java, run-optimized", "Java, serialized", "ratio to Java", "dict"]
    report.table(f"{count:,} pending nacks, {BITS} bits, with what it takes to cancel them", columns, rows)


def estimate_table(report: Report, targets: Targets, count: int) -> None:
    """Print the estimate next to resident growth, for many pending nacks."""
    rows = []
    for stream in ("out of order by 500 ms", "scattered over 60 s", "scattered over an hour"):
        grown, figures = grown_by(build_nacks, count, stream)
        _check_estimate(targets, f"{stream}, {count:,}", grown, figures["bytes"])
        rows.append(
            [stream, grown / MIB, figures["bytes"] / MIB, estimate_error(grown, figures["bytes"]), grown / count]
        )
    columns = ["MB", "resident", "own estimate", "its error", "resident bytes an id"]
    report.table(f"The own estimate with {count:,} pending nacks", columns, rows)


def _mib(value: float | None) -> float | None:
    return None if value is None else value / MIB
