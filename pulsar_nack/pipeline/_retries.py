"""The job ``retries``: the chain of each message, its outcome, and its cost."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from ._jobs import (
    DEAD_LETTER,
    GROUP,
    MESSAGE,
    Code,
    at_least,
    message_hash,
    milliseconds,
    parsed_once,
    require_columns,
    with_sound_times,
)
from .schemas import IDENTITY, TRACE

_NEEDED: Final = [name for name in TRACE.fieldNames() if name not in {"v", "consumer", "deadline_ms", "actual_ms"}]
DEAD: Final = "dead letter"
ACKED: Final = "acked"
OPEN: Final = "open"
_MOST: Final = 2**63 - 1
_HELD_NACKS: Final = ("busy batch mates", "no room")
"""Reasons for which a nack or a nacked message is held; all other holds are of arrivals."""
_CODE: Final = "code"
_USEFUL: Final = "useful"
"""Column: how many arrivals of a message were followed by an acknowledgement."""
_IS_DEAD: Final = "is_dead"
_REASON: Final = "reason_hash"
"""Column: the hash of the reason of a nack, or of a message's last nack; null without a nack."""


class Retries(NamedTuple):
    """The result of :func:`retries`: six DataFrames. Nothing is computed before one of them is used.

    Most are made of the same rows, one for each message, which the session keeps (``persist``, in memory and on disk)
    after the first use. It also keeps events that Spark does not read from files itself, such as those of
    ``read_traces``, so lines are parsed once. ``spark.catalog.clearCache()`` drops both.

    ``chains``, a row for each message that was nacked: its identity, ``outcome`` (``acked``, else ``dead letter``, or
    ``open`` if the trace has neither), ``nacks``, ``redeliveries``, ``asked_again`` (repeated requests, after a failure
    or no answer), ``arrivals``, ``held`` (arrivals that the application did not get), ``after_ack`` (arrivals after its
    first acknowledgement), ``asked_ms`` (the sum of its delays), ``first_ms`` and ``last_ms`` of all its events.

    ``attempts``: for each topic, subscription, outcome and number of ``nacks`` the ``messages`` and the mean
    ``span_ms``. With the outcome ``acked``, one more than ``nacks`` is the number of attempts until success.

    ``poison``: the chains that were nacked often and not acked.

    ``storms``: spans of windows with far more nacks than before: topic, subscription, ``from_ms``, ``to_ms``,
    ``nacks``, ``peak`` (the most in a window), ``baseline`` (the mean number in the windows before the first) and
    ``began_before_trace`` (the trace begins in it, and the baseline is null).

    ``dead_letters``: for each topic, subscription and ``reason`` of the last nack, null if it has none, the
    ``messages`` that went to the dead-letter topic, including those that were also acknowledged.

    ``waste``: for each topic and subscription ``arrivals``, ``acked``, ``nacked``, ``held``, ``after_ack`` and
    ``wasted``, the share of arrivals that were not acknowledged before the next one.

    The documentation page ``pipeline/retries`` defines each column.
    """

    chains: DataFrame
    attempts: DataFrame
    poison: DataFrame
    storms: DataFrame
    dead_letters: DataFrame
    waste: DataFrame


def retries(
    df: DataFrame,
    *,
    poison_at: int = 5,
    window: float = 10.0,
    baseline: int = 30,
    factor: float = 5.0,
    min_nacks: int = 100,
) -> Retries:
    """Return how often messages were retried, and with which outcome.

    :param df: events with the schema ``TRACE``, as :func:`read_traces` gives them
    :param poison_at: the number of nacks from which an unacknowledged message is poison
    :param window: seconds of a window in which nacks are counted, to find storms
    :param baseline: how many earlier windows a window is compared with, including those without nacks; windows near the
        begin of the trace are compared with fewer, the first with none
    :param factor: a storm has this many times the nacks of the baseline
    :param min_nacks: a storm has at least this many nacks in a window
    :raises InvalidArgumentError: a column is missing, or an argument is out of range
    """
    require_columns(df, TRACE, _NEEDED)
    for name, value in (("poison_at", poison_at), ("baseline", baseline), ("factor", factor), ("min_nacks", min_nacks)):
        at_least(name, value, 1)
    window_ms = milliseconds("window", window, least=1)
    df = with_sound_times(parsed_once(df, _NEEDED))
    messages = _messages(df).persist()
    chains = messages.where(sf.col("nacks") > 0).drop(_USEFUL, _IS_DEAD, _REASON)
    return Retries(
        chains,
        _attempts(chains),
        chains.where((sf.col("nacks") >= poison_at) & (sf.col("outcome") != ACKED)),
        _storms(df, window_ms, baseline, factor, min_nacks),
        _dead_letters(messages, df),
        _waste(messages),
    )


def _messages(traces: DataFrame) -> DataFrame:
    """Return a row for each message."""
    delay, reason = (sf.when(sf.col("event") == "nack", value) for value in (sf.col("delay_ms"), _reason_hash()))
    of_nack = (delay.alias("delay_ms"), reason.alias(_REASON))
    message = message_hash().alias(MESSAGE)
    events = traces.select(*IDENTITY, "time_ms", "mono_ns", "attempt", *of_nack, _code(), message)
    kind = sf.col(_CODE)
    is_nack = kind == int(Code.NACK)
    is_ack = kind == int(Code.ACK)
    is_dead = kind == int(Code.DEAD_LETTER)
    is_acked = kind.isin(int(Code.ACK), int(Code.DEAD_LETTER))
    is_redelivery = kind == int(Code.REDELIVER)
    is_arrival = kind == int(Code.ARRIVE)
    by_message = Window.partitionBy(MESSAGE, *IDENTITY).orderBy("time_ms", "mono_ns", "attempt", _CODE, _REASON)
    before = by_message.rowsBetween(Window.unboundedPreceding, -1)

    def latest(*kinds: Code) -> Column:
        return sf.last(sf.when(kind.isin(*map(int, kinds)), kind), ignorenulls=True).over(before)

    ends = (Code.ARRIVE, Code.ACK, Code.DEAD_LETTER)
    reason_before = sf.coalesce(sf.last(_REASON, ignorenulls=True).over(before), sf.lit(0))
    is_again = is_redelivery & (latest(*ends, Code.NACK, Code.REDELIVER) == int(Code.REDELIVER))
    known = events.select(
        "*",
        sf.coalesce(sf.max(is_acked).over(before), sf.lit(col=False)).alias("was_acked"),
        sf.coalesce(is_again, sf.lit(col=False)).alias("is_again"),
        sf.coalesce(is_ack & (latest(*ends) == int(Code.ARRIVE)), sf.lit(col=False)).alias("is_useful"),
        sf.col(_REASON).bitwiseXOR(reason_before).alias("change"),
    )
    # only values of fixed size, which Spark updates in place: max_by of a reason takes as long as the rest
    found = known.groupBy(MESSAGE, *IDENTITY).agg(
        sf.when(sf.max(is_ack), ACKED).when(sf.max(is_dead), DEAD).otherwise(OPEN).alias("outcome"),
        sf.count_if(is_nack).alias("nacks"),
        sf.count_if(is_redelivery & ~sf.col("is_again")).alias("redeliveries"),
        sf.count_if("is_again").alias("asked_again"),
        sf.count_if(is_arrival).alias("arrivals"),
        sf.count_if(kind == int(Code.HOLD)).alias("held"),
        sf.count_if(is_arrival & sf.col("was_acked")).alias("after_ack"),
        sf.coalesce(sf.try_sum("delay_ms"), sf.when(sf.max("delay_ms").isNotNull(), _MOST), sf.lit(0)).alias(
            "asked_ms"
        ),
        sf.min("time_ms").alias("first_ms"),
        sf.max("time_ms").alias("last_ms"),
        sf.count_if("is_useful").alias(_USEFUL),
        sf.max(is_dead).alias(_IS_DEAD),
        sf.bit_xor("change").alias(_REASON),  # all changes together lead to the last one
    )
    return found.drop(MESSAGE)


def _code() -> Column:
    """Return the :class:`Code` of an event."""
    event, reason = sf.col("event"), sf.col("reason")
    found = sf.when(event == "nack", int(Code.NACK))
    for kind in (Code.ARRIVE, Code.REDELIVER, Code.CANCEL, Code.ERROR):
        found = found.when(event == kind.name.lower(), int(kind))
    found = found.when((event == "ack") & reason.eqNullSafe(DEAD_LETTER), int(Code.DEAD_LETTER))
    found = found.when(event == "ack", int(Code.ACK))
    found = found.when((event == "hold") & reason.isin(*_HELD_NACKS), int(Code.HELD_NACK))
    return found.when(event == "hold", int(Code.HOLD)).alias(_CODE)


def _attempts(chains: DataFrame) -> DataFrame:
    return chains.groupBy(*GROUP, "outcome", "nacks").agg(
        sf.count("*").alias("messages"), sf.avg(sf.col("last_ms") - sf.col("first_ms")).alias("span_ms")
    )


def _storms(traces: DataFrame, window_ms: int, baseline: int, factor: float, min_nacks: int) -> DataFrame:
    """Return storms. Windows are few for any number of nacks, so each subscription fits into one task."""
    number = sf.floor(sf.col("time_ms") / window_ms).alias("number")
    counted = traces.where(sf.col("event") == "nack").groupBy(*GROUP, number).agg(sf.count("*").alias("n"))
    order = Window.partitionBy(*GROUP).orderBy("number")
    place = sf.col("number") - sf.min("number").over(Window.partitionBy(*GROUP))
    seen = sf.least(place, sf.lit(baseline))
    before = sf.coalesce(sf.sum("n").over(order.rangeBetween(-baseline, -1)), sf.lit(0)) / seen
    after = sf.coalesce(sf.sum("n").over(order.rangeBetween(1, baseline)), sf.lit(0)) / baseline
    is_first = place == sf.row_number().over(order) - 1
    compared = counted.select(
        "*",
        sf.when(seen > 0, before).alias("baseline"),
        (is_first & (sf.col("n") >= min_nacks) & (sf.col("n") >= factor * after)).alias("is_high_at_first"),
    )
    is_leading = sf.min("is_high_at_first").over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    compared = compared.withColumn("is_leading", is_leading)
    is_high = (sf.col("n") >= min_nacks) & (sf.col("n") >= factor * sf.col("baseline"))
    high = compared.where(sf.col("is_leading") | sf.coalesce(is_high, sf.lit(col=False)))
    starts = sf.coalesce(sf.col("number") - sf.lag("number").over(order) > 1, sf.lit(col=True)).cast("long")
    storms = high.withColumn("starts", starts).withColumn("storm", sf.sum("starts").over(order))
    return storms.groupBy(*GROUP, "storm").agg(
        (sf.min("number") * window_ms).alias("from_ms"),
        ((sf.max("number") + 1) * window_ms).alias("to_ms"),
        sf.sum("n").alias("nacks"),
        sf.max("n").alias("peak"),
        sf.min_by("baseline", "number").alias("baseline"),
        sf.max("is_leading").alias("began_before_trace"),
    ).drop("storm")  # fmt: skip


def _dead_letters(messages: DataFrame, traces: DataFrame) -> DataFrame:
    """Count dead letters by the reason of the last nack; null if it has none, or the trace has no nack."""
    reasons = traces.where(sf.col("event") == "nack").select(_reason_hash(), "reason").distinct()
    counted = messages.where(_IS_DEAD).groupBy(*GROUP, _REASON).agg(sf.count("*").alias("messages"))
    named = counted.join(reasons, _REASON, "left").groupBy(*GROUP, "reason")
    return named.agg(sf.sum("messages").alias("messages"))


def _reason_hash() -> Column:
    return sf.xxhash64("reason").alias(_REASON)


def _waste(messages: DataFrame) -> DataFrame:
    arrivals = sf.sum("arrivals")
    return messages.groupBy(*GROUP).agg(
        arrivals.alias("arrivals"),
        sf.count_if(sf.col("outcome") == ACKED).alias("acked"),
        sf.sum("nacks").alias("nacked"),
        sf.sum("held").alias("held"),
        sf.sum("after_ack").alias("after_ack"),
        sf.when(arrivals > 0, 1 - sf.sum(_USEFUL) / arrivals).alias("wasted"),
    )
