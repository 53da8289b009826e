"""Checks of input, made before any work: only schemas are looked at, no row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ..errors import InvalidArgumentError


def require_columns(df: DataFrame, schema: StructType, names: Sequence[str] | None = None) -> None:
    """Refuse a DataFrame that lacks a column of a schema, or has it with another type.

    :param names: the columns that are needed, by default all of the schema. Others that the DataFrame has are let be,
        and whether a column may hold nulls is not looked at
    :raises InvalidArgumentError: names every column that is wanted, and those that were found
    """
    require_fields({field.name: field.dataType.simpleString() for field in df.schema.fields}, schema, names)


def require_fields(found: Mapping[str, str], schema: StructType, names: Sequence[str] | None = None) -> None:
    """Refuse columns, by name and type, as :func:`require_columns` does."""
    wanted = {name: schema[name].dataType.simpleString() for name in names or schema.fieldNames()}
    wrong = [name for name, kind in wanted.items() if found.get(name) != kind]
    if wrong:
        expected, got = (", ".join(f"{name} {kind}" for name, kind in each.items()) for each in (wanted, found))
        raise InvalidArgumentError(
            "df", _Columns(got), f"the columns {expected} (missing or of another type: {', '.join(wrong)})"
        )


class _Columns(str):
    """Columns that were found; an error shows them without quotes and whole."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"the columns {self}" if self else "none"
