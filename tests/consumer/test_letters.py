"""Messages on their way to the dead-letter topic and to the retry topic, over each kind of port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from pulsar_nack import AlreadySettledError, ClosedError, Consumer, Message, NackConfig
from pulsar_nack.consumer import _letters
from pulsar_nack.testing import virtual_time
from tests.consumer.consuming import EXACT, backlog, consuming, is_quiet, received, settle
from tests.consumer.ports import Ports

SENT: Final = {"dead_letter": "sent to the dead-letter topic", "reconsume_later": "sent to the retry topic"}
pytestmark = pytest.mark.parametrize("verb", SENT)


def send(message: Message, verb: str, number: int = 5) -> Coroutine[Any, Any, None]:
    """Send a message; the number is its reason, or its delay."""
    return message.dead_letter(f"{number}") if verb == "dead_letter" else message.reconsume_later(number)


def figures(consumer: Consumer, verb: str) -> tuple[int, int, int]:
    """Return how many messages are stored, and on the way, and how many steps failed."""
    found = consumer.statistics()
    if verb == "dead_letter":
        return found.dead_lettered, found.dead_letters_waiting, found.dead_letter_failures
    return found.retried, found.retries_waiting, found.retry_failures


@pytest.mark.parametrize("redelivery", ["local", "broker"])
@virtual_time
async def test_after_a_nack(ports: Ports, verb: str, redelivery: Any) -> None:
    """U20: it cancels a nack that waits for its deadline, as an acknowledgement does; and it is final."""
    async with received(ports.port(), redelivery=redelivery) as (_, consumer, publisher, message):
        await message.nack(5)
        await send(message, verb)
        assert await is_quiet(consumer)
        assert len(publisher.letters) == 1
        assert (consumer.statistics().held, figures(consumer, verb)) == (0, (1, 0, 0))
        other = message.reconsume_later if verb == "dead_letter" else message.dead_letter
        for late in (message.ack, message.nack, other):
            with pytest.raises(AlreadySettledError, match=SENT[verb]):
                await late()
        with pytest.raises(AlreadySettledError, match=SENT[verb]):
            message.ack_soon()


@virtual_time
async def test_not_after_it_is_redelivered_or_acknowledged(ports: Ports, verb: str) -> None:
    """A later attempt belongs to the task that has it; and an acknowledgement is final."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        first = await consumer.receive(timeout=1)
        await first.nack(0.1)
        second = await consumer.receive(timeout=1)
        with pytest.raises(AlreadySettledError, match="redelivered"):
            await send(first, verb)
        await second.ack()
        with pytest.raises(AlreadySettledError, match="acknowledged"):
            await send(second, verb)
        assert not publisher.letters


@virtual_time
async def test_twice_is_once(ports: Ports, verb: str) -> None:
    """Two calls, and a nack meanwhile, publish once; an acknowledgement meanwhile raises: it is too late."""
    async with received(ports.port()) as (_, consumer, publisher, message):
        publisher.hold()
        calls = [asyncio.create_task(send(message, verb, number)) for number in (1, 2)]
        await settle()
        with pytest.raises(AlreadySettledError, match=SENT[verb]):
            await consumer.acknowledge(message.id)
        with pytest.raises(AlreadySettledError, match=SENT[verb]):
            consumer.acknowledge_soon(message.id)
        await consumer.negative_acknowledge(message.id)
        publisher.release()
        await asyncio.gather(*calls)
        (letter,) = publisher.letters
        assert letter.properties["PULSAR_NACK_REASON" if verb == "dead_letter" else "DELAY_TIME"] in {"1", "1000"}


@virtual_time
async def test_publishing_is_tried_again_until_it_succeeds(
    ports: Ports, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U15: a failed publish is retried with backoff; meanwhile the message is neither acknowledged nor delivered."""
    async with received(ports.port()) as (port, consumer, publisher, message):
        publisher.fail_next(20)
        with caplog.at_level(logging.WARNING):
            call = asyncio.create_task(send(message, verb))
            assert await is_quiet(consumer, 60)
        assert not publisher.letters
        assert backlog(port) == 1
        assert 5 <= publisher.attempts < 20
        assert figures(consumer, verb) == (0, 1, publisher.attempts)
        assert sum("publishing it failed and is tried again" in record.message for record in caplog.records) == 1
        await call
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ClosedError("the producer"), ValueError("a bug")])
@virtual_time
async def test_whatever_publishing_raises(ports: Ports, verb: str, error: BaseException) -> None:
    """Whatever a publisher raises, also an unrequested cancellation, publishing is retried."""
    async with received(ports.port()) as (port, _, publisher, message):
        publisher.fail_next(3, error=error)
        await send(message, verb)
        assert publisher.attempts == 4
        assert backlog(port) == 0


@pytest.mark.parametrize("end", ["close", "acknowledge_cumulative"])
@virtual_time
async def test_a_publisher_that_makes_an_error_of_its_cancellation(
    ports: Ports, verb: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called once: the consumer closes in time, and messages acknowledged meanwhile are not published."""
    kind = "shared" if end == "close" or verb == "reconsume_later" else "exclusive"
    async with consuming(ports.port(subscription_type=kind)) as (port, consumer, publisher):
        asked = list[str]()

        async def publish(topic: str, *_: Any, **__: Any) -> None:
            asked.append(topic)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                raise RuntimeError("aborted") from error

        monkeypatch.setattr(publisher, "publish", publish)
        port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        call = asyncio.create_task(send(message, verb))
        await settle()
        if kind == "shared":
            await asyncio.wait_for(consumer.aclose(), 60)
        else:
            await consumer.acknowledge_cumulative(message.id)
        with pytest.raises(ClosedError if kind == "shared" else AlreadySettledError):
            await call
        await settle()
        assert len(asked) == 1
        assert backlog(port) == (kind == "shared")


@virtual_time
async def test_a_lost_answer_makes_a_second_letter_never_none(ports: Ports, verb: str) -> None:
    """A message that was published though the answer was lost is published again: two copies, one acknowledgement."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"bad")
        publisher.fail_next(carried_out=True)
        await send(await consumer.receive(timeout=1), verb)
        assert len(publisher.letters) == 2
        assert backlog(port) == 0


@pytest.mark.each_kind
@virtual_time
async def test_the_order_is_publish_then_acknowledge(ports: Ports, verb: str) -> None:
    """U15: nothing is acknowledged before it is published; a duplicate meanwhile is not delivered."""
    async with received(ports.port(), redelivery="broker") as (port, consumer, publisher, message):
        publisher.hold()
        call = asyncio.create_task(send(message, verb))
        await settle()
        await port.redeliver([message.id])
        assert await is_quiet(consumer)
        assert (backlog(port), call.done(), figures(consumer, verb)) == (1, False, (0, 1, 0))
        publisher.release()
        await call
        assert backlog(port) == 0


@virtual_time
async def test_cancelled_it_goes_on(ports: Ports, verb: str) -> None:
    """A cancelled or timed-out call leaves the message on its way; calling again waits for the same."""
    async with received(ports.port()) as (port, _, publisher, message):
        publisher.hold()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await send(message, verb)
        with pytest.raises(AlreadySettledError):
            await message.ack()
        publisher.release()
        await send(message, verb)
        assert len(publisher.letters) == 1
        assert backlog(port) == 0


@virtual_time
async def test_close_waits_for_what_is_under_way(ports: Ports, verb: str) -> None:
    """U18: closing waits for messages on their way, up to the close timeout: then they are stored and acknowledged."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        topic = port.topic
        topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(send(message, verb))
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
async def test_close_gives_back_what_does_not_get_there(ports: Ports, verb: str) -> None:
    """U18: messages that are not published by the close timeout are given back: the call raises, they come again."""
    topic = ports.topic()
    topic.publish(b"bad")
    topic.publish(b"poison")
    async with consuming(ports.port(topic), most=1) as (_, consumer, publisher):
        message, other = [await consumer.receive(timeout=1) for _ in range(2)]
        await other.nack(0.1)
        other = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(send(message, verb))
        await other.nack()
        await settle()
        before = asyncio.get_running_loop().time()
        await consumer.aclose()
        assert asyncio.get_running_loop().time() - before == pytest.approx(5, abs=0.1)
        with pytest.raises(ClosedError):
            await call
        with pytest.raises(ClosedError):
            await send(message, verb)
        assert not publisher.letters
    async with Consumer(ports.port(topic), config=EXACT) as consumer:
        assert {(await consumer.receive(timeout=1)).data for _ in range(2)} == {b"bad", b"poison"}


@virtual_time
async def test_closed_in_the_turn_in_which_it_began(ports: Ports, verb: str) -> None:
    """A message whose task has not begun when the consumer closes leaves no call that waits for ever."""
    async with received(ports.port(), config=NackConfig(close_timeout=0)) as (_, consumer, publisher, message):
        publisher.hold()
        call = asyncio.create_task(send(message, verb))
        closing = asyncio.create_task(consumer.aclose())
        await closing
        with pytest.raises(ClosedError):
            await call
        assert not publisher.letters


@virtual_time
async def test_full_it_fetches_nothing_new(ports: Ports, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When they pile up no more messages are received, and calls wait, until there is room."""
    monkeypatch.setattr(_letters, "_MOST", 2)
    async with consuming(ports.port()) as (port, consumer, publisher):
        for number in range(5):
            port.topic.publish(bytes([number]))
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        publisher.hold()
        calls = [asyncio.create_task(send(message, verb)) for message in messages]
        await settle()
        assert await is_quiet(consumer)
        assert figures(consumer, verb) == (0, 2, 0)
        publisher.release()
        await asyncio.gather(*calls)
        assert {(await consumer.receive(timeout=1)).data for _ in range(2)} == {b"\x03", b"\x04"}
        assert len(publisher.letters) == 3


@virtual_time
async def test_bounded_in_bytes_too(ports: Ports, verb: str) -> None:
    """Payloads are bounded as well; however small that limit is, one message at a time passes."""
    async with consuming(ports.port(), max_local_bytes=0, redelivery="broker") as (port, consumer, publisher):
        for number in range(3):
            port.topic.publish(bytes([number]))
        first = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(send(first, verb))
        await settle()
        assert await is_quiet(consumer)
        publisher.release()
        await call
        for _ in range(2):
            await send(await consumer.receive(timeout=1), verb)
        assert [letter.data for letter in publisher.letters] == [b"\x00", b"\x01", b"\x02"]
        assert backlog(port) == 0


@virtual_time
async def test_a_call_that_waits_for_room_and_is_cancelled_has_done_nothing(
    ports: Ports, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is cancelled before there is room leaves the message as it was; a close ends such calls."""
    monkeypatch.setattr(_letters, "_MOST", 1)
    async with consuming(ports.port()) as (port, consumer, publisher):
        for number in range(3):
            port.topic.publish(bytes([number]))
        first, second, third = [await consumer.receive(timeout=1) for _ in range(3)]
        publisher.hold()
        calls = [asyncio.create_task(send(first, verb))]
        await settle()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await send(second, verb)
        await second.ack()
        calls.append(asyncio.create_task(send(third, verb)))
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
async def test_acknowledging_is_tried_again_and_nothing_is_published_twice(ports: Ports, verb: str) -> None:
    """U15: once published, only the acknowledgement is retried; nothing is delivered meanwhile."""
    async with received(ports.port()) as (port, consumer, publisher, message):
        port.fail_next("acknowledge", 3)
        call = asyncio.create_task(send(message, verb))
        await settle(0.05)
        assert (len(publisher.letters), call.done(), backlog(port)) == (1, False, 1)
        with pytest.raises(AlreadySettledError):
            await message.nack()
        await call
        assert (len(publisher.letters), backlog(port)) == (1, 0)
        assert figures(consumer, verb) == (1, 0, 3)


@virtual_time
async def test_a_seek_forgets_what_is_under_way(ports: Ports, verb: str) -> None:
    """A seek ends messages that are not published yet; they come again, like all others."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        first = port.topic.publish(b"bad")
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(send(message, verb))
        await settle()
        await consumer.seek(first)
        with pytest.raises(AlreadySettledError, match="seek"):
            await call
        publisher.release()
        again = await consumer.receive(timeout=10)
        assert again.data == b"bad"
        await again.ack()
        assert not publisher.letters


@pytest.mark.parametrize("index_acks", [True, False])
@virtual_time
async def test_one_of_a_batch(ports: Ports, verb: str, index_acks: bool) -> None:
    """U15: of a batch only this message; the others are handled as before, and the whole is acknowledged."""
    topic = ports.topic(batch_index_ack=index_acks)
    port = ports.port(topic, batch_index_ack=index_acks)
    async with consuming(port) as (_, consumer, publisher):
        topic.publish_batch([b"0", b"1", b"2"])
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        await send(messages[1], verb)
        await messages[0].nack(1)
        again = await consumer.receive(timeout=5)
        assert (again.data, again.attempt) == (b"0", 2)
        await again.ack()
        await messages[2].ack()
        assert [found.data for found in publisher.letters] == [b"1"]
        assert backlog(port) == 0
