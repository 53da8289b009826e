"""The names of arguments are part of the contract: every one of them can be given by name."""

from __future__ import annotations

from datetime import timedelta

from pulsar_nack import MessageId, NackConfig, NackSchedule, NegativeAcksTracker
from pulsar_nack.testing import ManualClock
from tests.nack._harness import Recorder, settle


async def test_tracker_by_name() -> None:
    """Every way to nack, and ack, takes its arguments by name; what was not acknowledged comes back."""
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
    """The schedule takes its arguments by name."""
    schedule = NackSchedule(config=NackConfig())
    assert schedule.add(id=MessageId(1, 1), now_ms=0, delay_ms=500)
    assert schedule.add(id=MessageId(1, 2), now_ms=0, delay_ms=500)
    assert schedule.discard(id=MessageId(1, 1))
    assert list(schedule.pop_due(now_ms=500, limit=1)) == [MessageId(1, 2)]
    assert schedule.pop_due_runs(now_ms=500) == []
