"""Brings the events of each message together: which nack an arrival answers, and which event ended a nack.

One shuffle and one sort bring the events of each message together, by a hash of its identity; some bits of a second
hash distinguish messages whose first hashes are equal. Spark sorts by that single number, in a third of the time that a
sort by several columns takes, which compares rows. Workers then sort the events of each message by wall time, monotonic
time, attempt and kind of event (:class:`Code`). The shuffle takes most of the time, so rows are filtered and narrowed
before it, with hashes instead of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from .schemas import IDENTITY, MAX_TIME_MS

MESSAGE: Final = "_message"
CODE: Final = "code"
WHAT: Final = "what"
"""A column: attempt, :class:`Code`, :class:`Kind`, delay class and a part of a hash; see :func:`nacks_and_ends`."""

CODES: Final = 16
KINDS: Final = 4
GROUP: Final = ("topic", "subscription")
DEAD_LETTER: Final = "dead-letter"
"""The reason of an acknowledgement whose message went to the dead-letter topic."""

_HELD_NACKS: Final = ("busy batch mates", "no room")
"""Reasons for which a nack or a nacked message is held; all other holds are of arrivals."""


UNKNOWN: Final = -(2**63)


class Kind(IntEnum):
    """The role of an event for a nack: the nack itself, its redelivery, or another end."""

    END = 0
    NACK = 1
    REDELIVERY = 2


class Code(IntEnum):
    """The kinds of events, in the order that decides between events with equal times and attempts."""

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


def parsed_once(traces: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return these columns. The session keeps them unless Spark reads files itself, so lines are parsed once."""
    chosen = traces.select(*columns)
    return chosen if traces.is_cached or traces.inputFiles() else chosen.persist()


def with_sound_times(traces: DataFrame) -> DataFrame:
    """Drop events with impossible times, from traces that no reader has checked: sums would overflow."""
    return traces.where(sf.col("time_ms").between(0, MAX_TIME_MS))


def message_hash() -> Column:
    """Return the hash of a message's identity, a long."""
    # the hash of topic and subscription, as in source_hash: Spark computes it once for both
    return sf.xxhash64(sf.xxhash64(*GROUP), *(name for name in IDENTITY if name not in GROUP))


def nacks_and_ends(traces: DataFrame, answer: str, bounds_ms: Sequence[int]) -> DataFrame:
    """Return nacks, redeliveries and all other events that end a nack, sorted by message, as numbers only.

    An arrival is a redelivery if it has a deadline or is not a first attempt; with ``redeliver`` every request is one.

    The columns are :data:`MESSAGE`, a hash of the message, ``time_ms``, ``mono_ns``, ``source`` (:func:`source_hash`),
    ``ms``, the deadline of a nack or the lateness of a redelivery, and :data:`WHAT`. The lower :func:`what_bits` of
    that are ``(((attempt + 1) * CODES + code) * KINDS + kind) * classes + class``, the upper ones part of a second hash
    of the message. Unknown values are :data:`UNKNOWN`, and -1 for attempts. The class of a nack with a delay is 1 plus
    the number of bounds below the delay, that of all other events 0; there are ``len(bounds_ms) + 2`` classes.

    :param answer: the event that answers a nack, ``arrive`` or ``redeliver``
    :param bounds_ms: the bounds of the delay classes, in order
    """
    event = sf.col("event")
    is_nack = event == "nack"
    is_answer = event == answer
    if answer == "arrive":
        is_answer = is_answer & (sf.col("deadline_ms").isNotNull() | (sf.col("attempt") > 0))
    kind = sf.when(is_nack, int(Kind.NACK)).when(is_answer, int(Kind.REDELIVERY)).otherwise(int(Kind.END))
    number = sf.when(is_nack, int(Code.NACK)).when(event == "arrive", int(Code.ARRIVE))
    number = number.when(event == "ack", int(Code.ACK)).when(event == "redeliver", int(Code.REDELIVER))
    number = number.otherwise(int(Code.CANCEL))
    classes = len(bounds_ms) + 2
    attempts = sf.greatest(sf.coalesce("attempt", sf.lit(-1)), sf.lit(-1)).cast("long") + 1
    what = ((attempts * CODES + number) * KINDS + kind) * classes + _delay_class(is_nack, bounds_ms)
    entry_hash = sf.xxhash64(*(sf.coalesce(name, sf.lit(-1)) for name in ("ledger", "entry")))
    unknown = sf.lit(UNKNOWN)
    events = traces.where(event.isin(*{"nack", "arrive", "ack", "cancel", answer})).select(
        message_hash().alias(MESSAGE),
        "time_ms",
        sf.coalesce("mono_ns", unknown).alias("mono_ns"),
        (sf.shiftleft(entry_hash, what_bits(classes)) + what).alias(WHAT),
        source_hash().alias("source"),
        sf.coalesce(sf.when(is_nack, sf.col("deadline_ms")).otherwise(lateness()), unknown).alias("ms"),
    )
    return events.repartition(MESSAGE).sortWithinPartitions(MESSAGE)


def what_bits(classes: int) -> int:
    """Return how many bits of :data:`WHAT` describe the event, with attempts below 2**31."""
    return (2**31 * CODES * KINDS * classes).bit_length()


def _delay_class(is_nack: Column, bounds_ms: Sequence[int]) -> Column:
    delay = sf.col("delay_ms")
    found = sf.when(~is_nack | delay.isNull(), 0)
    for place, bound in enumerate(bounds_ms, 1):
        found = found.when(delay <= bound, place)
    return found.otherwise(len(bounds_ms) + 1)


def source_hash() -> Column:
    """Return a hash of topic, subscription and consumer, a long: narrower than the names."""
    return sf.xxhash64(sf.xxhash64(*GROUP), "consumer")


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)
