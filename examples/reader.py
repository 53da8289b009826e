"""Read a topic without a subscription: a report that continues where the last one ended, and a table of newest values.

    pip install 'pulsar-nack[demo]'
    python examples/reader.py

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pulsar_nack
from pulsar_nack.testing import EmbeddedBroker
from pulsar_nack.wire import Client, Producer

TOPIC = "example-prices"


async def report(client: Client, file: Path) -> list[str]:
    """Return what was published since the last report; note in a file where the next one begins."""
    async with client.reader(TOPIC, load(file)) as reader:  # with no ids it starts at the earliest message
        lines = [f"{message.key} {message.data.decode()}" async for message in reader.read_to_end()]
        save(file, reader.positions())
    return lines


def load(file: Path) -> list[pulsar_nack.MessageId]:
    """Return the ids in a file, none if there is no file."""
    saved = json.loads(file.read_text()) if file.exists() else []
    return [pulsar_nack.MessageId.from_bytes(bytes.fromhex(data), topic) for topic, data in saved]


def save(file: Path, positions: list[pulsar_nack.MessageId]) -> None:
    """Write ids to a file, each with its topic."""
    file.write_text(json.dumps([(each.topic, each.to_bytes().hex()) for each in positions]))


async def follow(client: Client, producer: Producer) -> None:
    """Show the newest price of each fruit, and changes as they happen."""
    async with client.table_view(TOPIC, decode=lambda message: float(message.data)) as prices:
        print("prices:", dict(prices))
        changes = prices.changes()
        await producer.send(b"0.9", key="apple")
        await producer.send(None, key="pear")  # sold out: the key is removed
        for _ in range(2):
            change = await anext(changes)
            print("change:", change.key, change.value)
        print("prices:", dict(prices))


async def main() -> None:
    """Publish prices; report them in two runs; then follow them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "positions.json")
        async with broker() as url, pulsar_nack.connect(url) as client, client.producer(TOPIC) as producer:
            for key, price in [("apple", b"1.0"), ("pear", b"2.0"), ("apple", b"1.2")]:
                await producer.send(price, key=key)
            print("first report:", await report(client, file))
            await producer.send(b"3.5", key="plum")
            print("second report:", await report(client, file))
            await follow(client, producer)


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


if __name__ == "__main__":
    asyncio.run(main())
