"""Dead letters from one local topic to another, over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_nack import DeadLetterPolicy, InvalidArgumentError, LocalTopic
from pulsar_nack.consumer import Publisher
from pulsar_nack.testing import virtual_time

pytest.importorskip("google.protobuf")


@virtual_time
async def test_from_one_topic_to_another(tmp_path: Path) -> None:
    """U4, U6: a message that fails too often is in the other topic, with key and properties, and acknowledged here."""
    async with (
        await LocalTopic.open(tmp_path / "orders") as orders,
        await LocalTopic.open(tmp_path / "dead") as dead,
        orders.consumer("billing", dead_letter=DeadLetterPolicy(1, publisher=dead.publisher())) as consumer,
    ):
        await orders.publish([b"0", b"poison", b"2"], key="k", properties={"colour": "red"}, batch=True)
        for _ in range(4):
            message = await consumer.receive(timeout=10)
            await (message.nack(0.1) if message.data == b"poison" else message.ack())
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=10)
        assert orders.backlog("billing") == 0
    async with await LocalTopic.open(tmp_path / "dead") as dead, dead.consumer("repair") as repair:
        letter = await repair.receive(timeout=10)
        assert (letter.data, letter.key) == (b"poison", "k")
        assert letter.properties["colour"] == "red"
        assert letter.properties["REAL_SUBSCRIPTION"] == "billing"
        with pytest.raises(TimeoutError):
            await repair.receive(timeout=10)


@virtual_time
async def test_it_takes_what_a_broker_takes(tmp_path: Path) -> None:
    """Keys of bytes become base64, and ordering keys, which local topics do not have, are left out."""
    async with await LocalTopic.open(tmp_path / "dead") as dead, dead.consumer("repair") as repair:
        publisher: Publisher = dead.publisher()
        await publisher.publish("any", b"d", properties={}, key=b"\x00\xff", ordering_key="o", event_time_ms=5)
        letter = await repair.receive(timeout=10)
        assert (letter.key, letter.ordering_key, letter.event_time_ms) == ("AP8=", None, 5)


@virtual_time
async def test_without_another_topic_it_is_refused(tmp_path: Path) -> None:
    """A local topic cannot create another one by name: without a publisher the setting is refused at once."""
    async with await LocalTopic.open(tmp_path / "orders") as orders:
        with pytest.raises(InvalidArgumentError, match="publisher"):
            orders.consumer("billing", dead_letter=DeadLetterPolicy(1))
