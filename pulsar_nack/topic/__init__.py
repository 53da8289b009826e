"""Local topics: publish, subscriptions and dispatch in this process, durable on logs."""

from ..consumer._local import LocalPort
from ._dispatcher import SubscriptionType
from ._topic import LocalTopic

__all__ = ["LocalPort", "LocalTopic", "SubscriptionType"]
