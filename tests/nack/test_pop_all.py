"""Taking everything out of a schedule at once."""

from __future__ import annotations

import pytest

from pulsar_nack import MessageId, NackSchedule


@pytest.mark.timeout(5)
def test_pop_all_takes_everything_and_ends() -> None:
    """Everything comes out, by position, whatever its deadline, and an empty schedule gives nothing."""
    schedule = NackSchedule()
    assert list(schedule.buckets.pop_all()) == []
    schedule.add(MessageId(1, 1), 0, 86_400_000)
    schedule.add(MessageId(1, 2), 0, 100)
    assert list(schedule.buckets.pop_all()) == [MessageId(1, 1), MessageId(1, 2)]
    assert (len(schedule), schedule.next_at()) == (0, None)
    assert list(schedule.buckets.pop_all()) == []
