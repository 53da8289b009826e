"""Local topics: publish, subscriptions and dispatch in this process, durable on logs."""

from ._dispatcher import SubscriptionType
from ._port import LocalPort
from ._statistics import SubscriptionStatistics, TopicStatistics
from ._topic import LocalTopic, OpeningTopic, open_local

__all__ = [
    "LocalPort",
    "LocalTopic",
    "OpeningTopic",
    "SubscriptionStatistics",
    "SubscriptionType",
    "TopicStatistics",
    "open_local",
]
