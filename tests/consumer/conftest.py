"""Runs tests with the argument ``ports`` on each kind of broker, except those named by the marker ``not_on``.

Also starts the embedded broker for tests with the argument ``url``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from pulsar_nack.testing import EmbeddedBroker

from .ports import KINDS, Ports

NEEDED = {"local": "google.protobuf", "wire": "google_crc32c"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The service URL of an embedded broker."""
    with EmbeddedBroker() as broker:
        yield broker.service_url


@pytest.fixture
def topic() -> str:
    """An unused topic."""
    return f"persistent://public/default/t-{uuid.uuid4().hex[:8]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test its ``ports``: in the fast tier only the first kind, unless it is marked ``each_kind``."""
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
