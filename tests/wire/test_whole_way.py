"""Producer and consumer of one client over real sockets, with TLS and without, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Any, Final

import pytest

from pulsar_nack import NackConfig
from pulsar_nack.wire import Client, ClientOptions
from tests.patience import patience
from tests.wire.conftest import Files, Run
from tests.wire.served import Served

EXACT: Final = NackConfig(negative_ack_precision_bit_cnt=0)
QUICK: Final = {"backoff_minimum": 0.01, "backoff_maximum": 0.05}


@pytest.fixture(params=["plain", "tls"])
def security(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings of the served broker, and of the client."""
    if request.param == "plain":
        return {}, QUICK
    files: Files = request.getfixturevalue("files")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.server)
    return {"tls": context}, {"tls": {"trust_certs_file": files.authority.certificate}, **QUICK}


def test_there_and_back(run: Run, security: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """300 messages in batches and a large one are sent, received, nacked once, redelivered in time, and settled."""
    of_broker, of_client = security

    async def test(there: Served) -> None:
        loop, due_at, seen = asyncio.get_running_loop(), dict[bytes, float](), Counter[bytes]()
        sent = [b"%d" % number for number in range(300)] + [b"large" * 200_000]
        async with (
            Client(there.broker.url, ClientOptions(**of_client)) as client,
            client.subscribe("t", "s", config=EXACT) as consumer,
            client.producer("t") as producer,
        ):
            ids = await asyncio.gather(*(producer.send(data) for data in sent))
            assert len({(each.ledger, each.entry, each.batch_index) for each in ids}) == len(sent)
            while seen.total() < 2 * len(sent):
                message = await consumer.receive(timeout=patience(10))
                seen[message.data] += 1
                if message.attempt == 1:
                    due_at[message.data] = loop.time() + 0.05
                    await message.nack(delay=0.05)
                else:
                    assert loop.time() > due_at[message.data] - 0.001
                    message.ack_soon()
            assert set(seen.values()) == {2}
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout=0.2)
        topic = there.broker.topic("persistent://public/default/t")
        assert len(topic.subscriptions["s"].acked) == len(topic.entries)

    run(test, **of_broker)


def test_cut_again_and_again(run: Run, security: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """While the connection is cut five times all messages are stored, delivered and settled in the end."""
    of_broker, of_client = security

    async def test(there: Served) -> None:
        sent, shown = [b"%d" % number for number in range(80)], set[bytes]()

        async def cut() -> None:
            for _ in range(5):
                await asyncio.sleep(0.05)
                there.broker.cut()

        async with (
            Client(there.broker.url, ClientOptions(**of_client)) as client,
            client.subscribe("t", "s") as consumer,
            client.producer("t", batching=False) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(cut())

            async def send_all() -> None:
                for data in sent:
                    await producer.send(data)
                    await asyncio.sleep(0.003)

            tasks.create_task(send_all())
            while shown != set(sent):
                message = await consumer.receive(timeout=patience(10))
                shown.add(message.data)
                await message.ack()
        topic = there.broker.topic("persistent://public/default/t")
        assert len(topic.subscriptions["s"].acked) >= len(sent)

    run(test, **of_broker)
