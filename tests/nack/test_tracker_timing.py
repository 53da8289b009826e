"""When ids are sent, and how often the timer wakes: cases N1 to N13b."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_nack import MessageId, NackConfig, NackSchedule, NegativeAcksTracker, Position
from pulsar_nack.testing import ManualClock, virtual_time
from tests.for_each import for_each
from tests.nack._harness import Recorder, RecordingClock, loop_ms, mid, settle

PLAIN = NackConfig(precision_ratio=None)


@for_each(
    ("bits", "time", "start"),
    [
        *[(0, time, time) for time in (8, 9, 1000, 1023, 1024)],
        *[(1, 8, 8), (1, 9, 8), (1, 1000, 1000), (1, 1023, 1022), (1, 1024, 1024)],
        *[(8, 8, 0), (8, 9, 0), (8, 1000, 768), (8, 1023, 768), (8, 1024, 1024), (8, -5, -256)],
        *[(10, 8, 0), (10, 9, 0), (10, 1000, 0), (10, 1023, 0), (10, 1024, 1024), (10, -5, -1024), (0, -5, -5)],
    ],
)
def test_a_time_is_floored_to_its_bucket(bits: int, time: int, start: int) -> None:
    """N1: an id whose deadline is ``time`` is due from the start of that time's bucket on, and not a tick before."""
    schedule = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=bits, precision_ratio=None))
    schedule.add(mid(1), time - 5000, 5000)
    assert schedule.next_at() == start
    assert not schedule.pop_due(start - 1)
    assert list(schedule.pop_due(start)) == [mid(1)]


@virtual_time
async def test_ids_come_in_time_while_nacks_keep_coming() -> None:
    """N2: bits 8, delay 1 s, a nack each 200 ms: each is sent in [200k + 745, 200k + 1000]."""
    recorder = Recorder()
    async with NegativeAcksTracker(recorder, PLAIN) as tracker:
        for k in range(20):
            await tracker.nack(mid(k), 1.0)
            await asyncio.sleep(0.2)
        await asyncio.sleep(2)
        assert tracker.statistics().wakeups <= 20
    recorder.assert_once_each([mid(k) for k in range(20)])
    for k in range(20):
        assert 200 * k + 1000 - 255 <= recorder.at(mid(k))[0] <= 200 * k + 1000
    assert recorder.times[0] < 4000


@virtual_time
async def test_an_earlier_deadline_moves_the_timer() -> None:
    """N3: A with 60 s, then B with 1 s: both at their own times; the timer is set for A, B, and A again."""
    clock = RecordingClock()
    recorder = Recorder(clock.now_ms)
    async with NegativeAcksTracker(recorder, PLAIN, clock=clock) as tracker:
        tracker.nack_nowait(mid(1), 60.0)
        clock.set(10)
        tracker.nack_nowait(mid(2), 1.0)
        await clock.run_to(61_000, step=50)
    (b_at,), (a_at,) = recorder.at(mid(2)), recorder.at(mid(1))
    assert 755 <= b_at <= 1010
    assert 59_745 <= a_at <= 60_000
    assert clock.set_for == [59_904, 768, 59_904]


@virtual_time
async def test_a_later_deadline_leaves_the_timer_alone() -> None:
    """N4: A with 1 s, then B with 60 s: the timer is not touched when B is added."""
    clock = RecordingClock()
    async with NegativeAcksTracker(Recorder(clock.now_ms), PLAIN, clock=clock) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        clock.set(10)
        tracker.nack_nowait(mid(2), 60.0)
        await settle()
        assert clock.set_for == [768]
        assert clock.cancelled == 0


@virtual_time
async def test_a_full_bucket_costs_one_wake_up() -> None:
    """N5: 10 000 ids of one bucket and then an hour of nothing: one wake-up, none before, none after."""
    recorder = Recorder()
    ids = [mid(k) for k in range(10_000)]
    async with NegativeAcksTracker(recorder) as tracker:
        for message_id in ids:
            tracker.nack_nowait(message_id, 5.0)
        await asyncio.sleep(4.8)
        assert tracker.statistics().wakeups == 0
        await asyncio.sleep(3600)
        assert tracker.statistics().wakeups == 1
    recorder.assert_once_each(ids)
    assert set(recorder.times) == {4864}


@for_each("bits", range(1, 13))
def test_no_earlier_than_a_bucket_and_never_late(bits: int) -> None:
    """N6: bits 1 to 12, delay 2 s: sent in [2000 - 2^bits + 1, 2000], for nacks at many times."""

    @virtual_time
    async def main() -> None:
        recorder = Recorder()
        config = NackConfig(negative_ack_precision_bit_cnt=bits, precision_ratio=None)
        async with NegativeAcksTracker(recorder, config) as tracker:
            nacked: dict[MessageId, int] = {}
            for k in range(60):
                await asyncio.sleep(0.037)
                nacked[mid(k)] = loop_ms()
                await tracker.nack(mid(k), 2.0)
            await asyncio.sleep(5)
        recorder.assert_once_each(list(nacked))
        for message_id, at in nacked.items():
            assert max(2000 - 2**bits + 1, 0) <= recorder.at(message_id)[0] - at <= 2000

    main()


@virtual_time
async def test_a_short_delay_is_not_eaten_by_a_wide_bucket() -> None:
    """N7: delay 100 ms at the default precision: sent in [87, 100] ms after the nack, at any time."""
    recorder = Recorder()
    nacked: dict[MessageId, int] = {}
    async with NegativeAcksTracker(recorder) as tracker:
        for k in range(300):
            await asyncio.sleep(0.007)
            nacked[mid(k)] = loop_ms()
            await tracker.nack(mid(k), 0.1)
        await asyncio.sleep(1)
    recorder.assert_once_each(list(nacked))
    assert {87 <= recorder.at(message_id)[0] - at <= 100 for message_id, at in nacked.items()} == {True}


class LaggingClock:
    """The loop's time minus a ms, so that the loop's timers come one tick too soon."""

    lag = 1

    def now_ms(self) -> int:
        """Return the time."""
        return loop_ms() - self.lag


@virtual_time
async def test_a_timer_that_comes_too_soon_is_set_again() -> None:
    """N8: woken one tick too soon, it sends nothing, sets the timer again, and sends once."""
    clock = LaggingClock()
    clock.lag = 0
    recorder = Recorder(clock.now_ms)
    async with NegativeAcksTracker(recorder, clock=clock) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        due_at = tracker._schedule.next_at()
        assert due_at is not None
        clock.lag = 1
        await asyncio.sleep(due_at / 1000)
        await settle()
        assert not recorder.commands
        assert tracker.statistics().early_wakeups == 1
        await asyncio.sleep(1)
        assert recorder.commands == [(due_at, [mid(1)])]
        assert tracker.statistics().wakeups == 2


@virtual_time
async def test_the_earliest_deadline_wins() -> None:
    """N9: nacked at 0 and 1 000 with 2 s it is sent once at the first deadline; a shorter delay hurries it."""
    clock = ManualClock()
    recorder = Recorder(clock.now_ms)
    async with NegativeAcksTracker(recorder, PLAIN, clock=clock) as tracker:
        tracker.nack_nowait(mid(1), 2.0)
        clock.set(1000)
        await tracker.nack(mid(1), 2.0)
        assert tracker.statistics().pending == 1
        clock.set(1791)
        await settle()
        assert not recorder.commands
        clock.set(1792)
        await settle()
        assert recorder.commands == [(1792, [mid(1)])]
        tracker.nack_nowait(mid(2), 2.0)
        tracker.nack_nowait(mid(2), 0)
        assert tracker.statistics().pending == 1
        await settle()
        assert recorder.commands[1:] == [(1792, [mid(2)])]
        clock.set(100_000)
        await settle()
        assert len(recorder.commands) == 2


@virtual_time
async def test_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: the wall clock jumps by an hour either way; deadlines are monotonic."""
    import time

    recorder = Recorder()
    async with NegativeAcksTracker(recorder) as tracker:
        tracker.nack_nowait(mid(1), 1.0)
        for jump in (3600, -3600):
            monkeypatch.setattr(time, "time", lambda jump=jump: 1e9 + jump)
            monkeypatch.setattr(time, "time_ns", lambda jump=jump: int((1e9 + jump) * 1e9))
            await asyncio.sleep(0.3)
        assert not recorder.commands
        await asyncio.sleep(1)
    (at,) = recorder.times
    assert 1000 - 127 <= at <= 1000


@virtual_time
async def test_batch_members_have_separate_deadlines() -> None:
    """N11, N12: nacked 2 s apart with 3 s each, or at once with 10 and 20 s: two requests, each with its own index."""
    for pause, first_delay, second_delay in ((2.0, 3.0, 3.0), (0.0, 10.0, 20.0)):
        recorder = Recorder()
        async with NegativeAcksTracker(recorder) as tracker:
            start = loop_ms()
            tracker.nack_nowait(mid(1, batch_index=0), first_delay)
            await asyncio.sleep(pause)
            tracker.nack_nowait(mid(1, batch_index=1), second_delay)
            await asyncio.sleep(30)
        assert [ids for _, ids in recorder.commands] == [[mid(1, batch_index=0)], [mid(1, batch_index=1)]]
        for at, due in zip(recorder.times, (first_delay, pause + second_delay), strict=True):
            assert 1000 * due - 255 <= at - start <= 1000 * due


@virtual_time
async def test_partitions_are_kept_apart() -> None:
    """N13: the same ledger and entry in partitions 2 and 5 are two messages, with their own topics."""
    recorder = Recorder()
    two = MessageId(3, 1, 2, topic="persistent://a/b/c-partition-2")
    five = MessageId(3, 1, 5, topic="persistent://a/b/c-partition-5")
    async with NegativeAcksTracker(recorder) as tracker:
        tracker.nack_nowait(two, 1.0)
        tracker.nack_nowait(five, 1.0)
        assert tracker.statistics().pending == 2
        await asyncio.sleep(2)
    recorder.assert_once_each([two, five])
    assert {message_id.partition: message_id.topic for message_id in recorder.ids} == {2: two.topic, 5: five.topic}


@virtual_time
async def test_a_chunked_message_names_all_its_parts() -> None:
    """N13a: a chunked id, nacked twice in two buckets: every request names all three chunks, however they are known."""
    parts = (Position(7, 1), Position(7, 2), Position(7, 3))
    for chunked in (MessageId(7, 3, chunks=parts), MessageId(7, 3, first_chunk=MessageId(7, 1))):
        recorder = Recorder()
        async with NegativeAcksTracker(recorder) as tracker:
            for _ in range(2):
                tracker.nack_nowait(chunked, 1.0)
                await asyncio.sleep(3)
            tracker.nack_nowait(chunked, 5.0)
            tracker.nack_nowait(chunked, 2.0)
            await asyncio.sleep(6)
        assert [message_id.parts for message_id in recorder.ids] == [parts, parts, parts]
        assert [message_id.first_chunk for message_id in recorder.ids] == [chunked.first_chunk] * 3


@virtual_time
async def test_an_old_bucket_does_not_fire_for_a_new_nack() -> None:
    """N13b: acked, then nacked again with 60 s while its old bucket is due: not sent before the new deadline."""
    recorder = Recorder()
    async with NegativeAcksTracker(recorder) as tracker:
        for other in range(2, 10):
            tracker.nack_nowait(mid(other), 5.0)
        tracker.nack_nowait(mid(1), 5.0)
        await asyncio.sleep(1)
        assert tracker.ack(mid(1))
        tracker.nack_nowait(mid(1), 60.0)
        await asyncio.sleep(50)
        recorder.assert_once_each([mid(other) for other in range(2, 10)])
        await asyncio.sleep(20)
    assert 61_000 - 255 <= recorder.at(mid(1))[0] <= 61_000


@virtual_time
async def test_a_manual_clock_drives_it_tick_by_tick() -> None:
    """N2, N6: with a manual clock: one tick before the bucket nothing, at its start the id."""
    clock = ManualClock()
    recorder = Recorder(clock.now_ms)
    async with NegativeAcksTracker(recorder, PLAIN, clock=clock) as tracker:
        for k in range(4):
            clock.set(1000 * k)
            tracker.nack_nowait(mid(k), 30.0)
        for k in range(4):
            start = (1000 * k + 30_000) & -256
            clock.set(start - 1)
            await settle()
            assert recorder.ids == [mid(other) for other in range(k)]
            clock.set(start)
            await settle()
            assert recorder.commands[-1] == (start, [mid(k)])
        assert tracker.statistics().wakeups == 4
