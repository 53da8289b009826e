"""What the jobs over traces share: the kinds of events in their order, and hashes of a message and of its consumer.

One shuffle and one sort bring the events of each message together, by a hash of its identity. Spark sorts by that
single number, in a third of the time that a sort by several columns takes, which compares rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from .schemas import IDENTITY, MAX_TIME_MS

MESSAGE: Final = "_message"
GROUP: Final = ("topic", "subscription")
DEAD_LETTER: Final = "dead-letter"
"""The reason of an acknowledgement whose message went to the dead-letter topic."""


class Code(IntEnum):
    """The kinds of events, in the order that decides between events with equal times and attempts."""

    ARRIVE = 0
    HOLD = 1
    HELD_NACK = 2
    ERROR = 3
    NACK = 4
    REDELIVER = 5
    CANCEL = 6
    DEAD_LETTER = 7
    ACK = 8


def parsed_once(traces: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return these columns. The session keeps them unless Spark reads files itself, so lines are parsed once."""
    chosen = traces.select(*columns)
    return chosen if traces.is_cached or traces.inputFiles() else chosen.persist()


def with_sound_times(traces: DataFrame) -> DataFrame:
    """Drop events with impossible times, from traces that no reader has checked: sums would overflow."""
    return traces.where(sf.col("time_ms").between(0, MAX_TIME_MS))


def message_hash() -> Column:
    """Return the hash of a message's identity, a long."""
    # the hash of topic and subscription, as in source_hash: Spark computes it once for both
    return sf.xxhash64(sf.xxhash64(*GROUP), *(name for name in IDENTITY if name not in GROUP))


def source_hash() -> Column:
    """Return a hash of topic, subscription and consumer, a long: narrower than the names."""
    return sf.xxhash64(sf.xxhash64(*GROUP), "consumer")


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)
