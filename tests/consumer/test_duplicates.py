"""Duplicates that come after their acknowledgement are acknowledged again, also if single ones fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pulsar_nack import BrokerError, Consumer, MessageId
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.consuming import publish


class PickyPort(FakePort):
    """Refuses every acknowledgement that names a certain entry."""

    refused = -1

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Refuse all of them together."""
        if any(message_id.entry == self.refused for message_id in ids):
            raise BrokerError("of no topic of ours")
        await super().acknowledge(ids)


@virtual_time
async def test_one_that_fails_keeps_no_other_from_it() -> None:
    """One duplicate is refused for ever: the others are acknowledged, and it is given up after some attempts."""
    port = PickyPort()
    async with Consumer(port) as consumer:
        publish(port.topic, *[b"x"] * 20)
        ids = [(await consumer.receive()).id for _ in range(20)]
        await asyncio.gather(*map(consumer.acknowledge, ids))
        acks = consumer._settler.acks
        port.refused = 7
        for message_id in ids:
            acks.ack_duplicate(message_id)
        await asyncio.sleep(60)
        assert consumer.statistics().acked_again == 19
        await asyncio.sleep(600)
        calls = len(port.calls)
        assert not acks._duplicates
        await asyncio.sleep(600)
        assert len(port.calls) == calls
        port.refused = -1
        acks.ack_duplicate(ids[7])
        await asyncio.sleep(60)
        assert consumer.statistics().acked_again == 20
