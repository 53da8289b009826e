"""The metrics of delayed delivery: PIP-195's names, types and labels, from trackers that come and go."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import urllib.request
import weakref
from collections.abc import Iterable
from typing import Any

import pytest

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, InMemoryDelayedDeliveryTracker, InvalidArgumentError
from pulsar_nack._topic_pattern import full_name
from pulsar_nack.delayed import DelayedDeliveryTrackerFactory
from pulsar_nack.delayed.bucket._statistics import OperationCounters
from pulsar_nack.errors import InjectedError, MissingExtraError
from pulsar_nack.observe import DelayedMetrics
from pulsar_nack.observe._scraping import namespace_of
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage
from tests.for_each import for_each
from tests.patience import patience
from tests.processes import run_python

prometheus = pytest.importorskip("prometheus_client")

TOPIC = "persistent://public/default/orders"
INDEX = "pulsar_delayed_message_index_"
OPERATIONS = ("create", "load", "delete", "merge")
STATES = ("all", "succeed", "failed")
QUANTILES = ("50", "100", "500", "1000", "5000", "30000", "60000", "overflow")
LINE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
CONFIG = BucketConfig(
    delayedDeliveryTrackerFactoryClassName="bucket",
    delayed_delivery_tick_time_millis=1,
    is_delayed_delivery_deliver_at_time_strict=True,
    delayed_delivery_min_index_count_per_bucket=5,
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=0.01,
)

Key = tuple[str, frozenset[tuple[str, str]]]


class Exposed:
    """A scrape: types and values."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self.types = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))
        self.values: dict[Key, float] = {}
        for line in lines:
            if not line.startswith("#"):
                match = LINE.fullmatch(line)
                assert match is not None, line
                labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match["labels"] or ""))
                assert (match["name"], labels) not in self.values, f"twice: {line}"
                self.values[match["name"], labels] = float(match["value"])

    def get(self, name: str, **labels: str) -> float:
        """Return the value of a topic's sample."""
        return self.values[name, frozenset({"cluster": "eu", "namespace": "public/default", **labels}.items())]

    def labels(self, name: str) -> set[frozenset[str]]:
        """Return the sets of labels that a name has."""
        return {frozenset(key for key, _ in labels) for each, labels in self.values if each == name}


def exposed(registry: Any) -> Exposed:
    """Export a registry as text, and parse it."""
    return Exposed(prometheus.generate_latest(registry).decode())


class Scene:
    """A storage and a clock, a factory, and metrics over it in a separate registry."""

    def __init__(self, config: BucketConfig = CONFIG, **options: Any) -> None:
        self.clock = ManualClock(0)
        self.storage = MemorySnapshotStorage()
        self.registry = prometheus.CollectorRegistry()
        self.metrics = DelayedMetrics(self.registry, cluster="eu", **options)
        self.factory = DelayedDeliveryTrackerFactory(config, self.storage, clock=self.clock)
        self.metrics.watch(self.factory)
        self.kept: list[Any] = []

    async def tracker(self, name: str = "billing", cursor: MemoryDelayedCursor | None = None) -> Any:
        """Make a tracker, and keep it: the factory does not."""
        tracker = await self.factory.new_tracker(cursor or MemoryDelayedCursor(), topic_name=TOPIC, cursor_name=name)
        self.kept.append(tracker)
        return tracker


async def filled(tracker: BucketDelayedDeliveryTracker, count: int) -> None:
    """Add (i, i, 10 i)."""
    assert all(tracker.add_message(i, i, 10 * i) for i in range(1, count + 1))
    await tracker.wait_until_idle()


def sized(entries: Iterable[Iterable[bytes]]) -> int:
    """Return the bytes of snapshots."""
    return sum(len(entry) for snapshot in entries for entry in snapshot)


# -- names -----------------------------------------------------------------------------------------------------------


async def test_names_types_and_labels() -> None:
    """The text has each name of the proposal, with its type and its labels, and no other name."""
    scene = Scene()
    async with scene.factory:
        await filled(await scene.tracker(), 16)
        seen = exposed(scene.registry)
    assert seen.types == {
        "pulsar_subscription_delayed": "gauge",
        "pulsar_subscription_delayed_message_index_size_bytes": "gauge",
        "pulsar_delayed_message_index_size_bytes": "gauge",
        "pulsar_delayed_message_index_bucket_total": "gauge",
        "pulsar_delayed_message_index_loaded": "gauge",
        "pulsar_delayed_message_index_bucket_snapshot_size_bytes": "gauge",
        "pulsar_delayed_message_index_bucket_op_count": "counter",
        "pulsar_delayed_message_index_bucket_op_latency_ms": "histogram",
    }
    topic = {"cluster", "namespace", "topic"}
    for name in (INDEX + "bucket_total", INDEX + "loaded", INDEX + "bucket_snapshot_size_bytes"):
        assert seen.labels(name) == {frozenset(topic), frozenset(topic | {"subscription"})}
    for name, more in (
        (INDEX + "bucket_op_count", {"state", "type"}),
        (INDEX + "bucket_op_latency_ms", {"type", "quantile"}),
        (INDEX + "bucket_op_latency_ms_count", {"type"}),
        (INDEX + "bucket_op_latency_ms_sum", {"type"}),
    ):
        assert seen.labels(name) == {frozenset(topic | more), frozenset(topic | more | {"subscription"})}
    names = {name for name, _ in seen.values}
    assert names - set(seen.types) == {INDEX + "bucket_op_latency_ms_count", INDEX + "bucket_op_latency_ms_sum"}


async def test_every_operation_is_there_from_the_beginning() -> None:
    """All types, states and limits are exported, with 0 if nothing has happened, so that rates can be taken."""
    scene = Scene(subscriptions=False)
    async with scene.factory:
        await scene.tracker()
        seen = exposed(scene.registry)
    for kind in OPERATIONS:
        for state in STATES:
            assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type=kind, state=state) == 0
        for quantile in QUANTILES:
            assert seen.get(INDEX + "bucket_op_latency_ms", topic=TOPIC, type=kind, quantile=quantile) == 0
    counted = [key for key in seen.values if key[0].startswith(INDEX + "bucket_op")]
    assert len(counted) == len(OPERATIONS) * (len(STATES) + len(QUANTILES) + 2)
    assert seen.get(INDEX + "bucket_total", topic=TOPIC) == 1  # the one that is being filled


# -- values ----------------------------------------------------------------------------------------------------------


async def test_values() -> None:
    """Buckets, memory, bytes on storage, and operations agree with the tracker and the storage."""
    scene = Scene()
    async with scene.factory:
        tracker = await scene.tracker()
        await filled(tracker, 16)
        seen = exposed(scene.registry)
        assert seen.get(INDEX + "bucket_total", topic=TOPIC) == len(scene.storage.snapshots) + 1 == 4
        assert seen.get(INDEX + "loaded", topic=TOPIC) == tracker.statistics().loaded >= 1
        size = sized(scene.storage.snapshots.values())
        assert seen.get(INDEX + "bucket_snapshot_size_bytes", topic=TOPIC) == size > 0
        assert seen.get("pulsar_subscription_delayed", topic=TOPIC, subscription="billing") == 16
        memory = tracker.buffer_memory_usage
        assert seen.get(INDEX + "size_bytes", topic=TOPIC) == memory > 0
        assert (
            seen.get("pulsar_subscription_delayed_message_index_size_bytes", topic=TOPIC, subscription="billing")
            == memory
        )
        assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="create", state="succeed") == 3
        assert seen.get(INDEX + "bucket_op_latency_ms_count", topic=TOPIC, type="create") == 3
        scene.storage.faults.fail["delete"] = 1
        scene.clock.set(200)
        while tracker.has_message_available():
            tracker.get_scheduled_messages(100)
            await tracker.wait_until_idle()
        await tracker.wait_until_idle()
        scene.clock.advance(1_000)
        await tracker.wait_until_idle()
        seen = exposed(scene.registry)
    assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="delete", state="all") == 4
    assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="delete", state="failed") == 1
    assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="delete", state="succeed") == 3
    assert seen.get(INDEX + "bucket_op_latency_ms_count", topic=TOPIC, type="delete") == 3
    assert seen.get(INDEX + "bucket_snapshot_size_bytes", topic=TOPIC) == 0
    assert seen.get(INDEX + "bucket_total", topic=TOPIC) == 1


async def test_sizes_are_known_after_a_restart() -> None:
    """The bytes that an earlier run stored are counted, once, and are gone when it is deleted."""
    scene, cursor = Scene(), MemoryDelayedCursor()
    async with scene.factory:
        await filled(await scene.tracker(cursor=cursor), 16)
    again = Scene()
    again.storage = scene.storage
    again.factory = DelayedDeliveryTrackerFactory(CONFIG, scene.storage, clock=again.clock)
    again.metrics.watch(again.factory)
    async with again.factory:
        tracker = await again.tracker(cursor=cursor)
        size = sized(scene.storage.snapshots.values())
        assert exposed(again.registry).get(INDEX + "bucket_snapshot_size_bytes", topic=TOPIC) == size > 0
        await tracker.clear()
        await tracker.wait_until_idle()
        assert exposed(again.registry).get(INDEX + "bucket_snapshot_size_bytes", topic=TOPIC) == 0


async def test_a_size_that_cannot_be_had() -> None:
    """A storage without sizes does not delay recovery; the bytes of that snapshot are not exported."""
    scene, cursor = Scene(), MemoryDelayedCursor()
    async with scene.factory:
        await filled(await scene.tracker(cursor=cursor), 16)

    class Silent(MemorySnapshotStorage):
        async def get_bucket_snapshot_length(self, snapshot_id: int) -> int:
            raise InjectedError("length")

    storage = Silent()
    storage.snapshots = scene.storage.snapshots
    async with await BucketDelayedDeliveryTracker.open(storage, cursor, CONFIG, clock=scene.clock) as tracker:
        statistics = tracker.statistics()
        assert (statistics.messages, statistics.snapshot_bytes, statistics.last_error) == (15, 0, None)
        await tracker.clear()
        await tracker.wait_until_idle()
        assert tracker.statistics().snapshot_bytes == 0
        assert storage.snapshots == {}


@pytest.mark.parametrize("call", ["put", "remove"])
async def test_sizes_follow_what_is_stored(call: str) -> None:
    """A snapshot that could not be named is deleted again, and one whose name could not be removed is not counted."""
    scene, cursor = Scene(), MemoryDelayedCursor()
    cursor.faults.fail[call] = 1
    async with scene.factory:
        tracker = await scene.tracker(cursor=cursor)
        await filled(tracker, 16)
        for _ in range(5):
            assert tracker.statistics().snapshot_bytes == sized(scene.storage.snapshots.values())
            scene.clock.advance(100)
            while tracker.has_message_available():
                tracker.get_scheduled_messages(100)
                await tracker.wait_until_idle()
            await tracker.wait_until_idle()
        assert scene.storage.snapshots == {}


async def test_topics_are_the_sum_of_their_subscriptions() -> None:
    """Two subscriptions of a topic have separate samples, and are added up for the topic."""
    scene = Scene()
    async with scene.factory:
        await filled(await scene.tracker("a"), 16)
        await filled(await scene.tracker("b"), 11)
        seen = exposed(scene.registry)
    for name in ("bucket_total", "loaded", "bucket_snapshot_size_bytes", "size_bytes"):
        if name != "size_bytes":
            single = [seen.get(INDEX + name, topic=TOPIC, subscription=each) for each in "ab"]
            assert seen.get(INDEX + name, topic=TOPIC) == sum(single)
            assert all(single)
    assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="create", state="all") == 5
    assert seen.get(INDEX + "bucket_op_count", topic=TOPIC, type="create", state="all", subscription="b") == 2


async def test_a_shared_index_counts_once() -> None:
    """The buckets of an index that two subscriptions share are exported for their topic, and not twice."""
    scene = Scene(CONFIG.model_copy(update={"delayed_delivery_shared_index_enabled": True}))
    topic_cursor = MemoryDelayedCursor()
    async with scene.factory:
        a, b = [
            await scene.factory.new_tracker(
                MemoryDelayedCursor(), topic_name=TOPIC, cursor_name=name, topic_cursor=topic_cursor
            )
            for name in "ab"
        ]
        index = a.shared_index.tracker  # type: ignore[attr-defined]
        await filled(index, 16)
        seen = exposed(scene.registry)
        assert seen.get(INDEX + "bucket_total", topic=TOPIC) == 4
        assert seen.get(INDEX + "size_bytes", topic=TOPIC) == index.buffer_memory_usage
        assert seen.labels(INDEX + "bucket_total") == {frozenset({"cluster", "namespace", "topic"})}
        for name in "ab":
            assert seen.get("pulsar_subscription_delayed", topic=TOPIC, subscription=name) == 16
        assert b.number_of_delayed_messages == 16


async def test_in_memory() -> None:
    """A tracker in memory has its count and its memory, and nothing of buckets."""
    registry = prometheus.CollectorRegistry()
    metrics = DelayedMetrics(registry, cluster="eu")
    async with InMemoryDelayedDeliveryTracker(clock=ManualClock(0)) as tracker:
        tracker.add_messages(1, range(100), 10**6)
        metrics.add(tracker, topic_name="orders", subscription="billing")
        seen = exposed(registry)
        assert seen.get("pulsar_subscription_delayed", topic=TOPIC, subscription="billing") == 100
        assert seen.get(INDEX + "size_bytes", topic=TOPIC) == tracker.buffer_memory_usage
    assert {name for name, _ in seen.values} == {
        "pulsar_subscription_delayed",
        "pulsar_subscription_delayed_message_index_size_bytes",
        "pulsar_delayed_message_index_size_bytes",
    }


@for_each(
    ("took_ms", "quantile"),
    [
        (0, "50"), (50, "50"), (50.5, "100"), (100, "100"), (101, "500"), (500, "500"), (1_000, "1000"),
        (1_001, "5000"), (5_000, "5000"), (30_000, "30000"), (60_000, "60000"),
        (60_001, "overflow"), (10**7, "overflow"),
    ],
)  # fmt: skip
async def test_limits_of_latency(took_ms: float, quantile: str) -> None:
    """An operation counts once, at the lowest limit that it kept; the last has none."""
    now = 0.0

    def clock() -> float:
        return now

    operations = OperationCounters(clock)
    async with operations.counted("merge"):
        now += took_ms / 1000
    latency = operations.latency()
    assert latency["merge"].counts == tuple(int(each == quantile) for each in QUANTILES)
    assert latency["merge"].total_ms == pytest.approx(took_ms)
    assert latency["merge"].count == 1
    assert sum(latency["create"].counts) == 0


async def test_only_successes_have_a_latency() -> None:
    """An operation that fails is counted and not timed; a cancelled one only counts as begun."""
    operations = OperationCounters()
    with pytest.raises(InjectedError):
        async with operations.counted("load"):
            raise InjectedError("load")
    with pytest.raises(asyncio.CancelledError):
        async with operations.counted("load"):
            raise asyncio.CancelledError
    assert [operations.counts["load", state] for state in STATES] == [2, 0, 1]
    assert operations.latency()["load"].count == 0


# -- coming and going ------------------------------------------------------------------------------------------------


async def test_closed_trackers_are_not_exported() -> None:
    """A closed or dropped tracker is not in the next scrape, and nothing keeps it alive."""
    scene = Scene()
    async with scene.factory:
        tracker = await scene.tracker()
        local = InMemoryDelayedDeliveryTracker()
        scene.metrics.add(local, topic_name="other", subscription="x")
        assert len({labels for _, labels in exposed(scene.registry).values}) > 2
        await tracker.aclose()
        await local.aclose()
        assert exposed(scene.registry).values == {}
        gone = [weakref.ref(tracker), weakref.ref(local)]
        del tracker, local
        scene.kept.clear()
        gc.collect()
        assert [each() for each in gone] == [None, None]
        tracker = await scene.tracker()
        assert exposed(scene.registry).values != {}
    assert exposed(scene.registry).values == {}
    factory = weakref.ref(scene.factory)
    del scene.factory, scene.kept, tracker
    gc.collect()
    assert factory() is None
    assert exposed(scene.registry).values == {}


async def test_a_thousand_trackers_leave_nothing() -> None:
    """Added and closed one after another, trackers leave no entries behind."""
    metrics = DelayedMetrics()
    for number in range(1_000):
        async with InMemoryDelayedDeliveryTracker() as tracker:
            metrics.add(tracker, subscription=str(number))
    assert len(metrics._trackers._trackers) < 64


async def test_nothing_is_exported_twice() -> None:
    """A tracker that was added and is also a factory's counts once; two of one name are summed."""
    scene = Scene()
    async with scene.factory, InMemoryDelayedDeliveryTracker(clock=scene.clock) as other:
        tracker = await scene.tracker()
        await filled(tracker, 7)
        scene.metrics.watch(scene.factory)
        scene.metrics.add(tracker, topic_name=TOPIC, subscription="billing")
        assert exposed(scene.registry).get("pulsar_subscription_delayed", topic=TOPIC, subscription="billing") == 7
        with pytest.raises(InvalidArgumentError, match="cursor_name"):
            scene.metrics.add(other, topic_name=TOPIC, subscription="billing")
        other.add_messages(1, range(10), 10**9)
        scene.metrics.add(other, topic_name="orders", subscription="billing")
        assert exposed(scene.registry).get("pulsar_subscription_delayed", topic=TOPIC, subscription="billing") == 17


@pytest.mark.parametrize(
    ("name", "full", "namespace"),
    [
        ("orders", TOPIC, "public/default"),
        ("acme/shop/orders", "persistent://acme/shop/orders", "acme/shop"),
        ("non-persistent://acme/shop/orders", "non-persistent://acme/shop/orders", "acme/shop"),
        ("persistent://acme/eu/shop/orders", "persistent://acme/eu/shop/orders", "acme/eu/shop"),
        ("acme/eu/shop/orders", "acme/eu/shop/orders", ""),  # brokers refuse it: short names have one part or three
        ("acme/orders", "acme/orders", ""),
        ("persistent://orders", "persistent://orders", ""),
        ("", "", ""),
    ],
)
def test_names_of_topics(name: str, full: str, namespace: str) -> None:
    """Topics are labelled with their full names, like the broker's, and with their namespaces."""
    assert full_name(name) == full
    assert namespace_of(full) == namespace


# -- scraping --------------------------------------------------------------------------------------------------------


async def test_scraped_over_http() -> None:
    """A server of prometheus-client in its own thread gives the same text, as OpenMetrics too, or some names."""
    scene = Scene()
    server, thread = prometheus.start_http_server(0, "127.0.0.1", registry=scene.registry)

    async def scraped(query: str = "", **headers: str) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/metrics{query}", headers=headers)
        return await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=patience(10)).read().decode())

    try:
        async with scene.factory:
            await filled(await scene.tracker(), 16)
            plain = exposed(scene.registry)
            text = await scraped()
            assert Exposed(text).values == plain.values
            assert f"# TYPE {INDEX}bucket_op_count counter\n" in text
            name = INDEX + "bucket_op_count"
            some = Exposed(await scraped(f"?name[]={name}"))
            assert {each for each, _ in some.values} == {name}
            assert some.types == {name: "counter"}
            answer = await scraped(Accept="application/openmetrics-text; version=1.0.0")
            seen = Exposed(answer.replace("# EOF\n", ""))
            assert (seen.types, seen.values) == (plain.types, plain.values)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(patience(10))


@pytest.mark.slow
async def test_scraped_while_the_loop_works() -> None:
    """Another thread may scrape at any time, while messages are added, stored, merged and taken out."""
    scene = Scene(CONFIG.model_copy(update={"delayed_delivery_max_num_buckets": 3}))
    errors: list[Exception] = []
    scrapes = 0
    is_over = threading.Event()

    def scrape() -> None:
        nonlocal scrapes
        while not is_over.is_set():
            try:
                exposed(scene.registry)
            except Exception as error:  # noqa: BLE001 - checked below
                errors.append(error)
            scrapes += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=scrape)
    try:
        sys.setswitchinterval(1e-5)
        async with scene.factory:
            thread.start()
            for number in range(10):
                tracker = await scene.tracker(f"s{number % 3}")
                await filled(tracker, 60)
                scene.clock.set(0)
                await tracker.clear()
                await tracker.aclose()
            while scrapes < 20:
                await asyncio.sleep(0.01)
    finally:
        is_over.set()
        thread.join(patience(20))
        sys.setswitchinterval(interval)
    assert errors == []


@pytest.mark.parametrize(("failures", "is_exported"), [(3, True), (1_000, False)])
async def test_a_table_that_changes_meanwhile_is_read_again(
    failures: int, is_exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracker that changes while its figures are read is read again, some times; the others are always exported."""
    scene = Scene()
    left = failures
    statistics = BucketDelayedDeliveryTracker.statistics

    def changing(tracker: BucketDelayedDeliveryTracker) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise RuntimeError("deque mutated during iteration")
        return statistics(tracker)

    async with scene.factory:
        await filled(await scene.tracker(), 7)
        with monkeypatch.context() as patch:
            patch.setattr(BucketDelayedDeliveryTracker, "statistics", changing)
            seen = exposed(scene.registry)
    assert seen.get("pulsar_subscription_delayed", topic=TOPIC, subscription="billing") == 7
    assert bool(seen.labels(INDEX + "bucket_total")) == is_exported


def test_registering() -> None:
    """A registry finds that names are taken, releases them, and the collector can be registered directly."""
    registry = prometheus.CollectorRegistry()
    metrics = DelayedMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        DelayedMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus.Gauge(INDEX + "loaded", "mine", registry=registry)
    registry.unregister(metrics)
    registry.register(DelayedMetrics())
    with pytest.raises(InvalidArgumentError, match="cluster"):
        DelayedMetrics(cluster=5)  # type: ignore[arg-type]


def test_labels_are_escaped() -> None:
    """A name with quotes, a backslash or a line end is escaped."""
    registry = prometheus.CollectorRegistry()
    metrics = DelayedMetrics(registry, cluster='a"b')
    tracker = InMemoryDelayedDeliveryTracker()
    metrics.add(tracker, topic_name="x", subscription="back\\slash\n")
    text = prometheus.generate_latest(registry).decode()
    assert r'cluster="a\"b"' in text
    assert r'subscription="back\\slash\n"' in text


@pytest.mark.slow
def test_prometheus_client_is_imported_late() -> None:
    """The package is imported when metrics are created, and the error names the extra if it is missing."""
    code = (
        "import sys, pulsar_nack.observe as observe\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "sys.modules['prometheus_client'] = None\n"
        "from pulsar_nack import MissingExtraError\n"
        "for make in (observe.DelayedMetrics, observe.CursorMetrics):\n"
        "    try:\n"
        "        make()\n"
        "    except MissingExtraError as error:\n"
        "        print(error.extra, error)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    err_lines = done.stdout.splitlines()
    assert len(err_lines) == 2
    assert all(line.startswith("metrics ") and "pip install 'pulsar-nack[metrics]'" in line for line in err_lines)
    assert issubclass(MissingExtraError, ImportError)
