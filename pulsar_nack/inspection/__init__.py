"""Reports the contents of a durable folder and its damage, without changing it; ``pulsar-nack inspect`` prints it."""

from ._report import (
    AckedLedger,
    BucketReport,
    BuiltReport,
    CursorReport,
    Damage,
    DelayedReport,
    FolderReport,
    LogReport,
    NacksReport,
    SegmentReport,
    SegmentTimes,
    StoreReport,
    SubscriptionReport,
    TopicLedger,
    TopicReport,
    WaitingLedger,
)
from .folders import inspect_folder

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
