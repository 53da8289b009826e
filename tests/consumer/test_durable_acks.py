"""Durable acknowledgements: what is remembered, for how long, in how little space, and the gate before it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import AlreadySettledError, Consumer, InvalidArgumentError, Message, MessageId
from pulsar_nack.consumer.durable import _records as records
from pulsar_nack.consumer.durable._acked import AckedMessages
from pulsar_nack.consumer.durable._records import Change, RangeAcks, RecordKind
from pulsar_nack.consumer.durable._state import DurableState
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.consuming import is_quiet, take
from tests.consumer.durable import Machine
from tests.consumer.ports import FAKE
from tests.tiers import seeds, size

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class LonelyPort(FakePort):
    """A port that loses its connection: acknowledgements are lost meanwhile, and their messages come again."""

    is_connected = True

    async def acknowledge(self, ids: Sequence[MessageId]) -> None:
        """Accept them, and lose them without a connection."""
        if self.is_connected:
            await super().acknowledge(ids)

    def disconnect(self) -> None:
        """Lose the connection."""
        self.is_connected = False

    def connect(self) -> None:
        """Restore it: the broker redelivers everything unacknowledged."""
        self.is_connected = True
        self.subscription.restart()


# --- how long, and how much ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", seeds([2, 24]))
def test_a_day_stays_small(hours: int) -> None:
    """K51: a day of a Shared subscription, half of which others acknowledge, takes as much as its last minute."""
    random, acks = Random(1), AckedMessages(60_000)
    most_bytes = most_entries = entry = 0
    for now_ms in range(0, hours * HOUR_MS, 200):
        entry += random.choice((1, 2))
        acks.add(MessageId(entry // 50_000, entry % 50_000, topic="persistent://public/default/orders"), now_ms)
        most_bytes = max(most_bytes, acks.bytes)
        if now_ms % HOUR_MS == 0:
            acks._check()
            most_entries = max(most_entries, acks.entries)
    assert acks.entries <= most_entries <= 60_000 // 200 * 9 / 8 + 1
    assert most_bytes < 3_000
    written = sum(len(item.encode()) for item in acks.records() if isinstance(item, RangeAcks))
    assert written == pytest.approx(acks.bytes, rel=0.35)


@pytest.mark.parametrize("hours", seeds([3, 24]))
def test_a_day_of_batches_stays_small(hours: int) -> None:
    """K51: batches are kept until they are complete, however long that takes, and then as long as other entries."""
    random, state = Random(2), DurableState(60_000, 10**12)
    left: list[tuple[int, MessageId]] = []
    most = 0
    for entry, now_ms in enumerate(range(0, hours * HOUR_MS, 5_000)):
        members = [MessageId(1, entry, batch_index=index, batch_size=8) for index in range(8)]
        for member in members[:-1]:
            state.apply(Change(RecordKind.ACKED, member, now_ms, now_ms))
        left.append((now_ms + random.randrange(600_000), members[-1]))
        for due in [each for each in left if each[0] <= now_ms]:
            assert state.acked.is_acked(due[1]._replace(batch_index=0), now_ms)
            assert not state.acked.is_acked(due[1], now_ms)
            state.apply(Change(RecordKind.ACKED, due[1], now_ms, now_ms))
            left.remove(due)
        most = max(most, state.acked.entries)
    state.acked._check()
    assert most < 200


@pytest.mark.parametrize("hours", seeds([3, 24]))
@virtual_time
async def test_a_day_of_a_consumer_stays_small(hours: int) -> None:
    """K51: over a day, killed each hour, no more is remembered than the acknowledgements of about a minute."""
    machine = Machine()
    remembered, acked_bytes = [], []
    for _ in range(hours):
        async with machine.consuming(killed=True) as consumer:
            for _ in range(40):
                machine.topic.publish(b"x")
                await (await consumer.receive(timeout=1)).ack()
                await asyncio.sleep(30)
                remembered.append(consumer.statistics().durable_acks)
                acked_bytes.append(consumer.statistics().durable_ack_bytes)
                await asyncio.sleep(60)
    assert max(remembered) <= 2
    assert max(acked_bytes) < 200
    assert machine.topic.subscription("fake").backlog == 0


def test_time_without_a_connection_does_not_count() -> None:
    """K51: acknowledgements from before or during ten minutes without a connection count as new after them."""
    acks = AckedMessages(60_000)
    acks.add(MessageId(1, 0), 1_000)
    acks.add(MessageId(1, 1), 61_001)
    acks.add(MessageId(1, 5), 91_000)
    acks.skip_time(100_000, 700_000)
    acks.add(MessageId(1, 9), 700_000)
    for entry, last_ms in ((0, 0), (1, 760_000), (5, 760_000 + 29_999)):
        assert acks.is_acked(MessageId(1, entry), 700_000) is bool(last_ms)
        assert acks.is_acked(MessageId(1, entry), last_ms) is bool(last_ms)
        assert not acks.is_acked(MessageId(1, entry), last_ms + 1)
    acks.skip_time(900_000, 900_000)
    assert (len(acks), acks.entries) == (0, 0)


def test_absences_one_after_the_other() -> None:
    """K51: while connections come and go nothing is forgotten; once one has lasted, everything is."""
    acks, now_ms = AckedMessages(60_000), 0
    for entry in range(100):
        acks.add(MessageId(1, entry), now_ms)
        acks.skip_time(now_ms, now_ms + 1_000)
        now_ms += 31_000
    assert all(acks.is_acked(MessageId(1, entry), now_ms) for entry in range(100))
    acks._check()
    assert not any(acks.is_acked(MessageId(1, entry), now_ms + 130_000) for entry in range(100))


def test_cumulative_acks_are_as_new_after_an_absence() -> None:
    """K51: the mark of a cumulative acknowledgement counts as new after a disconnection too."""
    acks = AckedMessages(60_000)
    acks.add_up_to(MessageId(1, 7), 1_000)
    acks.skip_time(50_000, 650_000)
    assert acks.is_acked(MessageId(1, 3), 710_000)
    assert not acks.is_acked(MessageId(1, 3), 710_001)


@virtual_time
async def test_acks_without_a_connection_are_given_again() -> None:
    """K51: messages acknowledged shortly before the connection is lost for an hour are not delivered again."""
    port = LonelyPort()
    async with Machine(topic=port.topic).consuming(port=port) as consumer:
        port.topic.publish(b"before")
        port.topic.publish(b"during")
        before, during = await take(consumer, 2)
        port.disconnect()
        await before.ack()
        await asyncio.sleep(1_800)
        await during.ack()
        await asyncio.sleep(1_800)
        port.connect()
        assert await is_quiet(consumer, 5)
        assert consumer.statistics().acked_again == 2
        assert port.subscription.backlog == 0
        await asyncio.sleep(120)
        assert consumer.statistics().durable_acks == 0


@virtual_time
async def test_acks_without_a_connection_outlive_a_kill() -> None:
    """U10: killed after an hour without a connection: messages acknowledged at its beginning are not redelivered."""
    machine = Machine().publish(b"x")
    port = LonelyPort(machine.topic)
    async with machine.consuming(killed=True, port=port) as consumer:
        (message,) = await take(consumer, 1)
        port.disconnect()
        await message.ack()
        await asyncio.sleep(3_600)
    async with machine.consuming() as consumer:
        assert await is_quiet(consumer, 5)
        assert consumer.statistics().acked_again == 1
    assert machine.topic.subscription("fake").backlog == 0


@virtual_time
async def test_many_acks_are_remembered() -> None:
    """U10: 150 000 acknowledgements that never reached the broker are remembered after a kill, as two ranges."""
    state, count = DurableState(60_000, DAY_MS), size(150_000, fast=30_000)
    for entry in range(count):
        if entry != 77:
            state.apply(Change(RecordKind.ACKED, MessageId(3, entry), 5, 5))
    assert state.acked.bytes < 100
    copy = DurableState(60_000, DAY_MS)
    for data in state.snapshot(6):
        if data is not None:
            copy.apply(records.decode_record(data))
    acked = [copy.acked.is_acked(MessageId(3, entry), 6) for entry in range(count + 1)]
    assert (sum(acked), acked[77], acked[-1]) == (count - 1, False, False)


@virtual_time
async def test_a_nack_of_what_was_acked_before_a_restart_is_refused() -> None:
    """U20: by its id too, an acknowledged message cannot be nacked, also after a restart."""
    machine = Machine()
    message_id = machine.topic.publish(b"x")
    async with machine.consuming(killed=True, port=FAKE.forgetful(machine.topic)) as consumer:
        await (await consumer.receive(timeout=1)).ack()
    async with machine.consuming() as consumer:
        with pytest.raises(AlreadySettledError):
            await consumer.negative_acknowledge(message_id, 1)
        assert await is_quiet(consumer, 5)


@virtual_time
async def test_an_id_that_is_none_does_no_harm() -> None:
    """An acknowledgement of an id without an entry is written, and not remembered."""
    async with Machine().consuming() as consumer:
        await consumer.acknowledge(MessageId(-1, -1))
        assert consumer.statistics().durable_acks == 0
        assert consumer.statistics().durable_failures == 0


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 300)), max_size=6), st.integers(0, 2**63 - 1))
def test_ranges_are_written_and_read(steps: list[tuple[int, int]], at_ms: int) -> None:
    """K51: ranges of a ledger are equal when read; truncated or longer ones are refused."""
    ranges, end = [], 0
    for gap, length in steps:
        if end + gap + length < 2**63:
            ranges.append((end + gap, end + gap + length))
            end += gap + length + 2
    acks = RangeAcks(MessageId(2**62, 0, 7, topic="persistent://public/default/ü"), at_ms, ranges)
    written = acks.encode()
    assert records.decode_record(written) == acks
    for wrong in (written[:-1], written + b"\0"):
        with pytest.raises(records.UnreadableRecordError):
            records.decode_record(wrong)


# --- the gate --------------------------------------------------------------------------------------------------------

LIMIT = 2_048


def publish_batches(machine: Machine, count: int) -> None:
    """Publish batches of two."""
    for number in range(count):
        machine.topic.publish_batch([b"%d a" % number, b"%d b" % number])


async def fill(consumer: Consumer) -> list[Message]:
    """Acknowledge one of each batch until nothing is delivered; return the others."""
    left: list[Message] = []
    while not await is_quiet_now(consumer, left):
        message = left.pop()
        if message.id.batch_index == 0:
            await message.ack()
        else:
            left.append(message)
    return left


async def is_quiet_now(consumer: Consumer, received: list[Message]) -> bool:
    """Receive one more message, if there is one; at once."""
    try:
        received.append(await consumer.receive(timeout=0.5))
    except TimeoutError:
        return True
    return False


@virtual_time
async def test_receiving_pauses_while_the_state_is_full(caplog: pytest.LogCaptureFixture) -> None:
    """K41: half acknowledged batches fill the state: new messages wait, with one warning; completed, all come."""
    machine = Machine()
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=LIMIT) as consumer:
        with caplog.at_level(logging.WARNING, "pulsar_nack"):
            left = await fill(consumer)
        statistics = consumer.statistics()
        assert 10 < len(left) < 60
        assert statistics.is_ack_state_full
        assert statistics.times_gated == 1
        assert 0 < statistics.durable_ack_bytes <= LIMIT
        assert statistics.gated > 0
        assert len(caplog.records) == 1
        seen = len(left)
        while left:
            for message in left:
                await message.ack()
            left = await fill(consumer)
            seen += len(left)
        assert seen == 60
        assert machine.topic.subscription("fake").backlog == 0
        statistics = consumer.statistics()
        assert (statistics.is_ack_state_full, statistics.gated, statistics.ready) == (False, 0, 0)
        assert len(caplog.records) == 1


@virtual_time
async def test_what_comes_again_passes_the_gate() -> None:
    """K42: while new messages wait, nacked ones and those of partly acknowledged batches are redelivered in time."""
    machine = Machine()
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=LIMIT, redelivery="local") as consumer:
        left = await fill(consumer)
        await left[3].nack(10)
        again = await consumer.receive(timeout=11)
        assert (again.data, again.attempt) == (left[3].data, 2)
        assert consumer.statistics().is_ack_state_full
        await again.ack()


@virtual_time
async def test_much_that_comes_again_at_the_edge_of_the_limit() -> None:
    """K42: half of the messages that pass are nacked: each is redelivered, also one that does not fit at first."""
    machine = Machine().publish(*(b"%d" % number for number in range(80)))
    async with machine.consuming(max_ack_state_bytes=1_024) as consumer:
        kept: list[Message] = []
        for _ in range(3):
            left: list[Message] = []
            while not await is_quiet_now(consumer, left):
                pass
            for message in left[::2]:
                await message.nack(0)
            kept += left[1::2]
        assert consumer.statistics().gated > 0
        await consumer.acknowledge(kept)
        for _ in range(80 - len(kept)):
            await (await consumer.receive(timeout=1)).ack()
        assert machine.topic.subscription("fake").backlog == 0


@pytest.mark.slow
@virtual_time
async def test_acks_that_grow_old_open_the_gate() -> None:
    """K41: another consumer takes every second message, so holes fill the state; a minute later it continues."""
    machine = Machine()
    other = machine.port()
    async with machine.consuming(max_ack_state_bytes=LIMIT, ack_memory=60) as consumer:
        for number in range(4_000):
            machine.topic.publish(b"%d" % number)
        elsewhere = asyncio.create_task(acknowledge_all(other))
        seen: list[Message] = []
        for _ in range(20):
            while not await is_quiet_now(consumer, seen):
                await seen[-1].ack()
            if not consumer.statistics().gated:
                break
            assert consumer.statistics().is_ack_state_full
            assert consumer.statistics().durable_ack_bytes <= LIMIT
            stopped_at = asyncio.get_running_loop().time()
            seen.append(await consumer.receive(timeout=100))
            assert 50 < asyncio.get_running_loop().time() - stopped_at < 70
            await seen[-1].ack()
        assert len({message.id for message in seen}) == len(seen) > 1_000
        assert consumer.statistics().times_gated > 0
        assert machine.topic.subscription("fake").backlog == 0
        elsewhere.cancel()
    await other.close()


async def acknowledge_all(port: FakePort) -> None:
    """Be another consumer, and acknowledge everything."""
    while True:
        delivery = await port.receive()
        await port.acknowledge([delivery.id])


@pytest.mark.parametrize("limit", [0, -5])
@virtual_time
async def test_the_gate_may_be_off(limit: int) -> None:
    """K40: below 1 nothing is bounded."""
    machine = Machine()
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=limit) as consumer:
        assert len(await fill(consumer)) == 60
        assert consumer.statistics().durable_ack_bytes > LIMIT
        assert not consumer.statistics().is_ack_state_full


@pytest.mark.parametrize("limit", [1, 1_023, 2.5, True, "5"])
@virtual_time
async def test_bad_limits_are_refused(limit: Any) -> None:
    """K40: from 1 to 1 023 bytes is refused."""
    with pytest.raises(InvalidArgumentError, match="max_ack_state_bytes"):
        Consumer(FakePort(), max_ack_state_bytes=limit)


@virtual_time
async def test_calls_that_are_cancelled_at_the_gate_lose_nothing() -> None:
    """U2: receives that wait at the gate, and are cancelled, leave their messages to the next ones, in order."""
    machine = Machine(subscription_type="exclusive")
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=LIMIT) as consumer:
        left = await fill(consumer)
        for _ in range(3):
            calls = [asyncio.create_task(consumer.receive()) for _ in range(4)]
            await asyncio.sleep(1)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert consumer.statistics().gated > 0
        seen = [int(message.data.split()[0]) for message in left]
        receiving = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        for message in left:
            await message.ack()
        first = await asyncio.gather(*receiving)
        rest = await take(consumer, 4)
        assert [message.data for message in [*first, *rest]] == [
            b"%d %s" % (number, letter) for number in range(max(seen) + 1, max(seen) + 4) for letter in (b"a", b"b")
        ]


@virtual_time
async def test_seek_opens_the_gate() -> None:
    """K43: waiting messages are dropped when the subscription is moved, and everything is delivered again."""
    machine = Machine()
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=LIMIT) as consumer:
        await fill(consumer)
        await consumer.seek(0)
        statistics = consumer.statistics()
        assert (statistics.gated, statistics.durable_acks, statistics.is_ack_state_full) == (0, 0, False)
        assert (await consumer.receive(timeout=1)).data == b"0 a"


@virtual_time
async def test_closing_at_the_gate() -> None:
    """U18: a consumer that is closed while messages wait at the gate gives them back."""
    machine = Machine()
    publish_batches(machine, 60)
    async with machine.consuming(max_ack_state_bytes=LIMIT) as consumer:
        await fill(consumer)
    async with machine.consuming() as consumer:
        shown = await take(consumer, 10)
        assert {message.id.batch_index for message in shown[:5]} == {1}
