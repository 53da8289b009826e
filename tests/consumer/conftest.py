"""Runs tests that take ``ports`` on each kind of broker that they hold on."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .ports import KINDS, Ports

NEEDED = {"local": "google.protobuf", "wire": "google_crc32c"}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "not_on(*kinds, reason): a test with ``ports`` does not hold on these kinds")
    config.addinivalue_line("markers", "each_kind: a test with ``ports`` is on all kinds in the fast tier as well")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its ``ports``: the fast tier has the first kind, or each one where the test stands for others."""
    if "ports" not in metafunc.fixturenames:
        return
    without = {kind for marker in metafunc.definition.iter_markers("not_on") for kind in marker.args}
    is_slow = metafunc.definition.get_closest_marker("each_kind") is None
    metafunc.parametrize(
        "ports",
        [
            pytest.param(Ports(kind), id=kind, marks=_marks(kind, is_slow=is_slow and at > 0))
            for at, kind in enumerate(KINDS)
            if kind not in without
        ],
    )


def _marks(kind: str, *, is_slow: bool) -> list[pytest.MarkDecorator]:
    package = NEEDED.get(kind)
    needed = [] if package is None else [pytest.mark.skipif(find_spec(package) is None, reason=f"needs {package}")]
    return [pytest.mark.slow, *needed] if is_slow else needed
