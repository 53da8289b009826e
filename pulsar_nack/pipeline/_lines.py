"""Parses the lines of a trace into Arrow batches, and checks them. Runs on workers, without a session.

This is the only parser: :func:`read_splits` reads files, :func:`parse_batches` parses lines that Spark has read, and
:func:`check_batches` checks events in columns. An accepted line or event has the columns of ``TRACE``; a refused one
has ``file``, ``line`` and ``fault``, the reason.

Lines are parsed one by one, with one dict lookup for the types of all values of a line; the values are then checked
column by column. Only if Arrow cannot hold a value, each line of the batch is checked again.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from io import BufferedIOBase
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .._delays import MAX_DELAY_MS
from ..errors import InvalidArgumentError
from ._jobs import require_fields
from .schemas import (
    BROKEN,
    EVENTS,
    MAX_LINE_BYTES,
    MAX_TIME_MS,
    NOT_UNICODE,
    REQUIRED,
    TIMES,
    TOO_LONG,
    TRACE,
    TRACE_VERSION,
)

LINES: Final = ".jsonl"
PACKED: Final = ".jsonl.gz"
PARQUET: Final = ".parquet"
BATCH_ROWS: Final = 8_192
BATCH_BYTES: Final = MAX_LINE_BYTES
SHOWN_BYTES: Final = 2**16
"""How many bytes of a refused line are kept."""

Event = tuple[Any, ...]
"""The values of a line in the order of ``TRACE``."""

_NAMES: Final = TRACE.fieldNames()
_TYPES: Final = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
_LIMITS: Final = {"int": 2**31, "bigint": 2**63}
_KINDS: Final = [field.dataType.simpleString() for field in TRACE.fields]
_EVENT: Final = pa.schema([(name, _TYPES[kind]) for name, kind in zip(_NAMES, _KINDS, strict=True)])
_REFUSED: Final = pa.schema([(name, pa.string()) for name in ("file", "line", "fault")])
_READ: Final = pa.schema([*_EVENT, *_REFUSED])
PARQUET_ERRORS: Final = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What PyArrow raises for an invalid Parquet file; see :func:`raise_system_error`."""
_BLANK: Final = b" \t\r\n"
_LEAST: Final = {"ledger": 0, "entry": 0, "attempt": 0, "partition": -1, "batch_index": -1}


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


# --- lines ----------------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Event | str:
    """Return the values of a line, or why it is refused. :func:`faults` checks the values."""
    try:
        text = line.strip(_BLANK).decode()
        found, end = _decode(text)
    except UnicodeDecodeError:
        return NOT_UNICODE
    except (ValueError, RecursionError):
        return BROKEN
    if end != len(text) or type(found) is not dict:
        return BROKEN
    values = tuple(map(found.get, _NAMES))
    return values if _have_types(tuple(map(type, values))) else BROKEN


@lru_cache(maxsize=1_024)
def _have_types(found: tuple[type, ...]) -> bool:
    wanted = (str if kind == "string" else int for kind in _KINDS)
    return all(each in {type(None), kind} for each, kind in zip(found, wanted, strict=True))


def _misfit(values: Event) -> str | None:
    """Return why Arrow cannot hold the values of a line; None if it can."""
    for value, kind in zip(values, _KINDS, strict=True):
        if isinstance(value, int) and not -_LIMITS[kind] <= value < _LIMITS[kind]:
            return BROKEN
        if isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
            return NOT_UNICODE
    return None


class _Batch:
    """Collects lines of one file for an Arrow batch."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._events: list[Event] = []
        self._lines: list[bytes] = []
        self._refused: list[tuple[bytes | None, str]] = []
        self._bytes = 0

    def add(self, line: bytes) -> bool:
        """Parse a line; return whether the batch is full."""
        is_long = len(line) > MAX_LINE_BYTES and len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES
        found = TOO_LONG if is_long else parse(line)
        if isinstance(found, str):
            self.refuse(line[:SHOWN_BYTES], found)
        else:
            self._events.append(found)
            self._lines.append(line)
        self._bytes += len(line)
        return self._bytes >= BATCH_BYTES or len(self._events) + len(self._refused) >= BATCH_ROWS

    def refuse(self, line: bytes | None, fault: str) -> None:
        """Add a refused line; None stands for the rest of a file that cannot be read."""
        self._refused.append((line, fault))

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the collected lines as batches, and start empty."""
        if self._events:
            batch = self._sound()
            found = faults(batch)
            if found.null_count < len(found):
                wrong = found.is_valid()
                where = zip(self._lines, found.to_pylist(), strict=True)
                self._refused += [(line, fault) for line, fault in where if fault is not None]
                batch = batch.filter(pc.invert(wrong))
            yield _widened(batch)
        if self._refused:
            lines = [None if line is None else _shown(line) for line, _ in self._refused]
            yield refused_batch([self._file] * len(lines), lines, [fault for _, fault in self._refused])
        self._events, self._lines, self._refused, self._bytes = [], [], [], 0

    def _sound(self) -> pa.RecordBatch:
        """Return the events as columns, after refusing those that Arrow cannot hold."""
        try:
            return _columns(self._events)
        except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
            judged = [(event, line, _misfit(event)) for event, line in zip(self._events, self._lines, strict=True)]
            self._refused += [(line, fault) for _, line, fault in judged if fault is not None]
            self._events = [event for event, _, fault in judged if fault is None]
            self._lines = [line for _, line, fault in judged if fault is None]
            return _columns(self._events)


def _columns(events: Sequence[Event]) -> pa.RecordBatch:
    columns = zip(*events, strict=True) if events else ((),) * len(_NAMES)
    return pa.RecordBatch.from_arrays(
        [pa.array(each, kind) for each, kind in zip(columns, _EVENT.types, strict=True)], schema=_EVENT
    )


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n")[:SHOWN_BYTES].decode("utf-8", "replace")


# --- checks of values -----------------------------------------------------------------------------------------------


def faults(events: pa.RecordBatch) -> pa.Array:
    """Return the first reason why each event is refused; null if it is accepted."""
    found = pa.nulls(events.num_rows, pa.string())
    for is_wrong, text in reversed(list(_rules(dict(zip(_NAMES, events.columns, strict=True))))):
        mask = pc.fill_null(is_wrong, fill_value=False)
        if pc.any(mask).as_py():
            found = pc.if_else(mask, text, found)
    return found


def _rules(event: dict[str, pa.Array]) -> Iterator[tuple[pa.Array, pa.Array | str]]:
    """Yield for each rule, in order, a mask of the events that break it and the reason."""
    kind, version = event["event"], event["v"]
    yield pc.not_equal(version, TRACE_VERSION), _with_value("unknown version ", pc.cast(version, pa.string()))
    for name in REQUIRED:
        yield pc.is_null(event[name]), f"{name} is missing"
    yield (
        pc.invert(pc.is_in(kind, pa.array(EVENTS))),
        _with_value("unknown event ", pc.utf8_slice_codeunits(kind, 0, 100)),
    )
    for name in TIMES:
        wrong = pc.or_(pc.less(event[name], 0), pc.greater(event[name], MAX_TIME_MS))
        yield wrong, f"{name} is negative or beyond the year 9999"
    yield pc.less(event["delay_ms"], 0), "delay_ms is negative"
    yield pc.greater(event["delay_ms"], MAX_DELAY_MS), "delay_ms is longer than 36600 days"
    for name, least in _LEAST.items():
        yield pc.less(event[name], least), f"{name} is negative" if least == 0 else f"{name} is below {least}"
    for name, other in (("ledger", "entry"), ("entry", "ledger")):
        yield pc.and_(pc.is_null(event[name]), pc.is_valid(event[other])), f"{name} is missing"
    before = pc.less(event["deadline_ms"], event["time_ms"])
    yield pc.and_(pc.equal(kind, "nack"), before), "deadline_ms of a nack is before its time_ms"


def _with_value(text: str, value: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(text, pc.fill_null(value, ""), "")


def _widened(events: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(events.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*events.columns, nothing, nothing, nothing], schema=_READ)


def refused_batch(files: Sequence[str | None], lines: Sequence[str | None], why: Sequence[str]) -> pa.RecordBatch:
    """Return rows of refused lines."""
    columns = [pa.nulls(len(why), kind) for kind in _EVENT.types]
    texts = [pa.array(each, pa.string()) for each in (files, lines, why)]
    return pa.RecordBatch.from_arrays([*columns, *texts], schema=_READ)


# --- for Spark ------------------------------------------------------------------------------------------------------


InputSplit = tuple[str, int, int]
"""A file, and from which byte to before which a line of it begins; a gzip or Parquet file is always one split."""


def read_splits(splits: Iterable[InputSplit]) -> Iterator[pa.RecordBatch]:
    """Read splits of files: the lines that begin in a range of bytes, or a whole gzip or Parquet file.

    A broken file gives one refused row, after the lines that could be read.

    :raises OSError: a file is gone, or cannot be opened or read
    """
    for path, start, stop in splits:
        if path.endswith(PARQUET):
            yield from _read_parquet(path)
        else:
            yield from _read_lines(path, start, stop)


def _read_lines(path: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    batch = _Batch(f"file:{path}")
    is_packed = path.endswith(PACKED)
    with gzip.open(path) if is_packed else open(path, "rb") as file:  # noqa: PTH123 - beside gzip.open
        try:
            for line in _lines(file, 0 if is_packed else start, None if is_packed else stop):
                if batch.add(line):
                    yield from batch.take()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            batch.refuse(None, _broken(error))
    yield from batch.take()


def _lines(file: BufferedIOBase, start: int, stop: int | None) -> Iterator[bytes]:
    """Yield lines with their newlines; a line that is too long is cut at the limit, and its rest skipped."""
    at = start
    if start:
        file.seek(start - 1)
        at = start - 1 + _rest(file)  # skip the line that began before this range
    while stop is None or at < stop:
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        yield line
        at += len(line)
        if not line.endswith(b"\n"):
            at += _rest(file)


def _rest(file: BufferedIOBase) -> int:
    """Skip the rest of a line of any length, and return the number of skipped bytes."""
    passed = 0
    while part := file.readline(MAX_LINE_BYTES):
        passed += len(part)
        if part.endswith(b"\n"):
            break
    return passed


def _read_parquet(path: str) -> Iterator[pa.RecordBatch]:
    file = f"file:{path}"
    try:
        with pq.ParquetFile(path) as found:
            require_fields(kinds_of(found.schema_arrow), TRACE)
            for batch in found.iter_batches(BATCH_ROWS, columns=_NAMES):
                yield from _checked(batch, [file] * batch.num_rows)
    except InvalidArgumentError as error:
        yield refused_batch([file], [None], [str(error)])
    except PARQUET_ERRORS as error:
        raise_system_error(error)
        yield refused_batch([file], [None], [_broken(error)])


def raise_system_error(error: Exception) -> None:
    """Raise an error again that the system reported, by a number; Arrow raises an OSError without one for bad bytes."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def kinds_of(schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns by name, as Spark writes them."""
    return {field.name: _kind_of(field.type) for field in schema}


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _kind_of(kind.value_type)
    if pa.types.is_large_string(kind):
        return "string"
    return {pa.int32(): "int", pa.int64(): "bigint"}.get(kind, str(kind))


def parse_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse lines that Spark has read; the columns are ``file`` and ``line``, the latter as bytes."""
    for found in batches:
        for file, lines in groupby(zip(*found.to_pydict().values(), strict=True), itemgetter(0)):
            batch = _Batch(file)
            for _, line in lines:
                if batch.add(line):
                    yield from batch.take()
            yield from batch.take()


def check_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check events in the columns of ``TRACE`` and ``file``."""
    for batch in batches:
        yield from _checked(batch, batch.column("file").to_pylist())


def _checked(batch: pa.RecordBatch, files: Sequence[str | None]) -> Iterator[pa.RecordBatch]:
    events = batch.select(_NAMES).cast(_EVENT)
    found = faults(events)
    is_wrong = found.is_valid()
    yield _widened(events.filter(pc.invert(is_wrong)))
    if found.null_count < len(found):
        lines = [json.dumps(row, ensure_ascii=False)[:SHOWN_BYTES] for row in events.filter(is_wrong).to_pylist()]
        where = [file for file, fault in zip(files, found.to_pylist(), strict=True) if fault is not None]
        yield refused_batch(where, lines, found.filter(is_wrong).to_pylist())


def _broken(error: Exception) -> str:
    return f"the file is broken: {str(error)[:200]}"
