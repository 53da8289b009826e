"""Finds spans in which messages were due and none was redelivered.

Millions of events are first counted in slices of time, each an eighth of the shortest reported span, which leaves few
rows. The running sum over the slices of a subscription is the number of nacks that are due: it rises at deadlines, and
falls when the message is redelivered, acknowledged or nacked again, when its nack is cancelled, or when its consumer's
trace ends. Nacks that are due within one slice only are not counted, so the number is right at the start of a slice.

A span is where that number is not 0. It begins at the last redelivery, or with the first deadline after nothing had
been due. It ends with the next redelivery, or when nothing is due any more.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from ._accuracy_counts import MOMENT
from ._messages import GROUP, Code

_SLICES: Final = 8
_ENDS: Final = {
    Code.ARRIVE: "arrive",
    Code.NACK: "nack",
    Code.REDELIVER: "redeliver",
    Code.CANCEL: "cancel",
    Code.ACK: "ack",
}


def slice_ms(shortest_ms: int) -> int:
    """Return the length of a slice."""
    return max(1, shortest_ms // _SLICES)


def starvation_windows(slices: DataFrame, shortest_ms: int, answer: str) -> DataFrame:
    """Return topic, subscription, from_ms, to_ms, length_ms, due, is_over, ended_by; slices are of :func:`slice_ms`."""
    order = Window.partitionBy(*GROUP).orderBy("slice")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    change = sf.col("became_due") - sf.col("done")
    counted = slices.select(
        *GROUP, "slice", "first_due", "last_ended", "first_active", "last_active",
        sf.coalesce(sf.sum(change).over(before), sf.lit(0)).alias("due"),
        sf.sum(change).over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow)).alias("due_after"),
    )  # fmt: skip
    rose = sf.when((sf.col("due") == 0) & (sf.col("due_after") > 0), sf.col("first_due"))
    since = [sf.last(each, ignorenulls=True).over(before) for each in (sf.col("rose"), sf.col("last_active"))]
    known = counted.withColumn("rose", rose).withColumn("from_ms", sf.greatest(*since))
    is_answered = sf.col("first_active").isNotNull()
    ends = known.where((sf.col("due") > 0) & (is_answered | (sf.col("due_after") == 0)))
    last = sf.col("last_ended")
    spans = ends.select(
        *GROUP,
        "from_ms",
        sf.coalesce("first_active", sf.floor(last / MOMENT)).alias("to_ms"),
        "due",
        sf.when(is_answered, sf.lit(answer)).otherwise(_ended_by(last % MOMENT)).alias("ended_by"),
    )
    length = sf.col("to_ms") - sf.col("from_ms")
    found = spans.where(length >= shortest_ms)
    is_over = sf.col("ended_by").isNotNull().alias("is_over")
    return found.select(*GROUP, "from_ms", "to_ms", length.alias("length_ms"), "due", is_over, "ended_by")


def _ended_by(code: Column) -> Column:
    """Return the event of a moment; null if the trace ended."""
    found = sf.lit(None).cast("string")
    for each, name in _ENDS.items():
        found = sf.when(code == each + 1, name).otherwise(found)
    return found
