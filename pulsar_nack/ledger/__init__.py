"""Append-only logs with checksums and group commit, on which bucket snapshots and cursors are kept."""

from ._local import LocalLog
from ._local_store import LocalLogStore
from ._object import ObjectLog
from ._object_store import ObjectLogStore
from ._protocol import DamagedLog, Log, LogDamage, LogStore, Record, SalvagingStore

__all__ = [
    "DamagedLog",
    "LocalLog",
    "LocalLogStore",
    "Log",
    "LogDamage",
    "LogStore",
    "ObjectLog",
    "ObjectLogStore",
    "Record",
    "SalvagingStore",
]
