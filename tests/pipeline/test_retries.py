"""Retries: rows in, rows out; one job serves most tests here, each of which has its own topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from pulsar_nack.errors import InvalidArgumentError
from tests.for_each import for_each

from .rows import Tables, collected, events, of_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tried(entry: int, nacks: int, end: str | None, *, reason: str | None = None) -> list[dict[str, Any]]:
    """Return a message that arrives, is nacked some times a second apart, and then ends."""
    rows: list[dict[str, Any]] = []
    for attempt in range(nacks + 1):
        at = 1_000 * attempt
        rows.append({"event": "arrive", "time_ms": at, "entry": entry, "attempt": attempt})
        if attempt < nacks:
            rows.append({"event": "nack", "time_ms": at + 10, "entry": entry, "delay_ms": 990, "reason": reason})
    if end is not None:
        rows.append({"event": "ack", "time_ms": 1_000 * nacks + 10, "entry": entry, "reason": end})
    return rows


CHAINS: list[dict[str, Any]] = [
    *tried(1, 0, "ack"),
    *tried(2, 2, "ack"),
    *tried(3, 2, "ack"),
    *tried(4, 3, "dead-letter", reason="ValueError"),
    *tried(5, 1, "anything else"),
    *tried(6, 6, None),
    {"event": "arrive", "time_ms": 9_000, "entry": 2},
    {"event": "hold", "time_ms": 9_001, "entry": 2, "reason": "acked"},
]
ASKED_AGAIN: list[dict[str, Any]] = [
    # the request fails at once and the tracker repeats it
    {"event": "arrive", "time_ms": 0, "entry": 1},
    {"event": "nack", "time_ms": 10, "entry": 1, "delay_ms": 990, "deadline_ms": 1_000},
    {"event": "redeliver", "time_ms": 1_000, "entry": 1, "deadline_ms": 1_000, "actual_ms": 1_000},
    {"event": "error", "time_ms": 1_000, "mono_ns": 1, "entry": 1, "reason": "redeliver: BrokerError('no')"},
    {"event": "redeliver", "time_ms": 1_100, "entry": 1, "deadline_ms": 1_000, "reason": "asked again"},
    {"event": "arrive", "time_ms": 1_101, "entry": 1, "attempt": 1, "deadline_ms": 1_000, "actual_ms": 1_101},
    {"event": "ack", "time_ms": 1_200, "entry": 1, "attempt": 1, "reason": "ack"},
    # a request is lost, and repeated twice; then another nack
    {"event": "nack", "time_ms": 10, "entry": 2, "delay_ms": 990, "deadline_ms": 1_000},
    {"event": "redeliver", "time_ms": 1_000, "entry": 2, "deadline_ms": 1_000, "actual_ms": 1_000},
    {"event": "redeliver", "time_ms": 31_000, "entry": 2, "actual_ms": 31_000, "reason": "asked again"},
    {"event": "hold", "time_ms": 32_000, "entry": 2, "reason": "paused"},
    {"event": "redeliver", "time_ms": 91_000, "entry": 2, "actual_ms": 91_000, "reason": "asked again"},
    {"event": "arrive", "time_ms": 91_001, "entry": 2, "attempt": 1, "actual_ms": 91_001},
    {"event": "hold", "time_ms": 91_500, "entry": 2, "attempt": 1, "reason": "no room"},
    {"event": "nack", "time_ms": 92_000, "entry": 2, "attempt": 1, "delay_ms": 500, "deadline_ms": 92_500},
    {"event": "hold", "time_ms": 92_500, "entry": 2, "attempt": 1, "reason": "busy batch mates"},
    {"event": "redeliver", "time_ms": 92_500, "mono_ns": 1, "entry": 2, "attempt": 1, "deadline_ms": 92_500},
    # a tracker alone: no arrivals
    {"event": "nack", "time_ms": 1, "entry": 3, "attempt": None, "delay_ms": 1},
    {"event": "redeliver", "time_ms": 2, "entry": 3, "attempt": None},
    {"event": "nack", "time_ms": 3, "entry": 3, "attempt": None, "delay_ms": 1},
    {"event": "redeliver", "time_ms": 4, "entry": 3, "attempt": None},
]
DEAD: list[dict[str, Any]] = [
    {"event": "nack", "time_ms": 0, "entry": 1, "reason": "Timeout"},
    {"event": "nack", "time_ms": 1, "entry": 1, "reason": "ValueError"},
    {"event": "ack", "time_ms": 2, "entry": 1, "reason": "dead-letter"},
    {"event": "nack", "time_ms": 1, "entry": 2, "reason": "ValueError"},
    {"event": "ack", "time_ms": 2, "entry": 2, "reason": "dead-letter"},
    {"event": "ack", "time_ms": 2, "entry": 3, "reason": "dead-letter"},
    {"event": "nack", "time_ms": 1, "entry": 4, "reason": "not dead"},
]
USUAL = [{"time_ms": 1_000 * k + each, "entry": each} for k in range(5) for each in range(40)]
STORM = [
    {"time_ms": 1_000 * k + each, "entry": 1_000 * k + each}
    for k, count in {0: 4, 1: 4, 2: 4, 3: 40, 4: 90, 6: 4, 20: 30}.items()
    for each in range(count)
]
REPLAYED = [
    {"event": event, "time_ms": at + entry, "entry": entry, "reason": "ack" if event == "ack" else None}
    for at, event in ((0, "arrive"), (100, "ack"), (1_000, "arrive"), (1_100, "ack"))
    for entry in range(10)
]
ENDS: list[dict[str, Any]] = [
    # the last event is of a kind that counts nowhere else
    {"time_ms": 10, "entry": 1, "delay_ms": 5},
    {"event": "cancel", "time_ms": 70, "entry": 1, "reason": "close"},
    {"event": "error", "time_ms": 5, "entry": 2, "reason": "ack: no"},
    {"time_ms": 10, "entry": 2, "delay_ms": 5},
    {"event": "error", "time_ms": 90, "entry": 2, "reason": "redeliver: no"},
    # both acknowledged and dead
    {"time_ms": 10, "entry": 3, "reason": "ValueError"},
    {"event": "ack", "time_ms": 20, "entry": 3, "reason": "dead-letter"},
    {"event": "ack", "time_ms": 30, "entry": 3, "reason": "ack"},
    {"time_ms": 10, "entry": 4, "reason": "ValueError"},
    {"event": "ack", "time_ms": 20, "entry": 4, "reason": "ack"},
    {"event": "ack", "time_ms": 30, "entry": 4, "reason": "dead-letter"},
    # the last nack has no reason
    {"time_ms": 10, "entry": 5, "reason": "ValueError"},
    {"time_ms": 20, "entry": 5, "attempt": 1},
    {"event": "ack", "time_ms": 30, "entry": 5, "attempt": 1, "reason": "dead-letter"},
]
FIRST = [{"time_ms": each, "entry": each} for each in range(500)]
FADING = [
    {"time_ms": 1_000 * k + each, "entry": 1_000 * k + each}
    for k, count in {7: 90, 8: 60, 12: 5, 30: 90}.items()
    for each in range(count)
]
TOPICS = {
    "t": CHAINS, "again": ASKED_AGAIN, "dead": DEAD, "usual": USUAL, "storm": STORM, "replayed": REPLAYED, "ends": ENDS,
    "first": FIRST, "fading": FADING,
}  # fmt: skip


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Tables:
    """Return the tables for all those events, with other settings than the default ones."""
    df = events(spark, *(row | {"topic": topic} for topic, rows in TOPICS.items() for row in rows))
    return collected(pipeline.retries(df, poison_at=6, window=1, baseline=4, factor=5, min_nacks=20))


def test_chains_and_what_came_of_them(found: Tables) -> None:
    """Each nacked message has a chain with its outcome; attempts are counted by outcome, wasted ones too."""
    columns = "entry outcome nacks arrivals held after_ack asked_ms last_ms"
    assert of_topics(found["chains"], "t", columns=columns) == [
        (2, "acked", 2, 4, 1, 1, 1_980, 9_001),
        (3, "acked", 2, 3, 0, 0, 1_980, 2_010),
        (4, "dead letter", 3, 4, 0, 0, 2_970, 3_010),
        (5, "acked", 1, 2, 0, 0, 990, 1_010),
        (6, "open", 6, 7, 0, 0, 5_940, 6_000),
    ]
    assert of_topics(found["attempts"], "t") == [
        ("t", "s", "acked", 1, 1, 1_010.0),
        ("t", "s", "acked", 2, 2, 5_505.5),
        ("t", "s", "dead letter", 3, 1, 3_010.0),
        ("t", "s", "open", 6, 1, 6_000.0),
    ]
    assert [(row.topic, row.entry, row.nacks) for row in found["poison"]] == [("t", 6, 6)]
    assert of_topics(found["waste"], "t") == [("t", "s", 21, 4, 14, 1, 1, 1 - 4 / 21)]


def test_redeliveries_that_were_asked_for_again(found: Tables) -> None:
    """A request that failed or brought nothing and is repeated is no second redelivery, nor is a nack that waits."""
    columns = "entry outcome nacks redeliveries asked_again arrivals held last_ms"
    assert of_topics(found["chains"], "again", columns=columns) == [
        (1, "acked", 1, 1, 1, 2, 0, 1_200),
        (2, "open", 2, 2, 2, 1, 1, 92_500),
        (3, "open", 2, 2, 0, 0, 0, 4),
    ]


def test_dead_letters_by_reason(found: Tables) -> None:
    """Dead letters are counted by the reason of their last nack, and separately if it has none."""
    assert of_topics(found["dead_letters"], "dead", "t") == [
        ("dead", "s", "ValueError", 2),
        ("dead", "s", None, 1),
        ("t", "s", "ValueError", 1),
    ]


def test_replays_are_no_waste(found: Tables) -> None:
    """S6: ten messages are acknowledged, replayed by a seek and acknowledged again: no arrival is wasted."""
    assert of_topics(found["waste"], "replayed") == [("replayed", "s", 20, 10, 0, 0, 10, 0.0)]


def test_how_a_message_ended(found: Tables) -> None:
    """S9: the last event is of any kind, an acknowledgement is the outcome, and a last nack may have no reason."""
    assert of_topics(found["chains"], "ends", columns="entry outcome nacks first_ms last_ms") == [
        (1, "open", 1, 10, 70),
        (2, "open", 1, 5, 90),
        (3, "acked", 1, 10, 30),
        (4, "acked", 1, 10, 30),
        (5, "dead letter", 2, 10, 30),
    ]
    assert of_topics(found["dead_letters"], "ends") == [("ends", "s", "ValueError", 2), ("ends", "s", None, 1)]
    assert of_topics(found["attempts"], "ends", columns="outcome nacks messages span_ms") == [
        ("acked", 1, 2, 20.0),
        ("dead letter", 2, 1, 20.0),
        ("open", 1, 2, 72.5),
    ]


def test_no_outcome_is_listed_before_it_is_written(found: Tables) -> None:
    """S15: a retry topic is no outcome yet: an acknowledgement with any other reason is one."""
    outcomes = {row.outcome for name in ("chains", "attempts") for row in found[name]}
    assert outcomes == {"acked", "dead letter", "open"}
    page = (Path(__file__).parents[2] / "docs" / "pipeline" / "retries.md").read_text("utf-8")
    assert "retry topic" not in page + str(pipeline.Retries.__doc__)


def test_storms_against_a_moving_baseline(found: Tables) -> None:
    """Windows far above the mean of the previous ones form a storm; the same rate is not one if it is usual."""
    assert of_topics(found["storms"], "usual", "storm") == [
        ("storm", "s", 20_000, 21_000, 30, 30, 0.0, False),
        ("storm", "s", 3_000, 5_000, 130, 90, 4.0, False),
    ]


def test_a_trace_that_begins_in_a_storm(found: Tables) -> None:
    """S14: the storm is marked as one that began before the trace, without a baseline; adjacent windows join it."""
    assert of_topics(found["storms"], "first", "fading") == [
        ("fading", "s", 30_000, 31_000, 90, 90, 0.0, False),
        ("fading", "s", 7_000, 9_000, 150, 90, None, True),
        ("first", "s", 0, 1_000, 500, 500, None, True),
    ]


@for_each("wrong", [{"poison_at": 0}, {"window": 0}, {"baseline": 0}, {"factor": float("nan")}, {"min_nacks": -1}])
def test_wrong_arguments_are_named(spark: SparkSession, wrong: dict[str, Any]) -> None:
    """An argument out of range is refused by its name, before any work."""
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
        pipeline.retries(events(spark), **wrong)
