"""Local topics: publish, subscriptions and dispatch in this process, durable on logs."""

from ..consumer._local import LocalPort
from ._dispatcher import SubscriptionType
from ._opening import OpeningTopic, open_local
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
