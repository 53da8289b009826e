"""What outgrows one process, with PySpark: functions from DataFrame to DataFrame, with explicit schemas.

Needs the extra ``spark`` and Java 17 or later. Names are loaded when they are first used, so that this module can be
imported without PySpark; what runs on executors needs no client of Pulsar.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from ._build_commit import BuiltIndex
    from ._build_index import build_index

__all__ = [
    "BuiltIndex",
    "build_index",
]

_HOMES: Final = {
    "BuiltIndex": "_build_commit",
    "build_index": "_build_index",
}
"""The module of each public name."""
_PACKAGES: Final = {"google", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f".{home}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise MissingExtraError("the pipeline", str(error.name), "spark") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
