"""A consumer on a scripted broker with a dead-letter topic and a retry topic, and the contents of these topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pulsar_nack import Consumer
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.wire import ClientOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import FakeBroker
from tests.wire.frames import read_message
from tests.wire.using import BASE, subscribed

TOPIC = f"{BASE}orders"
RETRY = f"{TOPIC}-billing-RETRY"
DEAD = f"{TOPIC}-billing-DLQ"


@asynccontextmanager
async def consuming(broker: FakeBroker, topic: Any = "orders", **settings: Any) -> AsyncIterator[Consumer]:
    """A consumer with a retry topic, on the loop's clock."""
    broker.topic(RETRY).ledger = 8  # a broker gives each ledger to one topic
    about = {"retry_topic": RetryTopicPolicy(), "wall_clock": LoopClock(), **settings}
    async with subscribed(broker, topic, "billing", client_options=ClientOptions(keep_alive=600), **about) as consumer:
        yield consumer


def stored(broker: FakeBroker, topic: str = RETRY) -> list[tuple[pb.MessageMetadata, bytes]]:
    """Return the messages in a topic."""
    return [read_message(entry.rest) for entry in broker.topic(topic).entries]


def properties(metadata: pb.MessageMetadata) -> dict[str, str]:
    """Return the properties of a message."""
    return {each.key: each.value for each in metadata.properties}


def unacked(broker: FakeBroker, topic: str) -> int:
    """Return how many entries of a topic the subscription has not acknowledged."""
    found = broker.topic(topic)
    return len({entry.place for entry in found.entries} - found.subscriptions["billing"].acked)
