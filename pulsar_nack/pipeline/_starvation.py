"""Spans in which something was due and nothing was redelivered.

Millions of events are first counted in slices of time, an eighth of the shortest span that is looked for; what is left
is small. Over the slices of a subscription, in order, runs the number of nacks that are due: it rises at deadlines and
falls when the message comes back, its nack is cancelled or it is nacked anew. Between two redeliveries lies a span if
that number is not 0; it begins at the earlier one, or when the first became due since.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

_SLICES: Final = 8
_GROUP: Final = ("topic", "subscription")


def slice_ms(shortest_ms: int) -> int:
    """Return how long a slice is."""
    return max(1, shortest_ms // _SLICES)


def starvation_windows(slices: DataFrame, shortest_ms: int) -> DataFrame:
    """Return topic, subscription, from_ms, to_ms, length_ms, due, is_over; slices are of :func:`slice_ms`."""
    spans = _spans(slices).where(sf.col("to_ms") - sf.col("from_ms") >= shortest_ms)
    length = (sf.col("to_ms") - sf.col("from_ms")).alias("length_ms")
    return spans.select(*_GROUP, "from_ms", "to_ms", length, "due", "is_over")


def _spans(slices: DataFrame) -> DataFrame:
    order = Window.partitionBy(*_GROUP).orderBy("slice")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    everything = Window.partitionBy(*_GROUP)
    counted = slices.select(
        *_GROUP, "slice", "first_active", "last_active",
        sf.coalesce(sf.sum(sf.col("became_due") - sf.col("done")).over(before), sf.lit(0)).alias("due_before"),
        sf.sum(sf.col("became_due") - sf.col("done")).over(so_far).alias("due_after"),
        "first_due",
        sf.max("last_seen").over(everything).alias("end_ms"),
    ).where(sf.coalesce("first_active", "first_due", sf.lit(0)) <= sf.col("end_ms"))  # fmt: skip
    rose = sf.when((sf.col("due_before") <= 0) & (sf.col("due_after") > 0), sf.col("first_due"))
    marks = ("rose", "last_active")
    known = counted.withColumn("rose", rose).select(
        "*",
        sf.greatest(*(sf.last(name, ignorenulls=True).over(before) for name in marks)).alias("since"),
        sf.greatest(*(sf.last(name, ignorenulls=True).over(so_far) for name in marks)).alias("until_end"),
        sf.lead("slice").over(order).isNull().alias("is_last"),
    )
    ended = sf.struct(
        sf.col("since").alias("from_ms"), sf.col("first_active").alias("to_ms"),
        sf.col("due_before").alias("due"), sf.lit(col=True).alias("is_over"),
    )  # fmt: skip
    lasting = sf.struct(
        sf.col("until_end").alias("from_ms"), sf.col("end_ms").alias("to_ms"),
        sf.col("due_after").alias("due"), (~sf.col("is_last")).alias("is_over"),
    )  # fmt: skip
    spans = sf.filter(
        sf.array(sf.when(sf.col("first_active").isNotNull(), ended), sf.when(sf.col("is_last"), lasting)),
        lambda span: span.isNotNull() & (span["due"] > 0),
    )
    return known.select(*_GROUP, sf.inline(spans))
