"""Call a rate-limited API: each refused message comes back after exactly the time that the API asked for.

    pip install 'pulsar-nack[demo]'
    python examples/rate_limited_api.py            # runs until Ctrl-C
    python examples/rate_limited_api.py --once     # ends when its sample orders are through

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one. The API is a small fake.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pulsar_nack
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-api-orders"
ORDERS = 12
EXACT = pulsar_nack.NackConfig(
    negative_ack_precision_bit_cnt=0
)  # by default a message may be up to 1/8 of its delay early
MARGIN = 0.02  # seconds; a message may still be a millisecond early, over the official client a few more


@dataclass
class Answer:
    """The parts of an HTTP answer that this example needs."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


class FakeApi:
    """Accepts four calls in each half second, and refuses others with a time to try again."""

    def __init__(self, calls: int = 4, window: float = 0.5) -> None:
        self.calls = calls
        self.window = window
        self.taken = 0
        self.window_ends_at = 0.0

    async def post(self, order: str) -> Answer:
        """Answer a call: 201, or 429 with the header Retry-After in seconds."""
        await asyncio.sleep(0.005 + len(order) / 10_000)
        now = time.monotonic()
        if now >= self.window_ends_at:
            self.window_ends_at = now + self.window
            self.taken = 0
        if self.taken == self.calls:
            return Answer(429, {"Retry-After": f"{self.window_ends_at - now:.3f}"})
        self.taken += 1
        return Answer(201)


async def handle(message: pulsar_nack.Message, api: FakeApi) -> bool:
    """Make the call for one message; return whether it went through."""
    order = message.data.decode()
    answer = await api.post(order)
    if answer.status == 429:
        delay = float(answer.headers["Retry-After"])
        log(f"{order}: too many calls, again in {delay:.3f} s")
        # Nothing sleeps and no worker is blocked: the message comes back when the API will accept it.
        await message.nack(delay=delay + MARGIN)
        return False
    log(f"{order}: through at attempt {message.attempt}")
    await message.ack()
    return True


async def main(*, once: bool) -> None:
    """Send the sample orders, then pass them on to the API."""
    api = FakeApi()
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.subscribe(TOPIC, "api-callers", config=EXACT) as consumer,
        client.producer(TOPIC) as producer,
    ):
        for number in range(ORDERS):
            await producer.send(f"order {number}".encode())
        through = 0
        async for message in consumer:
            through += await handle(message, api)
            if once and through == ORDERS:
                break
        log(f"{through} orders through, {consumer.statistics().nacked} refusals on the way")


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


def log(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


STARTED_AT = time.monotonic()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="end when the sample orders are through")
    with suppress(KeyboardInterrupt):
        asyncio.run(main(once=parser.parse_args().once))
