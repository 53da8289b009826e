"""Counts millions of events in one pass: lateness by delay class, and what became due or ended in each slice of time.

Spark brings the events of each message together by a hash of its identity; some bits of a second hash distinguish
messages whose first hashes are equal. The shuffle takes most of the time, so rows are filtered and narrowed before it,
with hashes instead of names.

Workers sort the events of each message by wall time, monotonic time, attempt and kind of event (:class:`Code`), and
pair them with array operations: the next event of a message is the next element. Events of a message that the end of an
Arrow batch cuts off are kept until the rest arrives. Equal facts are counted together whenever there are many, so that
few rows are left for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from ._jobs import GROUP, MESSAGE, Code, lateness, message_hash, source_hash

WHAT: Final = "what"
"""A column: attempt, :class:`Code`, delay class, and more; see :func:`nacks_and_ends`."""

CODES: Final = 16
UNKNOWN: Final = -(2**63)
MOMENT: Final = 16
"""A moment is a time in ms times this, plus 1 and the Code of the event at that time, or plus 0: the trace ended."""

_SUMS: Final = {
    "n": "sum", "became_due": "sum", "done": "sum", "first_due": "min", "last_ended": "max", "first_active": "min",
    "last_active": "max",
}  # fmt: skip
_KEYS: Final = ("source", "delay_class", "attempt", "ms", "slice", "is_open")
_COUNTED: Final = StructType(
    [
        StructField(name, IntegerType() if name in {"delay_class", "attempt", "is_open"} else LongType())
        for name in (*_KEYS, *_SUMS)
    ]
)
_COUNTED_ARROW: Final = to_arrow_schema(_COUNTED)
_OTHER_HASH: Final = "_other_hash"
"""The upper bits of :data:`WHAT`, see ``nacks_and_ends``."""

_ORDER: Final = (MESSAGE, _OTHER_HASH, "time_ms", "mono_ns", WHAT)
_MANY: Final = 500_000
"""The number of facts above which equal ones are counted."""


def nacks_and_ends(traces: DataFrame, answer: str, bounds_ms: Sequence[int]) -> DataFrame:
    """Return nacks, redeliveries and all other events that end a nack, sorted by message, as numbers only.

    An arrival is a redelivery if it has a deadline or is not a first attempt; with ``redeliver`` every request is one.

    The columns are :data:`MESSAGE`, a hash of the message, ``time_ms``, ``mono_ns``, ``source`` (:func:`source_hash`),
    ``ms``, the deadline of a nack or the lateness of a redelivery, and :data:`WHAT`. The lower :func:`what_bits` of
    that are ``(((attempt + 1) * CODES + code) * 2 + redelivery) * classes + class``, where ``redelivery`` is 1 for a
    redelivery; the upper ones are part of a second hash of the message. Unknown values are :data:`UNKNOWN`, and -1 for
    attempts. The class of a nack with a delay is 1 plus the number of bounds below the delay, that of all other events
    0; there are ``len(bounds_ms) + 2`` classes.

    :param answer: the event that answers a nack, ``arrive`` or ``redeliver``
    :param bounds_ms: the bounds of the delay classes, in order
    """
    event = sf.col("event")
    is_nack = event == "nack"
    is_answer = event == answer
    if answer == "arrive":
        is_answer = is_answer & (sf.col("deadline_ms").isNotNull() | (sf.col("attempt") > 0))
    number = sf.when(is_nack, int(Code.NACK)).when(event == "arrive", int(Code.ARRIVE))
    number = number.when(event == "ack", int(Code.ACK)).when(event == "redeliver", int(Code.REDELIVER))
    number = number.otherwise(int(Code.CANCEL))
    classes = len(bounds_ms) + 2
    attempts = sf.greatest(sf.coalesce("attempt", sf.lit(-1)), sf.lit(-1)).cast("long") + 1
    redelivery = sf.when(is_answer, 1).otherwise(0)
    what = ((attempts * CODES + number) * 2 + redelivery) * classes + _delay_class(is_nack, bounds_ms)
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
    return (2**31 * CODES * 2 * classes).bit_length()


def _delay_class(is_nack: Column, bounds_ms: Sequence[int]) -> Column:
    delay = sf.col("delay_ms")
    found = sf.when(~is_nack | delay.isNull(), 0)
    for place, bound in enumerate(bounds_ms, 1):
        found = found.when(delay <= bound, place)
    return found.otherwise(len(bounds_ms) + 1)


def counts(events: DataFrame, names: DataFrame, classes: int, slice_ms: int) -> DataFrame:
    """Return rows of three kinds: without a ``slice`` those of :func:`histogram`, with a slice its facts.

    Rows with ``is_open`` are nacks that no event ended; ``end_ms`` is the end of their consumer's trace.

    :param events: the result of ``nacks_and_ends``
    :param names: the topic and subscription of each ``source``, and the end of its consumer's trace, ``end_ms``
    :param classes: the number of delay classes in :data:`WHAT`; the first one is reported as -1, the next one as 0
    :param slice_ms: the length of a slice
    """
    found = events.mapInArrow(counter(classes, slice_ms), _COUNTED)
    counted = found.groupBy(*_KEYS).agg(*(getattr(sf, how)(name).alias(name) for name, how in _SUMS.items()))
    return counted.join(sf.broadcast(names), "source").drop("source")


def histogram(counted: DataFrame) -> DataFrame:
    """Return names, delay_class, attempt, the lateness in ``ms`` and the number ``n`` of such arrivals."""
    known = {"attempt": sf.nullif("attempt", sf.lit(-1)), "ms": sf.nullif("ms", sf.lit(UNKNOWN))}
    return counted.where(sf.col("slice").isNull()).withColumns(known).select(*GROUP, "delay_class", *known, "n")


def slices(counted: DataFrame, slice_ms: int) -> DataFrame:
    """Return for each subscription and slice how many nacks became due and ended, and when the first and last did."""
    columns = ("became_due", "done", "first_due", "last_ended", "first_active", "last_active")
    known = counted.where(sf.col("slice").isNotNull())
    last, none = sf.floor(sf.col("end_ms") / slice_ms), sf.lit(None).cast("long")
    gone = {"done": sf.col("became_due"), "last_ended": sf.col("end_ms") * MOMENT}
    here = sf.struct("slice", *columns)
    there = sf.struct(last.alias("slice"), *(gone.get(name, none).cast("long").alias(name) for name in columns))
    facts = sf.when(sf.col("is_open").isNull(), sf.array(here)).when(last > sf.col("slice"), sf.array(here, there))
    found = known.select(*GROUP, sf.inline(facts)).repartition(*GROUP)
    return found.groupBy(*GROUP, "slice").agg(
        sf.coalesce(sf.sum("became_due"), sf.lit(0)).alias("became_due"),
        sf.coalesce(sf.sum("done"), sf.lit(0)).alias("done"),
        sf.min("first_due").alias("first_due"),
        sf.max("last_ended").alias("last_ended"),
        sf.min("first_active").alias("first_active"),
        sf.max("last_active").alias("last_active"),
    )


# --- in workers -----------------------------------------------------------------------------------------------------


def counter(classes: int, slice_ms: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``, which counts the facts of a Spark partition."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        facts = _Counter(classes, slice_ms)
        for batch in batches:
            yield from facts.add(batch)
        yield from facts.finish()

    return count


def _changes(values: Any) -> Any:
    """Return a mask of all values but the first: whether each differs from the one before."""
    return values[1:] != values[:-1]


class _Counter:
    """Pairs the events of a Spark partition, and counts the facts."""

    def __init__(self, classes: int, slice_ms: int) -> None:
        self._classes = classes
        self._bits = what_bits(classes)
        self._slice_ms = slice_ms
        self._rest: dict[str, Any] = {}
        self._facts: dict[tuple[str, ...], list[pa.Table]] = {}
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch; its last message waits for the next batch."""
        events = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
        events[_OTHER_HASH], events[WHAT] = events[WHAT] >> self._bits, events[WHAT] & ((1 << self._bits) - 1)
        if self._rest:
            events = {name: np.concatenate((self._rest[name], values)) for name, values in events.items()}
        starts = np.flatnonzero(_changes(events[MESSAGE])) + 1
        last = int(starts[-1]) if len(starts) else 0
        self._rest = {name: values[last:] for name, values in events.items()}
        self._pair({name: values[:last] for name, values in events.items()})
        if self._rows > _MANY:
            self._count()
            if self._rows > _MANY // 2:  # facts that differ: Spark sums them up
                yield from self._take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Take the last message, and yield all counts."""
        if self._rest:
            self._pair(self._rest)
        self._count()
        yield from self._take()

    def _sorted(self, events: dict[str, Any]) -> dict[str, Any]:
        """Return the events, sorted within each message: only those of messages that are not in order are moved."""
        keys = [events[name] for name in _ORDER]
        tied, wrong = True, False
        for key in keys:
            wrong = wrong | tied & (key[1:] < key[:-1])
            tied = tied & ~_changes(key)
        if not np.any(wrong):
            return events
        group = np.concatenate(([0], np.cumsum(_changes(events[MESSAGE]))))
        is_wrong = np.zeros(group[-1] + 1, bool)
        is_wrong[group[1:][wrong]] = True
        some = np.flatnonzero(is_wrong[group])
        order = np.arange(len(group))
        order[some] = some[np.lexsort([key[some] for key in reversed(keys)])]
        return {name: values[order] for name, values in events.items()}

    def _pair(self, events: dict[str, Any]) -> None:
        size = len(events["time_ms"])
        if not size:
            return
        places = np.arange(size)
        events = self._sorted(events)
        is_first = np.concatenate(([True], _changes(events[MESSAGE]) | _changes(events[_OTHER_HASH])))
        first = np.maximum.accumulate(np.where(is_first, places, 0))
        what, time, ms, source = (events[name] for name in (WHAT, "time_ms", "ms", "source"))
        what, delay_class = np.divmod(what, self._classes)
        code = what >> 1 & (CODES - 1)  # CODES is a power of two: far faster than a division
        is_nack = code == Code.NACK
        nack = np.maximum.accumulate(np.where(is_nack & (delay_class > 0), places, -1))
        nack = np.concatenate(([-1], nack[:-1]))  # the last one before
        came = np.flatnonzero(what & 1)
        asked = nack[came]
        delay_class = np.where(asked >= first[came], delay_class[asked] - 1, -1)
        attempt = what[came] // (2 * CODES) - 1
        one = np.ones(len(came), np.int64)
        self._note(n=one, source=source[came], delay_class=delay_class, attempt=attempt, ms=ms[came])
        at = time[came]
        self._note(source=source[came], slice=at // self._slice_ms, first_active=at, last_active=at)
        has_next = np.concatenate((~is_first[1:], [False]))
        waits = is_nack & (ms != UNKNOWN)
        left = np.flatnonzero(waits & ~has_next)
        ended = np.flatnonzero(waits & has_next)
        ended = ended[time[ended + 1] // self._slice_ms > ms[ended] // self._slice_ms]
        for some in (left, ended):
            one = np.ones(len(some), np.int64)
            due = {"became_due": one, "first_due": ms[some], "slice": ms[some] // self._slice_ms}
            is_open = {"is_open": one} if some is left else {}
            self._note(source=source[some], **due, **is_open)
        at = time[ended + 1]
        moment = at * MOMENT + code[ended + 1] + 1
        done = {"done": np.ones(len(ended), np.int64), "slice": at // self._slice_ms}
        self._note(source=source[ended], last_ended=moment, **done)

    def _note(self, **columns: Any) -> None:
        """Note facts: columns of 64-bit integers."""
        size = len(columns["source"])
        if not size:
            return
        # not pa.array, which imports pandas: a third of a second in each worker
        buffers = {name: pa.py_buffer(np.ascontiguousarray(values)) for name, values in columns.items()}
        facts = {name: pa.Array.from_buffers(pa.int64(), size, [None, buffer]) for name, buffer in buffers.items()}
        keys = tuple(name for name in _KEYS if name in columns)
        self._facts.setdefault(keys, []).append(pa.table(facts))
        self._rows += size

    def _count(self) -> None:
        """Count equal facts, in a table for each set of keys: nulls for all other keys would take twice as long."""
        for keys, tables in self._facts.items():
            facts = pa.concat_tables(tables, promote_options="default")
            sums = [(name, how) for name, how in _SUMS.items() if name in facts.column_names]
            found = facts.group_by(list(keys)).aggregate(sums)
            names = {f"{name}_{how}": name for name, how in sums}
            self._facts[keys] = [found.rename_columns([names.get(name, name) for name in found.column_names])]
        self._rows = sum(table.num_rows for (table,) in self._facts.values())

    def _take(self) -> Iterator[pa.RecordBatch]:
        for (table,) in self._facts.values():
            columns = {name: table[name] for name in table.column_names}
            none = pa.nulls(table.num_rows)
            arrays = [columns.get(field.name, none).cast(field.type) for field in _COUNTED_ARROW]
            yield from pa.table(arrays, schema=_COUNTED_ARROW).to_batches()
        self._facts, self._rows = {}, 0
