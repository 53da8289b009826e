"""Messages that the transport could not read."""

from __future__ import annotations

import pytest

from pulsar_nack import Consumer, Delivery, MessageId
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.testing import FakePort, FakeTopic, virtual_time


def unreadable(message_id: MessageId) -> Delivery:
    """Return a delivery that has an error and no readable payload."""
    return Delivery(message_id, b"stored", error=UndecodableMessageError("encrypted with the key k"))


class Port(FakePort):
    """Cannot read anything."""

    async def receive(self) -> Delivery:
        """Return the next message as an unreadable one."""
        return unreadable((await super().receive()).id)


@virtual_time
async def test_its_data_raises_and_all_else_works() -> None:
    """The payload raises its error each time; other fields can be read, and the message nacked and acknowledged."""
    topic = FakeTopic()
    topic.publish(b"payload")
    async with Consumer(Port(topic)) as consumer:
        for attempt in (1, 2):
            message = await consumer.receive(timeout=10)
            assert message.attempt == attempt
            assert isinstance(message.error, UndecodableMessageError)
            for _ in range(2):
                with pytest.raises(UndecodableMessageError, match="encrypted"):
                    _ = message.data
            with pytest.raises(UndecodableMessageError, match="encrypted"):
                message.value()
            assert "6 bytes, cannot be read>" in repr(message)
            if attempt == 1:
                await message.nack(1)
        await message.ack()
