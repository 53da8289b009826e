"""Where the demo runs: on a broker (embedded, or the user's) or else the fake port, or on a local topic."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ... import Consumer, DelayedDeliveryConfig, LocalTopic, NackConfig, connect, subscribe
from ...clock import LoopClock
from ...consumer.transport import broker_error
from ...errors import BrokerError, MissingExtraError, PulsarNackError
from ...testing import EmbeddedBroker, FakePort, FakeTopic

OURS: Final = "pulsar-nack"
OVER: Final = "pulsar-nack over it"
NATIVE: Final = "pulsar-nack native"
OFFICIAL_DELAY: Final = 1.0
"""Seconds; the official client knows one delay for a whole consumer."""
LOCAL_BROKER: Final = "local topic, in a folder"
_LOCAL_SUBSCRIPTION: Final = "pulsar-nack"
_TICK_1_MS: Final = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1)
_FAKE_LATENCY: Final = 0.001
_TIMEOUT: Final = 10


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


# --- a local topic ----------------------------------------------------------------------------------------------------


class LocalStage:
    """A local topic and its only consumer, whose nacks are durable. Times are those of the loop.

    :param folder: where both store their state
    """

    def __init__(self, folder: Path, config: NackConfig) -> None:
        self._folder = folder
        self._config = config
        self._restarting = asyncio.Lock()
        self._topic: LocalTopic | None = None
        self._consumer: Consumer | None = None

    @property
    def consumer(self) -> Consumer:
        """Return the consumer; after a restart it is a new one."""
        assert self._consumer is not None
        return self._consumer

    @contextlib.asynccontextmanager
    async def topic(self) -> AsyncIterator[LocalTopic]:
        """Give the topic; it is not closed while the block runs."""
        async with self._restarting:
            assert self._topic is not None
            yield self._topic

    async def publish(self, payloads: Sequence[bytes], *, batch: bool) -> None:
        """Send messages one by one, or as a batch."""
        async with self.topic() as topic:
            await topic.publish(payloads, batch=batch)

    async def open(self) -> None:
        """Open topic and consumer with their stored state."""
        clock = LoopClock()
        self._topic = await LocalTopic.open(self._folder / "topic", delayed=_TICK_1_MS, clock=clock)
        durable = self._folder / "nacks"
        self._consumer = await self._topic.consumer(
            _LOCAL_SUBSCRIPTION, config=self._config, durable=durable, wall_clock=clock
        )

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

    async def restart(self) -> None:
        """Close consumer and topic and open them again; meanwhile nothing is published."""
        async with self._restarting:
            await self.aclose()
            await self.open()


@contextlib.asynccontextmanager
async def open_local_stage(config: NackConfig) -> AsyncIterator[LocalStage]:
    """Open a local topic in a temporary folder, and remove it at the end, whatever happens.

    :raises MissingExtraError: a package that local topics need is not installed
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True) as folder:
        stage = LocalStage(Path(folder), config)
        try:
            await stage.open()
            yield stage
        finally:
            await stage.aclose()
