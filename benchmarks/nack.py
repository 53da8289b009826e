"""The cost of a negative acknowledgement in ns and bytes, compared with the official client, a dict and a heap.

Run ``python benchmarks/nack.py``; ``--quick`` takes few ids and stores nothing. Results go to ``results/nack.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from _bounds import entropy_bytes
from _memory import be_quick, grown_by
from _report import Report
from _streams import in_order, mixed_delays, over_a_minute, random_share

from pulsar_nack import MessageId, NackConfig, NackSchedule, NegativeAcksTracker

STREAMS: dict[str, Callable[[int], Any]] = {"in order": in_order, "random 30 %": random_share}
PLAIN = NackConfig(precision_ratio=None)


def best(measure: Callable[[], float], rounds: int = 5) -> float:
    """Return the smallest of several measurements, which the rest of the machine disturbed least."""
    found = math.inf
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        found = min(found, measure())
        gc.enable()
    return found


async def best_of(measure: Callable[[], Awaitable[float]], rounds: int = 5) -> float:
    """Return the smallest of several measurements of a coroutine function."""
    found = math.inf
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        found = min(found, await measure())
        gc.enable()
    return found


def ids_of(stream: Callable[[int], Any], count: int) -> list[MessageId]:
    """Return the ids of a stream."""
    return [MessageId(ledger, entry) for ledger, entry, _, _ in stream(count)]


# -- ns per nack -----------------------------------------------------------------------------------------------------


def _ignore(_ids: Sequence[MessageId]) -> None:
    return None


async def tracker_nowait(count: int, delays: list[float] | None = None) -> float:
    """Ns per ``nack_nowait``, with one delay for all or a different delay for each."""
    ids = ids_of(in_order, count)

    async def measure() -> float:
        async with NegativeAcksTracker(_ignore) as tracker:
            nack = tracker.nack_nowait
            began = time.perf_counter_ns()
            if delays is None:
                for message_id in ids:
                    nack(message_id)
            else:
                for message_id, delay in zip(ids, delays, strict=True):
                    nack(message_id, delay)
            return (time.perf_counter_ns() - began) / count

    return await best_of(measure)


async def tracker_awaited(count: int) -> float:
    """Ns per ``await nack()``."""
    ids = ids_of(in_order, count)

    async def measure() -> float:
        async with NegativeAcksTracker(_ignore) as tracker:
            nack = tracker.nack
            began = time.perf_counter_ns()
            for message_id in ids:
                await nack(message_id)
            return (time.perf_counter_ns() - began) / count

    return await best_of(measure)


async def tracker_many(count: int) -> float:
    """Ns per id of ``nack_many`` with 500 ids per call."""
    ids = ids_of(in_order, count)
    parts = [ids[at : at + 500] for at in range(0, count, 500)]

    async def measure() -> float:
        async with NegativeAcksTracker(_ignore) as tracker:
            began = time.perf_counter_ns()
            for part in parts:
                tracker.nack_many(part)
            return (time.perf_counter_ns() - began) / count

    return await best_of(measure)


async def tracker_entries(count: int, each: int = 500) -> float:
    """Ns per entry of ``nack_entries`` with a list of ``each`` entries per call."""
    parts = [(1 + at // 50_000, list(range(at % 50_000, at % 50_000 + each))) for at in range(0, count, each)]

    async def measure() -> float:
        async with NegativeAcksTracker(_ignore) as tracker:
            began = time.perf_counter_ns()
            for ledger, entries in parts:
                tracker.nack_entries(ledger, entries)
            return (time.perf_counter_ns() - began) / count

    return await best_of(measure)


def floor_call(count: int) -> float:
    """Ns of a call that reads the clock and appends to a list: the lower bound in Python."""
    ids = ids_of(in_order, count)

    def measure() -> float:
        kept: list[MessageId] = []
        append, now = kept.append, time.monotonic_ns

        def nack(message_id: MessageId, _delay: float | None = None) -> None:
            now()
            append(message_id)

        began = time.perf_counter_ns()
        for message_id in ids:
            nack(message_id)
        return (time.perf_counter_ns() - began) / count

    return best(measure)


def dict_nack(count: int) -> float:
    """Ns per nack of a dict of deadlines."""
    ids = ids_of(in_order, count)

    def measure() -> float:
        deadlines: dict[MessageId, float] = {}
        now = time.monotonic

        def nack(message_id: MessageId, delay: float = 60.0) -> None:
            deadlines[message_id] = now() + delay

        began = time.perf_counter_ns()
        for message_id in ids:
            nack(message_id)
        return (time.perf_counter_ns() - began) / count

    return best(measure)


def heap_nack(count: int) -> float:
    """Ns per nack of a heap of (deadline, id)."""
    ids = ids_of(in_order, count)

    def measure() -> float:
        heap: list[tuple[float, MessageId]] = []
        now, push = time.monotonic, heapq.heappush

        def nack(message_id: MessageId, delay: float = 60.0) -> None:
            push(heap, (now() + delay, message_id))

        began = time.perf_counter_ns()
        for message_id in ids:
            nack(message_id)
        return (time.perf_counter_ns() - began) / count

    return best(measure)


async def official(count: int) -> tuple[float, float] | None:
    """Ns per nack of the official client: with its binding called directly, and awaited through its asyncio API."""
    try:
        import _pulsar
        import pulsar
        import pulsar.asyncio
    except ImportError:
        return None
    from pulsar_nack.testing import EmbeddedBroker

    if not EmbeddedBroker.available():
        return None
    async with EmbeddedBroker() as broker:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.asyncio.Client(broker.service_url, logger=logger)
        consumer = await client.subscribe("nack-bench", "s", consumer_type=pulsar.ConsumerType.Shared)
        ids = [_pulsar.MessageId(-1, 1, entry, -1) for entry in range(count)]
        binding = consumer._consumer.negative_acknowledge
        began = time.perf_counter_ns()
        for message_id in ids:
            binding(message_id)
        direct = (time.perf_counter_ns() - began) / count
        few = ids[: count // 10]
        began = time.perf_counter_ns()
        for message_id in few:
            await consumer.negative_acknowledge(message_id)
        awaited = (time.perf_counter_ns() - began) / len(few)
        await client.close()
    return direct, awaited


# -- ns per drained id -----------------------------------------------------------------------------------------------


def filled(stream: Callable[[int], Any], count: int) -> NackSchedule:
    """Return a schedule with the nacks of a stream."""
    schedule = NackSchedule(PLAIN)
    for ledger, entry, now_ms, delay_ms in stream(count):
        schedule.add(MessageId(ledger, entry), now_ms, delay_ms)
    return schedule


def drained(stream: Callable[[int], Any], count: int, drain: Callable[[NackSchedule], int]) -> float:
    """Ns per id that ``drain`` takes from a full schedule."""

    def measure() -> float:
        schedule = filled(stream, count)
        began = time.perf_counter_ns()
        assert drain(schedule) == count
        return (time.perf_counter_ns() - began) / count

    return best(measure, rounds=3)


def by_runs(schedule: NackSchedule) -> int:
    """Drain in bulk."""
    return sum(len(run.entries) for run in schedule.pop_due_runs(1 << 60))


def by_ids(schedule: NackSchedule) -> int:
    """Drain as objects, 1 000 at a time, as the tracker does."""
    count = 0
    while ids := list(schedule.pop_due(1 << 60, 1_000)):
        count += len(ids)
    return count


def dict_scan(count: int) -> float:
    """Ns per id of one scan of a dict in which all ids are due, including the creation of objects."""
    deadlines = dict.fromkeys(ids_of(in_order, count), 0.0)

    def measure() -> float:
        began = time.perf_counter_ns()
        due = [message_id for message_id, at in deadlines.items() if at <= 1.0]
        assert len(due) == count
        return (time.perf_counter_ns() - began) / count

    return best(measure, rounds=3)


def heap_drain(count: int) -> float:
    """Ns per id popped from a heap."""

    def measure() -> float:
        heap = [(sequence // 10 + 0.0, message_id) for sequence, message_id in enumerate(ids_of(in_order, count))]
        pop = heapq.heappop
        began = time.perf_counter_ns()
        while heap:
            pop(heap)
        return (time.perf_counter_ns() - began) / count

    return best(measure, rounds=3)


# -- bytes -----------------------------------------------------------------------------------------------------------


def build_schedule(stream: str, count: int) -> tuple[Any, dict[str, Any]]:
    """Build a schedule in a fresh process."""
    schedule = filled(_stream(stream), count)
    return schedule, {"bytes": schedule.bytes, "pending": len(schedule)}


def build_dict(stream: str, count: int) -> tuple[Any, dict[str, Any]]:
    """Build a dict of deadlines in a fresh process."""
    return {MessageId(nack[0], nack[1]): nack[2] + nack[3] for nack in _stream(stream)(count)}, {}


def build_heap(stream: str, count: int) -> tuple[Any, dict[str, Any]]:
    """Build a heap in a fresh process."""
    heap: list[tuple[int, MessageId]] = []
    for nack in _stream(stream)(count):
        heapq.heappush(heap, (nack[2] + nack[3], MessageId(nack[0], nack[1])))
    return heap, {}


def _stream(name: str) -> Callable[[int], Any]:
    return {**STREAMS, "four delays": mixed_delays, "scattered over 60 s": over_a_minute}[name]


# -- the loop --------------------------------------------------------------------------------------------------------


async def hand_over(count: int) -> tuple[float, float]:
    """Let ``count`` ids become due at once; return the longest gap between turns of the loop in ms, and ns per id."""
    sent = 0
    done = asyncio.Event()

    def redeliver(ids: Sequence[MessageId]) -> None:
        nonlocal sent
        for _ in ids:
            sent += 1
        if sent >= count:
            done.set()

    longest = 0.0
    async with NegativeAcksTracker(redeliver, NackConfig(negative_ack_redelivery_delay=3600)) as tracker:
        for first in range(0, count, 50_000):
            tracker.nack_entries(1 + first // 50_000, range(50_000), 1.0)
        began = time.perf_counter()
        last = began
        while not done.is_set():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        took = time.perf_counter() - began
    return longest * 1000, took / count * 1e9


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few ids, nothing stored")
    quick = parser.parse_args().quick
    if quick:
        be_quick()
    count = 500 if quick else 200_000
    million = 500 if quick else 1_000_000
    report = Report("Negative acknowledgements: time and memory")
    time_table(report, count)
    drain_table(report, million)
    memory_table(report, million)
    longest, each = asyncio.run(hand_over(million))
    report.table(
        f"{million:,} ids due at once, passed to the callback as objects",
        ["figure", "measured", "target"],
        [["longest gap between two turns of the loop, ms", longest, "20"], ["ns per id, all in", each, None]],
    )
    if not quick:
        report.save("nack")


def time_table(report: Report, count: int) -> None:
    """Print ns per nack."""
    floor = floor_call(count)
    delays = [1 + (number * 7919 % 59_000) / 1000 for number in range(count)]
    client = asyncio.run(official(20_000))
    direct, awaited = client or (None, None)
    a_dict, a_heap = dict_nack(count), heap_nack(count)
    many = asyncio.run(tracker_many(count))
    rows: list[list[object]] = []
    for name, ours, peer, peer_name, target in [
        ("nack_nowait, one delay", asyncio.run(tracker_nowait(count)), direct, "client's binding, direct", 600),
        (
            "nack_nowait, a different delay each",
            asyncio.run(tracker_nowait(count, delays)),
            None,
            "client: not possible",
            2000,
        ),
        ("await nack", asyncio.run(tracker_awaited(count)), awaited, "client, awaited", 900),
        ("nack_many, 500 ids a call", many, a_dict, "dict of deadlines", None),
        ("nack_many, 500 ids a call", many, a_heap, "heapq", None),
        ("nack_entries, list of 500 a call", asyncio.run(tracker_entries(count)), a_dict, "dict of deadlines", 60),
    ]:
        rows.append([name, ours, target, peer_name, peer, None if peer is None else peer / ours, floor])
    columns = ["ns per id", "ours", "target", "peer", "peer's", "ratio", "floor: call, clock, append"]
    report.table("Adding", columns, rows)


def drain_table(report: Report, count: int) -> None:
    """Print ns per drained id."""
    scan, heap = dict_scan(count), heap_drain(count)
    rows = [
        ["pop_due_runs, in order", drained(in_order, count, by_runs), 100, "dict, one scan", scan],
        ["pop_due_runs, random 30 %", drained(random_share, count, by_runs), 100, "dict, one scan", scan],
        ["pop_due_runs, over 60 s", drained(over_a_minute, count, by_runs), 100, "dict, one scan", scan],
        ["as objects, in order", drained(in_order, count, by_ids), None, "heapq", heap],
        ["as objects, over 60 s", drained(over_a_minute, count, by_ids), None, "heapq", heap],
    ]
    rows = [[*row, float(row[4]) / float(row[1])] for row in rows]  # type: ignore[arg-type]
    report.table(f"Draining {count:,} ids", ["ns per id", "ours", "target", "peer", "peer's", "ratio"], rows)


def memory_table(report: Report, million: int) -> None:
    """Print resident bytes per pending nack, each figure from a fresh process."""
    rows: list[list[object]] = []
    for stream, count, target, bound in [
        ("in order", million, 4, 0.0),
        ("in order", 10 * million, 4, 0.0),
        ("random 30 %", million, 8, entropy_bytes(0.3)),
        ("random 30 %", 10 * million, 8, entropy_bytes(0.3)),
        ("four delays", million, 8, entropy_bytes(0.3) + 2 / 8),
        ("scattered over 60 s", million, 8, None),
    ]:
        grown, figures = grown_by(build_schedule, stream, count)
        peer = grown_by(build_dict, stream, million)[0] / million
        heap = grown_by(build_heap, stream, million)[0] / million
        name = f"{stream}, {count // 1000:,} k"
        rows.append(
            [name, grown / count, figures["bytes"] / count, target, peer, heap, peer / max(grown / count, 1e-3), bound]
        )
    columns = ["bytes per id", "ours, resident", "own estimate", "target", "dict", "heapq", "ratio to dict", "bound"]
    report.table("Memory of pending nacks (8 bits, 10 k messages a second, 60 s)", columns, rows)


if __name__ == "__main__":
    main()
