"""The inbox of a port: nothing is lost, and no message is delivered that the broker will send again."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsar_nack import Delivery, MessageId
from pulsar_nack.wire._consumer._deliveries import QueuedMessage
from pulsar_nack.wire._consumer._inbox import WireInbox


class Source:
    """Stands for a topic's receiver queue."""

    def __init__(self) -> None:
        self.epoch = 1
        self.received: list[bytes] = []

    def taken(self, item: Delivery) -> Delivery:
        """Note a received message."""
        self.received.append(item.data)
        return item


def delivery(number: int) -> Delivery:
    """The message of this number."""
    return Delivery(MessageId(1, number), str(number).encode())


async def test_what_will_come_again_is_dropped() -> None:
    """After the source lost its connection, its earlier messages are neither delivered nor counted; others stay."""
    inbox = WireInbox(lambda: None)
    one: Any = Source()
    other: Any = Source()
    for number in range(3):
        inbox.put(delivery(number), one)
        inbox.put(delivery(10 + number), other)
    one.epoch += 1
    assert (await inbox.get()).data == b"10"
    inbox.put(delivery(0), one)
    assert len(inbox) == 3
    assert [(await inbox.get()).data for _ in range(3)] == [b"11", b"12", b"0"]
    assert one.received == [b"0"]


async def test_sources_can_be_dropped() -> None:
    """Messages of one source can be dropped, and all messages."""
    inbox = WireInbox(lambda: None)
    one: Any = Source()
    other: Any = Source()
    inbox.put(delivery(0), one)
    inbox.put(delivery(1), other)
    inbox.drop(one)
    inbox.drop(one)
    assert (await inbox.get()).data == b"1"
    inbox.put(delivery(2), one)
    inbox.clear()
    assert len(inbox) == 0


async def test_who_waits_gets_what_another_call_could_not_take() -> None:
    """A message wakes one of two waiting calls, which fails: the other one takes it."""
    source: Any = Source()
    inbox, taken, failures = WireInbox(lambda: None), source.taken, [MemoryError()]

    def once(item: QueuedMessage) -> Delivery:
        if failures:
            raise failures.pop()
        delivery: Delivery = taken(item)
        return delivery

    source.taken = once
    calls = [asyncio.ensure_future(inbox.get()) for _ in range(2)]
    await asyncio.sleep(0)
    inbox.put(delivery(0), source)
    first, second = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert isinstance(first, MemoryError)
    assert isinstance(second, Delivery)
