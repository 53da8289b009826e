"""Events of one message side by side: which nack an arrival answers, and what ended a nack.

Events are put in order for each message by one shuffle and one sort, on a hash of its identity; ledger and entry stand
beside the hash, so that two messages never meet. Within a message the order is that of wall time, then of monotonic
time, of the attempt and of the kind of event (:class:`Code`). This is what most of the time goes to: rows are few and
narrow before it, and what only ends a nack brings no names along.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window, WindowSpec

from .schemas import IDENTITY, MAX_TIME_MS

MESSAGE: Final = "_message"
CODE: Final = "code"
DEAD_LETTER: Final = "dead-letter"
"""The reason of the acknowledgement of a message that is in the dead-letter topic."""

_HELD_NACKS: Final = ("busy batch mates", "no room")
"""Why a nack was held, or a nacked message; other holds are of what arrived."""


class Code(IntEnum):
    """The kinds of events as numbers, in the order of those that are otherwise at the same place."""

    ARRIVE = 0
    HOLD = 1
    HELD_NACK = 2
    ERROR = 3
    NACK = 4
    REDELIVER = 5
    CANCEL = 6
    DEAD_LETTER = 7
    ACK = 8


def code() -> Column:
    """Return the :class:`Code` of an event."""
    event, reason = sf.col("event"), sf.col("reason")
    found = sf.when(event == "nack", int(Code.NACK))
    for kind in (Code.ARRIVE, Code.REDELIVER, Code.CANCEL, Code.ERROR):
        found = found.when(event == kind.name.lower(), int(kind))
    found = found.when((event == "ack") & reason.eqNullSafe(DEAD_LETTER), int(Code.DEAD_LETTER))
    found = found.when(event == "ack", int(Code.ACK))
    return found.when(reason.isin(*_HELD_NACKS), int(Code.HELD_NACK)).otherwise(int(Code.HOLD)).alias(CODE)


def message_hash() -> Column:
    """Return the hash of a message's identity, a long."""
    return sf.xxhash64(*IDENTITY)


def by_message() -> WindowSpec:
    """Return the window of a message's events; needs the columns :data:`MESSAGE` and :data:`CODE`."""
    return Window.partitionBy(MESSAGE, "ledger", "entry").orderBy("time_ms", "mono_ns", "attempt", CODE)


def with_nacks(traces: DataFrame, answer: str) -> DataFrame:
    """Return the nacks and redeliveries, each with its neighbours.

    A redelivery is an ``answer`` with a deadline or of a later attempt than the first; a request is one in any case.

    The columns are topic, subscription, ``is_nack``, ``time_ms``, attempt, ``deadline_ms`` and ``consumer`` of a nack,
    ``ms``, the lateness of a redelivery, ``asked_ms``, the delay that the message's last nack before asked for,
    ``ended_ms`` and ``ended_by``, when the message's next event was that ends a nack, null where there is none.

    :param answer: the event that answers a nack, ``arrive`` or ``redeliver``
    """
    event = sf.col("event")
    is_nack = event == "nack"
    is_answer = event == answer
    if answer == "arrive":
        is_answer = is_answer & (sf.col("deadline_ms").isNotNull() | (sf.col("attempt") > 0))
    is_shown = is_nack | is_answer
    events = traces.where(event.isin(*{"nack", "arrive", "ack", "cancel", answer})).select(
        *(sf.when(is_shown, sf.col(name)).alias(name) for name in ("topic", "subscription")),
        *("ledger", "entry", "time_ms", "mono_ns", "attempt"),
        sf.when(is_nack, sf.col("consumer")).alias("consumer"),
        sf.when(is_nack, sf.col("delay_ms")).alias("delay_ms"),
        sf.when(is_nack, sf.col("deadline_ms")).otherwise(lateness()).alias("deadline_or_late_ms"),
        sf.when(is_shown, is_nack).alias("is_nack"),
        code(),
        message_hash().alias(MESSAGE),
    )
    order = by_message()
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    known = sf.col("deadline_or_late_ms")
    found = events.select(
        *("topic", "subscription", "is_nack", "time_ms", "attempt", "consumer"),
        sf.when(sf.col("is_nack"), known).alias("deadline_ms"),
        sf.when(~sf.col("is_nack"), known).alias("ms"),
        sf.last("delay_ms", ignorenulls=True).over(before).alias("asked_ms"),
        sf.lead("time_ms").over(order).alias("ended_ms"),
        sf.lead(CODE).over(order).alias("ended_by"),
    )
    return found.where(sf.col("is_nack").isNotNull())


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)
