"""What is counted of millions of events, in one pass: lateness by class, and what went on in slices of time.

Both come from one shuffle of the events; what is left is small, and kept until the tables made of it are done with.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

HISTOGRAM: Final = ("group", "delay_class", "attempt", "ms")
MOMENT: Final = 16
"""A moment is a time in ms times this, and the code of what happened then and one more: 0 if only the trace ended."""

_FACT: Final = {
    "delay_class": "int",
    "attempt": "int",
    "ms": "long",
    "slice": "long",
    "consumer": "long",
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
    facts = nacks.select("group", sf.inline(_facts(delay_class, slice_ms)))
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
    """Return group, delay_class, attempt, lateness in ``ms`` and the number ``n`` of such arrivals."""
    return counted.where(sf.col("slice").isNull()).select(*HISTOGRAM, "n")


def slices(counted: DataFrame, ends: DataFrame, slice_ms: int) -> DataFrame:
    """Return for each group and slice of time how many became due and ended, and when the first and last.

    :param ends: when the trace of each ``consumer`` ends, ``end_ms``; by the hash of its name
    """
    columns = ("became_due", "done", "first_due", "last_ended", "first_active", "last_active")
    known = counted.where(sf.col("slice").isNotNull()).join(ends, "consumer", "left")
    last, none = sf.floor(sf.col("end_ms") / slice_ms), sf.lit(None).cast("long")
    gone = {"done": sf.col("became_due"), "last_ended": sf.col("end_ms") * MOMENT}
    here = sf.struct("slice", *columns)
    there = sf.struct(last.alias("slice"), *(gone.get(name, none).cast("long").alias(name) for name in columns))
    facts = sf.when(sf.col("consumer").isNull(), sf.array(here)).when(last > sf.col("slice"), sf.array(here, there))
    found = known.select("group", sf.inline(facts))
    return found.groupBy("group", "slice").agg(
        sf.coalesce(sf.sum("became_due"), sf.lit(0)).alias("became_due"),
        sf.coalesce(sf.sum("done"), sf.lit(0)).alias("done"),
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
    left = _fact(slice=slice_of(deadline), due=deadline, consumer=sf.col("consumer"))
    return (
        sf.when(~is_nack, sf.array(late, active))
        .when(deadline.isNotNull() & (slice_of(ended) > slice_of(deadline)), sf.array(due, done))
        .when(deadline.isNotNull() & ended.isNull(), sf.array(left))
    )


def _fact(**values: Column) -> Column:
    nothing = sf.lit(None)
    fields = (values.get(name, nothing).cast(kind).alias(name) for name, kind in _FACT.items())
    return sf.struct(*fields)
