"""Runs tests with the argument ``ports`` on each kind of broker, except those named by the marker ``not_on``."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .ports import KINDS, Ports

NEEDED = {"local": "google.protobuf", "wire": "google_crc32c"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its ``ports``: in the fast tier the first kind only, unless it is marked ``each_kind``."""
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
