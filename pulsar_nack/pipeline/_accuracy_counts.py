"""What is counted of millions of events, in one pass: lateness by class, and what went on in slices of time.

Both come from one shuffle of the events; what is left is small, and kept until the tables made of it are done with.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

HISTOGRAM: Final = ("topic", "subscription", "delay_class", "attempt", "ms")
SLICE: Final = ("topic", "subscription", "slice")
MOMENT: Final = 16
"""A moment is a time in ms times this, and the code of what happened then and one more: 0 if only the trace ended."""

_FACT: Final = {
    "delay_class": "string",
    "attempt": "int",
    "ms": "long",
    "slice": "long",
    "consumer": "string",
    "due": "long",
    "ended": "long",
    "active": "long",
}


def counts(nacks: DataFrame, delay_class: Column, slice_ms: int) -> DataFrame:
    """Return rows of three kinds: without a ``slice`` those of :func:`histogram`, with one what went on in it.

    Those with a ``consumer`` too are of nacks that nothing ended: when its trace ends is not known here.

    :param nacks: as ``with_nacks`` gives them
    :param slice_ms: the length of a slice
    """
    facts = nacks.select("topic", "subscription", sf.inline(_facts(delay_class, slice_ms)))
    return facts.groupBy(*HISTOGRAM, "slice", "consumer").agg(
        sf.count("*").alias("n"),
        sf.count("due").alias("became_due"),
        sf.count("ended").alias("done"),
        sf.min("due").alias("first_due"),
        sf.max("ended").alias("last_ended"),
        sf.min("active").alias("first_active"),
        sf.max("active").alias("last_active"),
    )


def histogram(counted: DataFrame) -> DataFrame:
    """Return topic, subscription, delay_class, attempt, lateness in ``ms`` and the number ``n`` of such arrivals."""
    return counted.where(sf.col("slice").isNull()).select(*HISTOGRAM, "n")


def slices(counted: DataFrame, ends: DataFrame, slice_ms: int) -> DataFrame:
    """Return for each subscription and slice of time how many became due and ended, and when the first and last.

    :param ends: when the trace of each ``consumer`` ends, ``end_ms``
    """
    columns = ("became_due", "done", "first_due", "last_ended", "first_active", "last_active")
    known = counted.where(sf.col("slice").isNotNull())
    last = sf.floor(sf.col("end_ms") / slice_ms)
    left = known.where(sf.col("consumer").isNotNull()).join(ends, "consumer").where(last > sf.col("slice"))
    none = sf.lit(None).cast("long")
    gone = {
        "became_due": sf.lit(0),
        "done": sf.col("became_due"),
        "first_due": none,
        "last_ended": sf.col("end_ms") * MOMENT,
    }
    both = left.select(
        "topic",
        "subscription",
        sf.inline(
            sf.array(
                sf.struct(sf.col("slice").alias("slice"), *columns),
                sf.struct(last.alias("slice"), *(gone.get(name, none).cast("long").alias(name) for name in columns)),
            )
        ),
    )
    found = known.where(sf.col("consumer").isNull()).select(*SLICE, *columns).unionByName(both)
    return found.groupBy(*SLICE).agg(
        sf.sum("became_due").alias("became_due"),
        sf.sum("done").alias("done"),
        sf.min("first_due").alias("first_due"),
        sf.max("last_ended").alias("last_ended"),
        sf.min("first_active").alias("first_active"),
        sf.max("last_active").alias("last_active"),
    )


def _facts(delay_class: Column, slice_ms: int) -> Column:
    """Return what an event tells: how late it came and that something did, or from when to when it was due."""
    time, deadline, ended, is_nack = map(sf.col, ("time_ms", "deadline_ms", "ended_ms", "is_nack"))

    def slice_of(at: Column) -> Column:
        return sf.floor(at / slice_ms)

    late = _fact(delay_class=delay_class, attempt=sf.col("attempt"), ms=sf.col("ms"))
    active = _fact(slice=slice_of(time), active=time)
    due = _fact(slice=slice_of(deadline), due=deadline)
    done = _fact(slice=slice_of(ended), ended=ended * MOMENT + sf.col("ended_by") + 1)
    left = _fact(slice=slice_of(deadline), due=deadline, consumer=sf.coalesce("consumer", sf.lit("")))
    return (
        sf.when(~is_nack, sf.array(late, active))
        .when(deadline.isNotNull() & (slice_of(ended) > slice_of(deadline)), sf.array(due, done))
        .when(deadline.isNotNull() & ended.isNull(), sf.array(left))
    )


def _fact(**values: Column) -> Column:
    nothing = sf.lit(None)
    fields = (values.get(name, nothing).cast(kind).alias(name) for name, kind in _FACT.items())
    return sf.struct(*fields)
