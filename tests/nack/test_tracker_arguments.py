"""Arguments: case N24, bad input to a tracker is refused with a clear error before anything changes; names."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy
import pytest
from pydantic import ValidationError

from pulsar_nack import InvalidArgumentError, MessageId, NackConfig, NackSchedule, NegativeAcksTracker
from pulsar_nack.testing import ManualClock, virtual_time
from tests.nack._harness import Recorder, mid, settle

BAD_DELAYS: list[Any] = [
    *[float("nan"), -1.0, -0.001, float("inf"), float("-inf"), True, False, "1", b"1", [], {}],
    *[1e300, 10**400, timedelta(seconds=-1), 1j],
]
BAD_IDS: list[Any] = [None, 5, "id", (3, 1, -1, -1), b"", MessageId(-1, 1), MessageId(3, -1)]


@contextmanager
def refused(tracker: NegativeAcksTracker, field: str) -> Iterator[None]:
    """Expect the error that names ``field``, and that nothing changes."""
    before = tracker.statistics()
    with pytest.raises(InvalidArgumentError, match=field):
        yield
    assert tracker.statistics() == before


@virtual_time
async def test_bad_delays() -> None:
    """N24: NaN, negative, infinite, huge, a bool, a str: refused by name in every nacking call."""
    async with NegativeAcksTracker(Recorder()) as tracker:
        tracker.nack_nowait(mid(9), 1)
        tracker.nack_nowait(mid(9), 0)
        for delay in BAD_DELAYS:
            with refused(tracker, "delay: expected seconds"):
                tracker.nack_nowait(mid(1), delay)
            with refused(tracker, "delay"):
                await tracker.nack(mid(1), delay)
            with refused(tracker, "delay"):
                tracker.nack_many([mid(1)], delay)
            with refused(tracker, "delay"):
                tracker.nack_entries(3, [1], delay)


@virtual_time
async def test_bad_ids() -> None:
    """N24: ids of no stored message are refused, with hooks and without, alone and among good ones."""
    for hooks in ([], [lambda event: None]):
        async with NegativeAcksTracker(Recorder(), hooks=hooks) as tracker:
            for bad in BAD_IDS:
                with refused(tracker, "id"):
                    tracker.nack_nowait(bad, 1.0)
                with refused(tracker, "id"):
                    await tracker.nack(bad, 1.0)
                with refused(tracker, "ids"):
                    tracker.nack_many([mid(1), bad, mid(2)], 1.0)
            for bad in (None, 5, "id", (3, 1, -1, -1)):
                with refused(tracker, "id"):
                    tracker.ack(bad)  # type: ignore[arg-type]
            assert bad not in tracker
            with refused(tracker, "ids: expected several ids"):
                tracker.nack_many(mid(1), 1.0)  # type: ignore[arg-type]


@virtual_time
async def test_bad_entries() -> None:
    """N24: an invalid ledger or entry is refused with all entries, with hooks and without."""
    for hooks in ([], [lambda event: None]):
        async with NegativeAcksTracker(Recorder(), hooks=hooks) as tracker:
            for ledger in (-1, True, 1.0, "1", 2**63, None):
                with refused(tracker, "ledger"):
                    tracker.nack_entries(ledger, [1], 1.0)  # type: ignore[arg-type]
            bad: list[Any] = [
                *[[1, -1], [1, 2.5], [1, "2"], [2**63], range(-1, 5), "12", b"12", 5, None, [None], list],
                *[array("q", [1, -1]), array("d", [1.0]), numpy.array([1.5]), numpy.array([[1]]), numpy.array([-1])],
                *[numpy.array(["1"]), numpy.array(["2026"], dtype="M8[ms]")],
            ]
            for entries in bad:
                with refused(tracker, "entries"):
                    tracker.nack_entries(3, entries, 1.0)


@virtual_time
async def test_entries_of_every_kind() -> None:
    """A range, a list, a tuple, arrays and numpy arrays of any integer type name the same entries."""
    kinds: list[Any] = [
        *[range(5), range(4, -1, -1), [0, 1, 2, 3, 4, 4], (4, 3, 2, 1, 0), iter(range(5)), {0, 1, 2, 3, 4}],
        *[array(code, range(5)) for code in "bBhHiIlLqQ"],
        *[numpy.arange(5, dtype=kind) for kind in ("int8", "uint16", "int32", "uint32", "int64", "uint64")],
        numpy.arange(10)[::2] // 2,
    ]
    beyond_32_bits = range(2**32 - 3, 2**32 + 2)
    named = [(entries, range(5)) for entries in kinds]
    named += [(kind(beyond_32_bits), beyond_32_bits) for kind in (list, iter)]
    for entries, expected in named:
        recorder = Recorder()
        async with NegativeAcksTracker(recorder) as tracker:
            tracker.nack_entries(3, entries, 1.0)
            assert tracker.statistics().pending == tracker.statistics().held == 5
            await asyncio.sleep(2)
        recorder.assert_once_each([mid(entry) for entry in expected])


@virtual_time
async def test_bad_counts() -> None:
    """N24: an invalid redelivery count is refused, whether it is used or not."""
    for backoff in (None, [1.0]):
        async with NegativeAcksTracker(Recorder(), backoff=backoff) as tracker:
            for count in (-1, True, False, 1.0, "0", None):
                for delay in (None, 1.0):
                    with refused(tracker, "redelivery_count"):
                        tracker.nack_nowait(mid(1), delay, redelivery_count=count)  # type: ignore[arg-type]


@virtual_time
async def test_bad_backoffs() -> None:
    """N24: a backoff that raises, or returns no delay, is named; nothing is added."""

    def fail(count: int) -> float:
        raise ZeroDivisionError("oops")

    async with NegativeAcksTracker(Recorder(), backoff=fail) as tracker:
        with refused(tracker, r"backoff\(2\).*oops"):
            tracker.nack_nowait(mid(1), redelivery_count=2)
    answers: list[Any] = [float("nan"), -1, None, "x", True]
    for bad in answers:

        def answer(count: int, bad: Any = bad) -> Any:
            return bad

        async with NegativeAcksTracker(Recorder(), backoff=answer) as tracker:
            with refused(tracker, r"backoff\(0\)"):
                await tracker.nack(mid(1))
            tracker.nack_nowait(mid(1), 1.0)
    with pytest.raises(InvalidArgumentError, match="backoff"):
        NegativeAcksTracker(Recorder(), backoff="soon")  # type: ignore[arg-type]


def test_bad_constructions() -> None:
    """N24: an invalid callback, hook or configuration is refused by name."""
    with pytest.raises(InvalidArgumentError, match="redeliver"):
        NegativeAcksTracker(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"hooks\[1\]"):
        NegativeAcksTracker(Recorder(), hooks=[print, 5])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="config"):
        NegativeAcksTracker(Recorder(), {"max_held": 5})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"negative_ack_precision_bit_cnt|negativeAckPrecisionBitCnt"):
        NackConfig(negative_ack_precision_bit_cnt=63)


async def test_tracker_by_name() -> None:
    """Every nacking call, and ack, accepts its arguments by name; unacknowledged ids are redelivered."""
    clock = ManualClock(now_ms=0)
    recorder = Recorder(clock.now_ms)
    tracker = NegativeAcksTracker(redeliver=recorder, config=NackConfig(), backoff=None, clock=clock, hooks=())
    async with tracker:
        await tracker.nack(id=MessageId(1, 1), delay=1.0, redelivery_count=0)
        tracker.nack_nowait(id=MessageId(1, 2), delay=timedelta(seconds=1), redelivery_count=0)
        tracker.nack_many(ids=[MessageId(1, 3)], delay=1)
        tracker.nack_entries(ledger=2, entries=range(2), delay=1)
        assert tracker.ack(id=MessageId(1, 2))
        clock.advance(1000)
        await settle()
    recorder.assert_once_each([MessageId(1, 1), MessageId(1, 3), MessageId(2, 0), MessageId(2, 1)])


def test_schedule_by_name() -> None:
    """The schedule accepts its arguments by name."""
    schedule = NackSchedule(config=NackConfig())
    assert schedule.add(id=MessageId(1, 1), now_ms=0, delay_ms=500)
    assert schedule.add(id=MessageId(1, 2), now_ms=0, delay_ms=500)
    assert schedule.discard(id=MessageId(1, 1))
    assert list(schedule.pop_due(now_ms=500, limit=1)) == [MessageId(1, 2)]
    assert schedule.pop_due_runs(now_ms=500) == []
