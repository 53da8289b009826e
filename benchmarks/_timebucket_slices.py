"""The longest single call of ``timebucket.py``: no call may block an event loop for more than 10 ms.

Each stream runs twice in the same way, and each call counts with the shorter of its two times. This finds calls that
are really slow, not calls that the machine disturbed once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from _report import Report
from _streams import STREAMS, Chance
from _targets import Targets
from _timebucket_time import FAR, Nacks, as_array, made, parts_of
from _timing import no_collector, thread_ns

from pulsar_nack import MessageId, NackConfig, NackSchedule

_RUNS = 2
_LIMIT = 1_000
_TARGET_MS = 10.0

Times = dict[str, "array[int]"]


def shuffled(count: int) -> list[int]:
    """Return the numbers below ``count`` in random order."""
    below = Chance(397).below
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def timed(times: array[int], call: Callable[..., Any], *args: Any) -> Any:
    """Call ``work``, and record how long it took."""
    began = perf_counter_ns()
    result = call(*args)
    times.append(perf_counter_ns() - began)
    return result


def timed_pop(times: array[int], schedule: NackSchedule, now_ms: int) -> list[MessageId]:
    """Take out due ids, and record the thread's work: these calls are few enough for that clock."""
    began = thread_ns()
    ids = list(schedule.pop_due(now_ms, _LIMIT))
    times.append(thread_ns() - began)
    return ids


def run(nacks: Nacks, order: list[int], bits: int) -> Times:
    """Add a stream while ids become due; cancel most, add some again at other times, drain; record each call."""
    schedule = NackSchedule(NackConfig(precision_ratio=None, negative_ack_precision_bit_cnt=bits))
    width_ms = 1 << bits  # added to each delay, so that no id is due at once
    times: Times = {name: array("q") for name in ("add", "discard", "add again", "pop")}
    for message_id, now_ms, delay_ms in zip(*nacks, strict=True):
        while schedule.buckets.earliest <= now_ms:
            timed_pop(times["pop"], schedule, now_ms)
        timed(times["add"], schedule.add, message_id, now_ms, delay_ms + width_ms)
    for at in order[: len(order) * 7 // 10]:
        timed(times["discard"], schedule.discard, nacks.ids[at])
    last = max(nacks.nows)
    for place, at in enumerate(order[: len(order) * 3 // 10]):
        delay_ms = width_ms + nacks.delays[at] * (1 + place % 3) // 2  # some earlier than before, others later
        timed(times["add again"], schedule.add, nacks.ids[at], last, delay_ms)
    while timed_pop(times["pop"], schedule, FAR):
        pass
    return times


def run_bulk(parts: list[tuple[int, Any, int, int]], bits: int) -> Times:
    """Add a stream in bulk, 500 ids per call."""
    schedule = NackSchedule(NackConfig(precision_ratio=None, negative_ack_precision_bit_cnt=bits))
    times: Times = {"add of 500": array("q")}
    for ledger, entries, now_ms, delay_ms in parts:
        timed(times["add of 500"], schedule.add_entries, ledger, entries, now_ms, delay_ms)
    return times


def longest(runs: list[Times]) -> dict[str, tuple[float, int]]:
    """Return, for each kind of call, the longest in ms and how many took over 10 ms, by each call's shorter time."""
    found = {}
    for name in runs[0]:
        times = [min(same) for same in zip(*(one[name] for one in runs), strict=True)]
        found[name] = max(times, default=0) / 1e6, sum(took > _TARGET_MS * 1e6 for took in times)
    return found


def slices_table(report: Report, targets: Targets, count: int) -> None:
    """Print the longest call of each kind for each stream, with 8 and 16 bits."""
    order = shuffled(count)
    rows: list[list[object]] = []
    for bits in (8, 16):
        for stream in STREAMS:
            nacks = made(stream, count)
            parts = parts_of(nacks, as_array)
            with no_collector():
                found = longest([run(nacks, order, bits) for _ in range(_RUNS)])
                found |= longest([run_bulk(parts, bits) for _ in range(_RUNS)])
            name = f"{stream}, {bits} bits"
            for kind, (took, _) in found.items():
                targets.check(f"longest {kind}, {name}, ms", took, _TARGET_MS)
            over = sum(many for _, many in found.values())
            rows.append([name, *(took for took, _ in found.values()), _TARGET_MS, over])
    columns = [
        "ms",
        "add",
        "discard",
        "add again",
        f"pop_due({_LIMIT:,}) as objects",
        "add of 500",
        "target",
        "over 10 ms",
    ]
    report.table(f"The longest single call, {count:,} ids, 70 % of them cancelled, 30 % added again", columns, rows)
