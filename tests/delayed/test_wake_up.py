"""The tracker's timer on an event loop, on virtual time."""

from __future__ import annotations

import asyncio

from pulsar_nack import Clock, DelayedDeliveryConfig, InMemoryDelayedDeliveryTracker, Position
from pulsar_nack.clock import LoopClock
from pulsar_nack.testing import virtual_time


class EpochClock:
    """A wall clock that follows the running loop, from an offset that may be changed."""

    def __init__(self, offset_ms: int) -> None:
        self.offset_ms = offset_ms
        self._loop_clock = LoopClock()

    def now_ms(self) -> int:
        """Return epoch ms."""
        return self.offset_ms + self._loop_clock.now_ms()


def open_tracker(clock: Clock, woken: list[int], tick: int = 100) -> InMemoryDelayedDeliveryTracker:
    """Open a strict tracker that records its calls."""
    return InMemoryDelayedDeliveryTracker(
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=tick, is_delayed_delivery_deliver_at_time_strict=True),
        clock=clock,
        on_due=lambda: woken.append(clock.now_ms()),
    )


@virtual_time
async def test_wakes_on_the_loop() -> None:
    """On the loop's clock the dispatcher is called at the exact ms, again for later messages, and not in between."""
    woken: list[int] = []
    async with open_tracker(LoopClock(), woken) as tracker:
        tracker.add_message(1, 1, 1_000)
        tracker.add_message(1, 2, 640)
        tracker.add_message(1, 3, 60_000)
        await asyncio.sleep(0.639)
        assert woken == []
        await asyncio.sleep(0.002)
        assert woken == [640]
        assert tracker.get_scheduled_messages(9) == [Position(1, 2)]
        await asyncio.sleep(50)
        assert woken == [640, 1_024]
        assert tracker.get_scheduled_messages(9) == [Position(1, 1)]
        await asyncio.sleep(50)
        assert woken == [640, 1_024, 60_032]


@virtual_time
async def test_wakes_on_another_clock() -> None:
    """On a wall clock the timer is set for the difference."""
    woken: list[int] = []
    async with open_tracker(EpochClock(1_700_000_000_000), woken, tick=1) as tracker:
        tracker.add_message(1, 1, 1_700_000_000_500)
        await asyncio.sleep(1)
    assert woken == [1_700_000_000_500]


@virtual_time
async def test_wall_clock_is_set_back_while_waiting() -> None:
    """A timer that finds the wall clock set back waits for the rest."""
    woken: list[int] = []
    clock = EpochClock(1_000_000)
    async with open_tracker(clock, woken, tick=1) as tracker:
        tracker.add_message(1, 1, 1_000_500)
        await asyncio.sleep(0.4)
        clock.offset_ms -= 3_000
        await asyncio.sleep(3)
        assert woken == []
        await asyncio.sleep(0.2)
        assert woken == [1_000_500]


@virtual_time
async def test_nothing_is_left_on_the_loop() -> None:
    """After closing, or when everything is taken out, no timer is left on the loop."""
    woken: list[int] = []
    tracker = open_tracker(LoopClock(), woken, tick=1)
    tracker.add_message(1, 1, 500)
    await asyncio.sleep(1)
    assert tracker.get_scheduled_messages(9) == [Position(1, 1)]
    tracker.add_message(1, 2, 5_000)
    await tracker.aclose()
    await asyncio.sleep(10)
    assert woken == [500]


@virtual_time
async def test_time_without_end_on_the_loop() -> None:
    """A message for the end of time does not disturb the loop."""
    woken: list[int] = []
    async with open_tracker(LoopClock(), woken) as tracker:
        tracker.add_message(1, 1, 2**63 - 1)
        await asyncio.sleep(1_000_000)
    assert woken == []


@virtual_time
async def test_late_loop_does_not_add_up() -> None:
    """When the loop is late by a little each time, the calls stay on their grid."""
    clock = LoopClock()
    woken: list[int] = []
    taken: list[Position] = []

    class Late:
        def now_ms(self) -> int:
            return clock.now_ms() + 7 * (len(woken) % 2)

    def on_due() -> None:
        woken.append(clock.now_ms())
        taken.extend(tracker.get_scheduled_messages(1_000))

    tracker = InMemoryDelayedDeliveryTracker(
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=64), clock=Late(), on_due=on_due
    )
    for t in range(65, 6_400):
        tracker.add_message(1, t, t)
    await asyncio.sleep(10)
    assert len(taken) == 6_335
    assert all(at % 64 <= 7 or at % 64 >= 57 for at in woken)
    await tracker.aclose()
