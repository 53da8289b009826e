"""Runs the tests of consumers that ask for it on the fake port, with and without waiting, and on local topics."""

from __future__ import annotations

from types import ModuleType

import pytest

from . import durable
from .local_stand_in import ForgetfulStandIn, LocalStandIn, StandInTopic
from .nowait_port import ForgetfulNowaitPort, NowaitPort
from .wire_stand_in import ForgetfulWireStandIn, WireStandIn, WireTopic

STAND_INS: dict[str, dict[str, type]] = {
    "fake": {},
    "nowait": {"FakePort": NowaitPort, "ForgetfulPort": ForgetfulNowaitPort},
    "wire": {"FakePort": WireStandIn, "FakeTopic": WireTopic, "ForgetfulPort": ForgetfulWireStandIn},
    "local": {"FakePort": LocalStandIn, "FakeTopic": StandInTopic, "ForgetfulPort": ForgetfulStandIn},
}

OTHER_TURN = {"test_what_this_consumer_holds_is_not_shown_early"}
"""What counts on whose turn it is among the consumers of a Shared subscription at the fake port."""


THERE_AT_ONCE = {"test_backoff_by_message_and_by_id"}
"""What counts on a port's being subscribed as soon as it is made."""


@pytest.fixture(params=list(STAND_INS))
def on_each_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the module's ``FakePort`` and the like be others the second and the third time."""
    return _use(request.param, request, monkeypatch)


@pytest.fixture(params=[kind for kind in STAND_INS if kind != "nowait"])
def on_each_durable_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Do as ``on_each_broker``, for durable consumers: these use no calls that need no task."""
    return _use(request.param, request, monkeypatch)


def _use(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    test = getattr(request.node, "originalname", "")
    if kind in {"local", "wire"} and test in OTHER_TURN:
        pytest.skip("it is another consumer's turn there")
    if kind == "local":
        pytest.importorskip("google.protobuf")
    if kind == "wire":
        pytest.importorskip("google_crc32c")
        if test in THERE_AT_ONCE:
            pytest.skip("a consumer over the wire is there a few turns of the loop later")
    modules: tuple[ModuleType, ...] = (request.module, durable)
    for module in modules:
        for name, stand_in in STAND_INS[kind].items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    return kind
