"""The taskiq broker over a scripted broker, on virtual time, with taskiq's own receiver."""

from __future__ import annotations

import asyncio
import errno
import importlib
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("taskiq")
pytest.importorskip("google_crc32c")

from taskiq import (
    Context,
    InMemoryBroker,
    SendTaskError,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.receiver import Receiver

from pulsar_nack import DeadLetterPolicy, InvalidArgumentError, NackConfig
from pulsar_nack.errors import MissingExtraError, NotOpenError
from pulsar_nack.integrations.taskiq import DELIVER_AT, NackRetryMiddleware, PulsarBroker
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.faults import FaultyFiles
from pulsar_nack.ledger.memory import MemoryFiles
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.for_each import for_each
from tests.wire.fake_broker import FakeBroker, refuse
from tests.wire.fake_topics import FakeSubscription, FakeTopic
from tests.wire.frames import read_message

TOPIC = "persistent://public/default/tasks"
CONTEXT: Any = TaskiqDepends()
"""As an argument's default value: taskiq passes the context of the run."""
DEAD = "persistent://public/default/dead"


class Epoch:
    """A wall clock that begins with the loop, a long time after the epoch."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(asyncio.get_running_loop().time() * 1000)


class OnFake(PulsarBroker):
    """A broker whose client talks to a scripted one."""

    def __init__(self, fake: FakeBroker, **settings: Any) -> None:
        self.fake = fake
        super().__init__(fake.url, topic="tasks", subscription="s", wall_clock=Epoch(), **settings)
        self.with_result_backend(InmemoryResultBackend())

    def _connect(self) -> Client:
        return Client(self._url, dial=self.fake.dial)

    @property
    def topic(self) -> FakeTopic:
        """The topic at the scripted broker."""
        return self.fake.topic(TOPIC)

    @property
    def subscribed(self) -> FakeSubscription:
        """The subscription there."""
        return self.topic.subscriptions["s"]

    @property
    def acked(self) -> int:
        """How many messages the workers acknowledged, counting each acknowledgement."""
        return sum(len(each.message_id) for each in self.fake.commands("ACK"))


@asynccontextmanager
async def working(broker: PulsarBroker, **settings: Any) -> AsyncIterator[None]:
    """Run a worker in taskiq's receiver, and stop it as SIGTERM does."""
    stop = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=settings.pop("max_async_tasks", 10), run_startup=True, **settings)
    listening = asyncio.create_task(receiver.listen(stop))
    await asyncio.sleep(0.1)
    try:
        yield
    finally:
        stop.set()
        await listening
        await broker.shutdown()


class Runs:
    """A task that fails some times; the seconds at which it ran."""

    def __init__(self, broker: PulsarBroker, fails: int, **labels: Any) -> None:
        self.at: list[float] = []
        self.began = asyncio.get_running_loop().time()

        @broker.task(task_name="work", **labels)
        async def work(text: str) -> str:
            self.at.append(round(asyncio.get_running_loop().time() - self.began, 1))
            if len(self.at) <= fails:
                raise ValueError(f"no luck with {text}")
            return text.upper()

        self.work = work

    async def send(self, **labels: Any) -> Any:
        """Send the task, and count the time from now."""
        self.began = asyncio.get_running_loop().time()
        return await self.work.kicker().with_labels(**labels).kiq("a")


# --- retries ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_nack_retries_after_its_delay() -> None:
    """U51: fails twice with a delay of 2 s: runs at 0, 2 and 4 s, as one message, acknowledged after success."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(NackRetryMiddleware(default_delay=2))
    runs = Runs(broker, 2, retry_on_error=True)
    async with working(broker):
        sent = await runs.send()
        await asyncio.sleep(3.9)
        assert (runs.at, broker.acked) == ([0, 2], 0)
        result = await sent.wait_result(timeout=10)
        await asyncio.sleep(5)
    assert runs.at == [0, 2, 4]
    assert result.return_value == "A"
    assert (broker.acked, len(broker.topic.entries), len(broker.subscribed.acked)) == (1, 1, 1)


@for_each(
    ("middleware", "at"),
    [(lambda: SmartRetryMiddleware(default_delay=2), [0, 2, 4]), (SimpleRetryMiddleware, [0, 0, 0])],
)
@virtual_time
async def test_taskiq_retries_with_a_new_message(middleware: Callable[[], TaskiqMiddleware], at: list[float]) -> None:
    """U51: taskiq's own middlewares retry after 2 s, or at once; each attempt is a message, acknowledged once."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(middleware())
    runs = Runs(broker, 2, retry_on_error=True)
    async with working(broker):
        sent = await runs.send()
        result = await sent.wait_result(timeout=10)
        await asyncio.sleep(5)
    assert runs.at == at
    assert result.return_value == "A"
    assert (broker.acked, len(broker.topic.entries), len(broker.subscribed.acked)) == (3, 3, 3)


@for_each("middleware", [NackRetryMiddleware, SmartRetryMiddleware])
@virtual_time
async def test_retries_end(middleware: type[SmartRetryMiddleware]) -> None:
    """A task that always fails runs ``max_retries`` times; then its message is settled, and the result is the error."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(middleware(default_delay=1))
    runs = Runs(broker, 99, retry_on_error=True, max_retries=4)
    async with working(broker):
        sent = await runs.send()
        result = await sent.wait_result(timeout=10)
        await asyncio.sleep(5)
    assert runs.at == [0, 1, 2, 3]
    assert "no luck with a" in str(result.error)
    assert not broker.subscribed.consumers
    assert len(broker.subscribed.acked) == len(broker.topic.entries)


@virtual_time
async def test_a_task_that_fails_for_good_is_a_dead_letter() -> None:
    """U51: with ``dead_letter``, the last failure sends the message to the dead-letter topic, with the error."""
    broker = OnFake(FakeBroker(), dead_letter=DeadLetterPolicy(max_redeliveries=10, topic=DEAD))
    broker.add_middlewares(NackRetryMiddleware(default_delay=1))
    runs = Runs(broker, 99, retry_on_error=True, max_retries=2)
    async with working(broker):
        await runs.send()
        await asyncio.sleep(5)
    assert runs.at == [0, 1]
    (letter,) = broker.fake.topic(DEAD).entries
    properties = {each.key: each.value for each in read_message(letter.rest)[0].properties}
    assert "ValueError: no luck with a" in properties.values()
    assert properties["task_name"] == "work"
    assert len(broker.subscribed.acked) == 1


@virtual_time
async def test_a_rejected_task_is_a_dead_letter() -> None:
    """A task that rejects its message is not retried, and is dead-lettered at once."""
    broker = OnFake(FakeBroker(), dead_letter=DeadLetterPolicy(max_redeliveries=10, topic=DEAD))
    broker.add_middlewares(NackRetryMiddleware(default_delay=1))

    @broker.task
    async def reject(context: Context = CONTEXT) -> None:
        context.reject()

    async with working(broker):
        await reject.kiq()
        await asyncio.sleep(1)
    assert len(broker.fake.topic(DEAD).entries) == 1


@virtual_time
async def test_a_failure_without_retries_is_acknowledged() -> None:
    """Without a middleware, a failed task is acknowledged, as with every broker of taskiq."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 99)
    async with working(broker):
        await runs.send()
        await asyncio.sleep(100)
    assert (runs.at, broker.acked) == ([0], 1)


@virtual_time
async def test_a_redelivered_message_has_its_retries() -> None:
    """The label from which middlewares count includes the message's redeliveries, such as those after a crash."""
    broker = OnFake(FakeBroker())
    seen: list[int] = []

    class Look(TaskiqMiddleware):
        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            seen.append(message.labels.get("_retries", 0))
            return message

    broker.add_middlewares(NackRetryMiddleware(default_delay=1), Look())
    runs = Runs(broker, 2, retry_on_error=True, max_retries=10)
    async with working(broker):
        await runs.send(_retries=4)
        await asyncio.sleep(5)
    assert seen == [4, 5, 6]


@virtual_time
async def test_what_was_acknowledged_early_is_sent_again() -> None:
    """``ack_type="when_received"``: nothing is left to nack, so the middleware sends a new message, like taskiq's."""
    broker = OnFake(FakeBroker(), dead_letter=DeadLetterPolicy(max_redeliveries=10, topic=DEAD))
    broker.add_middlewares(NackRetryMiddleware(default_delay=1))
    runs = Runs(broker, 2, retry_on_error=True, ack_type="when_received")
    async with working(broker):
        await runs.send()
        await asyncio.sleep(5)
    assert runs.at == [0, 1, 2]
    assert (broker.acked, len(broker.topic.entries)) == (3, 3)
    assert DEAD not in broker.fake.topics


@virtual_time
async def test_a_timeout_is_retried() -> None:
    """A task cancelled by its label ``timeout`` fails, and is retried; so is one that acknowledged before."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(NackRetryMiddleware(default_delay=1))
    ran: list[str] = []

    @broker.task(task_name="slow", timeout=0.5, retry_on_error=True, ack_type="manual")
    async def slow(acks: bool, context: Context = CONTEXT) -> None:
        ran.append(str(acks))
        if len(ran) > 2 or acks:
            await context.ack()
        await asyncio.sleep(10 if len(ran) < 3 else 0)

    async with working(broker):
        await slow.kiq(acks=True)
        await asyncio.sleep(5)
    assert ran == ["True", "True", "True"]
    assert (broker.acked, len(broker.topic.entries)) == (3, 3)


@virtual_time
async def test_other_brokers_retry_as_taskiq_does() -> None:
    """In a test on taskiq's in-memory broker, the middleware works like taskiq's."""
    broker = InMemoryBroker(await_inplace=True).with_middlewares(NackRetryMiddleware(default_delay=1))
    ran = []

    @broker.task(task_name="work", retry_on_error=True)
    async def work() -> None:
        ran.append(1)
        if len(ran) < 3:
            raise ValueError

    await work.kiq()
    assert len(ran) == 3


# --- delays ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_delay_is_exact_though_the_broker_is_early() -> None:
    """The scripted broker delivers at once: the worker defers the task to its time, which is no attempt."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(NackRetryMiddleware(default_delay=1))
    runs = Runs(broker, 0, delay=2.5)
    async with working(broker):
        await runs.send()
        await asyncio.sleep(2.4)
        assert runs.at == []
        await asyncio.sleep(1)
        await runs.send(delay="4")
        await asyncio.sleep(5)
    assert runs.at == [2.5, 4.0]
    first, _ = (read_message(entry.rest)[0] for entry in broker.topic.entries)
    properties = {each.key: each.value for each in first.properties}
    assert properties[DELIVER_AT] == str(first.deliver_at_time)
    assert first.deliver_at_time - first.publish_time != 0
    assert (properties["task_name"], properties["delay"]) == ("work", "2.5")
    assert broker.acked == 2


@virtual_time
async def test_a_disk_that_is_full_for_a_moment() -> None:
    """A durable worker defers a task meanwhile: it is held in memory, and the worker continues."""
    files = FaultyFiles(MemoryFiles(Random(0)))
    async with await LocalLogStore.open(Path("/state"), threads=1, files=files) as store:
        broker = OnFake(FakeBroker(), durable=store)
        runs = Runs(broker, 0)
        async with working(broker):
            await runs.send()
            await asyncio.sleep(1)
            files.fail(errno.ENOSPC, "write", times=math.inf)
            await runs.send(delay=2.5)
            await asyncio.sleep(1)
            files.heal()
            await asyncio.sleep(10)
    assert runs.at == [0, 2.5]


@for_each("delay", [None, 0, "", "None"])
@virtual_time
async def test_no_delay(delay: Any) -> None:
    """A label without a delay, also as taskiq writes None, delays nothing."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0, delay=10)
    async with working(broker):
        await runs.send(delay=delay)
        await asyncio.sleep(0.5)
    assert runs.at == [0]
    assert not read_message(broker.topic.entries[0].rest)[0].HasField("deliver_at_time")


@for_each("delay", [-1, "soon", "nan", 1e12])
@virtual_time
async def test_bad_delays_are_refused(delay: Any) -> None:
    """An invalid delay is refused by name when the task is sent; nothing is stored."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0)
    async with working(broker):
        with pytest.raises(SendTaskError) as raised:
            await runs.send(delay=delay)
        await asyncio.sleep(1)
    assert isinstance(raised.value.__cause__, InvalidArgumentError)
    assert "label delay" in str(raised.value.__cause__)
    assert broker.topic.entries == []


@for_each(
    ("written", "runs_now"),
    [*((each, 2) for each in ("", "soon", "-5", "1e9", "٣", "9" * 400, "1.5", "0")), ("9" * 19, 1)],
)
@virtual_time
async def test_a_bad_time_in_the_property_is_ignored(written: str, runs_now: int) -> None:
    """An invalid property delays nothing; a time far in the future holds only its own task; no worker stops."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0)
    async with working(broker):
        await broker.kick(broker.formatter.dumps(task_message("work", {DELIVER_AT: written}, "a")))
        await runs.send()
        await asyncio.sleep(10)
    assert [round(at) for at in runs.at] == [0] * runs_now


def task_message(name: str, labels: dict[str, Any], *arguments: Any) -> TaskiqMessage:
    """A task as taskiq sends it."""
    return TaskiqMessage(task_id="t", task_name=name, labels=labels, args=[*arguments], kwargs={})


# --- workers ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_worker_runs_as_many_as_configured() -> None:
    """At most ``max_async_tasks`` run at once, and 10 more are prefetched; all run, each is acknowledged once."""
    broker = OnFake(FakeBroker())
    now = most = held = 0

    @broker.task(task_name="work")
    async def work() -> None:
        nonlocal now, most, held
        now += 1
        most = max(most, now)
        held = max(held, sum(len(each.pending) for each in broker.subscribed.consumers))
        await asyncio.sleep(0.05)
        now -= 1

    async with working(broker, max_async_tasks=5):
        await asyncio.gather(*(work.kiq() for _ in range(60)))
        await asyncio.sleep(2)
    assert (most, broker.acked, len(broker.subscribed.acked)) == (5, 60, 60)
    assert held <= 5 + 10 + 5  # running, prefetched, and the next one that the client requested


@virtual_time
async def test_a_stopped_worker_gives_prefetched_tasks_back() -> None:
    """The running task finishes and is acknowledged; another worker gets the others at once."""
    fake = FakeBroker()
    one, other = OnFake(fake), OnFake(fake)
    ran: list[tuple[str, float]] = []
    for name, broker in (("one", one), ("other", other)):

        @broker.task(task_name="work")
        async def work(name: str = name) -> None:
            ran.append((name, asyncio.get_running_loop().time()))
            await asyncio.sleep(3 if name == "one" else 0)

    stop = asyncio.Event()
    listening = asyncio.create_task(Receiver(one, max_async_tasks=1, run_startup=True).listen(stop))
    await asyncio.sleep(0.1)
    await asyncio.gather(*(one.kick(one.formatter.dumps(task_message("work", {}))) for _ in range(8)))
    await asyncio.sleep(0.5)
    async with working(other):
        stopped_at = asyncio.get_running_loop().time()
        stop.set()
        await asyncio.sleep(0.2)
        names = [name for name, _ in ran]
        assert (names.count("one"), names.count("other")) == (1, 7)
        assert max(at for name, at in ran if name == "other") - stopped_at < 0.1
        await listening
        await one.shutdown()
        await asyncio.sleep(1)
    assert (len(ran), one.acked) == (8, 8)


@virtual_time
async def test_a_task_that_outlives_the_worker_runs_again() -> None:
    """The message of a running task that taskiq abandons goes back at shutdown; another worker runs it."""
    fake = FakeBroker()
    broker = OnFake(fake)
    runs: list[Any] = []

    @broker.task(task_name="work")
    async def work() -> None:
        runs.append(asyncio.current_task())
        await asyncio.sleep(100 if len(runs) == 1 else 0)

    async with working(broker, wait_tasks_timeout=0.5):
        await work.kiq()
        await asyncio.sleep(0.1)
    assert broker.acked == 0
    async with working(broker):
        await asyncio.sleep(1)
    assert (len(runs), broker.acked) == (2, 1)
    runs[0].cancel()


@virtual_time
async def test_a_broker_can_start_again() -> None:
    """After a shutdown it connects again; a second startup while it runs changes nothing."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0)
    for _ in range(2):
        async with working(broker):
            await broker.startup()
            await runs.send()
            await asyncio.sleep(0.2)
    assert (runs.at, broker.acked) == ([0, 0], 2)
    assert broker.consumer is None


@virtual_time
async def test_tasks_before_the_first_worker_are_kept() -> None:
    """The producer creates the subscription, and a worker begins with the earliest task."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0)
    await broker.startup()
    await runs.send()
    await broker.shutdown()
    (command,) = broker.fake.commands("PRODUCER")
    assert command.initial_subscription_name == "s"
    async with working(broker):
        await asyncio.sleep(0.2)
    assert len(runs.at) == 1


@virtual_time
async def test_an_unknown_task() -> None:
    """Without a dead-letter policy taskiq drops it; with one, the message is nacked, and dead-lettered."""
    for policy, letters in ((None, 0), (DeadLetterPolicy(max_redeliveries=2, topic=DEAD), 1)):
        broker = OnFake(FakeBroker(), dead_letter=policy, backoff=1.0)
        async with working(broker):
            await broker.kick(broker.formatter.dumps(task_message("from a newer version", {})))
            await asyncio.sleep(5)
        assert len(broker.subscribed.acked) == 1
        assert len(broker.fake.topic(DEAD).entries) == letters


@for_each("payload", [b"", b"{}", b"\xff\xfe", b"[" * 2_000])
@virtual_time
async def test_a_message_that_is_no_task_stops_nothing(payload: bytes) -> None:
    """A foreign message is logged by taskiq and acknowledged; the worker continues."""
    broker = OnFake(FakeBroker())
    broker.add_middlewares(NackRetryMiddleware())
    runs = Runs(broker, 0)
    async with working(broker):
        broker.topic.publish(payload)
        await runs.send()
        await asyncio.sleep(1)
    assert (runs.at, broker.acked) == ([0], 2)


@virtual_time
async def test_an_acknowledgement_that_fails_brings_the_task_back() -> None:
    """If the broker refuses the acknowledgement, the task runs once more, and is acknowledged then."""
    broker = OnFake(FakeBroker(), backoff=1.0)
    runs = Runs(broker, 0)
    async with working(broker):
        broker.fake.next("ACK", refuse("UnknownError", "no"))
        await runs.send()
        await asyncio.sleep(5)
    assert runs.at == [0, 1]
    assert len(broker.subscribed.acked) == 1


@virtual_time
async def test_before_the_start() -> None:
    """A broker that was not started says so."""
    broker = OnFake(FakeBroker())
    runs = Runs(broker, 0)
    with pytest.raises(SendTaskError) as raised:
        await runs.send()
    assert isinstance(raised.value.__cause__, NotOpenError)
    with pytest.raises(NotOpenError):
        await anext(broker.listen())
    await broker.shutdown()


@virtual_time
async def test_a_start_that_fails_leaves_nothing() -> None:
    """``startup`` raises a refused producer's error; the next one works."""
    broker = OnFake(FakeBroker())
    broker.fake.next("PRODUCER", refuse("AuthorizationError", "no"))
    with pytest.raises(Exception, match="AuthorizationError"):
        await broker.startup()
    assert broker.fake.links == []
    await broker.startup()
    await broker.shutdown()


@for_each(
    ("name", "settings"),
    [
        ("url", {"url": "http://x"}),
        ("topic", {"topic": ""}),
        ("subscription", {"subscription": ""}),
        ("client", {"client": 5}),
        ("producer", {"producer": "x"}),
        ("request_timeout", {"client": {"request_timeout": -1}}),
        ("compression", {"producer": {"compression": "rar"}}),
        ("receiver_queue_size", {"receiver_queue_size": -1}),
        ("dead_leter", {"dead_leter": None}),
    ],
)
def test_bad_settings_are_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    """Settings are checked when the broker is created, where the module is imported, without connecting."""
    with pytest.raises(InvalidArgumentError, match=name):
        PulsarBroker(settings.pop("url", "pulsar://localhost:6650"), **settings)


def test_its_defaults_can_be_changed() -> None:
    """Users may override the three settings that have other defaults."""
    config = NackConfig()
    broker = PulsarBroker("pulsar://localhost:6650", config=config, receiver_queue_size=3, initial_position="latest")
    assert broker._settings["config"] is config
    assert (broker._settings["receiver_queue_size"], broker._settings["initial_position"]) == (3, "latest")


def test_without_taskiq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without taskiq the import names the extra."""
    monkeypatch.setitem(sys.modules, "taskiq", None)
    monkeypatch.delitem(sys.modules, "pulsar_nack.integrations.taskiq")
    with pytest.raises(MissingExtraError, match=r"pulsar-nack\[taskiq\]"):
        importlib.import_module("pulsar_nack.integrations.taskiq")
