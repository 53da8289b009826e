"""What the jobs share: the kinds of events of a trace, hashes of a message and of its consumer, and checks.

One shuffle and one sort bring the events of each message together, by a hash of its identity. Spark sorts by that
single number, in a third of the time that a sort by several columns takes, which compares rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from ..errors import InvalidArgumentError
from .schemas import IDENTITY, MAX_TIME_MS

MESSAGE: Final = "_message"
GROUP: Final = ("topic", "subscription")
DEAD_LETTER: Final = "dead-letter"
"""The reason of an acknowledgement whose message went to the dead-letter topic."""


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


def source_hash() -> Column:
    """Return a hash of topic, subscription and consumer, a long: narrower than the names."""
    return sf.xxhash64(sf.xxhash64(*GROUP), "consumer")


def lateness() -> Column:
    """Return actual minus asked time, in ms; null where one is missing, negative or beyond the year 9999."""
    deadline, actual = sf.col("deadline_ms"), sf.col("actual_ms")
    return sf.when(deadline.between(0, MAX_TIME_MS) & actual.between(0, MAX_TIME_MS), actual - deadline)


# --- checks before a job starts: of a DataFrame only the schema is read ----------------------------------------------


def require_columns(df: DataFrame, schema: StructType, names: Sequence[str] | None = None) -> None:
    """Refuse a DataFrame that lacks a column of a schema, or has it with another type.

    :param names: the required columns, by default all of the schema. Other columns are ignored, and so is whether a
        column may hold nulls
    :raises InvalidArgumentError: names all required columns, and those that were found
    """
    require_fields({field.name: field.dataType.simpleString() for field in df.schema.fields}, schema, names)


def require_fields(found: Mapping[str, str], schema: StructType, names: Sequence[str] | None = None) -> None:
    """Refuse columns, given by name and type, as :func:`require_columns` does."""
    wanted = {name: schema[name].dataType.simpleString() for name in names or schema.fieldNames()}
    wrong = [name for name, kind in wanted.items() if found.get(name) != kind]
    if wrong:
        expected, got = (", ".join(f"{name} {kind}" for name, kind in each.items()) for each in (wanted, found))
        raise InvalidArgumentError(
            "df", _Columns(got), f"the columns {expected} (missing or of another type: {', '.join(wrong)})"
        )


class _Columns(str):
    """The columns that were found; an error shows them in full and without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"the columns {self}" if self else "none"


def milliseconds(name: str, value: object, *, least: int = 0) -> int:
    """Return seconds as whole milliseconds; refuses NaN, negative and infinite values."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 1e10:
        raise InvalidArgumentError(name, value, "seconds, up to 10**10")
    found = round(value * 1_000)
    if value < 0 or found < least:
        raise InvalidArgumentError(name, value, f"at least {least / 1_000:g} s")
    return found


def at_least(name: str, value: object, least: float) -> None:
    """Refuse a number below a bound, and anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InvalidArgumentError(name, value, f"at least {least:g}")
