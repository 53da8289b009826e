"""Memory by formulas: the proposals' figures, and ours beside a real index."""

from __future__ import annotations

import json
import math
import random
from statistics import fmean
from typing import Any

import pytest

from pulsar_nack import DelayedDeliveryConfig, InMemoryDelayedDeliveryTracker, InvalidArgumentError, MessageId
from pulsar_nack.index import TimeBuckets
from pulsar_nack.planning import (
    Kind,
    Workload,
    format_size,
    make_plan,
    old_bytes,
    predicted_bytes,
    proposal_bytes,
)
from pulsar_nack.testing import ManualClock
from tests.for_each import for_each
from tests.tiers import seeds, size

MIB = 1 << 20
TOLERANCE = 0.25
"""Our formulas may be off by this share, or by 8 KiB if that is more."""


def build(workload: Workload, bits: int) -> tuple[int, int]:
    """Return how many ids an index has when the first message is about to be due, and its most bytes.

    Its bytes rise and fall as open buckets grow and are sealed; the last twentieth counts.
    """
    buckets, usages = TimeBuckets(), []
    chance = random.Random(393)
    count = int(workload.rate * workload.delay)
    for sequence in range(count):
        if sequence >= count * 19 // 20 and sequence % 10 == 0:
            usages.append(buckets.bytes)
        if chance.random() >= workload.share:
            continue
        entry, batch_index = divmod(sequence, workload.batch_size)
        ledger, entry = divmod(entry, workload.entries_per_ledger)
        at_ms = int(sequence * 1000 / workload.rate + workload.delay * 1000)
        message_id = MessageId(ledger, entry, -1, batch_index if workload.batch_size > 1 else -1)
        buckets.put(message_id, at_ms & (-1 << bits))
    return len(buckets), max(usages)


@for_each(("per_ms", "bits", "ceil", "limit"), [(1, 10, 19.07, 19.07), (8, 10, 9.54, 9.54), (8, 15, 1.79, 1.55)])
def test_proposals_table(per_ms: int, bits: int, ceil: float, limit: float) -> None:
    """P1: 10 M delayed messages take what the proposal's table says, in MiB."""
    workload = Workload(Kind.DELAYED, rate=1000 * per_ms, delay=10_000 / per_ms)
    assert workload.pending == 10_000_000
    assert round(proposal_bytes(workload, bits) / MIB, 2) == ceil
    assert round(proposal_bytes(workload, bits, limit=True) / MIB, 2) == limit
    assert old_bytes(workload) == (240_000_000, 240_000_000)


def test_proposal_for_nacks() -> None:
    """P1: a pending nack takes 4 bytes in a small bucket, and 48 to 213 in the old maps."""
    workload = Workload(Kind.NACK, rate=1_000, delay=60)
    assert proposal_bytes(workload, 8) == 4 * 60_000
    assert proposal_bytes(workload, 12) == pytest.approx(8_192 / 4_096 * 60_000)
    assert old_bytes(workload) == (48 * 60_000, 213 * 60_000)


def test_proposals_count_entries() -> None:
    """P1: members of a batch are one entry, which waits as long as any of them does."""
    assert Workload(rate=1_000, delay=10, batch_size=10).pending_entries == 1_000
    half = Workload(rate=1_000, delay=10, batch_size=2, share=0.5)
    assert (half.pending, half.pending_entries) == (5_000, 3_750)


@pytest.mark.parametrize(
    "case",
    seeds(
        [
            ({"rate": 10, "delay": 600}, 8),
            ({"rate": 200, "delay": 10, "share": 0.5}, 4),
            ({"rate": 10_000, "delay": 20, "share": 0.01}, 4),
            ({"rate": 10_000, "delay": 20}, 8),
            ({"rate": 10_000, "delay": 20, "share": 0.3}, 8),
            ({"rate": 10_000, "delay": 20, "share": 0.9, "entries_per_ledger": 200_000}, 8),
            ({"rate": 10_000, "delay": 10}, 0),
            ({"rate": 10_000, "delay": 20, "share": 0.3, "entries_per_ledger": 1_000}, 8),
            ({"rate": 10_000, "delay": 20, "entries_per_ledger": 100}, 8),
            ({"rate": 10_000, "delay": 20, "share": 0.3, "entries_per_ledger": 5_000}, 14),
            ({"rate": 10_000, "delay": 20, "batch_size": 10}, 8),
            ({"rate": 10_000, "delay": 20, "batch_size": 10, "share": 0.3}, 8),
            ({"rate": 10_000, "delay": 20, "batch_size": 16, "share": 0.5}, 8),
            ({"rate": 10_000, "delay": 20, "batch_size": 100}, 8),
            ({"rate": 10_000, "delay": 20, "batch_size": 100, "share": 0.3}, 8),
            ({"rate": 1_000, "delay": 20, "batch_size": 2_000, "share": 0.3}, 12),
        ],
        fast=3,
    ),
)
def test_prediction_beside_an_index(case: tuple[dict[str, Any], int]) -> None:
    """Our formula agrees with the size of a real index, within 25 % or 8 KiB."""
    settings, bits = case
    workload = Workload(**settings)
    pending, usage = build(workload, bits)
    assert pending == pytest.approx(workload.pending, rel=0.05)
    assert predicted_bytes(workload, bits) == pytest.approx(usage, rel=TOLERANCE, abs=8_192)


@pytest.mark.parametrize(("per_ms", "bits"), [(1, 10), (8, 10), (10, 8)])
def test_prediction_beside_a_tracker(per_ms: int, bits: int) -> None:
    """D15: our formula agrees with the in-memory tracker in the proposal's cases too, at a fortieth of their size."""
    count = size(250_000, fast=100_000)
    workload = Workload(Kind.DELAYED, rate=1000 * per_ms, delay=count / 1000 / per_ms)
    tracker = InMemoryDelayedDeliveryTracker(
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1 << bits), clock=ManualClock()
    )
    usages = []  # it rises and falls as open buckets grow and are sealed
    for sequence in range(count):
        tracker.add_message(*divmod(sequence, 50_000), 4_096 + sequence // per_ms)
        if sequence >= count * 3 // 4 and sequence % 100 == 0:
            usages.append(tracker.buffer_memory_usage)
    assert tracker.number_of_delayed_messages == workload.pending
    assert predicted_bytes(workload, bits) == pytest.approx(fmean(usages), rel=TOLERANCE, abs=8_192)


def test_plan_has_a_row_for_each_width() -> None:
    """The table goes from buckets of a ms to buckets as wide as the delay, and contains the requested bits."""
    plan = make_plan(Workload(delay=60), 8)
    assert [row.bits for row in plan.rows] == list(range(16))
    assert plan.asked.width_ms == 256
    assert plan.pending == 600_000
    assert [row.bits for row in plan.rows if row.is_fine] == list(range(13))
    assert len(make_plan(Workload(delay=1), 20).rows) == 21
    assert json.loads(json.dumps(plan.as_dict()))["asked"]["bits"] == 8


@for_each("kind", list(Kind))
@for_each("delay", [0.001, 0.05, 1, 60, 86_400])
@for_each("rate", [0.1, 1_000, 1_000_000])
@for_each("share", [1e-6, 0.3, 1])
def test_recommendation_keeps_its_rule(kind: Kind, delay: float, rate: float, share: float) -> None:
    """It is the finest width that takes at most a quarter or a MiB more than the least, and 100 wake-ups/s."""
    plan = make_plan(Workload(kind, rate, delay, share), 8)
    best = plan.recommended
    fine = [row for row in plan.rows if row.is_fine]
    least = min(row.bytes for row in fine)

    def is_good(bits: int) -> bool:
        row = plan.rows[bits]
        return row.bytes <= max(1.25 * least, least + MIB) and row.wake_ups_per_second <= 100

    assert best.is_fine
    assert is_good(best.bits) or best is fine[-1]
    assert not any(is_good(row.bits) for row in fine if row.bits < best.bits)
    setting = "negativeAckPrecisionBitCnt" if kind == Kind.NACK else "delayedDeliveryTickTimeMillis"
    assert plan.recommendation.reason.startswith(f"Set {setting}=")


def test_recommendation_says_why() -> None:
    """The reason names the setting, what it costs, and the drawbacks of finer and wider buckets."""
    assert make_plan(Workload(rate=1_000, delay=1), 8).recommendation.reason.startswith(
        "Set negativeAckPrecisionBitCnt=4: messages are off by at most 15 ms (1.5 % of the delay), for "
    )
    assert "Finer buckets would mean 125 wake-ups a second" in make_plan(Workload(), 8).recommendation.reason
    assert "Finer buckets would take" in make_plan(Workload(delay=86_400), 8).recommendation.reason
    assert "an eighth of the delay" in make_plan(Workload(delay=0.1), 8).recommendation.reason


@for_each(
    ("field", "value"),
    [
        ("kind", "late"),
        *(("rate", value) for value in (0, -1, math.nan, math.inf, True, "1")),
        *(("delay", value) for value in (0, -1, math.nan, math.inf, True, "1")),
        *(("share", value) for value in (0, 1.01, math.nan, True)),
        *(("entries_per_ledger", value) for value in (0, 1.5, True)),
        *(("batch_size", value) for value in (0, 65_537, 1.5)),
    ],
)
def test_bad_workloads(field: str, value: Any) -> None:
    """An impossible workload is refused, and the field is named."""
    with pytest.raises(InvalidArgumentError, match=field):
        Workload(**{field: value})


def test_workloads_that_make_no_sense() -> None:
    """Delayed messages are not batched, one consumer cannot hold that many messages, and bits go from 0 to 62."""
    with pytest.raises(InvalidArgumentError, match="batch_size"):
        Workload(Kind.DELAYED, batch_size=2)
    with pytest.raises(InvalidArgumentError, match="rate"):
        Workload(rate=1e9, delay=86_400)
    wrong: list[Any] = [-1, 63, 1.5, True]
    for bits in wrong:
        with pytest.raises(InvalidArgumentError, match="bits"):
            make_plan(Workload(), bits)


@for_each(
    ("size", "text"), [(0, "0.00 KiB"), (1024, "1.00 KiB"), (999 * 1024, "999 KiB"), (1000 * 1024, "0.98 MiB"),
                       (15 * MIB, "15.0 MiB"), (5 << 30, "5.00 GiB")]
)  # fmt: skip
def test_sizes_for_people(size: float, text: str) -> None:
    """Printed sizes have three digits and a unit."""
    assert format_size(size) == text
