"""Events of one message side by side: which nack an arrival answers, and what ended a nack.

Events are put in order for each message by one shuffle and one sort, on a hash of its identity; ledger and entry stand
beside the hash, so that two messages never meet. Within a message the order is that of wall time, and of monotonic
time where that is the same. This is what most of the time goes to: rows are few and narrow before it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window, WindowSpec

from .schemas import IDENTITY, MAX_TIME_MS

MESSAGE: Final = "_message"


def message_hash() -> Column:
    """Return the hash of a message's identity, a long."""
    return sf.xxhash64(*IDENTITY)


def by_message() -> WindowSpec:
    """Return the window of a message's events; needs the column :data:`MESSAGE`."""
    return Window.partitionBy(MESSAGE, "ledger", "entry").orderBy("time_ms", "mono_ns")


def with_nacks(traces: DataFrame, answer: str) -> DataFrame:
    """Return nacks, what answers them and cancellations, each with its neighbours.

    The columns are topic, subscription, ``is_nack``, ``is_answer``, time, attempt, deadline, actual time, ``asked_ms``,
    the delay of the nack before, ``was_due``, whether that nack was due by now, and ``ended_ms``, when the message's
    next event was, null where there is none.

    :param answer: the event that answers a nack; those of it without a deadline are first deliveries, and left out
    """
    event = sf.col("event")
    is_answer = (event == answer) & sf.col("deadline_ms").isNotNull()
    columns = ["topic", "subscription", "time_ms", "mono_ns", "ledger", "entry", "attempt", "delay_ms"]
    events = traces.where(event.isin("nack", "cancel") | is_answer).select(
        *columns,
        "deadline_ms",
        "actual_ms",
        (event == "nack").alias("is_nack"),
        (event == answer).alias("is_answer"),
        message_hash().alias(MESSAGE),
    )
    order = by_message()
    was_nack = sf.lag("is_nack").over(order)
    asked = sf.when(was_nack, sf.lag("delay_ms").over(order))
    was_due = was_nack & (sf.lag("deadline_ms").over(order) <= sf.col("time_ms"))
    return events.select(
        *("topic", "subscription", "is_nack", "is_answer", "time_ms", "attempt", "deadline_ms", "actual_ms"),
        sf.coalesce("delay_ms", asked).alias("asked_ms"),
        sf.coalesce(was_due, sf.lit(col=False)).alias("was_due"),
        sf.lead("time_ms").over(order).alias("ended_ms"),
    )


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)
