"""Runs the tests of consumers that ask for it on the fake port, with and without waiting, and on local topics."""

from __future__ import annotations

from types import ModuleType

import pytest

from . import durable
from .local_stand_in import ForgetfulStandIn, LocalStandIn, StandInTopic
from .nowait_port import ForgetfulNowaitPort, NowaitPort

STAND_INS: dict[str, dict[str, type]] = {
    "fake": {},
    "nowait": {"FakePort": NowaitPort, "ForgetfulPort": ForgetfulNowaitPort},
    "local": {"FakePort": LocalStandIn, "FakeTopic": StandInTopic, "ForgetfulPort": ForgetfulStandIn},
}

OTHER_TURN = {"test_what_this_consumer_holds_is_not_shown_early"}
"""What counts on whose turn it is among the consumers of a Shared subscription at the fake port."""


@pytest.fixture(params=list(STAND_INS))
def on_each_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the module's ``FakePort`` and the like be others the second and the third time."""
    kind: str = request.param
    if kind == "local":
        pytest.importorskip("google.protobuf")
        if getattr(request.node, "originalname", "") in OTHER_TURN:
            pytest.skip("it is another consumer's turn at a local topic")
    modules: tuple[ModuleType, ...] = (request.module, durable)
    for module in modules:
        for name, stand_in in STAND_INS[kind].items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    return kind
