"""The demo's run: messages keep arriving, each fails once, and a journal notes when it comes back.

It takes place on a broker, embedded or the user's, or else on the fake port; for a local topic see ``_demo_local``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from .. import Consumer, NackConfig, connect, subscribe
from ..consumer.transport import broker_error
from ..errors import BrokerError, MissingExtraError, PulsarNackError
from ..testing import EmbeddedBroker, FakePort, FakeTopic
from ._demo_figures import LONGEST, Journal, delays

OFFICIAL: Final = "official client"
OURS: Final = "pulsar-nack"
OVER: Final = "pulsar-nack over it"
NATIVE: Final = "pulsar-nack native"
OFFICIAL_DELAY: Final = 1.0
"""Seconds; the official client knows one delay for a whole consumer."""
_FAKE_LATENCY: Final = 0.001
_TIMEOUT: Final = 10
PATIENCE: Final = 10.0  # seconds after the last deadline until a message that is not back counts as missing
_LINGER: Final = 0.5  # seconds for duplicates to show up
_PROGRESS_INTERVAL: Final = 0.1

Watch = Callable[[Sequence[Journal]], None]


class Load(NamedTuple):
    """How many messages are sent.

    :param seconds: from the first message to the last
    :param seed: chooses the delays
    """

    messages: int
    seconds: float
    seed: int


async def play(stage: Stage, load: Load, watch: Watch) -> list[Journal]:
    """Run the demo on a broker; return the journal of each consumer, the official client's first.

    :param watch: called with the journals ten times a second
    """
    journals: list[Journal] = []
    work: list[Coroutine[Any, Any, None]] = []
    asked = delays(load.messages, load.seed)
    if stage.official is not None:
        journals.append(Journal(OFFICIAL, load.messages))
        work.append(_fail_official(stage.official, journals[-1]))
    for name, consumer in stage.consumers.items():
        journals.append(Journal(name, load.messages))
        work.append(_fail_ours(consumer, journals[-1], asked))
    await perform(journals, work, _send(stage, load), watch, LONGEST + PATIENCE)
    return journals


async def perform(
    journals: Sequence[Journal],
    work: Sequence[Coroutine[Any, Any, None]],
    sending: Coroutine[Any, Any, None],
    watch: Watch,
    patience: float,
) -> None:
    """Send the messages while ``work`` handles them, until all are back or for at most ``patience`` seconds more."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in (*work, _report_progress(watch, journals))]
        await sending
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for journal in journals:
                    await journal.all_back.wait()
        await asyncio.sleep(_LINGER)
        for task in tasks:
            task.cancel()
    watch(journals)


async def _send(stage: Stage, load: Load) -> None:
    """Send the messages at even intervals, however long each takes."""
    now = asyncio.get_running_loop().time
    start = now()
    for number in range(load.messages):
        await asyncio.sleep(start + load.seconds * number / max(load.messages - 1, 1) - now())
        await stage.publish(str(number).encode())


async def _fail_ours(consumer: Consumer, journal: Journal, asked: Sequence[float]) -> None:
    now = asyncio.get_running_loop().time
    async for message in consumer:
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


async def _report_progress(watch: Watch, journals: Sequence[Journal]) -> None:
    while True:
        watch(journals)
        await asyncio.sleep(_PROGRESS_INTERVAL)


# --- the stage: a topic and its consumers -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """A topic with consumers that each get every message.

    :param broker: a description of the broker for people
    :param publish: sends one message
    :param consumers: those of pulsar-nack, by their names for people
    :param official: the official client's ``pulsar.asyncio.Consumer``, None without a broker
    """

    broker: str
    publish: Callable[[bytes], Awaitable[None]]
    consumers: Mapping[str, Consumer]
    official: Any = None


@contextlib.asynccontextmanager
async def open_stage(url: str | None, config: NackConfig) -> AsyncIterator[Stage]:
    """Make topic and consumers, and remove them at the end, whatever happens.

    :param url: the user's broker; None: the embedded one, or the fake port where that does not run
    :raises BrokerError: there is no broker, or it refused a request
    :raises MissingExtraError: pulsar-client is not installed
    """
    if url is None and not EmbeddedBroker.available():
        async with _fake(config) as stage:
            yield stage
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
            yield await _connect(stack, client_module, url, broker, config, is_ours=is_ours)
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


@contextlib.asynccontextmanager
async def _fake(config: NackConfig) -> AsyncIterator[Stage]:
    topic = FakeTopic()

    async def publish(data: bytes) -> None:
        topic.publish(data)

    async with Consumer(FakePort(topic, latency=_FAKE_LATENCY), config=config) as consumer:
        yield Stage("fake port, in memory", publish, {OURS: consumer})


async def _connect(
    stack: contextlib.AsyncExitStack, module: Any, url: str, broker: str, config: NackConfig, *, is_ours: bool
) -> Stage:
    import pulsar

    topic = f"persistent://public/default/pulsar-nack-demo-{secrets.token_hex(4)}"
    # By default the client logs to the terminal, and with a Python logger it deadlocks now and then.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True))
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(Path(folder, "client.log")))
    try:
        client = module.Client(url, logger=logger, operation_timeout_seconds=_TIMEOUT)
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

    async def publish(data: bytes) -> None:
        await producer.send(data)

    return Stage(broker, publish, {OVER: over, NATIVE: native}, official)


async def _quietly(close: Callable[[], Awaitable[None]]) -> None:
    """Clean up for at most a few seconds: the broker may be gone."""
    with contextlib.suppress(import_client().PulsarException, PulsarNackError, TimeoutError):
        async with asyncio.timeout(5):
            await close()
