"""Wall clocks that are set while something waits, and clocks below zero, with all three trackers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from pulsar_nack import (
    BucketDelayedDeliveryTracker,
    Clock,
    Consumer,
    InMemoryDelayedDeliveryTracker,
    MessageId,
    NackConfig,
    NackSchedule,
    NegativeAcksTracker,
)
from pulsar_nack._tasks import TaskOwner
from pulsar_nack.clock import LoopClock
from pulsar_nack.delayed.bucket._snapshots import MAX_READS, Snapshots
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage, virtual_time
from tests.consumer.nowait_port import NowaitPort
from tests.delayed.bucket.stage import config_of
from tests.for_each import for_each
from tests.nack._harness import Recorder, loop_ms, settle

HOUR_MS = 3_600_000
EPOCH_MS = 1_700_000_000_000


class WallClock:
    """Epoch ms that follow the running loop, until they are set; counts how often it is read."""

    def __init__(self) -> None:
        self.shift_ms = 0
        self.looks = 0
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return epoch ms."""
        self.looks += 1
        return EPOCH_MS + self.shift_ms + round(self._loop.time() * 1000)


Wait = Callable[[int], None]
"""Makes something wait for some ms."""


@contextlib.asynccontextmanager
async def in_memory(clock: Clock, told: list[int]) -> AsyncIterator[Wait]:
    """Delayed messages in the in-memory tracker."""
    async with InMemoryDelayedDeliveryTracker(clock=clock, on_due=lambda: told.append(loop_ms())) as tracker:

        def wait(delay_ms: int) -> None:
            assert tracker.add_message(1, 1, clock.now_ms() + delay_ms)

        yield wait


@contextlib.asynccontextmanager
async def in_buckets(clock: Clock, told: list[int]) -> AsyncIterator[Wait]:
    """Delayed messages in the bucket tracker."""
    opening = BucketDelayedDeliveryTracker.open(
        MemorySnapshotStorage(), MemoryDelayedCursor(), clock=clock, on_due=lambda: told.append(loop_ms())
    )
    async with await opening as tracker:

        def wait(delay_ms: int) -> None:
            assert tracker.add_message(1, 1, clock.now_ms() + delay_ms)

        yield wait


@contextlib.asynccontextmanager
async def nacked(clock: Clock, told: list[int]) -> AsyncIterator[Wait]:
    """Negative acknowledgements."""
    async with NegativeAcksTracker(lambda _: told.append(loop_ms()), clock=clock) as tracker:
        yield lambda delay_ms: tracker.nack_nowait(MessageId(1, 1), delay_ms / 1000)


KINDS = pytest.mark.parametrize("kind", [in_memory, in_buckets, nacked])
Kind = Callable[[Clock, list[int]], contextlib.AbstractAsyncContextManager[Wait]]


@KINDS
@virtual_time
async def test_a_clock_that_is_set_forward(kind: Kind) -> None:
    """O29: messages due by the new time are returned within seconds, not when the old time would have come."""
    clock, told = WallClock(), list[int]()
    async with kind(clock, told) as wait:
        wait(HOUR_MS)
        await asyncio.sleep(1.5)
        clock.shift_ms += 2 * HOUR_MS
        await asyncio.sleep(2)
        assert len(told) == 1
        assert told[0] <= 2_500


@KINDS
@virtual_time
async def test_a_clock_that_is_set_back(kind: Kind) -> None:
    """The remaining messages wait by the new time, and not a second longer."""
    clock, told = WallClock(), list[int]()
    async with kind(clock, told) as wait:
        wait(10_000)
        await asyncio.sleep(9)
        clock.shift_ms -= 60_000
        await asyncio.sleep(60.5)
        assert told == []
        await asyncio.sleep(1.6)  # a tick of a delayed tracker is 1 s
        assert len(told) == 1


@KINDS
@virtual_time
async def test_how_often_a_clock_is_looked_at(kind: Kind) -> None:
    """O29: at most once a second while something waits for a clock that may be set, and never while nothing does."""
    clock, told = WallClock(), list[int]()
    async with kind(clock, told) as wait:
        await asyncio.sleep(100)
        idle = clock.looks
        await asyncio.sleep(1_000)
        assert clock.looks == idle
        wait(HOUR_MS)
        begun = clock.looks
        await asyncio.sleep(1_000)
        assert 999 <= clock.looks - begun <= 1_001
        assert told == []


@pytest.mark.parametrize("clock", ["loop", "manual"])
@KINDS
@virtual_time
async def test_clocks_that_cannot_be_set_are_let_alone(kind: Kind, clock: str) -> None:
    """O29: nothing polls the loop's own clock, nor a manual one that says it cannot be set."""
    looks = 0

    class Loops(LoopClock):
        def now_ms(self) -> int:
            nonlocal looks
            looks += 1
            return super().now_ms()

    class Hands(ManualClock):
        def now_ms(self) -> int:
            nonlocal looks
            looks += 1
            return super().now_ms()

    async with kind(Loops() if clock == "loop" else Hands(), []) as wait:
        wait(HOUR_MS)
        begun = looks
        await asyncio.sleep(3_000)
        assert looks == begun


@virtual_time
async def test_nacks_after_a_clock_was_set_back() -> None:
    """A nack is sent by the new time, also in the bucket of the last one before the clock was set."""
    clock, recorder = WallClock(), Recorder()
    async with NegativeAcksTracker(recorder, NackConfig(negative_ack_redelivery_delay=1), clock=clock) as tracker:
        tracker.nack_nowait(MessageId(1, 1))
        clock.shift_ms -= HOUR_MS
        tracker.nack_nowait(MessageId(1, 2))
        await asyncio.sleep(2)
        assert recorder.ids == [MessageId(1, 2)]


@virtual_time
async def test_attempts_do_not_wait_for_a_clock_that_is_set_back() -> None:
    """The wait before the next attempt uses the loop's time: setting a wall clock does not prolong it."""
    clock = WallClock()
    tasks = TaskOwner(clock)
    tasks._enter()

    async def set_back() -> None:
        await asyncio.sleep(0.01)
        clock.shift_ms -= HOUR_MS

    await asyncio.gather(tasks.back_off(1), set_back())
    assert loop_ms() < 1_000


@virtual_time
async def test_reads_do_not_wait_behind_those_that_hang_while_a_clock_is_set_back() -> None:
    """Reads that hang make room for others by the loop's time, whatever a wall clock shows."""
    clock, began = WallClock(), asyncio.Event()
    tasks = TaskOwner(clock)
    snapshots = Snapshots(MemorySnapshotStorage(), MemoryDelayedCursor(), "", "", clock=clock)

    async def hang() -> None:
        async with snapshots.read_slot():
            await asyncio.sleep(HOUR_MS)

    async def read() -> None:
        async with snapshots.read_slot():
            began.set()

    for _ in range(MAX_READS):
        tasks.start(hang())
    await asyncio.sleep(0.03)
    clock.shift_ms -= HOUR_MS
    tasks.start(read())
    await asyncio.wait_for(began.wait(), 1)
    await tasks.aclose()


@virtual_time
async def test_buckets_do_not_wait_for_one_that_hangs_while_a_clock_is_set_back() -> None:
    """Overdue messages of other buckets are returned within seconds, by the loop's time."""
    clock, hanging = WallClock(), list[int]()

    class Hanging(MemorySnapshotStorage):
        async def get_bucket_snapshot_segment(self, bucket_id: int, first: int, last: int) -> Sequence[bytes]:
            if not hanging:
                hanging.append(bucket_id)
                await asyncio.sleep(HOUR_MS)
            return await super().get_bucket_snapshot_segment(bucket_id, first, last)

    storage = Hanging()
    config = config_of(prefetch=0)
    opening = BucketDelayedDeliveryTracker.open(storage, MemoryDelayedCursor(), config, clock=clock)
    async with await opening as tracker:
        for number in range(1, 23):
            assert tracker.add_message(number, number, EPOCH_MS + HOUR_MS + 10 * number)
        await tracker.wait_until_idle()
        clock.shift_ms += 2 * HOUR_MS
        taken = tracker.get_scheduled_messages(100)
        await asyncio.sleep(0.05)
        clock.shift_ms -= HOUR_MS // 2
        for _ in range(50):
            await asyncio.sleep(0.1)
            taken += tracker.get_scheduled_messages(100)
        assert hanging
        assert len(taken) >= 15  # all but those of one bucket


# -- below zero -----------------------------------------------------------------------------------------------------

CALLS: list[Callable[[NegativeAcksTracker], Awaitable[None] | None]] = [
    lambda tracker: tracker.nack(MessageId(1, 1)),
    lambda tracker: tracker.nack_nowait(MessageId(1, 1)),
    lambda tracker: tracker.nack_many([MessageId(1, 1)]),
    lambda tracker: tracker.nack_entries(1, [1]),
]


@for_each("call", CALLS)
@for_each("now_ms", [-10_000, -1_000, -500, -1, 0, -(10**12)])
def test_each_call_takes_a_clock_below_zero(
    now_ms: int, call: Callable[[NegativeAcksTracker], Awaitable[None] | None]
) -> None:
    """O30: delay 1 s at -10 000 ms is sent from -9 024 to -9 000, as with any other clock; the second time too."""

    @virtual_time
    async def main() -> None:
        clock = ManualClock(now_ms)
        recorder = Recorder(clock.now_ms)
        async with NegativeAcksTracker(recorder, NackConfig(negative_ack_redelivery_delay=1), clock=clock) as tracker:
            for _ in range(2):
                if (calling := call(tracker)) is not None:
                    await calling
                nacked_at = clock.now_ms()
                for step in (800, *[1] * 400):  # in steps of a ms only where it matters
                    clock.advance(step)
                    await settle(6)
                assert nacked_at + 1_000 - 127 <= recorder.times[-1] <= nacked_at + 1_000
            assert len(recorder.times) == 2

    main()


@for_each("now_ms", [-10_000, -1, -(10**12)])
def test_a_schedule_below_zero(now_ms: int) -> None:
    """O30: the schedule alone, a tick before, at and after the bucket's start."""
    schedule = NackSchedule(NackConfig(precision_ratio=None))
    schedule.add(MessageId(1, 1), now_ms, 1_000)
    start = (now_ms + 1_000) // 256 * 256
    assert schedule.next_at() == start
    assert not schedule.pop_due(start - 1)
    assert list(schedule.pop_due(start)) == [MessageId(1, 1)]


@virtual_time
async def test_a_consumer_below_zero_lets_the_loop_run() -> None:
    """O30: a busy consumer yields to others after 5 ms of its clock, whatever that shows."""
    clock, port, turns = ManualClock(-10_000), NowaitPort(), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for _ in range(200):
        port.topic.publish(b"x")
    async with Consumer(port, clock=clock) as consumer:
        await consumer.receive()
        await settle()
        counting = asyncio.create_task(count())
        for _ in range(100):
            clock.advance(6)
            await consumer.receive()
        counting.cancel()
    assert turns >= 50
