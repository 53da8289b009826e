"""The measurements of the cursor, each in a separate process: filling, writing changes, recovery, one ack."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from _loop import Blocked
from _memory import peak_resident, reset_peak, resident, return_free_memory
from _timing import best, thread_ns

from pulsar_nack import Cursor, CursorConfig
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format._record import messages

PATTERNS = ("every second", "random 1 % left", "one hole a ledger")
CACHE_BYTES = 3 << 20
ROUNDS = 20
ACKS_A_LEDGER = 10
_ROOM = 2 * ROUNDS * ACKS_A_LEDGER + 1
_PIECE = 1_000
_NO_LIMIT = 1 << 40
_ACKS = 200_000

Figures = dict[str, Any]


def acked_entries(pattern: str, ledger: int, count: int) -> Iterator[int]:
    """Yield the acknowledged entries of a ledger in ascending order, never the first entry."""
    if pattern == "every second":
        yield from range(1, 2 * count, 2)
    elif pattern == "one hole a ledger":
        yield from range(1, count + 1)
    else:
        dice = random.Random(ledger)
        entry, left = 1, count
        while left:
            if dice.random() >= 0.01:
                yield entry
                left -= 1
            entry += 1


def ranges_and_span(pattern: str, ledger: int, count: int) -> tuple[int, int]:
    """Return the number of ranges of a ledger's acknowledged entries, and the entry after the last of them."""
    ranges, last = 0, -1
    for entry in acked_entries(pattern, ledger, count):
        ranges += entry != last + 1 or last < 0
        last = entry
    return ranges, last + 1


def _config(limit: int = CACHE_BYTES) -> CursorConfig:
    return CursorConfig(
        max_individual_ack_cache_bytes_per_cursor=limit,
        max_per_cursor_metadata_size_in_bytes=0,
        flush_interval=timedelta(days=1),
        close_timeout=timedelta(minutes=10),
    )


def _run(work: Callable[[], Awaitable[Figures]]) -> Figures:
    return asyncio.run(work())  # type: ignore[arg-type]


def topic_of(pattern: str, count: int, ledgers: int) -> tuple[dict[int, int], int, int]:
    """Return a topic whose ledgers hold the acknowledged entries and some more, its ranges, and its holes."""
    topic, all_ranges, holes = {}, 0, 0
    each = count // ledgers
    for ledger in range(1, ledgers + 1):
        if ledger == 1 or pattern == "random 1 % left":
            ranges, span = ranges_and_span(pattern, ledger, each)
        topic[ledger] = span + _ROOM
        all_ranges += ranges
        holes += span - each
    return topic, all_ranges, holes


def fill_and_write(folder: str, pattern: str, count: int, ledgers: int) -> Figures:
    """Acknowledge ``count`` entries and flush; then, before each of some flushes, some more in 1 % of the ledgers."""
    _run(lambda: _fill(Path(folder) / "warm", pattern, 60_000, 20))
    return_free_memory()
    gc.freeze()
    return _run(lambda: _fill(Path(folder) / "cursor", pattern, count, ledgers))


async def _fill(folder: Path, pattern: str, count: int, ledgers: int) -> Figures:
    topic, ranges, holes = topic_of(pattern, count, ledgers)
    folder.with_suffix(".json").write_text(json.dumps(topic))
    gc.collect()
    before, peak_before = resident(), reset_peak()
    cursor = await Cursor.open_local(folder, topic, _config())
    worked = thread_ns()
    for ledger in topic:
        await _acknowledge_all(cursor, ledger, acked_entries(pattern, ledger, count // ledgers))
    await cursor.flush()
    worked = thread_ns() - worked
    gc.collect()
    held, peak = resident() - before, peak_resident() - peak_before
    figures = cursor.statistics()
    size, first_bytes = cursor.metadata_size_bytes, figures.bytes_written
    acks, dirty = await _write_some_more(cursor, topic)
    written = cursor.statistics().bytes_written - first_bytes
    await cursor.aclose()
    return {
        "ranges": ranges,
        "holes": holes,
        "span": sum(topic.values()) - _ROOM * ledgers,
        "fill_ns": worked / count,
        "held": held,
        "peak": peak,
        "size": size,
        "ledgers_in_memory": figures.ledgers_in_memory,
        "acks": acks,
        "dirty": dirty,
        "written": written,
    }


async def _acknowledge_all(cursor: Cursor, ledger: int, entries: Iterator[int]) -> None:
    while piece := [(ledger, entry) for entry in islice(entries, _PIECE)]:
        await cursor.acknowledge(piece)


async def _write_some_more(cursor: Cursor, topic: dict[int, int]) -> tuple[int, int]:
    dice = random.Random(5)
    many = max(len(topic) // 100, 1)
    for turn in range(ROUNDS):
        for ledger in dice.sample(list(topic), many):
            first = topic[ledger] - _ROOM + 1 + 2 * turn * ACKS_A_LEDGER
            await cursor.acknowledge([(ledger, first + 2 * place) for place in range(ACKS_A_LEDGER)])
        await cursor.flush()
    return ROUNDS * many * ACKS_A_LEDGER, many


def recover(folder: str, limit: int | None) -> Figures:
    """Open the written cursor, with this limit on memory or without one."""
    topic = {int(ledger): entries for ledger, entries in json.loads((Path(folder) / "cursor.json").read_text()).items()}
    messages()  # imports protobuf, about 10 ms that do not belong to the recovery

    async def work() -> Figures:
        gc.collect()
        gc.freeze()  # so that collections do not traverse the modules of the process
        before = resident()
        with Blocked() as blocked:
            began = time.perf_counter()
            cursor = await Cursor.open_local(Path(folder) / "cursor", topic, _config(limit or _NO_LIMIT))
            seconds = time.perf_counter() - began
        held = resident() - before
        figures = cursor.statistics()
        await cursor.aclose()
        return {
            "seconds": seconds,
            "held": held,
            "ledgers_in_memory": figures.ledgers_in_memory,
            "blocked_ms": blocked.callback_ms,
        }

    return _run(work)


# -- one acknowledgement ---------------------------------------------------------------------------------------------


def orders() -> dict[str, list[tuple[int, int]]]:
    """Return positions by the order in which they are acknowledged one by one."""
    dice = random.Random(11)
    every = [(1 + at // 50_000, at % 50_000) for at in range(_ACKS)]
    shuffled = [every[at] for at in dice.sample(range(_ACKS), _ACKS)]
    near = sorted(every, key=lambda position: position[0] * 50_000 + position[1] + dice.randrange(1_000))
    return {
        "in order": every,
        "every second": every[1::2],
        "out of order by 1,000": near,
        "any order in 4 ledgers": shuffled,
    }


def one_ack(folder: str, order: str) -> Figures:
    """Ns of an acknowledgement: of the cursor, of its state alone, and of adding a position to a Python set."""
    positions = orders()[order]
    topic = dict.fromkeys(range(1, 6), 50_000)
    calls = [[position] for position in positions]

    def of_cursor() -> float:
        async def work() -> float:
            cursor = await Cursor.open_local(Path(folder) / f"{order} {time.perf_counter_ns()}", topic, _config())
            acknowledge = cursor.acknowledge
            began = thread_ns()
            for call in calls:
                await acknowledge(call)
            took = thread_ns() - began
            await cursor.aclose()
            return took / len(calls)

        return asyncio.run(work())

    def of_state() -> float:
        acknowledge = AckState(topic, (1, -1)).acknowledge
        began = thread_ns()
        for call in calls:
            acknowledge(call)
        return (thread_ns() - began) / len(calls)

    def of_set() -> float:
        add = set[tuple[int, int]]().add
        began = thread_ns()
        for call in calls:
            add(call[0])
        return (thread_ns() - began) / len(calls)

    return {"cursor": best(of_cursor, 3), "state": best(of_state, 3), "set": best(of_set, 3)}
