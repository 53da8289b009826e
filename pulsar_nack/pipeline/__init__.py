"""Jobs over traces, metadata and cursors with PySpark: functions from DataFrame to DataFrame, with explicit schemas.

Needs the extra ``spark`` and Java 17 or later. Names are loaded when they are first used, so this module can be
imported without PySpark. Executors need no Pulsar client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from ._accuracy import Accuracy, accuracy
    from ._build_folder import BuiltIndex
    from ._build_index import build_index
    from ._hole_readers import ReadHoles, read_cursors, read_internal_stats
    from ._holes import holes
    from ._jobs import require_columns
    from ._plan import PLAN, plan
    from ._read import Read, check_traces, read_traces, split_source
    from ._report import report, write_report
    from ._retries import Retries, retries
    from ._source import local_session, register_source
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

_NAMES: Final = {
    "_accuracy": ("Accuracy", "accuracy"),
    "_build_folder": ("BuiltIndex",),
    "_build_index": ("build_index",),
    "_hole_readers": ("ReadHoles", "read_cursors", "read_internal_stats"),
    "_holes": ("holes",),
    "_jobs": ("require_columns",),
    "_plan": ("PLAN", "plan"),
    "_read": ("Read", "check_traces", "read_traces", "split_source"),
    "_report": ("report", "write_report"),
    "_retries": ("Retries", "retries"),
    "_source": ("local_session", "register_source"),
    "_watch": ("ALERTS", "start_watch", "watch", "watch_rates"),
}
"""The public names of each module."""
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES: Final = {"google", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}


if not TYPE_CHECKING:  # a type checker would take any name from it, misspelled ones too

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(f".{module}", __name__), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _PACKAGES:
                raise
            raise MissingExtraError("the pipeline", str(error.name), "spark") from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
