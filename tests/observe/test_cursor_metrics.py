"""The size of acknowledgement state as a metric, as a scraper gets it."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import prometheus_client as prometheus
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulsar_nack import Cursor, InvalidArgumentError
from pulsar_nack.observe import CursorMetrics

NAME = "pulsar_cursor_metadata_size_bytes"
LABELS = ("cluster", "namespace", "topic", "subscription")
TOPIC = "persistent://public/default/orders"


class Sized:
    """The parts of a cursor that the metrics read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_closed = False

    @property
    def metadata_size_bytes(self) -> int:
        """Return the size that was given."""
        return self.size


def add(metrics: CursorMetrics, cursor: Sized, topic_name: str, subscription: str) -> None:
    """Add a stand-in for a cursor."""
    metrics.add(cast("Cursor", cursor), topic_name=topic_name, subscription=subscription)


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
    add(metrics, cursors[0], "orders", "billing")
    add(metrics, cursors[1], "non-persistent://acme/shop/o", "x")
    assert scraped(registry) == {
        ("eu", "public/default", TOPIC, "billing"): 100,
        ("eu", "acme/shop", "non-persistent://acme/shop/o", "x"): 5_242_880,
    }
    cursors[0].size = 3
    assert scraped(registry)["eu", "public/default", TOPIC, "billing"] == 3
    assert f"# TYPE {NAME} gauge\n" in prometheus.generate_latest(registry).decode()


def test_closed_cursors_are_left_out() -> None:
    """A cursor that was closed or dropped is left out; its subscription may be added again."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    closed, dropped = Sized(1), Sized(2)
    for name, cursor in (("a", closed), ("b", dropped)):
        add(metrics, cursor, "t", name)
    assert len(scraped(registry)) == 2
    closed.is_closed = True
    del dropped, cursor
    gc.collect()
    assert scraped(registry) == {}
    reopened = Sized(7)
    add(metrics, reopened, "t", "a")
    assert list(scraped(registry).values()) == [7]


async def test_real_cursor(tmp_path: Path) -> None:
    """K47: a cursor's gauge is its size with unflushed changes; a closed cursor has none."""
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
    """A scrape in another thread reads the size in the event loop, which continues; a stuck loop costs a second."""

    class InLoop(Sized):
        @property
        def metadata_size_bytes(self) -> int:
            asyncio.get_running_loop()  # raises in another thread
            return self.size

    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    cursor = InLoop(5)
    add(metrics, cursor, "t", "a")
    assert list(scraped(registry).values()) == [5]
    cursor.size = 6
    assert list((await asyncio.to_thread(scraped, registry)).values()) == [6]
    cursor.size = 7
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(scraped, registry)
        assert list(found.result(20).values()) == [6]  # this blocks the loop, so the last size is exported
    await asyncio.sleep(0)
    cursor.is_closed = True
    assert await asyncio.to_thread(scraped, registry) == {}


def test_scraped_after_its_loop_ended() -> None:
    """Once the loop has ended a cursor that was left open is read in the scraping thread."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    cursor = Sized(5)

    async def add_in_a_loop() -> None:
        add(metrics, cursor, "t", "a")

    asyncio.run(add_in_a_loop())
    cursor.size = 6
    assert list(scraped(registry).values()) == [6]


def test_a_subscription_has_one_cursor() -> None:
    """Another open cursor of the same subscription is refused, also by its topic's full name; the same one is not."""
    metrics = CursorMetrics()
    cursor = Sized(1)
    add(metrics, cursor, "orders", "billing")
    add(metrics, cursor, TOPIC, "billing")
    with pytest.raises(InvalidArgumentError, match="subscription"):
        add(metrics, Sized(2), TOPIC, "billing")


def test_a_thousand_cursors_leave_nothing() -> None:
    """Added and dropped one after another, cursors leave no entries behind."""
    metrics = CursorMetrics()
    for number in range(1_000):
        add(metrics, Sized(1), "t", str(number))
    assert len(metrics._cursors) < 64


def test_registering_and_bad_arguments() -> None:
    """A registry finds that the name is taken; other types than text are refused by name."""
    registry = prometheus.CollectorRegistry()
    metrics = CursorMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus.Gauge(NAME, "mine", registry=registry)
    registry.unregister(metrics)
    registry.register(CursorMetrics())
    with pytest.raises(InvalidArgumentError, match="cluster"):
        CursorMetrics(cluster=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="topic_name"):
        add(metrics, Sized(1), None, "x")  # type: ignore[arg-type]
