"""Append-only logs with checksums and group commit, which store bucket snapshots and cursors."""

from ._local import LocalLog, LocalLogStore
from ._object_store import ObjectLog, ObjectLogStore
from ._protocol import Log, LogDamage, LogStore, Record

__all__ = [
    "LocalLog",
    "LocalLogStore",
    "Log",
    "LogDamage",
    "LogStore",
    "ObjectLog",
    "ObjectLogStore",
    "Record",
]
