"""The size of acknowledgement state as a metric, read back from what a scraper gets."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import prometheus_client as prometheus
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulsar_nack import ClosedError, Cursor, InvalidArgumentError
from pulsar_nack.observe import CursorMetrics

NAME = "pulsar_cursor_metadata_size_bytes"
LABELS = ("cluster", "namespace", "topic", "subscription")
TOPIC = "persistent://public/default/orders"


class Sized:
    """Something with the size of a cursor."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_closed = False
        self.raises = False

    @property
    def metadata_size_bytes(self) -> int:
        """Return the size that was given."""
        if self.raises:
            raise ClosedError("the cursor")
        return self.size


def scraped(registry: prometheus.CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return the values by cluster, namespace, topic and subscription."""
    (family,) = text_string_to_metric_families(prometheus.generate_latest(registry).decode())
    assert (family.name, family.type) == (NAME, "gauge")
    found = {}
    for sample in family.samples:
        assert set(sample.labels) == set(LABELS)
        found[tuple(sample.labels[label] for label in LABELS)] = sample.value
    return found


def test_gauge() -> None:
    """K47: a gauge in bytes with four labels, of each cursor as it is at the time of the scrape."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry, cluster="eu")
    cursors = [Sized(100), Sized(5_242_880)]
    metrics.add(cursors[0], topic_name="orders", subscription="billing")
    metrics.add(cursors[1], topic_name="non-persistent://acme/shop/o", subscription="x")
    assert scraped(registry) == {
        ("eu", "public/default", TOPIC, "billing"): 100,
        ("eu", "acme/shop", "non-persistent://acme/shop/o", "x"): 5_242_880,
    }
    cursors[0].size = 3
    assert scraped(registry)["eu", "public/default", TOPIC, "billing"] == 3
    assert f"# TYPE {NAME} gauge\n" in prometheus.generate_latest(registry).decode()


def test_closed_cursors_are_left_out() -> None:
    """A cursor that was closed, that says so, or that nobody holds is not told; its subscription may be added anew."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    closed, raising, dropped = Sized(1), Sized(2), Sized(3)
    for name, cursor in (("a", closed), ("b", raising), ("c", dropped)):
        metrics.add(cursor, topic_name="t", subscription=name)
    assert len(scraped(registry)) == 3
    closed.is_closed = raising.raises = True
    del dropped, cursor
    gc.collect()
    assert scraped(registry) == {}
    reopened = Sized(7)
    metrics.add(reopened, topic_name="t", subscription="a")
    assert list(scraped(registry).values()) == [7]


async def test_real_cursor(tmp_path: Path) -> None:
    """K47: a cursor's gauge is its size with what was not flushed yet; closed, it is told no more."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    async with await Cursor.open_local(tmp_path, {1: 1_000}) as cursor:
        metrics.add(cursor, topic_name="orders", subscription="billing")
        (empty,) = scraped(registry).values()
        await cursor.acknowledge([(1, entry) for entry in range(1, 1_000, 2)])
        (full,) = (await asyncio.to_thread(scraped, registry)).values()
        assert full == cursor.metadata_size_bytes > empty
        await cursor.acknowledge_cumulative((1, 999))
        (drained,) = scraped(registry).values()
        assert drained < full
    assert scraped(registry) == {}


async def test_scraped_in_another_thread() -> None:
    """A scrape in a thread of its own asks in the event loop, which goes on meanwhile; a stuck one costs a second."""

    class InLoop(Sized):
        @property
        def metadata_size_bytes(self) -> int:
            asyncio.get_running_loop()  # raises in another thread
            return self.size

    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    cursor = InLoop(5)
    metrics.add(cursor, topic_name="t", subscription="a")
    assert list(scraped(registry).values()) == [5]
    cursor.size = 6
    assert list((await asyncio.to_thread(scraped, registry)).values()) == [6]
    cursor.size = 7
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(scraped, registry)
        assert list(found.result(20).values()) == [6]  # this blocks the loop, so the last size is told
    await asyncio.sleep(0)
    cursor.is_closed = True
    assert await asyncio.to_thread(scraped, registry) == {}


def test_scraped_after_its_loop_ended() -> None:
    """Once the loop has ended a cursor that was left open is asked where the scrape is."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    cursor = Sized(5)

    async def add() -> None:
        metrics.add(cursor, topic_name="t", subscription="a")

    asyncio.run(add())
    cursor.size = 6
    assert list(scraped(registry).values()) == [6]


def test_a_subscription_has_one_cursor() -> None:
    """Another open cursor of the same subscription is refused, also by its topic's whole name; the same one is not."""
    metrics = CursorMetrics()
    cursor = Sized(1)
    metrics.add(cursor, topic_name="orders", subscription="billing")
    metrics.add(cursor, topic_name=TOPIC, subscription="billing")
    with pytest.raises(InvalidArgumentError, match="subscription"):
        metrics.add(Sized(2), topic_name=TOPIC, subscription="billing")


def test_a_thousand_cursors_leave_nothing() -> None:
    """Added and dropped one after the other, cursors leave no entries behind."""
    metrics = CursorMetrics()
    for number in range(1_000):
        metrics.add(Sized(1), topic_name="t", subscription=str(number))
    assert len(metrics._cursors) < 64


def test_registering_and_bad_arguments() -> None:
    """A registry finds that the name is taken; what is no text is refused by name."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus.Gauge(NAME, "mine", registry=registry)
    registry.unregister(metrics)
    registry.register(CursorMetrics())
    with pytest.raises(InvalidArgumentError, match="cluster"):
        CursorMetrics(cluster=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="topic_name"):
        metrics.add(Sized(1), topic_name=None, subscription="x")  # type: ignore[arg-type]
