"""The pure schedule against a simple reference: never early beyond a bucket, never late, lost or doubled."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_nack import InvalidArgumentError, MessageId, NackConfig, NackSchedule
from tests.for_each import for_each
from tests.nack._harness import bucket_width
from tests.tiers import examples

IDS = st.tuples(st.integers(1, 2), st.integers(0, 30), st.sampled_from([-1, 4]), st.sampled_from([-1, -1, 0, 1])).map(
    lambda fields: MessageId(*fields)
)
DELAYS = st.one_of(st.sampled_from([0, 1, 100, 1_000, 2_000]), st.integers(0, 5_000))


class ScheduleMachine(RuleBasedStateMachine):
    """The reference keeps the exact deadline and the bucket's width of every valid request."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.due: dict[MessageId, tuple[int, int]] = {}

    @initialize(bits=st.integers(0, 12), ratio=st.sampled_from([None, 0.125, 1.0, 0.01]))
    def make(self, bits: int, ratio: float | None) -> None:
        self.config = NackConfig(negative_ack_precision_bit_cnt=bits, precision_ratio=ratio)
        self.schedule = NackSchedule(self.config)

    def want(self, message_id: MessageId, delay_ms: int) -> bool:
        """Note a request; return whether the id was not pending."""
        deadline = self.now + delay_ms
        size = bucket_width(self.config, delay_ms)
        start = deadline // size * size
        known = self.due.get(message_id)
        if known is None or start < known[0]:
            self.due[message_id] = (start, deadline)
        return known is None

    @rule(message_id=IDS, delay_ms=DELAYS)
    def nack(self, message_id: MessageId, delay_ms: int) -> None:
        assert self.schedule.add(message_id, self.now, delay_ms) == self.want(message_id, delay_ms)

    @rule(
        ledger=st.integers(1, 2), entries=st.lists(st.integers(0, 30), max_size=8), delay_ms=DELAYS, kind=st.booleans()
    )
    def nack_entries(self, ledger: int, entries: list[int], delay_ms: int, kind: bool) -> None:
        given = array("q", entries) if kind else entries
        added = self.schedule.add_entries(ledger, given, self.now, delay_ms)
        assert added == sum(self.want(MessageId(ledger, entry), delay_ms) for entry in dict.fromkeys(entries))

    @rule(message_id=IDS)
    def ack(self, message_id: MessageId) -> None:
        assert (message_id in self.schedule) == (message_id in self.due)
        assert self.schedule.discard(message_id) == (self.due.pop(message_id, None) is not None)

    @precondition(lambda self: self.due)
    @rule(limit=st.one_of(st.none(), st.integers(1, 4)))
    def wake_at_the_next_time(self, limit: int | None) -> None:
        at = self.schedule.next_at()
        assert at is not None
        self.now = max(self.now, at)
        self.take(limit)

    @rule(by=st.integers(0, 300))
    def pass_time(self, by: int) -> None:
        self.now += by
        self.take(None)

    def take(self, limit: int | None) -> None:
        """Pop, and compare with the reference."""
        got = list(self.schedule.pop_due(self.now, limit))
        assert len(set(got)) == len(got)
        wanted = sorted(start for start, _ in self.due.values() if start <= self.now)
        starts = [self.due.pop(message_id)[0] for message_id in got]
        assert starts == wanted[:limit]

    @rule(by=st.integers(0, 300))
    def take_runs(self, by: int) -> None:
        self.now += by
        got = [
            MessageId(run.ledger, entry, run.partition, run.batch_index)
            for run in self.schedule.pop_due_runs(self.now)
            for entry in run.entries
        ]
        assert sorted(got) == sorted(message_id for message_id, (start, _) in self.due.items() if start <= self.now)
        for message_id in got:
            del self.due[message_id]

    @invariant()
    def counts_are_exact(self) -> None:
        assert len(self.schedule) == len(self.due)
        assert self.schedule.next_at() == min((start for start, _ in self.due.values()), default=None)

    def teardown(self) -> None:
        if self.due:
            self.now = max(start for start, _ in self.due.values())
            self.take(None)
            assert not self.due


ScheduleMachine.TestCase.settings = examples(150, 40)
TestSchedule = ScheduleMachine.TestCase


@for_each(("delay_ms", "expected"), [(0, 1), (7, 1), (8, 1), (100, 8), (1_000, 64), (2_048, 256), (60_000, 256)])
def test_a_bucket_is_never_wider_than_its_share_of_the_delay(delay_ms: int, expected: int) -> None:
    """N7: with the defaults a bucket is at most an eighth of the delay wide, so that short delays are kept."""
    schedule = NackSchedule()
    starts = {schedule.bucket_start(now, delay_ms) for now in range(10_000, 10_000 + 2_048)}
    assert len(starts) in {2_048 // expected, 2_048 // expected + 1}


def test_a_tracker_of_a_day_and_a_minute() -> None:
    """16 bits and a ratio of 1/1000 give 32 ms buckets for a minute and 65 s buckets for a day."""
    schedule = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=16, precision_ratio=0.001))
    assert schedule.bucket_start(63, 60_000) % 32 == 0
    assert {schedule.bucket_start(now, 60_000) % 64 for now in range(128)} == {0, 32}
    assert {schedule.bucket_start(now, 86_400_000) % 65_536 for now in range(0, 200_000, 99)} == {0}


def test_bad_arguments_change_nothing() -> None:
    """Invalid ledgers, entry ids and delays are refused by name, before anything is added."""
    schedule = NackSchedule()
    entries: list[Any] = [[-1], [2**63], [1.5], ["1"], [None], "12", 7, range(-2, 3), array("d", [1.0]), b"ab"]
    for bad in entries:
        with pytest.raises(InvalidArgumentError, match="entries"):
            schedule.add_entries(1, bad, 0, 1_000)
    ledgers: list[Any] = [-1, 2**63, True, 1.0, "1", None]
    for bad in ledgers:
        with pytest.raises(InvalidArgumentError, match="ledger"):
            schedule.add_entries(bad, [1], 0, 1_000)
    delays: list[Any] = [-1, 1.5, True, 10**20, None]
    for bad in delays:
        with pytest.raises(InvalidArgumentError, match="delay_ms"):
            schedule.add(MessageId(1, 1), 0, bad)
    assert (len(schedule), schedule.next_at()) == (0, None)


def test_due_ids_are_a_sequence() -> None:
    """Popped ids can be indexed, sliced, iterated twice, compared and measured."""
    schedule = NackSchedule()
    ids = [MessageId(1, entry, topic="t") for entry in range(5)] + [MessageId(2, 3, -1, 1), MessageId(3, 70_000)]
    for message_id in ids:
        schedule.add(message_id, 0, 10)
    due = schedule.pop_due(10)
    assert due == ids
    assert list(due) == ids == list(due)
    assert due[0].topic == "t"
    assert due[-1] == ids[-1]
    assert due[2:6] == ids[2:6]
    assert ids[5] in due
    assert len(due) == 7
    assert "7 ids" in repr(due)
    with pytest.raises(IndexError):
        due[7]
