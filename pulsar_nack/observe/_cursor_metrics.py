"""The metric of acknowledgement state for Prometheus, as the broker has it (PIP-299).

A cursor sums its size up when it is asked for it, so it must not be asked while another thread changes it. A scrape in
a thread of its own, as the server of prometheus-client makes it, has the event loop ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
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
_PATIENCE_S: Final = 1.0

_Key = tuple[str, str]


class MeasuredCursor(Protocol):
    """A cursor that tells its size."""

    @property
    def metadata_size_bytes(self) -> int:
        """Return what persisting its whole state would take, in bytes. Called in the event loop."""
        ...


@dataclass(slots=True)
class _Watched:
    """A cursor, the loop in which it was added, and its size when it was last asked for; None: it is closed."""

    cursor: ref[MeasuredCursor]
    loop: ref[asyncio.AbstractEventLoop] | None
    size: int | None = None

    def measure(self) -> None:
        """Ask for the size."""
        cursor = self.cursor()
        try:
            is_open = cursor is not None and not getattr(cursor, "is_closed", False)
            self.size = cursor.metadata_size_bytes if cursor is not None and is_open else None
        except ClosedError:
            self.size = None


class CursorMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over cursors: ``pulsar_cursor_metadata_size_bytes``.

    Name, type and labels are those of PIP-299; the value is the live size of each cursor at the time of the scrape,
    with what was not persisted yet. Cursors are held weakly, and closed ones are left out. Any thread may scrape: the
    event loop in which a cursor was added is asked for its size, and where it does not answer within a second the one
    of the last scrape is told.

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
        self._cursors: dict[_Key, _Watched] = {}
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
        before = self._cursors.get(key)
        if before is not None and before.cursor() is not cursor:
            before.measure()
            if before.size is not None:
                raise InvalidArgumentError(
                    "subscription", subscription, "a subscription whose cursor was not added yet"
                )
        self._cursors[key] = watched = _Watched(ref(cursor), _running_loop())
        watched.measure()
        self._forget_closed()

    def collect(self) -> Iterator[Metric]:
        """Return the metric of this moment; called for each scrape."""
        watched = dict(self._cursors)
        _measure_all(watched.values())
        family = self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)
        for (topic, subscription), each in sorted(watched.items()):
            if each.size is not None:
                family.add_metric((self._cluster, namespace_of(topic), topic, subscription), each.size)
        yield family

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples, so that a registry finds a name that is taken."""
        yield self._make_gauge(_SIZE, _DOCUMENTATION, labels=_LABELS)

    def _forget_closed(self) -> None:
        """Look through all, but not before there are twice as many as were left the last time."""
        if len(self._cursors) >= self._look_at:
            _measure_all(self._cursors.values())
            self._cursors = {key: each for key, each in self._cursors.items() if each.size is not None}
            self._look_at = max(_LEAST, 2 * len(self._cursors))


def _running_loop() -> ref[asyncio.AbstractEventLoop] | None:
    try:
        return ref(asyncio.get_running_loop())
    except RuntimeError:
        return None


def _measure_all(watched: Iterable[_Watched]) -> None:
    """Ask each cursor for its size, in its loop where that runs in another thread."""
    elsewhere: dict[asyncio.AbstractEventLoop, list[_Watched]] = {}
    here = _running_loop()
    for each in watched:
        loop = None if each.loop is None or each.loop == here else each.loop()
        if loop is not None and loop.is_running():
            elsewhere.setdefault(loop, []).append(each)
        else:
            each.measure()
    for loop, some in elsewhere.items():
        _measure_in(loop, some)


def _measure_in(loop: asyncio.AbstractEventLoop, some: list[_Watched]) -> None:
    done: Future[None] = Future()

    def measure() -> None:
        try:
            for each in some:
                each.measure()
        finally:
            done.set_result(None)

    with suppress(RuntimeError, TimeoutError):  # it was closed just now, or has no time: the last sizes will do
        loop.call_soon_threadsafe(measure)
        done.result(_PATIENCE_S)


def _gauge_family() -> Any:
    try:
        from prometheus_client.core import GaugeMetricFamily
    except ImportError as error:
        raise MissingExtraError("the export of metrics", "prometheus-client>=0.20", "metrics") from error
    return GaugeMetricFamily
