"""The kinds of brokers on which tests of consumers run; ports and topics of each are used like the fake ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsar_nack import MessageId
from pulsar_nack.testing import FakePort, FakeTopic

from .local_stand_in import LocalStandIn, StandInTopic
from .nowait_port import NowaitPort
from .wire_stand_in import WireStandIn, WireTopic

KINDS: dict[str, tuple[type, type]] = {
    "fake": (FakePort, FakeTopic),
    "nowait": (NowaitPort, FakeTopic),
    "wire": (WireStandIn, WireTopic),
    "local": (LocalStandIn, StandInTopic),
}
"""The port and the topic of each kind; the fast tier runs on the first kind."""


class Ports:
    """Makes ports and topics of one kind of broker."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._port, self._topic = KINDS[kind]

    def port(self, *topic: FakeTopic, **options: Any) -> FakePort:
        """Return a port on this topic, or on a new one."""
        made: FakePort = self._port(*topic, **options)
        return made

    def topic(self, **options: Any) -> FakeTopic:
        """Return a new topic."""
        made: FakeTopic = self._topic(**options)
        return made

    def forgetful(self, topic: FakeTopic, **options: Any) -> Any:
        """Return a port whose acknowledgements never reach the broker, as if the process ended before."""
        return type("ForgetfulPort", (_Forgetful, self._port), {})(topic, **options)


class _Forgetful:
    """Accepts acknowledgements and only counts them in ``lost``."""

    lost = 0

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        self.lost += len(ids)

    async def acknowledge_cumulative(self, message_id: MessageId) -> None:
        self.lost += 1


FAKE = Ports("fake")
