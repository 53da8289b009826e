"""The dead-letter way over the fake port, the scripted broker and local topics: what goes there, and every failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    AlreadySettledError,
    ClosedError,
    Consumer,
    DeadLetterPolicy,
    Delivery,
    InvalidArgumentError,
    Message,
    NackConfig,
)
from pulsar_nack.consumer import _letters
from pulsar_nack.errors import NoDeadLetterError, UndecodableMessageError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.consumer.durable import Machine
from tests.consumer.ports import Ports

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


class Trace:
    """Notes the events of a consumer."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None]] = []

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> Any:
        """Return what notes."""
        del topic, subscription, consumer
        return self._note

    def _note(self, event: str, message_id: Any, attempt: Any = None, *, reason: str | None = None, **_: Any) -> None:
        del message_id, attempt
        self.events.append((event, reason))


@asynccontextmanager
async def consuming(
    port: FakePort, most: int = 2, **options: Any
) -> AsyncIterator[tuple[FakePort, Consumer, FakePublisher]]:
    """A port, a consumer on it, and what gets its dead letters."""
    publisher = FakePublisher()
    setting = DeadLetterPolicy(most, "dead", publisher=publisher)
    async with Consumer(port, **{"config": EXACT, "dead_letter": setting, **options}) as consumer:
        yield port, consumer, publisher


async def is_quiet(consumer: Consumer, seconds: float = 100.0) -> bool:
    """Return whether nothing more is shown."""
    try:
        await consumer.receive(timeout=seconds)
    except TimeoutError:
        return True
    return False


async def settle(seconds: float = 1.0) -> None:
    """Let what is under way come to its end."""
    await asyncio.sleep(seconds)


async def last_attempt(consumer: Consumer, most: int = 2) -> Message:
    """Return a message at its last attempt."""
    for _ in range(most):
        await (await consumer.receive(timeout=10)).nack(0.1)
    message = await consumer.receive(timeout=10)
    assert message.attempt == most + 1
    return message


def backlog(port: FakePort) -> int:
    """Return how many entries are not acknowledged at the broker."""
    return port.subscription.backlog


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("redelivery", ["auto", "local", "broker"])
@virtual_time
async def test_one_attempt_more_than_redeliveries(ports: Ports, redelivery: Any, most: int) -> None:
    """U6: with N redeliveries allowed, and always nacked, a message is shown N + 1 times, then it is a dead letter."""
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
    """U6: on Exclusive and Failover, where the broker's count stays 0, ours ends it; the others stay as they are."""
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
    """U4, U5: of a batch only what was nacked to the end is a dead letter, none that was acknowledged."""
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
    """U5: of a batch that fails twice as a whole, and then but for one message, that one is a dead letter."""
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
    """U6: nacks by id count as well; one whose payload is not known any more goes when it comes once more, unseen."""
    async with consuming(ports.port(), most=1, max_local_bytes=0, redelivery="broker") as (port, consumer, publisher):
        port.topic.publish(b"poison")
        for _ in range(2):
            await consumer.negative_acknowledge((await consumer.receive(timeout=10)).id, 0.1)
        assert await is_quiet(consumer)
        (letter,) = publisher.letters
        assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "2"
        assert backlog(port) == 0


@virtual_time
async def test_what_others_have_tried_too_often_is_not_shown(ports: Ports) -> None:
    """U6: what comes from another consumer beyond the count, as after a crash in the last attempt, goes away unseen."""
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
    """U7: closed and opened again after each attempt, with durable state, a message is shown N + 1 times in all."""
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
    """U7, U8: what was shown for the last time, and neither acked nor nacked, is a dead letter at the next start."""
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
    async with consuming(ports.port(), most=1, trace=trace) as (port, consumer, publisher):
        port.topic.publish(b"poison")
        message = await consumer.receive(timeout=1)
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
async def test_at_once_with_a_reason(ports: Ports) -> None:
    """A message can be sent there at any attempt; the call returns when it is there and acknowledged."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        await message.dead_letter("no such customer")
        (letter,) = publisher.letters
        assert letter.properties["PULSAR_NACK_REASON"] == "no such customer"
        assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "1"
        assert backlog(port) == 0
        assert consumer.statistics().dead_lettered == 1
        for other in (message.ack, message.nack):
            with pytest.raises(AlreadySettledError, match="dead-letter"):
                await other()
        with pytest.raises(AlreadySettledError, match="dead-letter"):
            message.ack_soon()


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
    """What is no text is refused as a reason, and the message stays as it is."""
    async with consuming(FakePort()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        with pytest.raises(InvalidArgumentError, match="reason"):
            await message.dead_letter(ValueError("bad"))  # type: ignore[arg-type]
        await message.ack()
        assert not publisher.letters


@pytest.mark.parametrize("redelivery", ["local", "broker"])
@virtual_time
async def test_after_a_nack(ports: Ports, redelivery: Any) -> None:
    """A nack that waits for its time is cancelled by it, as by an acknowledgement."""
    async with consuming(ports.port(), redelivery=redelivery) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        await message.nack(5)
        await message.dead_letter("on second thought")
        assert await is_quiet(consumer)
        assert len(publisher.letters) == 1
        assert consumer.statistics().held == 0


@virtual_time
async def test_not_after_it_is_shown_again_or_acknowledged(ports: Ports) -> None:
    """A later attempt belongs to the task that has it; and an acknowledgement is final."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        first = await consumer.receive(timeout=1)
        await first.nack(0.1)
        second = await consumer.receive(timeout=1)
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await first.dead_letter("late")
        await second.ack()
        with pytest.raises(AlreadySettledError, match="acknowledged"):
            await second.dead_letter("late")
        assert not publisher.letters


@virtual_time
async def test_twice_is_once(ports: Ports) -> None:
    """Two calls, and a nack meanwhile, make one dead letter; an acknowledgement meanwhile raises: it is too late."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        calls = [asyncio.create_task(message.dead_letter(reason)) for reason in ("one", "two")]
        await settle()
        with pytest.raises(AlreadySettledError, match="dead-letter"):
            await consumer.acknowledge(message.id)
        with pytest.raises(AlreadySettledError, match="dead-letter"):
            consumer.acknowledge_soon(message.id)
        await consumer.negative_acknowledge(message.id)
        publisher.release()
        await asyncio.gather(*calls)
        assert [letter.properties["PULSAR_NACK_REASON"] for letter in publisher.letters] == ["one"]


@virtual_time
async def test_an_ack_after_the_last_nack_is_too_late(ports: Ports) -> None:
    """The last nack has begun to dead-letter the message: an ``ack`` raises while that is under way."""
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


# --- what cannot be read ---------------------------------------------------------------------------------------------


class Unreadable:
    """Makes what a port delivers unreadable."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        if name in {"receive_nowait", "acknowledge_soon"}:
            raise AttributeError(name)
        return getattr(self._port, name)

    async def receive(self) -> Delivery:
        """Return the next message as one that cannot be read."""
        found = await self._port.receive()
        error = UndecodableMessageError("payload: damaged")
        return Delivery(found.id, b"stored", found.properties, topic=found.topic, error=error)


@virtual_time
async def test_what_cannot_be_read_goes_there_unseen(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """A payload that cannot be read is a dead letter at once: as it was stored, with its properties; one warning."""
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
async def test_publishing_is_tried_again_until_it_succeeds(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """A publish that fails is made again with backoff; meanwhile the message is neither acknowledged nor shown."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"poison")
        message = await last_attempt(consumer)
        publisher.fail_next(20)
        with caplog.at_level(logging.WARNING):
            await message.nack(0.1)
            assert await is_quiet(consumer, 60)
        assert not publisher.letters
        assert backlog(port) == 1
        assert 5 <= publisher.attempts < 20
        statistics = consumer.statistics()
        assert (statistics.dead_lettered, statistics.dead_letters_waiting) == (0, 1)
        assert statistics.dead_letter_failures == publisher.attempts
        assert sum("dead letter" in record.message for record in caplog.records) == 1
        await settle(1_000)
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ClosedError("the producer"), ValueError("a bug")])
@virtual_time
async def test_whatever_publishing_raises(ports: Ports, error: BaseException) -> None:
    """Whatever a publisher raises, also a cancellation that nobody asked for, it is tried again."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.fail_next(3, error=error)
        await message.dead_letter("why")
        assert publisher.attempts == 4
        assert backlog(port) == 0


@virtual_time
async def test_a_lost_answer_makes_a_second_letter_never_none(ports: Ports) -> None:
    """What was published though the answer was lost is published again: two are there, and one acknowledgement."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        publisher.fail_next(carried_out=True)
        await (await consumer.receive(timeout=1)).dead_letter("why")
        assert len(publisher.letters) == 2
        assert backlog(port) == 0


@pytest.mark.each_kind
@virtual_time
async def test_the_order_is_publish_then_acknowledge(ports: Ports) -> None:
    """Nothing is acknowledged before the dead letter is there; a copy that comes meanwhile is not shown."""
    async with consuming(ports.port(), redelivery="broker") as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await settle()
        await port.redeliver([message.id])
        assert await is_quiet(consumer)
        assert (backlog(port), call.done()) == (1, False)
        publisher.release()
        await call
        assert backlog(port) == 0


@virtual_time
async def test_cancelled_it_goes_on(ports: Ports) -> None:
    """A call that is cancelled, or timed out, leaves the dead letter under way; calling again waits for the same."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await message.dead_letter("why")
        with pytest.raises(AlreadySettledError):
            await message.ack()
        publisher.release()
        await message.dead_letter("why")
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


@virtual_time
async def test_close_waits_for_what_is_under_way(ports: Ports) -> None:
    """Closing waits for dead letters, up to the close timeout: they are there then, and acknowledged."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        topic = port.topic
        topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await settle()
        closing = asyncio.create_task(consumer.aclose())
        await settle(2)
        assert not closing.done()
        publisher.release()
        await closing
        await call
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


@virtual_time
async def test_close_gives_back_what_does_not_get_there(ports: Ports) -> None:
    """A dead letter not published by the close timeout is given back: the call raises, the message comes again."""
    topic = ports.topic()
    topic.publish(b"bad")
    topic.publish(b"poison")
    async with consuming(ports.port(topic), most=1) as (_, consumer, publisher):
        message, other = [await consumer.receive(timeout=1) for _ in range(2)]
        await other.nack(0.1)
        other = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await other.nack()
        await settle()
        before = asyncio.get_running_loop().time()
        await consumer.aclose()
        assert asyncio.get_running_loop().time() - before == pytest.approx(5, abs=0.1)
        with pytest.raises(ClosedError):
            await call
        with pytest.raises(ClosedError):
            await message.dead_letter("why")
        assert not publisher.letters
    async with Consumer(ports.port(topic), config=EXACT) as consumer:
        assert {(await consumer.receive(timeout=1)).data for _ in range(2)} == {b"bad", b"poison"}


@virtual_time
async def test_closed_in_the_turn_in_which_it_began(ports: Ports) -> None:
    """A dead letter whose task has not even begun when everything is ended leaves no call that waits for ever."""
    async with consuming(ports.port(), config=NackConfig(close_timeout=0)) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        closing = asyncio.create_task(consumer.aclose())
        await closing
        with pytest.raises(ClosedError):
            await call
        assert not publisher.letters


@virtual_time
async def test_full_it_fetches_nothing_new(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where dead letters pile up no more messages are fetched, and calls wait, until there is room."""
    monkeypatch.setattr(_letters, "_MOST", 2)
    async with consuming(ports.port()) as (port, consumer, publisher):
        for number in range(5):
            port.topic.publish(bytes([number]))
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        publisher.hold()
        calls = [asyncio.create_task(message.dead_letter("why")) for message in messages]
        await settle()
        assert await is_quiet(consumer)
        assert consumer.statistics().dead_letters_waiting == 2
        publisher.release()
        await asyncio.gather(*calls)
        assert {(await consumer.receive(timeout=1)).data for _ in range(2)} == {b"\x03", b"\x04"}
        assert len(publisher.letters) == 3


@virtual_time
async def test_bounded_in_bytes_too(ports: Ports) -> None:
    """Payloads are bounded as well; however small that bound is, one message at a time finds its way."""
    async with consuming(ports.port(), max_local_bytes=0, redelivery="broker") as (port, consumer, publisher):
        for number in range(3):
            port.topic.publish(bytes([number]))
        first = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(first.dead_letter("why"))
        await settle()
        assert await is_quiet(consumer)
        publisher.release()
        await call
        for _ in range(2):
            await (await consumer.receive(timeout=1)).dead_letter("why")
        assert [letter.data for letter in publisher.letters] == [b"\x00", b"\x01", b"\x02"]
        assert backlog(port) == 0


@virtual_time
async def test_a_call_that_waits_for_room_and_is_cancelled_has_done_nothing(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is cancelled before there is room leaves the message as it was; a close ends such calls."""
    monkeypatch.setattr(_letters, "_MOST", 1)
    async with consuming(ports.port()) as (port, consumer, publisher):
        for number in range(3):
            port.topic.publish(bytes([number]))
        first, second, third = [await consumer.receive(timeout=1) for _ in range(3)]
        publisher.hold()
        calls = [asyncio.create_task(first.dead_letter("why"))]
        await settle()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await second.dead_letter("why")
        await second.ack()
        calls.append(asyncio.create_task(third.dead_letter("why")))
        await settle()
        closing = asyncio.create_task(consumer.aclose())
        await settle(0.1)
        publisher.release()
        await closing
        with pytest.raises(ClosedError):
            await calls[1]
        await calls[0]
        assert [letter.data for letter in publisher.letters] == [b"\x00"]


@virtual_time
async def test_acknowledging_is_tried_again_and_nothing_is_published_twice(ports: Ports) -> None:
    """Once it is published only the acknowledgement is made again when that fails; nothing is shown meanwhile."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        port.fail_next("acknowledge", 3)
        call = asyncio.create_task(message.dead_letter("why"))
        await settle(0.05)
        assert (len(publisher.letters), call.done(), backlog(port)) == (1, False, 1)
        with pytest.raises(AlreadySettledError):
            await message.nack()
        await call
        assert (len(publisher.letters), backlog(port)) == (1, 0)
        assert consumer.statistics().dead_letter_failures == 3


@virtual_time
async def test_a_cumulative_acknowledgement_ends_what_is_under_way(ports: Ports) -> None:
    """A message that is acknowledged cumulatively is no dead letter any more; the call raises."""
    async with consuming(ports.port(subscription_type="exclusive")) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await settle()
        await consumer.acknowledge_cumulative(message.id)
        with pytest.raises(AlreadySettledError, match="acknowledged"):
            await call
        publisher.release()
        await settle()
        assert not publisher.letters
        assert consumer.statistics().unacked == 0


@virtual_time
async def test_a_seek_forgets_what_is_under_way(ports: Ports) -> None:
    """A seek ends dead letters that are not published yet; the message comes again, as all others do."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        first = port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.dead_letter("why"))
        await settle()
        await consumer.seek(first)
        with pytest.raises(AlreadySettledError, match="seek"):
            await call
        publisher.release()
        again = await consumer.receive(timeout=10)
        assert again.data == b"bad"
        await again.ack()
        assert not publisher.letters


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
