"""Accuracy of redelivery: rows in, rows out; one job serves most tests here, each of which has its own topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from pulsar_nack.errors import InvalidArgumentError
from tests.for_each import for_each

from .rows import Tables, collected, events, of_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def arrived(entry: int, nacked: int, delay: int, actual: int, **more: Any) -> list[dict[str, Any]]:
    """Return a nack of an entry and its arrival."""
    where = {"entry": entry, **more}
    deadline = nacked + delay
    return [
        {"event": "nack", "time_ms": nacked, "delay_ms": delay, "deadline_ms": deadline, "attempt": 0, **where},
        {"event": "arrive", "time_ms": actual, "deadline_ms": deadline, "actual_ms": actual, "attempt": 1, **where},
    ]


def nacked(entry: int, at: int, delay: int, topic: str, consumer: str = "c") -> dict[str, Any]:
    """Return a nack of an entry that does not arrive."""
    known = {"event": "nack", "time_ms": at, "delay_ms": delay, "deadline_ms": at + delay}
    return known | {"entry": entry, "topic": topic, "consumer": consumer}


def goes_on(topic: str, consumer: str, kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a consumer does each minute of an hour; in the first topic after a nack that is due at 1 s."""
    rows = [nacked(0, 0, 1_000, topic, consumer)] if consumer == "f" else []
    for minute in range(60):
        for place, kind in enumerate(kinds):
            at = 60_000 * minute + 5 + 4 * place
            rows.append(kind | {"time_ms": at, "entry": 10 + minute, "topic": topic, "consumer": consumer})
    return rows


EVENTS: list[dict[str, Any]] = [
    {"event": "arrive", "time_ms": 0, "entry": 0, "actual_ms": 0},
    *arrived(0, 100, 1_000, 1_100),
    *arrived(1, 100, 1_000, 1_110),
    *arrived(2, 100, 1_000, 90),
    *arrived(3, 100, 1_001, 5_000),
    *arrived(4, 100, 500, 600, topic="u", batch_index=2),
    {"event": "arrive", "time_ms": 70, "entry": 5, "deadline_ms": 60, "actual_ms": 70, "attempt": 3},
    {"event": "arrive", "time_ms": 70, "entry": 6, "deadline_ms": -7, "actual_ms": 70, "attempt": 3},
    # at the limits, and beyond them
    *arrived(1, 0, 5_000, 6_500, topic="bounds"),
    *arrived(2, 0, 5_000, 6_501, topic="bounds"),
    *arrived(3, 0, 5_000, 4_500, topic="bounds"),
    *arrived(4, 0, 5_000, 4_499, topic="bounds"),
    # a timer that each nack restarts, and one that is not awaited for that long
    *(each for k in range(10) for each in arrived(k, 1_000 + 200 * k, 1_000, 15_200 + k, topic="timer")),
    *(each for k in range(10) for each in arrived(k, 1_000 + 90 * k, 1_000, 3_900 + k, topic="short")),
    # redeliveries that continue; a time with nothing due; and due messages that were acknowledged before
    *(each for k in range(20) for each in arrived(k, 400 * k, 1_000, 1_000 + 400 * k + 50, topic="steady")),
    *arrived(90, 60_000, 30_000, 90_010, topic="steady"),
    nacked(91, 20_000, 1_000, "steady"),
    {"event": "cancel", "time_ms": 20_500, "entry": 91, "reason": "ack", "topic": "steady"},
    # messages that never came, and messages that are not due yet
    nacked(1, 1_000, 1_000, "end", "e"),
    nacked(2, 9_000, 60_000, "end", "e"),
    nacked(3, 9_000, 1, "just due", "e"),
    # S1: the consumer continues for an hour, in this subscription or in another
    *goes_on("first deliveries", "f", [{"event": "arrive"}, {"event": "ack", "reason": "ack"}]),
    nacked(0, 0, 1_000, "quiet", "q"),
    *goes_on("another", "q", [{"event": "hold", "reason": "paused"}]),
    nacked(0, 0, 1_000, "left by a kill", "k"),
    {"event": "error", "time_ms": 50_000, "entry": 5, "topic": "left by a kill", "consumer": "k"},
    *goes_on("left by a kill", "other", [{"event": "arrive"}, {"event": "ack", "reason": "ack"}]),
    # S2: what ends a span, at 100 s
    *(
        row
        for end in ("cancel", "ack", "nack", "arrive")
        for row in (nacked(1, 0, 1_000, end), {"event": end, "time_ms": 100_000, "entry": 1, "topic": end})
    ),
    nacked(1, 0, 1_000, "one of two"),
    nacked(2, 0, 2_000, "one of two"),
    {"event": "cancel", "time_ms": 50_000, "entry": 1, "topic": "one of two"},
    {"event": "cancel", "time_ms": 60_000, "entry": 2, "topic": "one of two"},
    nacked(3, 69_000, 1_000, "one of two"),
    {"event": "ack", "time_ms": 80_000, "entry": 3, "topic": "one of two", "reason": "dead-letter"},
    # S3: requested again, and back without a deadline; then all is well
    nacked(1, 0, 1_000, "again"),
    {"event": "redeliver", "time_ms": 1_000, "entry": 1, "topic": "again", "deadline_ms": 1_000, "actual_ms": 1_000},
    {
        "event": "redeliver",
        "time_ms": 31_000,
        "entry": 1,
        "topic": "again",
        "actual_ms": 31_000,
        "reason": "asked again",
    },
    {"event": "arrive", "time_ms": 31_020, "entry": 1, "topic": "again", "attempt": 1, "actual_ms": 31_020},
    {"event": "ack", "time_ms": 31_030, "entry": 1, "topic": "again", "attempt": 1, "reason": "ack"},
    *(
        each
        for k in range(10)
        for each in arrived(10 + k, 39_000 + 5_000 * k, 1_000, 40_005 + 5_000 * k, topic="again")
    ),
    # S4: later attempts without a nack here
    *({"event": "arrive", "time_ms": 9, "entry": k, "topic": "later", "attempt": k, "actual_ms": 9} for k in range(3)),
    {"event": "arrive", "time_ms": 9, "entry": 9, "topic": "later", "attempt": None, "actual_ms": 9},
    # S5: messages that came twice; and lines that are there twice
    *arrived(1, 0, 1_000, 1_000, topic="twice"),
    *arrived(1, 0, 1_000, 1_500, topic="twice")[1:],
    *arrived(2, 0, 5_000, 5_000, topic="twice"),
    *arrived(2, 0, 5_000, 5_000, topic="twice"),
]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Tables:
    """Return the tables for those events, with other limits than the default ones."""
    df = events(spark, *EVENTS)
    return collected(pipeline.accuracy(df, percentiles=[0.5, 1], early=0.5, late=1.5, starvation=2.0))


def test_ids_of_which_half_is_missing(spark: SparkSession) -> None:
    """A message without a ledger differs from one without an entry: its nack is not answered by the other's arrival."""
    found = pipeline.accuracy(
        events(
            spark,
            {"time_ms": 0, "ledger": None, "entry": 7, "delay_ms": 1_000, "deadline_ms": 1_000},
            {"event": "arrive", "time_ms": 1_000, "ledger": 7, "entry": None, "attempt": 1, "actual_ms": 1_000},
        )
    )
    assert [row.delay_class for row in found.lateness.collect()] == ["unknown"]


@for_each("size", [1, 7, 100_000])
def test_order_and_batches_do_not_matter(size: int) -> None:
    """Spark only groups the events of a hash: workers separate its messages and sort their events."""
    import numpy as np
    import pyarrow as pa

    from pulsar_nack.pipeline._accuracy_counts import CODES, UNKNOWN, WHAT, counter, what_bits
    from pulsar_nack.pipeline._jobs import MESSAGE, Code

    classes, rng = 7, np.random.default_rng(1)
    message = np.sort(rng.integers(0, 300, 1_500))
    nacks = rng.random(1_500) < 0.5
    what = ((rng.integers(0, 4, 1_500) * CODES + np.where(nacks, Code.NACK, Code.ARRIVE)) * 2) * classes
    what += np.where(nacks, 0, rng.choice([0, 1], 1_500)) * classes
    what += np.where(nacks, rng.integers(0, classes, 1_500), 0)
    time = rng.integers(0, 20, 1_500)
    columns = {"time_ms": time, "mono_ns": rng.integers(UNKNOWN, -UNKNOWN, 1_500), "ms": rng.integers(0, 20, 1_500)}

    def counted(order: Any, hashes: Any, others: Any, size: int) -> list[tuple[Any, ...]]:
        known = columns | {MESSAGE: hashes, WHAT: (others << what_bits(classes)) + what, "source": message % 3}
        batches = pa.table({name: values[order] for name, values in known.items()}).to_batches(max_chunksize=size)
        rows = (row for each in counter(classes, 4)(batches) for row in each.to_pylist())
        return sorted((tuple(row.values()) for row in rows), key=repr)

    in_order = np.lexsort((what, columns["mono_ns"], time, message))
    expected = counted(in_order, message, message * 0, 100_000)
    assert len(expected) > 300
    same_hash = np.lexsort((rng.random(1_500), message // 2))
    assert counted(same_hash, message // 2 - 75, message % 2 - 1, size) == expected


@pytest.mark.smoke
def test_lateness_by_group(found: Tables) -> None:
    """Lateness has a row for each topic, subscription, delay class and attempt; first deliveries are not arrivals."""
    assert found["lateness"][0].__fields__ == [
        *("topic", "subscription", "delay_class", "attempt", "arrivals", "invalid", "early", "late"),
        *("min_ms", "mean_ms", "p50_ms", "p100_ms", "max_ms"),
    ]
    assert of_topics(found["lateness"], "t", "u") == [
        ("t", "s", "0-1 s", 1, 2, 0, 0, 0, 0, 5.0, 5.0, 10.0, 10),
        ("t", "s", "1-10 s", 1, 1, 0, 0, 1, 3_899, 3_899.0, 3_899.0, 3_899.0, 3_899),
        ("t", "s", "unknown", 1, 1, 0, 1, 0, -1_010, -1_010.0, -1_010.0, -1_010.0, -1_010),
        ("t", "s", "unknown", 3, 2, 1, 0, 0, 10, 10.0, 10.0, 10.0, 10),
        ("u", "s", "0-1 s", 1, 1, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0),
    ]


def test_arrivals_beyond_the_bounds(found: Tables) -> None:
    """Arrivals that are too early or too late are listed, those at the limit are not."""
    beyond = of_topics(found["beyond"], "bounds", columns="ledger entry consumer lateness_ms")
    assert beyond == [(3, 2, "c", 1_501), (3, 4, "c", -501)]


def test_starvation_while_nacks_keep_coming(found: Tables) -> None:
    """Each nack restarts the timer: the first was due at 2 s, and all came at 15.2 s; a wait of 1.9 s is not listed."""
    assert of_topics(found["starvation"], "timer", "short") == [
        ("timer", "s", 2_000, 15_200, 13_200, 10, True, "arrive")
    ]


def test_no_starvation_while_messages_come(found: Tables) -> None:
    """Nothing is reported while redeliveries continue, nothing is due, or due messages were acknowledged before."""
    assert of_topics(found["starvation"], "steady") == []


def test_starvation_up_to_the_end(found: Tables) -> None:
    """A message that was due and never came makes a span up to the last event of its subscription."""
    assert of_topics(found["starvation"], "end", "just due") == [("end", "s", 2_000, 9_000, 7_000, 1, False, None)]


def test_starvation_lasts_as_long_as_its_consumer_goes_on(found: Tables) -> None:
    """S1: the trace ends with the last event of the nack's consumer, of any kind, here or in another subscription."""
    assert of_topics(found["starvation"], "first deliveries", "quiet", "another", "left by a kill") == [
        ("first deliveries", "s", 1_000, 3_540_009, 3_539_009, 1, False, None),
        ("left by a kill", "s", 1_000, 50_000, 49_000, 1, False, None),
        ("quiet", "s", 1_000, 3_540_005, 3_539_005, 1, False, None),
    ]


def test_what_ended_a_span(found: Tables) -> None:
    """S2: a span ends, and says so, when nothing is due any more: by a cancel, an acknowledgement or the next nack."""
    assert of_topics(found["starvation"], "cancel", "ack", "nack", "arrive", "one of two") == [
        *((end, "s", 1_000, 100_000, 99_000, 1, True, end) for end in ("ack", "arrive", "cancel", "nack")),
        ("one of two", "s", 1_000, 60_000, 59_000, 1, True, "cancel"),
        ("one of two", "s", 70_000, 80_000, 10_000, 1, True, "ack"),
    ]


def test_what_came_when_asked_again(found: Tables) -> None:
    """S3: a message that is back without a deadline is no longer due, and its lateness is invalid."""
    assert of_topics(found["starvation"], "again") == [("again", "s", 1_000, 31_020, 30_020, 1, True, "arrive")]
    assert of_topics(found["lateness"], "again", columns="delay_class attempt arrivals invalid late max_ms") == [
        ("0-1 s", 1, 11, 1, 0, 5)
    ]


def test_later_attempts_without_a_deadline(found: Tables) -> None:
    """S4: they are redeliveries with unknown lateness; first deliveries are not."""
    assert of_topics(found["lateness"], "later", columns="delay_class attempt arrivals invalid early late min_ms") == [
        ("unknown", 1, 1, 1, 0, 0, None),
        ("unknown", 2, 1, 1, 0, 0, None),
    ]


def test_what_comes_twice(found: Tables) -> None:
    """S5: all arrivals after a nack belong to its class, also if lines are there twice."""
    assert of_topics(found["lateness"], "twice", columns="delay_class attempt arrivals invalid max_ms") == [
        ("0-1 s", 1, 2, 0, 500),
        ("1-10 s", 1, 2, 0, 0),
    ]
    assert of_topics(found["starvation"], "twice") == []


def test_requests_stand_for_arrivals(spark: SparkSession) -> None:
    """In traces without arrivals the lateness is that of the requests, not of repeated requests.

    These only show that their consumer continues.
    """
    df = events(
        spark,
        {"event": "nack", "time_ms": 0, "entry": 1, "delay_ms": 100, "deadline_ms": 100},
        {"event": "redeliver", "time_ms": 103, "entry": 1, "deadline_ms": 100, "actual_ms": 103, "attempt": 1},
        {"event": "redeliver", "time_ms": 9_000, "entry": 1, "deadline_ms": 100, "actual_ms": 9_000, "attempt": 1,
         "reason": "asked again"},
        {"event": "nack", "time_ms": 0, "entry": 2, "delay_ms": 200, "deadline_ms": 200},
    )  # fmt: skip
    found = pipeline.accuracy(df, event="redeliver")
    (row,) = found.lateness.collect()
    assert (row.arrivals, row.delay_class, row.max_ms) == (1, "0-1 s", 3)
    assert of_topics(found.starvation.collect(), "t") == [("t", "s", 200, 9_000, 8_800, 1, False, None)]
    assert found.beyond.collect() == []


@for_each(
    "wrong",
    [
        {"early": -1}, {"late": float("nan")}, {"starvation": 0}, {"delay_classes": []}, {"delay_classes": [10, 1]},
        {"percentiles": [50]}, {"percentiles": []}, {"event": "ack"}, {"late": 1e11},
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(spark: SparkSession, wrong: dict[str, Any]) -> None:
    """An argument out of range is refused by its name, before any work."""
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
        pipeline.accuracy(events(spark), **wrong)


def test_missing_columns_are_named(spark: SparkSession) -> None:
    """A DataFrame that is not a trace is refused with the columns."""
    with pytest.raises(
        InvalidArgumentError, match=r"missing or of another type: event, time_ms.*got the columns id bigint"
    ):
        pipeline.accuracy(spark.range(1))
