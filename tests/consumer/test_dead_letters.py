"""Dead letters over each kind of port: which messages go there; ``test_letters`` has the steps and failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    AlreadySettledError,
    Consumer,
    DeadLetterPolicy,
    Delivery,
    InvalidArgumentError,
    Message,
)
from pulsar_nack.errors import NoDeadLetterError, UndecodableMessageError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.consumer.consuming import EXACT, backlog, consuming, is_quiet, received, settle, take
from tests.consumer.durable import Machine
from tests.consumer.ports import Ports


class Trace:
    """Records the events of a consumer."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None]] = []

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> Any:
        """Return the recorder."""
        del topic, subscription, consumer
        return self._note

    def _note(self, event: str, message_id: Any, attempt: Any = None, *, reason: str | None = None, **_: Any) -> None:
        del message_id, attempt
        self.events.append((event, reason))


async def last_attempt(consumer: Consumer, most: int = 2) -> Message:
    """Return a message at its last attempt."""
    for _ in range(most):
        await (await consumer.receive(timeout=10)).nack(0.1)
    message = await consumer.receive(timeout=10)
    assert message.attempt == most + 1
    return message


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("redelivery", ["auto", "local", "broker"])
@virtual_time
async def test_one_attempt_more_than_redeliveries(ports: Ports, redelivery: Any, most: int) -> None:
    """U6: with N redeliveries allowed, and always nacked, a message is delivered N + 1 times, then dead-lettered."""
    async with consuming(ports.port(), most=most, redelivery=redelivery) as (port, consumer, publisher):
        port.topic.publish(b"poison", key="k", properties={"colour": "red"}, event_time_ms=5)
        for attempt in range(1, most + 2):
            message = await consumer.receive(timeout=10)
            assert message.attempt == attempt
            assert not publisher.letters
            await message.nack(0.1)
        assert await is_quiet(consumer)
        (letter,) = publisher.letters
        assert (letter.topic, letter.data, letter.key, letter.event_time_ms) == ("dead", b"poison", "k", 5)
        assert letter.properties["colour"] == "red"
        assert letter.properties["PULSAR_NACK_ATTEMPTS"] == str(most + 1)
        assert letter.properties["PULSAR_NACK_REASON"] == f"{most + 1} attempts failed"
        statistics = consumer.statistics()
        assert (statistics.dead_lettered, statistics.dead_letters_waiting, statistics.unacked) == (1, 0, 0)
        assert statistics.nacked == most + 1
        assert backlog(port) == 0


@pytest.mark.parametrize("subscription_type", ["exclusive", "failover"])
@virtual_time
async def test_where_the_broker_counts_nothing(ports: Ports, subscription_type: Any) -> None:
    """U6: on Exclusive and Failover, where the broker's count stays 0, ours ends it; other messages stay."""
    port = ports.port(subscription_type=subscription_type)
    async with consuming(port) as (_, consumer, publisher):
        for data in (b"fine", b"poison", b"fine too"):
            port.topic.publish(data)
        shown = [await consumer.receive(timeout=1) for _ in range(3)]
        await shown[1].nack(0.1)
        for _ in range(2):
            await (await consumer.receive(timeout=10)).nack(0.1)
        assert await is_quiet(consumer)
        assert [letter.data for letter in publisher.letters] == [b"poison"]
        for message in (shown[0], shown[2]):
            await message.ack()
        assert backlog(port) == 0


@pytest.mark.parametrize("index_acks", [True, False])
@virtual_time
async def test_one_of_a_batch(ports: Ports, index_acks: bool) -> None:
    """U4, U5: of a batch only members nacked to the end are dead-lettered, and none that was acknowledged."""
    topic = ports.topic(batch_index_ack=index_acks)
    async with consuming(ports.port(topic, batch_index_ack=index_acks)) as (port, consumer, publisher):
        topic.publish_batch([b"0", b"1", b"2", b"3", b"4"])
        for message in [await consumer.receive(timeout=1) for _ in range(5)]:
            await (message.nack(0.1) if message.data == b"1" else message.ack())
        for _ in range(2):
            message = await consumer.receive(timeout=10)
            assert message.data == b"1"
            await message.nack(0.1)
        assert await is_quiet(consumer)
        (letter,) = publisher.letters
        assert letter.data == b"1"
        assert letter.properties["ORIGIN_MESSAGE_ID"].endswith(":1")
        assert backlog(port) == 0


@virtual_time
async def test_the_last_round_of_a_batch_in_which_some_succeed(ports: Ports) -> None:
    """U5: a batch fails twice as a whole, and then except for one message, which is dead-lettered."""
    topic = ports.topic(batch_index_ack=True)
    async with consuming(ports.port(topic, batch_index_ack=True)) as (port, consumer, publisher):
        topic.publish_batch([b"0", b"1", b"2"])
        for attempt in (1, 2, 3):
            messages = [await consumer.receive(timeout=10) for _ in range(3)]
            assert {message.attempt for message in messages} == {attempt}
            for message in messages:
                await (message.ack() if attempt == 3 and message.data != b"2" else message.nack(0.1))
        assert await is_quiet(consumer)
        assert [letter.data for letter in publisher.letters] == [b"2"]
        assert backlog(port) == 0


@pytest.mark.not_on("wire", "local", reason="their topics acknowledge single messages of a batch when a consumer does")
@virtual_time
async def test_index_acks_that_the_broker_does_not_know(ports: Ports) -> None:
    """U25: with index acks on here and off at the broker, whose count stays at 1 then, it ends too."""
    topic = ports.topic(batch_index_ack=False)
    async with consuming(ports.port(topic, batch_index_ack=True), redelivery="broker") as (_, consumer, publisher):
        topic.publish_batch([b"0", b"poison", b"2"])
        deliveries = 0
        for _ in range(3):
            message = await consumer.receive(timeout=10)
            if message.data != b"poison":
                await message.ack()
                continue
            deliveries += 1
            await message.nack(0.1)
        while not publisher.letters:
            message = await consumer.receive(timeout=10)
            assert message.data == b"poison"
            deliveries += 1
            await message.nack(0.1)
            await asyncio.sleep(0.01)
        assert deliveries == 3
        assert await is_quiet(consumer)
        assert [letter.data for letter in publisher.letters] == [b"poison"]


@virtual_time
async def test_by_id(ports: Ports) -> None:
    """U6: nacks by id count as well; one whose payload is unknown is dead-lettered at its next delivery, unseen."""
    async with consuming(ports.port(), most=1, max_local_bytes=0, redelivery="broker") as (port, consumer, publisher):
        port.topic.publish(b"poison")
        for _ in range(2):
            await consumer.negative_acknowledge((await consumer.receive(timeout=10)).id, 0.1)
        assert await is_quiet(consumer)
        (letter,) = publisher.letters
        assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "2"
        assert backlog(port) == 0


@virtual_time
async def test_messages_that_others_have_tried_too_often_are_not_delivered(ports: Ports) -> None:
    """U6: a message from another consumer beyond the count, as after a crash in the last attempt, is not delivered."""
    port = ports.port()
    port.topic.publish(b"poison")
    async with Consumer(port, config=EXACT, redelivery="broker") as careless:
        for _ in range(3):
            await (await careless.receive(timeout=10)).nack(0.1)
        await careless.receive(timeout=10)
        async with consuming(ports.port(port.topic), most=1) as (other, consumer, publisher):
            await settle()  # else the last consumer may leave, and the broker forgets its counts
            await careless.aclose()
            assert await is_quiet(consumer)
            (letter,) = publisher.letters
            assert letter.data == b"poison"
            assert int(letter.properties["PULSAR_NACK_ATTEMPTS"]) >= 3
            assert consumer.statistics().shown == 0
            assert backlog(other) == 0


@virtual_time
async def test_the_count_goes_on_over_restarts(ports: Ports, tmp_path: Path) -> None:
    """U7: closed and reopened after each attempt, with durable state, a message is delivered N + 1 times in all."""
    topic, seen, publisher = ports.topic(), list[int](), FakePublisher()
    topic.publish(b"poison")
    for _ in range(4):
        setting = DeadLetterPolicy(2, "dead", publisher=publisher)
        async with Consumer(ports.port(topic), config=EXACT, dead_letter=setting, durable=tmp_path / "d") as consumer:
            if not publisher.letters:
                try:
                    message = await consumer.receive(timeout=10)
                except TimeoutError:
                    continue
                seen.append(message.attempt)
                await message.nack(0.5)
                await settle(0.01)
    assert seen == [1, 2, 3]
    assert [letter.properties["PULSAR_NACK_ATTEMPTS"] for letter in publisher.letters] == ["3"]


@pytest.mark.parametrize("killed", [False, True])
@virtual_time
async def test_a_crash_in_the_last_attempt(ports: Ports, *, killed: bool) -> None:
    """U7, U8: a message in its last attempt, neither acked nor nacked, is dead-lettered at the next start."""
    machine, publisher = Machine(ports), FakePublisher()
    machine.topic.publish(b"poison")
    setting = DeadLetterPolicy(1, "dead", publisher=publisher)
    for attempt in (1, 2):
        async with machine.consuming(killed=killed, dead_letter=setting) as consumer:
            assert (await consumer.receive(timeout=10)).attempt == attempt
    async with machine.consuming(dead_letter=setting) as consumer:
        assert await is_quiet(consumer)
        assert consumer.statistics().dead_lettered == 1
    assert [letter.data for letter in publisher.letters] == [b"poison"]


@virtual_time
async def test_the_reason_of_the_last_nack(ports: Ports) -> None:
    """The reason of the last nack is written with the dead letter, and each nack's reason is traced."""
    trace = Trace()
    async with received(ports.port(), most=1, trace=trace) as (_, consumer, publisher, message):
        with pytest.raises(InvalidArgumentError, match="reason"):
            await message.nack(0.1, reason=5)  # type: ignore[arg-type]
        await message.nack(0.1, reason="TimeoutError")
        message = await consumer.receive(timeout=1)
        await consumer.negative_acknowledge(message, reason="ValueError")
        await settle()
        assert [letter.properties["PULSAR_NACK_REASON"] for letter in publisher.letters] == ["ValueError"]
        assert [reason for event, reason in trace.events if event == "nack"] == ["TimeoutError", "ValueError"]


# --- at once ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_dead_letter_has_all_that_its_message_had() -> None:
    """U15: at any attempt, keys, event time, properties and reason are published; no value stays no value."""
    async with consuming(FakePort()) as (port, consumer, publisher):
        for data in (b"bad", None):
            port.topic.publish(data, key="k", properties={"colour": "red"}, ordering_key="o", event_time_ms=5)
            await (await consumer.receive(timeout=1)).dead_letter("no such customer")
            letter = publisher.letters.pop()
            assert (letter.topic, letter.data, letter.key, letter.ordering_key) == ("dead", data, "k", "o")
            assert (letter.event_time_ms, letter.properties["colour"]) == (5, "red")
            assert letter.properties["PULSAR_NACK_REASON"] == "no such customer"
            assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "1"


@virtual_time
async def test_without_the_setting_there_is_no_such_way() -> None:
    """Without the setting the call says what is missing, and the message stays as it is."""
    port = FakePort()
    port.topic.publish(b"bad")
    async with Consumer(port) as consumer:
        message = await consumer.receive(timeout=1)
        with pytest.raises(NoDeadLetterError, match="dead_letter=DeadLetterPolicy"):
            await message.dead_letter("why")
        await message.ack()


@virtual_time
async def test_a_reason_is_a_text() -> None:
    """Other types than text are refused as a reason, and the message stays as it is."""
    async with received(FakePort()) as (_, _, publisher, message):
        with pytest.raises(InvalidArgumentError, match="reason"):
            await message.dead_letter(ValueError("bad"))  # type: ignore[arg-type]
        await message.ack()
        assert not publisher.letters


@virtual_time
async def test_an_ack_after_the_last_nack_is_too_late(ports: Ports) -> None:
    """The last nack has begun to dead-letter the message: an ``ack`` raises meanwhile."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"poison")
        message = await last_attempt(consumer)
        publisher.hold()
        await message.nack(0.1)
        await message.nack(0.1)
        with pytest.raises(AlreadySettledError, match="dead-letter"):
            await message.ack()
        publisher.release()
        await settle()
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


# --- unreadable messages ---------------------------------------------------------------------------------------------


class Unreadable:
    """Makes a port's deliveries unreadable."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        if name in {"receive_nowait", "acknowledge_soon"}:
            raise AttributeError(name)
        return getattr(self._port, name)

    async def receive(self) -> Delivery:
        """Return the next message as an unreadable one."""
        found = await self._port.receive()
        error = UndecodableMessageError("payload: damaged")
        return Delivery(found.id, b"stored", found.properties, topic=found.topic, error=error)


@virtual_time
async def test_what_cannot_be_read_goes_there_unseen(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable payload is dead-lettered at once: as it was stored, with its properties; one warning."""
    port = ports.port()
    port.topic.publish(b"secret", properties={"colour": "red"})
    port.topic.publish(b"secret too")
    async with consuming(Unreadable(port)) as (_, consumer, publisher):  # type: ignore[arg-type]
        assert await is_quiet(consumer)
        assert consumer.statistics().shown == 0
        assert [letter.data for letter in publisher.letters] == [b"stored", b"stored"]
        properties = publisher.letters[0].properties
        assert properties["colour"] == "red"
        assert properties["PULSAR_NACK_REASON"] == "UndecodableMessageError: payload: damaged"
        assert properties["PULSAR_NACK_ATTEMPTS"] == "0"
        assert backlog(port) == 0
    assert sum("cannot be read" in record.message for record in caplog.records) == 1


# --- failures --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_cumulative_acknowledgement_ends_what_is_under_way(ports: Ports) -> None:
    """A message acknowledged cumulatively is no longer dead-lettered, together with one that is refused."""
    async with consuming(ports.port(subscription_type="exclusive"), most=1) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        port.topic.publish(b"last")
        message, first = await take(consumer, 2)
        await first.nack(0.1)
        (last,) = await take(consumer, 1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await last.nack()
        await settle()
        for each in (message, last):
            with pytest.raises(AlreadySettledError, match="dead-letter topic"):
                await consumer.acknowledge_cumulative(each)
        await consumer.acknowledge_cumulative(last.id)
        with pytest.raises(AlreadySettledError, match="acknowledged"):
            await call
        publisher.release()
        await settle()
        assert not publisher.letters
        assert consumer.statistics().unacked == 0


@virtual_time
async def test_traced_as_the_pipeline_expects(ports: Ports) -> None:
    """The trace has the nack with its reason, and an ack whose reason is ``dead-letter``."""
    trace = Trace()
    async with consuming(ports.port(), most=1, trace=trace) as (port, consumer, publisher):
        port.topic.publish(b"poison")
        await (await last_attempt(consumer, 1)).nack()
        await settle()
        assert trace.events[-2:] == [("nack", None), ("ack", "dead-letter")]
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        await message.nack(10)
        publisher.fail_next()
        await message.dead_letter("no such customer")
        assert trace.events[-4:] == [
            ("cancel", "dead-letter"),
            ("nack", "no such customer"),
            ("error", "dead letter: BrokerError('publish failed, as the test asked')"),
            ("ack", "dead-letter"),
        ]
