"""Tests with Spark share one session, so they run in one process; in the fast tier only those marked ``smoke`` run."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with a session in one process (``--dist loadgroup``), and mark them slow unless they are ``smoke``."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("smoke") is None:
                item.add_marker(pytest.mark.slow)
