"""Metrics of delayed delivery for Prometheus, as the broker has them (PIP-195)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import ref

from ..delayed import DelayedDeliveryTracker, DelayedDeliveryTrackerFactory, TrackerRegistry
from ..errors import InvalidArgumentError
from ._scraping import prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class DelayedMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over trackers of delayed messages.

    A scrape covers the trackers that are open then, of watched factories and those that were added. Trackers are held
    weakly, so they need not be removed. Any thread may scrape.

    Names, types and labels are the broker's, for topics and also for each subscription (label ``subscription``).
    Counters only grow while a tracker lives; trackers with the same name are added up.

    ::

        metrics = DelayedMetrics(prometheus_client.REGISTRY, cluster="eu")
        metrics.watch(factory)

    :param registry: the registry to register with; None: none, and you can register the collector yourself
    :param cluster: the label ``cluster``
    :param subscriptions: False leaves out the samples of single subscriptions
    :raises MissingExtraError: prometheus-client is not installed
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, cluster: str = "", subscriptions: bool = True
    ) -> None:
        if not isinstance(cluster, str):
            raise InvalidArgumentError("cluster", cluster, "a string")
        prometheus()
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._factories: list[ref[DelayedDeliveryTrackerFactory]] = []
        self._trackers = TrackerRegistry()
        if registry is not None:
            registry.register(self)

    def watch(self, factory: DelayedDeliveryTrackerFactory) -> None:
        """Export all trackers of a factory, including those that it makes later."""
        living = [each for each in self._factories if each() not in (None, factory)]
        self._factories = [*living, ref(factory)]

    def add(self, tracker: DelayedDeliveryTracker, *, topic_name: str = "", subscription: str = "") -> None:
        """Export a tracker that was made without a factory.

        :raises InvalidArgumentError: another open tracker was added for this subscription of the topic
        """
        self._trackers.reserve(topic_name, subscription)
        self._trackers.settle(topic_name, subscription, tracker)

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics; called for each scrape."""
        from ._delayed_families import families_of

        factories = [factory for each in self._factories if (factory := each()) is not None]
        trackers = [*self._trackers.all(), *(each for factory in factories for each in factory.trackers())]
        once = {id(each.tracker): each for each in trackers}
        return families_of(once.values(), self._cluster, subscriptions=self._subscriptions)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, so that a registry sees that their names are taken."""
        from ._delayed_families import described

        return described()
