"""The metrics of consumers, as a scraper and an OpenTelemetry reader get them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client as prometheus
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from pulsar_nack import Consumer, DeadLetterPolicy, InvalidArgumentError, NackConfig
from pulsar_nack.consumer import ConsumerStatistics, MessageRetried, RetryTopicPolicy
from pulsar_nack.observe import ConsumerMetrics
from pulsar_nack.observe._consumer_metrics import FIGURES, HISTOGRAMS, READ, prometheus_name
from pulsar_nack.testing import FakePort, FakePublisher, LocalBroker, virtual_time
from tests.consumer.ports import KINDS, Ports
from tests.consumer.ten_messages import PAYLOADS, check_statistics, counts_of, handle_ten

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
ORDERS = ("persistent://public/default/orders", "billing", "")
LABELS = {
    "pulsar_tenant": "public",
    "pulsar_namespace": "public/default",
    "pulsar_topic": "persistent://public/default/orders",
    "pulsar_subscription": "billing",
}
JAVA = "pulsar_client_consumer_message_"
OURS = "pulsar_nack_consumer_"


def named(port: FakePort, names: tuple[str, str, str] = ORDERS) -> FakePort:
    """Give a port the names of its topic and subscription."""
    port.__class__ = type("Named", (type(port),), {"names": names})
    return port


def scraped(metrics: ConsumerMetrics, **labels: str) -> dict[str, float]:
    """Return the values of one series by the names of the samples, with further labels behind a name."""
    registry = prometheus.CollectorRegistry()
    registry.register(metrics)
    wanted, found = {**LABELS, **labels}, {}
    for family in text_string_to_metric_families(prometheus.generate_latest(registry).decode()):
        for sample in family.samples:
            if wanted.items() <= sample.labels.items():
                others = sorted(value for label, value in sample.labels.items() if label not in wanted)
                found[" ".join([sample.name, *others])] = sample.value
    return found


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Return the data points of an OpenTelemetry reader by their names, with further attributes behind a name."""
    data = reader.get_metrics_data()
    found: dict[str, Any] = {}
    for resource in data.resource_metrics if data is not None else ():
        for metric in resource.scope_metrics[0].metrics:
            for point in metric.data.data_points:
                attributes = dict(point.attributes or {})
                assert attributes.pop("pulsar.topic") == ORDERS[0]
                assert attributes.pop("pulsar.subscription") == "billing"
                others = [str(value) for key, value in attributes.items() if key == "source"]
                found[" ".join([metric.name, *others])] = getattr(point, "value", point)
    return found


@pytest.mark.parametrize("kind", KINDS)
@virtual_time
async def test_ten_messages(kind: str) -> None:
    """U50: both exporters agree with the statistics, with three redeliveries in the histogram of lateness."""
    port = named(Ports(kind).port())
    for payload in PAYLOADS:
        port.topic.publish(payload)
    reader = InMemoryMetricReader()
    metrics = ConsumerMetrics(meter=MeterProvider([reader]).get_meter("test"))
    policy = DeadLetterPolicy(5, "dead", publisher=FakePublisher())
    async with Consumer(port, config=EXACT, dead_letter=policy) as consumer:
        metrics.add(consumer)
        await handle_ten(consumer)
        await asyncio.sleep(1)
        check_statistics(consumer)
        found, seen = scraped(metrics), read(reader)
        for name, figure in FIGURES.items():
            for label, statistic in figure.parts.items():
                value: Any = consumer.statistics()
                for part in statistic.split("."):
                    value = getattr(value, part)
                key = prometheus_name(name, figure.unit, figure.kind)
                assert found[f"{key} {label}".strip()] == value, name
                assert seen[f"{name} {label}".strip()] == value, name
    assert found[f"{JAVA}received_count_total"] == 13
    redelivered = found[f"{OURS}redeliveries_total broker"] + found[f"{OURS}redeliveries_total memory"]
    assert (redelivered, found[f"{JAVA}nack_total"]) == (3, 3)
    assert (found[f"{JAVA}dlq_total"], found[f"{JAVA}ack_total"]) == (2, 8)
    assert found[f"{OURS}lateness_seconds_count"] == found[f"{OURS}lateness_seconds_bucket 0.0025"] == 3
    assert found[f"{OURS}attempts_bucket 2"] == found[f"{OURS}attempts_count"] == 3
    lateness = seen["pulsar_nack.consumer.lateness"]
    assert (lateness.count, sum(lateness.bucket_counts[:2])) == (3, 3)
    assert lateness.explicit_bounds == HISTOGRAMS["pulsar_nack.consumer.lateness"].bounds
    assert seen["pulsar_nack.consumer.attempts"].sum == 6


@virtual_time
async def test_lateness_is_where_it_belongs() -> None:
    """Each redelivery is in the bucket of its lateness, whose limit is inclusive; the sum is in seconds."""
    metrics, port = ConsumerMetrics(), named(FakePort(latency=0.25))
    async with Consumer(port, config=EXACT, redelivery="broker") as consumer:
        metrics.add(consumer)
        port.topic.publish(b"one")
        for delay in (0, 0.15, 1):  # 250 ms, 100 ms, and in time
            await (await consumer.receive()).nack(delay)
        await (await consumer.receive()).ack()
        found = scraped(metrics)
    bounds = [f"{OURS}lateness_seconds_bucket {bound}" for bound in ("0.001", "0.05", "0.1", "0.25", "+Inf")]
    assert [found[bound] for bound in bounds] == [1, 1, 2, 3, 3]
    assert found[f"{OURS}lateness_seconds_sum"] == pytest.approx(0.35)
    assert found[f"{OURS}attempts_sum"] == 2 + 3 + 4


@virtual_time
async def test_several_consumers() -> None:
    """Consumers of one subscription are added up, others have separate series; adding one twice changes nothing."""
    metrics = ConsumerMetrics()
    mails = ("persistent://acme/shop/mails", "sender", "")
    ports = [named(FakePort()), named(FakePort()), named(FakePort(), mails)]
    for port in ports:
        port.topic.publish(b"one")
    async with Consumer(ports[0]) as one, Consumer(ports[1]) as other, Consumer(ports[2]) as mail:
        for consumer in (one, other, mail, one):
            metrics.add(consumer)
        for consumer in (one, other, mail):
            await (await consumer.receive()).nack(60)
        found = scraped(metrics)
        assert (found[f"{JAVA}nack_total"], found[f"{OURS}held"], found[f"{OURS}unacked_limit"]) == (2, 2, 100_000)
        shop = {"pulsar_tenant": "acme", "pulsar_namespace": "acme/shop", "pulsar_topic": mails[0]}
        assert scraped(metrics, **shop, pulsar_subscription="sender")[f"{JAVA}nack_total"] == 1


@virtual_time
async def test_closed_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters of a closed consumer stay in the sum; without an open one a series is removed, and may begin again."""
    metrics, now = ConsumerMetrics(keep_closed=300), [1000.0]
    monkeypatch.setattr("pulsar_nack.observe._consumer_metrics.time.monotonic", lambda: now[0])

    async def handle_one() -> None:
        port = named(FakePort())
        port.topic.publish(b"one")
        async with Consumer(port) as consumer:
            metrics.add(consumer)
            await (await consumer.receive()).ack()

    async with Consumer(named(FakePort())) as living:
        metrics.add(living)
        for count in (1, 2, 3):
            await handle_one()
            await asyncio.sleep(0)
            assert scraped(metrics)[f"{JAVA}ack_total"] == count
        now[0] += 10_000
        assert scraped(metrics)[f"{JAVA}ack_total"] == 3
    await asyncio.sleep(0)
    found = scraped(metrics)
    assert found[f"{JAVA}ack_total"] == 3
    assert f"{OURS}held" not in found
    now[0] += 299
    await handle_one()  # before it is forgotten
    await asyncio.sleep(0)
    assert scraped(metrics)[f"{JAVA}ack_total"] == 4
    now[0] += 300
    assert scraped(metrics) == {}
    await handle_one()
    await asyncio.sleep(0)
    assert scraped(metrics)[f"{JAVA}ack_total"] == 1


@virtual_time
async def test_nothing_is_kept_without_scrapes() -> None:
    """Consumers that are opened and closed, closed unopened or dropped unopened stay bounded without scrapes."""
    metrics = ConsumerMetrics(keep_closed=0)
    for number in range(200):
        port = named(FakePort(), (f"persistent://public/default/t{number}", "s", ""))
        consumer = Consumer(port)
        metrics.add(consumer)
        if number % 4 == 1:
            await consumer.aclose()
        elif number % 4 > 1:
            async with consumer:
                pass
        await asyncio.sleep(0)
        del consumer
        if number % 50 == 0:
            gc.collect()
    assert len(metrics._series) < 40
    await asyncio.sleep(0)
    gc.collect()
    for _ in range(2):
        scraped(metrics)
    assert metrics._series == {}


@virtual_time
async def test_a_dropped_consumer_closes_itself() -> None:
    """Metrics do not keep a dropped consumer open; its last figures are exported once more."""
    metrics, port = ConsumerMetrics(keep_closed=0), named(FakePort())
    port.topic.publish(b"one")
    consumer = await Consumer(port).open()
    metrics.add(consumer)
    await (await consumer.receive()).ack()
    with pytest.warns(ResourceWarning, match="unclosed"):
        del consumer
    await asyncio.sleep(1)
    assert scraped(metrics)[f"{JAVA}ack_total"] == 1
    assert scraped(metrics) == {}


async def test_from_another_thread() -> None:
    """A scrape in another thread reads the figures in the consumer's loop; if that is busy, the last ones."""
    metrics, port = ConsumerMetrics(), named(FakePort())
    port.topic.publish(b"one")
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor() as pool:
        async with Consumer(port) as consumer:
            metrics.add(consumer)
            await (await consumer.receive()).ack()
            found = await loop.run_in_executor(pool, scraped, metrics)
            assert found[f"{JAVA}ack_total"] == 1


async def test_added_while_another_thread_scrapes() -> None:
    """No consumer that is added or closed while two other threads scrape is lost, and each counts once."""
    metrics, is_over = ConsumerMetrics(), threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            list(metrics.collect())

    switch_interval = sys.getswitchinterval()
    with ThreadPoolExecutor(2) as pool:
        scrapes = [pool.submit(scrape) for _ in range(2)]
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(20):
                port = named(FakePort())
                port.topic.publish(b"one")
                async with Consumer(port) as consumer:
                    metrics.add(consumer)
                    await (await consumer.receive()).ack()
                    await asyncio.sleep(0.005)
        finally:
            sys.setswitchinterval(switch_interval)
            is_over.set()
    assert [each.exception() for each in scrapes] == [None, None]
    assert scraped(metrics)[f"{JAVA}ack_total"] == 20


def test_a_loop_that_is_gone() -> None:
    """A consumer whose loop ended without closing it is exported once more, and then forgotten."""
    metrics = ConsumerMetrics(keep_closed=0)

    async def main() -> None:
        metrics.add(Consumer(named(FakePort())))

    asyncio.run(main())
    assert scraped(metrics)[f"{JAVA}ack_total"] == 0
    assert scraped(metrics) == {}


@virtual_time
async def test_open_telemetry_reads_once() -> None:
    """All instruments of one collection share one reading of the statistics, and the next collection has a new one."""
    reader = InMemoryMetricReader()
    metrics, port = ConsumerMetrics(meter=MeterProvider([reader]).get_meter("test")), named(FakePort())
    calls, original = [0], metrics._read

    def counting() -> Any:
        calls[0] += 1
        return original()

    metrics._read = counting  # type: ignore[method-assign]
    async with Consumer(port) as consumer:
        metrics.add(consumer)
        for number in (1, 2):
            port.topic.publish(b"one")
            await (await consumer.receive()).ack()
            assert read(reader)["pulsar.client.consumer.message.ack"] == number
            assert calls == [number]


def test_names() -> None:
    """Every figure is a statistic; names are unique in both exporters, and the Java names are Java's own."""
    fields = ConsumerStatistics.__dataclass_fields__
    assert all(statistic.partition(".")[0] in fields for statistic in READ)
    names = [prometheus_name(name, figure.unit, figure.kind) for name, figure in FIGURES.items()]
    assert len({*names}) == len(names)
    assert [name for name in FIGURES if "nack." not in name] == [
        "pulsar.client.consumer.message.received.count",
        "pulsar.client.consumer.message.ack",
        "pulsar.client.consumer.message.nack",
        "pulsar.client.consumer.message.dlq",
        "pulsar.client.consumer.message.ack.timeout",
    ]
    registry = prometheus.CollectorRegistry()
    ConsumerMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        ConsumerMetrics(registry)


@virtual_time
async def test_retries_and_leases() -> None:
    """Messages of a retry topic, nacks that wait there, and leases that ended are counted and have their events."""
    metrics, events = ConsumerMetrics(), list[Any]()
    settings: dict[str, Any] = {"retry_topic": RetryTopicPolicy(spill_after=600), "lease": 1.0, "config": EXACT}
    async with LocalBroker() as broker:
        topic = await broker.topic(ORDERS[0])
        async with broker.consumer("billing", topic=ORDERS[0], **settings, hooks=[events.append]) as consumer:
            metrics.add(consumer)
            for payload in (b"later", b"slow", b"long"):
                await topic.publish(payload)
            for _ in range(6):
                message = await consumer.receive(timeout=4000)
                if message.attempt > 1:
                    await message.ack()
                elif message.data == b"later":
                    await message.reconsume_later(3)
                elif message.data == b"long":
                    await message.nack(3600)
            await asyncio.sleep(1)
            found = scraped(metrics)
    assert (found[f"{OURS}retried_total"], found[f"{JAVA}ack_timeout_total"]) == (2, 1)
    assert (found[f"{JAVA}nack_total"], found[f"{JAVA}ack_total"], found[f"{OURS}unacked"]) == (1, 3, 0)
    assert counts_of(events) == {
        "MessageReceived": 3,
        "MessageRedelivered": 3,
        "MessageAcknowledged": 3,
        "MessageRetried": 2,
        "MessageNacked": 1,
        "LeaseExpired": 1,
    }
    retried = [(event.topic, event.delay_ms) for event in events if isinstance(event, MessageRetried)]
    assert retried == [(f"{ORDERS[0]}-billing-RETRY", 3000), (f"{ORDERS[0]}-billing-RETRY", 3_600_000)]


@virtual_time
async def test_names_of_the_user() -> None:
    """A consumer may be exported under other names; those of a list have the tenant and namespace of the first."""
    metrics = ConsumerMetrics()
    async with Consumer(FakePort()) as plain, Consumer(FakePort()) as several:
        metrics.add(plain, topic_name="orders", subscription="billing")
        assert scraped(metrics)[f"{OURS}held"] == 0
        topics = "persistent://acme/shop/a, persistent://acme/depot/b"
        metrics.add(several, topic_name=topics, subscription="s")
        labels = {"pulsar_tenant": "acme", "pulsar_namespace": "acme/shop", "pulsar_topic": topics}
        assert scraped(metrics, **labels, pulsar_subscription="s")[f"{OURS}held"] == 0


@virtual_time
async def test_the_same_consumer_under_other_names() -> None:
    """A consumer that was added is not counted twice: other names are refused, and none have no effect."""
    metrics = ConsumerMetrics()
    async with Consumer(named(FakePort())) as consumer:
        metrics.add(consumer)
        metrics.add(consumer, topic_name="orders", subscription="billing")  # short for the same names
        with pytest.raises(InvalidArgumentError, match=r"topic_name: .*'persistent://public/default/orders', the name"):
            metrics.add(consumer, topic_name="others")
        with pytest.raises(InvalidArgumentError, match=r"subscription: .*'billing', the name under which"):
            metrics.add(consumer, subscription="audit")
        other = ConsumerMetrics()
        other.add(consumer, topic_name="others", subscription="audit")
        other.add(consumer)
        for found in (metrics, other):
            registry = prometheus.CollectorRegistry()
            registry.register(found)
            lines = prometheus.generate_latest(registry).decode().splitlines()
            assert len([line for line in lines if line.startswith(f"{OURS}held{{")]) == 1


@virtual_time
async def test_a_closed_consumer_is_not_counted_again() -> None:
    """A closed consumer, whose counts are in its series already, may be added again without effect."""
    metrics = ConsumerMetrics()
    port = named(FakePort())
    port.topic.publish(b"one")
    async with Consumer(port) as consumer:
        metrics.add(consumer)
        await (await consumer.receive()).ack()
    for _ in range(3):
        assert scraped(metrics)[f"{JAVA}ack_total"] == 1
        metrics.add(consumer)


@virtual_time
async def test_short_and_full_topic_names() -> None:
    """Consumers under the short and the full name of a topic are one series: no two have the same labels."""
    metrics = ConsumerMetrics()
    async with Consumer(FakePort()) as one, Consumer(named(FakePort())) as other:
        metrics.add(one, topic_name="orders", subscription="billing")
        metrics.add(other)
        for consumer in (one, other):
            consumer.port.topic.publish(b"one")
            await (await consumer.receive()).nack(60)
        assert scraped(metrics)[f"{OURS}held"] == 2


async def test_arguments_are_checked() -> None:
    """Objects that are no consumer or no delay are refused by name."""
    with pytest.raises(InvalidArgumentError, match="consumer"):
        ConsumerMetrics().add(FakePort())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="topic_name"):
        ConsumerMetrics().add(Consumer(FakePort()), topic_name=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="keep_closed"):
        ConsumerMetrics(keep_closed=-1)
