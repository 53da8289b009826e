"""The measurements of the bucket tracker, each in a separate process: filling, reopening, draining, adding again."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from _loop import Blocked
from _memory import peak_resident, reset_peak, resident, return_free_memory

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker
from pulsar_nack.delayed.bucket import BucketStatistics
from pulsar_nack.testing import ManualClock

BASE_AT = 1_900_000_000_000
"""The time (epoch ms) when messages are added; the first is due a minute later."""
SPREAD_MS = 3_600_000
LEDGER = 50_000
_PIECE = 2_000
_MAX_UNSEALED = 200_000
_WARM_UP = 120_000

Figures = dict[str, Any]


def deadlines(count: int, shape: str) -> Iterator[tuple[int, array[int], array[int]]]:
    """Yield ledgers, entries and times (epoch ms) of messages in order of their positions, 2 000 at a time."""
    dice = random.Random(7)
    for at in range(0, count, _PIECE):
        numbers = range(at, min(at + _PIECE, count))
        if shape == "in order":
            times = array("q", (BASE_AT + 60_000 + number * SPREAD_MS // count for number in numbers))
        else:
            times = array("q", (BASE_AT + 60_000 + int(dice.random() * SPREAD_MS) for _ in numbers))
        first = at % LEDGER
        yield at // LEDGER, array("I", range(first, first + len(numbers))), times


async def _open(folder: str, settings: Figures, now: int = BASE_AT) -> tuple[Any, ManualClock]:
    clock = ManualClock(now)
    config = BucketConfig(is_delayed_delivery_deliver_at_time_strict=True, **settings)
    return await BucketDelayedDeliveryTracker.open_local(Path(folder), config, clock=clock), clock


def _run(work: Callable[[], Awaitable[Figures]]) -> Figures:
    return asyncio.run(work())  # type: ignore[arg-type]


def _warm_up(work: Callable[[], Awaitable[Figures]]) -> None:
    """Run the work once with few messages, and exclude all existing objects from Python's later collections."""
    _run(work)
    return_free_memory()
    gc.freeze()


# -- filling ---------------------------------------------------------------------------------------------------------


def fill(count: int, shape: str, folder: str, settings: Figures) -> Figures:
    """Add messages and wait until all are stored; return times, memory, and how long the loop was blocked."""
    _warm_up(lambda: _fill(min(_WARM_UP, count), shape, f"{folder}/warm", settings))
    return _run(lambda: _fill(count, shape, f"{folder}/{count}-{shape}", settings))


async def _fill(count: int, shape: str, folder: str, settings: Figures) -> Figures:
    return_free_memory()
    before, highest = resident(), reset_peak()
    began_at = time.perf_counter()
    tracker, _ = await _open(folder, settings)
    adding_s = 0.0
    async with tracker:
        with Blocked() as blocked:
            for ledger, entries, times in deadlines(count, shape):
                began = time.thread_time()
                tracker.add_entries(ledger, entries, times)
                adding_s += time.thread_time() - began
                await asyncio.sleep(0)
                await _let_seal(tracker)
            await tracker.wait_until_idle()
        said: BucketStatistics = tracker.statistics()
        wall_s = time.perf_counter() - began_at
        return_free_memory()
        return {
            "count": count,
            "resident": resident() - before,
            "peak": peak_resident() - highest,
            "estimate": said.bytes,
            "adding_s": adding_s,
            "wall_s": wall_s,
            "buckets": said.buckets,
            "held": said.messages,
            "on_disk": said.snapshot_bytes,
            "in_files": _size(Path(folder)),
            "stored": said.messages - said.unsealed,
            **_latencies(said),
            **blocked.figures(),
        }


async def _let_seal(tracker: Any) -> None:
    if tracker.statistics().unsealed > _MAX_UNSEALED:
        await tracker.wait_until_idle()


def _latencies(said: BucketStatistics) -> Figures:
    return {kind: [each.count, each.total_ms] for kind, each in said.latency.items()}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# -- reopening, and draining -----------------------------------------------------------------------------------------


def recover(count: int, shape: str, folder: str, settings: Figures) -> Figures:
    """Open a filled tracker; return how long that took, and how many messages it holds."""
    _warm_up(lambda: _recover(f"{folder}/warm", settings))
    return _run(lambda: _recover(f"{folder}/{count}-{shape}", settings))


async def _recover(folder: str, settings: Figures) -> Figures:
    return_free_memory()
    before, began, worked = resident(), time.perf_counter(), time.process_time()
    with Blocked() as blocked:
        tracker, _ = await _open(folder, settings)
        await tracker.wait_until_recovered()
    wall_s, work_s = time.perf_counter() - began, time.process_time() - worked
    async with tracker:
        said = tracker.statistics()
        return_free_memory()
        return {
            "wall_s": wall_s,
            "work_s": work_s,
            "held": said.messages,
            "resident": resident() - before,
            "estimate": said.bytes,
            **blocked.figures(),
        }


def drain(count: int, shape: str, folder: str, settings: Figures, most: int, batch: int) -> Figures:
    """Open a filled tracker, let all messages become due, and take out at most ``most`` of them."""
    _warm_up(lambda: _drain(f"{folder}/warm", settings, most, batch))
    return _run(lambda: _drain(f"{folder}/{count}-{shape}", settings, most, batch))


async def _drain(folder: str, settings: Figures, most: int, batch: int) -> Figures:
    return_free_memory()
    before = resident()
    tracker, clock = await _open(folder, settings)
    taken, taking_s, largest, estimate = 0, 0.0, 0, 0
    async with tracker:
        await tracker.wait_until_recovered()
        held = tracker.number_of_delayed_messages
        look_each = held // 50 + 1
        clock.set(BASE_AT + 60_000 + SPREAD_MS)
        began = time.perf_counter()
        with Blocked() as blocked:
            while taken < min(most, held):
                at = time.thread_time()
                taken += (got := len(tracker.get_scheduled_messages(batch)))
                taking_s += time.thread_time() - at
                await asyncio.sleep(0 if got else 0.0002)
                if taken % look_each < got and (now := resident()) > largest:
                    largest, estimate = now, tracker.buffer_memory_usage
        wall_s = time.perf_counter() - began
        said = tracker.statistics()
    return {
        "taken": taken,
        "wall_s": wall_s,
        "taking_s": taking_s,
        "largest": largest - before,
        "estimate": estimate,
        **_latencies(said),
        **blocked.figures(),
    }


# -- without snapshots -----------------------------------------------------------------------------------------------


def readd(count: int, shape: str, folder: str, settings: Figures) -> Figures:
    """Add everything again, message by message, like a dispatcher that reads the topic again."""
    return _run(lambda: _readd(count, shape, f"{folder}/again", settings))


async def _readd(count: int, shape: str, folder: str, settings: Figures) -> Figures:
    tracker, _ = await _open(folder, settings)
    pieces = [(ledger, list(entries), list(times)) for ledger, entries, times in deadlines(min(count, LEDGER), shape)]
    async with tracker:
        began, worked = time.perf_counter(), time.process_time()
        for first in range(0, count, LEDGER):
            for _, entries, times in pieces:
                for entry, at in zip(entries, times, strict=True):
                    tracker.add_message(first // LEDGER, entry, at)
                await asyncio.sleep(0)
            await _let_seal(tracker)
        await tracker.wait_until_idle()
        return {
            "wall_s": time.perf_counter() - began,
            "work_s": time.process_time() - worked,
            "held": tracker.number_of_delayed_messages,
        }
