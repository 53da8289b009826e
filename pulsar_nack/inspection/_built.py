"""The manifest that ``build-index`` leaves in a folder: what it built. Nothing that reads the index needs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from ._report import BuiltReport

MANIFEST: Final = "manifest.json"
_LARGEST: Final = 1 << 28
_COUNTS: Final = ("rows", "segments", "bytes")
_TIMES: Final = ("first_at", "last_at")


def read_manifest(path: Path) -> BuiltReport | None:
    """Return what a manifest says; None where a file of its name is something else, or is gone."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        said = json.loads(path.read_bytes())
        counts = [_whole(said[name]) for name in _COUNTS]
        times = [None if said[name] is None else _whole(said[name]) for name in _TIMES]
        return BuiltReport(counts[0], len(list(said["buckets"])), counts[1], counts[2], times[0], times[1])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value
