"""Tools for tests of code that uses this library: a virtual clock, a fake port, an embedded broker."""

from ._clock import ManualClock
from ._lite import EmbeddedBroker
from ._loop import VirtualClockEventLoop, hold_time, run, virtual_time

__all__ = ["EmbeddedBroker", "ManualClock", "VirtualClockEventLoop", "hold_time", "run", "virtual_time"]
