"""Runs the tests of consumers that ask for it on the fake port, and on local topics as well."""

from __future__ import annotations

import pytest

from .local_stand_in import LocalStandIn, StandInTopic


@pytest.fixture(params=["fake", "local"])
def on_each_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the module's ``FakePort`` and ``FakeTopic`` be those of a local topic, the second time."""
    kind: str = request.param
    if kind == "local":
        pytest.importorskip("google.protobuf")
        monkeypatch.setattr(request.module, "FakePort", LocalStandIn)
        monkeypatch.setattr(request.module, "FakeTopic", StandInTopic)
    return kind
