"""Tests with Spark: all on one session, so in one process, and not in the fast tier but for those marked smoke."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with a session together (``--dist loadgroup``), and leave them to ``make test-all``."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("smoke") is None:
                item.add_marker(pytest.mark.slow)
