"""A day of delayed messages at full rate: 10 000 a second, delays of up to a day, 16 bits, on a virtual clock.

Run ``python benchmarks/day.py``: 100 million messages of each mix, and a quarter and a half of them to see how
time and memory grow. ``--messages 864`` takes the whole day (in millions), ``--quick`` few messages, nothing stored.
Results go to ``results/day.md``. Each run has a separate process.

The clock advances as messages arrive. Every 65.5 s, due messages are taken out, 1 000 at a time. After the last
arrival the clock advances until nothing is left.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Callable
from typing import Any

from _memory import be_quick, in_fresh_process, peak_resident, resident, return_free_memory
from _report import Report
from _streams import ENTRIES_PER_LEDGER, PER_MS
from _timing import no_collector, thread_ns

from pulsar_nack import DelayedDeliveryConfig, InMemoryDelayedDeliveryTracker
from pulsar_nack.testing import ManualClock

TICK_MS = 1 << 16
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BATCH = 1_000
RETRY_MS = (60_000 * 10, HOUR_MS, 6 * HOUR_MS, DAY_MS)
MIB = 1 << 20
_TAKE = 1_000
_EACH_MS = BATCH // PER_MS
_START_MS = 1_700_000_000_000

Tracker = InMemoryDelayedDeliveryTracker
Arrive = Callable[[Tracker, int, int, int], int]
"""Adds ``BATCH`` entries of a ledger from a given one on, at a given time; returns ns of the tracker's work."""

_chance = random.Random(864)


def fixed_hours(tracker: Tracker, ledger: int, first: int, now_ms: int) -> int:
    """Every message waits for six hours."""
    return _add_all(tracker, ledger, first, now_ms + 6 * HOUR_MS)


def fixed_minutes(tracker: Tracker, ledger: int, first: int, now_ms: int) -> int:
    """Every message waits for ten minutes, so that the number of held messages stops growing."""
    return _add_all(tracker, ledger, first, now_ms + RETRY_MS[0])


def a_delay_a_batch(tracker: Tracker, ledger: int, first: int, now_ms: int) -> int:
    """Every 1 000 messages share a random delay of up to a day."""
    return _add_all(tracker, ledger, first, now_ms + TICK_MS + 1 + int(_chance.random() * DAY_MS))


def a_delay_each(tracker: Tracker, ledger: int, first: int, now_ms: int) -> int:
    """Each message has a random delay of up to a day."""
    base = now_ms + TICK_MS + 1
    draws = array("I", _chance.randbytes(4 * BATCH))
    return _add_each(tracker, ledger, first, [base + (draw * DAY_MS >> 32) for draw in draws])


def retries(tracker: Tracker, ledger: int, first: int, now_ms: int) -> int:
    """Each message waits for ten minutes, one hour, six hours or a day."""
    draws = _chance.randbytes(BATCH)
    return _add_each(tracker, ledger, first, [now_ms + RETRY_MS[draw & 3] for draw in draws])


def _add_all(tracker: Tracker, ledger: int, first: int, deliver_at: int) -> int:
    began = thread_ns()
    tracker.add_messages(ledger, range(first, first + BATCH), deliver_at)
    return thread_ns() - began


def _add_each(tracker: Tracker, ledger: int, first: int, times: list[int]) -> int:
    add = tracker.add_message
    began = thread_ns()
    for entry, deliver_at in enumerate(times, first):
        add(ledger, entry, deliver_at)
    return thread_ns() - began


MIXES: dict[str, Arrive] = {
    "all wait ten minutes": fixed_minutes,
    "all wait six hours": fixed_hours,
    "up to a day, a delay for each 1,000": a_delay_a_batch,
    "ten minutes, one, six or 24 hours each": retries,
    "up to a day, a delay each": a_delay_each,
}


class Day:
    """One run; counts the work, the messages and the peak memory."""

    def __init__(self) -> None:
        self.clock = ManualClock(_START_MS)
        config = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=TICK_MS)
        self.tracker = Tracker(config, clock=self.clock)
        self.adding_ns = self.taking_ns = self.taken = self.most_held = self.most_estimated = self.longest_ns = 0

    def arrive(self, mix: Arrive, count: int) -> None:
        """Let ``count`` messages arrive."""
        next_look = _START_MS + TICK_MS
        for sequence in range(0, count, BATCH):
            now_ms = _START_MS + sequence // PER_MS
            self.clock.set(now_ms)
            if now_ms >= next_look:
                self.take()
                next_look += TICK_MS
            ledger, first = divmod(sequence, ENTRIES_PER_LEDGER)
            self.adding_ns += mix(self.tracker, ledger + 1, first, now_ms)

    def run_out(self) -> None:
        """Advance the clock until nothing is held."""
        while (next_at := self.tracker.next_at()) is not None:
            self.clock.set(max(next_at, self.clock.now_ms()) + TICK_MS)
            self.take()

    def take(self) -> None:
        """Take out due messages."""
        tracker = self.tracker
        self.most_held = max(self.most_held, tracker.number_of_delayed_messages)
        self.most_estimated = max(self.most_estimated, tracker.buffer_memory_usage)
        while tracker.has_message_available():
            began = thread_ns()
            taken = len(tracker.get_scheduled_messages(_TAKE))
            took = thread_ns() - began
            self.taking_ns += took
            self.taken += taken
            self.longest_ns = max(self.longest_ns, took)


def simulate(name: str, count: int) -> dict[str, Any]:
    """Run one mix; return its figures. The peak is that of the whole process, less its size at the start."""
    warm_up = Day()
    warm_up.arrive(MIXES[name], 10 * BATCH)
    warm_up.run_out()
    return_free_memory()
    day = Day()
    before = resident()
    files = peak_resident() - before
    with no_collector():
        day.arrive(MIXES[name], count)
        day.run_out()
    assert day.taken == count, f"{count} arrived, {day.taken} were taken out"
    return {
        "add": day.adding_ns / count,
        "take": day.taking_ns / count,
        "held": day.most_held,
        "estimate": day.most_estimated,
        "peak": max(peak_resident() - before - files, 0),
        "longest": day.longest_ns / 1e6,
    }


def growth(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], float], at: int) -> float | None:
    """Return the factor by which a figure grew when the load was doubled."""
    return of(rows[at]) / of(rows[at - 1]) if at and of(rows[at - 1]) else None


def mix_table(report: Report, name: str, counts: list[int]) -> None:
    """Print one mix with a rising load."""
    found = [in_fresh_process(simulate, name, count) for count in counts]
    rows = []
    for at, (count, figures) in enumerate(zip(counts, found, strict=True)):
        held = max(figures["held"], 1)
        rows.append(
            [
                f"{count / 1e6:,.4g} M",
                figures["held"] / 1e6,
                figures["peak"] / MIB,
                figures["estimate"] / MIB,
                figures["peak"] / held,
                growth(found, lambda one: float(one["peak"]), at),
                figures["add"],
                figures["take"],
                growth(found, lambda one: one["add"] + one["take"], at),
                figures["longest"],
            ]
        )
    columns = ["messages", "held at most, M", "peak MB, resident", "peak MB, estimate", "bytes a held message"]
    columns += ["growth per doubling", "ns to add", "ns to take out", "growth of ns a message", "longest take, ms"]
    report.table(name, columns, rows)


def main() -> None:
    """Run every mix and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="0.2 million messages, nothing stored")
    parser.add_argument("--messages", type=float, default=100, help="millions of each mix, 100 by default")
    parser.add_argument(
        "--only", nargs="+", choices=list(MIXES), default=list(MIXES), help="only these mixes, nothing stored"
    )
    options = parser.parse_args()
    if options.quick:
        be_quick()
    most = 0.2 if options.quick else options.messages
    counts = [int(most * 1_000_000 / part) // BATCH * BATCH for part in (4, 2, 1)]
    report = Report("A day of delayed messages at full rate")
    report.note(
        f"{PER_MS * 1000:,} messages a second on a virtual clock, tick {TICK_MS:,} ms (16 bits), "
        f"{ENTRIES_PER_LEDGER:,} entries a ledger. Each row is a separate process; ns are of the thread's own work. "
        "Growth is linear at 2 per doubling for memory and at 1 for ns a message."
    )
    for name in options.only:
        mix_table(report, name, counts)
    if not options.quick and options.only == list(MIXES):
        report.save("day")


if __name__ == "__main__":
    main()
