"""The homes (storage and cursor) on which the cases of the bucket tracker run."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from . import stage
from .homes import Home, LogHome, MemoryHome


@pytest.fixture(params=["memory", "local"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put a test's storage in memory, or on logs in a folder; return which."""
    numbers = count()

    def new_home() -> Home:
        return MemoryHome() if request.param == "memory" else LogHome(tmp_path / str(next(numbers)))

    monkeypatch.setattr(stage, "new_home", new_home)
    name: str = request.param
    return name
