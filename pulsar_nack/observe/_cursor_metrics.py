"""The metric of acknowledgement state for Prometheus, as the broker has it (PIP-299)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from ..errors import ClosedError, InvalidArgumentError, MissingExtraError
from ._delayed_figures import full_name, namespace_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

_SIZE: Final = "pulsar_cursor_metadata_size_bytes"
_DOCUMENTATION: Final = "What the acknowledgement state of a subscription takes when it is persisted."
_LABELS: Final = ("cluster", "namespace", "topic", "subscription")
_LEAST: Final = 16


class MeasuredCursor(Protocol):
    """A cursor that tells its size."""

    @property
    def metadata_size_bytes(self) -> int:
        """Return what persisting its whole state would take, in bytes. O(1), from any thread."""
        ...


class CursorMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over cursors: ``pulsar_cursor_metadata_size_bytes``.

    Name, type and labels are those of PIP-299; the value is the live size of each cursor at the time of the scrape,
    with what was not persisted yet. Cursors are held weakly, and closed ones are left out. Any thread may scrape.

    ::

        metrics = CursorMetrics(prometheus_client.REGISTRY, cluster="eu")
        metrics.add(cursor, topic_name="orders", subscription="billing")

    :param registry: where it is registered, None: nowhere; it is a collector that you can register
    :param cluster: the label ``cluster``
    :raises MissingExtraError: prometheus-client is not installed
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, cluster: str = "") -> None:
        if not isinstance(cluster, str):
            raise InvalidArgumentError("cluster", cluster, "a string")
        self._make_gauge = _gauge_family()
        self._cluster = cluster
        self._cursors: dict[tuple[str, str], ref[MeasuredCursor]] = {}
        self._look_at = _LEAST
        if registry is not None:
            registry.register(self)

    def add(self, cursor: MeasuredCursor, *, topic_name: str, subscription: str) -> None:
        """Look at a cursor from now on, until it is closed or nobody else holds it.

        :raises InvalidArgumentError: an open cursor of this subscription was added before
        """
        for field, value in (("topic_name", topic_name), ("subscription", subscription)):
            if not isinstance(value, str):
                raise InvalidArgumentError(field, value, "a string")
        key = full_name(topic_name), subscription
        before = self._size(key)
        if before is not None and self._cursors[key]() is not cursor:
            raise InvalidArgumentError("subscription", subscription, "a subscription whose cursor was not added yet")
        self._cursors[key] = ref(cursor)
        self._forget_closed()

    def collect(self) -> Iterator[Metric]:
        """Return the metric of this moment; called for each scrape."""
        family = self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)
        for key in sorted(self._cursors):
            size = self._size(key)
            if size is not None:
                topic, subscription = key
                family.add_metric((self._cluster, namespace_of(topic), topic, subscription), size)
        yield family

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples, so that a registry finds a name that is taken."""
        yield self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)

    def _size(self, key: tuple[str, str]) -> int | None:
        """Return the size of a cursor that is open."""
        reference = self._cursors.get(key)
        cursor = None if reference is None else reference()
        if cursor is None or getattr(cursor, "is_closed", False):
            return None
        try:
            return cursor.metadata_size_bytes
        except ClosedError:
            return None

    def _forget_closed(self) -> None:
        """Look through all, but not before there are twice as many as were left the last time."""
        if len(self._cursors) >= self._look_at:
            self._cursors = {key: each for key, each in self._cursors.items() if self._size(key) is not None}
            self._look_at = max(_LEAST, 2 * len(self._cursors))


def _gauge_family() -> Any:
    try:
        from prometheus_client.core import GaugeMetricFamily
    except ImportError as error:
        raise MissingExtraError("the export of metrics", "prometheus-client>=0.20", "metrics") from error
    return GaugeMetricFamily
