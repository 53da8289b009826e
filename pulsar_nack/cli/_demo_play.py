"""The demo's run: messages keep arriving, each fails once, and a journal notes when it comes back.

It takes place on a broker, embedded or the user's, or on the fake port; or else on a local topic, which has batches and
delayed messages too, and is closed and opened again in the middle of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from .. import Consumer, DelayedDeliveryConfig, LocalTopic, Message, NackConfig, connect, subscribe
from ..clock import LoopClock
from ..consumer.transport import broker_error
from ..errors import BrokerError, MissingExtraError, PulsarNackError
from ..testing import EmbeddedBroker, FakePort, FakeTopic
from ._demo_figures import LONGEST, Journal

OFFICIAL: Final = "official client"
OURS: Final = "pulsar-nack"
OVER: Final = "pulsar-nack over it"
NATIVE: Final = "pulsar-nack native"
DELAYED: Final = "delayed delivery"
OFFICIAL_DELAY: Final = 1.0
"""Seconds; the official client knows one delay for a whole consumer."""
_FAKE_LATENCY: Final = 0.001
_TIMEOUT: Final = 10
_PATIENCE: Final = 2 * LONGEST + 10.0  # seconds after the last message until one that is not back counts as missing
_LINGER: Final = 0.5  # seconds for duplicates to show up
_PROGRESS_INTERVAL: Final = 0.1
_TICK_1_MS: Final = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1)
_BATCH: Final = range(5, 8)
"""Of ten messages on a local topic, those that are published as a batch."""
_DELAYED: Final = (4, 9)
"""Of ten messages on a local topic, those that are delayed."""

Watch = Callable[[Sequence[Journal]], None]


@dataclass(slots=True)
class Stage:
    """A topic with consumers that each get every message.

    :param broker: a description of the broker for people
    :param journals: one for each consumer, and one for delayed messages if there are any
    :param work: what each consumer does; it never returns
    :param publish: sends the message with a number
    """

    broker: str
    journals: Sequence[Journal]
    work: Sequence[Callable[[], Coroutine[Any, Any, None]]]
    publish: Callable[[int], Awaitable[None]]


async def play(stage: Stage, messages: int, seconds: float, watch: Watch) -> None:
    """Send messages for some seconds, at even intervals, and wait until all are back, or for ``_PATIENCE``.

    :param watch: called with the journals ten times a second
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in stage.work]
        tasks.append(group.create_task(_report_progress(watch, stage.journals)))
        now = asyncio.get_running_loop().time
        start = now()
        for number in range(messages):
            await asyncio.sleep(start + seconds * number / max(messages - 1, 1) - now())
            await stage.publish(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                for journal in stage.journals:
                    await journal.all_back.wait()
        await asyncio.sleep(_LINGER)
        for task in tasks:
            task.cancel()
    watch(stage.journals)


async def _report_progress(watch: Watch, journals: Sequence[Journal]) -> None:
    while True:
        watch(journals)
        await asyncio.sleep(_PROGRESS_INTERVAL)


async def _fail(receive: Callable[[], Awaitable[Message]], journal: Journal, asked: Sequence[float]) -> None:
    """Nack each message once, with the delay that is asked for its number."""
    now = asyncio.get_running_loop().time
    while True:
        message = await receive()
        number = int(message.data)
        if journal.knows(number):
            journal.came_back(number, now())
            await message.ack()
        else:
            journal.failed(number, asked[number], now())
            await message.nack(delay=asked[number])


async def _fail_official(consumer: Any, journal: Journal) -> None:
    now = asyncio.get_running_loop().time
    while True:
        message = await consumer.receive()
        number = int(message.data())
        if journal.knows(number):
            journal.came_back(number, now())
            await consumer.acknowledge(message)
        else:
            journal.failed(number, OFFICIAL_DELAY, now())
            await consumer.negative_acknowledge(message)


# --- on a broker, or on the fake port ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_stage(url: str | None, config: NackConfig, asked: Sequence[float]) -> AsyncIterator[Stage]:
    """Make topic and consumers, and remove them at the end, whatever happens.

    :param url: the user's broker; None: the embedded one, or the fake port where that does not run
    :param asked: the delays of the nacks of all messages, in seconds
    :raises BrokerError: there is no broker, or it refused a request
    :raises MissingExtraError: pulsar-client is not installed
    """
    if url is None and not EmbeddedBroker.available():
        topic, journal = FakeTopic(), Journal(OURS, len(asked))

        async def publish(number: int) -> None:
            topic.publish(b"%d" % number)

        async with Consumer(FakePort(topic, latency=_FAKE_LATENCY), config=config) as consumer:
            yield Stage("fake port, in memory", [journal], [partial(_fail, consumer.receive, journal, asked)], publish)
        return
    client_module = import_client()
    async with contextlib.AsyncExitStack() as stack:
        if url is None:
            broker = "pulsar-lite, embedded"
            url = (await stack.enter_async_context(EmbeddedBroker())).service_url
            is_ours = True
        else:
            broker, is_ours = url, False
        try:
            yield await _connect(stack, url, broker, config, asked, is_ours=is_ours)
        except client_module.PulsarException as error:
            raise broker_error(broker, error) from error


def import_client() -> Any:
    """Return the module ``pulsar.asyncio``.

    :raises MissingExtraError: pulsar-client is not installed
    """
    try:
        import pulsar.asyncio
    except ImportError as error:
        raise MissingExtraError("the demo", "pulsar-client>=3.13", "demo") from error
    return pulsar.asyncio


async def _connect(
    stack: contextlib.AsyncExitStack,
    url: str,
    broker: str,
    config: NackConfig,
    asked: Sequence[float],
    *,
    is_ours: bool,
) -> Stage:
    import pulsar

    topic = f"persistent://public/default/pulsar-nack-demo-{secrets.token_hex(4)}"
    # By default the client logs to the terminal, and with a Python logger it deadlocks now and then.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True))
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(Path(folder, "client.log")))
    try:
        client = import_client().Client(url, logger=logger, operation_timeout_seconds=_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise BrokerError(f"{url}: {error}") from error
    # Its threads end shortly after close() returns; a process that exits earlier may abort.
    stack.push_async_callback(asyncio.sleep, 0.05)
    stack.push_async_callback(_quietly, client.close)
    official = await client.subscribe(
        topic,
        "official",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=round(OFFICIAL_DELAY * 1000),
    )
    over = await stack.enter_async_context(subscribe(client, topic, "over-official", config=config))
    native_client = await stack.enter_async_context(connect(url, request_timeout=_TIMEOUT))
    native = await stack.enter_async_context(native_client.subscribe(topic, "native", config=config))
    producer = await stack.enter_async_context(native_client.producer(topic, send_timeout=_TIMEOUT))
    if not is_ours:
        # A broker deletes a topic that has no subscriptions after a while.
        stack.push_async_callback(_quietly, official.unsubscribe)
        stack.push_async_callback(_quietly, over.port.native.unsubscribe)
        stack.push_async_callback(_quietly, native.port.unsubscribe)
    journals = [Journal(name, len(asked)) for name in (OFFICIAL, OVER, NATIVE)]
    work = [
        partial(_fail_official, official, journals[0]),
        partial(_fail, over.receive, journals[1], asked),
        partial(_fail, native.receive, journals[2], asked),
    ]

    async def publish(number: int) -> None:
        await producer.send(b"%d" % number)

    return Stage(broker, journals, work, publish)


async def _quietly(close: Callable[[], Awaitable[None]]) -> None:
    """Clean up for at most a few seconds: the broker may be gone."""
    with contextlib.suppress(import_client().PulsarException, PulsarNackError, TimeoutError):
        async with asyncio.timeout(5):
            await close()


# --- on a local topic -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restart:
    """The restart in the middle of the run.

    :param nacked: how many nacked messages were waiting
    :param delayed: how many delayed messages were waiting
    """

    at_s: float
    took_ms: float
    nacked: int
    delayed: int


class LocalDemo:
    """A local topic and its only consumer, whose nacks are durable.

    :param folder: where both store their state
    :param asked: the delays of the nacks of all messages; delayed messages wait for those of the reverse order
    """

    def __init__(self, folder: Path, config: NackConfig, asked: Sequence[float], seconds: float) -> None:
        self._folder = folder
        self._config = config
        self._delays = asked[::-1]
        self._ours = Journal(OURS, len(asked))
        self._delayed = Journal(DELAYED, sum(number % 10 in _DELAYED for number in range(len(asked))))
        self._now = asyncio.get_running_loop().time
        self._start = self._now()
        self._middle = self._start + seconds / 2
        self._batch: list[bytes] = []
        self._reopening = asyncio.Lock()
        self._topic: LocalTopic | None = None
        self._consumer: Consumer | None = None
        self.restart: Restart | None = None
        journals = [self._ours, self._delayed] if self._delayed.expected else [self._ours]
        work = partial(_fail, self.receive, self._ours, asked)
        self.stage = Stage("local topic, in a folder", journals, [work], self.publish)

    @contextlib.asynccontextmanager
    async def topic(self) -> AsyncIterator[LocalTopic]:
        """Give the topic; it is not closed while the block runs."""
        async with self._reopening:
            assert self._topic is not None
            yield self._topic

    async def open(self) -> None:
        """Open topic and consumer with their stored state."""
        clock = LoopClock()
        self._topic = await LocalTopic.open(self._folder / "topic", delayed=_TICK_1_MS, clock=clock)
        durable = self._folder / "nacks"
        self._consumer = await self._topic.consumer(OURS, config=self._config, durable=durable, wall_clock=clock)

    async def aclose(self) -> None:
        """Close consumer and topic; their state stays in the folder."""
        consumer, self._consumer = self._consumer, None
        topic, self._topic = self._topic, None
        try:
            if consumer is not None:
                await consumer.aclose()
        finally:
            if topic is not None:
                await topic.aclose()

    async def reopen(self) -> None:
        """Close consumer and topic and open them again; meanwhile nothing is published."""
        async with self._reopening:
            await self.aclose()
            await self.open()

    async def publish(self, number: int) -> None:
        """Publish the message of a number: of ten messages three are a batch, and two are delayed."""
        async with self.topic() as topic:
            if number % 10 in _DELAYED:
                delay = self._delays[number]
                self._delayed.failed(number, delay, self._now())
                await topic.publish([b"%d" % number], deliver_after=delay)
                return
            self._batch.append(b"%d" % number)
            if number % 10 not in _BATCH[:-1] or number == len(self._delays) - 1:
                batch, self._batch = self._batch, []
                await topic.publish(batch, batch=number % 10 in _BATCH)

    async def receive(self) -> Message:
        """Return the next message; in the middle of the run everything is closed and opened again before."""
        message: Message | None = None
        while message is None:
            assert self._consumer is not None
            left = None if self.restart is not None else self._middle - self._now()
            if left is not None and left <= 0:
                await self._restart()
                continue
            with contextlib.suppress(TimeoutError):
                message = await self._consumer.receive(timeout=left)
        number = int(message.data)
        if self._delayed.knows(number) and not self._ours.knows(number):
            self._delayed.came_back(number, self._now())
        return message

    async def _restart(self) -> None:
        nacked, delayed = self._ours.waiting, self._delayed.waiting
        began = self._now()
        await self.reopen()
        took_ms = round((self._now() - began) * 1000, 1)
        self.restart = Restart(round(began - self._start, 3), took_ms, nacked, delayed)


@contextlib.asynccontextmanager
async def open_local(config: NackConfig, asked: Sequence[float], seconds: float) -> AsyncIterator[LocalDemo]:
    """Open a local topic in a temporary folder, and remove it at the end, whatever happens.

    :raises MissingExtraError: a package that local topics need is not installed
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True) as folder:
        demo = LocalDemo(Path(folder), config, asked, seconds)
        try:
            await demo.open()
            yield demo
        finally:
            await demo.aclose()
