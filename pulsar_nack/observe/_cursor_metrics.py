"""The metric of acknowledgement state for Prometheus, as the broker has it (PIP-299).

A cursor computes its size when it is read, so no other thread may change it meanwhile. A scrape in another thread, as
the server of prometheus-client makes it, therefore reads the size in the cursor's event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from weakref import ref

from .._topic_pattern import full_name
from ..errors import InvalidArgumentError
from ._scraping import Watched, measure_all, namespace_of, prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from ..cursor import Cursor

_SIZE: Final = "pulsar_cursor_metadata_size_bytes"
_DOCUMENTATION: Final = "Size of the acknowledgement state of a subscription when it is persisted."
_LABELS: Final = ("cluster", "namespace", "topic", "subscription")
_MIN_SWEEP: Final = 16

_Key = tuple[str, str]


class _WatchedCursor(Watched):
    """A cursor, held weakly, and its size when it was last read; None: it is closed."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__()
        self.cursor = ref(cursor)
        self.size: int | None = None
        self.measure()

    def measure(self) -> None:
        """Read the size."""
        cursor = self.cursor()
        is_open = cursor is not None and not getattr(cursor, "is_closed", False)
        self.size = cursor.metadata_size_bytes if cursor is not None and is_open else None


class CursorMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over cursors: ``pulsar_cursor_metadata_size_bytes``.

    Name, type and labels are those of PIP-299; the value is the live size of each cursor at the time of the scrape,
    with changes that are not persisted yet. Cursors are held weakly, and closed ones are left out. Any thread may
    scrape: a size is read in the event loop in which the cursor was added. If that loop does not answer within a
    second, the size of the last scrape is exported.

    ::

        metrics = CursorMetrics(prometheus_client.REGISTRY, cluster="eu")
        metrics.add(cursor, topic_name="orders", subscription="billing")

    :param registry: the registry to register with; None: none, and you can register the collector yourself
    :param cluster: the label ``cluster``
    :raises MissingExtraError: prometheus-client is not installed
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, cluster: str = "") -> None:
        if not isinstance(cluster, str):
            raise InvalidArgumentError("cluster", cluster, "a string")
        self._make_gauge = prometheus().GaugeMetricFamily
        self._cluster = cluster
        self._cursors: dict[_Key, _WatchedCursor] = {}
        self._sweep_at = _MIN_SWEEP
        if registry is not None:
            registry.register(self)

    def add(self, cursor: Cursor, *, topic_name: str, subscription: str) -> None:
        """Export a cursor's size until the cursor is closed or garbage.

        :raises InvalidArgumentError: another open cursor of this subscription was added before
        """
        for field, value in (("topic_name", topic_name), ("subscription", subscription)):
            if not isinstance(value, str):
                raise InvalidArgumentError(field, value, "a string")
        key = full_name(topic_name), subscription
        before = self._cursors.get(key)
        if before is not None and before.cursor() is not cursor:
            before.measure()
            if before.size is not None:
                raise InvalidArgumentError(
                    "subscription", subscription, "a subscription whose cursor was not added yet"
                )
        self._cursors[key] = _WatchedCursor(cursor)
        self._forget_closed()

    def collect(self) -> Iterator[Metric]:
        """Return the current metric; called for each scrape."""
        watched = dict(self._cursors)
        measure_all(watched.values())
        family = self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)
        for (topic, subscription), each in sorted(watched.items()):
            if each.size is not None:
                family.add_metric((self._cluster, namespace_of(topic), topic, subscription), each.size)
        yield family

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples, so that a registry sees that its name is taken."""
        yield self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)

    def _forget_closed(self) -> None:
        """Remove closed cursors once there are twice as many as were left the last time."""
        if len(self._cursors) >= self._sweep_at:
            measure_all(self._cursors.values())
            self._cursors = {key: each for key, each in self._cursors.items() if each.size is not None}
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._cursors))
