"""Where the demo plays: a broker, embedded or the user's, or the fake port for want of these."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ... import Consumer, NackConfig, connect, subscribe
from ...consumer.transport import broker_error
from ...errors import BrokerError, MissingExtraError, PulsarNackError
from ...testing import EmbeddedBroker, FakePort, FakeTopic

OURS: Final = "pulsar-nack"
OVER: Final = "pulsar-nack over it"
NATIVE: Final = "pulsar-nack native"
OFFICIAL_DELAY: Final = 1.0
"""Seconds; the official client knows one delay for a whole consumer."""
_FAKE_LATENCY: Final = 0.001
_TIMEOUT: Final = 10


@dataclass(frozen=True, slots=True)
class Stage:
    """What the demo plays with; each consumer sees every message.

    :param broker: what it is, for people
    :param publish: sends one message
    :param consumers: ours, by their names for people
    :param official: the official client's own ``pulsar.asyncio.Consumer``, None where there is no broker for it
    """

    broker: str
    publish: Callable[[bytes], Awaitable[None]]
    consumers: Mapping[str, Consumer]
    official: Any = None


@contextlib.asynccontextmanager
async def open_stage(url: str | None, config: NackConfig) -> AsyncIterator[Stage]:
    """Set the stage, and clear it away whatever happens.

    :param url: a broker of the user's; None: the embedded one, or the fake port where that does not run
    :raises BrokerError: no broker there, or it refused something
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
    # The client logs to the terminal by itself, and deadlocks now and then with a Python logger.
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True))
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(Path(folder, "client.log")))
    try:
        client = module.Client(url, logger=logger, operation_timeout_seconds=_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise BrokerError(f"{url}: {error}") from error
    # Its threads end a moment after close() returns; a process that exits before that may abort.
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
        # Without subscriptions a broker removes the topic in its own time.
        stack.push_async_callback(_quietly, official.unsubscribe)
        stack.push_async_callback(_quietly, over.port.native.unsubscribe)
        stack.push_async_callback(_quietly, native.port.unsubscribe)

    async def publish(data: bytes) -> None:
        await producer.send(data)

    return Stage(broker, publish, {OVER: over, NATIVE: native}, official)


async def _quietly(close: Callable[[], Awaitable[None]]) -> None:
    """Clean up for at most a few seconds; the broker may have gone."""
    with contextlib.suppress(import_client().PulsarException, PulsarNackError, TimeoutError):
        async with asyncio.timeout(5):
            await close()
