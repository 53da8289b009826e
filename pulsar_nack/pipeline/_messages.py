"""Events of one message side by side: which nack an arrival answers, and what ended a nack.

Events are put in order for each message by one shuffle and one sort, on a hash of its identity; ledger and entry stand
beside the hash, so that two messages never meet. Within a message the order is that of wall time, then of monotonic
time, of the attempt and of the kind of event (:class:`Code`). This is what most of the time goes to: rows are few and
narrow before it, and hashes stand for names.
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
WHAT: Final = "what"
"""A column: attempt, :class:`Code` and :class:`Kind` as one number, ``(attempt * CODES + code) * KINDS + kind``."""

CODES: Final = 16
KINDS: Final = 4
GROUP: Final = ("topic", "subscription")
DEAD_LETTER: Final = "dead-letter"
"""The reason of the acknowledgement of a message that is in the dead-letter topic."""

_HELD_NACKS: Final = ("busy batch mates", "no room")
"""Why a nack was held, or a nacked message; other holds are of what arrived."""


UNKNOWN: Final = -(2**63)


class Kind(IntEnum):
    """What an event is beside a nack."""

    END = 0
    NACK = 1
    REDELIVERY = 2


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
    found = found.when((event == "hold") & reason.isin(*_HELD_NACKS), int(Code.HELD_NACK))
    return found.when(event == "hold", int(Code.HOLD)).alias(CODE)


def with_sound_times(traces: DataFrame) -> DataFrame:
    """Leave out events whose time cannot be, of traces that no reader has checked: sums of such would overflow."""
    return traces.where(sf.col("time_ms").between(0, MAX_TIME_MS))


def message_hash() -> Column:
    """Return the hash of a message's identity, a long."""
    return sf.xxhash64(*IDENTITY)


def by_message() -> WindowSpec:
    """Return the window of a message's events; needs the columns :data:`MESSAGE` and :data:`CODE`."""
    return Window.partitionBy(MESSAGE, "ledger", "entry").orderBy("time_ms", "mono_ns", "attempt", CODE)


def nacks_and_ends(traces: DataFrame, answer: str) -> DataFrame:
    """Return nacks, redeliveries, and all else that ends a nack, in order within each message, in columns of numbers.

    A redelivery is an ``answer`` with a deadline or of a later attempt than the first; a request is one in any case.

    The columns are those of the message, ``time_ms``, :data:`WHAT`, ``group`` and ``consumer`` (hashes), ``delay_ms``
    of a nack and ``ms``: of a nack the deadline, of a redelivery the lateness. What is not known is :data:`UNKNOWN`,
    and for attempts -1.

    :param answer: the event that answers a nack, ``arrive`` or ``redeliver``
    """
    event = sf.col("event")
    is_nack = event == "nack"
    is_answer = event == answer
    if answer == "arrive":
        is_answer = is_answer & (sf.col("deadline_ms").isNotNull() | (sf.col("attempt") > 0))
    kind = sf.when(is_nack, int(Kind.NACK)).when(is_answer, int(Kind.REDELIVERY)).otherwise(int(Kind.END))
    attempt = sf.coalesce("attempt", sf.lit(-1)).cast("long")
    what = (attempt * CODES + code()) * KINDS + kind
    unknown = sf.lit(UNKNOWN)
    events = traces.where(event.isin(*{"nack", "arrive", "ack", "cancel", answer})).select(
        message_hash().alias(MESSAGE),
        *(sf.coalesce(name, sf.lit(-1)).alias(name) for name in ("ledger", "entry")),
        "time_ms",
        "mono_ns",
        what.alias(WHAT),
        group_hash().alias("group"),
        consumer_hash().alias("consumer"),
        sf.coalesce("delay_ms", unknown).alias("delay_ms"),
        sf.coalesce(sf.when(is_nack, sf.col("deadline_ms")).otherwise(lateness()), unknown).alias("ms"),
    )
    order = (MESSAGE, "ledger", "entry", "time_ms", "mono_ns", WHAT)
    return events.repartition(MESSAGE).sortWithinPartitions(*order).drop("mono_ns")


def group_hash() -> Column:
    """Return a hash of topic and subscription, a long: narrower than the names, and as good to tell them apart."""
    return sf.xxhash64(*GROUP)


def consumer_hash() -> Column:
    """Return a hash of the consumer's name, a long."""
    return sf.xxhash64("consumer")


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)
