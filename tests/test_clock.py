"""Clocks: whole milliseconds that never go back."""

from __future__ import annotations

import asyncio
import time

import pytest

from pulsar_nack import Clock
from pulsar_nack.clock import LoopClock, MonotonicClock, WallClock
from pulsar_nack.testing import ManualClock, virtual_time


@pytest.mark.parametrize("clock", [MonotonicClock(), WallClock(), ManualClock()])
def test_clocks_are_clocks(clock: Clock) -> None:
    """Every clock fits the protocol and returns an int; a manual one wakes its waiters."""
    assert isinstance(clock, Clock)
    assert type(clock.now_ms()) is int
    assert hasattr(clock, "call_at") == isinstance(clock, ManualClock)


def test_monotonic_clock() -> None:
    """It lies between two reads of the machine's monotonic clock."""
    before = time.monotonic_ns() // 1_000_000
    now = MonotonicClock().now_ms()
    assert before <= now <= time.monotonic_ns() // 1_000_000


def test_monotonic_clock_ignores_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: a wall clock that jumps by an hour changes nothing but the wall clock."""
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5_999_999)
    for wall in (0, 3_600_000_000_000, -3_600_000_000_000):
        monkeypatch.setattr(time, "time_ns", lambda wall=wall: wall)
        assert MonotonicClock().now_ms() == 5
        assert WallClock().now_ms() == wall // 1_000_000


@virtual_time
async def test_loop_clock() -> None:
    """It follows the loop, so that a virtual loop moves it; a whole ms is never read as the one before."""
    clock = LoopClock()
    assert clock.now_ms() == 0
    for at in range(1, 3000):
        await asyncio.sleep(at / 1000 - asyncio.get_running_loop().time())
        assert clock.now_ms() == at
    await asyncio.sleep(0.0009)
    assert clock.now_ms() == 2999


def test_loop_clock_needs_a_loop() -> None:
    """Outside of a loop it cannot be made."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        LoopClock()


async def test_loop_clock_agrees_with_the_monotonic_clock() -> None:
    """On a real loop the two show the same time, within a ms of rounding."""
    before = MonotonicClock().now_ms()
    now = LoopClock().now_ms()
    assert before - 1 <= now <= MonotonicClock().now_ms() + 1
