"""What is counted of millions of events, in one pass: lateness by class, and what went on in slices of time.

Both come from one shuffle of the events; what is left is small, and kept until the tables made of it are done with.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from ._messages import lateness

HISTOGRAM: Final = ("topic", "subscription", "delay_class", "attempt", "ms")
SLICE: Final = ("topic", "subscription", "slice")
_FACT: Final = {
    "delay_class": "string",
    "attempt": "int",
    "ms": "long",
    "slice": "long",
    "first_due": "long",
    "is_done": "boolean",
    "active": "long",
    "seen": "long",
}


def counts(nacks: DataFrame, delay_class: Column, slice_ms: int) -> DataFrame:
    """Return rows of two kinds: with a ``slice`` those of :func:`slices`, without one those of :func:`histogram`.

    :param nacks: as ``with_nacks`` gives them
    :param slice_ms: the length of a slice
    """
    facts = nacks.select("topic", "subscription", sf.inline(_facts(delay_class, slice_ms)))
    return facts.groupBy(*HISTOGRAM, "slice").agg(
        sf.count("*").alias("n"),
        sf.count("first_due").alias("became_due"),
        sf.count_if("is_done").alias("done"),
        sf.min("first_due").alias("first_due"),
        sf.min("active").alias("first_active"),
        sf.max("active").alias("last_active"),
        sf.max("seen").alias("last_seen"),
    )


def histogram(counted: DataFrame) -> DataFrame:
    """Return topic, subscription, delay_class, attempt, lateness in ``ms`` and the number ``n`` of such arrivals."""
    return counted.where(sf.col("slice").isNull()).select(*HISTOGRAM, "n")


def slices(counted: DataFrame) -> DataFrame:
    """Return for each subscription and slice of time: how many became due and ended, and when the first and last."""
    columns = ("became_due", "done", "first_due", "first_active", "last_active", "last_seen")
    return counted.where(sf.col("slice").isNotNull()).select(*SLICE, *columns)


def _facts(delay_class: Column, slice_ms: int) -> Column:
    """Return what an event tells: that something was done at its time, is due at its deadline, how late it came."""
    time, deadline, ended, was_due = map(sf.col, ("time_ms", "deadline_ms", "ended_ms", "was_due"))

    def in_slice(at: Column, **values: Column) -> Column:
        return _fact(slice=sf.floor(at / slice_ms), seen=time, **values)

    becomes_due = sf.col("is_nack") & deadline.isNotNull() & (ended.isNull() | (ended >= deadline))
    due = in_slice(deadline, first_due=deadline)
    here = in_slice(time, is_done=was_due)
    late = _fact(delay_class=delay_class, attempt=sf.col("attempt"), ms=lateness())
    return (
        sf.when(sf.col("is_answer"), sf.array(late, in_slice(time, is_done=was_due, active=time)))
        .when(becomes_due & was_due, sf.array(here, due))
        .when(becomes_due, sf.array(due))
        .otherwise(sf.array(here))
    )


def _fact(**values: Column) -> Column:
    nothing = sf.lit(None)
    fields = (values.get(name, nothing).cast(kind).alias(name) for name, kind in _FACT.items())
    return sf.struct(*fields)
