"""Schemas, and checks of arguments that are made before a job starts: of a DataFrame only the schema is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ..errors import InvalidArgumentError

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
"""One path, or several."""

_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
}


def path_names(paths: Paths) -> list[str]:
    """Return paths as text; at least one is required."""
    names = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not names:
        raise InvalidArgumentError("paths", names, "at least one file or folder")
    return [fspath(name) for name in names]


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


def schema_of(columns: str) -> StructType:
    """Return the schema of columns in the words of Spark's DDL: ``ledger long, topic string not null``."""
    fields = [column.split(maxsplit=2) for column in columns.split(", ")]
    return StructType([StructField(name, _TYPES[kind], not is_needed) for name, kind, *is_needed in fields])


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
