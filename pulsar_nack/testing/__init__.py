"""Tools for tests of code that uses this library: a virtual clock, a fake port, an embedded broker."""

from ._clock import ManualClock
from ._fake_faults import FakeCall
from ._fake_subscription import FakeSubscription
from ._fake_topic import FakeEntry, FakeMessage, FakeTopic
from ._lite import EmbeddedBroker
from ._loop import VirtualClockEventLoop, hold_time, run, virtual_time
from ._port import FakePort

__all__ = [
    "EmbeddedBroker",
    "FakeCall",
    "FakeEntry",
    "FakeMessage",
    "FakePort",
    "FakeSubscription",
    "FakeTopic",
    "ManualClock",
    "VirtualClockEventLoop",
    "hold_time",
    "run",
    "virtual_time",
]
