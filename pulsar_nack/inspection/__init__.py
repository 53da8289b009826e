"""What a durable folder holds and what is wrong with it, read without touching it; ``pulsar-nack inspect`` shows it."""

from ._damage import Damage
from ._folder import inspect_folder
from ._report import (
    AckedLedger,
    BucketReport,
    BuiltReport,
    CursorReport,
    DelayedReport,
    FolderReport,
    LogReport,
    NacksReport,
    SegmentTimes,
    StoreReport,
    SubscriptionReport,
    TopicLedger,
    TopicReport,
    WaitingLedger,
)
from ._scan import SegmentReport

__all__ = [
    "AckedLedger",
    "BucketReport",
    "BuiltReport",
    "CursorReport",
    "Damage",
    "DelayedReport",
    "FolderReport",
    "LogReport",
    "NacksReport",
    "SegmentReport",
    "SegmentTimes",
    "StoreReport",
    "SubscriptionReport",
    "TopicLedger",
    "TopicReport",
    "WaitingLedger",
    "inspect_folder",
]
