"""Local topics: publish, subscriptions and dispatch in this process, durable on logs."""

from ._dispatcher import SubscriptionType
from ._opening import OpeningTopic, open_local
from ._port import LocalPort
from ._statistics import SubscriptionStatistics, TopicStatistics
from ._topic import LocalTopic

__all__ = [
    "LocalPort",
    "LocalTopic",
    "OpeningTopic",
    "SubscriptionStatistics",
    "SubscriptionType",
    "TopicStatistics",
    "open_local",
]
