"""What outgrows one process, with PySpark: functions from DataFrame to DataFrame, with explicit schemas.

Needs the extra ``spark`` and Java 17 or later. Names are loaded when they are first used, so that this module can be
imported without PySpark; what runs on executors needs no client of Pulsar.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from ._accuracy import Accuracy, accuracy
    from ._build_commit import BuiltIndex
    from ._build_index import build_index
    from ._checks import require_columns
    from ._holes import holes
    from ._plan import PLAN, plan
    from ._read import Read, check_traces, read_traces
    from ._read_holes import ReadHoles, read_cursors, read_internal_stats
    from ._report import report, write_report
    from ._retries import Retries, retries
    from ._session import local_session
    from ._source import register_source, split_source
    from ._watch import ALERTS, start_watch, watch, watch_rates

__all__ = [
    "ALERTS",
    "PLAN",
    "Accuracy",
    "BuiltIndex",
    "Read",
    "ReadHoles",
    "Retries",
    "accuracy",
    "build_index",
    "check_traces",
    "holes",
    "local_session",
    "plan",
    "read_cursors",
    "read_internal_stats",
    "read_traces",
    "register_source",
    "report",
    "require_columns",
    "retries",
    "split_source",
    "start_watch",
    "watch",
    "watch_rates",
    "write_report",
]

_HOMES: Final = {
    "ALERTS": "_watch",
    "Accuracy": "_accuracy",
    "BuiltIndex": "_build_commit",
    "PLAN": "_plan",
    "Read": "_read",
    "ReadHoles": "_read_holes",
    "Retries": "_retries",
    "accuracy": "_accuracy",
    "build_index": "_build_index",
    "check_traces": "_read",
    "holes": "_holes",
    "local_session": "_session",
    "plan": "_plan",
    "read_cursors": "_read_holes",
    "read_internal_stats": "_read_holes",
    "read_traces": "_read",
    "register_source": "_source",
    "report": "_report",
    "require_columns": "_checks",
    "retries": "_retries",
    "split_source": "_source",
    "start_watch": "_watch",
    "watch": "_watch",
    "watch_rates": "_watch",
    "write_report": "_report",
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
