"""The work of the jobs in one plain Python process, written without Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from _pipeline_data import IN_LEDGER, START_MS

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, MessageId, NackConfig, NackSchedule
from pulsar_nack.testing import ManualClock
from tests.pipeline.local_build import build_local

SHARES = (0.5, 0.9, 0.99, 0.999)


def seconds(work: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def by_hand(folder: Path, rows: int) -> float:
    """Add messages to a tracker one by one, like a dispatcher that reads a topic again; return seconds."""
    config = BucketConfig(max_unsealed_indexes=1 << 40)

    async def run() -> float:
        async with await BucketDelayedDeliveryTracker.open_local(folder, config, clock=ManualClock(0)) as tracker:
            began = time.perf_counter()
            for number in range(rows):
                tracker.add_message(
                    number // IN_LEDGER, number % IN_LEDGER, START_MS + number * 2_654_435_761 % 3_600_000
                )
                if not number % 10_000:
                    await asyncio.sleep(0)
            await tracker.wait_until_idle()
            return time.perf_counter() - began

    return asyncio.run(run())


def with_numpy(folder: Path, rows: int) -> float:
    """Build an index from arrays in this process; return seconds."""
    numbers = np.arange(rows)
    times = START_MS + numbers * 2_654_435_761 % 3_600_000
    return seconds(lambda: build_local(numbers // IN_LEDGER, numbers % IN_LEDGER, times, folder))


def accuracy(lines: Iterable[str]) -> None:
    """Read lines, and find percentiles of lateness for each topic and attempt."""
    late: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in lines:
        event = json.loads(line)
        if event["event"] == "arrive" and event["deadline_ms"] is not None:
            late[event["topic"], event["attempt"]].append(event["actual_ms"] - event["deadline_ms"])
    for found in late.values():
        found.sort()
        assert [found[int(share * (len(found) - 1))] for share in SHARES]


def retries(lines: Iterable[str]) -> None:
    """Read lines, and count the attempts of each message."""
    chains: dict[tuple[object, ...], list[tuple[int, str]]] = defaultdict(list)
    for line in lines:
        event = json.loads(line)
        key = event["topic"], event["subscription"], event["ledger"], event["entry"], event["batch_index"]
        chains[key].append((event["time_ms"], event["event"]))
    for chain in chains.values():
        chain.sort()
        assert sum(kind == "nack" for _, kind in chain) >= 0


def plan(lines: Iterable[str], max_bits: int) -> None:
    """Read lines, and run a schedule for each topic and number of bits; find the peak memory of each."""
    schedules: dict[str, list[NackSchedule]] = {}
    most: dict[tuple[str, int], int] = defaultdict(int)
    for line in lines:
        event = json.loads(line)
        if event["event"] != "nack":
            continue
        topic, now, message = event["topic"], event["time_ms"], MessageId(event["ledger"], event["entry"])
        if topic not in schedules:
            configs = (NackConfig(negative_ack_precision_bit_cnt=bits) for bits in range(max_bits + 1))
            schedules[topic] = [NackSchedule(config) for config in configs]
        for bits, schedule in enumerate(schedules[topic]):
            schedule.pop_due(now)
            schedule.add(message, now, event["delay_ms"])
            most[topic, bits] = max(most[topic, bits], schedule.bytes)


def holes(rows: Iterable[tuple[str, str, int, int, int]]) -> None:
    """Count the ranges, entries and ledgers of each subscription."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    ledgers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for topic, subscription, ledger, first, last in rows:
        counts = found[topic, subscription]
        counts[0] += 1
        counts[1] += last - first + 1
        ledgers[topic, subscription].add(ledger)
