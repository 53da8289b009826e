"""The job ``accuracy``: how early and late messages came back, and when messages were due but none came.

To find spans in which messages were due and none was redelivered, millions of events are first counted in slices of
time, each an eighth of the shortest reported span, which leaves few rows. The running sum over the slices of a
subscription is the number of nacks that are due: it rises at deadlines, and falls when the message is redelivered,
acknowledged or nacked again, when its nack is cancelled, or when its consumer's trace ends. Nacks that are due within
one slice only are not counted, so the number is right at the start of a slice.

A span is where that number is not 0. It begins at the last redelivery, or with the first deadline after nothing had
been due. It ends with the next redelivery, or when nothing is due any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from ..errors import InvalidArgumentError
from ._accuracy_counts import MOMENT, counts, histogram, nacks_and_ends, slices
from ._jobs import GROUP, Code, lateness, milliseconds, parsed_once, require_columns, source_hash, with_sound_times
from .schemas import ASKED_AGAIN, IDENTITY, TRACE

DELAY_CLASSES: Final = (1.0, 10.0, 60.0, 600.0, 3_600.0)
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
UNKNOWN: Final = "unknown"
_SLICES: Final = 8
_ENDS: Final = (Code.ARRIVE, Code.NACK, Code.REDELIVER, Code.CANCEL, Code.ACK)
_KEY: Final = (*GROUP, "delay_class", "attempt")
_NEEDED: Final = [name for name in TRACE.fieldNames() if name != "v"]


class Accuracy(NamedTuple):
    """The result of :func:`accuracy`: three DataFrames. Nothing is computed before one of them is used.

    The first two share the counts of events, which are small and which the session keeps (``persist``) after the first
    use. Events that Spark does not read from files itself, such as those of ``read_traces``, are kept too, in memory
    and on disk, so lines are parsed once. ``spark.catalog.clearCache()`` drops both.

    ``lateness``, a row for each topic, subscription, class of delays and attempt (1: the first redelivery):

    - ``arrivals``; of these, ``invalid`` ones lack a time, or it is negative or beyond the year 9999
    - ``early`` and ``late``: beyond the bounds
    - ``min_ms``, ``mean_ms``, ``max_ms`` and the percentiles ``p50_ms``, ``p99_9_ms``...: exact, negative is early

    ``starvation``, a row for each span in which a nack was due and nothing was redelivered: ``topic``,
    ``subscription``, ``from_ms``, ``to_ms``, ``length_ms``, ``due`` (nacks due at its end), ``is_over`` (False: it
    lasts to the end of its consumer's trace) and ``ended_by``, the event that ended it (``arrive``, ``redeliver``,
    ``cancel``, ``ack`` or ``nack``). Accurate to an eighth of the shortest span that is reported.

    ``beyond``, a row for each arrival beyond the bounds: its identity, consumer, attempt, ``deadline_ms``,
    ``actual_ms``, ``lateness_ms``.

    The documentation page ``pipeline/accuracy`` defines each column.
    """

    lateness: DataFrame
    starvation: DataFrame
    beyond: DataFrame


def accuracy(
    df: DataFrame,
    *,
    early: float = 1.0,
    late: float = 1.0,
    starvation: float = 1.0,
    delay_classes: Sequence[float] = DELAY_CLASSES,
    percentiles: Sequence[float] = PERCENTILES,
    event: str = "arrive",
) -> Accuracy:
    """Return how accurately nacked messages came back.

    :param df: events with the schema ``TRACE``, as :func:`read_traces` gives them
    :param early: seconds before the deadline beyond which an arrival counts as early
    :param late: seconds after it beyond which one counts as late
    :param starvation: the shortest span without a redelivery that is reported, in seconds
    :param delay_classes: bounds of the classes of delays, in seconds, in order; a bound belongs to the class below. An
        arrival has the class of its message's last nack before it, or ``unknown`` if the trace has none
    :param event: ``arrive``, or ``redeliver``, the first request for redelivery, for traces without arrivals
    :raises InvalidArgumentError: a column is missing, or an argument is out of range
    """
    require_columns(df, TRACE, _NEEDED)
    if event not in {"arrive", "redeliver"}:
        raise InvalidArgumentError("event", event, "'arrive' or 'redeliver'")
    early_ms, late_ms = milliseconds("early", early), milliseconds("late", late)
    starved_ms = milliseconds("starvation", starvation, least=1)
    bounds_ms = _bounds(delay_classes)
    _check_percentiles(percentiles)
    df = with_sound_times(parsed_once(df, _NEEDED))
    sources = df.groupBy(*GROUP, "consumer").agg(sf.max("time_ms").alias("end_ms")).coalesce(1)
    if event == "redeliver":
        df = df.where(~(sf.col("event") == event) | ~sf.col("reason").eqNullSafe(ASKED_AGAIN))
    step = max(1, starved_ms // _SLICES)
    end = sf.max("end_ms").over(Window.partitionBy("consumer")).alias("end_ms")
    names = sources.select(source_hash().alias("source"), *GROUP, end)
    counted = counts(nacks_and_ends(df, event, bounds_ms), names, len(bounds_ms) + 2, step).persist()
    lateness = _lateness(histogram(counted), percentiles, early_ms, late_ms)
    figures = [name for name in lateness.columns if name not in _KEY]
    return Accuracy(
        lateness.select(*GROUP, _class_name(delay_classes), "attempt", *figures),
        _starvation(slices(counted, step), starved_ms, event),
        _beyond(df.where(sf.col("event") == event), early_ms, late_ms),
    )


def _lateness(histogram: DataFrame, percentiles: Sequence[float], early_ms: int, late_ms: int) -> DataFrame:
    """Return the statistics of a histogram, which reduces millions of rows to few and keeps percentiles exact."""
    ms, n = sf.col("ms"), sf.col("n")
    none = sf.lit(0).cast("long")
    at = sf.percentile(ms, [float(each) for each in percentiles], n)
    found = histogram.groupBy(*_KEY).agg(
        sf.sum(n).alias("arrivals"),
        sf.sum(sf.when(ms.isNull(), n).otherwise(none)).alias("invalid"),
        sf.sum(sf.when(ms < -early_ms, n).otherwise(none)).alias("early"),
        sf.sum(sf.when(ms > late_ms, n).otherwise(none)).alias("late"),
        sf.min(ms).alias("min_ms"),
        (sf.sum(ms.cast("double") * n) / sf.sum(sf.when(ms.isNotNull(), n))).alias("mean_ms"),
        at.alias("at"),
        sf.max(ms).alias("max_ms"),
    )
    names = [sf.col("at")[place].alias(_percentile_name(each)) for place, each in enumerate(percentiles)]
    return found.select(*_KEY, "arrivals", "invalid", "early", "late", "min_ms", "mean_ms", *names, "max_ms")


def _starvation(slices: DataFrame, shortest_ms: int, answer: str) -> DataFrame:
    """Return topic, subscription, from_ms, to_ms, length_ms, due, is_over, ended_by."""
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
    for each in _ENDS:
        found = sf.when(code == each + 1, each.name.lower()).otherwise(found)
    return found


def _beyond(arrivals: DataFrame, early_ms: int, late_ms: int) -> DataFrame:
    ms = lateness().alias("lateness_ms")
    found = arrivals.select(*IDENTITY, "consumer", "attempt", "deadline_ms", "actual_ms", ms)
    is_beyond = (sf.col("lateness_ms") < -early_ms) | (sf.col("lateness_ms") > late_ms)
    return found.where(is_beyond)


def _percentile_name(share: float) -> str:
    return f"p{share * 100:.10g}_ms".replace(".", "_")


def _check_percentiles(shares: Sequence[float]) -> None:
    if not shares or not all(0 <= share <= 1 for share in shares) or len({*shares}) < len(shares):
        raise InvalidArgumentError("percentiles", shares, "different shares from 0 to 1")


def _bounds(bounds: Sequence[float]) -> list[int]:
    """Return the bounds of the delay classes in ms, after a check."""
    limits = [milliseconds("delay_classes", bound) for bound in bounds]
    if not limits or any(low >= high for low, high in pairwise(limits)):
        raise InvalidArgumentError("delay_classes", bounds, "bounds in ascending order")
    return limits


def _class_name(bounds: Sequence[float]) -> Column:
    """Return the name of a delay class: ``0-1 s``, ``1-10 s``, ``over 10 s``, ``unknown``."""
    edges = ["0", *(f"{bound:g}" for bound in bounds)]
    names = [f"{low}-{high} s" for low, high in pairwise(edges)] + [f"over {edges[-1]} s"]
    number = sf.col("delay_class")
    found = sf.when(number < 0, UNKNOWN)
    for place, name in enumerate(names):
        found = found.when(number == place, name)
    return found.alias("delay_class")
