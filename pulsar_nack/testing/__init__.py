"""Tools for tests of code that uses this library: a virtual clock, a fake port, brokers, and storage that fails."""

from ..ledger.faults import FaultyFiles, FaultyObjects, SimulatedCrash
from ..ledger.files import OsFiles
from ..ledger.memory import MemoryFiles
from ._clock import ManualClock
from ._fake_faults import FakeCall
from ._fake_publisher import FakeLetter, FakePublisher
from ._fake_subscription import FakeSubscription
from ._fake_topic import FakeEntry, FakeMessage, FakeTopic
from ._faulty_port import FaultyPort
from ._lite import EmbeddedBroker
from ._local_broker import LocalBroker
from ._loop import VirtualClockEventLoop, hold_time, run, virtual_time
from ._memory_storage import MemoryDelayedCursor, MemorySnapshotStorage
from ._port import FakePort
from ._storage_faults import StorageFaults

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
