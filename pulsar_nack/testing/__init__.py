"""Tools for testing code that uses this library: a virtual clock, a fake port, brokers, and storage that fails."""

from ..ledger.faults import FaultyFiles, FaultyObjects, SimulatedCrash
from ..ledger.files import OsFiles
from ..ledger.memory import MemoryFiles
from ._call_faults import FakeCall
from ._embedded_broker import EmbeddedBroker
from ._fake_delivery import FakeEntry, FakeMessage
from ._fake_port import FakeLetter, FakePort, FakePublisher
from ._fake_topic import FakeSubscription, FakeTopic
from ._faulty_port import FaultyPort
from ._local_broker import LocalBroker
from ._memory_storage import MemoryDelayedCursor, MemorySnapshotStorage, StorageFaults
from ._virtual_time import ManualClock, VirtualClockEventLoop, hold_time, run, virtual_time

__all__ = [
    "EmbeddedBroker",
    "FakeCall",
    "FakeEntry",
    "FakeLetter",
    "FakeMessage",
    "FakePort",
    "FakePublisher",
    "FakeSubscription",
    "FakeTopic",
    "FaultyFiles",
    "FaultyObjects",
    "FaultyPort",
    "LocalBroker",
    "ManualClock",
    "MemoryDelayedCursor",
    "MemoryFiles",
    "MemorySnapshotStorage",
    "OsFiles",
    "SimulatedCrash",
    "StorageFaults",
    "VirtualClockEventLoop",
    "hold_time",
    "run",
    "virtual_time",
]
