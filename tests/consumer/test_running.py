"""Handlers that a consumer runs: concurrency, their exceptions, and draining."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from pulsar_nack import (
    BrokerError,
    ClosedError,
    Consumer,
    DeadLetterPolicy,
    InvalidArgumentError,
    Message,
    NackConfig,
)
from pulsar_nack.consumer import ConsumerDrained, DeadLetter, DrainReport, Handler, Ignore, Retry
from pulsar_nack.errors import NotOpenError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, digits, now, publish

from .ports import Ports


@asynccontextmanager
async def running(consumer: Consumer, handler: Handler, **options: Any) -> AsyncIterator[asyncio.Task[DrainReport]]:
    """Run a handler in a task, and drain at the end."""
    task = asyncio.create_task(consumer.run(handler, **options))
    try:
        yield task
    finally:
        await consumer.drain(60)
        await asyncio.wait([task])


async def until(reached: Any) -> None:
    """Wait for a condition, on virtual time."""
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.001)


async def handle_all(
    port: FakePort, handler: Handler, settings: dict[str, Any] | None = None, **options: Any
) -> Consumer:
    """Run a handler until all messages are acknowledged; return its closed consumer."""
    async with (
        Consumer(port, **{"config": EXACT, **(settings or {})}) as consumer,
        running(consumer, handler, **options),
    ):
        await until(lambda: port.subscription.backlog == 0)
    return consumer


@pytest.mark.each_kind
@virtual_time
async def test_so_many_at_once(ports: Ports) -> None:
    """U36: 100 messages of 50 ms, ten at once: within 0.7 s, each acknowledged once, the others stay at the port."""
    port = ports.port()
    publish(port.topic, *digits(100))
    handled, busy, peak, received = Counter[bytes](), 0, 0, 0

    async def handler(message: Message) -> None:
        nonlocal busy, peak, received
        busy += 1
        peak, received = max(peak, busy), max(received, consumer.statistics().in_work)
        await asyncio.sleep(0.05)
        busy -= 1
        handled[message.data] += 1

    async with Consumer(port, config=EXACT) as consumer:
        began = now()
        async with running(consumer, handler, concurrency=10):
            await until(lambda: consumer.statistics().acked == 100)
            assert now() - began < 0.7
        assert handled == Counter(b"%d" % number for number in range(100))
        assert (peak, received) == (10, 10)
        assert consumer.statistics().acked == 100
    assert port.subscription.backlog == 0


@pytest.mark.each_kind
@virtual_time
async def test_what_was_fetched_ahead_goes_to_another_one(ports: Ports) -> None:
    """U18, U36: five handlers finish, and acknowledge while the consumer drains; the other one gets the 195."""
    first, topic = ports.port(receiver_queue_size=200), None
    topic = first.topic
    publish(topic, *digits(200))
    began, ended = list[bytes](), list[bytes]()

    async def handler(message: Message) -> None:
        began.append(message.data)
        await asyncio.sleep(1)
        ended.append(message.data)

    async with Consumer(first, config=EXACT) as consumer:
        task = asyncio.create_task(consumer.run(handler, concurrency=5))
        await until(lambda: len(began) == 5)
        second = ports.port(topic, receiver_queue_size=200)
        async with Consumer(second, config=EXACT) as other:
            await asyncio.sleep(0.1)
            draining = asyncio.create_task(consumer.drain(10))
            got = list[bytes]()
            report = await draining
            assert sorted(ended) == sorted(began)
            assert (report.settled, report.cancelled, report.left) == (5, 0, 0)
            assert report.given_back == 0  # none of these ports can; tests/wire/test_draining.py has one that can
            while len(got) < 195:
                got.append((message := await other.receive(timeout=1)).data)
                await message.ack()
            assert await task == report
            assert not set(got) & set(ended)
            with pytest.raises(TimeoutError):
                await other.receive(timeout=1)
    assert topic.subscription().backlog == 0


@pytest.mark.each_kind
@virtual_time
async def test_a_handler_that_outlives_the_drain(ports: Ports) -> None:
    """U38: it is cancelled, its message nacked by the backoff; the other's is acknowledged, as the report says."""
    port = ports.port()
    publish(port.topic, b"slow", b"quick")
    cancelled = list[bytes]()

    async def handler(message: Message) -> None:
        try:
            await asyncio.sleep(60 if message.data == b"slow" else 1)
        except asyncio.CancelledError:
            cancelled.append(message.data)
            raise

    async with Consumer(port, config=EXACT, backoff=[30]) as consumer:
        task = asyncio.create_task(consumer.run(handler, concurrency=2))
        await until(lambda: consumer.statistics().in_work == 2)
        began = now()
        report = await consumer.drain(timeout=2)
        assert now() - began == pytest.approx(2, abs=0.1)
        assert report == DrainReport(settled=1, given_back=0, cancelled=1, left=0)
        assert cancelled == [b"slow"]
        assert await task == report
        assert (consumer.statistics().nacked, consumer.statistics().acked) == (1, 1)
        assert await consumer.drain() == report  # again: the same
    assert port.subscription.backlog == 1


@pytest.mark.each_kind
@virtual_time
async def test_what_exceptions_do(ports: Ports) -> None:
    """U13, U40: by type, the most derived match; verbs go first; others are nacked by the backoff; none is lost."""
    port = ports.port()
    dead = FakePublisher()
    names = ["value", "unicode", "connection", "timeout", "key", "retry", "dead", "ignored", "broken rule"]
    for name in names:
        port.topic.publish(name.encode())
    seen: dict[bytes, list[float]] = {}

    async def handler(message: Message) -> None:
        seen.setdefault(message.data, []).append(now())
        if message.attempt > 1:
            return
        match message.data:
            case b"value":
                raise ValueError("v")
            case b"unicode":
                raise UnicodeError("derived of ValueError")
            case b"connection":
                raise ConnectionResetError("gone")
            case b"timeout":
                raise TimeoutError
            case b"key":
                raise KeyError("k")
            case b"retry":
                raise Retry(delay=3)
            case b"dead":
                raise DeadLetter("no such customer")
            case b"ignored":
                raise ZeroDivisionError
            case b"broken rule":
                raise LookupError("l")

    rules = {
        ValueError: DeadLetter("bad"),
        UnicodeError: DeadLetter,
        ConnectionError: Retry(delay=5),
        TimeoutError: lambda error, message: Retry(delay=6 + message.attempt),
        ArithmeticError: Ignore,
        LookupError: lambda error, message: 1 / 0,
        KeyError: lambda error, message: None,
    }
    policy = DeadLetterPolicy(3, "dead", publisher=dead)
    async with Consumer(port, config=EXACT, backoff=[1], dead_letter=policy) as consumer:
        began = now()
        async with running(consumer, handler, on_error=rules):
            await until(lambda: port.subscription.backlog == 0)
        assert {letter.data: letter.properties["PULSAR_NACK_REASON"] for letter in dead.letters} == {
            b"value": "bad",
            b"unicode": "UnicodeError: derived of ValueError",
            b"dead": "no such customer",
        }
        again = {data: times[1] - began for data, times in seen.items() if len(times) > 1}
        assert again == {
            b"connection": pytest.approx(5, abs=0.1),
            b"timeout": pytest.approx(7, abs=0.1),
            b"key": pytest.approx(1, abs=0.1),
            b"retry": pytest.approx(3, abs=0.1),
            b"broken rule": pytest.approx(1, abs=0.1),
        }
        assert consumer.statistics().handler_errors == 7  # all but the two verbs


@virtual_time
async def test_exceptions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """U40: one that no rule names is logged with its traceback; one that a rule names, by what it did."""
    port = FakePort()
    publish(port.topic, b"a", b"b")

    async def handler(message: Message) -> None:
        raise KeyError("lost?") if message.data == b"a" else OSError("mapped")

    with caplog.at_level(logging.INFO, "pulsar_nack.consumer"):
        async with Consumer(port) as consumer, running(consumer, handler, on_error={OSError: Ignore}):
            await until(lambda: consumer.statistics().handler_errors == 2)
            await asyncio.sleep(0.1)
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.exc_info is not None
    assert isinstance(error.exc_info[1], KeyError)
    assert any("OSError: mapped" in record.message for record in caplog.records)


@virtual_time
async def test_bad_arguments_are_refused_before_anything_runs() -> None:
    """U40: a map that names no exception or no verb is refused by field and value, and nothing is received."""
    port = FakePort()
    port.topic.publish(b"a")

    async def handler(message: Message) -> None:
        raise AssertionError("it must not run")

    async def rule(error: Exception, message: Message) -> Retry:
        return Retry()

    async with Consumer(port) as consumer:

        async def refused(options: dict[str, Any], field: str) -> None:
            with pytest.raises(InvalidArgumentError) as caught:
                await consumer.run(**{"handler": handler, **options})
            assert caught.value.field == field

        cases: list[tuple[dict[str, Any], str]] = [
            ({"handler": None}, "handler"),
            ({"concurrency": 0}, "concurrency"),
            ({"key_ordered": 1}, "key_ordered"),
            ({"max_held_per_key": 0}, "max_held_per_key"),
            ({"drain_timeout": -1}, "drain_timeout"),
            ({"stop_on_signals": 1}, "stop_on_signals"),
            ({"on_error": [ValueError]}, "on_error"),
            ({"on_error": {"ValueError": Retry()}}, "on_error"),
            ({"on_error": {asyncio.CancelledError: Retry()}}, "on_error"),
            ({"on_error": {ValueError: "retry"}}, "on_error[ValueError]"),
            ({"on_error": {ValueError: ValueError}}, "on_error[ValueError]"),
            ({"on_error": {ValueError: rule}}, "on_error[ValueError]"),
            ({"on_error": {ValueError: DeadLetter}}, "on_error[ValueError]"),
            ({"on_error": {ValueError: DeadLetter("bad")}}, "on_error[ValueError]"),
        ]
        for options, field in cases:
            await refused(options, field)
        assert consumer.statistics().received == 0
        assert (await consumer.receive(timeout=1)).data == b"a"


@pytest.mark.parametrize("key_ordered", [False, True])
@pytest.mark.parametrize("trouble", ["cancelled", "cancelled twice", "acknowledgement fails"])
@virtual_time
async def test_a_nack_of_a_worker_waits_for_room(trouble: str, key_ordered: bool) -> None:
    """A message whose nack has no room for 8 s is nacked then, also if the worker is cancelled meanwhile."""
    port, handled = FakePort(), list[tuple[bytes, int]]()
    for number in range(2):
        port.topic.publish(b"%d" % number, key=f"k{number}")
    settings = NackConfig(negative_ack_precision_bit_cnt=0, max_held=1)

    async def handler(message: Message) -> None:
        handled.append((message.data, message.attempt))
        if message.attempt > 1:
            return
        if message.data == b"0":
            raise Retry(8)
        worker, call_later = asyncio.current_task(), asyncio.get_running_loop().call_later
        assert worker is not None
        for seconds in {"cancelled": [1], "cancelled twice": [1, 2]}.get(trouble, []):
            call_later(seconds, worker.cancel)
        if trouble != "acknowledgement fails":
            raise Retry(1)
        port.fail_next("acknowledge")

    async with Consumer(port, config=settings, backoff=[1]) as consumer:
        async with running(consumer, handler, concurrency=2, key_ordered=key_ordered):
            await until(lambda: port.subscription.backlog == 0)
        assert sorted(handled) == [(b"0", 1), (b"0", 2), (b"1", 1), (b"1", 2)]


@pytest.mark.parametrize("key_ordered", [False, True])
@virtual_time
async def test_an_acknowledgement_by_another_call_that_fails(key_ordered: bool) -> None:
    """The handler ends during an acknowledgement by id of its message, which fails: it is handled again."""
    port, attempts = FakePort(), list[int]()
    message_id = port.topic.publish(b"x", key="k")

    async def handler(message: Message) -> None:
        attempts.append(message.attempt)
        await asyncio.sleep(0.5)

    async with Consumer(port, config=EXACT, backoff=[1]) as consumer:
        async with running(consumer, handler, key_ordered=key_ordered):
            await asyncio.sleep(0.1)
            port._add_fault("acknowledge", Fault(delay=1, error=BrokerError("lost")), 1)
            with pytest.raises(BrokerError, match="lost"):
                await consumer.acknowledge(message_id)
            await until(lambda: port.subscription.backlog == 0)
        assert attempts == [1, 2]


@virtual_time
async def test_cancelling_drains() -> None:
    """U18: a cancelled `run` lets handlers end and closes; cancelled twice, it cancels them and nacks."""
    for times, (acked, nacked) in {1: (2, 0), 2: (0, 2)}.items():
        port = FakePort()
        publish(port.topic, b"a", b"b")

        async def handler(message: Message) -> None:
            await asyncio.sleep(5)

        consumer = Consumer(port)
        async with consumer:
            task = asyncio.create_task(consumer.run(handler))
            await until(lambda: consumer.statistics().in_work == 2)  # noqa: B023
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0.1)
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(ClosedError):
                await consumer.receive()
            assert (consumer.statistics().acked, consumer.statistics().nacked) == (acked, nacked)


@virtual_time
async def test_a_closed_consumer_lets_its_handlers_end() -> None:
    """U18: leaving the block, or `aclose`, gives handlers the drain's time; then they are cancelled."""
    for seconds, acked in ((5, 1), (60, 0)):
        port = FakePort()
        port.topic.publish(b"a")

        async def handler(message: Message) -> None:
            await asyncio.sleep(seconds)  # noqa: B023

        async with Consumer(port) as consumer:
            task = asyncio.create_task(consumer.run(handler, drain_timeout=10))
            await until(lambda: consumer.statistics().in_work == 1)
        report = await task
        assert (report.settled, report.cancelled) == (acked, 1 - acked)
        assert consumer.statistics().acked == acked
        assert (await consumer.drain()) == report


@virtual_time
async def test_draining_your_own_loop() -> None:
    """U18: without `run`, a drain ends the loop, and waits until its messages are settled; others are left."""
    port = FakePort()
    publish(port.topic, b"a", b"b", b"c")
    async with Consumer(port) as consumer:
        first, second = [await consumer.receive() for _ in range(2)]
        waiting = asyncio.create_task(consumer.drain(10))
        await asyncio.sleep(1)
        with pytest.raises(ClosedError):
            await consumer.receive()
        assert [message async for message in consumer] == []
        await first.ack()
        assert not waiting.done()
        await second.nack(1)
        assert await waiting == DrainReport(settled=2)
        assert consumer.statistics().in_work <= 1

    port.topic.publish(b"d")
    events: list[object] = []
    async with Consumer(FakePort(port.topic), hooks=[events.append]) as consumer:
        unsettled = [await consumer.receive() for _ in range(3)]
        began = now()
        assert await consumer.drain(2) == DrainReport(left=3)
        assert now() - began == 2
        with pytest.raises(ClosedError):
            await unsettled[0].ack()
    assert await consumer.drain() == DrainReport(left=3)
    assert [(event.given_back, event.left) for event in events if isinstance(event, ConsumerDrained)] == [(0, 3)]


@virtual_time
async def test_drains_that_are_cancelled_or_not_allowed() -> None:
    """A cancelled call does not stop the drain; `aclose` ends one; a handler cannot wait for itself."""
    with pytest.raises(NotOpenError):
        await Consumer(FakePort()).drain()
    port = FakePort()
    port.topic.publish(b"a")
    async with Consumer(port) as consumer:
        await consumer.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.drain()
    assert await consumer.drain() == DrainReport(left=1)

    refused: list[Exception] = []

    async def handler(message: Message) -> None:
        try:
            await consumer.drain()
        except InvalidArgumentError as error:
            refused.append(error)

    async with Consumer(FakePort(port.topic)) as consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: refused)
        with pytest.raises(InvalidArgumentError, match="handler"):
            await consumer.run(handler)
        assert (await consumer.drain(5)).cancelled == 0
        await task
        with pytest.raises(ClosedError):
            await consumer.run(handler)
    async with Consumer(FakePort()) as consumer:
        pass
    assert await consumer.drain() == DrainReport()


@virtual_time
async def test_handlers_that_settle_themselves() -> None:
    """A message that a handler settled is left alone, also if the handler raises afterwards."""
    port = FakePort()
    publish(port.topic, b"ack", b"nack", b"ack, then raise", b"nack by id")
    attempts = Counter[bytes]()

    async def handler(message: Message) -> None:
        attempts[message.data] += 1
        if message.attempt > 1:
            return
        match message.data:
            case b"ack":
                await message.ack()
            case b"nack":
                await message.nack(1)
            case b"nack by id":
                await consumer.negative_acknowledge(message.id, 1)
            case _:
                await message.ack()
                raise ValueError("too late")

    async with Consumer(port, config=EXACT) as consumer:
        async with running(consumer, handler):
            await until(lambda: port.subscription.backlog == 0)
        assert attempts == {b"ack": 1, b"nack": 2, b"ack, then raise": 1, b"nack by id": 2}
        assert (consumer.statistics().nacked, consumer.statistics().handler_errors) == (2, 1)


@pytest.mark.each_kind
@pytest.mark.parametrize("is_raised", [False, True])
@virtual_time
async def test_a_nack_by_id_whose_retry_overtakes_the_handler(ports: Ports, is_raised: bool) -> None:
    """A message that its handler nacked by id is left alone, also if its next attempt begins before the end."""
    port = ports.port()
    port.topic.publish(b"a")
    attempts: list[tuple[int, bool]] = []

    async def handler(message: Message) -> None:
        if message.attempt == 1:
            await consumer.negative_acknowledge(message.id, 0.1)
            await asyncio.sleep(1)
            attempts.append((message.attempt, message.is_settled))
            if is_raised:
                raise ValueError("first")
        elif message.attempt == 2:
            await asyncio.sleep(2)
            attempts.append((message.attempt, message.is_settled))
            raise ValueError("second")

    async with Consumer(port, config=EXACT, backoff=[1]) as consumer:
        async with running(consumer, handler, concurrency=2):
            await until(lambda: port.subscription.backlog == 0)
        assert attempts == [(1, True), (2, False)]
        assert (consumer.statistics().nacked, consumer.statistics().acked, consumer.statistics().shown) == (2, 1, 3)


@pytest.mark.each_kind
@virtual_time
async def test_a_nack_by_id_after_the_lease(ports: Ports) -> None:
    """A message that a late handler nacked by id is not acknowledged when that handler returns."""
    port = ports.port()
    port.topic.publish(b"a")

    async def handler(message: Message) -> None:
        if message.attempt == 1:
            await asyncio.sleep(3)
            await consumer.negative_acknowledge(message.id, 1)

    async with Consumer(port, config=EXACT, backoff=[5], lease=2) as consumer:
        async with running(consumer, handler, concurrency=2):
            await until(lambda: port.subscription.backlog == 0)
        assert (round(now()), consumer.statistics().shown) == (4, 2)


@virtual_time
async def test_troubles_of_the_port_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Failed receives are retried; a message whose acknowledgement fails is handled again; one warning each."""
    port = FakePort()
    port.topic.publish(b"a")
    handled = 0

    async def handler(message: Message) -> None:
        nonlocal handled
        handled += 1

    port.fail_next("receive", 3)
    port.fail_next("acknowledge")
    await handle_all(port, handler, {"backoff": [1]}, concurrency=2)
    assert handled == 2
    assert sum("nothing can be received" in record.message for record in caplog.records) == 1
    assert sum("could not be acknowledged" in record.message for record in caplog.records) == 1


@virtual_time
async def test_troubles_that_are_over(caplog: pytest.LogCaptureFixture) -> None:
    """Each new failure of receiving logs one warning and pauses briefly, also if handlers settle messages."""
    port = FakePort()
    handled: list[float] = []

    async def handler(message: Message) -> None:
        handled.append(now())
        await message.ack()

    async with Consumer(port) as consumer, running(consumer, handler, concurrency=1):
        for hour in range(1, 9):
            await asyncio.sleep(3600)
            port.fail_next("receive")  # the call after the one that waits
            port.topic.publish(b"a")
            await asyncio.sleep(0)
            port.topic.publish(b"b")
            await until(lambda number=2 * hour: len(handled) == number)
            assert handled[-1] - handled[-2] < 0.2
    assert sum("nothing can be received" in record.message for record in caplog.records) == 8


@virtual_time
async def test_a_cancelled_error_of_the_handlers_own(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that awaits something cancelled has failed: its message is nacked, and the worker continues."""
    port = FakePort()
    port.topic.publish(b"a")

    async def handler(message: Message) -> None:
        if message.attempt == 1:
            raise asyncio.CancelledError

    consumer = await handle_all(port, handler, {"backoff": [1]}, concurrency=1)
    assert (consumer.statistics().nacked, consumer.statistics().handler_errors) == (1, 1)


@virtual_time
async def test_random_cancellations_lose_nothing() -> None:
    """U2, U18: runs that are cancelled at any moment, one after another: each message is acknowledged, none lost."""
    random = Random(5)
    first = FakePort(receiver_queue_size=20)
    for number in range(300):
        first.topic.publish(b"%d" % number, key=str(number % 7))
    done = Counter[bytes]()

    async def handler(message: Message) -> None:
        await asyncio.sleep(random.uniform(0, 0.02))
        if random.random() < 0.2:
            raise ValueError(message.data)
        done[message.data] += 1

    port = first
    for turn in range(60):
        async with Consumer(port, config=EXACT, backoff=[0.01]) as consumer:
            task = asyncio.create_task(
                consumer.run(handler, concurrency=4, key_ordered=turn % 2 == 0, drain_timeout=0.01)
            )
            await asyncio.sleep(random.uniform(0, 0.1))
            for _ in range(random.choice([1, 1, 2])):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait([task])
        if not first.subscription.backlog:
            break
        port = FakePort(first.topic, receiver_queue_size=20)
    assert first.subscription.backlog == 0
    assert set(done) == {b"%d" % number for number in range(300)}
    assert sum(done.values()) <= 300 + 4 * 60  # a handler may have ended just when it was cancelled


@virtual_time
async def test_a_handler_that_cancels_its_own_task() -> None:
    """It failed, whatever it was about to do: its message is nacked, and the only worker continues."""
    port = FakePort()
    publish(port.topic, b"at once", b"later", b"fine")
    done = list[bytes]()

    async def handler(message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message.attempt == 1 and message.data != b"fine":
            task.cancel()  # arrives at the next await: in here, or when the message is acknowledged
            if message.data == b"at once":
                await asyncio.sleep(1)
        done.append(message.data)

    consumer = await handle_all(port, handler, {"backoff": [1]}, concurrency=1)
    assert sorted(done) == [b"at once", b"fine", b"later"]
    assert consumer.statistics().nacked == 1


@pytest.mark.parametrize("concurrency", [1, 32])
@virtual_time
async def test_a_handler_that_is_a_plain_function(concurrency: int) -> None:
    """It is refused by name at its first message, which goes back without an attempt; nothing else is handled."""
    port = FakePort()
    publish(port.topic, b"a", b"b")
    calls = list[bytes]()

    def handler(message: Message) -> None:
        calls.append(message.data)

    async with Consumer(port) as consumer:
        with pytest.raises(InvalidArgumentError, match="a coroutine function"):
            await consumer.run(handler, concurrency=concurrency)  # type: ignore[arg-type]
        assert consumer.statistics().nacked == 0
    assert calls == [b"a"]
    async with (
        Consumer(FakePort(port.topic)) as consumer,
        running(consumer, lambda message: asyncio.sleep(0)),  # a function that returns an awaitable is accepted
    ):
        await until(lambda: port.subscription.backlog == 0)
