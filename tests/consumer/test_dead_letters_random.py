"""Messages with dead letters and random faults: each ends in one way or the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import AlreadySettledError, BrokerError, ClosedError, Consumer, DeadLetterPolicy, Message, NackConfig
from pulsar_nack.testing import FakePort, FakePublisher, FakeTopic, run
from tests.tiers import examples

MOST = 2
CONFIG = NackConfig(negative_ack_precision_bit_cnt=0, close_timeout=1)

ACTIONS = st.sampled_from(["ack", "nack", "nack", "nack", "dead", "dead soon", "both", "leave"])
TROUBLES = st.sampled_from(["publish", "published", "acknowledge", "close", "none", "none"])


class Scenario:
    """One run: which messages were handled, and how they ended."""

    def __init__(self, *, batches: bool, index_acks: bool, kind: Any, redelivery: Any) -> None:
        self.topic = FakeTopic(batch_index_ack=index_acks)
        self.publisher = FakePublisher(latency=0.01)
        self.port: FakePort
        self.acked: set[bytes] = set()
        self.may_forget = batches and not index_acks
        """Whether the broker may not have each acknowledgement when a consumer is closed."""
        self.shown: Counter[bytes] = Counter()
        self.payloads = {b"%d" % number for number in range(12)}
        self._kind, self._redelivery, self._index_acks = kind, redelivery, index_acks
        ordered = sorted(self.payloads)
        for at in range(0, 12, 4):
            if batches:
                self.topic.publish_batch(ordered[at : at + 4])
            else:
                for payload in ordered[at : at + 4]:
                    self.topic.publish(payload)

    async def live(self, actions: list[str], troubles: list[str]) -> None:
        """Handle messages by the plan, then the remaining ones without faults."""
        acts, bad = iter(actions), iter(troubles)
        while True:
            self.port = FakePort(self.topic, subscription_type=self._kind, batch_index_ack=self._index_acks)
            setting = DeadLetterPolicy(MOST, "dead", publisher=self.publisher)
            async with (
                asyncio.TaskGroup() as calls,
                Consumer(self.port, config=CONFIG, redelivery=self._redelivery, dead_letter=setting) as consumer,
            ):
                if not await self._once(consumer, acts, bad, calls):
                    return

    async def _once(self, consumer: Consumer, acts: Any, bad: Any, calls: asyncio.TaskGroup) -> bool:
        """Handle messages until there are none; return whether to open the consumer once more."""
        left: list[Message] = []
        while True:
            try:
                message = await consumer.receive(timeout=200)
            except TimeoutError:
                if left:
                    return True
                assert consumer.statistics().unacked == 0
                consumer._engine.table._check()
                return False
            assert self.may_forget or message.data not in self.acked
            self.shown[message.data] += 1
            assert message.attempt <= MOST + 1
            match next(bad, "none"):
                case "publish":
                    self.publisher.fail_next(2)
                case "published":
                    self.publisher.fail_next(carried_out=True)
                case "acknowledge":
                    self.port.fail_next("acknowledge", 1)
                case "close":
                    return True
            action = next(acts, "ack")
            if action == "leave":
                left.append(message)
            else:
                await self._handle(message, action, calls)

    async def _handle(self, message: Message, action: str, calls: asyncio.TaskGroup) -> None:
        match action:
            case "ack":
                await self._ack(message)
            case "nack":
                await message.nack(0.2)
            case "dead":
                await message.dead_letter("why")
            case "dead soon":
                calls.create_task(self._dead_letter(message))
            case "both":
                calls.create_task(self._dead_letter(message))
                await self._ack(message)

    async def _ack(self, message: Message) -> None:
        while True:
            try:
                await message.ack()
            except AlreadySettledError:
                return
            except BrokerError:  # the test asked for it
                continue
            except ClosedError:
                return
            self.acked.add(message.data)
            return

    async def _dead_letter(self, message: Message) -> None:
        try:
            await message.dead_letter("why")
        except (ClosedError, AlreadySettledError):
            return


@examples(100)
@given(
    actions=st.lists(ACTIONS, max_size=40),
    troubles=st.lists(TROUBLES, max_size=30),
    batches=st.booleans(),
    index_acks=st.booleans(),
    kind=st.sampled_from(["shared", "exclusive", "failover"]),
    redelivery=st.sampled_from(["auto", "local"]),
)
def test_each_message_ends_in_one_way(
    actions: list[str], troubles: list[str], batches: bool, index_acks: bool, kind: Any, redelivery: Any
) -> None:
    """U4, U5, U6: every message is acknowledged or dead-lettered in the end; none is lost, and none is both."""

    async def main() -> None:
        scenario = Scenario(batches=batches, index_acks=index_acks, kind=kind, redelivery=redelivery)
        await scenario.live(actions, troubles)
        dead = {letter.data for letter in scenario.publisher.letters}
        assert scenario.acked | dead == scenario.payloads
        assert scenario.port.subscription.backlog == 0
        is_one_consumer = "close" not in troubles and "leave" not in actions
        assert not (is_one_consumer and scenario.acked & dead)

    run(main())
